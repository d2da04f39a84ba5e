"""Terms in translations: replaces the words that come from a source term by the term's translation."""

import unicodedata
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import regex
import torch
from torch import Tensor

from dikkat.translation.data.corpus import MAX_CHARACTERS
from dikkat.translation.decoding.alignment import ATTENTION_SHARE, forced_weights
from dikkat.translation.decoding.options import Search
from dikkat.translation.decoding.pairs import PairScorer, batches
from dikkat.translation.decoding.search import forced_scores
from dikkat.translation.decoding.translation import Translation
from dikkat.translation.memory.pair_memory import StoredPair
from dikkat.translation.terms import Occurrence, Terms, sort_terms
from dikkat.translation.text.forms import Forms
from dikkat.translation.text.slots import Slots, find_span_offsets, overlaps
from dikkat.translation.text.tokenizer import Offsets, Tokenizer
from dikkat.translation.text.units import Units

_ATTENTION_SHARE = (1 + ATTENTION_SHARE) / 2  # the mean of posteriors and attention weights
_LINKED = 0.5  # share of the largest weight on a term from which a word may be its translation
_TOGETHER = 0.7  # weight on a term from which a neighbouring word is replaced too
_SHORT = 3  # letters, at most, of words that are not replaced together with a longer neighbour
_UNLINKED = 0.2  # weight on a term below which no word is replaced, and the term is inserted
_LONGEST_FORM = 6  # times the characters of a term, at most, that a form of it has
_MOST_TERMS = 50  # of a sentence
_MOST_PLACES = 100  # where a term can be inserted: each is a line to score
_APOSTROPHES = "'’"
_ELIDED = regex.compile(r"(\p{L}{1,6})(['’])\Z")
_MAY_ELIDE = regex.compile(r"(?<!\p{L})(\p{L}{0,5})[aeiou]\s\Z")
_VOWELS = "aeiou"

Choice = Generator[list[str], int, None]
"""Yields candidates for a target text, and gets the index of the likeliest one."""


@dataclass
class _Line:
    """A translation in which terms are used, with the spans of used terms in the target."""

    translation: Translation
    target: str
    pending: list[Occurrence]
    used: list[Offsets] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)

    @property
    def is_changed(self) -> bool:
        """Whether the target is not the translation's."""
        return self.target != self.translation.target

    def replace(self, span: Offsets, text: str) -> None:
        """Replace a span by a used term."""
        start, end = span
        shift = len(text) - (end - start)
        self.used = [(a + shift, b + shift) if a >= end else (a, b) for a, b in self.used]
        self.target = f"{self.target[:start]}{text}{self.target[end:]}"


def use_terms(
    scorer: PairScorer, terms: Terms, groups: Sequence[Sequence[Translation]], stored: Sequence[StoredPair | None],
    batch_size: int, search: Search,
) -> list[list[Translation]]:  # fmt: skip
    """Return the translations of each sentence with the terms of their sources, best first, or in the order of samples.

    If a translation has no form of a term, the words that come from the source term are replaced, by the mean of
    `posteriors` and attention weights. If there are none, the term is inserted, unless the target is long. The term's
    words get the forms of the target vocabulary that make the line likeliest. The tokens, attention weights and score
    are those of the new target.

    Args:
        scorer: The translator.
        terms: The terms.
        groups: The translations of each sentence.
        stored: The stored pair of each sentence, if any. A translation that is the pair's target does not change.
        batch_size: Translations read at once.
        search: The options of the search.
    """
    tokenizer = scorer.target_tokenizer
    lines = [
        _find_pending(
            translation, terms, tokenizer.forms, is_fixed=pair is not None and translation.target == pair.line
        )
        for group, pair in zip(groups, stored, strict=True)
        for translation in group
    ]
    while active := [line for line in lines if line.pending]:
        pairs = [(line.translation.source, line.target) for line in active]
        weights = scorer.weights_of_units(pairs, batch_size, attention_share=_ATTENTION_SHARE)
        choices = [_use_next(line, matrix, tokenizer) for line, matrix in zip(active, weights, strict=True)]
        _choose(scorer, active, choices, batch_size)
    changed = iter(_reread(scorer, [line for line in lines if line.is_changed], batch_size))
    results = [next(changed) if line.is_changed else line.translation for line in lines]
    with_terms = (
        replace(result, unused_terms=tuple(line.unused)) if line.unused else result
        for line, result in zip(lines, results, strict=True)
    )
    new_groups = [[next(with_terms) for _ in group] for group in groups]
    if search.sample:
        return new_groups
    return [sorted(group, key=partial(_rank, slots=scorer.slots, penalty=search.penalty)) for group in new_groups]


