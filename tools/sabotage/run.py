"""Make each change of changes.toml in a copy of the project, and say whether the tests notice.

    python tools/sabotage/run.py --json after.json
    python tools/sabotage/run.py causal-edge gru-reset-gradient
    python tools/sabotage/run.py --tests ../an-older-checkout --json before.json

A change is noticed ("red") when one of its runs of pytest fails; it is not ("green") when all pass. The working tree is
never written to. The copy is kept and brought up to date, so that kernels that are not touched are compiled once; so
are those of a change, for a second run of it with other tests.

Each run is a fork of this process, which has imported the large libraries once, but nothing of dikkat.
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
    """The list."""
    found: list[dict[str, Any]] = tomllib.loads(CHANGES.read_text(encoding="utf-8"))["change"]
    return found


def changed(text: str, change: dict[str, Any]) -> str:
    """A file's text with a change made in the function that it names.

    Raises:
        ValueError: there is no such function, or what is to be changed is not there once.
    """
    body: list[ast.stmt] = ast.parse(text).body
    for name in change["function"].split("."):
        found = [each for each in body if isinstance(each, _NAMED) and each.name == name]
        if not found:
            raise ValueError(f"{change['id']}: in {change['file']} there is no {change['function']}")
        body = found[-1].body  # behind its overloads
    lines = text.splitlines(keepends=True)
    before, own, behind = lines[: (a := found[-1].lineno - 1)], lines[a : (b := found[-1].end_lineno)], lines[b:]
    if (times := "".join(own).count(change["old"])) != 1:
        raise ValueError(f"{change['id']}: in {change['function']} its old text is there {times} times; expected once")
    return "".join([*before, "".join(own).replace(change["old"], change["new"]), *behind])


@functools.cache
def unknown_names(text: str) -> set[str]:
    """Names that a module reads and never binds: with one, a test would be red for the wrong reason."""
    tables = [top := symtable.symtable(text, "changed", "exec")]
    for table in tables:
        tables += table.get_children()
    bound = {each.get_name() for each in top.get_symbols() if each.is_assigned() or each.is_imported()}
    read = {each.get_name() for table in tables for each in table.get_symbols() if each.is_global()}
    return read - bound - set(dir(builtins))


def bring_up_to_date(copy: Path) -> None:
    """Copy what git knows of the project, with its times; what it no longer knows goes from src and tests."""
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
    """In a fork: pytest, as in a process of its own."""
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
    """Exit status, None after the limit; output; seconds of the processor."""
    with tempfile.TemporaryDirectory() as folder:
        output, end = Path(folder) / "output", time.monotonic() + limit
        child = os.fork()
        if not child:
            os.setsid()
            _test(arguments, tests, source, env, output)
        while True:
            done, status, usage = os.wait4(child, os.WNOHANG)
            if done:
                break
            if time.monotonic() > end:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
                _, _, usage = os.wait4(child, 0)
                return None, "", usage.ru_utime
            time.sleep(0.1)
        return os.waitstatus_to_exitcode(status), output.read_text(encoding="utf-8", errors="replace"), usage.ru_utime


def run(number: int, change: dict[str, Any], copy: Path, tests: Path, limit: float) -> dict[str, Any]:
    """Make a change, run its tests until one fails, and take the change back."""
    path = copy / "src" / "dikkat" / change["file"]
    original, status = path.read_bytes(), path.stat()
    # The same examples of Hypothesis each time; a test's own processes find the changed source too.
    env = {"PYTHONPATH": str(copy / "src"), "CI": "1"}
    if change["room"] == "cpu":  # compiled again; what others share is not to be mixed up with that
        env["NUMBA_CACHE_DIR"] = str(copy.with_name("kernels") / change["id"])
    if change["room"] == "gpu":
        env["TRITON_INTERPRET"] = "1"
    result = {"id": change["id"], "room": change["room"], "outcome": "green", "failed": None}
    seconds = 0.0
    try:
        path.write_bytes(changed(original.decode(), change).encode())
        # A time of its own, by which Python and Numba find what they have compiled of this change and no other.
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + (1 + number) * 10**9))
        for arguments in change["tests"]:
            code, output, spent = _run_tests(arguments, tests, copy / "src", env, limit)
            seconds += spent
            if code == pytest.ExitCode.NO_TESTS_COLLECTED:
                raise ValueError(f"{change['id']}: no test was selected by {arguments!r}")
            if code in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERNAL_ERROR):
                raise ValueError(f"{change['id']}: pytest did not run {arguments!r}: {output}")
            if code:
                named = _FAILED.search(output)
                result |= {"outcome": "red", "failed": named[1] if named else f"exit {code}"}
                break
            if code is None:
                result |= {"outcome": "slow", "failed": f"not over after {limit:.0f} s"}
                break
    finally:
        path.write_bytes(original)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return result | {"seconds": round(seconds, 1)}


def main() -> int:
    """Run, and show a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("ids", nargs="*", help="which changes; all, if none is named")
    parser.add_argument("--tests", type=Path, help="a checkout whose tests to run; this one's")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "dikkat-sabotage")
    parser.add_argument("--json", type=Path, help="where to write the results; what is there already is not run again")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for one run of pytest")
    given = parser.parse_args()
    known = {change["id"]: (number, change) for number, change in enumerate(changes())}
    if unknown := set(given.ids) - known.keys():
        parser.error(f"no such change: {', '.join(sorted(unknown))}")
    results: dict[str, dict[str, Any]] = {}
    if given.json and given.json.exists():
        results = {each["id"]: each for each in json.loads(given.json.read_text(encoding="utf-8"))}
    copy = given.work / "tree"
    bring_up_to_date(copy)
    os.environ["OMP_NUM_THREADS"] = "1"  # before the import below
    for name in _LARGE:
        importlib.import_module(name)
    for id_ in given.ids or known:
        if id_ in results and not given.ids:
            continue
        results[id_] = run(*known[id_], copy, (given.tests or copy).resolve(), given.limit)
        print("{outcome:6} {id:30} {room:12} {seconds:7.1f} s  {failed}".format(**results[id_]), flush=True)
        if given.json:
            text = json.dumps([results[each] for each in known if each in results], indent=1) + "\n"
            given.json.write_text(text, encoding="utf-8")
    green = [id_ for id_, each in results.items() if each["outcome"] != "red"]
    print(f"{len(results) - len(green)} of {len(results)} red; not: {', '.join(green) or 'none'}")
    return bool(green)


if __name__ == "__main__":
    sys.exit(main())
