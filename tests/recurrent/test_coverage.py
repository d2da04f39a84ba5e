"""Attention that knows where it has looked: against the equations, row by row, in float64."""

import pytest
import torch
from torch import Tensor

from dikkat import scores
from dikkat.recurrent import AttentionalGRU, AttentionalLSTM, Covered

BATCH, STEPS, POSITIONS, INPUT, HIDDEN, CONTEXT = 3, 5, 7, 2, 5, 5
LENGTHS = torch.tensor([7, 1, 4])
SCORES = {
    "additive": lambda: scores.Additive(CONTEXT, HIDDEN, 11),
    "dot": scores.Dot,
    "scaled dot": scores.ScaledDot,
    "bilinear": lambda: scores.Bilinear(CONTEXT, HIDDEN),
    "cosine": scores.Cosine,
    "gaussian": lambda: scores.Gaussian(2.0, learnable=True),
    "boxcar": lambda: scores.Boxcar(3.0),
    "epanechnikov": lambda: scores.Epanechnikov(9.0),
    "triangular": lambda: scores.Triangular(9.0),
    "vector sum": lambda: scores.VectorSum(CONTEXT),
    "average": scores.Average,
}
DECODERS = {"gru": AttentionalGRU, "lstm": AttentionalLSTM}


def make(score="additive", cell="gru", layers=2, **options):
    torch.manual_seed(0)
    module = DECODERS[cell](INPUT, HIDDEN, CONTEXT, SCORES[score](), layers, coverage=True, **options).double()
    torch.nn.init.normal_(module.coverage_weight)
    return module


def example(cell="gru", layers=2):
    torch.manual_seed(1)
    inputs = torch.randn(BATCH, STEPS, INPUT, dtype=torch.float64)
    encoded = torch.randn(BATCH, POSITIONS, CONTEXT, dtype=torch.float64)
    states = tuple(torch.randn(layers, BATCH, HIDDEN, dtype=torch.float64) for _ in range(2))
    return inputs, encoded, states if cell == "lstm" else states[0]


def pair_scores(score: scores.Score, query: Tensor, keys: Tensor) -> Tensor:
    """One projected query with projected keys, as the pair functions are defined."""
    if score.pair == "additive":
        return torch.stack([score.pair_weight() @ torch.tanh(query + key) for key in keys])
    if score.pair == "inner":
        return torch.stack([query @ key for key in keys])
    squares = torch.stack([((query - key) ** 2).sum() for key in keys])
    inside, near = squares < 1, squares.where(squares < 1, 0.0)
    return {
        "gaussian": -squares / 2,
        "boxcar": torch.where(squares <= 1, 0.0, -torch.inf).double(),
        "epanechnikov": torch.where(inside, (1 - near).log(), -torch.inf),
        "triangular": torch.where(inside, (1 - near.sqrt()).log(), -torch.inf),
    }[score.profile]


def twin(module, inputs, encoded, state):
    """The equations for one sentence, one step and one key at a time: what each step looked at, and its context."""
    looked_at, contexts = [], []
    for sentence, length in enumerate(LENGTHS.tolist()):
        keys = module.score.project_key(encoded[sentence, :length])
        coverage = torch.zeros(length, dtype=torch.float64)
        own = state if isinstance(state, Tensor) else torch.stack(state)
        cell = torch.nn.GRU if isinstance(state, Tensor) else torch.nn.LSTM
        network = cell(INPUT + CONTEXT, HIDDEN, module.num_layers).double()
        parameters = module.state_dict()
        network.load_state_dict({name: parameters[name] for name in network.state_dict()})
        own = own[..., sentence, :]
        rows = []
        for step in range(STEPS):
            top = own[-1] if isinstance(state, Tensor) else own[0][-1]
            covered = torch.stack([key + c * module.coverage_weight for key, c in zip(keys, coverage, strict=True)])
            weights = pair_scores(module.score, module.score.project_query(top[None])[0], covered).softmax(0)
            weights = weights.nan_to_num(0.0)  # no key within reach
            context = weights @ encoded[sentence, :length]
            below = torch.cat([inputs[sentence, step], context])[None, None]
            if isinstance(state, Tensor):
                _, after = network(below, own[:, None])
                own = after[:, 0]
            else:
                _, after = network(below, (own[0][:, None], own[1][:, None]))
                own = torch.stack([each[:, 0] for each in after])
            coverage = coverage + weights
            rows.append((torch.nn.functional.pad(weights, (0, POSITIONS - length)), context))
        looked_at.append(torch.stack([weights for weights, _ in rows]))
        contexts.append(torch.stack([context for _, context in rows]))
    return torch.stack(looked_at), torch.stack(contexts)


