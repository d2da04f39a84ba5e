"""The recurrence as one operation: against PyTorch's own networks, and the loop of its operations."""

import copy
import gc
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kit
from dikkat import prepare, scores
from dikkat.attention import Memory
from dikkat.recurrent import AttentionalGRU, AttentionalLSTM, GRUEncoder, LSTMEncoder, sequence

BATCH, STEPS, POSITIONS, INPUT, HIDDEN, CONTEXT = 5, 7, 11, 2, 13, 3
DECODERS = {"gru": AttentionalGRU, "lstm": AttentionalLSTM}
ENCODERS = {"gru": GRUEncoder, "lstm": LSTMEncoder}
SCORES = {
    "additive": lambda h, c: scores.Additive(c, h, 17),
    "bilinear": lambda h, c: scores.Bilinear(c, h),
    "dot": lambda h, c: scores.Dot(),
    "scaled dot": lambda h, c: scores.ScaledDot(),
    "vector sum": lambda h, c: scores.VectorSum(h),
    "average": lambda h, c: scores.Average(),
    "gaussian": lambda h, c: scores.Gaussian(torch.linspace(1.0, 2.0, h), learnable=True),
    "boxcar": lambda h, c: scores.Boxcar(float(h) ** 0.5),
    "epanechnikov": lambda h, c: scores.Epanechnikov(2 * float(h) ** 0.5, learnable=True),
    "triangular": lambda h, c: scores.Triangular(2 * float(h) ** 0.5, learnable=True),
}
OWN_SIZES = {"additive", "bilinear", "average"}  # whose keys need not be as wide as the queries


def made(
    cell: str, score: str, layers: int, hidden: int = HIDDEN, dtype: torch.dtype = torch.float64, draw: int = 0,
    **options: Any,
) -> tuple[nn.Module, dict[str, Any]]:  # fmt: skip
    """A decoder, and what it is called with."""
    torch.manual_seed(layers + 1009 * draw)
    context = CONTEXT if score in OWN_SIZES else hidden
    module = DECODERS[cell](INPUT, hidden, context, SCORES[score](hidden, context), layers, **options).to(dtype)
    if score == "vector sum":
        nn.init.normal_(module.score.w_v.weight)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype, requires_grad=True)

    state = leaf(layers, BATCH, hidden)
    return module, {
        "inputs": leaf(BATCH, STEPS, INPUT),
        "encoded": leaf(BATCH, POSITIONS, context),
        "seen": torch.tensor([11, 4, 0, 7, 1]),
        "state": state if cell == "gru" else (state, leaf(layers, BATCH, hidden)),
        "lengths": torch.tensor([3, 7, 1, 7, 4]),
    }


def ran(module: nn.Module, given: dict[str, Any], impl: str, seed: int = 0) -> list[Tensor]:
    """Everything that a decoder returns."""
    memory = module.prepare(given["encoded"], given["seen"])
    torch.manual_seed(seed)
    outputs, contexts, weights, state = module(
        given["inputs"], memory, given["state"], lengths=given["lengths"], return_weights=True, impl=impl
    )
    return [outputs, contexts, weights, *(state if isinstance(state, tuple) else (state,))]


def leaves(module: nn.Module, given: dict[str, Any]) -> dict[str, Tensor]:
    states = given["state"] if isinstance(given["state"], tuple) else (given["state"],)
    tensors = {"inputs": given["inputs"], "encoded": given["encoded"]}
    return tensors | {f"state {i}": s for i, s in enumerate(states)} | dict(module.named_parameters())


def gradients(module: nn.Module, given: dict[str, Any], impl: str) -> dict[str, Tensor]:
    results, wanted = ran(module, given, impl), leaves(module, given)
    loss = sum((result * (1 + torch.arange(result.numel()).reshape(result.shape)).sin()).sum() for result in results)
    found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    return {n: torch.zeros_like(wanted[n]) if g is None else g for n, g in zip(wanted, found, strict=True)}


def assert_near(found: dict[str, Tensor], wanted: dict[str, Tensor], share: float) -> None:
    for name, tensor in wanted.items():
        away = (found[name].double() - tensor.double()).abs().max()
        assert away <= share * (1e-3 + tensor.abs().max()), f"{name}: off by {away:.3g}"


