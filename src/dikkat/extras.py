"""Libraries that are not there, and how to get them."""

from collections.abc import Iterator
from contextlib import contextmanager

# Of each extra, the packages that it is the way to get.
_EXTRAS = {
    "translation": {
        "typer",
        "rich",
        "tokenizers",
        "safetensors",
        "sacrebleu",
        "yaml",
        "pyarrow",
        "httpx",
        "platformdirs",
        "filelock",
        "huggingface_hub",
    },
    "datasets": {"datasets"},
    "show": {"matplotlib"},
    "regression": {"sklearn", "scipy", "typer", "rich", "safetensors", "pyarrow", "matplotlib"},
}


def extra_of(package: str, *, first: str) -> str | None:
    """The extra that brings a package, or None.

    Args:
        package: its name, as it is imported.
        first: the extra that is meant where several bring it.
    """
    return next((extra for extra in (first, *_EXTRAS) if package in _EXTRAS[extra]), None)


def missing(package: str, extra: str) -> str:
    """What to do where a package is not installed.

    dikkat is on no package index, so that pip needs to be told where its sources are.

    Example:
        >>> missing("tokenizers", "translation")
        "tokenizers is not installed; in the folder of dikkat's sources, run: pip install '.[translation]'"
    """
    return f"{package} is not installed; in the folder of dikkat's sources, run: pip install '.[{extra}]'"


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Imports that need an extra: what is missing is said with how to get it.

    Raises:
        ModuleNotFoundError: a package of the extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS[extra]:
            raise
        raise ModuleNotFoundError(missing(package, extra), name=error.name) from error
