"""Optional libraries, the extras that install them, and messages for missing ones."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

# The packages of each extra.
_EXTRAS = {
    "translation": {
        "typer", "rich", "tokenizers", "safetensors", "sacrebleu", "sacremoses", "regex", "pyarrow", "httpx",
        "platformdirs",
    },
    "textbook": {"tokenizers", "regex", "safetensors", "platformdirs", "httpx", "rich", "matplotlib", "pandas"},
    "transformers": {"transformers", "safetensors", "pandas", "PIL"},
    "datasets": {"datasets"},
    "catalogues": {"polib", "lxml"},
    "serve": {"fastapi", "granian", "prometheus_client"},
    "show": {"matplotlib", "PIL"},
    "notebook": {"anywidget", "jupyterlab"},
    "dask": {"dask"},
    "regression": {"sklearn", "scipy", "pandas", "typer", "rich", "safetensors", "pyarrow", "matplotlib"},
}  # fmt: skip


def extra_of(package: str, *, first: str) -> str | None:
    """Return an extra that installs an imported package, or None; `first` is preferred if several do."""
    return next((extra for extra in (first, *_EXTRAS) if package in _EXTRAS[extra]), None)


def missing(package: str, extra: str) -> str:
    """Return the message for a package that is not installed.

    Example:
        >>> missing("tokenizers", "translation")
        'tokenizers is not installed. Run: pip install ...[translation]"'
    """
    return f'{package} is not installed. Run: pip install {_source()}[{extra}]"'


def _source() -> str:
    """Return the beginning of pip's argument for this package: its source folder, its wheel, or its name."""
    folder = Path(__file__).parents[2]
    if (folder / "pyproject.toml").is_file():
        return f'-e "{folder}'
    origin = next((dist.read_text("direct_url.json") for dist in distributions(name="dikkat")), None)  # None: an index
    url = urlsplit(json.loads(origin)["url"] if origin else "")
    return f'"{url2pathname(url.path)}' if url.scheme == "file" else '"dikkat'


@contextmanager
def require_extra(extra: str) -> Iterator[None]:
    """Wrap imports of an extra's packages, so that the error for a missing package contains the install command.

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