def _rank(translation: Translation, slots: Slots, penalty: float) -> tuple[bool, bool, bool, float]:
    """Return the key by which a search's results are best first."""
    is_lossy = bool(slots.find_wrong(translation.source, translation.target)[0])
    length = len(translation.target_tokens) + 1
    return translation.repeated, not translation.finished, is_lossy, -translation.score / ((5 + length) / 6) ** penalty


def link_terms(weights: Tensor, terms: Terms, translation: Translation, units: Sequence[Units], forms: Forms) -> None:
    """Write to (T, S) weights of the source's and the target's `units` that used terms come from the source's terms.

    Attention does not know this of words that the model did not select.
    """
    for used_spans in _used_spans(terms, translation, forms):
        columns, rows = (
            [index for index, span in enumerate(side.spans) if overlaps(span, [used])]
            for side, used in zip(units, used_spans, strict=True)
        )
        weights[rows] = 0
        weights[torch.tensor(rows).unsqueeze(1), torch.tensor(columns)] = 1 / len(columns)


def blank_terms(terms: Terms, translation: Translation, tokenizer: Tokenizer) -> tuple[str, str]:
    """Return the source and the target with line ends for the characters of used terms, so that no number is theirs."""
    texts = translation.source, translation.target
    if not terms.targets:
        return texts
    for spans in _used_spans(terms, translation, tokenizer.forms):
        source, target = (
            text[:start] + "\n" * (end - start) + text[end:] for text, (start, end) in zip(texts, spans, strict=True)
        )
        texts = source, target
    return texts


def unique_targets(translations: Sequence[Translation]) -> list[Translation]:
    """Return the first translation with each target; terms may make targets equal."""
    unique = dict[str, Translation]()
    for translation in translations:
        unique.setdefault(translation.target, translation)
    return list(unique.values())


def _used_spans(terms: Terms, translation: Translation, forms: Forms) -> Iterator[tuple[Offsets, Offsets]]:
    """Yield the spans of used terms in the source and in the target."""
    for occurrences, spans in _match_terms(terms, translation, forms):
        yield from zip([(occurrence.start, occurrence.end) for occurrence in occurrences], spans, strict=False)


def _match_terms(
    terms: Terms, translation: Translation, forms: Forms
) -> Iterator[tuple[list[Occurrence], list[Offsets]]]:
    """Yield the occurrences of each target term's source terms, and its spans in the target; longer terms come first.

    The spans do not overlap: a term inside a longer term of the same text does not count.
    """
    occurrences, used = terms.find(translation.source), list[Offsets]()
    for term in sort_terms({occurrence.target for occurrence in occurrences}):
        spans = [span for span in find_term(translation.target, term, forms) if not overlaps(span, used)]
        used += spans
        yield [occurrence for occurrence in occurrences if occurrence.target == term], spans


def _choose(scorer: PairScorer, lines: Sequence[_Line], choices: Sequence[Choice], batch_size: int) -> None:
    """Run the lines' generators of candidates together, so that all candidates are scored in batches."""
    choices_of_lines = zip(lines, choices, strict=True)
    waiting = [(line, choice, candidates) for line, choice in choices_of_lines if (candidates := next(choice, None))]
    while waiting:
        pairs = [(line.translation.source, text) for line, _, candidates in waiting for text in candidates]
        scores = iter(scorer.score(pairs, batch_size=batch_size))
        continued = []
        for line, choice, candidates in waiting:
            values = [next(scores) for _ in candidates]
            with suppress(StopIteration):
                continued.append((line, choice, choice.send(max(range(len(values)), key=values.__getitem__))))
        waiting = continued


