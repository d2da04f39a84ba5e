"""Slots: numbers, addresses and placeholders that a translation has as the training pairs write them."""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, permutations
from operator import itemgetter
from typing import Any, NamedTuple

import regex

from dikkat.translation.text.special_tokens import SLOTS
from dikkat.translation.text.tokenizer import Place, Tokenizer, locate

_BEFORE = r"(?<![\p{L}\p{M}\p{N}_])(?<!\p{N}[.,:/'’\-])"
_AFTER = r"(?![\p{L}\p{M}\p{N}_])(?![.,:/'’\-]\p{N})"
_OUTSIDE = r"\s<>\"«»“”()"
SPAN = regex.compile(
    rf"(?<url>(?:https?://|www\.)(?:[^{_OUTSIDE}]|\([^{_OUTSIDE}]*\))*(?:[^{_OUTSIDE}.,;:!?'’\]]|\([^{_OUTSIDE}]*\)))"
    r"|(?<email>[\p{L}\p{N}._+\-]{1,64}@[\p{L}\p{N}\-]+(?:\.[\p{L}\p{N}\-]+)+)"
    r"|(?<printf>%(?:\([\p{L}\p{N}_.\-]{1,64}\)|[0-9]{1,2}\$)?[\-+#]{0,4}[0-9]{0,9}(?:\.[0-9]{1,9})?(?:hh?|ll?|[Lzjt])?"
    r"[diufFeEgGxXoscpaA@](?![\p{L}\p{N}]))"
    r"|(?<percent>%(?:[0-9]{1,2}|[A-Z_][A-Z0-9_]+%?)(?![\p{L}\p{N}]))"
    r"|(?<brace>[$#]?\{\{[^{}]{0,200}\}\}|[$#]?\{[^{}\s]{0,200}\}"
    r"|\{[\p{L}\p{N}_]{1,64}(?:,\s?[\p{L}\p{N}_.#%\-]{1,64}){1,3}\})"
    r"|(?<dollar>(?<![\p{L}\p{N}])\$[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?<tag></?[0-9]+\s?/?>|</?[A-Za-z][A-Za-z0-9:.\-]{0,64}(?:\s[^<>]{0,200})?/?>)"
    r"|(?<entity>&(?:#[0-9]{1,8}|#x[0-9A-Fa-f]{1,8}|[A-Za-z][A-Za-z0-9]{1,31});)"
    r"|(?<emoji>[\U0001F000-\U0001FAFF\u2600-\u27BF][\U0001F000-\U0001FAFF\u2600-\u27BF\uFE0F\u200D]*)"
    rf"|(?<number>{_BEFORE}(?:\p{{Nd}}{{1,3}}(?:[ \u00A0\u202F]\p{{Nd}}{{3}})+(?!\p{{Nd}})(?:[.,]\p{{Nd}}+)?"
    rf"|\p{{Nd}}+(?:[.,:/'’\p{{L}}\-]\p{{Nd}}+)*){_AFTER})"
)
_SPAN_OR_WORD = regex.compile(rf"{SPAN.pattern}|(?<word>{_BEFORE}[\p{{L}}\p{{M}}\p{{N}}_]{{2,}}{_AFTER})")
_EDGES = regex.compile(_BEFORE), regex.compile(_AFTER)
_DIGITS = regex.compile(r"\p{Nd}+")
_MARKS = " \u00a0\u202f'’.,"  # of quantities
_COARSE = [  # shapes of quantities, and the name for all of a kind
    (regex.compile(r"9+"), "~"),
    (
        regex.compile(rf"#(?<mark>[{_MARKS}])999(?:(?P=mark)999)*(?:(?!(?P=mark))(?<decimal>[.,]9)9*)?"),
        r"~\g<mark>999\g<decimal>",
    ),
    (regex.compile(r"#(?<mark>[.,])9+"), r"~\g<mark>9"),
]
_ENOUGH = 5  # occurrences of a shape that stays text, after which its coarse shape has no say
_ENOUGH_PAIRS = 8  # training pairs with so many slots
_SHARE = 0.95  # of many occurrences of a shape that its template must have
_FEW_ERRORS = 4  # square roots of the number of occurrences that may be missing from that share
_LONGEST = 3  # characters between two groups of digits
_ORDERED = 4  # groups of digits that may change their order
_MOST_SHAPES = 1_000

Template = Sequence[int | str]


class Shape(NamedTuple):
    """How the training pairs write the spans of a shape.

    Attributes:
        written: Numbers of groups and the texts between them; of a coarse shape the text for each of its separators.
            None: the pairs agree on no way, and the spans stay text.
        times: Spans that are written so.
        of: All spans of this shape.
    """

    written: Template | None
    times: int
    of: int


