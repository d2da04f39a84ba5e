"""Word links and tags on the phrasebook, whose links are known: models as of `make demo`, in both directions."""

import argparse
import html
import random
import re
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.kit.processes import ROOT
from benchmarks.kit.report import write
from dikkat.translation import Search, Translator, alignment_error_rate, gold_links, hold_out, phrasebook, train
from dikkat.translation.data.corpus import Pair
from dikkat.translation.text.markup import parse

sys.path.insert(0, str(ROOT / "tools"))

from phrasebook import lexicon
from phrasebook import links as known  # the generator, which is no part of the package

Span = tuple[int, int]
TAG = re.compile(r"</?[a-z]+(?: [^>]*)?>")


def trained(folder: Path, *, back: bool) -> Translator:
    """A model as of the demo, or the one that is in the folder."""
    path = folder / ("fr-en" if back else "en-fr")
    if not path.exists():
        corpus, _ = phrasebook.split()
        pairs = [(french, english) for english, french in corpus] if back else corpus
        training, validation = hold_out(pairs[600:], share=0.02)
        settings = runpy.run_path(str(ROOT / "examples" / "demo.py"))["SETTINGS"]
        train(settings, training + 4 * pairs[:600], validation).translator.save(path)
    return Translator.load(path)


def adjectives() -> set[str]:
    """The English adjectives of the phrasebook."""
    tables = (value for value in vars(lexicon).values() if isinstance(value, tuple))
    return {each.english for table in tables for each in table if isinstance(each, lexicon.Adjective)}


def tagged(pair: Pair, kind: str, chance: random.Random) -> list[Span] | None:
    """The English morphs of each tag: a content word, a noun phrase, a word in one, or any run of two or three."""
    morphs = known.links(*pair)
    words = [pair[0][start:end].lower() for start, end in morphs.source]
    linked = {source for source, _ in morphs.sure}
    content = [
        place
        for place, word in enumerate(words)
        if place in linked and word in known._content() and word not in known._WORDS
    ]
    runs = [
        (first, last)
        for first in range(len(words))
        for last in range(first + 1, min(first + 3, len(words) - 1))
        if first in linked
        and last in linked
        and pair[0][morphs.source[first][0] - 1 : morphs.source[first][0]] in ("", " ")
    ]
    nouns, before = (
        known._nouns(),
        {*adjectives(), "the", "a", "an", "this", "these", "my", "your", "his", "her", "our", "their"},
    )
    phrases = [run for run in runs if words[run[1]] in nouns and all(word in before for word in words[run[0] : run[1]])]
    if kind == "phrase":
        return [chance.choice(phrases)] if phrases else None
    if kind == "word":
        return [(place, place) for place in [chance.choice(content)]] if content else None
    if kind == "run":
        return [chance.choice(runs)] if runs else None
    nested = [(run, place) for run in phrases for place in content if run[0] <= place <= run[1]]
    if not nested:
        return None
    run, place = chance.choice(nested)
    return [run, (place, place)]


def marked(pair: Pair, spans: list[Span]) -> str:
    """The English sentence with tags a, b … around its morphs."""
    morphs, text = known.links(*pair).source, pair[0]
    edges = [(morphs[first][0], 1, depth, f'<{"ab"[depth]} class="x">') for depth, (first, _) in enumerate(spans)]
    edges += [(morphs[last][1], 0, -depth, f"</{'ab'[depth]}>") for depth, (_, last) in enumerate(spans)]
    for at, _, _, tag in sorted(edges, reverse=True):
        text = text[:at] + tag + text[at:]
    return text


def is_right(pair: Pair, span: Span, target: str, tag: str) -> bool:
    """Whether a tag has all words that surely say what its own said, and none that cannot, but those between them."""
    found = known.links(*pair)
    inside = re.search(rf"<{tag} [^>]*>(.*)</{tag}>", target)
    assert inside
    start = len(html.unescape(TAG.sub("", target[: inside.start(1)])))
    end = start + len(html.unescape(TAG.sub("", inside[1])))
    got = {place for place, (first, last) in enumerate(found.target) if first < end and last > start}
    own = range(span[0], span[1] + 1)
    sure = {other for one, other in found.sure if one in own}
    possible = {other for one, other in found.possible if one in own}
    return sure <= got <= possible | set(range(min(sure), max(sure) + 1))


def tags(translator: Translator, kind: str) -> dict[str, Any]:
    """How many tags arrive, nested, and on the right words, of sentences that are translated as the reference is."""
    chance, cases = random.Random(7), []
    for pair in phrasebook.split()[1]:
        if spans := tagged(pair, kind, chance):
            cases.append((pair, spans, marked(pair, spans)))
    found = translator.translate([text for *_, text in cases], search=Search(beam=1), markup="html")
    whole, right, wrong = 0, 0, 0
    for (pair, spans, text), each in zip(cases, found, strict=True):
        plain, _ = parse(each.target)  # which raises where tags do not nest
        whole += TAG.findall(text) == TAG.findall(each.target)
        if plain == pair[1]:
            for depth, span in enumerate(spans):
                if is_right(pair, span, each.target, "ab"[depth]):
                    right += 1
                else:
                    wrong += 1
    return {"sentences": len(cases), "all tags there and nested": whole, "tags judged": right + wrong,
            "on the right words": round(right / (right + wrong), 4)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, help="where the two models are, or are to be kept")
    folder = parser.parse_args().models or Path(tempfile.mkdtemp())
    torch.set_num_threads(1)
    there, back = trained(folder, back=False), trained(folder, back=True)
    pairs, gold = phrasebook.split()[1], gold_links(phrasebook.links(), "phrasebook")
    turned = [(french, english) for english, french in pairs]
    results = {
        "alignment error rate": {
            "English to French": round(alignment_error_rate(there.align(pairs), gold), 4),
            "French to English": round(
                alignment_error_rate([{(one, other) for other, one in each} for each in back.align(turned)], gold), 4
            ),
            "both": round(alignment_error_rate(there.align(pairs, reverse=back), gold), 4),
        },
        "tags": {kind: tags(there, kind) for kind in ("word", "phrase", "nested", "run")},
    }
    print(write("links", results, "tokenizers").read_text())


if __name__ == "__main__":
    main()
