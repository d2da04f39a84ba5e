"""Make each deliberate fault of changes.toml in a copy of the project, and report whether the tests fail.

    python tools/sabotage/run.py --json after.json
    python tools/sabotage/run.py causal-edge gru-reset-gradient
    python tools/sabotage/run.py --tests ../an-older-checkout --json before.json

A change is "red" if one of its pytest runs fails, and "green" if all pass. The working tree is never modified. The copy
is kept and updated, so that unchanged kernels are compiled once, and kernels of a change once for all its runs.

Each run is a fork of this process, which has imported the large libraries but not dikkat.
"""

import argparse
import ast
import builtins
import contextlib
import functools
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import symtable
import sys
import tempfile
import time
import tomllib
import traceback
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CHANGES = Path(__file__).with_name("changes.toml")
_LARGE = ("torch", "numba", "sklearn.base", "scipy.stats", "pyarrow", "tokenizers", "typer")
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def changes() -> list[dict[str, Any]]:
    """Return the changes of changes.toml."""
    entries: list[dict[str, Any]] = tomllib.loads(CHANGES.read_text(encoding="utf-8"))["change"]
    return entries


def changed(text: str, change: dict[str, Any]) -> str:
    """Return the text of a file with a change in the function that it names.

    Raises:
        ValueError: If there is no such function, or it does not contain the old text exactly once.
    """
    body: list[ast.stmt] = ast.parse(text).body
    for name in change["function"].split("."):
        definitions = [node for node in body if isinstance(node, _NAMED) and node.name == name]
        if not definitions:
            raise ValueError(f"{change['id']}: in {change['file']} there is no {change['function']}")
        body = definitions[-1].body  # after its overloads
    start, end, lines = definitions[-1].lineno - 1, definitions[-1].end_lineno, text.splitlines(keepends=True)
    before, function, after = lines[:start], lines[start:end], lines[end:]
    if (times := "".join(function).count(change["old"])) != 1:
        raise ValueError(f"{change['id']}: got its old text {times} times in {change['function']}; expected once")
    return "".join([*before, "".join(function).replace(change["old"], change["new"]), *after])


@functools.cache
def unknown_names(text: str) -> set[str]:
    """Return the names that a module reads and never binds; they would fail a test for the wrong reason."""
    tables = [top := symtable.symtable(text, "changed", "exec")]
    for table in tables:
        tables += table.get_children()
    bound = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    read = {symbol.get_name() for table in tables for symbol in table.get_symbols() if symbol.is_global()}
    return read - bound - set(dir(builtins))


def update_copy(copy: Path) -> None:
    """Copy the files of git with their times, and delete other Python files from src and tests."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
    for name in names:
        source, target = ROOT / name, copy / name
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    for folder in ("src", "tests"):
        for file in (copy / folder).rglob("*.py"):
            if str(file.relative_to(copy)) not in names:
                file.unlink()


def _test(arguments: str, tests: Path, source: Path, env: dict[str, str], output: Path) -> None:
    """Run pytest and exit; called in a fork."""
    with output.open("wb") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    os.environ.update(env)
    os.chdir(tests)
    sys.path.insert(0, str(source))
    try:
        code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *shlex.split(arguments)]))
    except BaseException:
        traceback.print_exc()
        code = int(pytest.ExitCode.INTERNAL_ERROR)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run_tests(
    arguments: str, tests: Path, source: Path, env: dict[str, str], limit: float
) -> tuple[int | None, str, float]:
    """Return the exit status (None after the limit), the output, and the seconds of CPU time."""
    with tempfile.TemporaryDirectory() as folder:
        output, end = Path(folder) / "output", time.monotonic() + limit
        child = os.fork()
        if not child:
            os.setsid()
            _test(arguments, tests, source, env, output)
        while True:
            pid, status, usage = os.wait4(child, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > end:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
                _, _, usage = os.wait4(child, 0)
                return None, "", usage.ru_utime
            time.sleep(0.1)
        return os.waitstatus_to_exitcode(status), output.read_text(encoding="utf-8", errors="replace"), usage.ru_utime


def run(number: int, change: dict[str, Any], copy: Path, tests: Path, limit: float) -> dict[str, Any]:
    """Make a change, run its tests until one fails, and undo the change."""
    path = copy / "src" / "dikkat" / change["file"]
    original, status = path.read_bytes(), path.stat()
    # CI: deterministic examples of Hypothesis. PYTHONPATH: subprocesses of tests find the changed source too.
    env = {"PYTHONPATH": str(copy / "src"), "CI": "1"}
    if change["room"] == "cpu":  # a separate cache for the changed kernels
        env["NUMBA_CACHE_DIR"] = str(copy.with_name("kernels") / change["id"])
    if change["room"] == "gpu":
        env["TRITON_INTERPRET"] = "1"
    result = {"id": change["id"], "room": change["room"], "outcome": "green", "failed": None}
    seconds = 0.0
    try:
        path.write_bytes(changed(original.decode(), change).encode())
        # A distinct time for each change, by which Python and Numba find its compiled code.
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + (1 + number) * 10**9))
        for arguments in change["tests"]:
            code, output, spent = _run_tests(arguments, tests, copy / "src", env, limit)
            seconds += spent
            if code == pytest.ExitCode.NO_TESTS_COLLECTED:
                raise ValueError(f"{change['id']}: no test was selected by {arguments!r}")
            if code in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERNAL_ERROR):
                raise ValueError(f"{change['id']}: pytest did not run {arguments!r}: {output}")
            if code:
                failed = _FAILED.search(output)
                result |= {"outcome": "red", "failed": failed[1] if failed else f"exit {code}"}
                break
            if code is None:
                result |= {"outcome": "slow", "failed": f"not finished after {limit:.0f} s"}
                break
    finally:
        path.write_bytes(original)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return result | {"seconds": round(seconds, 1)}


def main() -> int:
    """Run the changes and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("ids", nargs="*", help="changes to run; by default all")
    parser.add_argument("--tests", type=Path, help="checkout with the tests to run; by default this one")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "dikkat-sabotage")
    parser.add_argument("--json", type=Path, help="file for the results; changes with a result are not run again")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for one run of pytest")
    options = parser.parse_args()
    known = {change["id"]: (number, change) for number, change in enumerate(changes())}
    if unknown := set(options.ids) - known.keys():
        parser.error(f"unknown changes: {', '.join(sorted(unknown))}")
    results: dict[str, dict[str, Any]] = {}
    if options.json and options.json.exists():
        results = {result["id"]: result for result in json.loads(options.json.read_text(encoding="utf-8"))}
    copy = options.work / "tree"
    update_copy(copy)
    os.environ["OMP_NUM_THREADS"] = "1"  # before the import below
    for name in _LARGE:
        importlib.import_module(name)
    for id_ in options.ids or known:
        if id_ in results and not options.ids:
            continue
        results[id_] = run(*known[id_], copy, (options.tests or copy).resolve(), options.limit)
        print("{outcome:6} {id:30} {room:12} {seconds:7.1f} s  {failed}".format(**results[id_]), flush=True)
        if options.json:
            text = json.dumps([results[key] for key in known if key in results], indent=1) + "\n"
            options.json.write_text(text, encoding="utf-8")
    green = [id_ for id_, result in results.items() if result["outcome"] != "red"]
    print(f"{len(results) - len(green)} of {len(results)} red; not: {', '.join(green) or 'none'}")
    return bool(green)


if __name__ == "__main__":
    sys.exit(main())
