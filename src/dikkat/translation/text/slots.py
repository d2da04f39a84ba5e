"""Slots: numbers, addresses and placeholders that a translation has as the training pairs write them."""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, permutations
from operator import itemgetter
from typing import Any, Literal, NamedTuple

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
_SEPARATOR = regex.compile(r"[^\p{L}\p{M}\p{N}_]")  # that a model may write between two groups of digits
_ENOUGH = 5  # occurrences of a shape that stays text, after which its coarse shape has no say
_ENOUGH_PAIRS = 8  # training pairs with so many slots
_SHARE = 0.95  # of many occurrences of a shape that its template must have
_FEW_ERRORS = 4  # square roots of the number of occurrences that may be missing from that share
_LONGEST = 3  # characters between two groups of digits
_ORDERED = 4  # groups of digits that may change their order
_MOST_SHAPES = 1_000

Template = Sequence[int | str]
Groups = Literal["groups"]


class Shape(NamedTuple):
    """How the training pairs write the spans of a shape.

    Attributes:
        written: Numbers of groups and the texts between them; of a coarse shape the text for each separator. "groups":
            the pairs agree only on the groups and their order, so each group is a slot and the model writes the
            separators. None: the pairs agree on no way, and the spans stay text.
        times: Spans that are written so.
        of: All spans of this shape.
    """

    written: Template | Groups | None
    times: int
    of: int


class _Span(NamedTuple):
    place: Place
    shape: str
    coarse: str | None  # None: no number
    groups: list[str]
    group_places: list[Place]
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
            `~:` any number with colons, `url` an address.
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
        seen = Counter[str]()
        templates = defaultdict[str, Counter[tuple[int | str, ...]]](Counter)
        examples, rare = dict[str, _Span](), dict[str, str]()
        for source, target in pairs:
            taken = list[Place]()
            for span in _spans(source):
                examples.setdefault(span.shape, span)
                seen[span.shape] += 1
                templates[span.shape].update(_rewritings(span, target, taken))
        verdicts = {name: _verdict(templates[name], seen[name]) for name in examples}
        for name, span in examples.items():
            # Rare shapes may differ from a frequent one that stays text or changes the order of its groups.
            written = verdicts[name].written
            is_like_others = written == "groups" or (written is not None and _coarse(span, written) is not None)
            if span.coarse is not None and (is_like_others or seen[name] < _ENOUGH):
                seen[span.coarse] += seen[name]
                rare |= {name: span.coarse} if is_like_others and seen[name] < _ENOUGH else {}
                for template, times in templates[name].items():
                    if (texts := _coarse(span, template)) is not None:
                        templates[span.coarse][texts] += times
        for name in seen.keys() - examples.keys():
            verdicts[name] = _verdict(templates[name], seen[name])
        # A rare shape is no exception if the pairs disagree on the separators of such shapes.
        follows = {name for name, coarse in rare.items() if verdicts[coarse].written == "groups"}
        lasting = [
            name for name in seen.keys() - follows if seen[name] >= _ENOUGH or verdicts[name].written is not None
        ]
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
            span_cuts, texts = self._slots_of(span)
            found = _find(texts, translation, places) if target is not None else []
            if len(cuts) + len(texts) <= self.most and (target is None or found):
                cuts, places, parts = cuts + span_cuts, places + found, parts + texts
        return _masked(source, [source[start:end] for start, end in cuts], cuts), _masked(translation, parts, places)

    def practise(self, source: str, target: str) -> tuple[str, str] | None:
        """Replace spans, and words that both sides have exactly once, by slots in random increasing order.

        A model that learns from such copies has met each slot in many sentences, even if few pairs have numbers.

        Returns:
            Both texts, or None without a slot. The same pair gives the same texts.
        """
        source, target = _blanked(source), _blanked(target)
        candidates, taken = list[list[tuple[Place, Place]]](), list[Place]()
        for span in _spans(source, _SPAN_OR_WORD) if self.most else ():
            cuts, texts = self._slots_of(span)
            places = _find(texts, target, taken)
            if span.shape != "word" or not (_find(texts, source, cuts) or _find(texts, target, [*taken, *places])):
                candidates += [list(zip(cuts, places, strict=True))] if places else []
                taken += places
        draw, chosen = random.Random(f"{source}\t{target}"), list[tuple[Place, Place]]()
        for candidate in draw.sample(candidates, len(candidates)):
            chosen += candidate if len(chosen) + len(candidate) <= self.most else []
        if not chosen:
            return None
        chosen.sort()
        slots = sorted(draw.sample(range(self.most), len(chosen)))
        return (
            _with_slots(source, dict(zip(slots, (cut for cut, _ in chosen), strict=True))),
            _with_slots(target, dict(zip(slots, (place for _, place in chosen), strict=True))),
        )

    def _slots_of(self, span: _Span) -> tuple[list[Place], list[str]]:
        """Return the places of a span's slots and their texts in a translation; none if the span stays text."""
        shape = self.shapes.get(span.shape)
        if shape is None and span.coarse is not None:
            shape = self.shapes.get(span.coarse, Shape(None, 0, 0))
            if isinstance(shape.written, list):
                texts = dict(zip(span.coarse[1:], shape.written, strict=True))
                in_order = [0, *(e for k, old in enumerate(span.separators, 1) for e in (texts[old], k))]
                shape = shape._replace(written=in_order)
        written = [0] if shape is None else shape.written
        if written is None:
            return [], []
        if written == "groups":
            return span.group_places, span.groups
        return [span.place], ["".join(e if isinstance(e, str) else span.groups[e] for e in written)]

    def copies(self, source: Masked) -> bool:
        """Return whether a text with slots has no letter, and no counted shape of which the model writes a part."""
        spans = (span for span in _spans(source.restore(source.text)) if span.place not in source.cuts)
        return not regex.search(r"\p{L}", source.text) and not any(
            shape in self.shapes for span in spans for shape in (span.shape, span.coarse)
        )

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
        case {"written": None | "groups" | list() as written, "times": times, "of": total} if len(value) == 3:
            coarse, parts = name.startswith("~"), written or []
            groups, texts = ([], parts) if coarse else (parts[::2], parts[1::2])
            count = len(name) - 1 if coarse else len(regex.findall("9+", name)) * name.startswith("#")
            of_text = all(isinstance(each, str) and len(each) <= _LONGEST for each in texts)
            of_text = of_text and not any(regex.search(r"\p{C}", each) for each in texts)  # no slots, no controls
            in_order = all(type(each) is int for each in groups) and sorted(groups) == list(range(len(groups)))
            is_template = of_text and in_order and len(texts) == count and len(groups) == (count + 1) * (not coarse)
            is_known = written is None or (count > 0 if written == "groups" else is_template)
            if is_known and type(times) is type(total) is int and 0 <= times <= total:
                return Shape(written, times, total)
    raise ValueError(f"shape {name!r:.80}: expected written, times and of, as a training writes them")