class _Span(NamedTuple):
    start: int
    end: int
    shape: str
    coarse: list[str]  # names of coarse shapes; only the first one counts the span
    groups: list[str]
    separators: list[str]


class Masked(NamedTuple):
    """A text with slots.

    Attributes:
        text: The text, one character for each slot.
        parts: The text that each slot stands for.
        cuts: The place of each slot in the original text.
    """

    text: str
    parts: list[str]
    cuts: list[Place]

    def restore(self, text: str) -> str:
        """Replace the slots of a text by their parts; slots without a part give nothing."""
        parts = dict(enumerate(self.parts))
        return text.translate({ord(character): parts.get(slot) for slot, character in enumerate(SLOTS)})

    def write(self, text: str) -> str:
        """Restore a translation, with a space between a part and a neighbour if both have a letter or digit there."""
        parts, written, last = dict(zip(SLOTS, self.parts, strict=False)), "", False
        for character in text:
            part = parts.get(character, "" if character in SLOTS else character)
            touches = (last or character in parts) and written[-1:].isalnum() and part[:1].isalnum()
            written, last = f"{written}{' ' * touches}{part}", character in parts
        return written

    def locate(self, places: Iterable[Place]) -> list[Place]:
        """Return places of the masked text as places of the original."""
        characters, end = list[Place](), 0
        for cut in sorted(self.cuts):
            characters += [(index, index + 1) for index in range(end, cut[0])] + [cut]
            end = cut[1]
        rest = range(end, end + len(self.text) - len(characters))
        characters += [(index, index + 1) for index in rest]
        return locate(places, characters)


