"""Tags of a sentence, which go over to its translation: around the words that say what they were around."""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dikkat.errors import InputError
from dikkat.translation.text.units import Units

# A comment, an instruction (<?php … ?>), a declaration, a whole script or style; or a tag, whose name ends at a space,
# a slash or `>`: neither <user@example.com> nor <https://example.com> is one. Names and values are not read again (+):
# that took seconds.
_TAG = re.compile(
    r"<!--(?:>|->|.*?--!?>)|<\?.*?\?>|<!\[CDATA\[.*?\]\]>|<![^>]*>"
    r"|<(?P<raw>script|style)\b[^>]*>.*?</(?P=raw)(?=[\s/>])[^>]*>"
    r"|<(?P<ends>/?)(?P<name>[a-z][\w.-]*+(?::[\w.-]++)?)(?P<rest>(?=[\s/>])(?:[^<>\"']|\"[^\"]*\"|'[^']*')*+)>",
    re.DOTALL | re.IGNORECASE,
)
_VALUE = re.compile(r"=\s*[^\s\"'=]+$")  # a value without quotes, whose last slash is its own
_VOID = frozenset({
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr",
})  # fmt: skip
_PARTING = frozenset({  # words before them and behind them are two
    "address", "article", "aside", "blockquote", "br", "caption", "dd", "div", "dl", "dt", "figcaption", "figure",
    "footer", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "option", "p", "pre",
    "section", "table", "td", "th", "tr", "ul",
})  # fmt: skip
_DEEPEST = 100
_TO_DO = "Write &lt; for a < that begins no tag"

Span = tuple[int, int]


@dataclass
class Element:
    """A tag, or a comment, a script or a style, with the elements in it.

    `first` is the first character of its text, `last` the one behind the last; tags such as `<br>` have no `closing`.
    """

    opening: str
    closing: str = ""
    first: int = 0
    last: int = 0
    inside: list["Element"] = field(default_factory=list)

    @property
    def bare(self) -> str:
        """The tags without a text."""
        return self.opening + "".join(each.bare for each in self.inside) + self.closing


def parse(marked: str, name: str = "markup") -> tuple[str, Element]:
    """Part a sentence in HTML into its text, entities resolved, and its tags."""
    root = Element("")
    text, path, names, end, parted = "", [root], [""], 0, False

    def read(piece: str) -> None:
        nonlocal text, parted
        if piece:
            if parted and text and not (text[-1].isspace() or piece[0].isspace()):
                text += " "
            text, parted = text + piece, False

    for tag in _TAG.finditer(marked):
        read(html.unescape(marked[end : tag.start()]))
        end, tagged, rest = tag.end(), (tag["name"] or "").lower(), tag["rest"]
        parted = parted or tagged in _PARTING
        if tag["ends"]:
            if tagged != names[-1]:
                within = f"<{names[-1]}> is open" if names[-1] else "no tag is open"
                raise InputError(f"{name}: got {tag[0]} where {within}; expected tags that nest. {_TO_DO}")
            names.pop()
            element = path.pop()
            element.closing, element.last = tag[0], len(text)
            continue
        element = Element(tag[0], "", len(text), len(text))
        path[-1].inside.append(element)
        if tagged and tagged not in _VOID and not (rest.endswith("/") and not _VALUE.search(rest)):
            path.append(element)
            names.append(tagged)
            if len(path) > _DEEPEST:
                raise InputError(f"{name}: got {tag[0]} inside of {_DEEPEST - 1} others; expected fewer in each other")
    if len(path) > 1:
        raise InputError(f"{name}: got {path[-1].opening}, which is not closed; expected tags that nest. {_TO_DO}")
    read(html.unescape(marked[end:]))
    root.last = len(text)
    return text, root


