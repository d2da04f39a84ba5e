import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch.nn import functional as F

import kit
from dikkat.translation import linear_cross_entropy
from dikkat.translation.network import loss as module

TOKENS, FEATURES, VOCABULARY = 13, 5, 11
NAMES = ("features", "weight", "bias")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Several chunks, of which the last is not full."""
    monkeypatch.setattr(module, "_MIN_ROWS", 4)
    monkeypatch.setattr(module, "_CHUNK_BYTES", 0)


def operands(dtype=torch.float64, tokens=TOKENS, vocabulary=VOCABULARY, size=1.0, seed=0):
    """Numbers that `dtype` holds exactly, and targets."""
    made = torch.Generator().manual_seed(seed)
    shapes = ((tokens, FEATURES), (vocabulary, FEATURES), (vocabulary,))
    tensors = [torch.randn(shape, generator=made, dtype=torch.float64).mul(size).to(dtype) for shape in shapes]
    return [t.requires_grad_() for t in tensors], torch.randint(vocabulary, (tokens,), generator=made)


def plain(features, weight, bias, target, **options):
    return F.cross_entropy(F.linear(features, weight, bias), target, **options)


def results(function, tensors, target, upstream=1.0, **options):
    """The loss and its gradients, by name, in float64."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    loss = function(*leaves, target, **options)
    loss.backward(torch.tensor(upstream, dtype=loss.dtype))
    assert all(leaf.grad.dtype == leaf.dtype for leaf in leaves)
    return {"loss": loss.detach().double()} | {n: leaf.grad.double() for n, leaf in zip(NAMES, leaves, strict=True)}


def absolute_sums(tensors, target, upstream, reduction):
    """S: the sums of absolute values that the loss and the gradients are, at their largest."""
    features, weight, bias = (t.detach().double() for t in tensors)
    scores = features.abs() @ weight.abs().T + bias.abs()
    each = upstream / (len(target) if reduction == "mean" else 1)
    # |p − target − spread| ≤ p + target + spread; a probability's error is its score's.
    errors = (scores.max() + 1) * each
    slope = (F.linear(features, weight, bias).softmax(-1) + F.one_hot(target, len(weight)) + 1 / len(weight)) * errors
    return {
        "loss": 2 * (scores.max() + math.log(len(weight))) * each * len(target),
        "features": (slope @ weight.abs()).max(),
        "weight": (slope.T @ features.abs()).max(),
        "bias": slope.sum(0).max(),
    }


def assert_within_budget(tensors, target, upstream=1.0, autocast=None, **options):
    wide = [t.detach().double() for t in tensors]
    exact = results(plain, wide, target, upstream, **options)
    with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
        rough = results(plain, tensors, target, upstream, **options)
        found = results(linear_cross_entropy, tensors, target, upstream, **options)
    eps = torch.finfo(autocast or tensors[0].dtype).eps
    sums = absolute_sums(tensors, target, abs(upstream), options.get("reduction", "mean"))
    for name, value in found.items():
        error, plain_error = ((each[name] - exact[name]).abs().max() for each in (found, rough))
        assert value.shape == exact[name].shape
        assert error <= 2 * plain_error + 4 * eps * sums[name], name


@kit.each("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@kit.each("label_smoothing", [0.0, 0.1])
@kit.each("reduction", ["mean", "sum"])
@kit.each("upstream", [1.0, -2.5])
def test_loss_and_gradients_are_those_of_plain_pytorch_in_float64(dtype, label_smoothing, reduction, upstream):
    tensors, target = operands(dtype)
    assert_within_budget(tensors, target, upstream, label_smoothing=label_smoothing, reduction=reduction)


def two_passes(features, weight, bias, target, *, r_drop, reduction="mean", **options):
    """The mean of two passes' losses, and a quarter of r_drop times PyTorch's divergences in both directions."""
    first, second = F.linear(features, weight, bias).chunk(2)
    p, q = first.log_softmax(1), second.log_softmax(1)
    apart = sum(F.kl_div(*each, reduction="sum", log_target=True) for each in ((p, q), (q, p)))
    losses = [F.cross_entropy(each, target, reduction="sum", **options) for each in (first, second)]
    return (sum(losses) / 2 + r_drop / 4 * apart) / (len(target) if reduction == "mean" else 1)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float64, 1.0), (torch.float64, 30.0), (torch.float32, 1.0)])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("kernel", [True, False])
