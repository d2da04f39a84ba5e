"""The textbook's experiment through `dikkat.textbook`, in each framework, beside the textbook's own library.

    python -m benchmarks.frameworks.textbook_experiment [--mxnet PYTHON] [--book FOLDER] [--epochs 250] [--seeds 3]

The phrasebook's first 600 pairs, batches of 64, 10 steps, 32 features, 2 layers, dropout 0.1, learning rate 0.005: what
the model says of the four sentences, their mean BLEU-2, and how many target tokens a second it has learnt from. FOLDER
is a checkout of the book's repository of its first generation, d2l-zh, which is run on the same arrays: the loop of its
library and the decoder of its chapter, on PyTorch and on MXNet, and that decoder on the drop-ins of all three
frameworks. PYTHON is the interpreter of the environment that `make test-mxnet` builds.
"""

import argparse
import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import json
import platform
import re
import statistics
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

from benchmarks.kit.processes import command, environment
from dikkat.textbook import text
from dikkat.translation import CorpusError

SENTENCES = {
    "go .": "va !",
    "i lost .": "j'ai perdu .",
    "he's calm .": "il est calme .",
    "i'm home .": "je suis chez moi .",
}
STEPS, SIZE, LAYERS, DROPOUT, BATCH, RATE = 10, 32, 2, 0.1, 64, 0.005
UNNEEDED = {
    "torchvision": "transforms",
    "pandas": "core",
    "requests": "api",
    "IPython": "display",
    "matplotlib_inline": "backend_inline",
}
FRAMEWORKS = ("book", "chapter", "torch", "tensorflow", "mxnet-book", "mxnet")
OF_THE_BOOK = ("book", "chapter", "tensorflow", "mxnet-book", "mxnet")  # which need its checkout
ON_MXNET = ("mxnet-book", "mxnet")  # which need its interpreter


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mxnet", type=Path, help="the interpreter of MXNet's environment")
    parser.add_argument("--book", type=Path, help="a checkout of the book's repository, d2l-zh")
    parser.add_argument("--epochs", type=int, default=250)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--framework", choices=FRAMEWORKS, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.framework:
        print(json.dumps(run(options.framework, options.seed, options.epochs, options.book)))
        return
    from benchmarks.kit.report import write

    results: dict[str, list[Any]] = {}
    for seed in range(options.seeds):  # in turn, so that whatever else the machine does hits all alike
        for framework in FRAMEWORKS:
            if (framework in OF_THE_BOOK and not options.book) or (framework in ON_MXNET and not options.mxnet):
                continue
            found = in_a_process(framework, seed, options)
            results.setdefault(framework, []).append(found)
            print(framework, json.dumps(found, ensure_ascii=False), flush=True)
    for framework, found in results.items():
        speed = statistics.median(each["tokens a second"] for each in found)
        print(f"{framework}: {speed:.0f} tokens a second; BLEU-2 {[each['BLEU-2'] for each in found]}")
    print(write("textbook-experiment", results, "tensorflow", "tf-keras", "keras"))


def in_a_process(framework: str, seed: int, options: argparse.Namespace) -> Any:
    python = str(options.mxnet) if framework in ON_MXNET else sys.executable
    words = ["--framework", framework, "--seed", str(seed), "--epochs", str(options.epochs)]
    if framework in OF_THE_BOOK:
        words += ["--book", str(options.book)]
    around = environment(MPLBACKEND="agg", TF_CPP_MIN_LOG_LEVEL="3")
    done = subprocess.run(
        command("frameworks.textbook_experiment", *words, python=python),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=around,
    )
    return json.loads(done.stdout.splitlines()[-1])


