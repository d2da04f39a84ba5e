"""The modules of a model whose attention is recorded, by name, number or pattern."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

Layers = int | str | Sequence[int | str]


@dataclass(frozen=True)
class Chosen:
    """The choice that an entry of `layers` makes.

    Attributes:
        number: Which run of the modules, where they run several times as a layer each; None for all.
        modules: The modules and all within them, by their names in the model.
        counted: Those of lists whose entries may run several times, of which `number` alone is chosen.
    """

    number: int | None
    modules: dict[str, nn.Module]
    counted: frozenset[str] = frozenset()

    def takes(self, name: str, layer: int, layers: int | None = None) -> bool:
        """Whether a call in a layer is chosen; from the end below 0, where it is known how many `layers` there are."""
        if name not in self.counted or self.number is None:
            return name in self.modules
        return self.number == layer or (self.number < 0 and (layers is None or self.number + layers == layer))


def chosen(model: nn.Module, layers: Layers | None) -> dict[int | str | None, Chosen]:
    """The chosen modules and all within them, for each entry of `layers`.

    Args:
        model: Whose modules they are.
        layers: Names, whole numbers and patterns, as `dikkat.record` takes them; None for the whole model.

    Raises:
        TypeError: An entry of another kind.
        ValueError: An entry that no module has, with the nearest name; no entry.
    """
    named = {uncompiled_name(path): module for path, module in model.named_modules()}
    if layers is None:
        return {None: Chosen(None, named)}
    entries = [layers] if isinstance(layers, int | str) else list(layers) if isinstance(layers, Sequence) else [layers]
    if not entries:
        raise ValueError("layers: got none; expected a name, a number or a pattern, or several in a list")
    found: dict[int | str | None, Chosen] = {}
    for entry in entries:
        counted = set[str]()
        if type(entry) is int:
            roots, counted = _numbered(entry, list(named))
        elif isinstance(entry, str):
            roots = _called(entry, list(named))
        else:
            raise TypeError(
                f"layers: got {entry!r}; expected a module's name, a whole number or a pattern such as '*.3'"
            )
        of_roots, of_counted = (
            {name: module for name, module in named.items() if any(is_within(name, root) for root in each)}
            for each in (roots, counted)
        )
        found[entry] = Chosen(entry if type(entry) is int else None, of_roots | of_counted, frozenset(of_counted))
    return found


def uncompiled_name(path: str) -> str:
    """A module's name without what compilation adds."""
    return ".".join(part for part in path.split(".") if part != "_orig_mod")


def is_within(name: str, root: str) -> bool:
    """Whether a module is another, or in it."""
    return not root or name == root or name.startswith(f"{root}.")


def _called(pattern: str, names: list[str]) -> set[str]:
    roots = {name for name in names if name == pattern or fnmatchcase(name, pattern)}
    if not roots:
        near = difflib.get_close_matches(pattern, names, n=1, cutoff=0.0)
        raise ValueError(f"layers: got {pattern!r}, which is no module's name; the nearest is {near[0]!r}")
    return roots


def _numbered(number: int, names: list[str]) -> tuple[set[str], set[str]]:
    """The modules with this number in each of the model's outermost lists; and those that may run until they have it.

    A list of one entry, or of fewer than the number, may be a layer that runs several times, as ALBERT's does.
    """
    lists: dict[str, list[str]] = {}
    for name, (prefix, _) in entries_of(names).items():
        lists.setdefault(prefix, []).append(name)
    if not lists:
        raise ValueError(f"layers: got {number}; expected a name, as this model's modules have no numbers")
    placed = {each[number] for each in lists.values() if len(each) > 1 and -len(each) <= number < len(each)}
    counted = [each for each in lists.values() if len(each) == 1 or not (placed or -len(each) <= number < len(each))]
    return placed, {name for each in counted for name in each}


def entries_of(names: list[str]) -> dict[str, tuple[str, int]]:
    """The modules that are entries of a model's outermost lists: the list, and the place in it."""
    found = {}
    for name in names:
        *parts, last = name.split(".")
        if last.isdecimal() and not any(part.isdecimal() for part in parts):
            found[name] = ".".join(parts), int(last)
    return found


class Numbering:
    """Counts the layers of a model as they run: an entry of a list has its place, and runs again as the next layer."""

    def __init__(self, names: list[str]) -> None:
        self._entries = entries_of(names)
        self._taken: dict[str, set[int]] = {}

    def restart(self) -> None:
        """The model runs anew."""
        self._taken.clear()

    def enter(self, name: str) -> int:
        """The number of the layer that a module begins; −1 where it is no entry of a list."""
        if name not in self._entries:
            return -1
        prefix, place = self._entries[name]
        taken = self._taken.setdefault(prefix, set())
        layer = max(taken) + 1 if place in taken else place
        taken.add(layer)
        return layer

    def within(self, name: str) -> int:
        """The place of the entry that a module is within, of which nothing else is known."""
        parts = name.split(".")
        return next((self._entries[root][1] for k in range(len(parts))
                     if (root := ".".join(parts[: k + 1])) in self._entries), -1)  # fmt: skip
