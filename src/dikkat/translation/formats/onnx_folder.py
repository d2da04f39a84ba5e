"""ONNX folders: a translator as two graphs for other programs, held against PyTorch before anything is written."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dikkat.errors import InputError
from dikkat.extras import needing
from dikkat.storage.folders import recover, write_folder
from dikkat.storage.headers import header
from dikkat.translation.formats import onnx_graphs
from dikkat.translation.formats.model_folder import SETTINGS, SOURCE, TARGET, absolute, check_replaceable
from dikkat.translation.network.model import DecoderState, TranslationModel, pad
from dikkat.translation.settings import Settings
from dikkat.translation.text.tokenizer import Tokenizer

with needing("onnx"):
    import onnxruntime

FORMAT = "dikkat translator in ONNX"
VERSION = 1
ENCODER, DECODER = "encoder.onnx", "decoder.onnx"
FILES = (ENCODER, DECODER, SETTINGS, SOURCE, TARGET)
"""The files that such a folder has, beside their sums."""

_WITHIN = 1e-5  # of PyTorch's numbers; where those are above 1, that share of them
_LENGTHS = ((1,), (7, 3), (23, 11, 2))  # of the sentences of each batch that the graphs are tried on
_STEPS = 3

Array = np.ndarray[Any, Any]


class Graphs(NamedTuple):
    """A model's two graphs, as the content of ONNX files, and the names of what a step hands on to the next."""

    encoder: bytes
    decoder: bytes
    states: list[str]


def write(
    folder: str | Path, model: TranslationModel, settings: Settings, source: Tokenizer, target: Tokenizer
) -> None:
    """Write a model's graphs, in float32, and what a program needs beside them; see `Translator.export_onnx`."""
    folder = absolute(Path(folder))
    check_replaceable(folder, FILES)
    plain = _float32_copy(model)
    made = graphs(plain)
    check(made, plain)
    content = {
        ENCODER: made.encoder,
        DECODER: made.decoder,
        SETTINGS: (json.dumps({**header(FORMAT, VERSION), "settings": settings.to_dict()}, indent=2) + "\n").encode(),
        SOURCE: source.to_json().encode(),
        TARGET: target.to_json().encode(),
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    recover(folder)
    write_folder(folder, content, replace=True)


def _float32_copy(model: TranslationModel) -> TranslationModel:
    """A copy in evaluation mode, in float32, on the CPU."""
    if reasons := model.undescribed():
        raise InputError(f"model: got one that cannot be written as graphs: {'; '.join(reasons)}")
    plain = deepcopy(model).to("cpu", torch.float32).eval()
    for name, parameter in plain.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise InputError(f"{name}: got weights that are not finite; expected numbers")
    return plain


@torch.no_grad()
def graphs(model: TranslationModel) -> Graphs:
    """The graphs of a model in float32 on the CPU, whose weights alone say what it computes."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    network = model.network()
    return Graphs(onnx_graphs.encoder(network, names), onnx_graphs.decoder(network, names), onnx_graphs.states(network))


# --- against PyTorch


@torch.no_grad()
def check(made: Graphs, model: TranslationModel) -> None:
    """Compare ONNX Runtime with PyTorch on sentences of several lengths, and some steps of each.

    Raises:
        InputError: They differ.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    encoder, decoder = (
        onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        for graph in (made.encoder, made.decoder)
    )
    random = torch.Generator().manual_seed(0)
    tables = model.network()
    for lengths in _LENGTHS:
        sources = [_tokens(len(tables.source_table), length, random).tolist() for length in lengths]
        numbers, sizes = pad(sources)
        memory, state = model.encode(numbers, sizes)
        given = _run(encoder, {"source": numbers.numpy(), "lengths": sizes.numpy()})
        _compare(lengths, made.states, [given[name] for name in made.states], _arrays(state))
        for _ in range(_STEPS):
            token = _tokens(len(tables.target_table), len(lengths), random)
            scores, weights, state = model.step(token, memory, state)
            after = _run(decoder, {"token": token.numpy(), **given})
            names = ["log_probabilities", "weights", *(f"next_{name}" for name in made.states)]
            expected = [scores.log_softmax(1).numpy(), weights.numpy(), *_arrays(state)]
            _compare(lengths, names, [after[name] for name in names], expected)
            given |= {name: after[f"next_{name}"] for name in made.states}


def _tokens(vocabulary: int, count: int, random: torch.Generator) -> Tensor:
    return torch.randint(vocabulary, (count,), generator=random)


def _run(session: Any, inputs: Mapping[str, Array]) -> dict[str, Array]:
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def _arrays(state: DecoderState) -> list[Array]:
    """A decoder's state as the graphs have it, rows first."""
    parts = state if isinstance(state, tuple) else (state,)
    return [part.transpose(0, 1).numpy() for part in parts]


def _compare(lengths: Sequence[int], names: Sequence[str], actual: Sequence[Array], expected: Sequence[Array]) -> None:
    for name, one, other in zip(names, actual, expected, strict=True):
        distance = np.abs(one - other) / np.maximum(1, np.abs(other))
        if one.shape != other.shape or not bool((distance <= _WITHIN).all()):
            raise InputError(
                f"{name}: got numbers of the graph that are up to {distance.max():.2g} from PyTorch's, for sentences "
                f"of {', '.join(map(str, lengths))} tokens; expected at most {_WITHIN:g}. Nothing was written"
            )