def run(framework: str, seed: int, epochs: int, book: Path | None) -> dict[str, Any]:
    text.named = not_the_corpus  # the phrasebook, whatever is in the cache
    package = {"book": "torch", "chapter": "torch", "mxnet-book": "mxnet"}.get(framework, framework)
    names: Any = importlib.import_module(f"dikkat.textbook.{package}")
    library, decoder = names, getattr(names, "Seq2SeqAttentionDecoder", None)
    if framework in OF_THE_BOOK:
        assert book is not None
        library = library_of(book, package) if framework in ("book", "mxnet-book") else names
        decoder = chapter_decoder(book, library, package)
    seeded(framework, seed)
    device = names.try_gpu()
    data, source, target = names.load_data_nmt(BATCH, STEPS)
    if framework == "mxnet-book":  # whose arrays are of floats, as MXNet makes them of lists
        data = Floats(data)
    encoder = library.Seq2SeqEncoder(len(source), SIZE, SIZE, LAYERS, DROPOUT)
    net = library.EncoderDecoder(encoder, decoder(len(target), SIZE, SIZE, LAYERS, DROPOUT))
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        library.train_seq2seq(net, data, RATE, epochs, target, device)
    # Of the last epoch, as the book prints it.
    found = re.search(r"([\d.]+) tokens/sec", said.getvalue())
    assert found is not None, said.getvalue()
    last = () if framework == "tensorflow" else (device,)
    translations = {
        sentence: library.predict_seq2seq(net, sentence, source, target, STEPS, *last)[0] for sentence in SENTENCES
    }
    scores = [names.bleu(translations[sentence], right, k=2) for sentence, right in SENTENCES.items()]
    mean = round(statistics.mean(scores), 4)
    measured = {"tokens a second": float(found[1]), "BLEU-2": mean, "seed": seed, "translations": translations}
    return measured | of_mxnet(framework)


class Floats:
    """Batches, in float32."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return ([each.astype("float32") for each in batch] for batch in self.batches)


def not_the_corpus(name: str) -> Any:
    raise CorpusError(f"{name}: this experiment is of the phrasebook")


def of_mxnet(framework: str) -> dict[str, Any]:
    """The versions of MXNet's interpreter, which are not those of the one that writes the record."""
    if framework not in ON_MXNET:
        return {}
    versions = {name: importlib.metadata.version(name) for name in ("mxnet", "numpy")}
    return {"versions": {"python": platform.python_version()} | versions}


def seeded(framework: str, seed: int) -> None:
    if framework == "tensorflow":
        import tensorflow as tf

        tf.keras.utils.set_random_seed(seed)
    elif framework in ON_MXNET:
        import mxnet as mx
        import numpy as np

        mx.npx.set_np()  # as the book's chapters begin

        mx.random.seed(seed)
        np.random.seed(seed)  # which MXNet's initialisers draw from
    else:
        import torch

        torch.manual_seed(seed)


def library_of(book: Path, package: str) -> Any:
    """The book's own library; what it imports for other chapters is not needed."""
    for needed, part in UNNEEDED.items():
        if importlib.util.find_spec(needed) is None:
            module, inner = types.ModuleType(needed), types.ModuleType(f"{needed}.{part}")
            setattr(module, part, inner)
            sys.modules |= {needed: module, f"{needed}.{part}": inner}
    sys.path.insert(0, str(book))
    library: Any = importlib.import_module(f"d2l.{package}")
    library.Animator = lambda *_, **__: types.SimpleNamespace(add=lambda *_: None)
    return library


def chapter_decoder(book: Path, library: Any, package: str) -> Any:
    """The decoder of the chapter on Bahdanau attention, from its page; cells without a tab are MXNet's."""
    page = next(book.glob("chapter_attention-mechanisms/bahdanau-attention.md")).read_text(encoding="utf-8")
    cells = re.findall(r"```\{\.python \.input[^}]*\}\n(?:#@tab (\w+)\n)?(.*?)```", page, re.S)
    tab_of = {"torch": "pytorch"}.get(package, package)
    cell = next(text for tab, text in cells if "class Seq2SeqAttentionDecoder" in text and (tab or "mxnet") == tab_of)
    scope = {"d2l": library, "AttentionDecoder": library.AttentionDecoder}
    if package == "mxnet":
        from mxnet import np, npx
        from mxnet.gluon import nn, rnn

        scope |= {"np": np, "npx": npx, "nn": nn, "rnn": rnn}
    elif package == "tensorflow":
        import tensorflow

        scope |= {"tf": tensorflow}
    else:
        import torch

        scope |= {"torch": torch, "nn": torch.nn}
    exec(cell, scope)
    return scope["Seq2SeqAttentionDecoder"]


if __name__ == "__main__":
    main()
