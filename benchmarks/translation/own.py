"""Score translators that `dikkat train` made of one corpus with no option but the seed.

    dikkat train --corpus train.tsv --seed 0 --output FOLDER/0
    dikkat train --corpus train.tsv --seed 1 --output FOLDER/1
    python -m benchmarks.translation.own FOLDER

FOLDER/val.tsv has the pairs to score on, which no training has seen.
"""

import argparse
import statistics
from pathlib import Path

from benchmarks.kit.report import write
from benchmarks.translation.multi30k import score, training
from dikkat.translation import Search, Translator
from dikkat.translation.data.corpus import TsvCorpus


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="the folder with a translator of each seed, and val.tsv")
    folder: Path = parser.parse_args().folder.resolve()
    places = sorted(each.parent for each in folder.glob("*/model.safetensors"))
    if not places:
        raise SystemExit(f"{folder}: no translators; expected those of `dikkat train --output {folder}/0` and so on")
    val = list(TsvCorpus(folder / "val.tsv"))
    found = {}
    for place in places:
        translator = Translator.load(place)
        found[place.name] = {
            "pairs": translator.origin and translator.origin.pairs,
            "training": training(place.with_name(f"{place.name}.training")),
            "settings": translator.settings.to_dict(),
            "val": score(translator, val, Search()),
        }
    results = {"what": f"{folder.name}, no option given, beam 5", "models": found}
    for name in ("bleu", "chrf"):
        each = [one["val"][name] for one in found.values()]
        spread = f" ± {statistics.stdev(each):.2f}" if len(each) > 1 else ""
        results[name] = f"{statistics.mean(each):.2f}{spread}"
        print(name, results[name], each)
    print(write(f"own-{folder.name}", results, "tokenizers", "sacrebleu"))


if __name__ == "__main__":
    main()
