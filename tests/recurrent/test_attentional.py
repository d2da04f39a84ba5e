import pytest
import torch
from torch import Tensor, nn

import kit
from dikkat import scores
from dikkat.recurrent import AttentionalGRU

BATCH, STEPS, POSITIONS, INPUT, HIDDEN, CONTEXT = 3, 5, 7, 2, 11, 13


def make(score: str = "additive", layers: int = 2, dropout: float = 0.0) -> AttentionalGRU:
    torch.manual_seed(0)
    context = HIDDEN if score == "dot" else CONTEXT
    made = {
        "additive": lambda: scores.Additive(context, HIDDEN, 17),
        "bilinear": lambda: scores.Bilinear(context, HIDDEN),
        "dot": scores.Dot,
    }[score]()
    return AttentionalGRU(INPUT, HIDDEN, context, made, layers, dropout).double()


def example(module: AttentionalGRU) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    inputs = torch.randn(BATCH, STEPS, INPUT, dtype=torch.float64)
    encoded = torch.randn(BATCH, POSITIONS, module.context_size, dtype=torch.float64)
    state = torch.randn(module.num_layers, BATCH, HIDDEN, dtype=torch.float64)
    return inputs, encoded, torch.tensor([7, 1, 4]), state


def by_hand(module: AttentionalGRU, inputs: Tensor, encoded: Tensor, lengths: Tensor, state: Tensor, score: str):
    """The paper's equations, one sentence, one step and one key at a time."""
    parameters = dict(module.named_parameters())

    def scored(query: Tensor, key: Tensor) -> Tensor:
        if score == "additive":
            joined = parameters["score.W_q.weight"] @ query + parameters["score.W_k.weight"] @ key
            return parameters["score.w_v.weight"].reshape(-1) @ torch.tanh(joined)
        if score == "bilinear":
            return (parameters["score.W_q.weight"] @ query) @ key
        return query @ key

    outputs, contexts, weights, finals = [], [], [], []
    for sentence in range(BATCH):
        hidden = [layer[sentence] for layer in state]
        keys = encoded[sentence, : lengths[sentence]]
        rows: list[tuple[Tensor, Tensor, Tensor]] = []
        for step in range(STEPS):
            weight = torch.softmax(torch.stack([scored(hidden[-1], key) for key in keys]), dim=0)
            context = sum(w * key for w, key in zip(weight, keys, strict=True))
            below = torch.cat([inputs[sentence, step], context])
            for layer in range(module.num_layers):
                left = parameters[f"weight_ih_l{layer}"] @ below + parameters[f"bias_ih_l{layer}"]
                right = parameters[f"weight_hh_l{layer}"] @ hidden[layer] + parameters[f"bias_hh_l{layer}"]
                r = torch.sigmoid(left[:HIDDEN] + right[:HIDDEN])
                z = torch.sigmoid(left[HIDDEN : 2 * HIDDEN] + right[HIDDEN : 2 * HIDDEN])
                n = torch.tanh(left[2 * HIDDEN :] + r * right[2 * HIDDEN :])
                hidden[layer] = (1 - z) * n + z * hidden[layer]
                below = hidden[layer]
            rows.append((below, context, nn.functional.pad(weight, (0, POSITIONS - len(weight)))))
        for collected, column in zip((outputs, contexts, weights), zip(*rows, strict=True), strict=True):
            collected.append(torch.stack(column))
        finals.append(torch.stack(hidden))
    return torch.stack(outputs), torch.stack(contexts), torch.stack(weights), torch.stack(finals, dim=1)


@pytest.mark.parametrize("score", ["additive", "bilinear", "dot"])
@pytest.mark.parametrize("layers", [1, 3])
def test_equals_the_equations_step_by_step(score, layers):
    module = make(score, layers)
    inputs, encoded, lengths, state = example(module)
    found = module(inputs, module.prepare(encoded, lengths), state, return_weights=True)
    for got, wanted in zip(found, by_hand(module, inputs, encoded, lengths, state, score), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-12)


