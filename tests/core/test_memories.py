"""What `prepare` saw is what counts, for any number of threads; and what stands in a score's place is called."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

import dikkat
import kit
from dikkat import scores
from dikkat.recurrent import AttentionalGRU, AttentionalLSTM, GRUEncoder, LSTMEncoder
from processes import python

BATCH, POSITIONS, INPUT, HIDDEN, CONTEXT = 5, 11, 3, 13, 7
COPIES: dict[str, Callable[[Any], Any]] = {
    "itself": lambda memory: memory,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda memory: pickle.loads(pickle.dumps(memory)),
    "selected": lambda memory: memory.select(torch.arange(BATCH)),
    "twice": lambda memory: pickle.loads(pickle.dumps(memory.select(torch.arange(BATCH)))),
}
SCORES = {
    "additive": lambda: scores.Additive(CONTEXT, HIDDEN, 17),
    "bilinear": lambda: scores.Bilinear(CONTEXT, HIDDEN),
    "average": lambda: scores.Average(),
}


def decoder(cell: str = "gru", score: str = "additive", layers: int = 1, **options: Any) -> Any:
    torch.manual_seed(layers)
    make = AttentionalGRU if cell == "gru" else AttentionalLSTM
    return make(INPUT, HIDDEN, CONTEXT, SCORES[score](), layers, **options).double().eval()


def given(cell: str = "gru", layers: int = 1) -> tuple[Tensor, Tensor, Any]:
    torch.manual_seed(9)
    state = torch.randn(layers, BATCH, HIDDEN).double()
    encoded = torch.randn(BATCH, POSITIONS, CONTEXT).double()
    return torch.randn(BATCH, 2, INPUT).double(), encoded, state if cell == "gru" else (state, state + 1)


def spoil(module: nn.Module) -> None:
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.mul_(-1.5).add_(0.1)


def assert_same(found: Any, wanted: Any) -> None:
    for one, other in zip(found, wanted, strict=True):
        if isinstance(one, Tensor):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)
        else:
            assert (one is None) == (other is None)


@kit.each("way", COPIES)
@kit.each("score", SCORES)
@kit.each("cell", ["gru", "lstm"])
@torch.no_grad()
def test_a_memory_made_without_gradients_is_what_prepare_saw(cell: str, score: str, way: str) -> None:
    """Whether it was stepped before or not, for a step and for a sequence, with lengths and without."""
    module = decoder(cell, score, 2)
    inputs, encoded, state = given(cell, 2)
    for lens in (None, torch.tensor([11, 4, 0, 7, 1])):
        theirs, other_lens = encoded.clone(), None if lens is None else lens.clone()
        memory, used = (module.prepare(theirs, other_lens) for _ in range(2))
        wanted = module.step(inputs[:, 0], used, state, return_weights=True)[:3]
        sequence = module(inputs, used, state, return_weights=True)[:3]
        weights = copy.deepcopy(module.state_dict())
        theirs.fill_(torch.nan)
        if other_lens is not None:
            other_lens.fill_(2)
        spoil(module.score)
        for each in (memory, used):
            changed = COPIES[way](each)
            assert_same(module.step(inputs[:, 0], changed, state, return_weights=True)[:3], wanted)
            assert_same(module(inputs, changed, state, return_weights=True)[:3], sequence)
        module.load_state_dict(weights)


@kit.each("way", COPIES)
@kit.each("score", ["additive", "gaussian", "cosine"])
@torch.no_grad()
def test_a_plain_memory_is_what_prepare_saw(score: str, way: str) -> None:
    made = {
        "additive": lambda: scores.Additive(CONTEXT, HIDDEN, 17),
        "gaussian": lambda: scores.Gaussian([1.0 + i for i in range(CONTEXT)]),
        "cosine": lambda: scores.Cosine(),
    }[score]().double()
    key, value = (torch.randn(BATCH, POSITIONS, size).double() for size in (CONTEXT, 3))
    lens, query = torch.tensor([11, 4, 0, 7, 1]), torch.randn(BATCH, 2, HIDDEN if score == "additive" else CONTEXT)
    for lengths in (None, lens):
        memory = dikkat.prepare(key.clone(), value, score=made, valid_lens=lengths)
        own = [key.clone(), value.clone(), None if lengths is None else lengths.clone()]
        memory = dikkat.prepare(own[0], own[1], score=made, valid_lens=own[2])
        wanted = dikkat.attend(query.double(), key, value, score=made, valid_lens=lengths)
        state = copy.deepcopy(made.state_dict())
        own[0].zero_()
        own[1].zero_()
        if own[2] is not None:
            own[2].fill_(2)
        spoil(made)
        torch.testing.assert_close(dikkat.attend_memory(query.double(), COPIES[way](memory)), wanted)
        made.load_state_dict(state)


def _optimised(module: nn.Module, make: Any = torch.optim.SGD, **options: Any) -> None:
    make(module.parameters(), lr=0.1, **options).step()


def _other_part(module: Any) -> None:
    module.score.W_q = copy.deepcopy(module.score.W_q)


UPDATES: dict[str, Callable[[nn.Module], Any]] = {
    "plain": _optimised,
    "fused": lambda module: _optimised(module, torch.optim.AdamW, fused=True),
    "foreach": lambda module: _optimised(module, foreach=True),
    "load_state_dict": lambda module: module.load_state_dict(decoder(layers=1).state_dict()),
    "by assignment": lambda module: module.load_state_dict(decoder(layers=1).state_dict(), assign=True),
    "in place": spoil,
    "another part": _other_part,
}


@kit.each("update", UPDATES)
@kit.each("grads", [True, False])
def test_a_memory_is_refused_where_its_score_learns_and_has_changed(update: str, grads: bool) -> None:
    module = decoder()
    inputs, encoded, state = given()
    with torch.set_grad_enabled(grads):
        memory = module.prepare(encoded)
        plain = dikkat.prepare(encoded, encoded, score=module.score)
    copied = copy.copy(plain)
    module(inputs, memory, state)[0].sum().backward()
    UPDATES[update](module)
    late = [] if grads else [copy.deepcopy(plain), pickle.loads(pickle.dumps(plain))]  # stale, and so are copies
    for call in (
        *(lambda each=each: dikkat.attend_memory(state.transpose(0, 1), each) for each in late),
        lambda: module(inputs, memory, state),
        lambda: module(inputs, copy.copy(memory), state),
        lambda: module.step(inputs[:, 0], memory.select(torch.arange(BATCH)), state),
        lambda: dikkat.attend_memory(state.transpose(0, 1), plain),
        lambda: dikkat.attend_memory(state.transpose(0, 1), copied),
    ):
        with pytest.raises(ValueError, match="memory: the score's parameters changed after `prepare`"):
            call()


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_of_another_optimiser_refuses_no_memory(fused: bool) -> None:
    """As of two networks that learn in turns."""
    module, other = decoder(), nn.Linear(3, 5)
    inputs, encoded, state = given()
    memory, plain = module.prepare(encoded), dikkat.prepare(encoded, encoded, score=module.score)
    other(torch.randn(2, 3)).sum().backward()
    torch.optim.AdamW(other.parameters(), fused=fused).step()
    torch.optim.SGD([each for name, each in module.named_parameters() if "score" not in name], lr=0.1).step()
    module(inputs, memory, state)
    dikkat.attend_memory(state.transpose(0, 1), plain)


def test_a_write_through_data_counts_from_the_next_memory_on() -> None:
    module = decoder()
    inputs, encoded, state = given()
    module.prepare(encoded)
    for parameter in module.parameters():
        parameter.data.mul_(-1.5)
    plain = copy.deepcopy(module)
    assert_same(module(inputs, module.prepare(encoded), state), plain(inputs, plain.prepare(encoded), state))


def _spoilt(cell: str) -> Any:
    module = decoder(cell, "average", 2)
    spoil(module)
    return module


@torch.no_grad()
def _spoil_one(module: nn.Module) -> None:
    """Of the weights that `CELLS` parametrizes alone."""
    for name, parameter in module.named_parameters():
        if "weight_hh_l1" in name:
            parameter.mul_(-1.5)


CELLS: dict[str, Callable[[nn.Module], Any]] = {
    "in place": spoil,
    "fused": UPDATES["fused"],
    "by assignment": lambda module: module.load_state_dict(_spoilt("lstm").state_dict(), assign=True),
    "parametrization": lambda module: nn.utils.parametrize.register_parametrization(module, "weight_hh_l1", Doubled()),
}


@pytest.mark.parametrize("update", CELLS)
def test_a_step_takes_the_cells_as_they_are(update: str) -> None:
    """And the score as `prepare` saw it, here one without parameters."""
    module = decoder("lstm", "average", 2)
    inputs, encoded, state = given("lstm", 2)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    with torch.no_grad():
        memory = module.prepare(encoded)
        before = module.step(inputs[:, 0], memory, state)[0]
        chosen = memory.select(torch.tensor([4, 1, 1]))
        some, state_of_some = inputs[[4, 1, 1], 0], module.select(state, torch.tensor([4, 1, 1]))
        module.step(some, chosen, state_of_some)
    for change in (CELLS[update], _spoil_one):
        change(module)
        with torch.no_grad():
            wanted = module(inputs[:, :1], module.prepare(encoded), state, impl="reference")[0].squeeze(1)
            assert not torch.equal(wanted, before)
            assert_same([module.step(inputs[:, 0], memory, state)[0]], [wanted])
            assert_same([module.step(some, chosen, state_of_some)[0]], [wanted[[4, 1, 1]]])


@torch.no_grad()
def test_of_no_rows_a_step_is_empty() -> None:
    module = decoder()
    inputs, encoded, state = given()
    memory = module.prepare(encoded).select(torch.zeros(0, dtype=torch.int64))
    outputs, contexts, _, after = module.step(inputs[:0, 0], memory, state[:, :0])
    assert outputs.shape == (0, HIDDEN)
    assert contexts.shape == (0, CONTEXT)
    assert after.shape == (1, 0, HIDDEN)


def test_parts_of_other_types_are_named() -> None:
    module = decoder()
    inputs, encoded, state = given()
    memory = module.prepare(encoded, torch.full((BATCH,), 3))
    with pytest.raises(TypeError, match=r"valid_lens of dtype torch.float32; expected torch.int64"):
        replace(memory, valid_lens=torch.full((BATCH,), 3.2))
    with pytest.raises(TypeError, match=r"memory\.value: got dtype torch\.float64; expected torch\.float32"):
        module(inputs.float(), memory, state)


def test_gradients_through_a_memory_made_without_are_those_of_constant_keys() -> None:
    module = decoder()
    inputs, encoded, state = given()
    with torch.no_grad():
        memory = module.prepare(encoded)
    found = torch.autograd.grad(module(inputs, memory, state)[0].square().sum(), module.score.W_q.weight)
    plain = dikkat.prepare(encoded, encoded, score=module.score)
    constant = dikkat.Memory(module.score, plain.key.detach(), plain.value, None)
    wanted = module(inputs, constant, state, impl="reference")[0].square().sum()
    assert_same(found, torch.autograd.grad(wanted, module.score.W_q.weight))


def test_a_memory_of_inference_mode_says_what_to_do_in_training() -> None:
    module = decoder()
    inputs, encoded, state = given()
    with torch.inference_mode():
        memory = module.prepare(encoded)
        plain = dikkat.prepare(encoded, encoded, score=module.score)
    message = r"memory: got one prepared under torch.inference_mode\(\).*; prepare it outside inference_mode"
    with pytest.raises(ValueError, match=message):
        module.train()(inputs, memory, state)
    with pytest.raises(ValueError, match=message):
        dikkat.attend_memory(torch.randn(BATCH, 1, HIDDEN).double(), plain)
    with torch.no_grad():
        assert module.eval().step(inputs[:, 0], memory, state)[0].isfinite().all()


def test_another_layers_memory_does_not_lend_its_cells() -> None:
    """Two layers may look at what one of them prepared: each with its own weights."""
    first, second = decoder(score="average"), decoder(score="average", layers=1)
    spoil(second)
    inputs, encoded, state = given()
    with torch.no_grad():
        memory, own = first.prepare(encoded), second.prepare(encoded)
        assert not torch.equal(first.step(inputs[:, 0], memory, state)[0], second.step(inputs[:, 0], own, state)[0])
        for other in (second, copy.deepcopy(second), pickle.loads(pickle.dumps(second))):
            assert_same(other.step(inputs[:, 0], memory, state), second.step(inputs[:, 0], own, state))


def test_wrong_kinds_are_named() -> None:
    with pytest.raises(TypeError, match="score: got NoneType"):
        AttentionalGRU(INPUT, HIDDEN, CONTEXT, None)  # type: ignore[arg-type]
    module = decoder()
    inputs, encoded, state = given()
    with pytest.raises(TypeError, match="memory: got Tensor; expected the Memory"):
        module(inputs, encoded, state)
    with pytest.raises(TypeError, match=r"lengths: got list; expected a torch.Tensor of integers"):
        GRUEncoder(INPUT, HIDDEN)(torch.randn(2, 3, INPUT), [3, 2])  # type: ignore[arg-type]


# --- what stands in the place of a linear layer, or is hooked to it


class LowRank(nn.Module):
    """A layer with a learnt difference of low rank, and neither `weight` nor `in_features` of its own."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(2, base.in_features).double())
        self.up = nn.Parameter(torch.randn(base.out_features, 2).double())

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.t() @ self.up.t()


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def _low_rank(score: Any, name: str) -> None:
    setattr(score, name, LowRank(getattr(score, name)))


