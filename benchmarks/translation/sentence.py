"""One sentence: how near a search is to the speed of its weights, what int8 costs, and a translation in a new process.

    python -m benchmarks.translation.sentence [--model FOLDER] [--data FOLDER] [--seconds 20]

How it compares with the textbook's loop and JoeyNMT is in `speed.py --only decoding`. A step is timed on a network of
the size *real* with random weights. FOLDER of --model is a translator that was trained on Multi30k, of --data the
corpus, with val.en.gz and val.fr.gz; what needs one that is not given is left out.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.kit.processes import environment
from benchmarks.kit.report import spread, write
from dikkat.translation import Search, Settings, TranslationModel, Translator, beam_search, evaluate, read_aligned
from dikkat.translation.decoding.compiled import _panels
from dikkat.translation.text.tokenizer import END

LENGTH, STEPS = 13, 24
PRECISIONS = ("float32", "int8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0, help="of measuring, for each row")
    parser.add_argument("--out", type=Path, help="folder; default: print alone")
    arguments = parser.parse_args()
    records = [bound(precision, beam, arguments.seconds) for precision in PRECISIONS for beam in (1, 5)]
    if arguments.model:
        records.append(start(arguments.model))
        if arguments.data:
            records.append(quality(arguments.model, arguments.data))
    for record in records:
        print(record)
    if arguments.out:
        print(write("sentence", records, "numba", folder=arguments.out))


def bound(precision: Any, beam: int, seconds: float) -> dict[str, Any]:
    """A step's time beside that of reading its weights once, at the bandwidth measured in turn with it."""
    torch.manual_seed(0)
    sizes = {"embedding_size": 256, "hidden_size": 256, "bidirectional": False}
    model = TranslationModel(Settings(**sizes), 8000, 8000).eval()
    with torch.no_grad():
        model.output_bias[END] = -100.0  # so that all searches have as many steps
    source = torch.randint(4, 8000, (LENGTH,)).tolist()
    panels = _panels(model, int8=precision == "int8")
    step = panels.phases[panels.loop :]
    weights = int(step["stride"] @ step["blocks"])
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
        "seconds_a_step": spread(steps),
        "seconds_to_read_as_many_bytes": spread(reads),
        "of_the_bound": median(reads) / median(steps),
    }


def start(model: Path) -> dict[str, Any]:
    """From the command to the answer, in fresh processes, and importing PyTorch alone."""
    command = [sys.executable, "-m", "dikkat", "translate", str(model), "A man is walking in the park."]
    runs = [timed(lambda: run(command)) for _ in range(6)]
    torch_alone = [timed(lambda: run([sys.executable, "-c", "import torch"])) for _ in range(5)]
    with tempfile.TemporaryDirectory() as empty:
        cold = timed(lambda: run(command, NUMBA_CACHE_DIR=empty))
    return {"warm_seconds": spread(runs[1:]), "torch_seconds": spread(torch_alone), "cold_seconds": cold}


def run(command: list[str], **more: str) -> None:
    subprocess.run(command, env=environment() | more, check=True, stdout=subprocess.DEVNULL)


def quality(folder: Path, data: Path) -> dict[str, Any]:
    """BLEU of the validation pairs in float32 and int8, and the folders' sizes."""
    pairs, translator = list(read_aligned(data / "val.en.gz", data / "val.fr.gz")), Translator.load(folder)
    found: dict[str, Any] = {}
    for precision in PRECISIONS:
        search = Search(precision=precision)
        said = [each.target for each in translator.translate([source for source, _ in pairs], search=search)]
        found[f"bleu_{precision}"] = evaluate(said, [target for _, target in pairs]).bleu
    with tempfile.TemporaryDirectory() as place:
        small = Path(place) / "small"
        translator.save(small, int8=True)
        sizes = [sum(file.stat().st_size for file in each.iterdir()) for each in (small, folder)]
    return found | {"bytes_int8": sizes[0], "bytes_float32": sizes[1], "share": sizes[0] / sizes[1]}


def timed(action: Any) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
