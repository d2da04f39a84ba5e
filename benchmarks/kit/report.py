"""The machine, versions and commit of a measurement, and its file."""

import datetime
import json
import os
import platform
import statistics
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks.kit.processes import ROOT

RESULTS = ROOT / "benchmarks" / "results"


def _git(*arguments: str) -> str:
    try:
        process = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # a machine that was sent the source tree alone
        return ""
    return process.stdout.strip()


# Of the code that was imported: by the time that a long run writes its record, another commit may be checked out.
COMMIT = (_git("rev-parse", "--short", "HEAD") or "unknown") + (
    "+changes" if _git("status", "--porcelain", "src") else ""
)


def spread(samples: list[float]) -> dict[str, float]:
    """Median, minimum and maximum."""
    return {"median": statistics.median(samples), "min": min(samples), "max": max(samples), "runs": len(samples)}


def environment(*packages: str) -> dict[str, Any]:
    """Machine, versions, the commit at the start of the run, and the date."""
    return {
        "date": datetime.date.today().isoformat(),
        "commit": COMMIT,
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "python": platform.python_version(),
        "versions": {name: installed for name in ("torch", "numpy", *packages) if (installed := _version(name))},
    }


def write(name: str, results: Any, *packages: str, folder: Path = RESULTS) -> Path:
    """Write benchmarks/results/<name>-<date>.json."""
    machine = environment(*packages)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{machine['date']}.json"
    path.write_text(json.dumps({"environment": machine, "results": results}, indent=2, ensure_ascii=False) + "\n")
    return path


def write_cases(name: str, what: str, cases: dict[str, Any], *packages: str) -> Path:
    """Write the results of cases, with those of other cases that the same commit measured on the same day."""
    machine = environment(*packages)
    path = RESULTS / f"{name}-{machine['date']}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if record.get("environment", {}).get("commit") == machine["commit"]:
        cases = {**record["results"]["cases"], **cases}
    return write(name, {"what": what, "cases": cases}, *packages)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