def _biased(score: Any, name: str) -> None:
    old = getattr(score, name)
    setattr(score, name, nn.Linear(old.in_features, old.out_features).double())


def _hooked(score: Any, name: str) -> None:
    getattr(score, name).register_forward_hook(lambda module, inputs, output: 3 * output)


def _hooked_before(score: Any, name: str) -> None:
    getattr(score, name).register_forward_pre_hook(lambda module, inputs: (3 * inputs[0],))


REPLACED = {
    "low rank": _low_rank,
    "bias": _biased,
    "hook": _hooked,
    "hook before": _hooked_before,
    "parametrization": lambda score, name: nn.utils.parametrize.register_parametrization(
        getattr(score, name), "weight", Doubled()
    ),
    "pruning": lambda score, name: prune.random_unstructured(getattr(score, name), "weight", 0.5),
    "weight norm": lambda score, name: parametrizations.weight_norm(getattr(score, name)),
    "spectral norm": lambda score, name: parametrizations.spectral_norm(getattr(score, name)),
    "old weight norm": lambda score, name: weight_norm(getattr(score, name)),
    "old spectral norm": lambda score, name: spectral_norm(getattr(score, name)),
}


def _dense(module: Any, inputs: Tensor, encoded: Tensor, state: Tensor) -> Tensor:
    """Two steps by hand: each part of the score called as a module, the cell PyTorch's own."""
    score, cell = module.score, nn.GRUCell(INPUT + CONTEXT, HIDDEN).double()
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        setattr(cell, name, nn.Parameter(getattr(module, f"{name}_l0").detach()))
    state, outputs = state[0], []
    for step in range(inputs.shape[1]):
        hidden = torch.tanh(score.W_q(state)[:, None] + score.W_k(encoded))
        shares = score.w_v(hidden).squeeze(-1).softmax(-1)
        context = (shares[..., None] * encoded).sum(1)
        state = cell(torch.cat([inputs[:, step], context], -1), state)
        outputs.append(state)
    return torch.stack(outputs, 1)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated.*:FutureWarning")
