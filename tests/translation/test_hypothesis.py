"""Sequences of tokens that repeat themselves."""

import random

import pytest

from dikkat.translation import Tokenizer
from dikkat.translation.decoding.hypothesis import repetition


def plain(ids, begins, allowed):
    """The same by its definition, with a loop over every start and size."""
    most, cuts = 1, []
    for start in range(len(ids)):
        for size in range(1, len(ids) - start + 1):
            times = 1
            while ids[start : start + size] == ids[start + times * size : start + (times + 1) * size]:
                times += 1
            if times > 1 and size * 3 <= len(ids) and begins & set(ids[start : start + size]):
                most = max(most, times)
                if times > allowed:
                    cuts.append((start, size))
    return most, sum(min(cuts)) if cuts else len(ids)


def test_repetitions_are_those_of_the_definition():
    draw = random.Random(0)
    for _ in range(3_000):
        ids = draw.choices(range(draw.choice((2, 3, 5))), k=draw.randint(0, 17))
        begins, allowed = set(draw.sample(range(5), k=draw.randint(0, 5))), draw.randint(2, 4)
        most, end = plain(ids, begins, allowed)
        assert repetition(ids, begins.__contains__)[0] == most
        assert repetition(ids, begins.__contains__, allowed) == (most, end)


@pytest.mark.parametrize(
    ("kind", "text", "repeats"),
    [
        ("bpe", "Il y a 1000 personnes.", False), ("bpe", "Schifffahrt", False),
        ("bpe", "Il a très très très très soif", True), ("word", "J'ai 1 000 000 000 euros", False),
        ("word", "non non non non", True), ("word", "Non . . . .", False),
    ],
)  # fmt: skip
def test_numbers_and_letters_within_a_word_repeat_nothing(kind, text, repeats):
    size = 270 if kind == "bpe" else 100
    tokenizer = Tokenizer.train([text, "non . , 000"], kind, min_freq=1, vocabulary_size=size)
    ids = tokenizer.encode(text).ids
    assert (repetition(ids, tokenizer.begins_word)[0] > 2) is repeats
