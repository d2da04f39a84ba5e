import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import kit
from dikkat.recurrent import GRUEncoder, LSTMEncoder


def make(layers: int = 2, bidirectional: bool = True) -> GRUEncoder:
    torch.manual_seed(0)
    return GRUEncoder(3, 5, layers, bidirectional).double()


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_each_sentence_is_encoded_as_if_it_were_alone(layers, bidirectional):
    encoder = make(layers, bidirectional)
    directions = 1 + bidirectional
    twin = nn.GRU(3, 5, layers, batch_first=True, bidirectional=bidirectional).double()
    twin.load_state_dict(encoder.gru.state_dict())
    inputs, lengths = torch.randn(4, 7, 3, dtype=torch.float64), [2, 7, 1, 5]
    outputs, state = encoder(inputs, torch.tensor(lengths))
    assert outputs.shape == (4, 7, encoder.output_size)
    for row, length in enumerate(lengths):
        wanted, final = twin(inputs[row : row + 1, :length])
        torch.testing.assert_close(outputs[row, :length], wanted[0], rtol=1e-12, atol=1e-13)
        assert not outputs[row, length:].any()
        for layer in range(layers):
            joined = torch.cat([final[layer * directions + direction, 0] for direction in range(directions)])
            torch.testing.assert_close(state[layer, row], joined, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_the_last_cells_are_those_of_each_sentence_alone(impl):
    torch.manual_seed(0)
    encoder = LSTMEncoder(3, 5, 2, True).double()
    twin = nn.LSTM(3, 5, 2, batch_first=True, bidirectional=True).double()
    twin.load_state_dict(encoder.lstm.state_dict())
    inputs, lengths = torch.randn(4, 7, 3, dtype=torch.float64), [2, 7, 1, 5]
    _, last = encoder(inputs, torch.tensor(lengths), impl=impl)
    for row, length in enumerate(lengths):
        _, wanted = twin(inputs[row : row + 1, :length])
        for came, final in zip(last, wanted, strict=True):
            by_layer = final[:, 0].reshape(2, 2 * 5)  # both directions side by side
            torch.testing.assert_close(came[:, row], by_layer, rtol=1e-12, atol=1e-13)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.sampled_from([torch.nan, torch.inf, 1e300]))
def test_padding_is_never_read(lengths, rubbish):
    encoder = make()
    inputs = torch.randn(len(lengths), 6, 3, dtype=torch.float64)
    poisoned = inputs.clone()
    for row, length in enumerate(lengths):
        poisoned[row, length:] = rubbish
    poisoned.requires_grad_()
    wanted, wanted_state = encoder(inputs, torch.tensor(lengths))
    outputs, state = encoder(poisoned, torch.tensor(lengths))
    torch.testing.assert_close(outputs, wanted, rtol=0, atol=0)
    torch.testing.assert_close(state, wanted_state, rtol=0, atol=0)
    (gradient,) = torch.autograd.grad(outputs.sum() + state.sum(), poisoned)
    assert gradient.isfinite().all()
    assert all(not gradient[row, length:].any() for row, length in enumerate(lengths))


@pytest.mark.parametrize("lengths", [[0, 3], [4, 3], [3], [[3, 3]]])
def test_refuses_lengths_that_do_not_fit(lengths):
    with pytest.raises(ValueError, match="lengths"):
        make()(torch.zeros(2, 3, 3, dtype=torch.float64), torch.tensor(lengths))


def test_refuses_inputs_that_do_not_fit():
    with pytest.raises(ValueError, match=r"inputs: got shape \(2, 3, 4\)"):
        make()(torch.zeros(2, 3, 4, dtype=torch.float64), torch.tensor([1, 1]))


@pytest.mark.parametrize("kind", kit.NOT_DENSE)
def test_refuses_inputs_that_are_not_dense(kind):
    made, came = kit.not_dense(kind)
    with pytest.raises(TypeError, match=f"^inputs: {came}"):
        make()(made(torch.zeros(2, 3, 3, dtype=torch.float64)), torch.tensor([1, 1]))
    with pytest.raises(TypeError, match=r"^inputs: got list; expected a torch\.Tensor"):
        make()([[[0.0] * 3]], torch.tensor([1]))
    with pytest.raises(TypeError, match=r"^lengths: got a tensor with layout torch\.sparse_coo; expected a dense"):
        make()(torch.zeros(2, 3, 3, dtype=torch.float64), torch.tensor([1, 1]).to_sparse())


@pytest.mark.parametrize("arguments", [{"input_size": 0}, {"num_layers": 0}, {"dropout": -0.1}, {"dropout": 0.5}])
def test_refuses_sizes_that_mean_nothing(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        GRUEncoder(**{"input_size": 3, "hidden_size": 5, **arguments})