def _verdict(templates: Counter[tuple[int | str, ...]], total: int) -> Shape:
    """Return the most frequent template of a shape, or "groups" if others with the groups in order are not rare.

    A model does not learn to write rare numbers, so fewer pairs need to agree on a rare shape.
    """
    written: Template | Groups
    (written, times), *_ = [*templates.most_common(1), ((), 0)]
    in_order = sum(count for template, count in templates.items() if _has_groups_in_order(template))
    if in_order - times > (1 - _SHARE) * total + 0.5:
        written, times = "groups", in_order
    agreed = 2 * times > total and times > _SHARE * total - _FEW_ERRORS * math.sqrt(total)
    return (
        Shape(written if written == "groups" else list(written), times, total) if agreed else Shape(None, times, total)
    )


def _has_groups_in_order(template: Template) -> bool:
    groups = [each for each in template if isinstance(each, int)]
    return groups == sorted(groups) and all(_SEPARATOR.fullmatch(each) for each in template if isinstance(each, str))


def _spans(text: str, expression: regex.Pattern[str] = SPAN) -> Iterator[_Span]:
    for match in expression.finditer(text):
        groups, places, separators, shape, coarse = [match[0]], [match.span()], list[str](), match.lastgroup or "", None
        if shape == "number":
            places = [digits.span() for digits in _DIGITS.finditer(text, *match.span())]
            groups = [text[start:end] for start, end in places]
            separators = [text[one[1] : other[0]] for one, other in pairwise(places)]
            shape = "9" * min(len(groups[0]), _ENOUGH)
            if separators:
                shape = "#" + "".join(s + "9" * len(group) for s, group in zip(separators, groups[1:], strict=True))
            coarse = "~" + "".join(sorted(set(separators)))
        elif shape == "brace" and not regex.search(r"\p{L}", match[0]):
            shape = "{}"  # no name, which could be translated
        yield _Span(match.span(), shape, coarse, groups, places, separators)


def _rewritings(span: _Span, target: str, taken: list[Place]) -> list[tuple[int | str, ...]]:
    """Return the templates that make the first text of the target that has the groups of a span; it is then taken."""
    if span.coarse is None:
        places = _find(span.groups, target, taken)
        taken += places
        return [(0,)] if places else []
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


def _coarse(span: _Span, template: Template) -> tuple[str, ...] | None:
    """Return the text for each separator, if the groups keep their order and each separator becomes one text."""
    texts = set(zip(span.separators, map(str, template[1::2]), strict=True))
    kept = list(template[::2]) == sorted(map(int, template[::2]))
    return tuple(new for _, new in sorted(texts)) if kept and len(texts) == len(set(span.separators)) else None


def _find(texts: Sequence[str], target: str, taken: Sequence[Place]) -> list[Place]:
    """Return the first places of texts, with a separator between two, that are not taken and no part of a longer word.

    The list is empty if there are none.
    """
    start = target.find(texts[0]) if texts else -1
    while start >= 0:
        places, end = [(start, start + len(texts[0]))], start + len(texts[0])
        for text in texts[1:]:
            if _SEPARATOR.match(target, end) and target.startswith(text, end + 1):
                places.append((end + 1, end + 1 + len(text)))
                end = places[-1][1]
        if len(places) == len(texts) and _is_whole(target, (start, end)) and not _overlaps((start, end), taken):
            return places
        start = target.find(texts[0], start + 1)
    return []


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
