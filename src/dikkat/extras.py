"""Optional libraries: which extra installs each, and the message where one is missing."""

from collections.abc import Iterator
from contextlib import contextmanager

# The packages that each extra installs.
_EXTRAS = {
    "translation": {
        "typer", "rich", "tokenizers", "safetensors", "sacrebleu", "pyarrow", "httpx", "platformdirs",
        "huggingface_hub",
    },
    "textbook": {"tokenizers", "safetensors", "platformdirs", "httpx", "rich", "matplotlib", "pandas"},
    "transformers": {"transformers", "safetensors"},
    "datasets": {"datasets"},
    "onnx": {"onnx", "onnxruntime"},
    "serve": {"fastapi", "uvicorn", "prometheus_client", "limits"},
    "show": {"matplotlib"},
    "notebook": {"anywidget"},
    "dask": {"dask"},
    "regression": {"sklearn", "scipy", "typer", "rich", "safetensors", "pyarrow", "matplotlib"},
}  # fmt: skip


def extra_of(package: str, *, first: str) -> str | None:
    """The extra that brings a package, or None.

    Args:
        package: Its name, as it is imported.
        first: The extra that is meant where several bring it.
    """
    return next((extra for extra in (first, *_EXTRAS) if package in _EXTRAS[extra]), None)


def missing(package: str, extra: str) -> str:
    """The message for a package that is not installed.

    dikkat is on no package index, so that pip needs to be told where its sources or its wheel are.

    Example:
        >>> missing("tokenizers", "translation")
        "tokenizers is not installed; run pip install '.[translation]' in the folder of dikkat's sources, or \
pip install 'WHEEL[translation]' with the path of its wheel"
    """
    return (
        f"{package} is not installed; run pip install '.[{extra}]' in the folder of dikkat's sources, or "
        f"pip install 'WHEEL[{extra}]' with the path of its wheel"
    )


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Wrap imports that need an extra, so that the error for a missing package says how to install it.

    Raises:
        ModuleNotFoundError: A package of the extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS[extra]:
            raise
        raise ModuleNotFoundError(missing(package, extra), name=error.name) from error