@kit.each(
    ("both", "layers", "dropout"),
    kit.pairwise({"both": list(itertools.product(DECODERS, SCORES)), "layers": [1, 3], "dropout": [0.0, 0.4]}),
)
def test_equals_the_loop(both: tuple[str, str], layers: int, dropout: float) -> None:
    cell, score = both
    between = {"dropout": dropout if layers > 1 else 0.0, "weight_dropout": dropout}
    module, given = made(cell, score, layers, **between)
    for found, wanted in zip(ran(module, given, "numba"), ran(module, given, "reference"), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-12)
    assert_near(gradients(module, given, "numba"), gradients(module, given, "reference"), 1e-10)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("cell", ENCODERS)
def test_encoder_equals_torchs_packed_network(cell: str, layers: int, bidirectional: bool) -> None:
    torch.manual_seed(0)
    encoder = ENCODERS[cell](3, 17, layers, bidirectional).double()
    inputs = torch.randn(5, 7, 3, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([2, 7, 1, 5, 7])

    def run(impl: str) -> dict[str, Tensor]:
        outputs, state = encoder(inputs, lengths, impl=impl)
        results = [outputs, *(state if isinstance(state, tuple) else (state,))]
        loss = sum((result.sin() * (1 + torch.arange(result.shape[-1]))).sum() for result in results)
        wanted = {"inputs": inputs} | dict(encoder.named_parameters())
        found = dict(zip(wanted, torch.autograd.grad(loss, list(wanted.values())), strict=True))
        return found | {f"result {i}": result for i, result in enumerate(results)}

    assert_near(run("numba"), run("reference"), 1e-11)


# Gradients in which sums cancel, behind a softmax whose shares add up to 0: in a single draw the error of either way
# may by chance be a fraction of what it is on average, on one processor and not on another.
CANCELLING = {"score.log_bandwidth": 5, "score.W_q.weight": 5, "score.W_k.weight": 5}


@kit.each("size", [1e-3, 1.0, 30.0])
@kit.each("score", ["additive", "dot", "gaussian"])
@kit.each("cell", DECODERS)
def test_single_precision_is_as_good_as_torchs(cell: str, score: str, size: float) -> None:
    """Error beside float64: at most twice plain PyTorch's and some units of the largest; of several draws together."""
    draws = [_errors(cell, score, size, draw) for draw in range(max(CANCELLING.values()) if score != "dot" else 1)]
    for name in draws[0]:
        mine, torchs, unit = (
            torch.stack([found[name][part] for found in draws[: CANCELLING.get(str(name), 1)]]) for part in range(3)
        )
        if str(name) in CANCELLING:
            mine, torchs = mine.square().mean().sqrt(), torchs.square().mean().sqrt()
        mine, torchs = mine.max(), torchs.max()
        assert mine <= 2 * torchs + 16 * unit.min(), f"{name}: {mine:.3g}, PyTorch's {torchs:.3g}"


def _errors(cell: str, score: str, size: float, draw: int) -> dict[Any, tuple[Tensor, Tensor, Tensor]]:
    """Our error, that of plain PyTorch, and a unit of the largest number, for each result and gradient."""
    module, given = made(cell, score, 2, hidden=67, draw=draw)
    rounded = {n: t.float() if isinstance(t, Tensor) and t.is_floating_point() else t for n, t in given.items()}
    rounded["encoded"] = (rounded["encoded"] * size).detach().requires_grad_()
    rounded["inputs"] = (rounded["inputs"] * size).detach().requires_grad_()
    states = given["state"] if isinstance(given["state"], tuple) else (given["state"],)
    states = tuple((s * size).float().detach().requires_grad_() for s in states)
    rounded["state"] = states if cell == "lstm" else states[0]
    module = module.float()
    came = dict(enumerate(ran(module, rounded, "numba"))) | gradients(module, rounded, "numba")
    plain = dict(enumerate(ran(module, rounded, "reference"))) | gradients(module, rounded, "reference")
    wide = {n: t.double() if isinstance(t, Tensor) and t.is_floating_point() else t for n, t in rounded.items()}
    wide["state"] = tuple(s.double() for s in states) if cell == "lstm" else states[0].double()
    double = module.double()
    exact = dict(enumerate(ran(double, wide, "reference"))) | gradients(double, wide, "reference")
    found = {}
    for name, tensor in exact.items():
        mine, torchs = ((each[name].double() - tensor).abs().detach() for each in (came, plain))
        found[name] = mine, torchs, torch.finfo(torch.float32).eps * tensor.detach().abs().max()
    return found


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [20.0, 60.0, 1e4])
def test_additive_features_of_any_size(size: float, kind: torch.dtype) -> None:
    """Exponentials that share a division, that do not, and none."""
    module, given = made("gru", "additive", 1, dtype=kind)
    with torch.no_grad():
        module.score.W_q.weight *= size
        module.score.W_k.weight *= size
        module.score.W_q.weight[::2] *= -0.1
    share = 3e-4 if kind == torch.float32 else 1e-9
    assert_near(gradients(module, given, "numba"), gradients(module, given, "reference"), share)
    results = (dict(enumerate(ran(module, given, impl))) for impl in ("numba", "reference"))
    assert_near(*results, share)


