"""Lines as people have them: several sentences in one, and parts that are carried over as they are."""

import html
from collections import Counter
from collections.abc import Sequence

import regex
from torch import Tensor

from dikkat.errors import InputError
from dikkat.translation.text.capitals import END
from dikkat.translation.text.markup import Element, carry
from dikkat.translation.text.units import Units

KEEP = (
    r"(?:https?://|www\.)[^\s<>\"«»“”]*[^\s<>\"«»“”.,;:!?)\]]"
    r"|[\w.+-]{1,64}+@[\w-]+(?:\.[\w-]+)+"
    r"|%(?:\d+\$)?[-+#0]*\d*(?:\.\d+)?(?:[diufeEgGxXosc]|@)(?![\p{L}\p{N}])"
    r"|\$?\{\{?[^{}\s]{0,200}\}\}?|</?\d+\s*/?>|&\w+;"
    r"|[\U0001F000-\U0001FAFF\u2600-\u27BF][\uFE0F\U0001F3FB-\U0001F3FF]?(?:\u200D[\U0001F000-\U0001FAFF\u2600-\u27BF]\uFE0F?)*"
    r"|\p{N}(?:[\p{N}.,:/-]*\p{N})"
)
"""The pattern of what is kept by itself: addresses, placeholders of programs, emoji, numbers of two digits and more."""

_MARK = "\ue000"  # of private use: no text has it


def sentences_of(line: str) -> tuple[list[str], list[str]]:
    """The sentences of a line, and the space between each and the next one.

    Example:
        >>> sentences_of("Dr. Li left at 5 p.m. on Monday. “Why?” He said no.")
        (['Dr. Li left at 5 p.m. on Monday.', '“Why?”', 'He said no.'], [' ', ' '])
    """
    sentences, spaces, start = [], [], 0
    for end in END.finditer(line):
        sentences.append(line[start : end.start()])
        spaces.append(end[0])
        start = end.end()
    return [*sentences, line[start:]], spaces


def pattern_of(keep: str) -> regex.Pattern[str]:
    """A pattern that somebody gave."""
    try:
        return regex.compile(keep)
    except regex.error as error:
        raise InputError(f"keep: got {keep!r}; expected a regular expression ({error})") from error


def lost(source: str, target: str, pattern: regex.Pattern[str]) -> bool:
    """Whether a translation has not each of what is to be kept, as often; of numbers the digits count."""
    kept = Counter[str]() if _MARK in source + target else _counted(source, pattern)
    return bool(kept) and kept != _counted(target, pattern)


def _counted(text: str, pattern: regex.Pattern[str]) -> Counter[str]:
    return Counter(
        regex.sub(r"\D", "", each[0]) if each[0][0].isdecimal() else each[0]
        for each in pattern.finditer(text)
        if each[0]
    )


def taken_out(sentence: str, pattern: regex.Pattern[str]) -> tuple[str, list[str], str, Element]:
    """A sentence with marks in the place of what is kept; this; the text between the marks, and an element for each."""
    kept = [each[0] for each in pattern.finditer(sentence) if each[0]]
    marked = pattern.sub(lambda each: _MARK if each[0] else "", sentence)
    root, text = Element(""), ""
    for part in regex.split(rf"({_MARK})", marked):
        if part == _MARK:
            root.inside.append(Element(_MARK, "", len(text), len(text)))
        else:
            text += part[1:] if part[:1].isspace() and (not text or text[-1].isspace()) else part
    for each in root.inside:  # behind a space, and not before it
        each.first = each.last = each.first + (text[each.first : each.first + 1] == " ")
    root.last = len(text)
    return marked, kept, text.rstrip(), root


def put_back(
    marked: str, kept: Sequence[str], root: Element, target: str, weights: Tensor, source: Units, units: Units
) -> str:
    """A translation of the text between the marks, with what was kept where its own neighbours went."""
    written = html.unescape(carry(root, target, weights, source, units))
    beside = [(each[1], each[2]) for each in regex.finditer(rf"(?<=(\s?)){_MARK}(?=(\s?))", marked)]
    left, spaced = iter(zip(kept, beside, strict=True)), -1

    def placed(found: regex.Match[str]) -> str:
        nonlocal spaced
        part, (before, after) = next(left)
        starts, ends = found.start() in (0, spaced), found.end() == len(written)
        before_it = " " if not starts and (before or found["left"]) and not found["open"] else ""
        after_it = " " if not ends and (after or found["right"]) and not found["shut"] else ""
        spaced = found.end() if after_it else -1
        return f"{before_it}{part}{after_it}"

    inside = r"\p{L}\p{M}\p{N}"
    found: str = regex.sub(
        rf"(?:(?<=(?P<left>[{inside}]))|(?<=(?P<open>[(\[{{«“„¿¡\s]))|)\s*{_MARK}\s*"
        rf"(?:(?=(?P<right>[{inside}]))|(?=(?P<shut>[)\]}}»”.,;:!?…\s]))|)",
        placed,
        written,
    )
    return found