def _find_pending(translation: Translation, terms: Terms, forms: Forms, *, is_fixed: bool) -> _Line:
    """Return a line with the missing terms of its target, unused if it is fixed, and the spans of the present terms."""
    line = _Line(translation, translation.target, [])
    for occurrences, spans in _match_terms(terms, translation, forms) if translation.source_tokens else ():
        line.used += spans
        missing = occurrences[len(spans) :]
        if is_fixed:
            line.unused += [occurrence.source for occurrence in missing]
        else:
            line.pending += missing
    usable = max(0, _MOST_TERMS - len(line.used))
    line.pending, left_out = line.pending[:usable], line.pending[usable:]
    line.unused += [occurrence.source for occurrence in left_out]
    return line


def find_term(text: str, term: str, forms: Forms) -> Iterator[Offsets]:
    """Yield the spans of a term in a text; its words may have other forms."""
    term_words = [term[slice(*span)].strip(_APOSTROPHES).lower() for span in Units.of(term).spans]
    spans = Units.of(text).spans
    words = [text[slice(*span)].strip(_APOSTROPHES).lower() for span in spans]
    index, count = 0, len(term_words)
    while 0 < count <= len(words) - index:
        if all(map(forms.are_forms, term_words, words[index : index + count])):
            yield spans[index][0], spans[index + count - 1][1]
            index += count
        else:
            index += 1


def _use_next(line: _Line, weights: Tensor, tokenizer: Tokenizer) -> Choice:
    """Use the first pending term of a line."""
    term = line.pending.pop(0)
    text, span = term.target, _find_replaced(line, term, weights)
    if len(line.target) + _LONGEST_FORM * len(text) > MAX_CHARACTERS:
        line.unused.append(term.source)
        return
    if span is None:
        ends = [0, *(end for _, end in Units.of(line.target).spans)]
        if len(ends) > _MOST_PLACES:
            line.unused.append(term.source)
            return
        end = ends[(yield [_insert(line.target, text, end) for end in ends])]
        start = end + bool(end)
        line.replace((end, end), f" {text}" if end else text + " " * bool(line.target))
    else:
        start, end = span
        if line.target[start].isupper() and not any(map(str.isalnum, line.target[:start])):
            text = text[0].upper() + text[1:]
        line.replace(span, text)
    end = start + len(text)
    for word_start, word_end in reversed(Units.of(text).spans):
        forms_of_word = _cased_forms(text[word_start:word_end], tokenizer.forms)
        options = [text[:word_start] + form + text[word_end:] for form in forms_of_word]
        elisions = [] if word_start else list(_elided(line.target[:start], tokenizer))
        choices = [
            (position, head, option)
            for position, head in [(start, ""), *elisions]
            for option in options
            if not elisions or _fits(line.target[:position] + head, option)
        ]
        index = 0
        if len(choices) > 1:
            index = yield [line.target[:first] + head + option + line.target[end:] for first, head, option in choices]
        start, head, text = choices[index]
        line.replace((start, end), head + text)
        start += len(head)
        end = start + len(text)
    line.used.append((start, end))


def _fits(before: str, text: str) -> bool:
    """Return whether a text may follow a word with or without an elision; both may precede an h."""
    first = unicodedata.normalize("NFD", text[0]).lower()[0]
    return first == "h" or (first in _VOWELS) is before.endswith(tuple(_APOSTROPHES))


def _insert(text: str, term: str, end: int) -> str:
    """Insert a term after a word that ends at `end`, or before all words."""
    return f"{text[:end]} {term}{text[end:]}" if end else f"{term} {text}"


