"""Where the time goes: torch.profiler over a forward and backward pass, (8, 1024, 1024, 128), d_v = 64, bfloat16.

    python -m benchmarks.attention.profiles FOLDER [--impl triton] [--device cuda]

Writes FOLDER/profile.txt, the kernels by their time, and FOLDER/trace.json.gz, for a trace viewer.
"""

import argparse
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.kit.cases import Case
from benchmarks.kit.peers import torch_ways

CASES = {"cuda": Case(8, 1024, 1024, 128, dtype="bfloat16"), "cpu": Case(8, 256, 256, 128)}
REPEATS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--impl", default="auto")
    parser.add_argument("--device", choices=list(CASES), default="cuda")
    arguments = parser.parse_args()
    case, cuda = CASES[arguments.device], arguments.device == "cuda"
    inputs = case.inputs()
    peer = torch_ways(case, inputs, arguments.device)[arguments.impl]()
    upstream = peer.array(inputs["upstream"])
    peer.forward()
    peer.both(upstream)
    if cuda:
        torch.cuda.synchronize()
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * cuda
    with profile(activities=activities, profile_memory=True) as seen:
        for _ in range(REPEATS):
            with record_function("forward alone"):
                peer.forward()
            with record_function("forward and backward"):
                peer.both(upstream)
        if cuda:
            torch.cuda.synchronize()
    by = "self_device_time_total" if cuda else "self_cpu_time_total"
    text = (
        f"{case.name}, {arguments.impl}, {REPEATS} passes each\n{seen.key_averages().table(sort_by=by, row_limit=30)}\n"
    )
    arguments.folder.mkdir(parents=True, exist_ok=True)
    (arguments.folder / "profile.txt").write_text(text)
    seen.export_chrome_trace(str(arguments.folder / "trace.json.gz"))
    print(text)


if __name__ == "__main__":
    main()
