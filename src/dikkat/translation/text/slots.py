"""Slots: numbers, addresses and placeholders that a translation copies in the form that the training pairs use."""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from itertools import pairwise, permutations
from operator import itemgetter, or_
from typing import Any, NamedTuple

import regex

from dikkat.translation.text.special_tokens import SLOTS
from dikkat.translation.text.tokenizer import Offsets, Tokenizer, to_original_spans

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
_MARKS = " \u00a0\u202f'’.,"  # between groups of digits of quantities
_COARSE = [  # shapes of quantities, and the names of their coarse shapes
    (regex.compile(r"9+"), "~"),
    (
        regex.compile(rf"#(?<mark>[{_MARKS}])999(?:(?P=mark)999)*(?:(?!(?P=mark))(?<decimal>[.,]9)9*)?"),
        r"~\g<mark>999\g<decimal>",
    ),
    (regex.compile(r"#(?<mark>[.,])9+"), r"~\g<mark>9"),
]
_MIN_COUNT = 5  # occurrences from which a shape without a template stays text; rarer ones use the coarse shape
_MIN_PAIRS = 8  # training pairs that need a slot
_AGREEMENT = 0.95  # share of a frequent shape's occurrences that must have its template
_TOLERANCE = 4  # times √occurrences: how far the template's count may be below that share
_MAX_SEPARATOR = 3  # characters between two groups of digits
_MAX_REORDERED = 4  # groups of digits: more keep their order
_MAX_SHAPES = 1_000
_MAX_DIGITS = 5  # of a shape of digits only; longer numbers share it

Template = Sequence[int | str]


class Shape(NamedTuple):
    """The form in which the training pairs write the spans of a shape.

    Attributes:
        written: The template: group numbers and the texts between them; for a coarse shape the text of each separator.
            None: the pairs do not agree, and the spans stay text.
        times: The number of spans that the pairs write with this template.
        of: The number of all spans of the shape.
    """

    written: Template | None
    times: int
    of: int


_has_no_slot = frozenset(SLOTS).isdisjoint
_LETTER = regex.compile(r"\p{L}")


class _Span(NamedTuple):
    start: int
    end: int
    shape: str
    coarse: list[str]  # names; only the first coarse shape counts the span
    groups: list[str]
    separators: list[str]


class Masked(NamedTuple):
    """A text with slots.

    Attributes:
        text: The text, with one character for each slot.
        parts: The text that each slot replaces.
        offsets: The start and the end of each slot in the original text.
    """

    text: str
    parts: list[str]
    offsets: list[Offsets]

    def restore(self, text: str) -> str:
        """Replace the slots of a text by their parts, and remove slots without a part."""
        if _has_no_slot(text):
            return text
        texts = dict(enumerate(self.parts))
        return text.translate({ord(character): texts.get(slot) for slot, character in enumerate(SLOTS)})

    def write(self, text: str) -> str:
        """Restore a translation, with a space where a part would join a neighbour's letter or digit to its own."""
        if _has_no_slot(text):
            return text
        texts, written, follows_slot = dict(zip(SLOTS, self.parts, strict=False)), "", False
        for character in text:
            piece = texts.get(character, "" if character in SLOTS else character)
            needs_space = (follows_slot or character in texts) and written[-1:].isalnum() and piece[:1].isalnum()
            written, follows_slot = f"{written}{' ' * needs_space}{piece}", character in texts
        return written

    def locate(self, offsets: Iterable[Offsets]) -> list[Offsets]:
        """Convert offsets in the masked text to offsets in the original."""
        if not self.offsets:
            return list(offsets)
        characters, end = list[Offsets](), 0
        for slot in sorted(self.offsets):
            characters += [(index, index + 1) for index in range(end, slot[0])] + [slot]
            end = slot[1]
        rest = range(end, end + len(self.text) - len(characters))
        characters += [(index, index + 1) for index in rest]
        return to_original_spans(offsets, characters)