def test_two_passes_that_diverge(dtype, reduction, kernel, size, monkeypatch):
    if not kernel:
        monkeypatch.setattr(module, "runs", lambda _: False)
    tensors, target = operands(dtype, tokens=2 * TOKENS, size=size)
    options = {"r_drop": 1.7, "label_smoothing": 0.1, "reduction": reduction}
    wanted = results(two_passes, [t.double() for t in tensors], target[:TOKENS], 3.0, **options)
    found = results(linear_cross_entropy, tensors, target[:TOKENS], 3.0, **options)
    close = {"rtol": 1e-10, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 2e-5, "atol": 2e-5}
    torch.testing.assert_close(found, wanted, **close)


def test_two_passes_are_checked():
    (features, weight, bias), target = operands()
    with pytest.raises(ValueError, match=r"of two passes, features\), tokens ≥ 1"):
        linear_cross_entropy(features, weight, bias, target, r_drop=1.0)
    with pytest.raises(ValueError, match=r"target: got shape \(13,\); expected \(6,\)"):
        linear_cross_entropy(features[:12], weight, bias, target, r_drop=1.0)
    with pytest.raises(ValueError, match="r_drop: got -1"):
        linear_cross_entropy(features, weight, bias, target, r_drop=-1)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16])
def test_under_autocast(autocast, label_smoothing):
    tensors, target = operands(torch.float32, tokens=29)
    assert_within_budget(tensors, target, autocast=autocast, label_smoothing=label_smoothing)


def test_autocast_takes_features_that_are_narrow_already_and_leaves_float64_alone():
    (features, weight, bias), target = operands(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        narrow = linear_cross_entropy(features.bfloat16(), weight, bias, target)
        assert narrow.dtype == torch.float32
        assert torch.equal(narrow, linear_cross_entropy(features, weight, bias, target))
        double = linear_cross_entropy(features.double(), weight.double(), bias.double(), target)
    assert torch.equal(double, linear_cross_entropy(features.double(), weight.double(), bias.double(), target))


def test_products_under_autocast_are_in_its_dtype():
    """Features that bfloat16 rounds to one another have one loss."""
    (features, weight, bias), target = operands(torch.float32)
    nudged = features * (1 + 2**-12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = [linear_cross_entropy(x.bfloat16().float(), weight, bias, target) for x in (features, nudged)]
        found = [linear_cross_entropy(x, weight, bias, target) for x in (features, nudged)]
    assert found == rounded
    plain_losses = [linear_cross_entropy(x, weight, bias, target) for x in (features, nudged)]
    assert plain_losses[0] != plain_losses[1]


def test_the_weights_gradient_is_added_up_in_float32():
    """1,024 chunks of gradients of one sign: in bfloat16 the sum would stop growing at 256 times one."""
    features = torch.ones(4096, 1, dtype=torch.float32)
    weight = torch.zeros(2, 1, dtype=torch.float32, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        linear_cross_entropy(features, weight, None, torch.zeros(4096, dtype=torch.int64), reduction="sum").backward()
    assert weight.grad.tolist() == [[-2048.0], [2048.0]]


@hypothesis_settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 9), st.integers(1, 7), st.sampled_from([1e-3, 1.0, 60.0]), st.sampled_from([0.0, 0.1, 1.0]),
    st.sampled_from(["mean", "sum"]),
)  # fmt: skip
def test_any_size(tokens, vocabulary, size, label_smoothing, reduction):
    for dtype in (torch.float32, torch.float64):
        tensors, target = operands(dtype, tokens, vocabulary, size, seed=tokens)
        assert_within_budget(tensors, target, label_smoothing=label_smoothing, reduction=reduction)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_huge_scores_are_right_and_finite(label_smoothing):
    features = torch.tensor([[1e4], [-1e4], [1e4]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0], [0.5]], requires_grad=True)
    bias, target = torch.zeros(3, requires_grad=True), torch.tensor([0, 0, 2])
    assert_within_budget([features, weight, bias], target, label_smoothing=label_smoothing)
    loss = linear_cross_entropy(features, weight, bias, target, label_smoothing=label_smoothing, reduction="sum")
    # scores (1, −1, ½)·±1e4; the largest has probability 1, and s/3 of the weight is on every token
    s = label_smoothing
    by_hand = s / 3 * (2e4 + 5e3) + ((1 - s) * 2e4 + s / 3 * (2e4 + 1.5e4)) + ((1 - s) * 5e3 + s / 3 * (2e4 + 5e3))
    assert loss.item() == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize("kernel", [True, False])