def test_many_rows_on_several_threads() -> None:
    module, given = made("gru", "additive", 2)
    torch.manual_seed(3)
    batch = 149
    given = {
        "inputs": torch.randn(batch, STEPS, INPUT, dtype=torch.float64, requires_grad=True),
        "encoded": torch.randn(batch, POSITIONS, CONTEXT, dtype=torch.float64, requires_grad=True),
        "seen": torch.randint(0, POSITIONS + 1, (batch,)),
        "state": torch.randn(2, batch, HIDDEN, dtype=torch.float64, requires_grad=True),
        "lengths": torch.randint(1, STEPS + 1, (batch,)),
    }
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        found = gradients(module, given, "numba")
    finally:
        torch.set_num_threads(threads)
    assert_near(found, gradients(module, given, "reference"), 1e-10)


@pytest.mark.parametrize("cell", DECODERS)
def test_steps_without_gradients_are_the_sequence(cell: str) -> None:
    module, given = made(cell, "additive", 2)
    module.eval()
    with torch.no_grad():
        memory = module.prepare(given["encoded"], given["seen"])
        outputs, contexts, weights, final = module(given["inputs"], memory, given["state"], return_weights=True)
        state, rows = given["state"], torch.tensor([4, 0, 4, 3, 1])
        for step in range(STEPS):
            if step == 3:  # as a beam reorders
                memory, state = memory.select(rows), module.select(state, rows)
                outputs, contexts, weights = outputs[rows], contexts[rows], weights[rows]
                given["inputs"], final = given["inputs"][rows], module.select(final, rows)
            output, context, weight, state = module.step(given["inputs"][:, step], memory, state, return_weights=True)
            torch.testing.assert_close(output, outputs[:, step])
            torch.testing.assert_close(context, contexts[:, step])
            torch.testing.assert_close(weight, weights[:, step])
    torch.testing.assert_close(state, final)


def test_numbers_beyond_lengths_have_no_effect() -> None:
    module, given = made("lstm", "bilinear", 2)
    for impl in ("numba", "reference"):
        wanted = ran(module, given, impl)
        poisoned = given | {name: given[name].detach().clone() for name in ("inputs", "encoded")}
        for row in range(BATCH):
            poisoned["inputs"][row, given["lengths"][row] :] = torch.nan
            poisoned["encoded"][row, given["seen"][row] :] = torch.inf
        poisoned["inputs"].requires_grad_()
        found = ran(module, poisoned, impl)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
        (gradient,) = torch.autograd.grad(sum(each.sum() for each in found), poisoned["inputs"])
        assert gradient.isfinite().all()
        assert not found[0][0, 3:].any()


def test_low_precision_comes_back_in_its_type() -> None:
    module, given = made("gru", "additive", 1, dtype=torch.bfloat16)
    found = ran(module, given, "numba")
    assert {each.dtype for each in found} == {torch.bfloat16}
    wide = {n: t.double() if isinstance(t, Tensor) and t.is_floating_point() else t for n, t in given.items()}
    exact = ran(module.double(), wide, "reference")
    torch.testing.assert_close(found[0].double(), exact[0], rtol=0.05, atol=0.05)
    module.to(torch.bfloat16)
    assert all(g.dtype == torch.bfloat16 and g.isfinite().all() for g in gradients(module, given, "numba").values())


def test_auto_takes_the_operation_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    run = sequence.run_stack
    monkeypatch.setattr(sequence, "run_stack", lambda *a, **o: calls.append(1) or run(*a, **o))
    module, given = made("gru", "additive", 1)
    ran(module, given, "auto")
    assert len(calls) == 1
    own = AttentionalGRU(INPUT, HIDDEN, HIDDEN, scores.Cosine()).double()
    memory = own.prepare(torch.randn(BATCH, POSITIONS, HIDDEN, dtype=torch.float64))
    own(given["inputs"], memory, given["state"])
    assert len(calls) == 1
    with pytest.raises(ValueError, match=r"impl: got 'numba', which cannot run here: the queries of Cosine"):
        own(given["inputs"], memory, given["state"], impl="numba")
    with pytest.raises(ValueError, match=r"impl: got 'fused'; expected 'auto', 'numba' or 'reference'"):
        own(given["inputs"], memory, given["state"], impl="fused")


