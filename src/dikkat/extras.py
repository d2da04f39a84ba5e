"""Optional libraries: which extra installs each, and the message where one is missing."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

# The packages that each extra installs.
_EXTRAS = {
    "translation": {
        "typer", "rich", "tokenizers", "safetensors", "sacrebleu", "sacremoses", "regex", "pyarrow", "httpx",
        "platformdirs",
    },
    "textbook": {"tokenizers", "regex", "safetensors", "platformdirs", "httpx", "rich", "matplotlib", "pandas"},
    "transformers": {"transformers", "safetensors"},
    "datasets": {"datasets"},
    "serve": {"fastapi", "granian", "prometheus_client"},
    "show": {"matplotlib"},
    "notebook": {"anywidget", "jupyterlab"},
    "dask": {"dask"},
    "regression": {"sklearn", "scipy", "typer", "rich", "safetensors", "pyarrow", "matplotlib"},
}  # fmt: skip


def extra_of(package: str, *, first: str) -> str | None:
    """The extra that brings an imported package, or None; `first` is the one that is meant where several do."""
    return next((extra for extra in (first, *_EXTRAS) if package in _EXTRAS[extra]), None)


def missing(package: str, extra: str) -> str:
    """The message for a package that is not installed.

    Example:
        >>> missing("tokenizers", "translation")
        'tokenizers is not installed. Run: pip install ...[translation]"'
    """
    return f'{package} is not installed. Run: pip install {_source()}[{extra}]"'


def _source() -> str:
    """The beginning of what pip takes for this package: its sources or its wheel, or its name on an index."""
    folder = Path(__file__).parents[2]
    if (folder / "pyproject.toml").is_file():
        return f'-e "{folder}'
    told = next((each.read_text("direct_url.json") for each in distributions(name="dikkat")), None)  # none of an index
    url = urlsplit(json.loads(told)["url"] if told else "")
    return f'"{url2pathname(url.path)}' if url.scheme == "file" else '"dikkat'


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
