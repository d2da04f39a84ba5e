import itertools
import os
import resource
import threading
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dikkat.translation import Corpus, CorpusError, Tokenizer
from dikkat.translation.data import store as store_module
from dikkat.translation.data.batches import Batches
from dikkat.translation.data.store import Store
from dikkat.translation.text.slots import Slots

WORDS = ["a", "bb", "ccc", "dd", "e"]
SENTENCES = st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join)
PAIRS = st.lists(st.tuples(SENTENCES, SENTENCES), min_size=1, max_size=40)
TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=5)


class Told(Corpus):
    """Pairs with a name, which count how often they are gone through."""

    def __init__(self, pairs, name="told"):
        self.pairs, self.name, self.times = pairs, name, 0

    def __iter__(self):
        self.times += 1
        return iter(self.pairs)

    def __str__(self):
        return str(self.name)

    def fingerprint(self):
        return self.name


@pytest.fixture(scope="module")
def tokenizers():
    return tuple(Tokenizer.train([text], "word", min_freq=1, vocabulary_size=99) for text in (" ".join(WORDS), "e a"))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DIKKAT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokenised"


def build(corpus, tokenizers, max_length=4, **more):
    return Store.build(corpus, *tokenizers, max_length=max_length, **more)


def contents(store):
    return [store[row] for row in range(len(store))]


def files(cache, ending=".arrow"):
    return sorted(path for path in cache.iterdir() if path.suffix == ending)


def by_hand(pairs, tokenizers):
    """Token numbers of a corpus, one pair after another, and what was left out."""
    kept, counts, met = [], {"read": 0, "duplicates": 0, "left_out": 0, "without_tokens": 0}, []
    for pair in pairs:
        counts["read"] += 1
        numbers = tuple(tokenizer.encode(side).ids for tokenizer, side in zip(tokenizers, pair, strict=True))
        if pair in met:
            counts["duplicates"] += 1
        elif max(map(len, numbers)) > 4:
            counts["left_out"] += 1
        elif not numbers[0]:
            counts["without_tokens"] += 1
        else:
            kept.append(numbers)
        met.append(pair)
    return kept, counts


@pytest.mark.parametrize("named", [False, True])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(pairs=PAIRS, chunk=st.integers(1, 50))
def test_a_store_has_the_pairs_tokenised_once_each(pairs, chunk, named, tokenizers):
    wanted, counts = by_hand(pairs, tokenizers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "_CHUNK", chunk)
        corpus = Told(pairs, str(pairs) if named else None)
        if not wanted:
            with pytest.raises(CorpusError, match=f"none of the {len(pairs)} pairs has between 1 and 4 tokens"):
                build(corpus, tokenizers)
            return
        for store in (build(corpus, tokenizers), build(corpus, tokenizers)):
            assert contents(store) == wanted
            assert {name: getattr(store.counts, name) for name in counts} == counts
            assert store.source_lengths.tolist() == [len(source) for source, _ in wanted]
            assert store.target_lengths.tolist() == [len(target) for _, target in wanted]
            assert store.source_lengths.dtype == store.target_lengths.dtype == np.int32
            left_out = sum(counts.values()) - counts["read"]
            assert (store.losses() is None) == (left_out == 0)


def test_what_was_left_out_is_said(tokenizers):
    store = build(Told([("a", "e"), ("a", "e"), ("a a a a a", "e"), ("", "e"), ("bb", "e")]), tokenizers)
    assert store.losses() == (
        "3 of 5 pairs left out: 1 longer than max_length tokens on a side, 1 without a token, "
        "1 equal to an earlier pair"
    )


@settings(deadline=None)
@given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=30), st.data())
def test_any_rows_can_be_read(pairs, data):
    store = Store.of(pairs)
    assert contents(store) == pairs
    row = st.integers(0, len(pairs))
    ranges = data.draw(st.lists(st.tuples(row, row).map(sorted), min_size=1, max_size=5))
    wanted = [pair for first, end in ranges for pair in pairs[first:end]]
    for side, sentences in enumerate(store.read(ranges)):
        assert sentences.lengths.tolist() == [len(pair[side]) for pair in wanted]
        assert sentences.numbers.tolist() == [number for pair in wanted for number in pair[side]]
        assert sentences.numbers.dtype == sentences.lengths.dtype == np.int32


def test_the_second_time_the_corpus_is_not_read(cache, tokenizers):
    corpus = Told([("a bb", "e"), ("dd", "a")])
    first = build(corpus, tokenizers)
    second = build(corpus, tokenizers)
    assert corpus.times == 1
    assert contents(first) == contents(second)
    assert first.counts == second.counts
    assert len(files(cache)) == 1


def test_a_list_leaves_nothing_in_the_cache(cache, tokenizers):
    build([("a", "e")], tokenizers)
    assert not cache.exists()


def test_another_corpus_tokenizer_or_length_is_another_file(cache, tokenizers):
    other = Tokenizer.train(["a bb"], "word", min_freq=1, vocabulary_size=99)
    pairs = [("a", "e")]
    for corpus, both, max_length in [
        (Told(pairs), tokenizers, 4),
        (Told(pairs, "other"), tokenizers, 4),
        (Told(pairs), (other, tokenizers[1]), 4),
        (Told(pairs), (tokenizers[0], other), 4),
        (Told(pairs), tokenizers, 5),
    ]:
        build(corpus, both, max_length)
        assert corpus.times == 1
    assert len(files(cache)) == 5


