"""One sentence: the search as one compiled call, int8, a translation in a new process, Ctrl-C, and ONNX.

    python -m benchmarks.translation.sentence --data FOLDER [--model FOLDER] [--joey PYTHON] [--only PART,...]
        [--size book|real] [--minutes 6] [--train-minutes 1] [--out FOLDER]

FOLDER of --data holds Multi30k (train, val and test_2016_flickr, .en.gz and .fr.gz), of --model a translator that was
trained on it; PYTHON is of an environment with JoeyNMT (`joey.py`). Parts that need what is not given say so. All of
them take under 15 minutes on two cores. Answers are compared before speeds, and what should be reached stands beside
what was.

    speed     sentences a second beside the textbook's loop and JoeyNMT, sizes book and real, float32 and int8
    bound     a step's time beside that of reading its weights once, at the bandwidth measured in turn with it
    same      1,000 test sentences, greedy and by beam: the compiled search's tokens and those of PyTorch's operations
    quality   BLEU of the validation pairs in float32 and int8, and the folders' sizes
    start     from the command to the answer in new processes, with kernels compiled before, and without any
    stop      how long after Ctrl-C a search ends
    onnx      tokens of 100 sentences by the graphs that `dikkat export` writes
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch

from benchmarks.kit.processes import ROOT, environment
from benchmarks.kit.report import spread, write
from benchmarks.translation import corpora, decoding
from benchmarks.translation.networks import LOOP, OURS, OURS_INT8
from dikkat.translation import Search, Settings, TranslationModel, Translator, beam_search, evaluate, read_aligned
from dikkat.translation.data.corpus import read_lines
from dikkat.translation.decoding import compiled
from dikkat.translation.text.tokenizer import END

Record = dict[str, Any]
LENGTH, STEPS = 13, 24
PRECISIONS = ("float32", "int8")
SAID = "A man is walking in the park."
# Of the loop's speed: by sentences, beam, size and precision. JoeyNMT's figure is for greedy search of 64.
_TIMES = {
    (1, 1, "real", OURS): 2.2, (1, 1, "real", OURS_INT8): 6, (1, 5, "real", OURS): 3, (1, 5, "real", OURS_INT8): 7,
    (1, 1, "book", OURS): 15, (1, 5, "book", OURS): 15, (64, 5, "real", OURS): 10, (64, 5, "real", OURS_INT8): 15,
}  # fmt: skip
_TIMES_JOEY = 1.5


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--joey", help="the Python of an environment with JoeyNMT")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PARTS), help="parts, by ','")
    parser.add_argument("--size", choices=["book", "real"], help="of the part speed: this one alone")
    parser.add_argument("--minutes", type=float, default=6.0, help="of measuring, in all")
    parser.add_argument("--train-minutes", type=float, default=1.0, help="of training before speeds are measured")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of PyTorch; default all")
    parser.add_argument("--out", type=Path, help="folder; default: print alone")
    arguments = parser.parse_args()
    arguments.seconds = 60 * arguments.minutes / 3
    torch.set_num_threads(arguments.threads)
    records: list[Record] = []
    for part in arguments.only:
        print(part, flush=True)
        made = [{"part": part, **record} for record in PARTS[part](arguments)]
        print(*made, sep="\n", flush=True)
        records += made
    if arguments.out:
        print(write("sentence", records, "numba", "onnxruntime", folder=arguments.out))


def missing(what: str) -> list[Record]:
    return [{"not_run": f"not given: {what}"}]


# --- speed


def speed(arguments: argparse.Namespace) -> list[Record]:
    """Rows of `decoding`, with what each is of the loop's."""
    sizes = [corpora.book()] if arguments.size != "real" else []
    if arguments.data and arguments.size != "book":
        sizes.append(corpora.real(arguments.data))
    records = []
    for corpus in sizes:
        name = corpus.sizes.name
        found = decoding.decoding(corpus, arguments)
        rates = {
            (record["who"], record["batch"], record["beam"]): record["sentences_per_second"]["median"]
            for record in found
            if "sentences_per_second" in record
        }
        for record in found:
            key = record["who"], record.get("batch"), record.get("beam")
            if key in rates and record["who"] != LOOP:
                record["times_the_loop"] = rates[key] / rates[(LOOP, *key[1:])]
                record |= against(record["times_the_loop"], _TIMES.get((key[1], key[2], name, key[0])))
            joey = rates.get((decoding.JOEY, *key[1:]))
            if record["who"] == OURS and joey:
                record["times_joey"] = rates[key] / joey
                if key[1:] == (64, 1):
                    record |= against(record["times_joey"], _TIMES_JOEY)
        records += [{"size": name, **record} for record in found]
    return records


