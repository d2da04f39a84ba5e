"""Make each change of changes.toml in a copy of the project, and say whether the tests notice.

    python tools/sabotage/run.py --json after.json
    python tools/sabotage/run.py causal-edge gru-reset-gradient

A change is noticed ("red") when one of its runs of pytest fails; it is not ("green") when all pass. The working tree is
never written to. The copy is kept and brought up to date, so that kernels that are not touched are compiled once.
"""

import argparse
import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CHANGES = Path(__file__).with_name("changes.toml")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_NOTHING_RAN = 5  # pytest's exit code


def changes() -> list[dict[str, Any]]:
    """The list."""
    found: list[dict[str, Any]] = tomllib.loads(CHANGES.read_text(encoding="utf-8"))["change"]
    return found


def changed(text: str, change: dict[str, Any]) -> str:
    """A file's text with a change made.

    Raises:
        ValueError: what is to be changed is not there, or not once.
    """
    if (times := text.count(change["old"])) != 1:
        raise ValueError(f"{change['id']}: in {change['file']} its old text is there {times} times; expected once")
    return text.replace(change["old"], change["new"])


def bring_up_to_date(copy: Path) -> None:
    """Copy what git knows of the project, with its times; what it no longer knows goes from src and tests."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
    for name in names:
        source, target = ROOT / name, copy / name
        if not target.exists() or target.stat().st_mtime_ns != source.stat().st_mtime_ns:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    for folder in ("src", "tests"):
        for file in (copy / folder).rglob("*.py"):
            if str(file.relative_to(copy)) not in names:
                file.unlink()
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(copy / "src")], check=True)


def run(change: dict[str, Any], copy: Path, limit: float) -> dict[str, Any]:
    """Make a change, run its tests until one fails, and take the change back."""
    path = copy / "src" / "dikkat" / change["file"]
    original, status = path.read_bytes(), path.stat()
    env = os.environ | {
        "PYTHONPATH": str(copy / "src"),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",  # a change of the same length would find the bytecode of another
        "CI": "1",  # the same examples of Hypothesis each time
    }
    if change["room"] == "cpu":  # compiled again; what others share is not to be mixed up with that
        env["NUMBA_CACHE_DIR"] = str(copy.with_name("kernels") / change["id"])
    if change["room"] == "gpu":
        env["TRITON_INTERPRET"] = "1"
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime, time.monotonic()
    result: dict[str, Any] = {"id": change["id"], "room": change["room"], "outcome": "green", "failed": None}
    try:
        path.write_bytes(changed(original.decode(), change).encode())
        # Always the same time, so that a second run finds the kernels of the first.
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
        for arguments in change["tests"]:
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *shlex.split(arguments)]
            try:
                done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, timeout=limit)
            except subprocess.TimeoutExpired:
                result |= {"outcome": "red", "failed": f"not over after {limit:.0f} s"}
                break
            if done.returncode == _NOTHING_RAN:
                raise ValueError(f"{change['id']}: no test was selected by {arguments!r}")
            if done.returncode:
                named = _FAILED.search(done.stdout)
                result |= {"outcome": "red", "failed": named[1] if named else f"exit {done.returncode}"}
                break
    finally:
        path.write_bytes(original)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    return result | {"user_seconds": round(spent, 1), "seconds": round(time.monotonic() - begun, 1)}


def main() -> int:
    """Run, and show a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("ids", nargs="*", help="which changes; all, if none is named")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "dikkat-sabotage")
    parser.add_argument("--json", type=Path, help="where to write the results; what is there already is not run again")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for one run of pytest")
    given = parser.parse_args()
    known = {change["id"]: change for change in changes()}
    if unknown := set(given.ids) - known.keys():
        parser.error(f"no such change: {', '.join(sorted(unknown))}")
    results: dict[str, dict[str, Any]] = {}
    if given.json and given.json.exists():
        results = {each["id"]: each for each in json.loads(given.json.read_text(encoding="utf-8"))}
    copy = given.work / "tree"
    bring_up_to_date(copy)
    for id_ in given.ids or known:
        if id_ in results and not given.ids:
            continue
        results[id_] = run(known[id_], copy, given.limit)
        print("{outcome:6} {id:30} {room:12} {user_seconds:7.1f} s  {failed}".format(**results[id_]), flush=True)
        if given.json:
            text = json.dumps([results[each] for each in known if each in results], indent=1) + "\n"
            given.json.write_text(text, encoding="utf-8")
    green = [id_ for id_, each in results.items() if each["outcome"] == "green"]
    print(f"{len(results) - len(green)} of {len(results)} red; green: {', '.join(green) or 'none'}")
    return bool(green)


if __name__ == "__main__":
    sys.exit(main())
