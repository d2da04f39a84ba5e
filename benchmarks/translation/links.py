"""Word links on the phrasebook, whose links are known: models as of `make demo`, in both directions."""

import argparse
import runpy
import tempfile
from pathlib import Path

import torch

from benchmarks.kit.processes import ROOT
from benchmarks.kit.report import write
from dikkat.translation import Translator, alignment_error_rate, gold_links, hold_out, phrasebook, train


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, help="where the two models are, or are to be kept")
    folder = parser.parse_args().models or Path(tempfile.mkdtemp())
    torch.set_num_threads(1)
    there, back = trained(folder, back=False), trained(folder, back=True)
    pairs, gold = phrasebook.split()[1], gold_links(phrasebook.links(), "phrasebook")
    turned = [(french, english) for english, french in pairs]
    found = {
        "English to French": there.align(pairs),
        "French to English": [{(one, other) for other, one in each} for each in back.align(turned)],
        "both": there.align(pairs, reverse=back),
    }
    results = {"alignment error rate": {way: round(alignment_error_rate(each, gold), 4) for way, each in found.items()}}
    print(write("links", results, "tokenizers").read_text())


if __name__ == "__main__":
    main()