def against(found: float, wanted: float | None, *, most: bool = False) -> Record:
    """What should be reached, and whether it was."""
    if wanted is None:
        return {}
    return {"wanted": wanted, "reached": found <= wanted if most else found >= wanted}


def bound(arguments: argparse.Namespace) -> list[Record]:
    return [step(precision, beam, arguments.seconds / 12) for precision in PRECISIONS for beam in (1, 5)]


def step(precision: Any, beam: int, seconds: float) -> Record:
    """A step of the size *real*, of random weights: one sentence."""
    torch.manual_seed(0)
    sizes = {"embedding_size": 256, "hidden_size": 256, "bidirectional": False}
    model = TranslationModel(Settings(**sizes), 8000, 8000).eval()
    with torch.no_grad():
        model.output_bias[END] = -100.0  # so that all searches have as many steps
    source = torch.randint(4, 8000, (LENGTH,)).tolist()
    ready = compiled.runnable([model], Search(precision=precision))
    assert ready is not None
    panels = compiled.panels_of(ready, int8=precision == "int8")
    phases = panels.phases[panels.loop :]
    weights = int(phases["stride"] @ phases["blocks"])
    memory = torch.ones(weights // 4)
    steps, reads, begun = [], [], time.perf_counter()
    while len(steps) < 5 or time.perf_counter() - begun < seconds:
        long, short = (
            timed(lambda most=most: beam_search(model, [source], Search(beam, max_length=most, precision=precision)))
            for most in (STEPS + 1, 1)
        )
        steps.append((long - short) / STEPS)
        reads.append(min(timed(memory.sum) for _ in range(5)))
    return {
        "precision": precision,
        "beam": beam,
        "bytes_a_step": weights,
        "bytes_a_second": weights / median(reads),
        "seconds_a_step": spread(steps),
        "seconds_to_read_as_many_bytes": spread(reads),
        "of_the_bound": median(reads) / median(steps),
    }


# --- answers


def same(arguments: argparse.Namespace) -> list[Record]:
    """Tokens of the compiled search and of one step after the other."""
    if not (arguments.model and arguments.data):
        return missing("--model and --data")
    translator = Translator.load(arguments.model)
    sentences = list(read_lines(arguments.data / "test_2016_flickr.en.gz"))
    sources = sorted((ids for ids in translator.source_tokenizer.numbers(sentences) if ids), key=len)
    records = []
    for beam in (1, 5):
        found = searched(translator.model, sources, beam)
        with mock.patch.object(compiled, "runnable", return_value=None):
            expected = searched(translator.model, sources, beam)
        equal = sum(one.ids == other.ids for one, other in zip(found, expected, strict=True))
        # Where they differ: how much less likely ours is, by the logarithm.
        worse = [other.score - one.score for one, other in zip(found, expected, strict=True) if one.ids != other.ids]
        record = {"beam": beam, "sentences": len(sources), "equal": equal, "less_likely": worse}
        records.append(record | against(equal, len(sources)))
    return records


def searched(model: TranslationModel, sources: list[list[int]], beam: int) -> list[Any]:
    groups = [sources[at : at + 64] for at in range(0, len(sources), 64)]
    return [best for group in groups for (best,) in beam_search(model, group, Search(beam))]


def quality(arguments: argparse.Namespace) -> list[Record]:
    if not (arguments.model and arguments.data):
        return missing("--model and --data")
    pairs = list(read_aligned(arguments.data / "val.en.gz", arguments.data / "val.fr.gz"))
    translator, found = Translator.load(arguments.model), {}
    for precision in PRECISIONS:
        search = Search(precision=precision)
        said = [each.target for each in translator.translate([source for source, _ in pairs], search=search)]
        found[precision] = evaluate(said, [target for _, target in pairs]).bleu
    with tempfile.TemporaryDirectory() as place:
        small = Path(place) / "small"
        translator.save(small, int8=True)
        sizes = [sum(file.stat().st_size for file in each.iterdir()) for each in (small, arguments.model)]
    lost, share = found["float32"] - found["int8"], sizes[0] / sizes[1]
    return [
        {"what": "BLEU that int8 costs", **found, "lost": lost, **against(lost, 0.2, most=True)},
        {"what": "folder of int8", "bytes": sizes, "share": share, **against(share, 0.3, most=True)},
    ]


def onnx(arguments: argparse.Namespace) -> list[Record]:
    """The script of the documentation beside the search; an export holds the numbers to 1e-5 itself."""
    if not (arguments.model and arguments.data):
        return missing("--model and --data")
    sys.path.append(str(ROOT / "docs"))
    import onnx_search

    translator = Translator.load(arguments.model)
    sources = translator.source_tokenizer.numbers(list(read_lines(arguments.data / "test_2016_flickr.en.gz"))[:100])
    with tempfile.TemporaryDirectory() as place:
        began = time.perf_counter()
        translator.export_onnx(Path(place) / "graphs")
        seconds, graphs = time.perf_counter() - began, onnx_search.Graphs(Path(place) / "graphs")
        records = []
        for beam in (1, 5):
            expected = searched(translator.model, sources, beam)
            equal = sum(
                onnx_search.translate(graphs, source, beam).ids == each.ids
                for source, each in zip(sources, expected, strict=True)
            )
            records.append({"beam": beam, "sentences": len(sources), "equal": equal, **against(equal, len(sources))})
    return [{"what": "export, checked against PyTorch", "seconds": seconds}, *records]


# --- processes


def start(arguments: argparse.Namespace) -> list[Record]:
    """From the command to the answer, in new processes; and importing PyTorch alone."""
    if not arguments.model:
        return missing("--model")
    command = [sys.executable, "-m", "dikkat", "translate", str(arguments.model), SAID]
    run(command)
    # In turn, so that a slow minute of the machine slows both.
    runs = [(timed(lambda: run(command)), timed(lambda: run([sys.executable, "-c", "import torch"]))) for _ in range(7)]
    with tempfile.TemporaryDirectory() as empty:
        cold = timed(lambda: run(command, NUMBA_CACHE_DIR=empty))
    warm, torch_alone = (spread(list(each)) for each in zip(*runs, strict=True))
    return [
        {"what": "warm", "seconds": warm, "torch_alone": torch_alone, **against(warm["median"], 1.0, most=True)},
        {"what": "cold", "seconds": cold, **against(cold, 5.0, most=True)},
    ]


def run(command: list[str], **more: str) -> None:
    subprocess.run(command, env=environment() | more, check=True, stdout=subprocess.DEVNULL)


def stop(arguments: argparse.Namespace) -> list[Record]:
    """Seconds from Ctrl-C to the end of a search of 64 long sentences."""
    torch.manual_seed(0)
    model = TranslationModel(Settings(embedding_size=256, hidden_size=512), 8000, 8000).eval()
    sources = torch.randint(4, 8000, (64, 60)).tolist()
    beam_search(model, sources[:1], Search(max_length=1))
    waited: list[float] = []
    while len(waited) < 15:
        pressed: list[float] = []

        def press(pressed: list[float] = pressed) -> None:
            pressed.append(time.perf_counter())
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(0.1 + 0.03 * len(waited), press)
        timer.start()
        try:
            beam_search(model, sources)
        except KeyboardInterrupt:
            waited.append(time.perf_counter() - pressed[0])
        else:
            raise ArithmeticError("the search was over before anybody pressed Ctrl-C")
        timer.join()
    return [{"what": "Ctrl-C", "seconds": spread(waited), **against(max(waited), 0.1, most=True)}]


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


PARTS: dict[str, Callable[[argparse.Namespace], list[Record]]] = {
    "speed": speed,
    "bound": bound,
    "same": same,
    "quality": quality,
    "start": start,
    "stop": stop,
    "onnx": onnx,
}


if __name__ == "__main__":
    main()
