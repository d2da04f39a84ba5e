"""A language's orthography: which words have a capital, how a sentence begins, where no space stands.

It is learnt from text, and stored in tokenizer.json as decoding steps of the `tokenizers` library.
"""

import json
import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from heapq import nlargest
from typing import Any, NamedTuple

from tokenizers import Regex, decoders, pre_tokenizers

LETTER = r"[\p{L}\p{M}]"

_SENTENCE_ENDS = (".", "!", "?", "…")
_MOST_STEPS = 20_000  # each takes a microsecond of every sentence
_NEVER_SPACED = frozenset(".,)]}…")  # in front of these no language that dikkat has met puts a space
_SENTENCE_MARKS = frozenset("?!;:")


class _Frame(NamedTuple):
    """A pattern around a literal text: the context in which a decoding step replaces it."""

    before: str
    after: str

    def step(self, text: str, content: str) -> decoders.Decoder:
        """The decoding step that puts `content` there."""
        return decoders.Replace(Regex(f"{self.before}{re.escape(text)}{self.after}"), content)

    def text(self, step: Any) -> str | None:
        """The text of a decoding step, as JSON has it; None: a step of another frame."""
        match step:
            case {"type": "Replace", "pattern": {"Regex": str(pattern), **other}, "content": str(), **more}:
                inside = pattern.removeprefix(self.before).removesuffix(self.after)
                text = re.sub(r"\\(.)", r"\1", inside, flags=re.DOTALL)
                whole = f"{self.before}{re.escape(text)}{self.after}" == pattern
                return text if whole and text and not other and not more else None
        return None


_INSIDE = _Frame(r"(?<=[ ])", r"(?=[ ]|$)")
_START = _Frame(r"(?:(?<=\A[ ])|(?<=\A[ ][\"«“(][ ])|(?<=[ ][.!?][ ]))", "")
_BEFORE = _Frame(r"[ ](?=", r"(?:[ ]|$))")
_AFTER = _Frame(r"(?<=[ ]", r")[ ]")
_FRAMES = (_INSIDE, _START, _BEFORE, _AFTER)


class _Piece(NamedTuple):
    """A piece of a sentence and how it was written."""

    text: str
    starts: bool  # begins a sentence
    space_before: bool | None  # None: no word stands before it
    space_after: bool | None


def _pieces(sentence: str, split: pre_tokenizers.PreTokenizer) -> Iterator[_Piece]:
    pieces = split.pre_tokenize_str(sentence)
    starts = True
    for index, (text, (start, end)) in enumerate(pieces):
        # Between two punctuation marks either could be the reason for a space: only words beside a mark tell.
        before = pieces[index - 1][1][1] < start if index and pieces[index - 1][0][0].isalnum() else None
        after = end < pieces[index + 1][1][0] if index + 1 < len(pieces) and pieces[index + 1][0][0].isalnum() else None
        yield _Piece(text, starts, before, after)
        starts = text in _SENTENCE_ENDS if text[0].isalnum() or text in _SENTENCE_ENDS else starts


def learn(
    sentences: Iterable[str], split: pre_tokenizers.PreTokenizer, vocabulary: Mapping[str, int]
) -> decoders.Decoder:
    """The orthography of a language, learnt from text.

    Args:
        sentences: Text as people write it.
        split: Cuts it into words and marks.
        vocabulary: The words that will ever be decoded, in lower case.

    Returns:
        A chain of the library's own decoding steps. They work on one string, each token with a space before it.
    """
    inside: dict[str, Counter[str]] = {}
    first_letters: Counter[str] = Counter()
    before: dict[str, Counter[bool]] = {}
    after: dict[str, Counter[bool]] = {}
    for sentence in sentences:
        for piece in _pieces(sentence, split):
            if not piece.text[0].isalnum():
                if piece.space_before is not None:
                    before.setdefault(piece.text, Counter())[piece.space_before] += 1
                if piece.space_after is not None:
                    after.setdefault(piece.text, Counter())[piece.space_after] += 1
            elif piece.starts:
                first_letters[piece.text[0]] += 1
            elif piece.text.lower() in vocabulary:  # no other word is ever decoded
                inside.setdefault(piece.text.lower(), Counter())[piece.text] += 1
    steps = [*_capitals_at_the_start(first_letters, inside), *_spaces(before, after)][:_MOST_STEPS]
    names = _capitals_inside(inside, _MOST_STEPS - len(steps))
    return decoders.Sequence([*_first_steps(), *names, *steps, *_last_steps()])


