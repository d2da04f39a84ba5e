"""Checks of the fields of `Settings` and `Search` by their annotated types and ranges."""

import difflib
import math
import reprlib
import types
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from dikkat.translation.errors import SettingsError


class Range(NamedTuple):
    """Allowed numbers of a field, as metadata of its type: `Annotated[int, Range(1, 100)]`."""

    smallest: float
    largest: float = math.inf
    open_below: bool = False
    open_above: bool = False

    def holds(self, value: float) -> bool:
        """Return whether the range contains the number; no range contains NaN or ∞."""
        is_above = value > self.smallest if self.open_below else value >= self.smallest
        return is_above and value < math.inf and (value < self.largest if self.open_above else value <= self.largest)

    def __str__(self) -> str:
        if not self.open_below and not self.open_above and self.largest < math.inf:
            return f"from {self.smallest} to {self.largest}"
        lower_bound = f"{'greater than' if self.open_below else 'of at least'} {self.smallest}"
        if self.largest == math.inf:
            return lower_bound
        return f"{lower_bound} and {'less than' if self.open_above else 'at most'} {self.largest}"


class Allowed(NamedTuple):
    """Allowed values of a field: numbers in a range, one of several texts, or a bool."""

    kind: type
    choices: tuple[str, ...] = ()
    range: Range | None = None
    optional: bool = False

    def holds(self, value: Any) -> bool:
        """Return whether the field may have the value."""
        if value is None:
            return self.optional
        if isinstance(value, bool) or self.kind is bool:
            return isinstance(value, bool) and self.kind is bool
        if self.range is None:
            return value in self.choices
        return isinstance(value, int if self.kind is int else (int, float)) and self.range.holds(value)

    def __str__(self) -> str:
        if self.range is not None:
            text = f"a {'whole ' if self.kind is int else ''}number {self.range}"
        else:
            text = f"one of {', '.join(self.choices)}" if self.choices else "true or false"
        return f"{text}, or none" if self.optional else text


_ALLOWED: dict[type, dict[str, Allowed]] = {}


def allowed(cls: type) -> dict[str, Allowed]:
    """Return the allowed values of each field of a dataclass by its name, from the field's type."""
    if cls not in _ALLOWED:
        hints = get_type_hints(cls, include_extras=True)
        _ALLOWED[cls] = {field.name: _parse_hint(hints[field.name]) for field in fields(cls)}
    return _ALLOWED[cls]


def _parse_hint(hint: Any) -> Allowed:
    if get_origin(hint) is Literal:
        return Allowed(str, choices=get_args(hint))
    if hint is bool:
        return Allowed(bool)
    kind, limits = get_args(hint)  # Annotated[type, Range]
    kinds = [choice for choice in get_args(kind) or (kind,) if choice is not types.NoneType]
    return Allowed(kinds[0], range=limits, optional=len(get_args(kind)) > 1)


def check(values: Any) -> None:
    """Check that every field of a dataclass has an allowed value.

    Raises:
        SettingsError: A field has another value; the message names it and the allowed values.
    """
    for name, allowed_values in allowed(type(values)).items():
        if not allowed_values.holds(value := getattr(values, name)):
            raise SettingsError(f"{name}: got {reprlib.repr(value)}; expected {allowed_values}")


def nearest(name: object, known: Sequence[str]) -> str:
    """Return the question whether the most similar known name was meant, or else the list of known names."""
    matches = difflib.get_close_matches(str(name), known, n=1)
    return f"did you mean {matches[0]}?" if matches else f"there are {', '.join(known)}"