def test_a_token_that_neither_of_two_passes_allows(kernel, monkeypatch):
    if not kernel:
        monkeypatch.setattr(module, "runs", lambda _: False)
    (features, weight, bias), target = operands(tokens=2 * TOKENS)
    target = target[:TOKENS].clamp(max=VOCABULARY - 2)
    bias = bias.detach().clone()
    bias[-1] = -math.inf
    found = linear_cross_entropy(features, weight, bias, target, r_drop=2.0)
    torch.testing.assert_close(found, two_passes(features, weight[:-1], bias[:-1], target, r_drop=2.0))
    found.backward()
    assert torch.equal(weight.grad[-1], torch.zeros(FEATURES, dtype=torch.float64))
    assert features.grad.isfinite().all()


def test_a_score_of_minus_infinity_is_a_token_that_cannot_be():
    (features, weight, bias), target = operands()
    target = target.clamp(max=VOCABULARY - 2)
    bias = bias.detach().clone()
    bias[-1] = -math.inf
    found = linear_cross_entropy(features, weight, bias, target)
    torch.testing.assert_close(found, plain(features, weight[:-1], bias[:-1], target))
    found.backward()
    assert torch.equal(weight.grad[-1], torch.zeros(FEATURES, dtype=torch.float64))


@pytest.mark.parametrize("wanted", [set(c) for r in range(1, 3) for c in itertools.combinations(NAMES, r)])
def test_gradients_that_nobody_wants_are_not_computed(wanted, monkeypatch):
    tensors, target = operands()
    exact = results(plain, tensors, target)
    for name, tensor in zip(NAMES, tensors, strict=True):
        tensor.requires_grad_(name in wanted)
    loss = linear_cross_entropy(*tensors, target)
    saved = dict(zip(NAMES, loss.grad_fn.saved_tensors, strict=True))
    assert {name for name, tensor in saved.items() if tensor is not None} == wanted
    loss.backward()
    for name, tensor in zip(NAMES, tensors, strict=True):
        if name in wanted:
            torch.testing.assert_close(tensor.grad, exact[name])
        else:
            assert tensor.grad is None


def test_without_gradients_none_are_computed(monkeypatch):
    tensors, target = operands()
    expected = plain(*tensors, target)
    monkeypatch.setattr(module, "_add_to_weight", lambda *_: pytest.fail("gradients were computed"))
    with torch.no_grad():
        found = linear_cross_entropy(*tensors, target)
    assert not found.requires_grad
    torch.testing.assert_close(found, expected.detach())
    torch.testing.assert_close(linear_cross_entropy(*(t.detach() for t in tensors), target), expected.detach())


