import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import dikkat
import kit
from dikkat import scores

BATCH, QUERIES, KEYS, HEADS = 2, 3, 5, 4


def tensors(query: int, key: int, value: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    return (
        torch.randn(BATCH, QUERIES, query, dtype=dtype),
        torch.randn(BATCH, KEYS, key, dtype=dtype),
        torch.randn(BATCH, KEYS, value, dtype=dtype),
    )


SINGLE: list[tuple[Any, Any, int, int]] = [
    (lambda p: dikkat.AdditiveAttention(7, 6, 11, p), lambda: scores.Additive(7, 6, 11), 6, 7),
    (dikkat.DotProductAttention, scores.ScaledDot, 6, 6),
    (lambda p: dikkat.BilinearAttention(7, 6, p), lambda: scores.Bilinear(7, 6), 6, 7),
]


@pytest.mark.parametrize(("make", "score", "query", "key"), SINGLE)
def test_a_layer_is_its_score_and_dropout_in_training_only(make: Any, score: Any, query: int, key: int) -> None:
    layer = make(0.5).double()
    given = tensors(query, key, 13)
    lens = torch.tensor([2, 4])
    own = score().double()
    own.load_state_dict(layer.score.state_dict())
    layer.eval()
    expected = dikkat.attend(*given, score=own, valid_lens=lens)
    torch.testing.assert_close(layer(*given, lens), expected)
    output, weights = layer(*given, lens, return_weights=True)
    torch.testing.assert_close(output, expected)
    assert weights.shape == (BATCH, QUERIES, KEYS)
    assert bool((weights[0, :, 2:] == 0).all())
    layer.train()
    assert not torch.equal(layer(*given, lens), expected)
    assert [name for name in vars(layer) if isinstance(getattr(layer, name), Tensor)] == []


def test_kernel_attention_pools_like_nadaraya_watson() -> None:
    x, y, at = (torch.rand(n, 1, dtype=torch.float64) for n in (31, 31, 7))
    layer = dikkat.KernelAttention(bandwidth=0.2, learnable=True).double()
    kernel = torch.exp(-((at - x.T) ** 2) / (2 * 0.2**2))
    torch.testing.assert_close(layer(at, x, y), kernel @ y / kernel.sum(1, keepdim=True), rtol=1e-6, atol=1e-7)
    assert [name for name, _ in layer.named_parameters()] == ["score.log_bandwidth"]


def test_a_learned_bandwidth_goes_where_the_error_falls() -> None:
    torch.manual_seed(0)
    x = torch.rand(50, 1, dtype=torch.float64) * 5
    y = 2 * x.sin() + x**0.8 + 0.3 * torch.randn(50, 1, dtype=torch.float64)
    layer = dikkat.KernelAttention(bandwidth=3.0, learnable=True).double()
    itself = torch.arange(50)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    losses = []
    for _ in range(120):
        optimizer.zero_grad()
        loss = (layer(x, x, y, exclude=itself) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 3
    assert 0.05 < layer.score.bandwidth.item() < 1


def test_self_attention_against_the_formula_head_by_head() -> None:
    torch.manual_seed(0)
    layer = dikkat.SelfAttention(embed_dim=5, key_dim=6, value_dim=8, num_heads=2).double()
    x = torch.randn(BATCH, KEYS, 5, dtype=torch.float64)
    q, k, v = (x @ w.weight.T for w in (layer.W_q, layer.W_k, layer.W_v))
    heads = [
        torch.softmax(q[..., 3 * h : 3 * h + 3] @ k[..., 3 * h : 3 * h + 3].mT / math.sqrt(3), -1)
        @ v[..., 4 * h : 4 * h + 4]
        for h in range(2)
    ]
    output, weights = layer(x, return_weights=True)
    torch.testing.assert_close(output, torch.cat(heads, -1))
    assert weights.shape == (BATCH, 2, KEYS, KEYS)


def test_self_attention_without_parameters() -> None:
    x = torch.randn(BATCH, KEYS, 3, dtype=torch.float64)
    torch.testing.assert_close(dikkat.self_attention(x), torch.softmax(x @ x.mT, -1) @ x)
    lens = torch.tensor([1, 3])
    torch.testing.assert_close(dikkat.self_attention(x, lens)[0], x[0, :1].expand(KEYS, 3))
    assert dikkat.self_attention(x, return_weights=True, impl="reference")[1].shape == (BATCH, KEYS, KEYS)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [(None, None), (7, 10)])
def test_multi_head_attention_is_torchs(bias: bool, sizes: tuple[int | None, int | None]) -> None:
    """Figure: 1e-10 in float64, from the same state dict, with padding masks; weights and gradients too."""
    torch.manual_seed(0)
    kdim, vdim = sizes
    theirs = nn.MultiheadAttention(12, HEADS, bias=bias, kdim=kdim, vdim=vdim, batch_first=True, dtype=torch.float64)
    ours = dikkat.MultiHeadAttention(12, HEADS, key_size=kdim, value_size=vdim, bias=bias).double()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    copy.deepcopy(theirs).load_state_dict(ours.state_dict(), strict=True)
    query, key, value = tensors(12, kdim or 12, vdim or 12)
    lens = torch.tensor([2, 5])
    padding = torch.arange(KEYS) >= lens[:, None]
    expected = theirs(query, key, value, key_padding_mask=padding, average_attn_weights=False)
    came = ours(query, key, value, lens, return_weights=True)
    for c, e in zip(came, expected, strict=True):
        torch.testing.assert_close(c, e, rtol=0, atol=1e-10)
    mask = torch.rand(QUERIES, KEYS) < 0.7
    mask[:, 0] = True
    expected = theirs(query, key, value, key_padding_mask=padding, attn_mask=~mask)[0]
    came = ours(query, key, value, lens, mask=mask)
    torch.testing.assert_close(came, expected, rtol=0, atol=1e-10)
    expected.sin().sum().backward()
    came.sin().sum().backward()
    for (name, p), (other, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert name == other
        assert p.grad is not None
        assert q.grad is not None
        torch.testing.assert_close(p.grad, q.grad, rtol=0, atol=1e-10)


def test_multi_head_attention_starts_as_torchs_does() -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(64, HEADS)
    ours = dikkat.MultiHeadAttention(64, HEADS)
    for (name, p), (_, q) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert p.shape == q.shape
        assert abs(p.std() - q.std()) < 0.1 * q.std() + 1e-3, name


@pytest.mark.parametrize(
    "score", [None, scores.Additive(3, 3, 7), scores.Gaussian(1.5, learnable=True), scores.Bilinear(3, 3)]
)
def test_head_h_of_token_t_is_its_share_of_the_features(score: scores.Score | None) -> None:
    """Against one `attend` a head on sliced features, for sizes that all differ."""
    torch.manual_seed(0)
    layer = dikkat.MultiHeadAttention(
        6, HEADS, key_size=7, value_size=5, key_dim=12, value_dim=8, score=score, bias=False
    ).double()
    query, key, value = tensors(6, 7, 5)
    lens = torch.tensor([0, 4])
    q, k, v = query @ layer.q_proj_weight.T, key @ layer.k_proj_weight.T, value @ layer.v_proj_weight.T
    heads = [
        dikkat.attend(
            q[..., 3 * h : 3 * h + 3],
            k[..., 3 * h : 3 * h + 3],
            v[..., 2 * h : 2 * h + 2],
            score=layer.score,
            valid_lens=lens,
        )
        for h in range(HEADS)
    ]
    came = layer(query, key, value, lens)
    torch.testing.assert_close(came, torch.cat(heads, -1) @ layer.out_proj.weight.T)
    assert bool((came[0] == 0).all())
    own = {name for name in layer.state_dict() if name.startswith("score.")}
    assert own == {f"score.{name}" for name in (score or scores.ScaledDot()).state_dict()}


def test_heads_drop_weights_in_training_only() -> None:
    layer = dikkat.MultiHeadAttention(12, HEADS, dropout=0.5).double()
    plain = dikkat.MultiHeadAttention(12, HEADS).double()
    plain.load_state_dict(layer.state_dict())
    given = tensors(12, 12, 12)
    torch.testing.assert_close(layer.eval()(*given), plain(*given))
    layer.train()
    assert not torch.allclose(layer(*given), plain(*given))
    torch.manual_seed(3)
    first = layer(*given)
    torch.manual_seed(3)
    torch.testing.assert_close(layer(*given), first, rtol=0, atol=0)


def test_restrictions_hold_for_all_heads_or_for_one() -> None:
    layer = dikkat.MultiHeadAttention(12, HEADS).double().eval()
    given = tensors(12, 12, 12)
    mask = torch.rand(BATCH, QUERIES, KEYS) < 0.7
    bias = torch.randn(BATCH, KEYS, dtype=torch.float64)
    exclude = torch.randint(-1, KEYS, (BATCH, QUERIES))
    shared = layer(*given, mask=mask, key_bias=bias, exclude=exclude, return_weights=True)
    spelt = layer(
        *given,
        mask=mask[:, None].expand(-1, HEADS, -1, -1),
        key_bias=bias[:, None].expand(-1, HEADS, -1),
        exclude=exclude[:, None].expand(-1, HEADS, -1),
        return_weights=True,
    )
    torch.testing.assert_close(shared, spelt)
    assert bool((shared[1][~mask[:, None].expand_as(shared[1])] == 0).all())
    # One element alone is that element of the batch.
    alone = layer(*(t[1] for t in given), mask=mask[1], key_bias=bias[1], exclude=exclude[1])
    torch.testing.assert_close(alone, shared[0][1])
    torch.testing.assert_close(layer(*(t[1] for t in given), 2), layer(*given, torch.tensor([2, 2]))[1])
    per_query = torch.tensor([1, 0, 5])
    torch.testing.assert_close(
        layer(*(t[1] for t in given), per_query), layer(*given, torch.stack([per_query, per_query]))[1]
    )


@pytest.mark.parametrize(
    "make", [lambda: dikkat.MultiHeadAttention(12, HEADS), lambda: dikkat.SelfAttention(12, 8, 8, 4)]
)
def test_padding_that_holds_nan_reaches_no_parameter(make: Any) -> None:
    layer = make().double()
    x = tensors(12, 12, 12)[1]
    lens = torch.tensor([2, 5])
    padding = (torch.arange(KEYS) >= lens[:, None])[..., None]
    keys = x.masked_fill(padding, math.nan)
    if isinstance(layer, dikkat.SelfAttention):
        # Its queries come from the same tokens: those of the padding are to be cut off by their own length of 0.
        limits = torch.where(padding[..., 0], 0, lens[:, None])
        out, clean = layer(keys, limits), layer(x, limits)
    else:
        out, clean = layer(x, keys, keys, lens), layer(x, x, x, lens)
    torch.testing.assert_close(out, clean)
    out.sin().sum().backward()
    grads = [p.grad.clone() for p in layer.parameters() if p.grad is not None]
    layer.zero_grad()
    clean.sin().sum().backward()
    for came, parameter in zip(grads, layer.parameters(), strict=True):
        torch.testing.assert_close(came, parameter.grad)


def test_layers_under_vmap_and_compile() -> None:
    layer = dikkat.MultiHeadAttention(12, HEADS, score=scores.Additive(3, 3, 7)).double().eval()
    given = tensors(12, 12, 12)
    lens = torch.tensor([2, 4])
    expected = layer(*given, lens)
    torch.testing.assert_close(torch.vmap(layer)(*given, lens), expected)
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*given, lens), expected)