def test_the_digest_is_that_of_the_different_pairs_in_their_order(tokenizers):
    pairs = [("a", "e"), ("bb", "a"), ("a bb ccc dd e a", "e")]

    def digest(pairs, both=tokenizers):
        return build(Told(pairs, None), both).counts.digest

    assert digest(pairs) == digest([*pairs, pairs[0]]) == digest(pairs, tokenizers[::-1])
    assert digest(pairs) == build(pairs, tokenizers).counts.digest == build(Told(pairs), tokenizers).counts.digest
    digests = [digest(some) for some in [*itertools.permutations(pairs), pairs[:2], [("ae", ""), *pairs[1:]]]]
    assert len(set(digests)) == len(digests)


def test_progress_is_told_in_pairs_read(monkeypatch, tokenizers):
    monkeypatch.setattr(store_module, "_CHUNK", 3)
    told = []
    build([("a", "e")] * 8, tokenizers, progress=told.append)
    assert told == [3, 6, 8]


def damaged(path, tokenizers, corpus):
    """What comes of a damaged file, and whether it was told."""
    with warnings.catch_warnings(record=True, action="always") as said:
        found = contents(build(corpus, tokenizers))
    assert all("damaged" in str(each.message) and str(path) in str(each.message) for each in said)
    return found, bool(said)


PAIR_LIST = [(f"{' '.join(WORDS[: 1 + number % 4])}", WORDS[number // 4]) for number in range(20)]


def test_a_file_cut_short_is_made_anew(monkeypatch, cache, tokenizers):
    monkeypatch.setattr(store_module, "_CHUNK", 7)
    corpus = Told(PAIR_LIST)
    wanted = contents(build(corpus, tokenizers))
    (path,) = files(cache)
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:size])
        assert damaged(path, tokenizers, corpus) == (wanted, True)
        assert path.read_bytes() == whole


def test_no_space_leaves_nothing_and_says_where_and_what_helps(cache, tokenizers):
    pairs = [(" ".join(WORDS[: 1 + number % 4]), str(number)) for number in range(4000)]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (100, 20_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(OSError, match=r"token numbers cannot be written \(.*DIKKAT_CACHE.*tokenised"):
                build(Told(pairs), tokenizers)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert not files(cache)
        assert not files(cache, ".part")
    assert len(build(Told(pairs), tokenizers)) == 4000


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_at_the_end_leaves_nothing(cache, tokenizers, monkeypatch, step):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, full)
        with pytest.raises(OSError, match="No space left on device"):
            build(Told(PAIR_LIST), tokenizers)
    assert not files(cache)
    assert not files(cache, ".part")


def test_a_cache_folder_that_cannot_be_made_is_named(tmp_path, monkeypatch, tokenizers):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DIKKAT_CACHE", str(tmp_path / "file"))
    with pytest.raises(OSError, match=r"the cache folder cannot be written .*DIKKAT_CACHE.*file"):
        build(Told(PAIR_LIST), tokenizers)


def test_a_corpus_that_breaks_off_leaves_nothing(cache, tokenizers):
    class Broken(Told):
        def __iter__(self):
            yield from self.pairs
            raise CorpusError("line 21: no tab")

    with pytest.raises(CorpusError, match="line 21"):
        build(Broken(PAIR_LIST), tokenizers)
    assert not files(cache)
    assert not files(cache, ".part")


def test_what_a_killed_process_left_is_no_hindrance(cache, tokenizers):
    corpus = Told(PAIR_LIST)
    build(corpus, tokenizers)
    (path,) = files(cache)
    path.rename(path.with_name(f"{path.name}.part"))
    assert len(build(corpus, tokenizers)) == 20
    assert not files(cache, ".part")


def test_of_two_at_once_one_waits_for_the_other(tokenizers):
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Told):
        def __iter__(self):
            begun.set()
            go_on.wait(10)
            return super().__iter__()

    corpus, stores = Slow(PAIR_LIST), []
    threads = [threading.Thread(target=lambda: stores.append(build(corpus, tokenizers))) for _ in range(2)]
    threads[0].start()
    assert begun.wait(10)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert corpus.times == 1
    assert len(stores) == 2
    assert contents(stores[0]) == contents(stores[1])


def test_batches_are_the_same_from_a_file_and_from_memory(tokenizers):
    from_file, from_memory = build(Told(PAIR_LIST), tokenizers), build(PAIR_LIST, tokenizers)
    for one, other in zip(Batches(from_file, 3, 0), Batches(from_memory, 3, 0), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_copies_with_slots_are_added_up_to_a_limit(tokenizers, monkeypatch):
    monkeypatch.setattr(store_module, "COPIES", 2)
    names = ["Ana", "Rita", "Zoe"]
    pairs = [*((f"{name} left", f"{name} saiu") for name in names), ("a a a a a Ana", "Ana"), ("he left", "ele saiu")]
    sides = [
        Tokenizer.train([*text, "\x01"], "word", min_freq=1, vocabulary_size=99) for text in zip(*pairs, strict=True)
    ]
    alone, practised = (build(pairs, sides, slots=Slots({}, 1), practice=practice) for practice in (False, True))
    copy = tuple(side.encode(text).ids for side, text in zip(sides, ("\x01 left", "\x01 saiu"), strict=True))
    assert contents(practised) == [*contents(alone), copy, copy]
    assert (alone.counts.copies, practised.counts.copies) == (0, 2)
    assert alone.losses() == practised.losses() == "1 of 5 pairs left out: 1 longer than max_length tokens on a side"
    assert contents(build(pairs, sides, practice=True)) == contents(alone)  # a model without slots
