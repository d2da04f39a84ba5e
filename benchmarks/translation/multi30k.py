"""Score a translator from a Multi30k recipe: tuned on val, with the test set translated once.

    dikkat train multi30k-en-fr --precision bfloat16 --output FOLDER
    python -m benchmarks.translation.multi30k FOLDER

The length penalty is selected on val. FOLDER.training has the course of the training.
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
    run_folder = options.folder.with_name(f"{options.folder.name}.training")
    recipe = Recipe.load(run_folder / "recipe.toml")
    if recipe.corpus is None or recipe.test is None:
        raise SystemExit(f"{run_folder}: not a training by a Multi30k recipe")
    translator = Translator.load(options.folder)
    val, test = list(recipe.corpus.open("validation")), list(recipe.test.open("test"))
    scores = {penalty: score(translator, val, Search(length_penalty=penalty)) for penalty in PENALTIES}
    best = max(scores, key=lambda penalty: scores[penalty]["bleu"])
    results = {
        "what": f"{recipe.corpus}, one model, text as published (cased, not tokenised), beam 5",
        "training": training(run_folder) | ({"note": options.note} if options.note else {}),
        "settings": translator.settings.to_dict(),
        "parameters": sum(tensor.numel() for tensor in translator.model.parameters()),
        "val, by length penalty": scores,
        "val, greedy": score(translator, val, Search(beam=1)),
        "length penalty chosen on val": best,
        "test_2016_flickr": score(translator, test, Search(length_penalty=best)),
    }
    for name in ("test_2016_flickr", "val, greedy"):
        print(name, {key: value for key, value in results[name].items() if key != "by source words"})
    print(write(options.folder.name, results, "tokenizers", "sacrebleu"))


def training(run_folder: Path) -> dict[str, Any]:
    (newest,) = (run_folder / "checkpoints").iterdir()
    state = checkpoints.load(newest).course
    return {
        "steps": state["step"],
        "epochs": len(state["epochs"]),
        "minutes": round(state["elapsed"] / 60, 1),
        "target tokens per second": round(state["all_tokens"] / state["all_seconds"]),
        "validations": [
            {"step": v["step"], "loss": round(v["loss"], 4), "bleu": v["bleu"] and round(v["bleu"], 2)}
            for v in state["validations"]
        ],
    }


def score(translator: Translator, pairs: list[Pair], search: Search) -> dict[str, Any]:
    sources, references = [source for source, _ in pairs], [target for _, target in pairs]
    hypotheses = [t.target for t in translator.translate(sources, search=search)]
    scores = evaluate(hypotheses, references)
    buckets = evaluate_by_length(sources, hypotheses, references)
    return {
        "sentences": len(pairs),
        "bleu": round(scores.bleu, 2),
        "bleu_line": scores.bleu_line,
        "bleu_signature": scores.bleu_signature,
        "chrf": round(scores.chrf, 2),
        "chrf_signature": scores.chrf_signature,
        "by source words": [vars(bucket) for bucket in buckets],
    }


if __name__ == "__main__":
    main()
