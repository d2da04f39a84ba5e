"""Measure the calibration of the confidence of translators on held-out pairs.

    python -m benchmarks.translation.confidence FOLDER

FOLDER has for each corpus the translator `NAME`, and its held-out pairs `NAME.val.tsv`.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.kit.report import write
from dikkat.translation import Translation, Translator
from dikkat.translation.confidence import Calibration, ConfidenceModel, calibration, find_right
from dikkat.translation.data.corpus import TsvCorpus


def summarise(result: Calibration) -> dict[str, Any]:
    """Return the error, the AUC and the share of right translations."""
    return {"right": result.right, "error": result.error, "auc": result.auc, "sentences": result.sentences}


def measure(model: ConfidenceModel, translations: Sequence[Translation], references: Sequence[str]) -> Calibration:
    """Return the calibration of a confidence model on translations."""
    is_right = find_right([translation.target for translation in translations], references)
    return calibration([model.of(translation) for translation in translations], is_right)


def measure_halves(translations: Sequence[Translation], references: Sequence[str], fitted: int) -> dict[str, Any]:
    """Fit at most `fitted` translations of one half, measure the other half, and return means of both directions."""
    results = []
    for half in (0, 1):
        model = ConfidenceModel.fit(translations[half::2][:fitted], references[half::2][:fitted])
        results.append(measure(model, translations[1 - half :: 2], references[1 - half :: 2]))
    areas = [result.auc for result in results if result.auc is not None]
    return {"error": mean(result.error for result in results), "auc": mean(areas) if areas else None}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="the folder with translators and held-out pairs")
    folder: Path = parser.parse_args().folder.resolve()
    paths = sorted(folder.glob("*.val.tsv"))
    if not paths:
        raise SystemExit(f"{folder}: no held-out pairs; expected NAME.val.tsv next to each translator NAME")
    results = {}
    for path in paths:
        translator = Translator.load(folder / path.name.removesuffix(".val.tsv"))
        sources, references = map(list, zip(*TsvCorpus(path), strict=True))
        translations = translator.translate(sources)
        row: dict[str, Any] = {
            "half": measure_halves(translations, references, len(references)),
            "150 pairs": measure_halves(translations, references, 150),
        }
        if translator.confidence_model is not None:
            row["from training"] = summarise(measure(translator.confidence_model, translations, references))
        results[path.name.removesuffix(".val.tsv")] = row
        print(path.name, row)
    print(write("confidence", {"what": "expected calibration error and AUC on held-out pairs", "corpora": results}))


if __name__ == "__main__":
    main()
