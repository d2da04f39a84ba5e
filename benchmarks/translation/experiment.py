"""The textbook's experiment through `dikkat.textbook.torch`, beside the textbook's own library.

    python -m benchmarks.translation.experiment --book FOLDER [--epochs 250] [--seeds 3]

The phrasebook's first 600 pairs, batches of 64, 10 steps, 32 features, 2 layers: the mean BLEU-2 of the book's four
sentences, and the target tokens a second of the last epoch. FOLDER is a checkout of the book's first edition, d2l-zh:
the loop is that of its library on PyTorch, the decoder that of its chapter.
"""

import argparse
import contextlib
import importlib
import importlib.util
import io
import json
import re
import statistics
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import torch

from benchmarks.kit.processes import command, environment
from benchmarks.kit.report import write
from dikkat.textbook import text
from dikkat.textbook import torch as ours
from dikkat.translation import CorpusError

SENTENCES = {
    "go .": "va !",
    "i lost .": "j'ai perdu .",
    "he's calm .": "il est calme .",
    "i'm home .": "je suis chez moi .",
}
STEPS, SIZE, LAYERS, DROPOUT, BATCH, RATE = 10, 32, 2, 0.1, 64, 0.005
# What the book's library imports for other chapters.
UNNEEDED = {
    "torchvision": "transforms",
    "pandas": "core",
    "requests": "api",
    "IPython": "display",
    "matplotlib_inline": "backend_inline",
}
WHO = ("book", "torch")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--book", type=Path, required=True, help="a checkout of the book's repository, d2l-zh")
    parser.add_argument("--epochs", type=int, default=250)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--who", choices=WHO, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.who:
        print(json.dumps(run(options.who, options.seed, options.epochs, options.book)))
        return
    results: dict[str, list[Any]] = {}
    for seed in range(options.seeds):  # in turn, so that whatever else the machine does hits all alike
        for who in WHO:
            found = in_a_process(who, seed, options)
            results.setdefault(who, []).append(found)
            print(who, json.dumps(found, ensure_ascii=False), flush=True)
    print(write("textbook-experiment", results))


def in_a_process(who: str, seed: int, options: argparse.Namespace) -> Any:
    words = ["--who", who, "--seed", seed, "--epochs", options.epochs, "--book", options.book]
    around = environment(MPLBACKEND="agg")
    done = subprocess.run(
        command("translation.experiment", *words), check=True, stdout=subprocess.PIPE, text=True, env=around
    )
    return json.loads(done.stdout.splitlines()[-1])


def run(who: str, seed: int, epochs: int, book: Path) -> dict[str, Any]:
    text.named = not_the_corpus  # the phrasebook, whatever is in the cache
    library: Any = library_of(book) if who == "book" else ours
    decoder = chapter_decoder(book, library) if who == "book" else ours.Seq2SeqAttentionDecoder
    torch.manual_seed(seed)
    device = ours.try_gpu()
    data, source, target = ours.load_data_nmt(BATCH, STEPS)
    encoder = library.Seq2SeqEncoder(len(source), SIZE, SIZE, LAYERS, DROPOUT)
    net = library.EncoderDecoder(encoder, decoder(len(target), SIZE, SIZE, LAYERS, DROPOUT))
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        library.train_seq2seq(net, data, RATE, epochs, target, device)
    found = re.search(r"([\d.]+) tokens/sec", said.getvalue())  # of the last epoch, as the book prints it
    assert found is not None, said.getvalue()
    translations = {
        sentence: library.predict_seq2seq(net, sentence, source, target, STEPS, device)[0] for sentence in SENTENCES
    }
    mean = statistics.mean(ours.bleu(translations[sentence], right, k=2) for sentence, right in SENTENCES.items())
    return {"tokens a second": float(found[1]), "BLEU-2": round(mean, 4), "seed": seed, "translations": translations}


def not_the_corpus(name: str) -> Any:
    raise CorpusError(f"{name}: this experiment is of the phrasebook")


def library_of(book: Path) -> Any:
    """The book's own library on PyTorch."""
    for needed, part in UNNEEDED.items():
        if importlib.util.find_spec(needed) is None:
            module, inner = types.ModuleType(needed), types.ModuleType(f"{needed}.{part}")
            setattr(module, part, inner)
            sys.modules |= {needed: module, f"{needed}.{part}": inner}
    sys.path.insert(0, str(book))
    library: Any = importlib.import_module("d2l.torch")
    library.Animator = lambda *_, **__: types.SimpleNamespace(add=lambda *_: None)
    return library


def chapter_decoder(book: Path, library: Any) -> Any:
    """The decoder of the chapter on Bahdanau attention, from its page."""
    page = (book / "chapter_attention-mechanisms/bahdanau-attention.md").read_text(encoding="utf-8")
    cells = re.findall(r"```\{\.python \.input[^}]*\}\n#@tab pytorch\n(.*?)```", page, re.S)
    scope = {"d2l": library, "AttentionDecoder": library.AttentionDecoder, "torch": torch, "nn": torch.nn}
    exec(next(code for code in cells if "class Seq2SeqAttentionDecoder" in code), scope)
    return scope["Seq2SeqAttentionDecoder"]


if __name__ == "__main__":
    main()
