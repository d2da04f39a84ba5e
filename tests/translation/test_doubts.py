import warnings

import pytest

from dikkat.translation import TsvCorpus, hold_out, phrasebook, without_leaks
from dikkat.translation.data.doubts import doubts
from dikkat.translation.training.train import train
from translation.test_training import shorter

BOOK = phrasebook.pairs()[:600]
LONG = ("Who is it?", "C'est une longue histoire, que je raconterai demain à tous ceux qui voudront bien l'entendre.")


def exchanged(pairs):
    return [(target, source) for source, target in pairs]


def placed(pairs, pair, *rows):
    return [pair if row in rows else each for row, each in enumerate(pairs)]


@pytest.mark.parametrize("size", [20, 100, 600, None])
def test_of_right_pairs_nothing_is_said(size):
    training, held_out = phrasebook.split()
    assert list(doubts(training[:size], 1, held_out)) == []


def test_pairs_of_equal_sides_are_said_with_their_numbers():
    same = placed(BOOK[:100], ("Save as", "Save as"), 2, 6, 98)
    assert [*doubts(same, 1, [])] == ["3 of 100 pairs (3, 7, 99; the first is 'Save as'): both sides are the same"]
    assert [*doubts(same, 20, [])] == [
        "3 of 100 pairs (41, 121, 1,961; the first is 'Save as'): both sides are the same"
    ]
    assert [*doubts(placed(BOOK[:100], ("OK", "OK"), 2, 6), 1, [])] == []  # two may be names
    assert [*doubts(placed(BOOK[:400], ("OK", "OK"), 2, 6, 98), 1, [])] == []  # less than one in a hundred
    (said,) = doubts(placed(BOOK[:400], ("OK", "OK"), *range(7, 400, 10)), 1, [])
    assert said.startswith("40 of 400 pairs (8, 18, 28, 38, 48 …; the first is 'OK'): both")


def test_pairs_of_far_other_lengths_are_said_with_their_numbers():
    (said,) = doubts(placed(BOOK[:100], LONG, 41), 1, [])
    assert said.startswith("1 of 100 pairs (42; the first is 'Who is it?'): one side is far longer than usual. Do they")
    assert [*doubts(placed(BOOK[:19], LONG, 7), 1, [])] == []  # too few to know what is usual
    # Where the target always has seven letters for one, that is usual, and one for one is not.
    spelt = [("a" * length, "b" * 7 * length) for length in range(1, 41)]
    assert [*doubts(spelt, 1, [])] == []
    (said,) = doubts(placed(spelt, ("aaaaaa", "bbbbbb"), 5), 1, [])
    assert said.startswith("1 of 40 pairs (6; the first is 'aaaaaa'): one side is far longer")


def test_exchanged_columns_are_said():
    said = "most source words of {} are words of the targets elsewhere: are its columns exchanged?".format
    assert [*doubts(BOOK[:500], 1, exchanged(BOOK[500:]))] == [said("validation")]
    assert [*doubts(BOOK[:300] + exchanged(BOOK[300:]), 1, BOOK[:50])] == [said("the later half")]
    assert [*doubts(BOOK[:500], 1, exchanged(BOOK[500:519]))] == []  # too few to judge by
    assert [*doubts(BOOK[:500], 1, BOOK[500:540] + exchanged(BOOK[540:]))] == []  # not four words in five
    copied = [(source, source[::-1]) for source, _ in BOOK]
    numbers = [(str(number), str(number)[::-1]) for number in range(1000, 1100)]
    assert [*doubts(copied, 1, numbers)] == []  # of words that neither side has nothing is known


def test_training_says_its_doubts_and_learns_all_the_same():
    pairs = placed(BOOK[:60], ("OK", "OK"), 3, 4, 5)
    settings = shorter(epochs=1, hidden_size=8, embedding_size=8)
    with warnings.catch_warnings(record=True, action="always") as said:
        result = train(settings, pairs, exchanged(BOOK[60:100]), progress=False)
    assert [str(each.message).partition(" (")[0] for each in said] == [
        "60 pairs in memory: 3 of 60 pairs",
        "60 pairs in memory: most source words of validation are words of the targets elsewhere: are its columns "
        "exchanged?",
    ]
    assert result.pairs == 60


def test_the_numbers_are_those_of_the_file_whatever_is_held_out(tmp_path):
    pairs = placed([(str(number), f"{number} x") for number in range(1200)], ("Save", "Save"), *range(3, 1200, 60))
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    training, validation = hold_out(TsvCorpus(file), 0.4)
    with warnings.catch_warnings(record=True, action="always") as said:
        train(shorter(epochs=1, hidden_size=8), without_leaks(training, [("7", "7 x")]), validation, progress=False)
    first = f"{file}: 20 of 1,200 pairs (4, 64, 124, 184, 244 …; the first is 'Save'): both sides are the same"
    assert first in [str(each.message) for each in said]
