"""Reading TOML documents, and writing a value as TOML in one line."""

import json
import tomllib
from collections.abc import Mapping
from typing import Any

from dikkat.errors import InputError


def read(text: str, where: str) -> dict[str, Any]:
    """Return the values of a TOML document by key; `where` is its name in errors.

    Example:
        >>> read("epochs 20", "mine.toml")
        Traceback (most recent call last):
            ...
        dikkat.errors.InputError: mine.toml: Expected '=' after a key in a key/value pair (at line 1, column 8); \
expected TOML, lines such as `epochs = 20`, and no key twice
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise InputError(f"{where}: nested too deeply") from None
    except ValueError as error:  # also for a number of 5,000 digits, which Python does not parse
        raise InputError(f"{where}: {error}; expected TOML, lines such as `epochs = 20`, and no key twice") from error


def written(value: str | float | Mapping[str, Any]) -> str:
    """Return a value as one line of TOML.

    Example:
        >>> print(written({"tsv": "letters of 1890.tsv", "first": 600}))
        {tsv = "letters of 1890.tsv", first = 600}
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {written(item)}" for key, item in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # allowed in JSON, but not in TOML