@dataclass(frozen=True)
class Slots:
    r"""The spans of a text that a model reads and writes as slots.

    Attributes:
        shapes: How the training pairs write each shape. `#:99` is a number of two groups, `9999` one of four digits,
            `url` an address. `~` is any whole number, `~.9` any with a decimal part, `~,999` any with groups of three
            digits, and `~,999.9` any with both.
        most: The largest number of slots of a sentence; further spans stay text.

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
        """Return these slots with `most` reduced to the number of slots that all tokenizers have learnt."""
        known = set(range(self.most)).intersection(*(tokenizer.slots.values() for tokenizer in tokenizers))
        return replace(self, most=next(slot for slot in range(self.most + 1) if slot not in known))

    @classmethod
    def learn(cls, pairs: Sequence[tuple[str, str]]) -> "Slots":
        """Count how the targets of training pairs write the spans of their sources."""
        counts, match_counts = Counter[str](), Counter[str]()
        templates = defaultdict[str, Counter[tuple[int | str, ...]]](Counter)
        examples = dict[str, _Span]()
        for source, target in pairs:
            used = list[Offsets]()
            for span in _find_spans(source):
                examples.setdefault(span.shape, span)
                counts[span.shape] += 1
                span_templates = _find_templates(span, target, used)
                match_counts[span.shape] += bool(span_templates)
                templates[span.shape].update(span_templates)
        verdicts = {
            name: _judge(templates[name], _ordered_template(span.separators), match_counts[name], counts[name])
            for name, span in examples.items()
        }
        for name, span in examples.items():
            # A frequent shape that stays text, or is not written as a quantity, does not count in its coarse shape.
            written = verdicts[name].written
            is_quantity = written is not None and _quantity_texts(span, written) is not None
            if span.coarse and (is_quantity or counts[name] < _MIN_COUNT):
                counts[span.coarse[0]] += counts[name]
                for template, count in templates[name].items():
                    if (texts := _quantity_texts(span, template)) is not None:
                        templates[span.coarse[0]][texts] += count
        for name in counts.keys() - examples.keys():
            copied = tuple(regex.findall("[^~9]", name))
            verdicts[name] = _judge(templates[name], copied, templates[name].total(), counts[name])
        names = [name for name in counts if counts[name] >= _MIN_COUNT or verdicts[name].written is not None]
        names.sort(key=lambda name: (-counts[name], name))
        shapes = {name: verdicts[name] for name in names[:_MAX_SHAPES]}
        slots = cls(shapes, len(SLOTS))
        sizes = Counter(len(slots.mask(source, target)[0].parts) for source, target in pairs)
        limit = sum(sum(sizes[size] for size in sizes if size > slot) >= _MIN_PAIRS for slot in range(slots.most))
        return cls(shapes, limit)

    def mask(self, source: str, target: str | None = None) -> tuple[Masked, Masked]:
        """Replace spans by slots.

        Args:
            source: The source text.
            target: Its translation; only spans of both texts are replaced. None: all spans of the source are replaced,
                and the second result has the parts for its future translation.

        Returns:
            Both texts with slots.
        """
        source, translation = _blank_slots(source), _blank_slots(target or "")
        if not self.most:
            return Masked(source, [], []), Masked(translation, [], [])
        source_slots, target_slots, texts = list[Offsets](), list[Offsets](), list[str]()
        for span in _find_spans(source):
            written = self._written(span)
            if written is None or len(source_slots) == self.most:
                continue
            if target is not None:
                slot = _find(written, translation, target_slots)
                if slot is None:
                    continue
                target_slots.append(slot)
            source_slots.append((span.start, span.end))
            texts.append(written)
        masked_source = _mask(source, [source[start:end] for start, end in source_slots], source_slots)
        return masked_source, _mask(translation, texts, target_slots)

    def practise(self, source: str, target: str) -> tuple[str, str] | None:
        """Replace spans, and words that both sides have exactly once, by slots in random increasing order.

        From such copies a model learns each slot in many sentences, even if few pairs have numbers.

        Returns:
            Both texts, or None without a slot; deterministic.
        """
        source, target = _blank_slots(source), _blank_slots(target)
        slot_pairs = list[tuple[Offsets, Offsets]]()
        for span in _find_spans(source, _SPAN_OR_WORD) if self.most else ():
            in_source, used = (span.start, span.end), [in_target for _, in_target in slot_pairs]
            written = self._written(span)
            in_target = None if written is None else _find(written, target, used)
            if in_target is None or (
                span.shape == "word"
                and (_find(span.groups[0], source, [in_source]) or _find(span.groups[0], target, [*used, in_target]))
            ):
                continue
            slot_pairs.append((in_source, in_target))
        if not slot_pairs:
            return None
        generator = random.Random(f"{source}\t{target}")
        count = min(len(slot_pairs), self.most)
        selected = sorted(generator.sample(slot_pairs, count))
        slots = sorted(generator.sample(range(self.most), count))
        return (
            _insert_slots(source, dict(zip(slots, (in_source for in_source, _ in selected), strict=True))),
            _insert_slots(target, dict(zip(slots, (in_target for _, in_target in selected), strict=True))),
        )

    def _written(self, span: _Span) -> str | None:
        name = next((name for name in (span.shape, *span.coarse) if name in self.shapes), None)
        kinds = list(dict.fromkeys(span.separators))
        written: Template | None = kinds if name is None else self.shapes[name].written
        if written is not None and name != span.shape:
            texts = dict(zip(kinds, map(str, written), strict=True))
            written = _ordered_template([texts[mark] for mark in span.separators])
        if written is None:
            return None
        return "".join(item if isinstance(item, str) else span.groups[item] for item in written)

    def find_wrong(self, source: str, target: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Compare the numbers, addresses and placeholders of a source with its translation.

        Spans whose form the training pairs do not agree on are never lost.

        Returns:
            The spans in the form of the training pairs that the translation lacks in this form and in the source's,
            and the translation's groups of digits that the source has in no form.

        Example:
            >>> Slots().find_wrong("{name} left at 9.", "{name} ist um 8 gegangen.")
            (('9',), ('8',))
        """
        used, lost, forms = list[Offsets](), list[str](), [source]
        for span in _find_spans(_blank_slots(source)):
            written = self._written(span)
            if written is None:
                continue
            forms.append(written)
            offsets = _find(written, target, used) or _find(source[span.start : span.end], target, used)
            if offsets is None:
                lost.append(written)
            else:
                used.append(offsets)
        return tuple(lost), tuple(invented_numbers(target, *forms).elements())

    def copies(self, text: str) -> bool:
        """Return whether a text with slots has neither letters nor numbers of a learnt shape."""
        names = (name for span in _find_spans(text) for name in (span.shape, *span.coarse))
        return not _LETTER.search(text) and not any(name in self.shapes for name in names)

    def to_dict(self) -> dict[str, Any]:
        """Return the values by name, of types that JSON has."""
        return {"most": self.most, "shapes": {name: shape._asdict() for name, shape in self.shapes.items()}}

    @classmethod
    def from_dict(cls, values: Any) -> "Slots":
        """Return slots from the values of `to_dict`.

        Raises:
            ValueError: A value that `to_dict` cannot have written; the message names it.
        """
        match values:
            case {"most": most, "shapes": dict(shapes)} if len(values) == 2 and len(shapes) <= _MAX_SHAPES:
                if type(most) is not int or most not in range(len(SLOTS) + 1):
                    raise ValueError(f"most: got {most!r:.80}; expected 0 to {len(SLOTS)}")
                return cls({name: _parse_shape(name, value) for name, value in shapes.items()}, most)
        raise ValueError(f"expected an object with most and shapes, at most {_MAX_SHAPES:,}")


