"""What a change in the recurrence's kernels could get wrong in silence."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import kit
from dikkat import scores
from dikkat.recurrent import AttentionalGRU, AttentionalLSTM, GRUEncoder, LSTMEncoder

BATCH, STEPS, POSITIONS, INPUT, HIDDEN = 3, 2, 11, 2, 13
DECODERS = [AttentionalGRU, AttentionalLSTM]


@kit.each("kind", [torch.float32, torch.float64])
@kit.each("size", [30.0, 42.0, 43.5, 44.2, 50.0, 59.0, 350.0, 360.0])
def test_queries_and_keys_that_are_far_from_0_and_near_each_other(size: float, kind: torch.dtype) -> None:
    """Where the exponentials of both are far apart, and where one or the other has none: their sum is of size one."""
    torch.manual_seed(0)
    module = AttentionalGRU(INPUT, HIDDEN, HIDDEN, scores.Additive(HIDDEN, HIDDEN, HIDDEN)).to(kind)
    with torch.no_grad():
        module.score.W_q.weight.copy_(-size * torch.eye(HIDDEN))
        module.score.W_k.weight.copy_(torch.eye(HIDDEN))
        module.score.w_v.weight.normal_()
    inputs = torch.randn(BATCH, 1, INPUT, dtype=kind)
    encoded = (size - 2 * torch.rand(BATCH, POSITIONS, HIDDEN)).to(kind)
    found = {}
    for impl in ("numba", "reference"):
        given = encoded.clone().requires_grad_()
        state = torch.ones(1, BATCH, HIDDEN, dtype=kind)
        _, _, weights, _ = module(inputs, module.prepare(given), state, return_weights=True, impl=impl)
        loss = (weights * torch.arange(weights.numel()).reshape(weights.shape).cos()).sum()
        wanted = [given, module.score.w_v.weight, module.score.W_q.weight]
        found[impl] = [weights.detach(), *torch.autograd.grad(loss, wanted)]
    for one, other in zip(found["numba"], found["reference"], strict=True):
        allowed = (2e-5 if kind == torch.float32 else 1e-13) * other.abs().max()
        assert (one - other).abs().max() <= allowed


@pytest.mark.parametrize("score", ["additive", "dot"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_a_nan_that_comes_from_above_for_a_hidden_key_is_nothing(decoder: type[nn.Module], score: str) -> None:
    """As of the entropy of weights, whose derivative at 0 is none."""
    torch.manual_seed(1)
    made = scores.Additive(HIDDEN, HIDDEN, 17) if score == "additive" else scores.Dot()
    module = decoder(INPUT, HIDDEN, HIDDEN, made).double()
    inputs = torch.randn(BATCH, STEPS, INPUT, dtype=torch.float64)
    encoded = torch.randn(BATCH, POSITIONS, HIDDEN, dtype=torch.float64, requires_grad=True)
    state = torch.randn(1, BATCH, HIDDEN, dtype=torch.float64)
    state = state if decoder is AttentionalGRU else (state, state)
    seen = torch.tensor([5, 11, 0])
    above = torch.randn(BATCH, STEPS, POSITIONS, dtype=torch.float64)
    above = above.masked_fill(torch.arange(POSITIONS) >= seen[:, None, None], torch.nan)
    leaves = [encoded, *module.parameters()]
    found = {}
    for impl in ("numba", "reference"):
        weights = module(inputs, module.prepare(encoded, seen), state, return_weights=True, impl=impl)[2]
        grads = torch.autograd.grad(weights, leaves, above, allow_unused=True)
        found[impl] = [torch.zeros_like(t) if g is None else g for t, g in zip(leaves, grads, strict=True)]
    for one, other in zip(found["numba"], found["reference"], strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kernel", [scores.Epanechnikov, scores.Triangular])
def test_a_key_on_the_edge_of_the_support(kernel: type[scores.Score]) -> None:
    """At r = 1 the slope has a pole, where a pair has weight 0 and no gradient."""
    torch.manual_seed(2)
    module = AttentionalGRU(INPUT, HIDDEN, HIDDEN, kernel(1.0)).double()
    encoded = torch.zeros(BATCH, POSITIONS, HIDDEN, dtype=torch.float64)
    encoded[:, torch.arange(POSITIONS), torch.arange(POSITIONS)] = torch.linspace(0.0, 1.0, POSITIONS).double()
    encoded.requires_grad_()
    inputs, state = torch.randn(BATCH, 1, INPUT).double(), torch.zeros(1, BATCH, HIDDEN, dtype=torch.float64)
    found = {}
    for impl in ("numba", "reference"):
        given = state.clone().requires_grad_()
        outputs, contexts, weights, _ = module(inputs, module.prepare(encoded), given, return_weights=True, impl=impl)
        found[impl] = torch.autograd.grad(
            (outputs.sin() + contexts.cos()).sum() + weights.square().sum(), [encoded, given]
        )
        assert not weights[..., -1].any()
    for one, other in zip(found["numba"], found["reference"], strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-13)


def _unrolled(network: nn.Module, inputs: Tensor) -> np.ndarray:
    """A GRU or an LSTM of one layer in long double, by its formulas."""

    def wide(tensor: Tensor) -> np.ndarray:
        return tensor.detach().numpy().astype(np.longdouble)

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))

    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    w_ih, w_hh, b_ih, b_hh = (wide(getattr(network, name)) for name in names)
    size = network.hidden_size
    state, cell = (np.zeros((inputs.shape[0], size), np.longdouble) for _ in range(2))
    found = []
    for x in wide(inputs.transpose(0, 1)):
        a, b = x @ w_ih.T + b_ih, state @ w_hh.T + b_hh
        if isinstance(network, nn.LSTM):
            into, forget, candidate, out = np.split(a + b, 4, axis=1)
            cell = sigmoid(forget) * cell + sigmoid(into) * np.tanh(candidate)
            state = sigmoid(out) * np.tanh(cell)
        else:
            (a_r, a_z, a_n), (b_r, b_z, b_n) = np.split(a, 3, axis=1), np.split(b, 3, axis=1)
            reset, update = sigmoid(a_r + b_r), sigmoid(a_z + b_z)
            candidate = np.tanh(a_n + reset * b_n)
            state = candidate + update * (state - candidate)
        found.append(state)
    return np.stack(found, 1)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="a long double here has no more digits than a double")
@kit.each("kind", [torch.float32, torch.float64])
@kit.each("size", [0.1, 1.0, 10.0])
@kit.each("encoder", [GRUEncoder, LSTMEncoder])
def test_outputs_have_all_the_digits_of_their_type(encoder: type[nn.Module], size: float, kind: torch.dtype) -> None:
    """Beside long double: at most twice PyTorch's error, and four units of the largest state there is, 1."""
    torch.manual_seed(4)
    module = encoder(7, 29, 1, False).to(kind)
    inputs = size * torch.randn(5, 23, 7, dtype=kind)
    lengths = torch.full((5,), 23)
    exact = _unrolled(module.gru if encoder is GRUEncoder else module.lstm, inputs)
    with torch.no_grad():
        mine, torchs = (
            np.abs(module(inputs, lengths, impl=impl)[0].numpy() - exact).max() for impl in ("numba", "reference")
        )
    assert mine <= 2 * torchs + 4 * torch.finfo(kind).eps, f"{mine:.3g}, PyTorch's {torchs:.3g}"
