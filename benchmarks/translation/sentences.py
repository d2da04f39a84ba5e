"""The page of two hundred translated sentences: its size, and how long a reader waits for it in headless Chromium.

    python -m benchmarks.translation.sentences MODEL --data FOLDER [--write]

MODEL is a translator of Multi30k, FOLDER has `test_2016_flickr.en.gz`. Without a model the sentences are the
phrasebook's, forty words of each side long, with weights drawn at random: longer than most that are translated.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.kit.processes import ROOT
from benchmarks.kit.report import spread, write
from dikkat.show import Aligned, save_page
from dikkat.translation import Translator
from dikkat.translation.data.corpus import read_lines
from dikkat.translation.phrasebook import pairs

WEB = ROOT / "web" / "test"
COUNT = 200
WORDS = 40


def main() -> None:
    """Print what is measured, and write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--write", action="store_true", help="keep the results")
    arguments = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("there is no chromium here")
    results = []
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        save_page(page, long_sentences(), title="Long sentences")
        results.append(measured("forty words each", page, chromium))
        if arguments.model:
            translator = Translator.load(arguments.model)
            lines = list(read_lines(arguments.data / "test_2016_flickr.en.gz"))[:COUNT]
            translations = translator.translate(lines)
            save_page(page, translations)
            results.append(measured("Multi30k", page, chromium))
            save_page(page, translations, translator=translator)
            results.append(measured("Multi30k, the model inside", page, chromium))
    if arguments.write:
        print(write("sentences", results))


def long_sentences() -> list[Aligned]:
    """Sentences of the phrasebook one behind the other, until there are words enough."""
    random = np.random.default_rng(1)
    corpus = pairs()
    made: list[Aligned] = []
    for _ in range(COUNT):
        chosen = [corpus[k] for k in random.integers(len(corpus), size=WORDS)]
        source, target = (" ".join(pair[side] for pair in chosen).split()[:WORDS] for side in (0, 1))
        weights = random.dirichlet(np.full(WORDS, 0.1), size=WORDS)  # a few words have most of each row
        texts = {"source": " ".join(source), "target": " ".join(target)}
        made.append(SimpleNamespace(**texts, source_tokens=source, target_tokens=target, weights=weights))
    return made


def measured(what: str, page: Path, chromium: str) -> dict[str, Any]:
    """Size, and milliseconds of seven fresh browsers."""
    command = ["node", str(WEB / "paint.mjs"), str(page), chromium]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    if found["wrong"]:
        raise SystemExit(f"the page complains: {found['wrong']}")
    megabytes = page.stat().st_size / 1e6
    waits = {name: spread(found[name]) for name in ("painted", "drawn")}
    print(f"{what}: {megabytes:.2f} MB")
    for name, each in waits.items():
        print(f"  {name}: {each['median']:.0f} ms, {each['min']:.0f} to {each['max']:.0f}")
    common = {"sentences": COUNT, "megabytes": megabytes, "chromium": found["browser"]}
    return {"part": what, **common, "milliseconds": waits}


if __name__ == "__main__":
    main()