@kit.each("name", ["W_q", "W_k", "w_v"])
@kit.each("how", REPLACED)
def test_a_score_with_a_part_replaced(how: str, name: str) -> None:
    module = decoder()
    REPLACED[how](module.score, name)
    module.score.double().eval()
    inputs, encoded, state = given()
    with torch.no_grad():
        wanted = _dense(module, inputs, encoded, state)
        memory = module.prepare(encoded)
        found = module(inputs, memory, state)[0]
        first, _, _, after = module.step(inputs[:, 0], memory, state)
        second = module.step(inputs[:, 1], memory, after)[0]
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.stack([first, second], 1), wanted)
    torch.testing.assert_close(module(inputs, module.prepare(encoded), state)[0], wanted)
    trained = module(inputs, module.prepare(encoded), state)[0].square().sum()
    grads = torch.autograd.grad(trained, [p for p in module.score.parameters() if p.requires_grad], allow_unused=True)
    assert all(grad is None or grad.isfinite().all() for grad in grads)
    assert any(grad is not None and grad.any() for grad in grads)


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("make", [GRUEncoder, LSTMEncoder])
def test_an_encoder_with_weights_that_are_computed(make: Any, impl: str) -> None:
    torch.manual_seed(0)
    encoder = make(INPUT, HIDDEN).double()
    network, inputs, lengths = encoder._network, torch.randn(2, 5, INPUT).double(), torch.tensor([5, 3])
    plain = copy.deepcopy(encoder)
    kept = (torch.rand_like(network.weight_hh_l0) > 0.5).to(torch.float64)
    prune.custom_from_mask(network, "weight_hh_l0", kept)
    with torch.no_grad():
        network.weight_hh_l0_orig.mul_(2)  # which pruning takes up when the network is called
        plain._network.weight_hh_l0.mul_(2 * kept)
    found, wanted = encoder(inputs, lengths, impl=impl)[0], plain(inputs, lengths, impl="reference")[0]
    torch.testing.assert_close(found, wanted)


