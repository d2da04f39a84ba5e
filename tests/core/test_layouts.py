"""However tensors lie in memory, whichever of them wants a gradient: every layer gives what its formula says."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import dikkat
import kit
from dikkat import scores

BATCH, QUERIES, KEYS, HEADS, SIZE, HIDDENS = 2, 3, 5, 2, 8, 7

LAYOUTS = {
    "as it is": lambda t: t,
    "turned": lambda t: t.mT.contiguous().mT,
    "batch last": lambda t: t.movedim(0, -1).contiguous().movedim(-1, 0),
    "every other": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "backwards in a row of others": lambda t: torch.cat([t.flip(-2), t], -2)[..., t.shape[-2] :, :],
    "one for all": lambda t: t[:1].clone().expand(t.shape),
    "a column for all": lambda t: t[..., :1].clone().expand(t.shape),
}
LAYERS: dict[str, Any] = {
    "additive": lambda: dikkat.AdditiveAttention(SIZE, SIZE, HIDDENS),
    "scaled dot": dikkat.DotProductAttention,
    "bilinear": lambda: dikkat.BilinearAttention(SIZE, SIZE),
    "gaussian": lambda: dikkat.KernelAttention(kit.FIXED),
    "heads": lambda: dikkat.MultiHeadAttention(SIZE, HEADS),
    "additive heads": lambda: dikkat.MultiHeadAttention(SIZE, HEADS, score=scores.Additive(4, 4, HIDDENS)),
    "self": lambda: dikkat.SelfAttention(SIZE, 6, 10, HEADS),
}
IMPLS = ["auto", "reference", "chunked", "sdpa", "numba"]


def dense(layer: nn.Module, name: str, given: tuple[Tensor, ...], visible: Tensor, bias: Tensor) -> list[Tensor]:
    """Output and weights in float64, from the formulas."""
    query, key, value = given
    p = dict(layer.named_parameters())
    if name == "self":
        query, key, value = (query @ p[f"W_{x}.weight"].T for x in "qkv")
    elif name.endswith("heads"):
        weights, biases = p["in_proj_weight"].chunk(3), p["in_proj_bias"].chunk(3)
        query, key, value = (t @ w.T + b for t, w, b in zip((query, key, value), weights, biases, strict=True))
    heads = HEADS if name.endswith("heads") or name == "self" else 1
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (query, key, value))
    own = {n.removeprefix("score."): t for n, t in p.items()}
    if "additive" in name:
        hidden = torch.tanh((q @ own["W_q.weight"].T)[..., :, None, :] + (k @ own["W_k.weight"].T)[..., None, :, :])
        score = hidden @ own["w_v.weight"][0]
    elif name == "gaussian":
        score = -((q[..., :, None, :] - k[..., None, :, :]) / kit.FIXED).square().sum(-1) / 2
    elif name == "bilinear":
        score = q @ own["W_q.weight"].T @ k.mT
    else:
        score = q @ k.mT / math.sqrt(q.shape[-1])
    weights = (score + bias[:, None, None]).masked_fill(~visible[:, None], -math.inf).softmax(-1).nan_to_num()
    out = (weights @ v).transpose(1, 2).flatten(-2)
    out = out @ p["out_proj.weight"].T + p["out_proj.bias"] if name.endswith("heads") else out
    return [out, weights if heads > 1 else weights[:, 0]]


@given(data=st.data())
@settings(max_examples=47, deadline=None)
def test_every_layer_in_every_layout(data: st.DataObject) -> None:
    draw = data.draw
    torch.manual_seed(draw(st.integers(0, 2**16)))
    name, impl = draw(st.sampled_from(sorted(LAYERS))), draw(st.sampled_from(IMPLS))
    dtype = draw(st.sampled_from(kit.DTYPES))
    layer = LAYERS[name]().to(dtype)
    keys = QUERIES if name == "self" else KEYS
    given = [
        LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))](torch.randn(BATCH, n, SIZE, dtype=dtype))
        for n in (QUERIES, keys, keys)
    ]
    given = given[:1] * 3 if name == "self" else given
    wanted = draw(st.sets(st.sampled_from([0] if name == "self" else [0, 1, 2])))
    for place in wanted:
        given[place].requires_grad_()
    limits: dict[str, Any] = {}
    visible, bias = torch.ones(BATCH, QUERIES, keys, dtype=torch.bool), torch.zeros(BATCH, keys, dtype=torch.float64)
    restricted = draw(st.sets(st.sampled_from(["lengths", "lengths a query", "mask", "causal", "bias", "exclude"])))
    if restricted & {"lengths", "lengths a query"}:
        lens = torch.randint(0, keys + 1, (BATCH,) if "lengths" in restricted else (BATCH, QUERIES))
        limits["valid_lens"] = lens
        visible = visible & (torch.arange(keys) < lens.reshape(BATCH, -1, 1))
    if "mask" in restricted:
        limits["mask"] = LAYOUTS[draw(st.sampled_from(["as it is", "turned"]))](torch.rand(BATCH, QUERIES, keys) < 0.7)
        visible = visible & limits["mask"]
    if "causal" in restricted:
        limits["causal"] = True
        visible = visible & (torch.arange(keys) <= torch.arange(QUERIES)[:, None] + keys - QUERIES)
    if "bias" in restricted:
        limits["key_bias"] = torch.randn(BATCH, keys, dtype=dtype)
        bias = limits["key_bias"].double()
    if "exclude" in restricted:
        limits["exclude"] = torch.randint(-1, keys, (BATCH, QUERIES))
        visible = visible & (torch.arange(keys) != limits["exclude"][..., None])
    return_weights = draw(st.booleans())

    refused = ""
    try:
        came = layer(*(given[:1] if name == "self" else given), **limits, impl=impl, return_weights=return_weights)
    except ValueError as error:
        refused = str(error)
    if refused:
        assert impl != "auto"
        assert refused.startswith(f"impl: got {impl!r}, which cannot run this call: ")
        return
    came = came if return_weights else (came,)
    wide = LAYERS[name]().to(dtype)
    wide.load_state_dict(layer.state_dict())
    wide = wide.double()
    exact = [t.detach().double().clone() for t in given]
    exact = exact[:1] * 3 if name == "self" else exact
    leaves = [exact[place].requires_grad_() for place in sorted(wanted)]
    expected = dense(wide, name, tuple(exact), visible, bias)
    eps = torch.finfo(dtype).eps
    for c, e in zip(came, expected, strict=False):
        torch.testing.assert_close(c.double(), e, rtol=0, atol=100 * eps * (1 + e.abs().max().item()))
    if not wanted:
        return
    upstream = LAYOUTS[draw(st.sampled_from(["as it is", "turned"]))](torch.randn(came[0].shape, dtype=dtype))
    grads = torch.autograd.grad(came[0], [given[place] for place in sorted(wanted)], upstream)
    exact_grads = torch.autograd.grad(expected[0], leaves, upstream.double())
    for c, e in zip(grads, exact_grads, strict=True):
        torch.testing.assert_close(c.double(), e, rtol=0, atol=400 * eps * (1 + e.abs().max().item()))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_self_attention_without_parameters_in_every_layout(layout: str) -> None:
    torch.manual_seed(0)
    x = LAYOUTS[layout](torch.randn(BATCH, KEYS, SIZE, dtype=torch.float64))
    torch.testing.assert_close(dikkat.self_attention(x), (x @ x.mT).softmax(-1) @ x)


@kit.each("impl", IMPLS)
@kit.each("sizes", [(0, 5, 8), (3, 0, 8), (3, 5, 0), (0, 0, 0)])
def test_nothing_to_do_is_no_obstacle(sizes: tuple[int, int, int], impl: str) -> None:
    queries, keys, values = sizes
    query, key, value = (
        torch.randn(2, queries, 8).requires_grad_(),
        torch.randn(2, keys, 8),
        torch.randn(2, keys, values),
    )
    for limits in ({}, {"valid_lens": torch.tensor([0, keys])}, {"causal": True}):
        if impl == "sdpa":
            with pytest.raises(ValueError, match="take no empty tensors"):
                dikkat.attend(query, key, value, score=scores.Dot(), impl=impl, **limits)
            continue
        out = dikkat.attend(query, key, value, score=scores.Dot(), impl=impl, **limits)
        assert out.shape == (2, queries, values)
        assert bool((out == 0).all()) or keys > 0
        assert torch.autograd.grad(out.sum(), query)[0].shape == query.shape
