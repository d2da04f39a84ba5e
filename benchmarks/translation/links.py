"""Score word links on the phrasebook, which has gold links: models like `make demo`, in both directions."""

import argparse
import runpy
import tempfile
from pathlib import Path

import torch

from benchmarks.kit.processes import ROOT
from benchmarks.kit.report import write
from dikkat.translation import Translator, alignment_error_rate, gold_links, hold_out, phrasebook, train


def trained(folder: Path, *, reverse: bool) -> Translator:
    """Load the model in the folder, or train one like the demo."""
    path = folder / ("fr-en" if reverse else "en-fr")
    if not path.exists():
        corpus, _ = phrasebook.split()
        pairs = [(french, english) for english, french in corpus] if reverse else corpus
        training, validation = hold_out(pairs[600:], share=0.02)
        settings = runpy.run_path(str(ROOT / "examples" / "demo.py"))["SETTINGS"]
        train(settings, training + 4 * pairs[:600], validation).translator.save(path)
    return Translator.load(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, help="where the two models are, or are to be kept")
    folder = parser.parse_args().models or Path(tempfile.mkdtemp())
    torch.set_num_threads(1)
    forward_model, reverse_model = trained(folder, reverse=False), trained(folder, reverse=True)
    pairs, gold = phrasebook.split()[1], gold_links(phrasebook.links(), "phrasebook")
    reversed_pairs = [(french, english) for english, french in pairs]
    links_by_direction = {
        "English to French": forward_model.align(pairs),
        "French to English": [
            {(source, target) for target, source in links} for links in reverse_model.align(reversed_pairs)
        ],
        "both": forward_model.align(pairs, reverse=reverse_model),
    }
    results = {
        "alignment error rate": {
            name: round(alignment_error_rate(links, gold), 4) for name, links in links_by_direction.items()
        }
    }
    print(write("links", results, "tokenizers").read_text())


if __name__ == "__main__":
    main()