def test_a_layer_with_weights_that_are_computed() -> None:
    module, plain = decoder(layers=2), decoder(layers=2)
    inputs, encoded, state = given(layers=2)
    kept = (torch.rand_like(module.weight_hh_l1) > 0.5).to(torch.float64)
    prune.custom_from_mask(module, "weight_hh_l1", kept)
    weight_norm_of = parametrizations.weight_norm(decoder(layers=2), "weight_ih_l0")
    with torch.no_grad():
        module.weight_hh_l1_orig.mul_(2)
        plain.weight_hh_l1.mul_(2 * kept)
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                found = module.step(inputs[:, 0], module.prepare(encoded), state)
                assert_same(found[:2], plain.step(inputs[:, 0], plain.prepare(encoded), state)[:2])
        unchanged = decoder(layers=2)
        wanted = unchanged.step(inputs[:, 0], unchanged.prepare(encoded), state)
        assert_same(weight_norm_of.step(inputs[:, 0], weight_norm_of.prepare(encoded), state)[:2], wanted[:2])


class _Whole(nn.Module):
    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: Tensor, encoded: Tensor, state: Tensor) -> Tensor:
        memory = self.module.prepare(encoded)
        first, _, _, state = self.module.step(inputs[:, 0], memory, state)
        return first + self.module(inputs, memory, state)[0].sum(1)


