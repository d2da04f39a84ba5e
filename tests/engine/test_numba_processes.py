"""The CPU kernels among threads, forks, installations that cannot be written to, and in memory: in fresh processes."""

import importlib
import inspect
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import dikkat
import processes
from dikkat._engine import addresses
from dikkat._engine.record import COMPILED, sources


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program with two threads, whatever the tests run with."""
    return processes.python(f"import torch\ntorch.set_num_threads(2)\n{code}", **environment)


ADDITIVE = "dikkat.scores.Additive(13, 13, 19)"
# A call of which each seed has its own numbers, and whether what comes is what should.
CALL = f"""
import dikkat

torch.manual_seed(0)
double = {ADDITIVE}.double()
single = {ADDITIVE}
single.load_state_dict(double.state_dict())

def call(seed, impl, score, n=67, m=131):
    generator = torch.Generator().manual_seed(seed)
    leaves = [torch.randn(2, length, 13, generator=generator) for length in (n, m, m)]
    leaves = [t.to(torch.float64 if score is double else torch.float32).requires_grad_() for t in leaves]
    out = dikkat.attend(*leaves, score=score, impl=impl)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), [*leaves, *score.parameters()])]

expected = [call(seed, "reference", double) for seed in range(40)]

def right(seed):
    came = call(seed, "numba", single)
    return all(torch.allclose(a.double(), b, rtol=1e-4, atol=1e-4) for a, b in zip(came, expected[seed]))

assert right(0)
"""

# A call of the kernel that is compiled soonest.
LOSS = """from dikkat.translation import linear_cross_entropy

features, weight, target = torch.randn(5, 7), torch.randn(11, 7), torch.tensor([0, 10, 3, 3, 1])
found = linear_cross_entropy(features, weight, None, target)
assert torch.allclose(found, torch.nn.functional.cross_entropy(features @ weight.t(), target), atol=1e-5)
"""


# A kernel that is compiled in no time, and a call of it.
SMALL = """
from numba import carray

from dikkat._engine.compile import Kernel

@Kernel
def kernel(zero):
    dtype = type(zero)

    def double(record):
        carray(record, 1, dtype)[0] *= 2

    return double
"""
CALL_OF_SMALL = """
import numpy as np

from small import kernel

numbers = np.array([21.0])
kernel(numbers.dtype)(numbers.ctypes.data)
assert numbers[0] == 42
"""


def small(folder: Path) -> str:
    """The folder, from which the kernel can now be imported."""
    (folder / "small.py").write_text(SMALL)
    return str(folder)


def test_two_threads_at_once() -> None:
    python(f"""{CALL}
import threading

found = []
together = threading.Barrier(2)
# Long enough that also threads that share a core take turns within a call.
torch.set_num_threads(1)
alone = [call(seed, "numba", single, 1031, 1031) for seed in range(2)]

def many(first):
    torch.set_num_threads(2)
    for seed in range(first, first + 20):
        together.wait()
        found.append(right(seed))
    for seed in (0, 1, 0, 1):
        came = call(seed, "numba", single, 1031, 1031)
        found.append(all(torch.allclose(a, b, rtol=1e-4, atol=1e-3) for a, b in zip(came, alone[seed])))

