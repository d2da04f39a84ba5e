"""A map of 10,000 × 10,000 weights in headless Chromium, drawn without a GPU: frames a second while it is dragged.

python -m benchmarks.translation.maps [--side 10000] [--write]
"""

import argparse
import json
import shutil
import subprocess
from typing import Any

from benchmarks.kit.processes import ROOT
from benchmarks.kit.report import spread, write

WEB = ROOT / "web" / "test"
SHOW = ROOT / "src" / "dikkat" / "show"
ROUNDS = 3  # fresh browsers


def main() -> None:
    """Print how smoothly a large map moves, and write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--side", type=int, default=10_000, help="queries, and keys")
    parser.add_argument("--write", action="store_true", help="keep the results")
    arguments = parser.parse_args()
    runs = [measured(arguments.side) for _ in range(ROUNDS)]
    results = [opening(runs, arguments.side), *(panning(runs, place) for place in range(len(runs[0]["rounds"])))]
    if arguments.write:
        print(write("maps", results))


def measured(side: int) -> dict[str, Any]:
    """Milliseconds of every frame, in a fresh browser."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("there is no chromium here")
    command = ["node", str(WEB / "pan.mjs"), str(SHOW / "living.js"), str(SHOW / "living.css"), chromium, str(side)]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    if found["wrong"]:
        raise SystemExit(f"the page complains: {found['wrong']}")
    return found


def opening(runs: list[dict[str, Any]], side: int) -> dict[str, Any]:
    """From the numbers to the whole map, and the longest time without a frame on the way."""
    found = {name: spread([run["opening"][name] for run in runs]) for name in ("first", "whole", "longest")}
    for name, each in found.items():
        print(f"{side} × {side}, {name}: {each['median']:.0f} ms, {each['min']:.0f} to {each['max']:.0f}")
    chromium = runs[0]["browser"]
    return {"part": "opening", "side": side, "canvas": runs[0]["canvas"], "chromium": chromium, "milliseconds": found}


def panning(runs: list[dict[str, Any]], place: int) -> dict[str, Any]:
    """Frames a second at one enlargement."""
    frames = [run["rounds"][place]["frames"] for run in runs]
    rates = spread([1000 * len(each) / sum(each) for each in frames])
    longest = spread([max(each) for each in frames])
    cell = runs[0]["rounds"][place]["cell"]
    print(f"a cell of {cell:.2g} pixels: {rates['median']:.0f} frames a second, the longest {longest['max']:.0f} ms")
    return {
        "part": "panning",
        "pixels_of_a_cell": cell,
        "frames_per_second": rates,
        "longest_frame_milliseconds": longest,
    }


if __name__ == "__main__":
    main()