def test_a_single_parameter_with_a_gradient() -> None:
    module, given = made("gru", "additive", 2)
    module.requires_grad_(False)
    module.score.W_q.weight.requires_grad_()
    outputs = ran(module, given | {"encoded": given["encoded"].detach()}, "numba")[0]
    (found,) = torch.autograd.grad(outputs.sin().sum(), [module.score.W_q.weight])
    outputs = ran(module, given | {"encoded": given["encoded"].detach()}, "reference")[0]
    (wanted,) = torch.autograd.grad(outputs.sin().sum(), [module.score.W_q.weight])
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_a_capped_score_goes_by_the_loop() -> None:
    module, given = made("gru", "dot", 1)
    module.score = scores.Dot(softcap=0.7)
    torch.testing.assert_close(ran(module, given, "auto"), ran(module, given, "reference"))
    with pytest.raises(ValueError, match=r"impl: got 'numba', which cannot run here: the score is capped"):
        ran(module, given, "numba")


@pytest.mark.parametrize(
    ("lengths", "message"),
    [([0, 1, 1, 1, 1], "from 1 to the 7 steps"), ([8, 1, 1, 1, 1], "from 1 to"), ([1, 1], r"\(batch,\) = \(5,\)")],
)
def test_refuses_lengths_that_do_not_fit(lengths: list[int], message: str) -> None:
    module, given = made("gru", "additive", 1)
    with pytest.raises(ValueError, match=message):
        ran(module, given | {"lengths": torch.tensor(lengths)}, "auto")
    with pytest.raises(TypeError, match=r"lengths: got dtype torch.float32"):
        ran(module, given | {"lengths": torch.ones(BATCH)}, "auto")


def test_refuses_a_state_of_the_other_cell() -> None:
    module, given = made("lstm", "additive", 1)
    with pytest.raises(ValueError, match="a pair of tensors"):
        ran(module, given | {"state": given["state"][0]}, "auto")
    other, _ = made("gru", "additive", 1)
    with pytest.raises(ValueError, match="one tensor"):
        ran(other, given, "auto")


