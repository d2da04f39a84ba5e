"""Selects the modules to record by name, index or pattern."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from dikkat.inspection.whole_numbers import as_python

Layers = int | str | Sequence[int | str]


@dataclass(frozen=True)
class LayerChoice:
    """The modules that an entry of `layers` selects.

    Attributes:
        number: Which run of the modules in `counted` is selected; None for all.
        modules: The modules by name, with all modules inside them.
        counted: Names of modules that may run several times, each time as a new layer.
    """

    number: int | None
    modules: dict[str, nn.Module]
    counted: frozenset[str] = frozenset()

    def includes(self, name: str, layer: int, layers: int | None = None) -> bool:
        """Return whether a call is selected. A negative number counts from `layers`; it may be any layer if None."""
        if name not in self.counted or self.number is None:
            return name in self.modules
        return self.number == layer or (self.number < 0 and (layers is None or self.number + layers == layer))


def select_layers(model: nn.Module, layers: Layers | None) -> dict[int | str | None, LayerChoice]:
    """Return the selected modules for each entry of `layers`, names, indices or patterns as in `dikkat.record`.

    Raises:
        TypeError: An entry has another type.
        ValueError: There are no entries, or no module matches an entry (the message suggests the nearest name).
    """
    modules = {uncompiled_name(path): module for path, module in model.named_modules()}
    if layers is None:
        return {None: LayerChoice(None, modules)}
    layers = as_python(layers)
    entries = [layers] if isinstance(layers, int | str) else list(layers) if isinstance(layers, Sequence) else [layers]
    if not entries:
        raise ValueError("layers: got none; expected a name, a number or a pattern, or several in a list")
    choices: dict[int | str | None, LayerChoice] = {}
    for entry in entries:
        counted_roots = set[str]()
        if type(entry) is int:
            roots, counted_roots = _match_number(entry, list(modules))
        elif isinstance(entry, str):
            roots = _match_names(entry, list(modules))
        else:
            raise TypeError(
                f"layers: got {entry!r}; expected a module's name, a whole number or a pattern such as '*.3'"
            )
        selected, counted = (
            {name: module for name, module in modules.items() if any(is_within(name, root) for root in group_roots)}
            for group_roots in (roots, counted_roots)
        )
        choices[entry] = LayerChoice(entry if type(entry) is int else None, selected | counted, frozenset(counted))
    return choices


def uncompiled_name(path: str) -> str:
    """Return a module's name without the prefix of `torch.compile`."""
    return ".".join(component for component in path.split(".") if component != "_orig_mod")


def is_within(name: str, root: str) -> bool:
    """Return whether a module is the module `root` or inside it."""
    return not root or name == root or name.startswith(f"{root}.")


def _match_names(pattern: str, names: list[str]) -> set[str]:
    roots = {name for name in names if name == pattern or fnmatchcase(name, pattern)}
    if not roots:
        nearest = difflib.get_close_matches(pattern, names, n=1, cutoff=0.0)
        raise ValueError(f"layers: got {pattern!r}; expected a module's name, such as {nearest[0]!r}")
    return roots


def _match_number(number: int, names: list[str]) -> tuple[set[str], set[str]]:
    """Return the modules with this index in each of the model's outermost lists, and modules that may run repeatedly.

    A list with one entry, or with fewer entries than the index, may be a layer that runs several times, as in ALBERT.
    """
    groups: dict[str, list[str]] = {}
    for name, (prefix, _) in list_entries(names).items():
        groups.setdefault(prefix, []).append(name)
    if not groups:
        raise ValueError(f"layers: got {number}; expected a name, as this model has no lists of modules")
    placed = {group[number] for group in groups.values() if len(group) > 1 and -len(group) <= number < len(group)}
    repeating = [
        group for group in groups.values() if len(group) == 1 or not (placed or -len(group) <= number < len(group))
    ]
    return placed, {name for group in repeating for name in group}


def list_entries(names: list[str]) -> dict[str, tuple[str, int]]:
    """Return the list and the index of each module that is an entry of one of the outermost lists."""
    entries = {}
    for name in names:
        *prefix, number = name.split(".")
        if number.isdecimal() and not any(component.isdecimal() for component in prefix):
            entries[name] = ".".join(prefix), int(number)
    return entries


class Numbering:
    """Counts the layers of a model as they run: first the index in the list, then the next layer for each repeat."""

    def __init__(self, names: list[str]) -> None:
        self._entries = list_entries(names)
        self._used_layers: dict[str, set[int]] = {}

    def restart(self) -> None:
        """Start a new run of the model."""
        self._used_layers.clear()

    def enter(self, name: str) -> int:
        """Return the number of the layer that starts with a module; −1 for modules outside the lists."""
        if name not in self._entries:
            return -1
        prefix, index = self._entries[name]
        used = self._used_layers.setdefault(prefix, set())
        layer = max(used) + 1 if index in used else index
        used.add(layer)
        return layer

    def within(self, name: str) -> int:
        """Return the index of the list entry that contains a module; −1 for none."""
        components = name.split(".")
        return next((self._entries[root][1] for k in range(len(components))
                     if (root := ".".join(components[: k + 1])) in self._entries), -1)  # fmt: skip


def gets_no_hooks(module: nn.Module) -> bool:
    """Return whether a module gets no hooks: a TorchScript module or one of PyTorch's leaf layers.

    Recurrences and scores run in compiled code only if their layers have no hooks.
    """
    is_leaf = type(module).__module__.startswith("torch.nn.modules.") and not module._modules
    return is_leaf or isinstance(module, torch.jit.ScriptModule)


def cached_length(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[int | None, bool]:
    """Return the length of a transformers cache for the module's layer, and if it may drop keys; None without one."""
    layer = getattr(module, "layer_idx", None)
    cache = next((arg for arg in arguments if hasattr(arg, "get_seq_length")), None)
    if cache is None or not isinstance(layer, int):
        return None, False
    try:
        length = int(cache.get_seq_length(layer))
    except (TypeError, ValueError):  # another kind of layer or cache
        return None, False
    drops = getattr(cache, "is_sliding", True)  # a list; transformers before 4.54 has none
    return length, drops[layer] if isinstance(drops, list) and layer < len(drops) else True
