import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dikkat.translation import CorpusError, PairCorpus, TsvCorpus, hold_out, split, without_leaks
from dikkat.translation.data import splits

WORDS = st.text("abC ", min_size=1, max_size=4).filter(str.strip)
PAIRS = st.lists(st.tuples(WORDS, WORDS), max_size=30)


def key(source):
    return source.lower().split()


def those_of(part):
    """The pairs of a part, none where it has none."""
    try:
        return list(part)
    except CorpusError:
        return []


@settings(deadline=None)
@given(PAIRS, st.lists(st.floats(0.01, 0.3), min_size=1, max_size=3), st.integers(0, 5))
def test_each_pair_is_in_one_part_with_all_of_the_same_source(pairs, shares, seed):
    parts = [those_of(part) for part in split(pairs, *shares, seed=seed)]
    assert len(parts) == 1 + len(shares)
    assert sorted(pair for part in parts for pair in part) == sorted(pairs)
    sources = [{tuple(key(source)) for source, _ in part} for part in parts]
    assert sum(map(len, sources)) == len(set().union(*sources))
    for part in parts:
        assert part == [pair for pair in pairs if pair in part]  # in the corpus's order


def test_the_parts_are_as_large_as_asked_for_and_the_seed_decides_them():
    pairs = [(str(number), "x") for number in range(10_000)]
    training, validation, test = (list(part) for part in split(pairs, 0.2, 0.05, seed=3))
    assert abs(len(validation) - 2000) < 5 * (10_000 * 0.2 * 0.8) ** 0.5
    assert abs(len(test) - 500) < 5 * (10_000 * 0.05 * 0.95) ** 0.5
    assert list(split(pairs, 0.2, 0.05, seed=3)[0]) == training
    assert list(split(pairs, 0.2, 0.05, seed=4)[0]) != training


def test_a_sentence_stays_in_its_part_when_the_corpus_grows():
    pairs = [(str(number), "x") for number in range(1500)]
    before, after = (set(hold_out(PairCorpus(some), 0.2)[1]) for some in (pairs[:1000], pairs))
    assert before == after & set(pairs[:1000])


@pytest.mark.parametrize("sentences", [2, 10, 19, 999])
def test_of_a_small_corpus_the_share_is_held_out_and_at_least_a_sentence(sentences):
    pairs = [(str(number % sentences), str(number)) for number in range(3 * sentences)]
    for seed in range(9):
        parts = [list(part) for part in hold_out(PairCorpus(pairs), 0.05, seed)]
        kept, held = ({source for source, _ in part} for part in parts)
        assert len(held) == {2: 1, 10: 1, 19: 1, 999: 50}[sentences]
        assert len(kept) == sentences - len(held)
        assert sorted(parts[0] + parts[1]) == sorted(pairs)


def test_pairs_may_be_lists_as_json_has_them():
    training, held_out = hold_out([["Go.", "Va !"], ["Go.", "Va !"], ["I lost.", "J'ai perdu."]], 0.5)
    assert sorted(training + held_out) == [("Go.", "Va !"), ("I lost.", "J'ai perdu.")]


def test_no_sentence_to_hold_out_is_said_with_a_way_out():
    for pairs, count in (
        ([], "0 different source sentences"),
        ([("a", "b"), ("A ", "c")] * 5_000, "1 different source s"),
    ):
        for corpus in (pairs, PairCorpus(pairs)):
            with pytest.raises(CorpusError, match=rf"^the corpus has {count}.*none \(--validation none\)"):
                hold_out(corpus, 0.5)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([("a", "b"), ("A ", "c")] * 600, r"1 different source sentence\. Give more pairs, separate"),
        ([("a", "b"), ("b", "c")], r"2 different source sentences\. Use a larger share, separate"),
        ([(str(number), "x") for number in range(3_000)], r"1,000 or more different source sentences\. Use a larger"),
    ],
)
def test_a_part_that_is_empty_says_so(pairs, message):
    with pytest.raises(
        CorpusError,
        match=rf"1e-07% of .* in memory has no sentence pairs: the corpus has {message}.* none \(--validation none\)",
    ):
        list(split(pairs, 1e-9)[1])