def carry(root: Element, target: str, weights: Tensor, source: Units, units: Units) -> str:
    """The translation as HTML, with the tags of its source, each once, nested as they were.

    An element goes around the run of words that come from its own more likely than not, or else around the one that
    most does; a tag without a text before the word that comes from the one behind it. `weights` (T, S) say how probably
    each unit of the target comes from each of the source.
    """
    if not units.spans or not source.spans:
        return root.bare + html.escape(target, quote=False)
    return _filled(root, target, weights, source, units, (0, len(units.spans)), (0, len(target)))


def _filled(
    element: Element, target: str, weights: Tensor, source: Units, units: Units, within: Span, characters: Span
) -> str:
    """The text of the units `within` an element, with the elements in it."""
    places = _places(element, weights, source, units, within)
    written, at = "", characters[0]
    for each, (first, last) in sorted(zip(element.inside, places, strict=True), key=lambda pair: pair[1]):
        if first == last:
            start = stop = (
                units.spans[first][0] if first < within[1] else max(at, units.spans[first - 1][1] if first else 0)
            )
            inner = "".join(other.bare for other in each.inside)
        else:
            start, stop = units.spans[first][0], units.spans[last - 1][1]
            inner = _filled(each, target, weights, source, units, (first, last), (start, stop))
        written += html.escape(target[at:start], quote=False) + each.opening + inner + each.closing
        at = stop
    return written + html.escape(target[at : characters[1]], quote=False)


def _places(element: Element, weights: Tensor, source: Units, units: Units, within: Span) -> list[Span]:
    """The target units of each element in another, none of which overlap; an empty run for a tag without a text."""
    begun = [
        [index for index, (start, _) in enumerate(source.spans) if each.first <= start < each.last]
        for each in element.inside
    ]
    # A part of a word stands for the word.
    covered = [
        own or [index for index, (start, end) in enumerate(source.spans) if start < each.first < each.last <= end]
        for own, each in zip(begun, element.inside, strict=True)
    ]
    gains = []
    for chosen in covered:
        shares = weights[within[0] : within[1], chosen].sum(1)
        if all(source.is_word[index] for index in chosen):  # a full stop comes with a full stop
            shares = shares.masked_fill(~torch.tensor(units.is_word[within[0] : within[1]], dtype=torch.bool), 0.0)
        gains.append((shares - 0.5).tolist())
    places: list[Span | None] = [None] * len(covered)
    free = [(within[0], within[1])]  # runs of units that no element has yet
    for certain in (True, False):
        order = sorted(range(len(covered)), key=lambda index: -max(gains[index], default=0.0))
        for index in order:
            if not covered[index] or places[index] is not None:
                continue
            runs = [_best_run(gains[index], first - within[0], last - within[0]) for first, last in free]
            total, first, last = max(runs, default=(-1.0, 0, 0))
            if first < last and (total > 0 or (begun[index] and not certain)):
                places[index] = run = (first + within[0], last + within[0])
                free = [
                    part
                    for start, stop in free
                    for part in ((start, min(stop, run[0])), (max(start, run[1]), stop))
                    if part[0] < part[1]
                ]
    taken = [place for place in places if place]
    return [
        place or _point(weights, source, each.first, element.last, within, taken)
        for place, each in zip(places, element.inside, strict=True)
    ]


def _best_run(gains: Sequence[float], first: int, last: int) -> tuple[float, int, int]:
    """The run of the largest sum between two places, of one unit at least: its sum, its first unit, the next one."""
    best = (float("-inf"), first, first)
    total, start = 0.0, first
    for place in range(first, last):
        if total <= 0:
            total, start = 0.0, place
        total += gains[place]
        best = max(best, (total, start, place + 1), key=lambda run: run[0])
    return best


def _point(weights: Tensor, source: Units, first: int, last: int, within: Span, taken: Sequence[Span]) -> Span:
    """The place before the unit that comes from the source's next one, if that is in the same element."""
    following = next((index for index, (start, _) in enumerate(source.spans) if first <= start < last), None)
    place = within[1]
    if following is not None:
        place = within[0] + int(weights[within[0] : within[1], following].argmax())
    inside = next((start for start, stop in taken if start < place < stop), place)
    return inside, inside
