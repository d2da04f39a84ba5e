"""Measure the calibration of the confidence of translators on held-out pairs.

    python -m benchmarks.translation.confidence TRANSLATOR...

Next to a translator `NAME` are held-out pairs `NAME.val.tsv`.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.kit.report import write_cases
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
    parser.add_argument("translators", type=Path, nargs="+", help="folders of translators")
    for folder in parser.parse_args().translators:
        translator = Translator.load(folder)
        sources, references = map(list, zip(*TsvCorpus(f"{folder}.val.tsv"), strict=True))
        translations = translator.translate(sources)
        row: dict[str, Any] = {
            "half": measure_halves(translations, references, len(references)),
            "150 pairs": measure_halves(translations, references, 150),
        }
        if translator.confidence_model is not None:
            row["from training"] = summarise(measure(translator.confidence_model, translations, references))
        print(folder.name, row, flush=True)
        write_cases("confidence", "expected calibration error and AUC on held-out pairs", {folder.name: row})


if __name__ == "__main__":
    main()
