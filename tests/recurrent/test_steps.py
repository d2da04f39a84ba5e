"""The steps of PyTorch's operations: how many there are, what they read back, and their derivatives."""

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from test_fused import DECODERS, SCORES, assert_near, gradients, leaves, made, ran
from torch import Tensor

import kit
from dikkat import scores
from dikkat.recurrent import AttentionalGRU, AttentionalLSTM, cells
from operations import Operations


def _gru(input_gates: Tensor, hidden_gates: Tensor, state: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    (a_r, a_z, a_n), (b_r, b_z, b_n) = input_gates.chunk(3, 1), hidden_gates.chunk(3, 1)
    reset, update = torch.sigmoid(a_r + b_r), torch.sigmoid(a_z + b_z)
    candidate = torch.tanh(a_n + reset * b_n)
    new = (1 - update) * candidate + update * state
    return new, torch.cat([reset, update, candidate, state, b_n], 1)


def _gru_backward(grad: Tensor, kept: Tensor, _: bool) -> tuple[Tensor | None, ...]:
    reset, update, candidate, state, b_n = kept.chunk(5, 1)
    by_n = grad * (1 - update) * (1 - candidate**2)
    by_r = by_n * b_n * reset * (1 - reset)
    by_z = grad * (state - candidate) * update * (1 - update)
    gates, recurrent = torch.cat([by_r, by_z, by_n], 1), torch.cat([by_r, by_z, by_n * reset], 1)
    return gates, recurrent, grad * update, grad.new_empty(0), grad.new_empty(0)


def _lstm(input_gates: Tensor, hidden_gates: Tensor, cell: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    i, f, g, o = (input_gates + hidden_gates).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    after = f * cell + i * g
    return o * after.tanh(), after, torch.cat([i, f, g, o], 1)


def _lstm_backward(
    grad: Tensor | None, by_cell: Tensor | None, cell: Tensor, after: Tensor, kept: Tensor, _: bool
) -> tuple[Tensor, Tensor, Tensor]:
    i, f, g, o = kept.chunk(4, 1)
    grad = torch.zeros_like(cell) if grad is None else grad
    total = grad * o * (1 - after.tanh() ** 2) + (0 if by_cell is None else by_cell)
    parts = (
        total * g * i * (1 - i),
        total * cell * f * (1 - f),
        total * i * (1 - g**2),
        grad * after.tanh() * o * (1 - o),
    )
    return torch.cat(parts, 1), total * f, grad.new_empty(0)


@pytest.fixture(scope="module")
def stand_ins() -> Iterator[None]:
    """The fused cells of accelerators, by their formulas, for the CPU."""
    library = torch.library.Library("aten", "IMPL")
    for name, formula in {
        "_thnn_fused_gru_cell": _gru,
        "_thnn_fused_gru_cell_backward": _gru_backward,
        "_thnn_fused_lstm_cell": _lstm,
        "_thnn_fused_lstm_cell_backward_impl": _lstm_backward,
    }.items():
        library.impl(name, formula, "CPU")
    yield
    library._destroy()


@pytest.fixture
def fused(stand_ins: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "FUSED_DEVICES", {"cpu"})


def counted(steps: int, cell: str, score: str, **options: Any) -> tuple[Counter[str], Counter[str]]:
    """What a run of so many steps takes, forward and backward."""
    module, given = made(cell, score, 1, dtype=torch.float32, **options)
    inputs = given["inputs"].detach()[:, :1].repeat(1, steps, 1).requires_grad_()
    memory = module.prepare(given["encoded"], given["seen"])
    lengths = torch.full((len(inputs),), steps)
    with Operations() as forward:
        outputs, contexts, _, _ = module(inputs, memory, given["state"], lengths=lengths, impl="reference")
    with Operations() as backward:
        (outputs.sum() + contexts.sum()).backward()
    return forward.counted, backward.counted


@pytest.mark.parametrize(
    ("cell", "score", "most"),
    [
        ("gru", "additive", (7, 14)),
        ("lstm", "additive", (7, 14)),
        ("gru", "bilinear", (5, 10)),
        ("lstm", "dot", (5, 10)),
    ],
)
def test_a_step_is_few_operations(fused: None, cell: str, score: str, most: tuple[int, int]) -> None:
    few, many = counted(3, cell, score), counted(13, cell, score)
    per_step = [(after.total() - before.total()) / 10 for before, after in zip(few, many, strict=True)]
    assert per_step[0] <= most[0], few[0]
    assert per_step[1] <= most[1], few[1]


@kit.each("score", SCORES)
def test_no_value_is_read_on_the_way(fused: None, score: str) -> None:
    forward, backward = counted(3, "gru", score, weight_dropout=0.3)
    few = counted(2, "gru", score, weight_dropout=0.3)
    more = forward + backward - few[0] - few[1]
    assert more
    assert not [name for name in more if name.startswith("read")]


@pytest.mark.parametrize(
    ("cell", "layers", "score"),
    kit.pairwise({"cell": list(DECODERS), "layers": [1, 3], "score": ["additive", "dot", "gaussian"]}),
)
def test_fused_cells_give_what_the_formulas_give(
    stand_ins: None, monkeypatch: pytest.MonkeyPatch, cell: str, layers: int, score: str
) -> None:
    module, given = made(cell, score, layers, dropout=0.4 if layers > 1 else 0.0, weight_dropout=0.4)
    wanted, results = gradients(module, given, "reference"), ran(module, given, "reference")
    monkeypatch.setattr(cells, "FUSED_DEVICES", {"cpu"})
    assert_near(gradients(module, given, "reference"), wanted, 1e-12)
    for found, right in zip(ran(module, given, "reference"), results, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-12, atol=1e-13)


# Every score, and both cells in turn: that all pairs' gradients are those of the compiled steps is in test_fused.
@pytest.mark.parametrize(
    ("cell", "score"), list(zip(itertools.cycle(DECODERS), [each for each in SCORES if each != "boxcar"], strict=False))
)
def test_gradients_are_those_of_finite_differences(cell: str, score: str) -> None:
    module, given = made(cell, score, 2, hidden=3, dropout=0.4, weight_dropout=0.4)
    few = given["inputs"].detach()[:, :4].requires_grad_()
    given |= {"inputs": few, "lengths": given["lengths"].clamp(max=4)}
    wanted = [tensor for tensor in leaves(module, given).values() if tensor.requires_grad]

    def results(*_: Tensor) -> tuple[Tensor, ...]:
        return tuple(ran(module, given, "reference"))

    assert torch.autograd.gradcheck(results, wanted, fast_mode=True)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_a_second_backward_takes_the_steps_again(cell: str) -> None:
    """What a backward reads of the steps goes with it, while the outputs stay."""
    module, given = made(cell, "additive", 2)
    loss = ran(module, given, "reference")[0].sin().sum()
    wanted = [given["inputs"], given["encoded"], *module.parameters()]
    first, second = (torch.autograd.grad(loss, wanted, retain_graph=True) for _ in range(2))
    torch.testing.assert_close(second, first, rtol=0, atol=0)


def test_forward_mode_and_second_derivatives() -> None:
    """Forward mode goes the plain way; a second derivative is refused by name."""
    module, given = made("gru", "additive", 1)
    module.requires_grad_(False)
    encoded, state = given["encoded"].detach(), given["state"].detach()

    def output(inputs: Tensor) -> Tensor:
        return module(inputs, module.prepare(encoded), state, impl="reference")[0].sin().sum()

    inputs, tangent = given["inputs"].detach(), torch.randn_like(given["inputs"])
    _, along = torch.func.jvp(output, (inputs,), (tangent,))
    (grad,) = torch.autograd.grad(output(inputs.requires_grad_()), inputs, create_graph=True)
    torch.testing.assert_close(along, (grad * tangent).sum())
    with pytest.raises(RuntimeError, match="no second derivatives"):
        grad.sum().backward()
    module.requires_grad_()
    (grad,) = torch.autograd.grad(output(inputs), inputs, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):  # and not the part that goes round the steps
        torch.autograd.grad(grad.square().sum(), module.weight_ih_l0)
    for each in ("reference", "numba"):
        out = ran(module, given, each)[0]
        with pytest.raises(RuntimeError, match="one gradient at a time"):
            torch.autograd.grad(out, [given["inputs"]], torch.stack([out, out]).detach(), is_grads_batched=True)


@pytest.mark.parametrize("decoder", [AttentionalGRU, AttentionalLSTM])
def test_scores_of_ones_own_go_by_calls_of_attention(decoder: type) -> None:
    """As of equal vectors, whose cosine is their product."""
    torch.manual_seed(0)
    dot, cosine = (decoder(3, 5, 5, score()).double() for score in (scores.Dot, scores.Cosine))
    cosine.load_state_dict(dot.state_dict())
    encoded = torch.nn.functional.normalize(torch.randn(2, 7, 5, dtype=torch.float64), dim=-1)
    state = torch.nn.functional.normalize(torch.randn(1, 2, 5, dtype=torch.float64), dim=-1)
    state = state if decoder is AttentionalGRU else (state, state)
    inputs = torch.randn(2, 4, 3, dtype=torch.float64)
    wanted = dot(inputs, dot.prepare(encoded), state, return_weights=True, impl="reference")[2]
    found = cosine(inputs, cosine.prepare(encoded), state, return_weights=True)[2]
    torch.testing.assert_close(found[:, 0], wanted[:, 0])