def test_gradients_equal_those_of_the_equations():
    module = make("additive", 2)
    inputs, encoded, lengths, state = (t.requires_grad_(t.is_floating_point()) for t in example(module))
    wanted_for = [inputs, encoded, state, *module.parameters()]

    def gradients(outputs, contexts, *_):
        return torch.autograd.grad((outputs.sin() + contexts.sum(-1, keepdim=True).cos()).sum(), wanted_for)

    found = gradients(*module(inputs, module.prepare(encoded, lengths), state))
    wanted = gradients(*by_hand(module, inputs, encoded, lengths, state, "additive"))
    for got, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11)


def test_is_torchs_gru_where_there_is_one_thing_to_look_at():
    """With one position the context is that position, whatever the score: a GRU whose input has it appended."""
    module = make(layers=2)
    inputs, encoded, _, state = example(module)
    encoded = encoded[:, :1]
    twin = nn.GRU(INPUT + CONTEXT, HIDDEN, 2, batch_first=True).double()
    twin.load_state_dict({name: value for name, value in module.state_dict().items() if not name.startswith("score.")})
    wanted, wanted_state = twin(torch.cat([inputs, encoded.expand(-1, STEPS, -1)], dim=-1), state)
    outputs, contexts, weights, final = module(inputs, module.prepare(encoded), state)
    torch.testing.assert_close(outputs, wanted, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(final, wanted_state, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(contexts, encoded.expand(-1, STEPS, -1))
    assert weights is None


def test_parameters_have_the_names_order_and_shapes_of_torchs_gru():
    twin = nn.GRU(INPUT + CONTEXT, HIDDEN, 3)
    own = [(name, value.shape) for name, value in make(layers=3).named_parameters() if not name.startswith("score.")]
    assert own == [(name, value.shape) for name, value in twin.named_parameters()]


def test_steps_are_the_sequence():
    module = make()
    inputs, encoded, lengths, state = example(module)
    memory = module.prepare(encoded, lengths)
    outputs, contexts, weights, final = module(inputs, memory, state, return_weights=True)
    for step in range(STEPS):
        output, context, weight, state = module.step(inputs[:, step], memory, state, return_weights=True)
        torch.testing.assert_close(output, outputs[:, step])
        torch.testing.assert_close(context, contexts[:, step])
        torch.testing.assert_close(weight, weights[:, step])
    torch.testing.assert_close(state, final)


def test_a_selected_memory_belongs_to_the_selected_sentences():
    module = make()
    inputs, encoded, lengths, state = example(module)
    memory = module.prepare(encoded, lengths)
    rows = torch.tensor([2, 0, 2, 1])
    output, *_ = module.step(inputs[rows, 0], memory.select(rows), state[:, rows])
    torch.testing.assert_close(output, module.step(inputs[:, 0], memory, state)[0][rows])


def test_what_stands_behind_a_length_has_no_effect():
    module = make()
    inputs, encoded, lengths, state = example(module)
    poisoned = encoded.clone()
    poisoned[1, 1:] = torch.nan
    poisoned[2, 4:] = torch.inf
    poisoned.requires_grad_()
    wanted = module(inputs, module.prepare(encoded, lengths), state)[0]
    found = module(inputs, module.prepare(poisoned, lengths), state)[0]
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    (gradient,) = torch.autograd.grad(found.sum(), poisoned)
    assert gradient.isfinite().all()
    assert not gradient[1, 1:].any()


def test_dropout_acts_between_layers_in_training_only():
    module = make(layers=2, dropout=0.5)
    inputs, encoded, lengths, state = example(module)
    memory = module.prepare(encoded, lengths)
    torch.manual_seed(2)
    trained = module(inputs, memory, state)[0]
    torch.manual_seed(2)
    torch.testing.assert_close(module(inputs, memory, state)[0], trained, rtol=0, atol=0)
    module.eval()
    assert not torch.equal(module(inputs, memory, state)[0], trained)
    torch.testing.assert_close(module(inputs, memory, state)[0], make(layers=2)(inputs, memory, state)[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 5, 7), "input_size: got 0"), ((3, -1, 7), "hidden_size: got -1"), ((3, 5, 0), "context_size: got 0"),
        ((3, 5, 7, 0), "num_layers: got 0"), ((3, 5, 7, 2, 1.5), r"dropout: got 1\.5"),
        ((3, 5, 7, 1, 0.1), "dropout acts between layers"),
    ],
)  # fmt: skip
def test_refuses_sizes_that_mean_nothing(arguments, message):
    with pytest.raises(ValueError, match=message):
        AttentionalGRU(*arguments[:3], scores.Dot(), *arguments[3:])