@dataclass(frozen=True)
class Slots:
    r"""The spans of a text that a model reads and writes as slots.

    Attributes:
        shapes: How the training pairs write each shape. `#:99` is a number of two groups, `9999` one of four digits,
            `url` an address. `~` is any whole number, `~.9` any with a decimal part, `~,999` any with groups of three
            digits, and `~,999.9` any with both.
        most: Slots in a sentence; spans behind them stay text.

    Example:
        >>> slots = Slots.learn([(f"At {hour}:30.", f"Às {hour}h30.") for hour in range(9)])
        >>> slots.most, slots.shapes["#:99"].written
        (1, [0, 'h', 1])
        >>> source, target = slots.mask("At 14:05.")
        >>> source.text, target.parts
        ('At \x01.', ['14h05'])
    """

    shapes: Mapping[str, Shape] = field(default_factory=dict)
    most: int = 0

    def known(self, *tokenizers: Tokenizer) -> "Slots":
        """Return only as many slots as all tokenizers have learnt."""
        known = set(range(self.most)).intersection(*(tokenizer.slots.values() for tokenizer in tokenizers))
        return replace(self, most=next(slot for slot in range(self.most + 1) if slot not in known))

    @classmethod
    def learn(cls, pairs: Sequence[tuple[str, str]]) -> "Slots":
        """Count how the targets of training pairs write the spans of their sources."""
        seen, matched = Counter[str](), Counter[str]()
        templates = defaultdict[str, Counter[tuple[int | str, ...]]](Counter)
        examples = dict[str, _Span]()
        for source, target in pairs:
            taken = list[Place]()
            for span in _spans(source):
                examples.setdefault(span.shape, span)
                seen[span.shape] += 1
                rewritings = _rewritings(span, target, taken)
                matched[span.shape] += bool(rewritings)
                templates[span.shape].update(rewritings)
        verdicts = {
            name: _verdict(templates[name], _in_order(span.separators), matched[name], seen[name])
            for name, span in examples.items()
        }
        for name, span in examples.items():
            # Rare shapes may differ from a frequent one that stays text or is written as no quantity.
            written = verdicts[name].written
            is_like_others = written is not None and _texts(span, written) is not None
            if span.coarse and (is_like_others or seen[name] < _ENOUGH):
                seen[span.coarse[0]] += seen[name]
                for template, times in templates[name].items():
                    if (texts := _texts(span, template)) is not None:
                        templates[span.coarse[0]][texts] += times
        for name in seen.keys() - examples.keys():
            copy = tuple(regex.findall("[^~9]", name))
            verdicts[name] = _verdict(templates[name], copy, templates[name].total(), seen[name])
        lasting = [name for name in seen if seen[name] >= _ENOUGH or verdicts[name].written is not None]
        lasting.sort(key=lambda name: (-seen[name], name))
        shapes = {name: verdicts[name] for name in lasting[:_MOST_SHAPES]}
        slots = cls(shapes, len(SLOTS))
        counts = Counter(len(slots.mask(source, target)[0].parts) for source, target in pairs)
        most = sum(sum(counts[many] for many in counts if many > slot) >= _ENOUGH_PAIRS for slot in range(slots.most))
        return cls(shapes, most)

    def mask(self, source: str, target: str | None = None) -> tuple[Masked, Masked]:
        """Replace spans by slots.

        Args:
            source: The source text.
            target: Its translation, in which the same spans are replaced. None: all spans of the source are, and the
                second result has the parts of a translation that is yet to be written.

        Returns:
            Both texts with slots.
        """
        source, translation = _blanked(source), _blanked(target or "")
        cuts, places, parts = list[Place](), list[Place](), list[str]()
        for span in _spans(source) if self.most else ():
            written = self._written(span)
            if written is None or len(cuts) == self.most:
                continue
            if target is not None:
                place = _find(written, translation, places)
                if place is None:
                    continue
                places.append(place)
            cuts.append((span.start, span.end))
            parts.append(written)
        return _masked(source, [source[start:end] for start, end in cuts], cuts), _masked(translation, parts, places)

    def practise(self, source: str, target: str) -> tuple[str, str] | None:
        """Replace spans, and words that both sides have exactly once, by slots in random increasing order.

        A model that learns from such copies has met each slot in many sentences, even if few pairs have numbers.

        Returns:
            Both texts, or None without a slot. The same pair gives the same texts.
        """
        source, target = _blanked(source), _blanked(target)
        found = list[tuple[Place, Place]]()
        for span in _spans(source, _SPAN_OR_WORD) if self.most else ():
            cut, places = (span.start, span.end), [place for _, place in found]
            written = self._written(span)
            place = None if written is None else _find(written, target, places)
            if place is None or (
                span.shape == "word"
                and (_find(span.groups[0], source, [cut]) or _find(span.groups[0], target, [*places, place]))
            ):
                continue
            found.append((cut, place))
        if not found:
            return None
        draw = random.Random(f"{source}\t{target}")
        count = min(len(found), self.most)
        chosen = sorted(draw.sample(found, count))
        slots = sorted(draw.sample(range(self.most), count))
        return (
            _with_slots(source, dict(zip(slots, (cut for cut, _ in chosen), strict=True))),
            _with_slots(target, dict(zip(slots, (place for _, place in chosen), strict=True))),
        )

    def _written(self, span: _Span) -> str | None:
        name = next((name for name in (span.shape, *span.coarse) if name in self.shapes), None)
        kinds = list(dict.fromkeys(span.separators))
        written: Template | None = kinds if name is None else self.shapes[name].written
        if written is not None and name != span.shape:
            texts = dict(zip(kinds, map(str, written), strict=True))
            written = _in_order([texts[old] for old in span.separators])
        return None if written is None else "".join(e if isinstance(e, str) else span.groups[e] for e in written)

    def copies(self, text: str) -> bool:
        """Return whether a text with slots has no letter, and no number of a shape that training has counted."""
        names = (name for span in _spans(text) for name in (span.shape, *span.coarse))
        return not regex.search(r"\p{L}", text) and not any(name in self.shapes for name in names)

    def to_dict(self) -> dict[str, Any]:
        """The values by name, as JSON has them."""
        return {"most": self.most, "shapes": {name: shape._asdict() for name, shape in self.shapes.items()}}

    @classmethod
    def from_dict(cls, values: Any) -> "Slots":
        """Slots from `to_dict`.

        Raises:
            ValueError: Something that `to_dict` does not write; the message names it.
        """
        match values:
            case {"most": most, "shapes": dict(shapes)} if len(values) == 2 and len(shapes) <= _MOST_SHAPES:
                if type(most) is not int or most not in range(len(SLOTS) + 1):
                    raise ValueError(f"most: got {most!r:.80}; expected 0 to {len(SLOTS)}")
                return cls({name: _checked(name, value) for name, value in shapes.items()}, most)
        raise ValueError(f"expected an object with most and shapes, at most {_MOST_SHAPES:,}")


NO_SLOTS = Slots()
"""Those of a model that has learnt none."""


def _checked(name: str, value: Any) -> Shape:
    match value:
        case {"written": None | list() as written, "times": times, "of": total} if len(value) == 3:
            coarse, parts = name.startswith("~"), written or []
            groups, texts = ([], parts) if coarse else (parts[::2], parts[1::2])
            count = len(regex.findall("9+", name)) * name.startswith(("#", "~"))
            of_text = all(isinstance(each, str) and len(each) <= _LONGEST for each in texts)
            of_text = of_text and not any(regex.search(r"\p{C}", each) for each in texts)  # no slots, no controls
            in_order = all(type(each) is int for each in groups) and sorted(groups) == list(range(len(groups)))
            is_template = of_text and in_order and len(texts) == count and len(groups) == (count + 1) * (not coarse)
            is_counted = type(times) is type(total) is int and 0 <= times <= total
            if is_counted and (written is None or is_template):
                return Shape(written, times, total)
    raise ValueError(f"shape {name!r:.80}: expected written, times and of, as a training writes them")