@pytest.mark.parametrize("cell", DECODERS)
@pytest.mark.parametrize("score", SCORES)
def test_it_is_what_the_equations_say(score, cell):
    module = make(score, cell)
    inputs, encoded, state = example(cell)
    memory = module.prepare(encoded, LENGTHS)
    _, contexts, weights, after = module(inputs, memory, module.begin(state, memory), return_weights=True)
    wanted_weights, wanted_contexts = twin(module, inputs, encoded, state)
    torch.testing.assert_close(weights, wanted_weights, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(contexts, wanted_contexts, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(after.coverage, wanted_weights.sum(1), rtol=1e-10, atol=1e-12)


def test_an_additive_score_compares_as_the_paper_has_it():
    """v tanh(W_q s + W_k h_j + u c_j), written out for the second step."""
    module = make()
    inputs, encoded, state = example()
    memory = module.prepare(encoded)
    _, _, first, after = module.step(inputs[:, 0], memory, module.begin(state, memory), return_weights=True)
    _, _, second, _ = module.step(inputs[:, 1], memory, after, return_weights=True)
    query, key, u = module.score.W_q(after.state[-1]), module.score.W_k(encoded), module.coverage_weight
    compared = torch.tanh(query[:, None] + key + first[..., None] * u) @ module.score.w_v.weight[0]
    torch.testing.assert_close(second, compared.softmax(1))


@pytest.mark.parametrize("cell", DECODERS)
def test_steps_are_the_sequence_and_rows_can_be_selected(cell):
    module = make(cell=cell)
    inputs, encoded, state = example(cell)
    memory = module.prepare(encoded, LENGTHS)
    outputs, _, weights, last = module(inputs, memory, module.begin(state, memory), return_weights=True)
    rows = torch.tensor([2, 0, 2, 1])
    with torch.no_grad():
        memory = module.prepare(encoded, LENGTHS)
        state = module.begin(state, memory)
        for step in range(STEPS):
            if step == 2:
                state, memory, inputs = module.select(state, rows), memory.select(rows), inputs[rows]
                outputs, weights, last = outputs[rows], weights[rows], module.select(last, rows)
            output, _, looked_at, state = module.step(inputs[:, step], memory, state, return_weights=True)
            torch.testing.assert_close(output, outputs[:, step])
            torch.testing.assert_close(looked_at, weights[:, step])
    torch.testing.assert_close(state.coverage, last.coverage)
    torch.testing.assert_close(state.state, last.state)


def test_a_sequence_that_is_over_is_covered_no_further():
    module, lengths = make(), torch.tensor([3, 5, 1])
    inputs, encoded, state = example()
    memory = module.prepare(encoded, LENGTHS)
    _, _, weights, after = module(inputs, memory, module.begin(state, memory), lengths=lengths, return_weights=True)
    torch.testing.assert_close(after.coverage.sum(1), lengths.double())
    for row, length in enumerate(lengths.tolist()):
        alone = module.prepare(encoded[row : row + 1], LENGTHS[row : row + 1])
        begin = module.begin(state[:, row : row + 1], alone)
        _, _, wanted, end = module(inputs[row : row + 1, :length], alone, begin, return_weights=True)
        torch.testing.assert_close(weights[row, :length], wanted[0])
        torch.testing.assert_close(after.coverage[row], end.coverage[0])
        torch.testing.assert_close(after.state[:, row], end.state[:, 0])


def test_gradients_are_those_of_differences():
    module = make(layers=1)
    inputs, encoded, state = (each.requires_grad_() for each in example(layers=1))
    lengths = torch.tensor([2, 3, 1])

    def run(inputs, encoded, state, weight):
        memory = module.prepare(encoded, LENGTHS)
        coverage = torch.zeros(BATCH, POSITIONS, dtype=torch.float64)
        results = torch.func.functional_call(
            module, {"coverage_weight": weight}, (inputs, memory, Covered(state, coverage)), {"lengths": lengths}
        )
        return results[0], results[1], results[3].coverage

    weight = module.coverage_weight.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(run, (inputs[:, :3].detach().requires_grad_(), encoded, state, weight))


def test_it_begins_as_attention_without_it():
    plain = AttentionalGRU(INPUT, HIDDEN, CONTEXT, scores.Dot())
    module = AttentionalGRU(INPUT, HIDDEN, CONTEXT, scores.Dot(), coverage=True)
    assert module.load_state_dict(plain.state_dict(), strict=False).missing_keys == ["coverage_weight"]
    inputs, encoded, state = (each.float() for each in example(layers=1))
    memory = module.prepare(encoded, LENGTHS)
    found = module(inputs, memory, module.begin(state, memory))[0]
    torch.testing.assert_close(found, plain(inputs, plain.prepare(encoded, LENGTHS), state)[0])
    found.sum().backward()
    assert module.coverage_weight.grad.abs().max() > 0


def test_what_stands_behind_a_length_has_no_effect():
    module = make()
    inputs, encoded, state = example()
    poisoned = encoded.clone()
    poisoned[1, 1:], poisoned[2, 4:] = torch.nan, torch.inf
    poisoned.requires_grad_()
    memory, bad = module.prepare(encoded, LENGTHS), module.prepare(poisoned, LENGTHS)
    wanted = module(inputs, memory, module.begin(state, memory))
    found = module(inputs, bad, module.begin(state, bad))
    torch.testing.assert_close(found[0], wanted[0], rtol=0, atol=0)
    assert not found[3].coverage[1, 1:].any()
    gradient, of_weight = torch.autograd.grad(found[0].sum(), [poisoned, module.coverage_weight])
    assert gradient.isfinite().all()
    assert of_weight.isfinite().all()


def test_coverage_counts_the_weights_before_dropout():
    module = make(weight_dropout=0.5)
    inputs, encoded, state = example()
    memory = module.prepare(encoded, LENGTHS)
    _, _, weights, after = module(inputs, memory, module.begin(state, memory), return_weights=True)
    torch.testing.assert_close(after.coverage, weights.sum(1))
    torch.testing.assert_close(after.coverage.sum(1), torch.full((BATCH,), float(STEPS), dtype=torch.float64))


def test_wrong_states_are_refused():
    module, (inputs, encoded, state) = make(), example()
    memory = module.prepare(encoded)
    with pytest.raises(ValueError, match="state: got Tensor; expected what begin makes of it, with coverage"):
        module(inputs, memory, state)
    with pytest.raises(ValueError, match=r"coverage of shape \(3, 6\); expected \(batch, positions\) = \(3, 7\)"):
        module.step(inputs[:, 0], memory, Covered(state, torch.zeros(3, 6)))
    with pytest.raises(ValueError, match="'numba', which cannot run here: with coverage the keys change"):
        module(inputs, memory, module.begin(state, memory), impl="numba")
    plain = AttentionalGRU(INPUT, HIDDEN, CONTEXT, scores.Dot(), 2).double()
    assert plain.begin(state, memory) is state
    with pytest.raises(ValueError, match="state: got Covered; expected one tensor"):
        plain(inputs, plain.prepare(encoded), module.begin(state, memory))


@torch.no_grad()
def test_a_memory_of_a_decoder_without_coverage_will_do():
    module = make().eval()
    plain = AttentionalGRU(INPUT, HIDDEN, CONTEXT, module.score, 2).double().eval()
    inputs, encoded, state = example()
    own, other = module.prepare(encoded, LENGTHS), plain.prepare(encoded, LENGTHS)
    begin = Covered(
        state, torch.rand(BATCH, POSITIONS, dtype=torch.float64) * (torch.arange(POSITIONS) < LENGTHS[:, None])
    )
    wanted = module.step(inputs[:, 0], own, begin, return_weights=True)
    found = module.step(inputs[:, 0], other, begin, return_weights=True)
    for one, another in zip(found[:3], wanted[:3], strict=True):
        torch.testing.assert_close(one, another)
    torch.testing.assert_close(found[3].coverage, begin.coverage + wanted[2])
