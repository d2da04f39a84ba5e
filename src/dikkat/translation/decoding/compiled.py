"""The search of a batch as one compiled call: where it runs, and on which weights."""

import logging
import math
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import NamedTuple, Protocol, cast, runtime_checkable

import torch
from torch import nn

from dikkat.cpu.search.network import Network, Panels
from dikkat.cpu.search.run import Sentence, UnknownScoresError, search
from dikkat.errors import InputError
from dikkat.masking import is_eager
from dikkat.translation.decoding.beams import Hypothesis, unknown_scores
from dikkat.translation.decoding.options import DEFAULT, Search
from dikkat.translation.decoding.readers import Models, Reads, gathered
from dikkat.translation.decoding.standing import Standing, keep, standing_of
from dikkat.translation.errors import SettingsError
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


class Ready(NamedTuple):
    """A model on whose weights alone a search can run, and how it stands."""

    model: Described
    standing: Standing


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
    standing = standing_of(model)
    if standing is None:
        model.eval()
    elif is_eager():
        return Ready(cast(Described, model), standing)
    if not (isinstance(model, Described) and isinstance(model, nn.Module)):
        return [f"{type(model).__name__} is no torch.nn.Module that says what it computes (network)"]
    return model.network_obstacles() or Ready(model, standing or keep(model))


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
    """A model's weights in panels: those that are kept, if not a bit of a weight has changed since they were made."""
    model, standing = ready
    now = standing.numbers.taken()
    found = standing.panels.get(int8)
    if found is not None and found[0] == now:
        return found[1]
    with _lock:  # threads that ask at once wait for one that makes them
        found = standing.panels.get(int8)
        if found is None or found[0] != now:
            _check_numbers(model, int8=int8)
            panels = Panels(model.network(), int8)
            kind = "int8" if int8 else str(panels.dtype).removeprefix("torch.")
            _LOG.info("search: weights of %s packed into panels of %.1f MiB, kept", kind, panels.nbytes / 2**20)
            found = standing.panels[int8] = now, panels
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
