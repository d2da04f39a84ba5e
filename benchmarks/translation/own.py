"""Score translators that `dikkat train` made from one corpus with only the option --seed.

    dikkat train --corpus train.tsv --seed 0 --output FOLDER/0
    dikkat train --corpus train.tsv --seed 1 --output FOLDER/1
    python -m benchmarks.translation.own FOLDER

FOLDER/val.tsv has the held-out pairs.
"""

import argparse
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.kit.report import write
from benchmarks.translation.multi30k import score, training
from dikkat.translation import Search, Translator
from dikkat.translation.data.corpus import TsvCorpus
from dikkat.translation.text.slots import SPAN


def count_spans(sources: Sequence[str], references: Sequence[str], translations: Sequence[str]) -> dict[str, int]:
    """Count the numbers, addresses and placeholders that references copy, and how translations write them.

    Returns:
        copied: Distinct spans of a source that its reference has equally often.
        right: Copied spans that the translation has equally often.
        lost, repeated: Copied spans that the translation has less often, or more often.
        invented: Spans of translations that are neither in the source nor in the reference.
    """
    counts = Counter(copied=0, right=0, lost=0, repeated=0, invented=0)
    for texts in zip(sources, references, translations, strict=True):
        source, reference, translation = (Counter(match[0] for match in SPAN.finditer(text)) for text in texts)
        for span in [span for span in source if source[span] == reference[span]]:
            surplus = translation[span] - source[span]
            counts.update(copied=1, right=int(surplus == 0), lost=int(surplus < 0), repeated=int(surplus > 0))
        counts["invented"] += sum(count for span, count in translation.items() if span not in source | reference)
    return dict(counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="the folder with a translator of each seed, and val.tsv")
    folder: Path = parser.parse_args().folder.resolve()
    folders = sorted(weights.parent for weights in folder.glob("*/model.safetensors"))
    if not folders:
        raise SystemExit(f"{folder}: no translators; expected those of `dikkat train --output {folder}/0` and so on")
    val = list(TsvCorpus(folder / "val.tsv"))
    sources, references = [source for source, _ in val], [target for _, target in val]
    models = {}
    for path in folders:
        translator = Translator.load(path)
        translations = [weights.target for weights in translator.translate(sources)]
        models[path.name] = {
            "pairs": translator.origin and translator.origin.pairs,
            "training": training(path.with_name(f"{path.name}.training")),
            "settings": translator.settings.to_dict(),
            "val": score(translator, val, Search()),
            "spans": count_spans(sources, references, translations),
        }
        print(path.name, models[path.name]["spans"])
    results = {"what": f"{folder.name}, no option given, beam 5", "models": models}
    for name in ("bleu", "chrf"):
        scores = [model["val"][name] for model in models.values()]
        spread = f" ± {statistics.stdev(scores):.2f}" if len(scores) > 1 else ""
        results[name] = f"{statistics.mean(scores):.2f}{spread}"
        print(name, results[name], scores)
    print(write(f"own-{folder.name}", results, "tokenizers", "sacrebleu"))


if __name__ == "__main__":
    main()