def test_weights_that_embed_too_get_both_gradients():
    """Tied embeddings: what is looked up in the table adds to what the output layer gives."""

    def tied(function, table, bias, target):
        features = torch.tanh(table[target.roll(1)])
        return function(features, table, bias, target, label_smoothing=0.1)

    (_, table, bias), target = operands()
    wanted = torch.autograd.grad(tied(plain, table, bias, target), table)[0]
    alone = torch.autograd.grad(
        plain(torch.tanh(table[target.roll(1)]).detach(), table, bias, target, label_smoothing=0.1), table
    )[0]
    assert not torch.allclose(wanted, alone)
    torch.testing.assert_close(torch.autograd.grad(tied(linear_cross_entropy, table, bias, target), table)[0], wanted)


def test_backward_twice_gives_the_same_gradients_and_leaves_the_operands():
    tensors, target = operands()
    before = [t.detach().clone() for t in tensors]
    loss = linear_cross_entropy(*tensors, target)
    first = torch.autograd.grad(loss, tensors, torch.tensor(2.0, dtype=torch.float64), retain_graph=True)
    second = torch.autograd.grad(loss, tensors, torch.tensor(2.0, dtype=torch.float64))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close([t.detach() for t in tensors], before, rtol=0, atol=0)


def test_second_derivatives_are_refused():
    tensors, target = operands()
    loss = linear_cross_entropy(*tensors, target)
    with pytest.raises(RuntimeError, match="linear_cross_entropy: got create_graph=True; expected False"):
        torch.autograd.grad(loss, tensors, create_graph=True)


@kit.each(
    ("change", "error", "message"),
    [
        ({"features": torch.zeros(0, 5)}, ValueError, r"features: got shape \(0, 5\); expected \(tokens"),
        ({"features": torch.zeros(5)}, ValueError, r"features: got shape \(5,\)"),
        ({"weight": torch.zeros(11, 3)}, ValueError, r"weight: got shape \(11, 3\); expected \(11, 5\)"),
        ({"weight": torch.zeros(5)}, ValueError, r"weight: got shape \(5,\); expected \(1, 5\)"),
        ({"bias": torch.zeros(5)}, ValueError, r"bias: got shape \(5,\); expected \(11,\)"),
        ({"target": torch.zeros(3, dtype=torch.int64)}, ValueError, r"target: got shape \(3,\); expected \(13,\)"),
        ({"target": torch.full((13,), 11)}, ValueError, r"target: got 11…11; expected numbers from 0 to 10"),
        ({"target": torch.full((13,), -1)}, ValueError, r"target: got -1…-1"),
        ({"target": torch.zeros(13)}, TypeError, r"target: got torch\.float32; expected torch\.int64"),
        ({"weight": torch.zeros(11, 5).half()}, TypeError, r"weight: got torch\.float16; expected torch\.float32"),
        ({"bias": torch.zeros(11, dtype=torch.int64)}, TypeError, r"bias: got torch\.int64; expected floating"),
        ({"label_smoothing": 1.5}, ValueError, r"label_smoothing: got 1\.5; expected a number from 0 to 1"),
        ({"reduction": "none"}, ValueError, r"reduction: got 'none'; expected 'mean' or 'sum'"),
    ],
)
def test_what_does_not_fit_is_named(change, error, message):
    (features, weight, bias), target = operands(torch.float32)
    given = {"features": features, "weight": weight, "bias": bias, "target": target} | change
    with pytest.raises(error, match=message):
        linear_cross_entropy(**given)


def test_the_scores_are_never_whole_in_memory():
    """No tensor that is made has as many numbers as all scores would."""
    tensors, target = operands(torch.float32, tokens=89, vocabulary=97)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            largest = max(largest, out.numel() if isinstance(out, torch.Tensor) else 0)
            return out

    with Watch():
        linear_cross_entropy(*tensors, target, label_smoothing=0.1).backward()
    assert largest <= max(97 * FEATURES, 89 * FEATURES, 4 * 97)
