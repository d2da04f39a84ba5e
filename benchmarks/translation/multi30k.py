"""Score a translator that a Multi30k recipe has trained: chosen on val, the test set translated once.

    dikkat train multi30k-en-fr --precision bfloat16 --output FOLDER
    python -m benchmarks.translation.multi30k FOLDER

The length penalty is chosen on val too, of a few. What the training came to stands in FOLDER.training.
"""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.kit.report import write
from dikkat.translation import Search, Translator, evaluate, evaluate_by_length
from dikkat.translation.data.corpus import Pair
from dikkat.translation.formats.recipe import Recipe
from dikkat.translation.training import checkpoints

PENALTIES = (0.0, 0.6, 1.0, 1.4)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="the model folder")
    parser.add_argument("--note", help="what else there is to know of the training")
    options = parser.parse_args()
    place = options.folder.with_name(f"{options.folder.name}.training")
    recipe = Recipe.load(place / "recipe.toml")
    if recipe.corpus is None or recipe.test is None:
        raise SystemExit(f"{place}: not a training by a Multi30k recipe")
    translator = Translator.load(options.folder)
    val, test = list(recipe.corpus.open("validation")), list(recipe.test.open("test"))
    tried = {penalty: score(translator, val, Search(length_penalty=penalty)) for penalty in PENALTIES}
    best = max(tried, key=lambda penalty: tried[penalty]["bleu"])
    results = {
        "what": f"{recipe.corpus}, one model, text as published (cased, not tokenised), beam 5",
        "training": training(place) | ({"note": options.note} if options.note else {}),
        "settings": translator.settings.to_dict(),
        "parameters": sum(each.numel() for each in translator.model.parameters()),
        "val, by length penalty": tried,
        "val, greedy": score(translator, val, Search(beam=1)),
        "length penalty chosen on val": best,
        "test_2016_flickr": score(translator, test, Search(length_penalty=best)),
    }
    for name in ("test_2016_flickr", "val, greedy"):
        print(name, {key: value for key, value in results[name].items() if key != "by source words"})
    print(write(options.folder.name, results, "tokenizers", "sacrebleu"))


def training(place: Path) -> dict[str, Any]:
    (newest,) = (place / "checkpoints").iterdir()
    course = checkpoints.load(newest).course
    return {
        "steps": course["step"],
        "epochs": len(course["epochs"]),
        "minutes": round(course["elapsed"] / 60, 1),
        "target tokens per second": round(course["all_tokens"] / course["all_seconds"]),
        "validations": [
            {"step": each["step"], "loss": round(each["loss"], 4), "bleu": each["bleu"] and round(each["bleu"], 2)}
            for each in course["validations"]
        ],
    }


def score(translator: Translator, pairs: list[Pair], search: Search) -> dict[str, Any]:
    sources, references = [source for source, _ in pairs], [target for _, target in pairs]
    hypotheses = [each.target for each in translator.translate(sources, search=search)]
    found = evaluate(hypotheses, references)
    buckets = evaluate_by_length(sources, hypotheses, references)
    return {
        "sentences": len(pairs),
        "bleu": round(found.bleu, 2),
        "bleu_line": found.bleu_line,
        "bleu_signature": found.bleu_signature,
        "chrf": round(found.chrf, 2),
        "chrf_signature": found.chrf_signature,
        "by source words": [vars(bucket) for bucket in buckets],
    }


if __name__ == "__main__":
    main()
