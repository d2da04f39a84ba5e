"""Dikkat's layers inside PyTorch's transformers, against PyTorch's own attention there."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dikkat
import kit
from dikkat import scores

BATCH, QUERIES, KEYS, HEADS, SIZE = 3, 5, 7, 2, 8


def pair(batch_first: bool = True, dropout: float = 0.0) -> tuple[nn.MultiheadAttention, nn.Module]:
    """PyTorch's module and ours, of the same parameters."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(SIZE, HEADS, dropout, batch_first=batch_first, dtype=torch.float64)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    ours = dikkat.MultiHeadAttention(SIZE, HEADS, dropout=dropout).double()
    ours.load_state_dict(theirs.state_dict())
    return theirs, dikkat.as_torch_attention(ours, batch_first=batch_first)


def floats(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(mask, -math.inf)


def masks(queries: int, keys: int) -> dict[str, dict[str, Any]]:
    """Every kind that a call may come with; each query sees some key."""
    torch.manual_seed(1)
    padding = torch.arange(keys) >= torch.tensor([keys, 2, 4])[:, None]
    pairs = torch.rand(queries, keys) < 0.4
    by_head = torch.rand(BATCH * HEADS, queries, keys) < 0.4
    pairs[:, 0] = by_head[..., 0] = False
    weights = torch.randn(BATCH, keys, dtype=torch.float64).masked_fill(padding, -math.inf)
    bias = torch.randn(keys, dtype=torch.float64)
    return {
        "none": {},
        "padding": {"key_padding_mask": padding},
        "padding, numbers": {"key_padding_mask": floats(padding)},
        "weights": {"key_padding_mask": weights},
        "pairs": {"attn_mask": pairs},
        "pairs, numbers": {"attn_mask": floats(pairs)},
        "pairs and padding": {"attn_mask": pairs, "key_padding_mask": padding},
        "numbers and numbers": {"attn_mask": floats(pairs), "key_padding_mask": weights},
        "a head": {"attn_mask": by_head},
        "a head, numbers": {"attn_mask": floats(by_head), "key_padding_mask": floats(padding)},
        "a bias of keys": {"attn_mask": (floats(pairs) + bias), "key_padding_mask": weights},
        "a bias of pairs": {"attn_mask": torch.randn(queries, keys, dtype=torch.float64) - 1e9 * pairs},
        "a head, a bias of pairs": {
            "attn_mask": floats(by_head) + torch.arange(keys, dtype=torch.float64) / 5,
            "key_padding_mask": floats(padding),
        },
    }  # fmt: skip


@kit.each("batch_first", [True, False])
@kit.each("kind", masks(1, 1))
def test_a_call_is_torchs(kind: str, batch_first: bool) -> None:
    theirs, ours = pair(batch_first)
    given = [torch.randn(BATCH, n, SIZE, dtype=torch.float64) for n in (QUERIES, KEYS, KEYS)]
    query, key, value = (t if batch_first else t.transpose(0, 1) for t in given)
    for options in ({}, {"average_attn_weights": False}, {"need_weights": False}):
        limits = masks(QUERIES, KEYS)[kind] | options
        expected, came = theirs(query, key, value, **limits), ours(query, key, value, **limits)
        torch.testing.assert_close(came[0], expected[0])
        if options.get("need_weights", True):
            torch.testing.assert_close(came[1], expected[1])
        else:
            assert came[1] is None
    came[0].sin().sum().backward()
    expected[0].sin().sum().backward()
    for (_, p), (_, q) in zip(ours.layer.named_parameters(), theirs.named_parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


@kit.each("kind", [kind for kind in masks(1, 1) if "head" not in kind])
def test_a_call_without_a_batch_is_torchs(kind: str) -> None:
    theirs, ours = pair(batch_first=False)
    query, key, value = (torch.randn(n, SIZE, dtype=torch.float64) for n in (QUERIES, KEYS, KEYS))
    limits = masks(QUERIES, KEYS)[kind]
    if "key_padding_mask" in limits:
        limits["key_padding_mask"] = limits["key_padding_mask"][2]
    for average in (True, False):
        expected = theirs(query, key, value, **limits, average_attn_weights=average)
        torch.testing.assert_close(ours(query, key, value, **limits, average_attn_weights=average), expected)
    by_head = torch.rand(HEADS, QUERIES, KEYS) < 0.4
    by_head[..., 0] = False
    torch.testing.assert_close(ours(query, key, value, attn_mask=by_head), theirs(query, key, value, attn_mask=by_head))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", masks(1, 1))
def test_an_encoder_layer_gives_what_it_gave(
    kind: str, batch_first: bool, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    options = {"dropout": 0.0, "batch_first": batch_first, "dtype": torch.float64}
    theirs = nn.TransformerEncoderLayer(SIZE, HEADS, 16, **options).train(training)
    ours, layer = copy.deepcopy(theirs), dikkat.MultiHeadAttention(SIZE, HEADS).double()
    layer.load_state_dict(theirs.self_attn.state_dict())
    ours.self_attn = dikkat.as_torch_attention(layer.train(training), batch_first=batch_first)
    x = torch.randn(BATCH, KEYS, SIZE, dtype=torch.float64)
    names = {"attn_mask": "src_mask", "key_padding_mask": "src_key_padding_mask"}
    limits = {names[name]: mask for name, mask in masks(KEYS, KEYS)[kind].items()}
    x = x if batch_first else x.transpose(0, 1)
    with torch.set_grad_enabled(training), kit.record() as ran:
        came = ours(x, **limits)
    assert len(ran) == 1  # ours, and not PyTorch's shortcut
    if (
        kind in ("weights", "numbers and numbers") or "bias" in kind
    ):  # PyTorch's shortcut gives NaN, or takes no numbers
        monkeypatch.setattr(torch.backends.mha, "get_fastpath_enabled", lambda: False)
    with torch.set_grad_enabled(training):
        torch.testing.assert_close(came, theirs(x, **limits))


@pytest.mark.parametrize("made_before", [True, False])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_a_whole_encoder_takes_no_shortcut_around_it(made_before: bool) -> None:
    torch.manual_seed(0)
    one = nn.TransformerEncoderLayer(SIZE, HEADS, 16, 0.0, batch_first=True, dtype=torch.float64)
    theirs = nn.TransformerEncoder(copy.deepcopy(one), 2, enable_nested_tensor=False).eval()
    whole = nn.TransformerEncoder(copy.deepcopy(one), 2) if made_before else None
    layer = dikkat.MultiHeadAttention(SIZE, HEADS).double()
    layer.load_state_dict(one.self_attn.state_dict())
    if whole is None:
        one.self_attn = dikkat.as_torch_attention(layer, batch_first=True)
        whole = nn.TransformerEncoder(one, 2)
    else:
        for each in whole.layers:
            each.self_attn = dikkat.as_torch_attention(layer, batch_first=True)
    x = torch.randn(BATCH, KEYS, SIZE, dtype=torch.float64)
    padding = masks(KEYS, KEYS)["padding"]["key_padding_mask"]
    with torch.no_grad(), kit.record() as ran:
        came = whole.eval()(x, src_key_padding_mask=padding)
        expected = theirs(x, src_key_padding_mask=padding)
    assert len(ran) == 2
    torch.testing.assert_close(came[~padding], expected[~padding])


@pytest.mark.parametrize("training", [True, False])
def test_a_decoder_gives_what_it_gave(training: bool) -> None:
    torch.manual_seed(0)
    one = nn.TransformerDecoderLayer(SIZE, HEADS, 16, 0.0, dtype=torch.float64)
    theirs = nn.TransformerDecoder(one, 2).train(training)
    ours = copy.deepcopy(theirs)
    for each in ours.layers:
        for name in ("self_attn", "multihead_attn"):
            layer = dikkat.MultiHeadAttention(SIZE, HEADS).double()
            layer.load_state_dict(getattr(each, name).state_dict())
            setattr(each, name, dikkat.as_torch_attention(layer))
    target, memory = (torch.randn(n, BATCH, SIZE, dtype=torch.float64) for n in (QUERIES, KEYS))
    causal = nn.Transformer.generate_square_subsequent_mask(QUERIES, dtype=torch.float64)
    padding = floats(masks(QUERIES, KEYS)["padding"]["key_padding_mask"])
    limits = {"tgt_mask": causal, "tgt_is_causal": True, "memory_key_padding_mask": padding}
    torch.testing.assert_close(ours.train(training)(target, memory, **limits), theirs(target, memory, **limits))


def test_any_score_and_any_layer_with_one_head() -> None:
    torch.manual_seed(0)
    x = torch.randn(BATCH, KEYS, SIZE)
    limits = masks(KEYS, KEYS)["pairs and padding"]
    visible = ~(limits["attn_mask"] | limits["key_padding_mask"][:, None])
    layers: list[nn.Module] = [
        dikkat.AdditiveAttention(SIZE, SIZE, 5),
        dikkat.BilinearAttention(SIZE, SIZE),
        dikkat.DotProductAttention(),
        dikkat.KernelAttention(2.0),
    ]
    for layer in layers:
        output, weights = dikkat.as_torch_attention(layer, batch_first=True)(x, x, x, **limits)
        expected = layer(x, x, x, mask=visible, return_weights=True)
        torch.testing.assert_close((output, weights), expected)
        by_head = dikkat.as_torch_attention(layer)(*[x.transpose(0, 1)] * 3, **limits, average_attn_weights=False)
        torch.testing.assert_close(by_head[1], expected[1][:, None])
    encoder = nn.TransformerEncoderLayer(SIZE, HEADS, 16, 0.0, batch_first=True)
    heads = dikkat.MultiHeadAttention(SIZE, HEADS, score=scores.Additive(4, 4, 5))
    encoder.self_attn = dikkat.as_torch_attention(heads, batch_first=True)
    trained = encoder(x, src_key_padding_mask=limits["key_padding_mask"])
    with torch.no_grad():
        torch.testing.assert_close(encoder.eval()(x, src_key_padding_mask=limits["key_padding_mask"]), trained)
    trained.sum().backward()
    assert all(p.grad is not None for p in encoder.parameters())
    assert "layer.score.w_v.weight" in encoder.self_attn.state_dict()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_cannot_be_said_is_refused() -> None:
    ours = pair()[1]
    x = torch.randn(BATCH, KEYS, SIZE, dtype=torch.float64)
    numbers = torch.randn(KEYS, KEYS, dtype=torch.float64)
    for wrong, error, message in (
        ({"attn_mask": numbers[:3] < 0}, ValueError, r"shape \(3, 7\); expected \(7, 7\) or \(6, 7, 7\)"),
        ({"attn_mask": numbers.long()}, TypeError, "attn_mask: got dtype torch.int64"),
        ({"key_padding_mask": numbers < 0}, ValueError, r"key_padding_mask: got shape \(7, 7\); expected \(3, 7\)"),
        ({"key_padding_mask": [1]}, TypeError, "key_padding_mask: got list"),
        ({"is_causal": True}, ValueError, "is_causal: got True without attn_mask"),
    ):
        with pytest.raises(error, match=message):
            ours(x, x, x, **wrong)
    with pytest.raises(ValueError, match=r"key: got shape \(7, 8\); expected 3 dimensions"):
        ours(x, x[0], x)
    with pytest.raises(TypeError, match="query: got a nested tensor"):
        ours(*[torch.nested.nested_tensor([x[0], x[1, :2]])] * 3)
    with pytest.raises(TypeError, match=r"value: got a tensor with layout torch\.sparse_coo; expected a dense tensor"):
        ours(x, x, x.to_sparse())
    with pytest.raises(TypeError, match=r"attn_mask: got a tensor with layout torch\.sparse_coo"):
        ours(x, x, x, attn_mask=(numbers < 0).to_sparse())
    with pytest.raises(TypeError, match="layer: got SelfAttention; expected an instance of MultiHeadAttention"):
        dikkat.as_torch_attention(dikkat.SelfAttention(8, 8, 8))
    with pytest.raises(TypeError, match="batch_first: got int"):
        dikkat.as_torch_attention(dikkat.DotProductAttention(), batch_first=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["causal", "pairs", "booleans"])
def test_masks_compile_as_one_graph(kind: str) -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(SIZE, HEADS, batch_first=True).eval()
    layer = dikkat.MultiHeadAttention(SIZE, HEADS).eval()
    layer.load_state_dict(theirs.state_dict())
    ours = dikkat.as_torch_attention(layer, batch_first=True)
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    mask = nn.Transformer.generate_square_subsequent_mask(KEYS)
    if kind != "causal":
        mask = torch.randn(KEYS, KEYS) if kind == "pairs" else mask != 0
    for _ in range(2):
        x = torch.randn(BATCH, KEYS, SIZE)
        right = theirs(x, x, x, attn_mask=mask)
        for came, expected in zip(compiled(x, x, x, attn_mask=mask), right, strict=True):
            torch.testing.assert_close(came, expected)


def test_a_bias_that_is_learnt() -> None:
    theirs, ours = pair(batch_first=True)
    x, found = torch.randn(BATCH, KEYS, SIZE, dtype=torch.float64), []
    bias = torch.randn(KEYS, KEYS, dtype=torch.float64).masked_fill(torch.ones(KEYS, KEYS).triu(1).bool(), -math.inf)
    bias.requires_grad_()
    for each in (theirs, ours):
        found.append(torch.autograd.grad(each(x, x, x, attn_mask=bias)[0].sin().sum(), bias)[0].nan_to_num())
    torch.testing.assert_close(found[1], found[0])
