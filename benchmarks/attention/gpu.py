"""Time calls on a GPU, compared with plain PyTorch and torch.compile, and the recording of a layer.

    python -m benchmarks.attention.gpu [--only calls] [--quick] [--minutes 3] [--out FOLDER]

Each answer, values and gradients, is compared with float64 first. Milliseconds of a call are measured in turn, by the
clock (consecutive calls until the last is complete) and by CUDA events. PyTorch's profiler gives the time and number of
kernels. Runs in one process; needs only PyTorch and Triton.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dikkat
from benchmarks.kit.cases import Case
from benchmarks.kit.peers import EAGER, running, torch_ways
from benchmarks.kit.report import RESULTS, spread, write
from benchmarks.kit.truth import truth
from benchmarks.kit.turns import TooLongError, at_most

Record = dict[str, Any]
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
PASSES = {False: "forward", True: "forward and backward"}
COMPILED = "torch.compile"
# The most important first: a run that is out of time skips the rest.
SHAPES = [(64, 1, 50, 512, 512), (8, 256, 256, 128, 64), (64, 50, 50, 512, 512)]
CASES = [
    *(Case(*shape, dtype=dtype) for shape in SHAPES for dtype in ("float32", "bfloat16")),
    Case(8, 1024, 1024, 128, 64, dtype="bfloat16"),
    Case(1, 8192, 8192, 64, 64, dtype="bfloat16"),
    Case(8, 1024, 1024, 128, 64),
]
QUICK = [Case(3, 1, 7, 16, 8), Case(2, 37, 41, 16, dtype="bfloat16")]
# Maximum seconds to compile one function, and seconds of a round of one entry.
PATIENCE, ROUND, ROUNDS = 25, 0.02, 9
# Warm-up calls, after which the program is cached and captured as a CUDA graph.
REPEATED = 5


def synchronize() -> None:
    if CUDA:
        torch.cuda.synchronize()


def timed(run: Callable[[], object], times: int) -> tuple[float, float]:
    """Return the milliseconds of a call by the clock, and by CUDA events."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2)) if CUDA else (None, None)
    synchronize()
    start = time.perf_counter()
    if first is not None:
        first.record()
    for _ in range(times):
        run()
    if last is not None:
        last.record()
    synchronize()
    wall = 1e3 * (time.perf_counter() - start) / times
    return wall, wall if first is None else first.elapsed_time(last) / times