def _elided(before: str, tokenizer: Tokenizer) -> Iterator[tuple[int, str]]:
    """Yield other forms of the word before a term, such as `l'` for `la`, with their start in the text."""
    if elided := _ELIDED.search(before):
        for vowel in _VOWELS:
            if tokenizer.knows(elided[1] + vowel):
                yield elided.start(), f"{elided[1]}{vowel} "
    elif (word := _MAY_ELIDE.search(before)) and tokenizer.knows(f"{word[1]}'"):
        yield word.start(), word[1] + ("’" if "’" in before else "'")


def _cased_forms(word: str, forms: Forms) -> list[str]:
    """Return the forms of a word with the word's capitals."""
    lower = word.lower()
    if len(lower) != len(word) or not word[:1].isalpha():
        return [word]
    results = []
    for form in forms.of(lower):
        shared = next(
            (k for k, (a, b) in enumerate(zip(lower, form, strict=False)) if a != b), min(len(lower), len(form))
        )
        results.append(word[:shared] + form[shared:])
    return results


def _find_replaced(line: _Line, term: Occurrence, weights: Tensor) -> Offsets | None:
    """Return the span of the target's words that come from a term, None if there are none."""
    source, units = Units.of(line.translation.source), Units.of(line.target)
    columns = [k for k, (start, end) in enumerate(source.spans) if start < term.end and term.start < end]
    linked = weights[:, columns].sum(1).tolist()
    fixed = [*line.used, *find_span_offsets(line.target)]
    is_free = [is_word and not overlaps(span, fixed) for span, is_word in zip(units.spans, units.is_word, strict=True)]
    lengths = [end - start for start, end in units.spans]
    largest = max((weight for weight, may_replace in zip(linked, is_free, strict=True) if may_replace), default=0.0)
    if largest < _UNLINKED:
        return None
    # Articles and auxiliary verbs come from the term too: the longest word with a large weight is its translation.
    likely = [k for k, weight in enumerate(linked) if is_free[k] and weight >= _LINKED * largest]
    seed = max(likely, key=lambda k: (lengths[k], linked[k]))

    def end_of_run(step: int) -> int:
        last = seed
        while nearest := [
            k
            for k in (last + step, last + 2 * step)
            if 0 <= k < len(linked) and is_free[k] and linked[k] > _TOGETHER and lengths[k] > _SHORT
        ]:
            last = nearest[0]
        return last

    start, end = units.spans[end_of_run(-1)][0], units.spans[end_of_run(1)][1]
    return start, end - (line.target[end - 1] in _APOSTROPHES and end - start > 1)


def _reread(scorer: PairScorer, lines: Sequence[_Line], batch_size: int) -> Iterator[Translation]:
    """Yield the translation with each changed target: its tokens, attention weights and score, without sources."""
    masked = [scorer.slots.mask(line.translation.source, line.target) for line in lines]
    sources = scorer.source_tokenizer.encode_all([source.text for source, _ in masked])
    targets = scorer.target_tokenizer.encode_all([target.text for _, target in masked])
    scores, weights = [0.0] * len(lines), [torch.zeros(0, 0)] * len(lines)
    lengths = [max(len(source.ids), len(target.ids)) for source, target in zip(sources, targets, strict=True)]
    for batch in batches(lengths, batch_size):
        pairs = [(sources[k].ids, targets[k].ids) for k in batch]
        models = [model for model in scorer._models() if model.attends]
        batch_scores = forced_scores(scorer._models(), pairs, scorer._memories())
        weights_of_models = [forced_weights(model, pairs) for model in models]
        for row, k in enumerate(batch):
            scores[k] = batch_scores[row]
            weights[k] = torch.stack([matrices[row] for matrices in weights_of_models]).mean(0)
    for k, line in enumerate(lines):
        yield replace(
            line.translation,
            target=line.target,
            source_tokens=list(map(masked[k][0].restore, sources[k].pieces)),
            target_tokens=list(map(masked[k][1].restore, targets[k].pieces)),
            weights=weights[k],
            score=scores[k],
            sources=[[] for _ in targets[k].pieces] if line.translation.sources else [],
        )
