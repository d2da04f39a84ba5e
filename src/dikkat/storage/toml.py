"""TOML: reading what a person wrote, and writing it in a line."""

import json
import tomllib
from collections.abc import Mapping
from typing import Any

from dikkat.errors import InputError


def read(text: str, where: str) -> dict[str, Any]:
    """The values of a TOML document by their keys; `where` is what an error calls it.

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
    except ValueError as error:  # also of a number with 5,000 digits, which Python does not read
        raise InputError(f"{where}: {error}; expected TOML, lines such as `epochs = 20`, and no key twice") from error


def written(value: str | float | Mapping[str, Any]) -> str:
    """A value as TOML has it in a line.

    Example:
        >>> print(written({"tsv": "letters of 1890.tsv", "first": 600}))
        {tsv = "letters of 1890.tsv", first = 600}
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {written(each)}" for key, each in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # but for that letter, JSON's are TOML's
