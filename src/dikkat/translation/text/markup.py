"""HTML tags of a sentence, transferred to its translation by the words that they enclose."""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dikkat.errors import InputError
from dikkat.translation.text.units import Units

# A comment, an instruction (<?php … ?>), a declaration, a complete script or style; or a tag, whose name ends at a
# space, a slash or `>`: neither <user@example.com> nor <https://example.com> is a tag. Possessive quantifiers (+)
# prevent backtracking, which took seconds.
_TAG = re.compile(
    r"<!--(?:>|->|.*?--!?>)|<\?.*?\?>|<!\[CDATA\[.*?\]\]>|<![^>]*>"
    r"|<(?P<raw>script|style)\b[^>]*>.*?</(?P=raw)(?=[\s/>])[^>]*>"
    r"|<(?P<ends>/?)(?P<name>[a-z][\w.-]*+(?::[\w.-]++)?)(?P<rest>(?=[\s/>])(?:[^<>\"']|\"[^\"]*\"|'[^']*')*+)>",
    re.DOTALL | re.IGNORECASE,
)
_VALUE = re.compile(r"=\s*[^\s\"'=]+$")  # a value without quotes, which includes a last slash
_VOID = frozenset({
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr",
})  # fmt: skip
_BLOCK_TAGS = frozenset({  # they separate words
    "address", "article", "aside", "blockquote", "br", "caption", "dd", "div", "dl", "dt", "figcaption", "figure",
    "footer", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "option", "p", "pre",
    "section", "table", "td", "th", "tr", "ul",
})  # fmt: skip
_MAX_DEPTH = 100
_ADVICE = "Write &lt; for a < that begins no tag"

Span = tuple[int, int]


@dataclass
class Element:
    """A tag, comment, script or style, and the elements inside of it.

    Its text is the characters from `first` up to `last`, exclusive. Tags such as `<br>` have no `closing`.
    """

    opening: str
    closing: str = ""
    first: int = 0
    last: int = 0
    inside: list["Element"] = field(default_factory=list)

    @property
    def bare(self) -> str:
        """The tags without their text."""
        return self.opening + "".join(child.bare for child in self.inside) + self.closing


def parse(marked: str, name: str = "markup") -> tuple[str, Element]:
    """Return the text of a sentence in HTML, with entities resolved, and the root of its elements."""
    root = Element("")
    text, path, names, end, separated = "", [root], [""], 0, False

    def add_text(content: str) -> None:
        nonlocal text, separated
        if content:
            if separated and text and not (text[-1].isspace() or content[0].isspace()):
                text += " "
            text, separated = text + content, False

    for tag in _TAG.finditer(marked):
        add_text(html.unescape(marked[end : tag.start()]))
        end, tag_name, attributes = tag.end(), (tag["name"] or "").lower(), tag["rest"]
        separated = separated or tag_name in _BLOCK_TAGS
        if tag["ends"]:
            if tag_name != names[-1]:
                context = f"<{names[-1]}> is open" if names[-1] else "no tag is open"
                raise InputError(f"{name}: got {tag[0]} where {context}; expected tags that nest. {_ADVICE}")
            names.pop()
            element = path.pop()
            element.closing, element.last = tag[0], len(text)
            continue
        element = Element(tag[0], "", len(text), len(text))
        path[-1].inside.append(element)
        if tag_name and tag_name not in _VOID and not (attributes.endswith("/") and not _VALUE.search(attributes)):
            path.append(element)
            names.append(tag_name)
            if len(path) > _MAX_DEPTH:
                raise InputError(f"{name}: got {tag[0]} inside of {_MAX_DEPTH - 1} tags; expected fewer levels")
    if len(path) > 1:
        raise InputError(f"{name}: got {path[-1].opening}, which is not closed; expected tags that nest. {_ADVICE}")
    add_text(html.unescape(marked[end:]))
    root.last = len(text)
    return text, root


