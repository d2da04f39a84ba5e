"""The example model copies, and its heads are the ones that its docstring names."""

import pytest
import torch

import dikkat
from dikkat.show.example import MAX_WORDS, WEIGHTS
from example_model import texts


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return dikkat.show.example_model()


@pytest.fixture(scope="module")
def repeated() -> torch.Tensor:
    """61 texts of 23 different random tokens, each text twice in a row."""
    generator = torch.Generator().manual_seed(1)
    return torch.stack([torch.randperm(512, generator=generator)[:23] for _ in range(61)]).repeat(1, 2)


def test_it_continues_texts_that_repeat(model, repeated):
    with torch.no_grad():
        predicted = model(repeated)[:, :-1].argmax(-1)
    correct = (predicted == repeated[:, 1:]).float().mean(0)
    assert correct[23:].mean() > 0.9
    assert correct[:22].mean() < 0.05  # the first copy is random


def test_heads_look_at_the_previous_word_and_behind_an_earlier_copy(model, repeated):
    with dikkat.record(model, weights=True) as trace:
        model(repeated)
    rows = torch.arange(24, 46)
    previous = trace[0].weights[:, :, rows, rows - 1].mean((0, 2))
    after_copy = trace[1].weights[:, :, rows, rows - 22].mean((0, 2))
    assert previous.max() > 0.3
    assert after_copy.max() > 0.5


def test_words_are_tokens(model):
    words = ["a", "rose", "is", "a", "rose"]
    logits = model(words)
    assert logits.shape == (1, 5, 512)
    torch.testing.assert_close(logits[0, :3], model(words[:3])[0], rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match=f"words: got {MAX_WORDS + 1}; expected at most {MAX_WORDS}"):
        model(["a"] * (MAX_WORDS + 1))


def test_the_file_is_small():
    assert len(WEIGHTS.read_bytes()) < 300_000


def test_training_texts_contain_copies():
    tokens, continues_copy = texts(7, torch.Generator().manual_seed(2))
    for row, copied in zip(tokens.tolist(), continues_copy.tolist(), strict=True):
        pairs = set()
        for previous, token, is_copy in zip(row, row[1:], copied[1:], strict=False):
            assert not is_copy or (previous, token) in pairs
            pairs.add((previous, token))
    assert 0.4 < continues_copy.float().mean() < 0.8
