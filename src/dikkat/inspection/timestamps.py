"""When each token of a transcription is said, from the cross-attention of a few heads."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from dikkat.inspection.recording import record

_SECONDS = 0.02  # of a place of the encoder
# Settings of a generation, without which the decoder's calls do not say what was generated.
_FIXED: dict[str, Any] = {"num_beams": 1, "use_cache": True, "assistant_model": None, "prompt_lookup_num_tokens": None}


class Timestamps(NamedTuple):
    """Tokens with their times.

    Attributes:
        sequences: (B, l) int64, the tokens, those that the decoder was given among them.
        seconds: (B, l) float32, when each begins; 0 for those that the decoder was given.
    """

    sequences: Tensor
    seconds: Tensor


def token_timestamps(
    model: nn.Module,
    input_features: Tensor,
    *,
    alignment_heads: Sequence[Sequence[int]] | Tensor | None = None,
    attention_mask: Tensor | None = None,
    **generation: Any,
) -> Timestamps:
    r"""Transcribe with a model of Whisper's shape, and tell when each token is said, on the model's fast path.

    The weights \(W\) of the alignment heads alone are recorded. Each key's weights are brought to mean 0 and deviation
    1 over the tokens, smoothed by a median over neighbouring keys, and averaged over the heads; a path through
    \(-W\) of least cost, which goes on by a token, by a key or by both (dynamic time warping), gives each token's key.
    transformers' `return_token_timestamps=True` does that with all of the model on "eager" attention.

    Args:
        model: A `WhisperForConditionalGeneration` in evaluation, with any attention that `dikkat.record` sees.
        input_features: (B, mels, frames) of at most one window, of 30 seconds: longer ones are to be cut before.
        alignment_heads: Pairs of a decoder layer and a head; those of the model's `generation_config`, where not given.
        attention_mask: (B, frames), 1 for frames of sound and 0 for padding behind them, of which at least 2 are
            sound; all are, where not given.
        **generation: Further arguments of `model.generate`, such as `language` and `max_new_tokens`.

    Returns:
        The `Timestamps`. The last token, which the decoder was never given, has the time of the one before.

    Raises:
        TypeError: Alignment heads that are no pairs.
        ValueError: No alignment heads, or one that the model has not; a mask of another shape; beams, an assistant or
            no cache; a model in training; more than one window.

    Source:
        Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision", and the alignment of its
        published code; Sakoe and Chiba 1978 for dynamic time warping.
    """
    if model.training:
        raise ValueError("model: got one in training, which draws its dropout anew; expected model.eval()")
    heads, keys = _heads(model, alignment_heads), _keys(input_features, attention_mask)
    for name, fixed in _FIXED.items():
        settings = (
            getattr(each, name, None) for each in (generation.get("generation_config"), model.generation_config)
        )
        given = next((each for each in (generation.get(name), *settings) if each is not None), fixed)
        if given != fixed:
            raise ValueError(f"{name}: got {given!r}; expected {fixed}")
    decoder: nn.Module = model.get_decoder()  # type: ignore[operator]
    names = {layer: _cross_attention(decoder, layer) for layer, _ in heads}
    chosen = sorted({head for _, head in heads})
    reads: list[dict[str, Any]] = []  # the arguments of the decoder's calls

    def look(_: nn.Module, __: Any, named: dict[str, Any]) -> None:
        reads.append({name: named[name] for name in ("input_ids", "encoder_hidden_states")})

    with torch.no_grad():
        hook = decoder.register_forward_pre_hook(look, with_kwargs=True)
        try:
            found = model.generate(  # type: ignore[operator]
                input_features, attention_mask=attention_mask, return_dict_in_generate=True,
                force_unique_generate_call=True, **generation,
            )  # fmt: skip
        finally:
            hook.remove()
        sequences: Tensor = found["sequences"]
        hidden = reads[-1]["encoder_hidden_states"]
        given = _given([read["input_ids"].shape[1] for read in reads], sequences.shape[1] - 1)
        # All tokens once more, in one go: a recording costs more than one of the generation's steps.
        with record(decoder, layers=list(names.values()), heads=chosen, weights=True) as trace:
            decoder(input_ids=sequences[:, :-1], encoder_hidden_states=hidden, use_cache=False)
    sequences = sequences.cpu()
    weights = {layer: trace[name].weights for layer, name in names.items()}
    maps = torch.stack([weights[layer][:, chosen.index(head), given:] for layer, head in heads], 1)  # type: ignore[index]
    seconds = torch.zeros(sequences.shape)
    width = int(getattr(model.config, "median_filter_width", 7))
    for index, own in enumerate(maps):
        if own.shape[-2]:
            sound = own[..., : keys[index * len(keys) // len(maps)]]
            times = torch.from_numpy(_warped(-_smoothed(sound, width).double().numpy())) * _SECONDS
            seconds[index, given:] = torch.cat([times, times[-1:]])
    return Timestamps(sequences, seconds)


def _heads(model: nn.Module, given: object) -> list[list[int]]:
    """The pairs of a decoder layer and a head, checked but for their sizes."""
    own = getattr(getattr(model, "generation_config", None), "alignment_heads", None)
    heads: Any = own if given is None else getattr(given, "tolist", lambda: given)()
    if heads is None or heads == []:
        raise ValueError("alignment_heads: got none, nor has the model; expected pairs of a decoder layer and a head")
    if not isinstance(heads, Sequence) or not all(
        isinstance(pair, Sequence) and [type(each) for each in pair] == [int, int] for pair in heads
    ):
        raise TypeError(f"alignment_heads: got {heads!r}; expected pairs of a decoder layer and a head")
    return list(heads)


def _keys(sound: Tensor, mask: Tensor | None) -> list[int]:
    """The encoder's places of each element that are no padding."""
    if mask is None:
        return [-(-sound.shape[-1] // 2)] * len(sound)
    if mask.shape != (len(sound), sound.shape[-1]):
        raise ValueError(f"attention_mask: got {tuple(mask.shape)}; expected {(len(sound), sound.shape[-1])}")
    frames: list[int] = mask.sum(-1, dtype=torch.int64).tolist()
    if min(frames) < 2:
        raise ValueError(f"attention_mask: got {min(frames)} frames of sound; expected at least 2")
    return [each // 2 for each in frames]


def _cross_attention(decoder: nn.Module, layer: int) -> str:
    """The name of a decoder layer's attention to the encoder."""
    name = f"layers.{layer}.encoder_attn"
    if name not in dict(decoder.named_modules()):
        raise ValueError(f"alignment_heads: got layer {layer}; expected one of the decoder's, {type(decoder).__name__}")
    return name


def _given(reads: list[int], tokens: int) -> int:
    """The tokens that the decoder's last generation was given: before it the language may have been sought."""
    given = 0
    for given in reversed(reads):
        tokens -= given
        if tokens <= 0:
            break
    if tokens:
        raise ValueError("input_features: got what was not read in one go; expected one window, without fallbacks")
    return given


def _smoothed(weights: Tensor, width: int) -> Tensor:
    """(n, m): standardised over the tokens, filtered by medians over the keys, averaged over the heads (h, n, m)."""
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, correction=0)
    scaled, beside = (weights - mean) / deviation, width // 2
    if scaled.shape[-1] > beside:
        scaled = F.pad(scaled, (beside, beside), mode="reflect").unfold(-1, width, 1).median(-1).values
    return scaled.mean(0)


def _warped(cost: NDArray[np.float64]) -> NDArray[np.int64]:
    """The first key of each token on the path of least cost through (tokens, keys), diagonal by diagonal."""
    tokens, keys = cost.shape
    least = np.full((tokens + 1, keys + 1), np.inf, np.float32)
    least[0, 0] = 0
    moves = np.empty((tokens, keys), np.int8)  # 0: on by both, 1: by a token, 2: by a key
    for diagonal in range(tokens + keys - 1):
        i = np.arange(max(0, diagonal - keys + 1), min(tokens, diagonal + 1))
        j = diagonal - i
        both, down, right = least[i, j], least[i, j + 1], least[i + 1, j]
        step = np.where((both < down) & (both < right), 0, np.where((down < both) & (down < right), 1, 2))
        least[i + 1, j + 1] = cost[i, j] + np.choose(step, (both, down, right)).astype(np.float64)
        moves[i, j] = step
    first = np.zeros(tokens, np.int64)
    token, key = tokens - 1, keys - 1
    while token >= 0 and key >= 0:
        first[token] = key
        move = 2 if not token else 1 if not key else int(moves[token, key])
        token, key = token - (move != 2), key - (move != 1)
    return first