@pytest.mark.parametrize("grad", [False, True])
def test_functional_call_grad_and_vmap_take_the_weights_that_they_are_given(grad: bool) -> None:
    whole, other = _Whole(decoder(layers=2)), _Whole(decoder(layers=2))
    spoil(other)
    inputs, encoded, state = given(layers=2)
    taken = {name: tensor.detach().clone() for name, tensor in other.named_parameters()}
    with torch.set_grad_enabled(grad):
        wanted = other(inputs, encoded, state)
        assert_same([torch.func.functional_call(whole, taken, (inputs, encoded, state))], [wanted])
        several = {name: torch.stack([tensor, 2 * tensor]) for name, tensor in taken.items()}
        batched = torch.func.vmap(lambda weights: torch.func.functional_call(whole, weights, (inputs, encoded, state)))
        assert_same([batched(several)[0]], [wanted])

    def loss(weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(whole, weights, (inputs, encoded, state)).square().sum()

    found = torch.func.grad(loss)(taken)
    grads = torch.autograd.grad(other(inputs, encoded, state).square().sum(), list(other.parameters()))
    assert_same(found.values(), grads)


# --- threads


def test_threads_find_what_one_finds() -> None:
    """In a process of their own, which a crash would end."""
    code = "import runpy; runpy.run_module('stress.threads', run_name='__main__')"
    done = python(code, "--threads", "8", "--seconds", "0.5", OMP_WAIT_POLICY="passive")
    assert done.stdout.count(" answers, 0 wrong") == 4
