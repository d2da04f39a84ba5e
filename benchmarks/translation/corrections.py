"""Measure corrections: stored ones, and those that `dikkat train --from` learns.

    python -m benchmarks.translation.corrections TRANSLATOR... [--corrections 200]

Next to a translator `NAME` are its training pairs `NAME.train.tsv`, the validation pairs of its training
`NAME.dev.tsv`, held-out pairs `NAME.val.tsv`, and other pairs that it has not seen, `NAME.unrelated.tsv`. The first
held-out sentences are the corrections; other pairs of the same sentences are left out. Each one is translated with the
corrections before it, and then stored.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import starmap
from pathlib import Path
from typing import Any

from benchmarks.kit.report import write_cases
from dikkat.translation import Translator, evaluate
from dikkat.translation.data.corpus import Pair, TsvCorpus

_CHANGED = 10  # points of chrF of a line


def translate(translator: Translator, pairs: Sequence[Pair]) -> list[str]:
    """Return the translations of the sources."""
    return [translation.target for translation in translator.translate([source for source, _ in pairs])]


def score(targets: Sequence[str], pairs: Sequence[Pair]) -> dict[str, float | None]:
    """Return the share of targets that equal the references, BLEU and chrF."""
    references = [target for _, target in pairs]
    scores = evaluate(targets, references)
    right = sum(target == reference for target, reference in zip(targets, references, strict=True))
    return {"right": right / len(pairs), "bleu": scores.bleu, "chrf": scores.chrf}


def line_scores(targets: Sequence[str], pairs: Sequence[Pair]) -> list[float]:
    """Return the chrF of each line."""
    return [evaluate([target], [reference]).chrf for target, (_, reference) in zip(targets, pairs, strict=True)]


def measure_memory(folder: Path, corrected: Sequence[Pair], unrelated: Sequence[Pair]) -> dict[str, Any]:
    """Return the scores of the corrected lines before and after, and the changes of unrelated lines."""
    translator = Translator.load(folder)
    before, unrelated_before = translate(translator, corrected), translate(translator, unrelated)
    in_turn = []
    for pair in corrected:
        in_turn += translate(translator, [pair])
        translator.correct(*pair)
    after, unrelated_after = translate(translator, corrected), translate(translator, unrelated)
    scores = zip(line_scores(unrelated_before, unrelated), line_scores(unrelated_after, unrelated), strict=True)
    differences = [abs(new - old) for old, new in scores]
    return {
        "before": score(before, corrected), "in turn": score(in_turn, corrected), "after": score(after, corrected),
        "unrelated lines": len(unrelated),
        "changed": sum(old != new for old, new in zip(unrelated_before, unrelated_after, strict=True)),
        f"changed by more than {_CHANGED} chrF": sum(difference > _CHANGED for difference in differences),
        "unrelated before": score(unrelated_before, unrelated), "unrelated after": score(unrelated_after, unrelated),
    }  # fmt: skip


def measure_continuing(folder: Path, corrected: Sequence[Pair], held_out: Sequence[Pair]) -> dict[str, Any]:
    """Run `dikkat train --from`; return its time, and the scores of the corrections and of held-out lines."""
    with tempfile.TemporaryDirectory() as temporary:
        corrections, output = Path(temporary, "corrections.tsv"), Path(temporary, "model")
        corrections.write_text("".join(starmap("{}\t{}\n".format, corrected)), encoding="utf-8")
        start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "dikkat", "train", "--from", str(folder), "--corrections", str(corrections),
             "--corpus", f"{folder}.train.tsv", "--validation", f"{folder}.dev.tsv", "--output", str(output)],
            check=True, capture_output=True,
        )  # fmt: skip
        after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
        old, new = Translator.load(folder), Translator.load(output)
        return {
            "seconds": seconds, "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            "corrections": score(translate(new, corrected), corrected),
            "held out before": score(translate(old, held_out), held_out),
            "held out after": score(translate(new, held_out), held_out),
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("translators", type=Path, nargs="+", help="folders of translators")
    parser.add_argument("--corrections", type=int, default=200)
    options = parser.parse_args()
    for folder in options.translators:
        pairs = list(TsvCorpus(f"{folder}.val.tsv"))
        by_source = dict(pairs)  # one translation of a sentence
        corrected = list(by_source.items())[: options.corrections]
        sources = {source for source, _ in corrected}
        held_out = [pair for pair in pairs if pair[0] not in sources]
        unrelated = [pair for pair in TsvCorpus(f"{folder}.unrelated.tsv") if pair[0] not in sources]
        results = {
            "memory": measure_memory(folder, corrected, unrelated),
            "train --from": measure_continuing(folder, corrected, held_out),
        }
        print(folder.name, results, flush=True)
        write_cases("corrections", f"{options.corrections} corrections of held-out lines", {folder.name: results})


if __name__ == "__main__":
    main()