def _verdict(templates: Counter[tuple[int | str, ...]], copy: tuple[int | str, ...], matched: int, total: int) -> Shape:
    """Return the template of a shape: its copy if at least half of the `matched` pairs copy it, else the most frequent.

    A model does not learn to write rare numbers, so fewer pairs need to agree on a rare shape.
    """
    copies = templates[copy]
    if copies > (1 - _SHARE) * total + 0.5 and 2 * copies >= matched:
        written, times, is_usual = copy, copies, 2 * matched > total
    else:
        (written, times), *_ = [*templates.most_common(1), (copy, 0)]
        is_usual = 2 * times > total
    agreed = is_usual and times > _SHARE * total - _FEW_ERRORS * math.sqrt(total)
    return Shape(list(written) if agreed else None, times, total)


def _in_order(between: Iterable[str]) -> tuple[int | str, ...]:
    return (0, *(each for k, text in enumerate(between, 1) for each in (text, k)))


def _spans(text: str, expression: regex.Pattern[str] = SPAN) -> Iterator[_Span]:
    for match in expression.finditer(text):
        groups, separators, shape = [match[0]], list[str](), match.lastgroup or ""
        if shape == "number":
            groups, separators = _DIGITS.findall(match[0]), [each for each in _DIGITS.split(match[0]) if each]
            nines = regex.sub(r"\p{Nd}", "9", match[0])
            shape = f"#{nines.lstrip('9')}" if separators else nines[:_ENOUGH]
        elif shape == "brace" and not regex.search(r"\p{L}", match[0]):
            shape = "{}"  # no name, which could be translated
        coarse = [found.expand(name) for pattern, name in _COARSE if (found := pattern.fullmatch(shape))]
        yield _Span(match.start(), match.end(), shape, coarse, groups, separators)


def _rewritings(span: _Span, target: str, taken: list[Place]) -> list[tuple[int | str, ...]]:
    """Return the templates that make the first text of the target that has the groups of a span; it is then taken."""
    if span.shape[0] not in "#9":
        place = _find(span.groups[0], target, taken)
        taken += [place] if place else []
        return [(0,)] if place else []
    runs, count = list(_DIGITS.finditer(target)), len(span.groups)
    indices = tuple(range(count))
    for window in zip(*(runs[first:] for first in indices), strict=False):
        place = window[0].start(), window[-1].end()
        between = [target[one.end() : other.start()] for one, other in pairwise(window)]
        if sorted(run[0] for run in window) != sorted(span.groups) or not all(
            len(text) <= _LONGEST for text in between
        ):
            continue
        if _is_whole(target, place) and not _overlaps(place, taken):
            taken.append(place)
            return [  # the groups in order first
                (order[0], *(each for pair in zip(between, order[1:], strict=True) for each in pair))
                for order in (permutations(indices) if count <= _ORDERED else [indices])
                if all(span.groups[index] == run[0] for index, run in zip(order, window, strict=True))
            ]
    return []


def _texts(span: _Span, template: Template) -> tuple[str, ...] | None:
    """Return the text for each separator if the template writes a quantity: in order, with marks, alike everywhere."""
    texts = dict(zip(span.separators, map(str, template[1::2]), strict=True))
    is_quantity = tuple(template) == _in_order([texts[old] for old in span.separators])
    return tuple(texts.values()) if is_quantity and set().union(*texts.values()) <= set(_MARKS) else None


def _find(text: str, target: str, taken: Sequence[Place]) -> Place | None:
    """Return the first place of a text in a target that is not taken and no part of a longer word or number."""
    start = target.find(text)
    while start >= 0:
        place = start, start + len(text)
        if _is_whole(target, place) and not _overlaps(place, taken):
            return place
        start = target.find(text, start + 1)
    return None


def _is_whole(text: str, place: Place) -> bool:
    edges = (text[place[0]], text[place[1] - 1])
    return all(
        not edge.isalnum() or pattern.match(text, at) for edge, pattern, at in zip(edges, _EDGES, place, strict=True)
    )


def _overlaps(place: Place, taken: Sequence[Place]) -> bool:
    return any(place[0] < last and first < place[1] for first, last in taken)


def _blanked(text: str) -> str:
    return text.translate(dict.fromkeys(map(ord, SLOTS), " "))


def _masked(text: str, parts: list[str], cuts: list[Place]) -> Masked:
    return Masked(_with_slots(text, dict(enumerate(cuts))), parts, cuts)


def _with_slots(text: str, cuts: Mapping[int, Place]) -> str:
    for slot, (start, end) in sorted(cuts.items(), key=itemgetter(1), reverse=True):
        text = f"{text[:start]}{SLOTS[slot]}{text[end:]}"
    return text