@pytest.mark.parametrize("shares", [(0.0,), (1.0,), (-0.5,), (float("nan"),), (0.5, 0.5), (0.9, 0.2)])
def test_shares_that_leave_a_side_empty_are_refused(shares):
    with pytest.raises(CorpusError, match=r"shares?: got"):
        split([("a", "b"), ("c", "d")], *shares)


@settings(deadline=None)
@given(PAIRS, PAIRS)
def test_no_held_out_source_is_left_in_training(training, held_out):
    sources = [key(source) for source, _ in held_out]
    wanted = [pair for pair in training if key(pair[0]) not in sources]
    with warnings.catch_warnings(record=True, action="always") as said:
        corpus = without_leaks(training, held_out)
        if not wanted:
            with pytest.raises(CorpusError, match="No training pair is left"):
                list(corpus)
            return
        assert list(corpus) == list(corpus) == wanted
    assert len(said) == (len(wanted) < len(training))  # once, however often it is gone through
    if said:
        assert f"{len(training) - len(wanted)} of {len(training)} pairs left out" in str(said[0].message)


def test_fingerprints_tell_parts_seeds_and_files_apart(tmp_path):
    paths = [tmp_path / "a.tsv", tmp_path / "b.tsv"]
    for path in paths:
        path.write_text("Go.\tVa !\nHush.\tChut !\n")
    corpora = [TsvCorpus(path) for path in paths]
    made = [
        corpus.fingerprint()
        for whole in corpora
        for corpus in (
            whole, *split(whole, 0.3), *split(whole, 0.3, seed=1), *hold_out(whole, 0.3),
            without_leaks(whole, [("Stop.", "Arrête !")]), without_leaks(whole, [("Wait.", "Attends !")]),
        )
    ]  # fmt: skip
    assert None not in made
    assert len(set(made)) == len(made)
    assert split(corpora[0], 0.3)[1].fingerprint() == split(TsvCorpus(paths[0]), 0.3)[1].fingerprint()
    before = corpora[0].fingerprint()
    paths[0].write_text("Go.\tMarche.\n")
    assert corpora[0].fingerprint() != before
    assert split([("a", "b")], 0.3)[0].fingerprint() is without_leaks([("a", "b")], []).fingerprint() is None


def test_a_sentence_is_the_same_however_it_is_typed():
    composed, decomposed = "Café’s open.", "CAFE\u0301'S  open."
    assert composed != decomposed
    training, held_out = hold_out([(composed, "a"), (decomposed, "b"), ("I lost.", "c")], share=0.5)
    assert sorted(map(len, (training, held_out))) == [1, 2]
    with pytest.warns(UserWarning, match="1 of 2 pairs left out"):
        assert list(without_leaks([(composed, "a"), ("I lost.", "c")], [(decomposed, "b")])) == [("I lost.", "c")]


def test_a_sketch_recognises_sentences_of_a_set(monkeypatch):
    """Of a set that is larger than the sketch, the compared sentences are a sample: expected values by the set."""
    trained, new = [f"Sentence {number}." for number in range(2_000)], [f"Other {number}." for number in range(3_000)]
    for size in (4_096, 397):
        monkeypatch.setattr(splits, "SKETCH_SIZE", size)
        hashes = np.empty(0, np.uint32)
        for first in range(0, len(trained), 701):  # in chunks
            hashes = splits.sketch(hashes, trained[first : first + 701])
        assert len(hashes) == min(size, 2_000)
        common, compared = splits.count_common([sentence.upper() for sentence in trained], hashes)
        assert common == compared == len(hashes)
        common, compared = splits.count_common([*trained[:500], *new], hashes)
        share = min(1, size / 2_000)
        assert abs(common - 500 * share) < 5 * (500 * share) ** 0.5 * (size < 2_000) + 1
        assert abs(compared - 3_500 * share) < 5 * (3_500 * share) ** 0.5 * (size < 2_000) + 1