def check(decoder: Any, vocabulary: Mapping[str, int]) -> None:
    """Refuse a chain of decoding steps, as JSON has it, that `learn` could not have made for a vocabulary.

    Raises:
        ValueError: It is another; the message has the step.
    """
    first, last = ([json.loads(step.__getstate__()) for step in steps] for steps in (_first_steps(), _last_steps()))
    steps = decoder.get("decoders") if isinstance(decoder, dict) and decoder.get("type") == "Sequence" else None
    if not isinstance(steps, list) or steps[:2] != first or steps[-2:] != last:
        raise ValueError("its decoder is another than those that dikkat writes")
    if len(steps) - len(first) - len(last) > _MOST_STEPS:
        raise ValueError(f"its decoder: got {len(steps):,} steps; expected at most {_MOST_STEPS:,} and a few")
    met = set()
    for step in steps[2:-2]:
        frame, text = next(((frame, text) for frame in _FRAMES if (text := frame.text(step)) is not None), (None, ""))
        if frame is None or (frame is _INSIDE and text not in vocabulary) or (frame, text) in met:
            raise ValueError(f"its decoder has a step that dikkat does not write, or writes once: {reprlib.repr(step)}")
        met.add((frame, text))


def _first_steps() -> list[decoders.Decoder]:
    return [decoders.Replace(Regex("^"), " "), decoders.Fuse()]


def _last_steps() -> list[decoders.Decoder]:
    # Of all tokens that end in an apostrophe only elided words have a letter before it.
    return [decoders.Replace(Regex(rf"(?<={LETTER}')[ ](?={LETTER})"), ""), decoders.Strip(" ", 1, 0)]


def _capitals_inside(inside: dict[str, Counter[str]], most: int) -> Iterator[decoders.Decoder]:
    """Names: words that have a capital more often than not where no sentence begins; the most frequent of them."""
    usual = {word: max(sorted(forms), key=forms.__getitem__) for word, forms in sorted(inside.items())}
    names = nlargest(most, (word for word in usual if usual[word] != word), key=lambda word: inside[word].total())
    for word in sorted(names):
        yield _INSIDE.step(word, usual[word])


def _capitals_at_the_start(first_letters: Counter[str], inside: dict[str, Counter[str]]) -> Iterator[decoders.Decoder]:
    """A capital for the first letter of a sentence, where the training text has it so."""
    upper = sum(count for letter, count in first_letters.items() if letter.isupper())
    lower = sum(count for letter, count in first_letters.items() if letter.islower())
    if upper > lower:
        letters = {letter.lower() for letter in first_letters} | {word[0] for word in inside}
        for letter in sorted(letter for letter in letters if letter.upper() != letter):
            yield _START.step(letter, letter.upper())


def _spaces(before: dict[str, Counter[bool]], after: dict[str, Counter[bool]]) -> Iterator[decoders.Decoder]:
    """No space beside a punctuation mark on the sides where the training text mostly has none."""
    marks = sum((count for mark, count in before.items() if mark in _SENTENCE_MARKS), Counter[bool]())
    for mark in sorted({*before, *_NEVER_SPACED, *_SENTENCE_MARKS} - {'"'}):  # Tokenizer.decode pairs these
        seen = before.get(mark) or (marks if mark in _SENTENCE_MARKS else Counter())
        if mark[0] in _NEVER_SPACED or seen[False] > seen[True]:
            yield _BEFORE.step(mark, "")
    for mark, seen in sorted(after.items()):
        if seen[False] > seen[True] and mark not in {*_NEVER_SPACED, *_SENTENCE_MARKS, '"'}:
            yield _AFTER.step(mark, "")
