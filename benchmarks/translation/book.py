"""The textbook's experiment by its recipe, three seeds: what the model has learnt of its 600 pairs.

    python -m benchmarks.translation.book [--tatoeba FILE]

On the phrasebook's first 600 pairs: the textbook's BLEU-2 of its four sentences. On those of the Tatoeba file (FILE,
lines of English, tab, French; without it: downloaded): the share of the training pairs, of those whose English is there
once, that are translated exactly. Both compare words and punctuation marks in lower case, as the textbook prepares its
text: which kind of apostrophe, or of space before a mark, a person typed is nobody's to learn.
"""

import argparse
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from benchmarks.kit.processes import ROOT
from benchmarks.kit.report import write
from dikkat.translation import Search, Translator, bleu_k, train
from dikkat.translation.data.corpus import Pair
from dikkat.translation.formats.recipe import Recipe

RECIPE = ROOT / "recipes" / "book.toml"
SEEDS = (0, 1, 2)
FOUR = [
    ("Go.", "Va !"),
    ("I lost.", "J'ai perdu."),
    ("He's calm.", "Il est calme."),
    ("I'm home.", "Je suis chez moi."),
]
GREEDY = Search(beam=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tatoeba", type=Path, help="a file of lines: English, tab, French")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tatoeba = {"tsv": str(options.tatoeba), "first": 600} if options.tatoeba else None
    results = {
        "phrasebook": [run({"name": "phrasebook", "first": 600}, seed) for seed in SEEDS],
        "tatoeba": [run(tatoeba, seed) for seed in SEEDS],
    }
    print(write("book", results, "tokenizers"))


def run(corpus: dict[str, Any] | None, seed: int) -> dict[str, Any]:
    recipe = Recipe.load(RECIPE).with_values({"seed": seed} | ({"corpus": corpus} if corpus else {}))
    pairs, _ = recipe.data()
    pairs = list(pairs)
    started = time.perf_counter()
    translator = train(recipe.settings, pairs, progress=False).translator
    seconds = time.perf_counter() - started
    right, of = exactly_right(translator, pairs)
    found = {
        "seed": seed,
        "pairs": len(pairs),
        "seconds": round(seconds, 1),
        "four sentences' mean BLEU-2": round(mean_bleu(translator), 4),
        "pairs whose English is there once": of,
        "of these exactly right": right,
        "share": round(right / of, 4),
    }
    print(found, flush=True)
    return found


def exactly_right(translator: Translator, pairs: list[Pair]) -> tuple[int, int]:
    count = Counter(" ".join(source.casefold().split()) for source, _ in pairs)
    unique = [pair for pair in pairs if count[" ".join(pair[0].casefold().split())] == 1]
    found = translator.translate([source for source, _ in unique], search=GREEDY)
    right = sum(
        words(translator, one.target) == words(translator, target)
        for one, (_, target) in zip(found, unique, strict=True)
    )
    return right, len(unique)


def mean_bleu(translator: Translator) -> float:
    found = translator.translate([source for source, _ in FOUR], search=GREEDY)
    scores = [
        bleu_k(words(translator, one.target), words(translator, target), 2)
        for one, (_, target) in zip(found, FOUR, strict=True)
    ]
    return sum(scores) / len(scores)


def words(translator: Translator, sentence: str) -> list[str]:
    """In lower case, punctuation marks for themselves; also those that are not in the vocabulary."""
    return [piece.lower().replace("’", "'") for piece in translator.target_tokenizer.encode(sentence).pieces]


if __name__ == "__main__":
    main()