NO_SLOTS = Slots()
"""The slots of a model that has learnt none."""


def _parse_shape(name: str, value: Any) -> Shape:
    match value:
        case {"written": None | list() as written, "times": times, "of": total} if len(value) == 3:
            coarse, template = name.startswith("~"), written or []
            groups, texts = ([], template) if coarse else (template[::2], template[1::2])
            count = len(regex.findall("9+", name)) * name.startswith(("#", "~"))
            are_texts = all(isinstance(item, str) and len(item) <= _MAX_SEPARATOR for item in texts)
            are_texts = are_texts and not any(regex.search(r"\p{C}", item) for item in texts)  # no slots, no controls
            in_order = all(type(item) is int for item in groups) and sorted(groups) == list(range(len(groups)))
            is_template = are_texts and in_order and len(texts) == count and len(groups) == (count + 1) * (not coarse)
            is_counted = type(times) is type(total) is int and 0 <= times <= total
            if is_counted and (written is None or is_template):
                return Shape(written, times, total)
    raise ValueError(f"shape {name!r:.80}: expected written, times and of, as training writes them")


def _judge(templates: Counter[tuple[int | str, ...]], copied: tuple[int | str, ...], matched: int, total: int) -> Shape:
    """Return a shape with its `copied` template if half of the `matched` pairs have it, else its most frequent one.

    Rare shapes need less agreement, as a model does not learn to write rare numbers.
    """
    copied_count = templates[copied]
    if copied_count > (1 - _AGREEMENT) * total + 0.5 and 2 * copied_count >= matched:
        written, times, is_usual = copied, copied_count, 2 * matched > total
    else:
        (written, times), *_ = [*templates.most_common(1), (copied, 0)]
        is_usual = 2 * times > total
    agreed = is_usual and times > _AGREEMENT * total - _TOLERANCE * math.sqrt(total)
    return Shape(list(written) if agreed else None, times, total)


def _ordered_template(texts: Iterable[str]) -> tuple[int | str, ...]:
    return (0, *(element for k, text in enumerate(texts, 1) for element in (text, k)))


