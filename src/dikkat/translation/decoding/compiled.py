"""The search of a batch as one compiled call: where it runs, and on which weights."""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import is_
from threading import Lock
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import torch
from torch import nn

from dikkat import addresses
from dikkat.addresses import is_eager
from dikkat.cpu.search.network import Network, Panels
from dikkat.cpu.search.run import Sentence, UnknownScoresError, search
from dikkat.errors import InputError
from dikkat.snapshot import Writes
from dikkat.translation.decoding.beams import Hypothesis, unknown_scores
from dikkat.translation.decoding.options import DEFAULT, Search
from dikkat.translation.decoding.readers import Models, Reads, gathered
from dikkat.translation.errors import SettingsError
from dikkat.translation.network.model import COMPILED
from dikkat.translation.text.tokenizer import UNKNOWN

_LOG = logging.getLogger("dikkat")


@runtime_checkable
class Described(Protocol):
    """A `torch.nn.Module` that can say what it computes, as its modules, their attributes and their tensors are."""

    def network_obstacles(self) -> list[str]:
        """Why what it computes is not what its weights alone say; empty where it is."""

    def network(self) -> Network:
        """Its weights."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """What it learns."""


class Compiled:
    """What is kept of a model for its searches, and how the model was when that was made.

    Args:
        model: On the CPU, in evaluation mode. What its modules have is replaced, and not written into.

    Attributes:
        panels: Its weights in panels, by whether they are in int8.
    """

    def __init__(self, model: nn.Module) -> None:
        self.panels: dict[bool, Panels] = {}
        # Without the model itself, which then goes without the collector of garbage.
        self._parts = list(model.modules())[1:]
        self._types = list(map(type, self._parts))
        inner = [vars(part)[name] for part in model.modules() for name in _TABLES]
        self._tables: list[dict[str, Any]] = [*map(vars, self._parts), *inner, *_EVERYWHERE]
        self._values = self._present(model)
        self._tensors = [*model.parameters(), *model.buffers()]
        self._starts = addresses.starts(self._tensors)
        self._writes = Writes(self._tensors)

    def _present(self, model: nn.Module) -> list[Any]:
        own = dict(vars(model))
        own.pop(COMPILED, None)
        return [*own.values(), *chain.from_iterable(map(dict.values, self._tables))]

    def fits(self, model: nn.Module) -> bool:
        """Whether the model has the same modules, attributes, tensors and hooks, and no write has been counted."""
        now = self._present(model)
        return (
            len(now) == len(self._values)
            and all(map(is_, now, self._values))
            and list(map(type, self._parts)) == self._types
            and self._writes.none(self._tensors)
            and addresses.starts(self._tensors) == self._starts  # which `.to()` changes without a count
        )

    def __reduce__(self) -> tuple[Callable[..., None], tuple[()]]:
        """A copy of a model, or one that is unpickled, has none."""
        return type(None), ()


_TABLES = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks")
_EVERYWHERE: tuple[dict[Any, Any], ...] = (
    nn.modules.module._global_forward_hooks,
    nn.modules.module._global_forward_pre_hooks,
)
"""Hooks of all modules."""


class Ready(NamedTuple):
    """A model on whose weights alone a search can run, and what is kept of it."""

    model: Described
    compiled: Compiled


def explain(models: Models, search: Search = DEFAULT) -> list[str]:
    """Why a search takes step after step in PyTorch's operations, and does not run as one compiled call.

    Args:
        models: As of `beam_search`.
        search: The search.

    Returns:
        The reasons; none where it is one call.

    Example:
        >>> from dikkat.translation import Search, Settings, TranslationModel
        >>> model = TranslationModel(Settings(embedding_size=3, hidden_size=4), source_size=11, target_size=13)
        >>> explain(model, Search(beam=3))
        []
        >>> explain(model, Search(sample=True))
        ['samples are drawn, and nothing is searched']
    """
    return _examined(gathered(models), search)[0]


def _examined(together: Sequence[Reads], search: Search) -> tuple[list[str], Ready | None]:
    """The reasons of `explain`; and the first of the models, where that can do a search of its own."""
    reasons = []
    if search.sample:
        reasons.append("samples are drawn, and nothing is searched")
    if search.precision == "bfloat16":
        reasons.append("the precision is bfloat16")
    if len(together) > 1:
        reasons.append(f"{len(together)} models translate together")
    found = [_looked_at(model) for model in together]
    for each in found:
        reasons += each if isinstance(each, list) else []
    if search.precision == "int8" and together[0].output_bias.dtype != torch.float32:
        reasons.append(f"int8 goes with weights of float32, and these are of {together[0].output_bias.dtype}")
    return reasons, found[0] if isinstance(found[0], Ready) else None


def _looked_at(model: Reads) -> Ready | list[str]:
    """A model that can do a search of its own, or why it cannot. One that is as it was is not looked at again."""
    kept = vars(model).get(COMPILED) if isinstance(model, nn.Module) else None
    if kept is not None and is_eager():
        if kept.fits(cast(nn.Module, model)):
            return Ready(cast(Described, model), kept)
        vars(model).pop(COMPILED, None)  # with its panels, which nobody will ask for
    model.eval()
    if not (isinstance(model, Described) and isinstance(model, nn.Module)):
        return [f"{type(model).__name__} is no torch.nn.Module that says what it computes (network)"]
    if reasons := model.network_obstacles():
        return reasons
    with _lock:  # threads that look at it at once share what they find
        kept = vars(model).get(COMPILED)
        if kept is None or not kept.fits(model):
            kept = vars(model)[COMPILED] = Compiled(model)
    return Ready(model, kept)


def runnable(models: Sequence[Reads], search: Search) -> Ready | None:
    """The model of which the compiled call can do this search, in evaluation mode; None where it cannot.

    Raises:
        SettingsError: A precision that no other way has.
    """
    reasons, ready = _examined(models, search)
    if not reasons:
        return ready
    if search.precision == "int8":
        raise SettingsError(f"precision: got 'int8', which cannot run here: {'; '.join(reasons)}; expected 'float32'")
    return None


def translations(ready: Ready, sources: Sequence[Sequence[int]], wanted: Search) -> list[list[Hypothesis]]:
    """What `beam_search` returns.

    Args:
        ready: What `runnable` returned.
        sources: Token numbers, at least one in each sentence.
        wanted: The search.

    Raises:
        InputError: A token that the model does not have, weights that hold NaN, or scores that are not numbers.
    """
    panels = panels_of(ready, int8=wanted.precision == "int8")
    least, most, known = min(map(min, sources)), max(map(max, sources)), len(panels.tensors["source_table"])
    if least < 0 or most >= known:
        came = least if least < 0 else most
        raise InputError(f"sources: got token {came}; expected 0 to {known - 1}, the model's source vocabulary")
    sentences = [
        # Without attention nobody could say which word to put in the place of an unknown one.
        Sentence(source, panels.attends and UNKNOWN in source, wanted.fewest(len(source)), wanted.most(len(source)))
        for source in sources
    ]
    try:
        found = search(panels, sentences, wanted.beam, wanted.n_best, wanted.length_penalty)
    except UnknownScoresError:
        raise unknown_scores() from None
    hypotheses = []
    for source, group in zip(sources, found, strict=True):
        alike = 1 / len(source)
        hypotheses.append(
            [
                Hypothesis(
                    each.ids,
                    each.total,
                    torch.full((len(each.ids), len(source)), alike) if each.weights is None else each.weights,
                    each.finished,
                )
                for each in group
            ]
        )
    return hypotheses


# --- weights in panels, kept with the model

_lock = Lock()


def panels_of(ready: Ready, *, int8: bool) -> Panels:
    """A model's weights in panels, made for the first search."""
    model, kept = ready
    if found := kept.panels.get(int8):
        return found
    with _lock:  # threads that ask at once wait for one that makes them
        found = kept.panels.get(int8)
        if found is None:
            _check_numbers(model, int8=int8)
            found = Panels(model.network(), int8)
            kind = "int8" if int8 else str(found.dtype).removeprefix("torch.")
            _LOG.info("search: weights of %s packed into panels of %.1f MiB, kept", kind, found.nbytes / 2**20)
            kept.panels[int8] = found
        return found


def _check_numbers(model: Described, *, int8: bool) -> None:
    """Whether weights are numbers, and of int8 those that have a scale finite ones."""
    for name, tensor in model.named_parameters():
        addresses.check(name, tensor, "cpu")  # a storage that was given back would end the process
        if bool(tensor.isnan().any()):
            raise InputError(
                f"{name}: got weights that are not numbers (NaN): they are damaged, or the model's training diverged. "
                "Train it again, with a lower learning rate"
            )
        if int8 and tensor.ndim == 2 and not math.isfinite(float(tensor.detach().abs().max())):
            raise InputError(f"{name}: got infinite weights, which have no scale for int8; expected finite ones")
