"""Compare the speed of this tree with another commit, for the rows of the README.

    python -m benchmarks.against COMMIT [--rounds 5] [--only NAME ...]

Each row runs in new processes, old, new, old, new ..., so that other load affects both alike. The result is the ratio
of a pair, new over old in seconds: its median and its spread. Kernels are compiled before the timing, and the answers
of both trees must agree.
"""

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.kit.memory import peak_growth
from benchmarks.kit.processes import ROOT, command, environment

# Answers of two commits differ by rounding, and sums over a training by more.
AGREE = 1e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("commit", help="what to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--row", choices=ROWS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        print(json.dumps(ROWS[options.row]()))
        return
    from benchmarks.kit.report import COMMIT, write

    results = load_rows(options.commit)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "old"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, options.commit], cwd=ROOT, check=True)
        try:
            for row in options.only:
                results[row] = {"at": COMMIT, **compare(row, tree, options.rounds)}
                print(row, json.dumps(results[row]), flush=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)
    print(write("against", {"commit": short(options.commit), "rows": results}, "numba", "scikit-learn"))


def short(commit: str) -> str:
    command_line = ["git", "rev-parse", "--short", commit]
    return subprocess.run(command_line, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def load_rows(commit: str) -> dict[str, Any]:
    """Load the rows of earlier runs of today against the same commit."""
    from benchmarks.kit.report import RESULTS

    path = RESULTS / f"against-{datetime.date.today().isoformat()}.json"
    record = json.loads(path.read_text())["results"] if path.exists() else {"commit": None}
    return dict(record["rows"]) if record["commit"] == short(commit) else {}


def compare(row: str, old: Path, rounds: int) -> dict[str, Any]:
    """Return the seconds of both trees, and the ratio of each pair of runs."""
    seconds: dict[str, list[float]] = {"old": [], "new": []}
    for turn in range(rounds + 1):
        answers = []
        for name, tree in (("old", old), ("new", ROOT)):
            result = run_in_process(row, tree)
            answers.append(result["answer"])
            if turn:  # the first time kernels are compiled
                seconds[name].append(result["seconds"])
        if abs(answers[0] - answers[1]) > AGREE * max(1.0, abs(answers[0])):
            return {"not_run": f"the answers differ: {answers[0]} and {answers[1]}"}
    ratios = [new / old for old, new in zip(seconds["old"], seconds["new"], strict=True)]
    return {
        "new over old": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
        **{name: {"median": statistics.median(result), "min": min(result)} for name, result in seconds.items()},
    }


def run_in_process(row: str, tree: Path) -> dict[str, float]:
    command_line, variables = (
        command("against", "HEAD", "--row", row),
        environment(tree / "src", TF_CPP_MIN_LOG_LEVEL="3"),
    )
    process = subprocess.run(command_line, env=variables, check=True, stdout=subprocess.PIPE, text=True, cwd=tree)
    return json.loads(process.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def timed(run: Callable[[], float], seconds: float = 4.0) -> dict[str, float]:
    """Return the median of the runs within `seconds`, without two warm-up runs."""
    run()
    answer, times, begin = run(), [], time.monotonic()
    while len(times) < 3 or time.monotonic() - begin < seconds:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return {"seconds": statistics.median(times), "answer": answer}


def importing() -> dict[str, float]:
    import torch  # noqa: F401 - what stays is what dikkat takes

    start = time.perf_counter()
    import dikkat  # noqa: F401

    return {"seconds": time.perf_counter() - start, "answer": 0.0}


def attention(kind: str, *, backward: bool) -> Callable[[], dict[str, float]]:
    """Return a row that calls `attend`."""

    def row() -> dict[str, float]:
        import torch

        import dikkat

        torch.manual_seed(0)
        score, *sizes = {
            "additive": (dikkat.scores.Additive(128, 128, 128), 8, 256, 128),
            "gaussian": (dikkat.scores.Gaussian(0.5), 1, 20_000, 3),
            "scaled dot": (dikkat.scores.ScaledDot(), 8, 256, 64),
        }[kind]
        tensors = [torch.randn(*sizes, requires_grad=backward) for _ in range(3)]

        def run() -> float:
            out = dikkat.attend(*tensors, score=score)
            if not backward:
                return float(out.mean())
            return float(torch.autograd.grad(out.square().sum(), tensors)[0].abs().mean())

        with torch.set_grad_enabled(backward):
            return timed(run)

    return row


def memory() -> dict[str, float]:
    """Return the peak memory, in MiB as `seconds`, of additive attention over 8,192 keys, forward and backward."""

    import torch

    import dikkat

    torch.manual_seed(0)
    score = dikkat.scores.Additive(64, 64, 64)

    def run(length: int) -> float:
        query, key, value = (torch.randn(1, length, 64, requires_grad=True) for _ in range(3))
        dikkat.attend(query, key, value, score=score).sum().backward()
        return float(query.grad.abs().mean())  # type: ignore[union-attr]

    run(512)
    answers = list[float]()
    growth = peak_growth(lambda: answers.append(run(8192)))
    return {"seconds": growth / 2**20, "answer": answers[0]}


def _trained() -> Any:
    from dikkat.translation import Settings, train
    from dikkat.translation.phrasebook import split

    settings = Settings(min_freq=1, embedding_size=256, hidden_size=256, dropout=0.1, batch_size=64, epochs=1)
    return train(settings, split()[0][:9600], progress=False)


def training() -> dict[str, float]:
    """Return the training time of 1,000 target tokens."""
    result = _trained()
    return {"seconds": 1e3 / result.tokens_per_second, "answer": result.epochs[-1].training_loss}


def searching(batch: int) -> Callable[[], dict[str, float]]:
    """Return a row of beam search over 64 sentences, together or one by one."""

    def row() -> dict[str, float]:
        from dikkat.translation import Search
        from dikkat.translation.phrasebook import split

        translator, search = _trained().translator, Search(beam=5)
        sources = [source for source, _ in split()[1]][:64]

        def run() -> float:
            groups = [translator.translate(sources[i : i + batch], search=search) for i in range(0, 64, batch)]
            return float(sum(len(t.target) for group in groups for t in group))

        return timed(run)

    return row


def demo() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        process = subprocess.run(
            [sys.executable, Path.cwd() / "examples" / "demo.py"],
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
        )
        seconds = time.perf_counter() - start
    bleu = next(line for line in process.stdout.splitlines() if line.startswith("BLEU"))
    return {"seconds": seconds, "answer": round(float(bleu.split("=")[1].split()[0]))}


def bandwidth() -> dict[str, float]:
    """Find the leave-one-out bandwidth of 10,000 points, which is not the default in all commits."""
    import numpy as np

    from dikkat.regression import NadarayaWatson

    rng = np.random.default_rng(0)
    x = rng.uniform(0, 5, (10_000, 1))
    y = 2 * np.sin(x[:, 0]) + x[:, 0] ** 0.8 + rng.normal(0, 0.5, 10_000)
    return timed(lambda: float(np.ravel(NadarayaWatson(bandwidth="loo").fit(x, y).bandwidth_)[0]))


def regression() -> dict[str, float]:
    """Fit and predict 100,000 × 100,000 rows, d = 3, float32."""
    import numpy as np

    from dikkat.regression import NadarayaWatson

    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, (100_000, 3)).astype(np.float32)
    y = np.sin(6 * x[:, 0]) + x[:, 1] * x[:, 2]
    return timed(lambda: float(NadarayaWatson(bandwidth=0.05).fit(x, y).predict(x).mean()))


def chapters() -> dict[str, float]:
    """Run the textbook's experiment on PyTorch for eight epochs."""
    import contextlib
    import io

    import torch

    from dikkat.textbook import torch as d2l

    torch.manual_seed(0)
    data, source, target = d2l.load_data_nmt(64, 10)
    encoder = d2l.Seq2SeqEncoder(len(source), 32, 32, 2, 0.1)
    net = d2l.EncoderDecoder(encoder, d2l.Seq2SeqAttentionDecoder(len(target), 32, 32, 2, 0.1))

    def run() -> float:
        with contextlib.redirect_stdout(io.StringIO()):
            d2l.train_seq2seq(net, data, 0.005, 8, target, d2l.try_gpu())
        return 0.0  # each run goes on from the one before

    return timed(run)


ROWS: dict[str, Callable[[], dict[str, float]]] = {
    "import dikkat": importing,
    "additive, forward": attention("additive", backward=False),
    "additive, forward and backward": attention("additive", backward=True),
    "additive, 8,192 keys, MiB": memory,
    "gaussian, forward": attention("gaussian", backward=False),
    "gaussian, forward and backward": attention("gaussian", backward=True),
    "scaled dot, forward": attention("scaled dot", backward=False),
    "training": training,
    "beam search of 64": searching(64),
    "beam search one by one": searching(1),
    "make demo": demo,
    "bandwidth of 10,000": bandwidth,
    "100,000 × 100,000": regression,
    "the textbook's experiment": chapters,
}


if __name__ == "__main__":
    main()