def test_layers_under_autocast() -> None:
    layer = dikkat.MultiHeadAttention(12, HEADS)
    given = tensors(12, 12, 12, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(*given, torch.tensor([2, 4]))
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), layer(*given, torch.tensor([2, 4])), rtol=0.05, atol=0.05)


@kit.each(
    ("make", "error", "message"),
    [
        (lambda: dikkat.MultiHeadAttention(10, 4), ValueError, "key_dim, num_heads: got 10 and 4"),
        (lambda: dikkat.MultiHeadAttention(8, 4, value_dim=6), ValueError, "value_dim, num_heads: got 6 and 4"),
        (lambda: dikkat.SelfAttention(8, 8, 8, 0), ValueError, "num_heads: got 0"),
        (lambda: dikkat.AdditiveAttention(0, 3, 5), ValueError, "key_size: got 0"),
        (lambda: dikkat.AdditiveAttention(3, 3, 5.0), TypeError, "num_hiddens: got 5.0"),  # type: ignore[arg-type]
        (lambda: dikkat.DotProductAttention(1.5), ValueError, "dropout: got 1.5"),
        (lambda: dikkat.KernelAttention(0.0), ValueError, "bandwidth: got 0.0; expected positive"),
        (lambda: dikkat.KernelAttention(math.nan), ValueError, "bandwidth: got nan"),
        (lambda: dikkat.KernelAttention("wide"), TypeError, "bandwidth: got 'wide'"),  # type: ignore[arg-type]
        (lambda: dikkat.KernelAttention(None), TypeError, "bandwidth: got None"),  # type: ignore[arg-type]
        (lambda: dikkat.KernelAttention([1.0, -2.0]), ValueError, r"bandwidth: got \[1.0, -2.0\]"),
        (lambda: dikkat.KernelAttention(torch.ones(2, 2)), ValueError, r"bandwidth: got shape \(2, 2\)"),
        (lambda: dikkat.KernelAttention([1.0, 2.0])(*tensors(3, 3, 3)), ValueError, "got 3 features; expected 2"),
        (lambda: dikkat.MultiHeadAttention(8, 4).double()(*tensors(8, 8, 7)), ValueError, r"value: .*\(\.\.\., 8\)"),
        (lambda: dikkat.DotProductAttention()(*tensors(8, 8, 8), maks=None), TypeError, "maks: got an unknown"),
        (
            lambda: dikkat.MultiHeadAttention(8, 4)(*tensors(8, 8, 8, torch.float32), key_padding_mask=None),
            TypeError,
            "key_padding_mask: got an unknown argument; .* is valid_lens",
        ),
        (lambda: dikkat.MultiHeadAttention(8, 4)(*tensors(8, 8, 8)), TypeError, "query: got dtype torch.float64"),
        (lambda: dikkat.MultiHeadAttention(8, 4)([1.0], *tensors(8, 8, 8)[1:]), TypeError, "query: got list"),
        (lambda: dikkat.MultiHeadAttention(8, 2.0), TypeError, "num_heads: got 2.0"),  # type: ignore[arg-type]
        (lambda: dikkat.MultiHeadAttention(8, 4, key_size=-3), ValueError, "key_size: got -3"),
        (lambda: dikkat.MultiHeadAttention(8, 4, score="dot"), TypeError, "score: got 'dot'"),  # type: ignore[arg-type]
        (lambda: dikkat.MultiHeadAttention(8, 4, dropout=True), TypeError, "dropout: got bool"),
        (lambda: dikkat.SelfAttention(8, 8, 8)(tensors(8, 8, 7)[2].float()), ValueError, "x: got 7 features"),
        (
            lambda: dikkat.MultiHeadAttention(8, 4)(torch.zeros(3, 8), torch.zeros(2, 5, 8), torch.zeros(2, 5, 8)),
            ValueError,
            "all with a batch dimension, or none",
        ),
        (
            lambda: dikkat.MultiHeadAttention(8, 4)(torch.zeros(2, 3, 8), torch.zeros(2, 5, 8), torch.zeros(2, 4, 8)),
            ValueError,
            "value: got 4 rows",
        ),
    ],
)
def test_errors(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


class _Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


WRAPPINGS: dict[str, Any] = {
    "pruned": lambda layer, name: prune.random_unstructured(layer, name, 0.5),
    "pruned by size": lambda layer, name: prune.l1_unstructured(layer, name, 0.3),
    "weight norm, old": lambda layer, name: nn.utils.weight_norm(layer, name),
    "weight norm": lambda layer, name: nn.utils.parametrizations.weight_norm(layer, name),
    "spectral norm, old": lambda layer, name: nn.utils.spectral_norm(layer, name),
    "spectral norm": lambda layer, name: nn.utils.parametrizations.spectral_norm(layer, name),
    "parametrized": lambda layer, name: nn.utils.parametrize.register_parametrization(layer, name, _Doubled()),
}


@kit.each("train", [True, False])
@kit.each("sizes", [{}, {"kdim": 5, "vdim": 7}])
@kit.each("wrapping", WRAPPINGS)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
def test_wrapped_parameters_are_those_that_torch_takes(wrapping: str, sizes: dict[str, int], train: bool) -> None:
    theirs = nn.MultiheadAttention(6, 2, batch_first=True, dtype=torch.float64, **sizes)
    ours = dikkat.MultiHeadAttention(6, 2, key_size=sizes.get("kdim"), value_size=sizes.get("vdim")).double()
    nn.init.normal_(theirs.in_proj_bias)
    ours.load_state_dict(theirs.state_dict())
    given = tensors(6, sizes.get("kdim", 6), sizes.get("vdim", 6))
    weights = ["q_proj_weight", "k_proj_weight", "v_proj_weight"] if sizes else ["in_proj_weight"]
    for name in (*weights, "in_proj_bias"):
        if name == "in_proj_bias" and "norm" in wrapping:
            continue  # which are for matrices
        for layer in (theirs, ours):
            torch.manual_seed(0)
            WRAPPINGS[wrapping](layer.train(train), name)
    for _ in range(2):  # spectral norm goes a step further at each call in training
        found, right = ours(*given), theirs(*given)[0]
        torch.testing.assert_close(found, right)
    for output in (found, right):
        output.square().sum().backward()
    for (name, one), (other_name, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert name == other_name
        torch.testing.assert_close(one.grad, other.grad)
    lens = torch.tensor([2, 4])
    hidden = torch.arange(KEYS) >= lens[:, None]
    torch.testing.assert_close(ours.eval()(*given, lens), theirs.eval()(*given, key_padding_mask=hidden)[0])


def test_a_replica_has_the_parameters_of_its_layer() -> None:
    """As `DataParallel` makes one on another device: its parameters are attributes, plain tensors."""
    for sizes in ({}, {"key_size": 5}):
        layer = dikkat.MultiHeadAttention(6, 2, **sizes).double()
        nn.init.normal_(layer.in_proj_bias)
        given = tensors(6, sizes.get("key_size", 6), 6)
        replica = layer._replicate_for_data_parallel()
        for name, parameter in layer._parameters.items():
            if parameter is None:
                replica._parameters[name] = None
            else:
                setattr(replica, name, parameter.detach().clone().requires_grad_())
        replica.out_proj = layer.out_proj
        torch.testing.assert_close(replica(*given), layer(*given))