def test_shapes_of_every_kind_agree() -> None:
    """Batches and widths around the tiles of rows and columns."""
    for batch, hidden in itertools.product((1, 2, 3, 8, 15), (1, 15, 16, 17, 33)):
        torch.manual_seed(batch)
        module = AttentionalGRU(3, hidden, 2, scores.Additive(2, hidden, 5)).double()
        inputs = torch.randn(batch, 2, 3, dtype=torch.float64)
        memory = module.prepare(torch.randn(batch, 4, 2, dtype=torch.float64))
        state = torch.randn(1, batch, hidden, dtype=torch.float64)
        found, wanted = (module(inputs, memory, state, impl=impl)[0] for impl in ("numba", "reference"))
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("impl", ["numba", "reference"])
@pytest.mark.parametrize("cell", DECODERS)
def test_autocast_keeps_the_states_wide(cell: str, impl: str) -> None:
    module, given = made(cell, "additive", 2, hidden=29, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        low = ran(module, given, impl)
        loss = low[0].square().sum()
    assert low[0].dtype == low[3].dtype == torch.float32
    wide = ran(module, given, "numba")
    wanted = leaves(module, given)
    found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    exact = torch.autograd.grad(wide[0].square().sum(), list(wanted.values()), allow_unused=True)
    for name, one, other in zip(wanted, found, exact, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() <= 0.03 * other.norm(), name


def test_nothing_waits_for_the_garbage_collector() -> None:
    module, given = made("lstm", "additive", 2, hidden=32)
    gc.collect()
    gc.disable()
    try:
        sum(result.sum() for result in ran(module, given, "numba")).backward()
        before = sum(type(thing) is Tensor for thing in gc.get_objects())
        for _ in range(3):
            sum(result.sum() for result in ran(module, given, "numba")).backward()
        assert sum(type(thing) is Tensor for thing in gc.get_objects()) == before
    finally:
        gc.enable()


@pytest.mark.parametrize("cell", DECODERS)
def test_tensors_that_lie_in_memory_in_another_order(cell: str) -> None:
    module, given = made(cell, "bilinear", 2)
    given["seen"] = None  # lengths would have put them into order
    turned = given | {
        "encoded": given["encoded"].detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_(),
        "inputs": given["inputs"].detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_(),
    }
    for found, wanted in zip(ran(module, turned, "numba"), ran(module, given, "numba"), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    module.eval()
    with torch.no_grad():
        steps = [
            module.step(each["inputs"][:, 0], module.prepare(each["encoded"], each["seen"]), given["state"])[0]
            for each in (turned, given)
        ]
    torch.testing.assert_close(steps[0], steps[1], rtol=1e-12, atol=1e-14)  # plain products, by layout


@pytest.mark.parametrize("gradients_on", [False, True])
def test_refuses_a_memory_of_others(gradients_on: bool) -> None:
    module, given = made("gru", "additive", 1)
    module.eval()
    with torch.set_grad_enabled(gradients_on):
        fewer = module.prepare(given["encoded"][:2])
        with pytest.raises(ValueError, match="inputs: got a batch of 5; expected 2"):
            module(given["inputs"], fewer, given["state"])
        with pytest.raises(ValueError, match="inputs: got a batch of 5; expected 2"):
            module.step(given["inputs"][:, 0], fewer, given["state"])
        with pytest.raises(ValueError, match="memory: got values of 4 features; expected 3"):
            module(
                given["inputs"],
                prepare(torch.randn(5, 2, 3).double(), torch.randn(5, 2, 4).double(), score=module.score),
                given["state"],
            )
        dot = AttentionalGRU(INPUT, HIDDEN, 7, scores.Dot()).double()
        with pytest.raises(ValueError, match="got keys of 7 features; expected 13, as many as the queries of Dot"):
            dot(given["inputs"], dot.prepare(torch.randn(5, 3, 7).double()), given["state"], impl="numba")


def test_one_memory_for_all() -> None:
    module, given = made("gru", "additive", 1)
    one = module.prepare(given["encoded"][:1])
    found = module(given["inputs"], one, given["state"])
    wanted = module(given["inputs"], module.prepare(given["encoded"][:1].expand(5, -1, -1)), given["state"])
    for each, other in zip(found[:2], wanted[:2], strict=True):
        torch.testing.assert_close(each, other, rtol=1e-11, atol=1e-12)
    with pytest.raises(ValueError, match="cannot run here: the memory's keys have shape"):
        module(given["inputs"], one, given["state"], impl="numba")


def test_no_sequences_at_all() -> None:
    module, given = made("gru", "additive", 1)
    memory = module.prepare(given["encoded"][:0])
    outputs, *_, state = module(given["inputs"][:0], memory, given["state"][:, :0])
    assert outputs.shape == (0, STEPS, HIDDEN)
    assert state.shape == (1, 0, HIDDEN)


def test_a_memory_for_steps_is_its_own() -> None:
    """Later writes to the score or to the selecting rows, and copying, do not change it."""
    module, given = made("gru", "additive", 1, hidden=32, dtype=torch.float32)
    module.eval()
    inputs, state = given["inputs"][:, 0], given["state"]
    with torch.no_grad():
        memory = module.prepare(given["encoded"], given["seen"])
        wanted = module.step(inputs, memory, state)[0]
        rows = torch.tensor([4, 0, 1, 1, 3])
        selected, copied = memory.select(rows), copy.deepcopy(memory)
        kept = module.step(inputs, selected, state)[0]
        rows.zero_()
        torch.testing.assert_close(module.step(inputs, selected, state)[0], kept, rtol=0, atol=0)
        assert type(copied) is Memory
        torch.testing.assert_close(module.step(inputs, copied, state)[0], wanted)
        for parameter in module.score.parameters():
            parameter.zero_()
        torch.testing.assert_close(module.step(inputs, memory, state)[0], wanted, rtol=0, atol=0)


def test_infinite_features_do_what_they_do_in_the_loop() -> None:
    module, given = made("gru", "average", 1)
    given["encoded"] = given["encoded"].detach()
    given["encoded"][0, 2, 1] = torch.inf
    found, wanted = ran(module, given, "numba")[0], ran(module, given, "reference")[0]
    assert wanted[0, :3].isfinite().all()
    torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", ENCODERS)
def test_dropout_between_an_encoders_layers(cell: str, bidirectional: bool) -> None:
    encoder = ENCODERS[cell](3, 5, 3, bidirectional, dropout=0.5).double()
    inputs, lengths = torch.randn(2, 7, 3, dtype=torch.float64), torch.tensor([7, 4])

    def outputs(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return encoder(inputs, lengths, impl="numba")[0]

    assert torch.equal(outputs(1), outputs(1))
    assert not torch.equal(outputs(1), outputs(2))
    encoder.eval()
    torch.testing.assert_close(outputs(1), encoder(inputs, lengths, impl="reference")[0])
