"""Whether a model is as it was when it was last looked at: asked before every search, in microseconds.

What a search on the weights alone depends on is of three kinds, and each is asked in its own way: the modules with
their attributes, parameters and hooks, by identity; where the tensors lie and how, by their addresses and shapes; and
the numbers in them, by a fingerprint of their bits (`cpu/search/digest.py`), which no write escapes.
"""

from collections.abc import Callable
from itertools import chain
from operator import is_
from threading import Lock
from typing import Any, cast

from torch import nn

from dikkat import addresses
from dikkat.cpu.search.digest import Digest
from dikkat.cpu.search.network import Panels

_KEY = "_dikkat_standing"
"""Under which a model has its own; so that it goes with the model, whatever leads back from there to the model."""


class Standing:
    """A model as it is now, in evaluation mode.

    Args:
        model: On the CPU. An attribute of its modules that changes is replaced, and not written into.

    Attributes:
        panels: Its weights in panels, in int8 or not, and the fingerprints of the numbers that they were made of.
        numbers: What takes these, of all its parameters and buffers.
    """

    def __init__(self, model: nn.Module) -> None:
        self.panels: dict[bool, tuple[bytes, Panels]] = {}
        self._parts = list(model.modules())[1:]
        self._types = [type(model), *map(type, self._parts)]
        self._own_values = _own(model)
        self._dicts = [vars(part) for part in self._parts]
        every = [*self._own_values.values(), *chain.from_iterable(map(dict.values, self._dicts)), *_EVERYWHERE]
        inner = [value for value in every if isinstance(value, dict)]
        self._tables = [*self._dicts, *filter(None, inner)]
        self._empty = [table for table in inner if not table]
        self._names = self._all_names(self._own_values)
        self._values = list(self._all_values(self._own_values))
        self._methods = list(vars(type(model)).values())
        self._tensors = [*model.parameters(), *model.buffers()]
        self._places = addresses.places(self._tensors)
        self.numbers = Digest(self._tensors)

    def _all_names(self, own: dict[str, Any]) -> list[str]:
        return [*own, *chain.from_iterable(self._tables)]

    def _all_values(self, own: dict[str, Any]) -> Any:
        return chain(own.values(), chain.from_iterable(map(dict.values, self._tables)))

    def holds(self, model: nn.Module) -> bool:
        """Whether the model is still so, but for the numbers in its tensors."""
        own = _own(model)
        return (
            not any(self._empty)
            and [type(model), *map(type, self._parts)] == self._types
            and all(map(is_, map(vars, self._parts), self._dicts))
            # As many names as there were, so that no value is without another to be compared with.
            and self._all_names(own) == self._names
            and all(map(is_, self._all_values(own), self._values))
            and _same(vars(type(model)).values(), self._methods)
            and addresses.places(self._tensors) == self._places
        )

    def __reduce__(self) -> tuple[Callable[..., None], tuple[()]]:
        """A copy of a model, or one that is unpickled, has none."""
        return type(None), ()


def standing_of(model: object) -> Standing | None:
    """What is kept of a model that is as it was; None of any other."""
    found = getattr(model, "__dict__", {}).get(_KEY)
    if found is None or not isinstance(model, nn.Module):
        return None
    if found.holds(model):
        return cast(Standing, found)
    vars(model).pop(_KEY, None)  # with its panels, which nobody will ask for
    return None


def keep(model: nn.Module) -> Standing:
    """Look at a model whose weights say what it computes, and keep what it is like."""
    with _lock:  # threads that look at it at once share what they find
        found = vars(model)[_KEY] = standing_of(model) or Standing(model)
    return found


_lock = Lock()
_EVERYWHERE: tuple[dict[Any, Any], ...] = (
    nn.modules.module._global_forward_hooks,
    nn.modules.module._global_forward_pre_hooks,
)
"""Hooks of all modules."""


def _own(model: nn.Module) -> dict[str, Any]:
    """A model's attributes without what is kept here."""
    own = dict(vars(model))
    own.pop(_KEY, None)
    return own


def _same(values: Any, others: list[Any]) -> bool:
    return len(values) == len(others) and all(map(is_, values, others))
