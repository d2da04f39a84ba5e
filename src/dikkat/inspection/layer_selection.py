"""The modules of a model whose attention is recorded, by name, number or pattern."""

import difflib
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn

Layers = int | str | Sequence[int | str]


def chosen(model: nn.Module, layers: Layers | None) -> dict[int | str | None, dict[str, nn.Module]]:
    """The chosen modules and all within them, by their names in the model, for each entry of `layers`.

    Args:
        model: Whose modules they are.
        layers: Names, whole numbers and patterns, as `dikkat.record` takes them; None for the whole model.

    Raises:
        TypeError: An entry of another kind.
        ValueError: An entry that no module has, with the nearest name; no entry.
    """
    named = {_uncompiled_name(path): module for path, module in model.named_modules()}
    if layers is None:
        return {None: named}
    entries = [layers] if isinstance(layers, int | str) else list(layers) if isinstance(layers, Sequence) else [layers]
    if not entries:
        raise ValueError("layers: got none; expected a name, a number or a pattern, or several in a list")
    found: dict[int | str | None, dict[str, nn.Module]] = {}
    for entry in entries:
        if type(entry) is int:
            roots = _numbered(entry, list(named))
        elif isinstance(entry, str):
            roots = _called(entry, list(named))
        else:
            raise TypeError(
                f"layers: got {entry!r}; expected a module's name, a whole number or a pattern such as '*.3'"
            )
        found[entry] = {name: module for name, module in named.items() if any(_is_within(name, root) for root in roots)}
    return found


def _uncompiled_name(path: str) -> str:
    """A module's name without what compilation adds."""
    return ".".join(part for part in path.split(".") if part != "_orig_mod")


def _is_within(name: str, root: str) -> bool:
    return not root or name == root or name.startswith(f"{root}.")


def _called(pattern: str, names: list[str]) -> set[str]:
    roots = {name for name in names if name == pattern or fnmatchcase(name, pattern)}
    if not roots:
        near = difflib.get_close_matches(pattern, names, n=1, cutoff=0.0)
        raise ValueError(f"layers: got {pattern!r}, which is no module's name; the nearest is {near[0]!r}")
    return roots


def _numbered(number: int, names: list[str]) -> set[str]:
    """The modules with this number in each of the model's outermost lists."""
    lists: dict[str, dict[int, str]] = {}
    for name in names:
        for prefix, index in _entries(name):
            lists.setdefault(prefix, {})[index] = name
    roots = {entries[number % len(entries)] for entries in lists.values() if -len(entries) <= number < len(entries)}
    if not roots:
        most = max(map(len, lists.values()), default=0)
        raise ValueError(f"layers: got {number}; expected {-most} to {most - 1}, the layers that there are" if most else
                         f"layers: got {number}; expected a name, as this model's modules have no numbers")  # fmt: skip
    return roots


def _entries(name: str) -> Iterator[tuple[str, int]]:
    """The list and the place in it, of a module that is an entry of an outermost list."""
    *parts, last = name.split(".")
    if last.isdecimal() and not any(part.isdecimal() for part in parts):
        yield ".".join(parts), int(last)
