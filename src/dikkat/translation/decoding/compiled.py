"""The search of a batch as one compiled call: where it runs, and on which weights."""

import logging
import math
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from dikkat.cpu.search.digest import digest
from dikkat.cpu.search.network import Network, Panels
from dikkat.cpu.search.run import Sentence, UnknownScoresError, search
from dikkat.errors import InputError
from dikkat.translation.decoding.beams import Hypothesis, unknown_scores
from dikkat.translation.decoding.options import DEFAULT, Search
from dikkat.translation.decoding.readers import Models, Reads, gathered
from dikkat.translation.errors import SettingsError
from dikkat.translation.text.tokenizer import UNKNOWN

_LOG = logging.getLogger("dikkat")


@runtime_checkable
class Described(Protocol):
    """A model that can say what it computes, and has its weights as a `torch.nn.Module` has them."""

    def network_obstacles(self) -> list[str]:
        """Why what it computes is not what its weights alone say; empty where it is."""

    def network(self) -> Network:
        """Its weights."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """What it learns."""

    def buffers(self) -> Iterator[Tensor]:
        """What it has beside that."""


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
    together, reasons = gathered(models), []
    if search.sample:
        reasons.append("samples are drawn, and nothing is searched")
    if search.precision == "bfloat16":
        reasons.append("the precision is bfloat16")
    if len(together) > 1:
        reasons.append(f"{len(together)} models translate together")
    for model in together:
        if not isinstance(model, Described):
            reasons.append(f"{type(model).__name__} does not say what it computes (network)")
        else:
            reasons += model.network_obstacles()
    if search.precision == "int8" and together[0].output_bias.dtype != torch.float32:
        reasons.append(f"int8 goes with weights of float32, and these are of {together[0].output_bias.dtype}")
    return reasons


def runnable(models: Sequence[Reads], search: Search) -> Described | None:
    """The model of which the compiled call can do this search; None where it cannot.

    Raises:
        SettingsError: A precision that no other way has.
    """
    first, reasons = models[0], explain(models, search)
    if not reasons and isinstance(first, Described):
        return first
    if search.precision == "int8":
        raise SettingsError(f"precision: got 'int8', which cannot run here: {'; '.join(reasons)}; expected 'float32'")
    return None


def translations(model: Described, sources: Sequence[Sequence[int]], wanted: Search) -> list[list[Hypothesis]]:
    """What `beam_search` returns.

    Args:
        model: What `runnable` returned.
        sources: Token numbers, at least one in each sentence.
        wanted: The search.

    Raises:
        InputError: Weights that hold NaN, or scores that are not numbers.
    """
    panels = panels_of(model, int8=wanted.precision == "int8")
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

_kept: "WeakKeyDictionary[Described, dict[bool, tuple[object, Panels]]]" = WeakKeyDictionary()
_lock = Lock()


def panels_of(model: Described, *, int8: bool) -> Panels:
    """A model's weights in panels: those that are kept, if not a bit of a weight has changed since they were made.

    They are kept beside the model, under itself, and not in it: a copy or an unpickled model has none, nor does
    a state dict hold them.
    """
    now = digest([*(parameter for _, parameter in model.named_parameters()), *model.buffers()])
    with _lock:
        found = _kept.setdefault(model, {}).get(int8)
        if found is None or found[0] != now:
            _check_numbers(model, int8=int8)
            panels = Panels(model.network(), int8)
            kind = "int8" if int8 else str(panels.dtype).removeprefix("torch.")
            _LOG.info("search: weights of %s packed into panels of %.1f MiB, kept", kind, panels.nbytes / 2**20)
            found = _kept[model][int8] = now, panels
        return found[1]


def _check_numbers(model: Described, *, int8: bool) -> None:
    """Whether weights are numbers, and of int8 those that have a scale finite ones."""
    for name, tensor in model.named_parameters():
        if bool(tensor.isnan().any()):
            raise InputError(
                f"{name}: got weights that are not numbers (NaN): they are damaged, or the model's training diverged. "
                "Train it again, with a lower learning rate"
            )
        if int8 and tensor.ndim == 2 and not math.isfinite(float(tensor.detach().abs().max())):
            raise InputError(f"{name}: got infinite weights, which have no scale for int8; expected finite ones")