threads = [threading.Thread(target=many, args=(first,), daemon=True) for first in (0, 20)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert found == 48 * [True], found
""")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child() -> None:
    """It has none of the threads that its parent has used.

    The score has no matrices: a product in PyTorch's own library waits, on some processors, for threads that a forked
    child does not have.
    """
    python(f"""{CALL.replace(ADDITIVE, "dikkat.scores.Gaussian(3.0)")}
import multiprocessing

def child():
    raise SystemExit(0 if all(right(seed) for seed in range(3)) else 3)

for _ in range(2):
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(120)
    if process.exitcode is None:
        process.kill()
    assert process.exitcode == 0, process.exitcode
    assert right(1)  # and the parent goes on
""")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_looks_for_where_sequences_begin() -> None:
    """PyTorch's search starts threads, for few numbers too."""
    python("""
import multiprocessing

import dikkat

x, offsets, score = torch.randn(4, 300, 16), torch.tensor([0, 100, 300]), dikkat.scores.Gaussian()
ids = (torch.arange(300) >= 100).long().expand(4, 300)
calls = [
    lambda: dikkat.attend_ragged(x, x, x, offsets, score=score, impl="numba"),
    lambda: dikkat.attend(x, x, x, score=score, segment_ids=ids, impl="numba"),
]
expected = [call() for call in calls]
torch.testing.assert_close(*expected)

def child():
    raise SystemExit(0 if all(map(torch.equal, [call() for call in calls], expected)) else 3)

process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join(120)
if process.exitcode is None:
    process.kill()
assert process.exitcode == 0, process.exitcode
""")


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
@pytest.mark.parametrize(("length", "count"), [(0, 5), (7, 0), (7, 11)])
def test_a_search_is_pytorchs(lead: tuple[int, ...], length: int, count: int) -> None:
    torch.manual_seed(0)
    ordered, numbers = torch.randint(5, (*lead, length)).sort(-1).values, torch.randint(7, (*lead, count))
    for right in (False, True):
        came = addresses.searchsorted(ordered, numbers, right=right)
        torch.testing.assert_close(came, torch.searchsorted(ordered, numbers, right=right), rtol=0, atol=0)


def test_no_folder_for_compiled_kernels(tmp_path: Path) -> None:
    """A warning, once, that says what to set; and the right answer."""
    package = Path(dikkat.__file__).parent
    shutil.copytree(package, tmp_path / "dikkat", ignore=shutil.ignore_patterns("__pycache__"))
    # Nobody, not even root, makes a folder where there is a file.
    for kernel in (tmp_path / "dikkat").rglob("kernel.py"):
        (blocked := kernel.parent / "__pycache__").touch()
    done = python(
        f"""{LOSS}
import dikkat

assert dikkat.__file__.startswith({str(tmp_path)!r}), dikkat.__file__
""",
        PYTHONPATH=str(tmp_path),
        HOME=str(blocked),
        XDG_CACHE_HOME=str(blocked),
        LOCALAPPDATA=str(blocked),
    )
    warned = [line for line in done.stderr.splitlines() if "Warning:" in line]
    assert len(warned) == 1, done.stderr
    assert "NUMBA_CACHE_DIR" in warned[0]


def test_a_damaged_file_of_compiled_kernels(tmp_path: Path) -> None:
    """It is compiled again, with one warning, and the next process finds it whole."""
    for ending in (None, "nbi", "nbc", None):
        for path in tmp_path.rglob(f"*.{ending}"):
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        done = python(CALL_OF_SMALL, PYTHONPATH=small(tmp_path), NUMBA_CACHE_DIR=str(tmp_path / "kernels"))
        warned = [line for line in done.stderr.splitlines() if "Warning:" in line]
        assert len(warned) == (ending is not None), done.stderr
        assert all("damaged" in line and "compiled again" in line for line in warned)
    assert list(tmp_path.rglob("*.nbc"))


# One of two processes that want the same kernels at the same moment.
TOGETHER = """
import sys
import time
from pathlib import Path

import numpy as np

from small import kernel

Path(sys.argv[1], sys.argv[2]).touch()
while len(list(Path(sys.argv[1]).iterdir())) < 2:
    time.sleep(0.001)
for dtype in ("float32", "float64"):
    kernel(np.dtype(dtype))
"""


def test_one_process_compiles_and_the_others_find(tmp_path: Path) -> None:
    (tmp_path / "ready").mkdir()
    env = {"PYTHONPATH": small(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "kernels"), "NUMBA_DEBUG_CACHE": "1"}
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda number: processes.python(TOGETHER, tmp_path / "ready", number, **env), range(2)))
    said = "".join(each.stdout for each in done)
    assert said.count("data saved to") == 2
    assert said.count("data loaded from") == 2


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("options", ["", "causal=True, valid_lens=torch.tensor([4001])"])
def test_memory_grows_with_n_and_not_with_n_times_m(options: str) -> None:
    done = python(f"""
import dikkat
from pathlib import Path

def run(n):
    query, key, value = (torch.randn(1, n, 64, requires_grad=True) for _ in range(3))
    return query, key, value

def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

score = dikkat.scores.Additive(64, 64, 64)
options = dict({options})
query, key, value = (torch.randn(1, 4096, 64, requires_grad=True) for _ in range(3))
dikkat.attend(query[:, :61], key[:, :61], value[:, :61], score=score, impl="numba", causal=True).sum().backward()
before = memory("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
dikkat.attend(query, key, value, score=score, impl="numba", **options).sum().backward()
print(memory("VmHWM") - before)
""")
    mebibytes = float(done.stdout)
    assert 0 < mebibytes < 64  # a float32 for each pair is 64


PACKAGE = Path(dikkat.__file__).parent
KERNELS = [
    "dikkat." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if "layout(__name__)" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_known_by_all_sources_that_it_uses(name: str) -> None:
    used, left = {name}, [importlib.import_module(name)]
    while left:  # as Python itself has it: where what a module names was defined
        for value in vars(left.pop()).values():
            home = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
            if isinstance(home, str) and home.startswith(COMPILED) and home not in used:
                used.add(home)
                left.append(sys.modules[home])
    known = set(sources(name))
    assert used <= known
    assert not any(source.endswith(".launch") for source in known)
