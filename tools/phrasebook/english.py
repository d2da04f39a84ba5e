"""English word forms: plurals, third persons, past tenses, articles."""

import re

_VOWEL_SOUND = re.compile(r"[aeio]|u(?!ni)|hour|honest")
_PAST = dict(
    re.findall(
        r"(\w+):(\w+)",
        """
        be:was have:had go:went come:came do:did take:took see:saw know:knew drink:drank read:read write:wrote put:put
        sleep:slept leave:left find:found buy:bought sell:sold give:gave say:said think:thought lose:lost
        break:broke wear:wore hear:heard understand:understood choose:chose sing:sang swim:swam run:ran
        win:won fall:fell get:got eat:ate make:made speak:spoke
        """,
    )
)


def third_person(verb: str) -> str:
    """Gives the third person singular of a verb or of its first word: `look for`, `go out`.

    Examples:
        >>> [third_person(verb) for verb in ("eat", "watch", "study", "play", "go out", "have")]
        ['eats', 'watches', 'studies', 'plays', 'goes out', 'has']
    """
    head, space, particle = verb.partition(" ")
    return ("has" if head == "have" else _with_s(head)) + space + particle


def past(verb: str) -> str:
    """Gives the simple past of a verb or of its first word.

    Examples:
        >>> [past(verb) for verb in ("work", "close", "try", "stay", "go out", "read")]
        ['worked', 'closed', 'tried', 'stayed', 'went out', 'read']
    """
    head, space, particle = verb.partition(" ")
    return (_PAST.get(head) or _with_ed(head)) + space + particle


def plural_of(noun: str) -> str:
    """Gives the regular plural of a noun.

    Examples:
        >>> [plural_of(noun) for noun in ("dog", "box", "story", "boy", "tomato")]
        ['dogs', 'boxes', 'stories', 'boys', 'tomatoes']
    """
    return _with_s(noun)


def article(following: str) -> str:
    """Gives a or an.

    Examples:
        >>> article("apple"), article("university"), article("house")
        ('an', 'a', 'a')
    """
    return "an" if _VOWEL_SOUND.match(following) else "a"


def _with_s(word: str) -> str:
    if re.search(r"[^aeiou]y$", word):
        return word[:-1] + "ies"
    return word + ("es" if re.search(r"(s|x|ch|sh|[^aeiou]o|^go)$", word) and word not in _PLAIN_O else "s")


def _with_ed(word: str) -> str:
    if re.search(r"[^aeiou]y$", word):
        return word[:-1] + "ied"
    return word + ("d" if word.endswith("e") else "ed")


_PLAIN_O = frozenset({"photo", "piano"})
