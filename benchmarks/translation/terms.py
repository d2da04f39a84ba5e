"""Measure the use of terms: how many are used, how many have the reference's form, and the change of BLEU.

    python -m benchmarks.translation.terms TRANSLATOR...

Next to a translator `NAME` are its training pairs `NAME.train.tsv` and held-out pairs `NAME.val.tsv`.
The terms are source words that the model links to one target word and its forms, in the training pairs and in the
references. A term's translation is its most frequent form in the training pairs.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.kit.report import write_cases
from dikkat.translation import Translation, Translator, evaluate
from dikkat.translation.data.corpus import Pair, TsvCorpus
from dikkat.translation.decoding.term_use import find_term
from dikkat.translation.terms import Terms

_TERMS, _LINES = 100, 300
_SHORTEST = 4  # letters of a source term
_LEAST = 3  # links of a term in the training pairs
_CONSISTENT = 0.8  # share of a word's links that are forms of one word
_MARKS = '.,:;!?()[]"“”„«»…'


def linked_words(translator: Translator, pairs: Sequence[Pair]) -> Iterator[list[tuple[str, str]]]:
    """Yield the pairs of words of each sentence pair that are linked only to each other."""
    for (source, target), links in zip(pairs, translator.align(pairs), strict=True):
        sides = [Counter(link[side] for link in links) for side in (0, 1)]
        words = [text.split() for text in (source, target)]
        linked = [(words[0][a], words[1][b]) for a, b in sorted(links) if sides[0][a] == sides[1][b] == 1]
        yield [(a.strip(_MARKS), b.strip(_MARKS)) for a, b in linked]


def choose_terms(translator: Translator, training: Sequence[Pair], validation: Sequence[Pair], count: int) -> Terms:
    """Return the `count` most frequent consistent terms of the validation pairs."""
    forms = translator.target_tokenizer.forms
    links, held_out = defaultdict[str, Counter[str]](Counter), defaultdict[str, Counter[str]](Counter)
    for counts, pairs in ((links, training), (held_out, validation)):
        for words in linked_words(translator, pairs):
            for source, target in words:
                counts[source.lower()][target] += 1
    capitals = Counter(word for _, target in training for word in target.split()[1:])  # without sentences' first words
    terms = dict[str, str]()
    for source, targets in sorted(held_out.items(), key=lambda item: (-item[1].total(), item[0])):
        if len(source) < _SHORTEST or not source.isalpha() or links[source].total() < _LEAST:
            continue
        ((base, _),) = links[source].most_common(1)
        base = base if capitals[base] >= capitals[base.lower()] else base.lower()
        consistent = all(
            sum(number for word, number in counts.items() if forms.are_forms(base.lower(), word.lower()))
            >= _CONSISTENT * counts.total()
            for counts in (targets, links[source])
        )
        if consistent and base.isalpha() and base.lower() != source:
            terms[source] = base
        if len(terms) == count:
            break
    return Terms.of(terms)


def count_uses(
    translator: Translator, terms: Terms, translations: Sequence[Translation], references: Sequence[str]
) -> dict[str, int]:
    """Count the occurrences of terms in sources, those in targets, and those with the reference's forms.

    Returns:
        occurrences: Terms in sources.
        used: Terms of which the target has a form.
        compared: Used terms of which the reference has a form too.
        equal: Compared terms with an equal form.
    """
    counts, forms = Counter(occurrences=0, used=0, compared=0, equal=0), translator.target_tokenizer.forms
    for translation, reference in zip(translations, references, strict=True):
        needed = Counter(occurrence.target for occurrence in terms.find(translation.source))
        for term, number in needed.items():
            written, expected = (
                Counter(text[start:end].lower() for start, end in find_term(text, term, forms))
                for text in (translation.target, reference)
            )
            used = min(number, written.total())
            compared = min(used, expected.total())
            equal = min(compared, (written & expected).total())
            counts.update(occurrences=number, used=used, compared=compared, equal=equal)
    return dict(counts)


def measure(
    translator: Translator, training: Sequence[Pair], held_out: Sequence[Pair], *, show: bool
) -> dict[str, Any]:
    """Return the results of one translator; optionally print the changed lines."""
    terms = choose_terms(translator, training, held_out[:_LINES], _TERMS)
    pairs = [pair for pair in held_out if terms.find(pair[0])][:_LINES]
    sources, references = [source for source, _ in pairs], [target for _, target in pairs]
    plain, with_terms = translator.translate(sources), translator.translate(sources, terms=terms)
    results: dict[str, Any] = {"terms": len(terms.targets), "lines": len(pairs)}
    for name, translations in (("without", plain), ("with", with_terms)):
        bleu = evaluate([translation.target for translation in translations], references).bleu
        results[name] = {"bleu": bleu, **count_uses(translator, terms, translations, references)}
    results["changed lines"] = sum(a.target != b.target for a, b in zip(plain, with_terms, strict=True))
    results["unused"] = sum(len(translation.unused_terms) for translation in with_terms)
    for before, after, reference in zip(plain, with_terms, references, strict=True) if show else ():
        if before.target != after.target:
            print("", before.source, before.target, after.target, reference, sep="\n")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("translators", type=Path, nargs="+", help="folders of translators")
    parser.add_argument("--show", action="store_true", help="print the changed lines")
    options = parser.parse_args()
    for folder in options.translators:
        training, held_out = (list(TsvCorpus(f"{folder}.{part}.tsv")) for part in ("train", "val"))
        results = measure(Translator.load(folder), training, held_out, show=options.show)
        print(folder.name, results, flush=True)
        write_cases("terms", f"{_TERMS} terms in {_LINES} held-out lines", {folder.name: results})


if __name__ == "__main__":
    main()
