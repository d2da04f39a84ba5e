"""The example of passages, in a short form."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("transformers")


def test_the_right_passage_is_read_and_can_be_cut(tmp_path):
    spec = importlib.util.spec_from_file_location("passages", Path(__file__).parents[2] / "examples" / "passages.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    model, tokenizer = example.train([(150, 48, 6, 8)]), example.make_tokenizer()
    numbers = example.measure(model, tokenizer, passages=6, count=10)
    assert min(numbers.values()) >= 9, numbers
    example.write(model, tokenizer, next(example.make_prompts(1, 6, seed=2)), path=tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 100_000
