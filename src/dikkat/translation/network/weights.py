"""Weights of a translator for searches that call no modules: reasons against it, and its attention as affine maps."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from dikkat._engine import addresses
from dikkat.recurrent import sequence
from dikkat.recurrent.attentional import AttentionalGRU, AttentionalLSTM
from dikkat.recurrent.encoder import GRUEncoder, LSTMEncoder
from dikkat.scores import Pair, Score, is_plain
from dikkat.translation.network.model import TranslationModel

_PLAIN = (
    nn.Linear, nn.Embedding, nn.Dropout, nn.GRU, nn.LSTM, GRUEncoder, LSTMEncoder, AttentionalGRU, AttentionalLSTM,
)  # fmt: skip


class Affine(NamedTuple):
    """A matrix (out, in), and a bias (out,), if any."""

    weight: Tensor
    bias: Tensor | None = None


class Cells(NamedTuple):
    """The weights of a recurrent layer, as `torch.nn.GRU` and `torch.nn.LSTM` have them."""

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor
    bias_hh: Tensor


class Compared(NamedTuple):
    """The comparison of states with what was read: maps to queries and keys, and an additive score's `weight`."""

    pair: Pair
    query: Affine
    key: Affine
    weight: Tensor | None


def every_module_has_hooks() -> bool:
    """Whether hooks are registered for all modules of the process."""
    return bool(nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks)


def undescribed(model: TranslationModel) -> list[str]:
    """The reasons why the weights alone do not say what the model computes; empty where they do."""
    reasons = []
    everywhere = every_module_has_hooks()
    for name, part in model.named_modules():
        called = part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part) or everywhere
        if called or not (part is model or isinstance(part, Score) or type(part) in _PLAIN):
            reasons.append(
                f"{name or 'the model'} is no plain {type(part).__name__}, or has hooks: it has to be called"
            )
        elif isinstance(part, nn.Embedding) and part.max_norm is not None:
            reasons.append(f"{name} changes its weights when it is called (max_norm)")
        elif isinstance(part, AttentionalGRU | AttentionalLSTM):
            reasons += sequence.find_score_obstacles(part.score)
    if type(model) is not TranslationModel or any(callable(getattr(type(model), name, None)) for name in vars(model)):
        reasons.append(f"{type(model).__name__} has methods of its own, and may compute something else")
    return reasons


def search_obstacles(model: TranslationModel) -> list[str]:
    """The reasons why a search cannot run on the model's weights as one compiled call; empty where it can."""
    modules = list(model.modules())
    parameters = [each for part in modules for each in part._parameters.values() if each is not None]
    buffers = [each for part in modules for each in part._buffers.values()]
    reasons = addresses.tensor_obstacles([*parameters, *buffers])
    if torch.is_autocast_enabled("cpu"):
        reasons.append("it computes in one precision, and torch.autocast is on")
    kinds = {parameter.dtype for parameter in parameters}
    if len(kinds) != 1 or not kinds <= {torch.float32, torch.float64}:
        reasons.append(f"the weights are of {', '.join(sorted(map(str, kinds)))}, not all of float32 or of float64")
    return reasons + undescribed(model)


def compared(decoder: AttentionalGRU | AttentionalLSTM) -> Compared:
    """The attention of a decoder: both sides of its score as affine maps."""
    score, like = decoder.score, decoder.part("weight_hh", 0)
    weight, bias = sequence.find_query_map(decoder, score)
    query = Affine(torch.eye(decoder.hidden_size).to(like) if weight is None else weight, bias)
    projection = getattr(score, "W_k", None)
    if isinstance(projection, nn.Linear) and is_plain(projection):
        key = Affine(projection.weight)
    else:
        origin = score.project_key(like.new_zeros(1, decoder.key_size))
        key = Affine((score.project_key(torch.eye(decoder.key_size).to(like)) - origin).t(), origin[0])
    return Compared(score.pair, query, key, score.pair_weight())
