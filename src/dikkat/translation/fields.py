"""Allowed values of a dataclass's fields, by their types and ranges: one check for `Settings` and for `Search`."""

import difflib
import math
import reprlib
import types
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from dikkat.translation.errors import SettingsError


class Range(NamedTuple):
    """The numbers that a field may hold, as metadata of its type: `Annotated[int, Range(1, 100)]`."""

    smallest: float  # the smallest one
    largest: float = math.inf  # the largest one
    open_below: bool = False  # whether `smallest` itself is not allowed
    open_above: bool = False  # whether `largest` itself is not allowed

    def holds(self, value: float) -> bool:
        """True for a number within; NaN and ∞ are in no range."""
        above = value > self.smallest if self.open_below else value >= self.smallest
        return above and value < math.inf and (value < self.largest if self.open_above else value <= self.largest)

    def __str__(self) -> str:
        if not self.open_below and not self.open_above and self.largest < math.inf:
            return f"from {self.smallest} to {self.largest}"
        least = f"{'greater than' if self.open_below else 'of at least'} {self.smallest}"
        if self.largest == math.inf:
            return least
        return f"{least} and {'less than' if self.open_above else 'at most'} {self.largest}"


class Allowed(NamedTuple):
    """The values that a field may hold."""

    kind: type  # `bool`, `int`, `float` or `str`
    choices: tuple[str, ...] = ()  # of a `str`, the texts
    range: Range | None = None  # of a number, its range
    optional: bool = False  # whether it may be None

    def holds(self, value: Any) -> bool:
        """True for a value that the field may hold."""
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


_FOUND: dict[type, dict[str, Allowed]] = {}


def allowed(cls: type) -> dict[str, Allowed]:
    """The values that each field of a dataclass may hold, from its type."""
    if cls not in _FOUND:
        hints = get_type_hints(cls, include_extras=True)
        _FOUND[cls] = {field.name: _allowed(hints[field.name]) for field in fields(cls)}
    return _FOUND[cls]


def _allowed(hint: Any) -> Allowed:
    if get_origin(hint) is Literal:
        return Allowed(str, choices=get_args(hint))
    if hint is bool:
        return Allowed(bool)
    kind, limits = get_args(hint)  # of Annotated, whose arguments are the type and its range
    kinds = [each for each in get_args(kind) or (kind,) if each is not types.NoneType]
    return Allowed(kinds[0], range=limits, optional=len(get_args(kind)) > 1)


def check(values: Any) -> None:
    """Check that every field of a dataclass holds what it may.

    Raises:
        SettingsError: one does not; the message names it, with what is allowed.
    """
    for name, each in allowed(type(values)).items():
        if not each.holds(value := getattr(values, name)):
            raise SettingsError(f"{name}: got {reprlib.repr(value)}; expected {each}")


def nearest(name: object, known: Sequence[str]) -> str:
    """A hint at what someone may have meant who wrote a name that is not known."""
    near = difflib.get_close_matches(str(name), known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