def test_refuses_shapes_that_do_not_fit():
    module = make()
    inputs, encoded, lengths, state = example(module)
    memory = module.prepare(encoded, lengths)
    with pytest.raises(ValueError, match=r"inputs: got shape \(3, 5, 1\).*\(batch, steps, 2\)"):
        module(inputs[..., :1], memory, state)
    with pytest.raises(ValueError, match="at least one step"):
        module(inputs[:, :0], memory, state)
    with pytest.raises(ValueError, match=r"state: got shape \(1, 3, 11\).*\(2, 3, 11\)"):
        module(inputs, memory, state[:1])


@pytest.mark.parametrize("kind", kit.NOT_DENSE)
def test_refuses_tensors_that_are_not_dense(kind):
    module = make()
    inputs, encoded, lengths, state = example(module)
    made, came = kit.not_dense(kind)
    with pytest.raises(TypeError, match=f"^encoded: {came}"):
        module.prepare(made(encoded), lengths)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            memory = module.prepare(encoded, lengths)
            with pytest.raises(TypeError, match=f"^inputs: {came}"):
                module(made(inputs), memory, state)
            if kind != "rows":  # of two dimensions they are another tensor
                with pytest.raises(TypeError, match=f"^inputs: {came}"):
                    module.step(made(inputs[:, 0]), memory, state)


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("gradients", [True, False])
def test_is_the_same_however_its_tensors_lie_in_memory(gradients: bool, impl: str) -> None:
    module = make()
    inputs, encoded, lengths, state = example(module)
    wanted = by_hand(module, inputs, encoded, lengths, state, "additive")
    for lie in (
        lambda t: t.mT.contiguous().mT,
        lambda t: t.movedim(0, -1).contiguous().movedim(-1, 0),
        lambda t: t.repeat_interleave(2, -1)[..., ::2],
        lambda t: torch.cat([t.flip(1), t], 1)[:, t.shape[1] :],
    ):
        with torch.set_grad_enabled(gradients):
            memory = module.prepare(lie(encoded), lengths.repeat_interleave(2)[::2])
            found = module(lie(inputs), memory, lie(state), return_weights=True, impl=impl)
            stepped = module.step(lie(inputs)[:, 0], memory, lie(state), return_weights=True)
        for got, expected in zip(found, wanted, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-12)
        for got, expected in zip(stepped[:3], wanted[:3], strict=True):
            torch.testing.assert_close(got, expected[:, 0], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("impl", ["reference", "numba"])
def test_values_of_another_width_than_the_keys(impl: str) -> None:
    """The first values are the keys' source: with zeros for the others' share of the gates, nothing else changes."""
    module = make().double()
    inputs, encoded, lengths, state = example(module)
    beside = torch.randn(BATCH, POSITIONS, 3, dtype=torch.float64)
    wide = AttentionalGRU(INPUT, HIDDEN, CONTEXT + 3, module.score, 2, key_size=CONTEXT).double()
    taken = dict(module.named_parameters())
    with torch.no_grad():
        for name, parameter in wide.named_parameters():
            if not name.startswith("score"):
                parameter.zero_()
                parameter[..., : taken[name].shape[-1]] = taken[name]
    memory = wide.prepare(encoded, lengths, torch.cat([encoded, beside], dim=-1))
    outputs, contexts, weights, _ = wide(inputs, memory, state, return_weights=True, impl=impl)
    expected, of_encoded, expected_weights, _ = module(
        inputs, module.prepare(encoded, lengths), state, return_weights=True, impl=impl
    )
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(weights, expected_weights)
    torch.testing.assert_close(contexts, torch.cat([of_encoded, weights @ beside], dim=-1))