def carry(root: Element, target: str, weights: Tensor, source: Units, units: Units) -> str:
    """Return the translation as HTML with each tag of its source once, nested as in the source.

    An element encloses the run of words that probably translate its words, or else the most probable word. A tag
    without text precedes the word that translates the word after the tag. `weights` (T, S) are the probabilities that
    a target unit translates a source unit.
    """
    if not units.spans or not source.spans:
        return root.bare + html.escape(target, quote=False)
    return _fill(root, target, weights, source, units, (0, len(units.spans)), (0, len(target)))


def _fill(
    element: Element, target: str, weights: Tensor, source: Units, units: Units, run: Span, characters: Span
) -> str:
    """Return the HTML of an element's target units `run` and target `characters`, with the elements inside."""
    runs = _find_runs(element, weights, source, units, run)
    markup, position = "", characters[0]
    for child, (first, last) in sorted(zip(element.inside, runs, strict=True), key=lambda pair: pair[1]):
        if first == last:
            start = stop = (
                units.spans[first][0] if first < run[1] else max(position, units.spans[first - 1][1] if first else 0)
            )
            content = "".join(grandchild.bare for grandchild in child.inside)
        else:
            start, stop = units.spans[first][0], units.spans[last - 1][1]
            content = _fill(child, target, weights, source, units, (first, last), (start, stop))
        markup += html.escape(target[position:start], quote=False) + child.opening + content + child.closing
        position = stop
    return markup + html.escape(target[position : characters[1]], quote=False)


def _find_runs(element: Element, weights: Tensor, source: Units, units: Units, outer: Span) -> list[Span]:
    """Return disjoint runs of target units for the elements inside an element; empty runs for tags without text."""
    starting = [
        [index for index, (start, _) in enumerate(source.spans) if child.first <= start < child.last]
        for child in element.inside
    ]
    # An element within a word gets the translation of the word.
    covering = [
        indices or [index for index, (start, end) in enumerate(source.spans) if start < child.first < child.last <= end]
        for indices, child in zip(starting, element.inside, strict=True)
    ]
    gains = []
    for indices in covering:
        shares = weights[outer[0] : outer[1], indices].sum(1)
        if all(source.is_word[index] for index in indices):  # words do not become punctuation marks
            shares = shares.masked_fill(~torch.tensor(units.is_word[outer[0] : outer[1]], dtype=torch.bool), 0.0)
        gains.append((shares - 0.5).tolist())
    runs: list[Span | None] = [None] * len(covering)
    free_runs = [(outer[0], outer[1])]
    for only_gains in (True, False):
        order = sorted(range(len(covering)), key=lambda index: -max(gains[index], default=0.0))
        for index in order:
            if not covering[index] or runs[index] is not None:
                continue
            candidates = [_best_run(gains[index], first - outer[0], last - outer[0]) for first, last in free_runs]
            total, first, last = max(candidates, default=(-1.0, 0, 0))
            if first < last and (total > 0 or (starting[index] and not only_gains)):
                runs[index] = best = (first + outer[0], last + outer[0])
                free_runs = [
                    piece
                    for start, stop in free_runs
                    for piece in ((start, min(stop, best[0])), (max(start, best[1]), stop))
                    if piece[0] < piece[1]
                ]
    used = [run for run in runs if run]
    return [
        run or _find_point(weights, source, child.first, element.last, outer, used)
        for run, child in zip(runs, element.inside, strict=True)
    ]


def _best_run(gains: Sequence[float], first: int, last: int) -> tuple[float, int, int]:
    """Return (sum, first, end) of the non-empty run with the largest sum of gains between `first` and `last`."""
    best = (float("-inf"), first, first)
    total, start = 0.0, first
    for index in range(first, last):
        if total <= 0:
            total, start = 0.0, index
        total += gains[index]
        best = max(best, (total, start, index + 1), key=lambda run: run[0])
    return best


def _find_point(weights: Tensor, source: Units, first: int, last: int, outer: Span, runs: Sequence[Span]) -> Span:
    """Return the empty run before the unit that translates the next source unit of the outer element."""
    following = next((index for index, (start, _) in enumerate(source.spans) if first <= start < last), None)
    point = outer[1]
    if following is not None:
        point = outer[0] + int(weights[outer[0] : outer[1], following].argmax())
    boundary = next((start for start, stop in runs if start < point < stop), point)
    return boundary, boundary