def launched(run: Callable[[], object]) -> Record:
    """Count the kernels of a call, and sum their milliseconds."""
    activities = [torch.profiler.ProfilerActivity.CUDA if CUDA else torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        run()
        synchronize()
    kernels = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return {"launches": len(kernels), "kernels_ms": sum(e.device_time_total for e in kernels) / 1e3}


def in_turn(runs: dict[Any, Callable[[], object]], rounds: int) -> dict[Any, Record]:
    """Time each run in turn, by the clock and by events."""
    repeats = {key: max(1, min(200, int(1e3 * ROUND / timed(run, 3)[0]))) for key, run in runs.items()}
    samples: dict[Any, list[tuple[float, float]]] = {key: [] for key in runs}
    for _ in range(rounds):
        for key, run in runs.items():
            samples[key].append(timed(run, repeats[key]))
    results = {}
    for key, pairs in samples.items():
        wall, events = ([*values] for values in zip(*pairs, strict=True))
        results[key] = {"ms": spread(wall), "events_ms": spread(events)}
    return results


def entered(case: Case) -> tuple[dict[tuple[str, bool], Callable[[], object]], list[Record]]:
    """Return the implementations with correct answers, by name and pass, and a record of each failure."""
    inputs = case.inputs()
    reference = truth(case, inputs, DEVICE)
    participants = [EAGER, "auto", *(name for name in running(case, inputs, DEVICE) if name in ("products", "triton"))]
    if CUDA and case.shape in [shape[:4] for shape in SHAPES] and case.dtype == "bfloat16":  # slow to compile
        participants.append(COMPILED)
    peers = {who: make for who, make in torch_ways(case, inputs, DEVICE).items() if who in participants}
    runs: dict[tuple[str, bool], Callable[[], object]] = {}
    records = []
    for who, make in peers.items():
        record = {"section": "calls", **case.to_dict(), "who": who}
        try:
            with at_most(PATIENCE) if who == COMPILED else nullcontext():
                peer = make()
                upstream = peer.array(reference.upstream)
                *_, outputs = (peer.both(upstream) for _ in range(REPEATED))
                answer = dict(zip(["output", *case.leaves], map(peer.numpy, outputs), strict=True))
                wrong = [name for name, (error, allowed) in reference.errors(answer).items() if not error <= allowed]
                *_, forward = (peer.forward() for _ in range(REPEATED))
                if "output" in reference.errors({"output": peer.numpy(forward)}):
                    error, allowed = reference.errors({"output": peer.numpy(forward)})["output"]
                    wrong += ["forward"] if not error <= allowed else []
        except (RuntimeError, TooLongError) as error:
            records.append(record | {"not_run": str(error).partition("\n")[0] or type(error).__name__})
            continue
        if wrong:
            records.append(record | {"not_run": "disagrees with float64: " + ", ".join(wrong)})
            continue
        runs[who, False], runs[who, True] = peer.forward, lambda peer=peer, up=upstream: peer.both(up)  # type: ignore[misc]
    return runs, records


def calls(cases: list[Case], rounds: int, deadline: float) -> Iterator[Record]:
    for case in cases:
        if time.monotonic() > deadline:
            yield {"section": "calls", **case.to_dict(), "not_run": "no time was left"}
            continue
        runs, failures = entered(case)
        yield from failures
        times = in_turn(runs, rounds)
        for (who, backward), run in runs.items():
            record = {"section": "calls", **case.to_dict(), "who": who, "pass": PASSES[backward]}
            record |= times[who, backward] | launched(run)
            peer = times.get((EAGER, backward))
            comparison = "" if peer is None else f"{record['ms']['median'] / peer['ms']['median']:6.2f} × eager"
            print(
                f"{case.shape} {case.dtype:8} {record['pass']:21} {who:14} {record['ms']['median']:8.3f} ms, events "
                f"{record['events_ms']['median']:8.3f}, kernels {record['kernels_ms']:7.3f} "
                f"in {record['launches']:3} {comparison}",
                flush=True,
            )
            yield record
        del runs
        if CUDA:
            torch.cuda.empty_cache()


class Block(nn.Module):
    """A layer of GPT-2's shape."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(size), dikkat.MultiHeadAttention(size, heads)
        self.mlp = nn.Sequential(nn.LayerNorm(size), nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))

    def forward(self, x: Tensor) -> Tensor:
        normalised = self.norm(x)
        x = x + self.attn(normalised, normalised, normalised, causal=True)
        return x + self.mlp(x)


@torch.no_grad()
def recording(quick: bool, rounds: int) -> Record:
    """Compare a model that records sums and top-8 weights of one layer of twelve with the model alone."""
    tokens, size, heads, layers = (128, 48, 3, 3) if quick else (4096, 768, 12, 12)
    torch.manual_seed(1)
    model = nn.Sequential(*(Block(size, heads) for _ in range(layers))).to(DEVICE, torch.bfloat16).eval()
    x = torch.randn(1, tokens, size, device=DEVICE, dtype=torch.bfloat16)

    def recorded(x: Tensor = x) -> dikkat.Trace:
        with dikkat.record(model, layers=1, sums=True, top_k=8) as trace:
            model(x)
        return trace

    short, block = x[:, :128], model[1]
    record = recorded(short)["1.attn"]
    normalised = block.norm(model[0](short)).double()
    query, key, _ = nn.functional.linear(
        normalised, block.attn.in_proj_weight.double(), block.attn.in_proj_bias.double()
    ).chunk(3, -1)
    query, key = (projection.unflatten(-1, (heads, -1)).transpose(1, 2) for projection in (query, key))
    scores = query @ key.mT / (size // heads) ** 0.5
    hidden = torch.ones(short.shape[1], short.shape[1], dtype=torch.bool, device=DEVICE).triu(1)
    expected = scores.masked_fill(hidden, -float("inf")).softmax(-1)
    torch.testing.assert_close(record.sums.cpu().double(), expected.sum(-2).cpu(), rtol=3e-2, atol=3e-2)
    runs: dict[str, Callable[[], object]] = {"alone": lambda: model(x), "recorded": recorded}
    times = in_turn(runs, rounds)
    ratio = times["recorded"]["ms"]["median"] / times["alone"]["ms"]["median"]
    kernels = {name: launched(run) for name, run in runs.items()}
    print(f"recording {tokens} tokens: {ratio:.3f} × unrecorded; {kernels}", flush=True)
    return {"section": "recording", "tokens": tokens, "ratio": ratio} | {n: times[n] | kernels[n] for n in runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    sections = ["calls", "recording"]
    parser.add_argument(
        "--only", nargs="+", choices=sections, default=sections, metavar="PART", help="calls, recording"
    )
    parser.add_argument("--quick", action="store_true", help="tiny shapes and few rounds: does it run?")
    parser.add_argument("--minutes", type=float, default=3.0, help="after which no further shape is begun")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    deadline, rounds = time.monotonic() + 60 * arguments.minutes, 3 if arguments.quick else ROUNDS
    results: list[Record] = []
    name = f"{'-'.join(arguments.only)}-{torch.cuda.get_device_name().lower().replace(' ', '-') if CUDA else 'cpu'}"
    if "recording" in arguments.only:
        results.append(recording(arguments.quick, rounds))
    if "calls" in arguments.only:
        for record in calls(QUICK if arguments.quick else CASES, rounds, deadline):
            results.append(record)
            write(name, results, "triton", folder=arguments.out)  # keep the results of an interrupted run
    print(write(name, results, "triton", folder=arguments.out))


if __name__ == "__main__":
    main()
