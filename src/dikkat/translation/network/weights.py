"""A translator's weights, as a compiled search takes them, or why it cannot."""

import torch
from torch import Tensor, nn

from dikkat._engine import addresses
from dikkat.recurrent import sequence
from dikkat.recurrent.attentional import AttentionalGRU, AttentionalLSTM
from dikkat.recurrent.encoder import GRUEncoder, LSTMEncoder
from dikkat.scores import Score, is_plain
from dikkat.translation.network.layout import Affine, Cells, Compared

_RECURRENT = GRUEncoder, LSTMEncoder, AttentionalGRU, AttentionalLSTM
_PLAIN = (nn.Linear, nn.Embedding, nn.Dropout, nn.GRU, nn.LSTM, *_RECURRENT)


def every_module_has_hooks() -> bool:
    """Whether hooks are registered for all modules of the process."""
    return bool(nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks)


def undescribed(model: nn.Module) -> list[str]:
    """The reasons why the weights alone do not say what a model of encoder, decoder and linear layers computes."""
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
            reasons += sequence.score_obstacles(part.score)
    return reasons


def search_obstacles(model: nn.Module) -> list[str]:
    """The reasons why a compiled search cannot run on the weights alone of such a model."""
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


def encoder_cells(encoder: GRUEncoder | LSTMEncoder, layers: int) -> list[list[Cells]]:
    """An encoder's layers, in each direction."""
    directions = range(encoder.directions)
    return [[Cells(*encoder.layer_weights(layer, direction)) for direction in directions] for layer in range(layers)]


def decoder_cells(decoder: AttentionalGRU | AttentionalLSTM) -> list[Cells]:
    """A decoder's layers, of which the first reads an input and a context."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return [Cells(*(decoder.part(name, layer) for name in names)) for layer in range(decoder.num_layers)]


def compared(decoder: AttentionalGRU | AttentionalLSTM) -> Compared:
    """The attention of a decoder: both sides of its score as affine maps."""
    score, like = decoder.score, decoder.part("weight_hh", 0)
    weight, bias = sequence.query_map(decoder, score)
    query = Affine(_unit(decoder.hidden_size, like) if weight is None else weight, bias)
    projection = getattr(score, "W_k", None)
    if isinstance(projection, nn.Linear) and is_plain(projection):
        key = Affine(projection.weight)
    else:
        origin = score.project_key(like.new_zeros(1, decoder.key_size))
        key = Affine((score.project_key(_unit(decoder.key_size, like)) - origin).t(), origin[0])
    return Compared(score.pair, query, key, score.pair_weight())


def _unit(size: int, like: Tensor) -> Tensor:
    return torch.eye(size, dtype=like.dtype, device=like.device)
