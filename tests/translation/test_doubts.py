import math
import random
import re
import warnings
from collections import defaultdict

import numpy as np
import pytest

from dikkat.translation import TsvCorpus, hold_out, phrasebook, without_leaks
from dikkat.translation.data.doubts import _Lexicon, doubts
from dikkat.translation.training.train import train
from translation.test_training import shorter

BOOK = phrasebook.pairs()[:600]
LONGER = random.Random(5).sample([each for each in phrasebook.pairs() if min(len(s.split()) for s in each) > 4], 3000)
LONG = ("Who is it?", "C'est une longue histoire, que je raconterai demain à tous ceux qui voudront bien l'entendre.")


def exchanged(pairs):
    return [(target, source) for source, target in pairs]


def placed(pairs, pair, *rows):
    return [pair if row in rows else each for row, each in enumerate(pairs)]


@pytest.mark.parametrize("size", [20, 100, 600, None])
def test_of_right_pairs_nothing_is_said(size):
    training, held_out = phrasebook.split()
    assert list(doubts("x", training[:size], 1, "v", held_out)) == []


def test_pairs_of_equal_sides_are_said_with_their_numbers():
    same = placed(BOOK[:100], ("Save as", "Save as"), 2, 6, 98)
    assert [*doubts("x", same, 1)] == ["x: 3 of 100 pairs (3, 7, 99; the first is 'Save as'): both sides are the same"]
    assert [*doubts("x", same, 20)] == [
        "x: 3 of 100 pairs (41, 121, 1,961; the first is 'Save as'): both sides are the same"
    ]
    assert [*doubts("x", placed(BOOK[:100], ("OK", "OK"), 2, 6), 1)] == []  # two may be names
    assert [*doubts("x", placed(BOOK[:400], ("OK", "OK"), 2, 6, 98), 1)] == []  # less than one in a hundred
    (said,) = doubts("x", placed(BOOK[:400], ("OK", "OK"), *range(7, 400, 10)), 1)
    assert said.startswith("x: 40 of 400 pairs (8, 18, 28, 38, 48 …; the first is 'OK'): both")


def test_pairs_of_far_other_lengths_are_said_with_their_numbers():
    (said,) = doubts("x", placed(BOOK[:100], LONG, 41), 1)
    assert said.startswith(
        "x: 1 of 100 pairs (42; the first is 'Who is it?'): one side is far longer than usual. Is it"
    )
    assert [*doubts("x", placed(BOOK[:19], LONG, 7), 1)] == []  # too few to know what is usual
    # Where the target always has seven letters for one, that is usual, and one for one is not.
    spelt = [("a" * length, "b" * 7 * length) for length in range(1, 41)]
    assert [*doubts("x", spelt, 1)] == []
    (said,) = doubts("x", placed(spelt, ("aaaaaa", "bbbbbb"), 5), 1)
    assert said.startswith("x: 1 of 40 pairs (6; the first is 'aaaaaa'): one side is far longer")


def test_exchanged_sides_are_said():
    (said,) = doubts("x", LONGER[:500], 1, "v", exchanged(LONGER[500:600]))
    assert re.match(r"v: (100|9\d) of 100 pairs \(1, 2, 3, 4, 5 ….*: the two sides look exchanged$", said)
    (said,) = doubts("x", LONGER[:300] + exchanged(LONGER[300:600]), 1, "v", LONGER[:50])
    assert re.match(r"x: (300|29\d) of 600 pairs \(301, 302, 303, 304, 305 ….*: the two sides look exchanged$", said)
    # Of the half that is learnt from first, four pairs in ten are wrong.
    (said,) = doubts("x", exchanged(LONGER[:600]) + LONGER[600:], 2, "v", LONGER[:50])
    assert re.match(r"x: (600|59\d) of 3,000 pairs \(1, 3, 5, 7, 9 ….*: the two sides look exchanged$", said)
    assert [*doubts("x", BOOK[:500], 1, "v", exchanged(BOOK[500:509]) + BOOK[509:])] == []
    copied = [(source, source[::-1]) for source, _ in BOOK]
    numbers = [(str(number), str(number)[::-1]) for number in range(1000, 1100)]
    assert [*doubts("x", copied, 1, "v", numbers)] == []  # of words that neither side has nothing is known


def moved(pairs, rows):
    """These rows with each other's targets."""
    targets = {row: pairs[other][1] for row, other in zip(rows, [*rows[1:], rows[0]], strict=True)}
    return [(source, targets.get(row, target)) for row, (source, target) in enumerate(pairs)]


def without_spaces(pairs):
    """A character of Han for each word of the target."""
    characters = defaultdict(lambda: chr(0x4E00 + len(characters)))
    return [(source, "".join(characters[word] for word in target.lower().split())) for source, target in pairs]


