"""The command `dikkat report`: prints versions, threads and caches for an issue."""

import os
import platform
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from dikkat import __version__
from dikkat.cli.app import Command, app
from dikkat.cli.messages import suggest

_PACKAGES = (
    "torch", "numpy", "numba", "llvmlite", "triton", "tokenizers", "safetensors", "pyarrow",
    "scikit-learn", "scipy", "sacrebleu", "matplotlib", "tensorflow", "tf_keras", "mxnet",
)  # fmt: skip
_VARIABLES = (
    "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MKL_NUM_THREADS", "NUMBA_CACHE_DIR", "DIKKAT_CACHE", "TRITON_INTERPRET",
)  # fmt: skip


@app.command(cls=Command, epilog="Example:\n\ndikkat report > report.txt")
def report() -> None:
    """Print versions, threads, implementations and caches of this machine, for an issue."""
    for title, lines in (
        ("system", _system()),
        ("versions", _versions()),
        ("environment", [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]),
        ("implementations of an additive call", _implementations()),
        ("caches", _caches()),
    ):
        print(title)
        print("\n".join(f"  {line}" for line in lines) or "  no variables are set")
    suggest("dikkat report > report.txt, and attach the file to an issue")


def _system() -> Iterator[str]:
    import torch

    yield f"{platform.python_implementation()} {platform.python_version()} on {platform.platform()}"
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield f"{usable} cores, {torch.get_num_threads()} threads, vectors: {torch.backends.cpu.get_cpu_capability()}"
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    yield f"CUDA {torch.version.cuda}: {', '.join(names)}" if names else "no CUDA device"


def _versions() -> Iterator[str]:
    yield f"dikkat {__version__}"
    for package in _PACKAGES:
        try:
            yield f"{package} {version(package)}"
        except PackageNotFoundError:
            yield f"{package}: not installed"


def _implementations() -> Iterator[str]:
    import torch

    import dikkat

    score = dikkat.scores.Additive(key_size=3, query_size=5, num_hiddens=7)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    query, key, value = (torch.zeros(2, 11, size, device=device) for size in (5, 3, 13))
    for implementation in dikkat.implementations(query, key, value, score=score.to(device)):
        status = "runs" if implementation.runs else "; ".join(implementation.reasons)
        yield f"{implementation.name}: {status}"


def _caches() -> Iterator[str]:
    import dikkat

    cache_dir = os.environ.get("NUMBA_CACHE_DIR")
    kernels = Path(cache_dir) if cache_dir else Path(dikkat.__file__).parent
    yield f"compiled kernels: {kernels}, {_describe_size(kernels.rglob('*.nb[ic]'))}"
    if find_spec("platformdirs") is None:
        yield "corpora: unknown folder, as platformdirs is not installed"
        return
    from dikkat.storage.cache import cache_folder

    corpora = cache_folder()
    yield f"corpora: {corpora}, {_describe_size(corpora.rglob('*'))}"


def _describe_size(paths: Iterable[Path]) -> str:
    sizes = [path.stat().st_size for path in paths if path.is_file()]
    return f"{len(sizes)} files, {sum(sizes) / 2**20:.1f} MiB"