@lru_cache(16)  # the candidates of a translation with terms have one source
def _find_spans(text: str, expression: regex.Pattern[str] = SPAN) -> tuple[_Span, ...]:
    spans = list[_Span]()
    for match in expression.finditer(text):
        groups, separators, shape = [match[0]], list[str](), match.lastgroup or ""
        if shape == "number":
            groups, separators = _DIGITS.findall(match[0]), [mark for mark in _DIGITS.split(match[0]) if mark]
            nines = regex.sub(r"\p{Nd}", "9", match[0])
            shape = f"#{nines.lstrip('9')}" if separators else nines[:_MAX_DIGITS]
        elif shape == "brace" and not _LETTER.search(match[0]):
            shape = "{}"  # without a name that could be translated
        coarse = [coarse_match.expand(name) for pattern, name in _COARSE if (coarse_match := pattern.fullmatch(shape))]
        spans.append(_Span(match.start(), match.end(), shape, coarse, groups, separators))
    return tuple(spans)


def _find_templates(span: _Span, target: str, used: list[Offsets]) -> list[tuple[int | str, ...]]:
    """Return the templates of a span's first unused match in the target, the ordered one first; mark it as used."""
    if span.shape[0] not in "#9":
        offsets = _find(span.groups[0], target, used)
        used += [offsets] if offsets else []
        return [(0,)] if offsets else []
    runs, count = list(_DIGITS.finditer(target)), len(span.groups)
    indices = tuple(range(count))
    for window in zip(*(runs[first:] for first in indices), strict=False):
        offsets = window[0].start(), window[-1].end()
        separators = [target[run.end() : next_run.start()] for run, next_run in pairwise(window)]
        if sorted(run[0] for run in window) != sorted(span.groups) or not all(
            len(text) <= _MAX_SEPARATOR for text in separators
        ):
            continue
        if _is_whole(target, offsets) and not overlaps(offsets, used):
            used.append(offsets)
            return [
                (order[0], *(item for pair in zip(separators, order[1:], strict=True) for item in pair))
                for order in (permutations(indices) if count <= _MAX_REORDERED else [indices])
                if all(span.groups[index] == run[0] for index, run in zip(order, window, strict=True))
            ]
    return []


def _quantity_texts(span: _Span, template: Template) -> tuple[str, ...] | None:
    """Return the text of each separator if a template writes a quantity: groups in order, between equal separators."""
    texts = dict(zip(span.separators, map(str, template[1::2]), strict=True))
    is_quantity = tuple(template) == _ordered_template([texts[mark] for mark in span.separators])
    return tuple(texts.values()) if is_quantity and set().union(*texts.values()) <= set(_MARKS) else None


def _find(text: str, target: str, used: Sequence[Offsets]) -> Offsets | None:
    """Return the first unused offsets of a text in a target, not within a longer word or number."""
    start = target.find(text)
    while start >= 0:
        offsets = start, start + len(text)
        if _is_whole(target, offsets) and not overlaps(offsets, used):
            return offsets
        start = target.find(text, start + 1)
    return None


def _is_whole(text: str, offsets: Offsets) -> bool:
    edges = (text[offsets[0]], text[offsets[1] - 1])
    return all(
        not edge.isalnum() or pattern.match(text, index)
        for edge, pattern, index in zip(edges, _EDGES, offsets, strict=True)
    )


def find_span_offsets(text: str) -> list[Offsets]:
    """Return the offsets of numbers, addresses and placeholders in a text."""
    return [match.span() for match in SPAN.finditer(text)]


def count_digit_groups(text: str) -> Counter[str]:
    """Return the number of times that a text has each group of digits."""
    return Counter(_DIGITS.findall(text))


def invented_numbers(text: str, *allowed: str) -> Counter[str]:
    """Return the number of times that a text has each group of digits more often than each of the allowed texts."""
    return count_digit_groups(text) - reduce(or_, map(count_digit_groups, allowed))


def overlaps(offsets: Offsets, used: Sequence[Offsets]) -> bool:
    """Return whether a span shares a character with one of the used spans."""
    return any(offsets[0] < end and start < offsets[1] for start, end in used)


def _blank_slots(text: str) -> str:
    return text if _has_no_slot(text) else text.translate(dict.fromkeys(map(ord, SLOTS), " "))


def _mask(text: str, texts: list[str], offsets: list[Offsets]) -> Masked:
    return Masked(_insert_slots(text, dict(enumerate(offsets))), texts, offsets)


def _insert_slots(text: str, offsets: Mapping[int, Offsets]) -> str:
    for slot, (start, end) in sorted(offsets.items(), key=itemgetter(1), reverse=True):
        text = f"{text[:start]}{SLOTS[slot]}{text[end:]}"
    return text