@pytest.mark.parametrize("made", [list, without_spaces])
@pytest.mark.parametrize(
    ("wrong", "least"),
    [(random.Random(3).sample(range(3000), 151), 0.7), (range(1500, 3000), 0.4)],
    ids=["some", "the later half"],  # as where a line is missing
)
def test_translations_of_other_sentences_are_said(made, wrong, least):
    (said,) = doubts("x", moved(made(LONGER), wrong), 1)
    found, numbers = re.match(r"x: ([\d,]+) of 3,000 pairs \(([\d, ]+) ….*: their words do not go toge", said).groups()
    assert least * len(wrong) < int(found.replace(",", "")) <= 1.02 * len(wrong)
    assert sum(int(number.replace(",", "")) - 1 in set(wrong) for number in numbers.split(", ")) >= 4


def left_out(sentence, chance):
    return " ".join(word for word in sentence.split() if chance.random() < 0.7) or "x"


@pytest.mark.parametrize("count", [50, 200, 3000])
def test_of_free_translations_nothing_is_said(count):
    chance = random.Random(count)
    free = [tuple(left_out(side, chance) for side in pair) for pair in LONGER[:count]]
    assert [each for each in doubts("x", free, 1, "v", LONGER) if "far longer" not in each] == []
    alike = [tuple(left_out(source, chance) for _ in "ab") for source, _ in LONGER]
    assert [each for each in doubts("x", alike[:count], 1, "v", alike) if "exchanged" in each] == []  # one language
    long = [(" ".join([source] * 9), " ".join([target] * 9)) for source, target in LONGER[:count]]
    assert [*doubts("x", moved(long, range(count)), 1)] == []  # too long to be compared


def test_of_two_target_languages_line_by_line_nothing_is_said():
    turned = [" ".join(word[:: 1 - 2 * (row % 2)] for word in target.split()) for row, (_, target) in enumerate(LONGER)]
    assert [*doubts("x", [(source, target) for (source, _), target in zip(LONGER, turned, strict=True)], 1)] == []


def test_chances_are_those_of_model_1():
    """By its definition, in a loop over plain dictionaries."""
    sides = [[{1, 2, 5}, {1, 3}, {2}, {1, 2, 3}], [{6, 7, 9}, {7, 8, 6}, {9}, {6, 9}]]
    pairs = [({*source, None}, target) for source, target in zip(*sides, strict=True)]
    chances = defaultdict(lambda: 1.0)
    for _ in range(5):
        counts = defaultdict(float)
        for source, target in pairs:
            for word in target:
                total = sum(chances[one, word] for one in source)
                for one in source:
                    counts[one, word] += chances[one, word] / total
        sums = {one: sum(count for (other, _), count in counts.items() if other == one) for one, _ in counts}
        chances = {key: count / sums[key[0]] for key, count in counts.items()}
    lexicon = _Lexicon(*([np.array(sorted(words)) for words in side] for side in sides), 10)
    found = {
        (None if key // 10 == 10 else key // 10, key % 10): chance
        for key, chance in zip(lexicon.pairs.tolist(), lexicon.chances, strict=True)
    }
    assert found == pytest.approx(chances, abs=1e-12)

    def gain(source, word):
        chance = sum(chances.get((one, word), 0) for one in [*source, None]) / (len(source) + 1)
        return math.log(0.9 * chance / (sum(word in target for target in sides[1]) / 9) + 0.1)

    gains, known = lexicon.gains([np.array([1, 3]), np.array([4])], [np.array([4, 6, 7, 9]), np.array([7, 9])])
    assert gains.tolist() == pytest.approx([gain([1, 3], 6) + gain([1, 3], 9), gain([4], 9)], abs=1e-12)
    assert known.tolist() == [2, 1]  # 7 occurs only twice


def test_training_says_its_doubts_and_learns_all_the_same():
    pairs = placed(BOOK[:60], ("OK", "OK"), 3, 4, 5)
    settings = shorter(epochs=1, hidden_size=8, embedding_size=8)
    with warnings.catch_warnings(record=True, action="always") as said:
        result = train(settings, pairs, exchanged(BOOK[60:100]), progress=False)
    assert [str(each.message).partition(" (")[0] for each in said] == [
        "60 pairs in memory: 3 of 60 pairs",
        "40 pairs in memory: 40 of 40 pairs",
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


@pytest.mark.parametrize("seed", range(10))
def test_a_few_exchanged_pairs_of_a_small_corpus_are_said(seed):
    chance = random.Random(seed)
    pairs, rows = chance.sample(LONGER, 178), chance.sample(range(178), 14)
    (said,) = doubts("x", [pair[::-1] if row in rows else pair for row, pair in enumerate(pairs)], 1)
    found, numbers = re.match(r"x: (\d+) of 178 pairs \(([\d, ]+) ….*: the two sides look exchanged$", said).groups()
    assert int(found) >= 10
    assert {int(number) - 1 for number in numbers.split(", ")} <= set(rows)


def test_cells_in_quotation_marks_are_said():
    pairs = [("Go", "Va")] + [(f'"I see {number} cats"', f'"Je vois {number} chats"') for number in range(30)]
    quoted, *_ = doubts("it", pairs, 1)
    assert "30 of 31 pairs (2, 3, 4, 5, 6 …" in quoted
    assert "both sides are in quotation marks" in quoted
    (tabbed, *_) = doubts("it", [(f"I see {number}", f"I see {number}\tJe vois {number}") for number in range(30)], 1)
    assert "a side has a tab" in tabbed
