"""Weights of a translator for searches that call no modules, and the obstacles to such searches."""

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
    """A matrix (out, in) and an optional bias (out,)."""

    weight: Tensor
    bias: Tensor | None = None


class Cells(NamedTuple):
    """The weights of a recurrent layer in the layout of `torch.nn.GRU` and `torch.nn.LSTM`."""

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor
    bias_hh: Tensor


class Compared(NamedTuple):
    """The score of decoder states and encoder outputs: maps to queries and keys, and an additive score's `weight`."""

    pair: Pair
    query: Affine
    key: Affine
    weight: Tensor | None


def every_module_has_hooks() -> bool:
    """Return whether hooks are registered for all modules of the process."""
    return bool(nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks)


def undescribed(model: TranslationModel) -> list[str]:
    """Return the reasons why the weights may not describe what the model computes; empty if they do."""
    reasons = []
    global_hooks = every_module_has_hooks()
    for name, module in model.named_modules():
        needs_call = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module) or global_hooks
        if needs_call or not (module is model or isinstance(module, Score) or type(module) in _PLAIN):
            reasons.append(
                f"{name or 'the model'} is not a plain {type(module).__name__}, or has hooks, so it must be called"
            )
        elif isinstance(module, nn.Embedding) and module.max_norm is not None:
            reasons.append(f"{name} changes its weights in each call (max_norm)")
        elif isinstance(module, AttentionalGRU | AttentionalLSTM):
            reasons += sequence.find_score_obstacles(module.score)
    if type(model) is not TranslationModel or any(callable(getattr(type(model), name, None)) for name in vars(model)):
        reasons.append(f"{type(model).__name__} overrides methods, and may compute something else")
    return reasons


def search_obstacles(model: TranslationModel) -> list[str]:
    """Return the reasons why a search cannot run as one compiled call on the model's weights; empty if it can."""
    modules = list(model.modules())
    parameters = [tensor for module in modules for tensor in module._parameters.values() if tensor is not None]
    buffers = [tensor for module in modules for tensor in module._buffers.values()]
    reasons = addresses.tensor_obstacles([*parameters, *buffers])
    if torch.is_autocast_enabled("cpu"):
        reasons.append("torch.autocast is on, and the search has only one precision")
    dtypes = {parameter.dtype for parameter in parameters}
    if len(dtypes) != 1 or not dtypes <= {torch.float32, torch.float64}:
        reasons.append(f"the weights are {', '.join(sorted(map(str, dtypes)))}, not all float32 or all float64")
    return reasons + undescribed(model)


def compared(decoder: AttentionalGRU | AttentionalLSTM) -> Compared:
    """Return the score of a decoder's attention, with affine maps for both sides."""
    score, template = decoder.score, decoder.part("weight_hh", 0)
    weight, bias = sequence.find_query_map(decoder, score)
    query = Affine(torch.eye(decoder.hidden_size).to(template) if weight is None else weight, bias)
    projection = getattr(score, "W_k", None)
    if isinstance(projection, nn.Linear) and is_plain(projection):
        key = Affine(projection.weight)
    else:
        origin = score.project_key(template.new_zeros(1, decoder.key_size))
        key = Affine((score.project_key(torch.eye(decoder.key_size).to(template)) - origin).t(), origin[0])
    return Compared(score.pair, query, key, score.pair_weight())
