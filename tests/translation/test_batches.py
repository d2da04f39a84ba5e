import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dikkat.translation import SettingsError
from dikkat.translation.data.batches import Batches
from dikkat.translation.network.model import collate

LENGTHS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=40)


def numbered(lengths):
    """Pairs whose tokens say which pair they are of."""
    return [([4 + index] * source, [4 + index] * target) for index, (source, target) in enumerate(lengths)]


def members(batch):
    """Which pairs are in a batch."""
    return [int(row[0]) - 4 for row in batch.source]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=40), st.integers(1, 7))
def test_every_pair_is_in_one_batch_of_its_like(lengths, batch_size):
    pairs = [([4 + index] * source, [4 + index] * target) for index, (source, target) in enumerate(lengths)]
    batches = Batches(pairs, batch_size, seed=0)
    first, second = list(batches), list(batches)
    for rounds in (first, second):
        assert len(rounds) == len(batches)
        seen = sorted(int(row[0]) for batch in rounds for row in batch.source)
        assert seen == [4 + index for index in range(len(pairs))]
    assert max(len(batch.source) for batch in first) <= batch_size
    spans = sorted((int(batch.target_lengths.min()), int(batch.target_lengths.max())) for batch in first)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


@settings(deadline=None)
@given(LENGTHS, st.integers(10, 60), st.sampled_from([None, 0, 1]))
def test_no_batch_has_more_tokens_than_allowed_and_none_could_take_the_next_pair(lengths, batch_tokens, seed):
    batches = Batches(numbered(lengths), 1, seed, batch_tokens=batch_tokens)
    for _ in range(2):
        found = list(batches)
        assert len(found) == len(batches)
        assert sorted(index for batch in found for index in members(batch)) == list(range(len(lengths)))
        for batch in found:
            assert max(batch.source.numel(), batch.target[:, 1:].numel()) <= batch_tokens
        spans = sorted((int(batch.target_lengths.min()), int(batch.target_lengths.max())) for batch in found)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    if seed is None:
        for batch, after in itertools.pairwise(found):
            longest = max(batch.source.shape[1], batch.target.shape[1] - 1, *size(lengths[members(after)[0]]))
            assert (len(batch.source) + 1) * longest > batch_tokens


def size(pair):
    source, target = pair
    return source, target + 1


def test_a_batch_is_what_collating_its_pairs_one_by_one_gives():
    made = random.Random(0)
    pairs = [
        ([made.randrange(4, 97) for _ in range(made.randint(1, 13))], [made.randrange(4, 97) for _ in range(length)])
        for length in (0, 1, 2, 3, 5, 7, 11, 3, 0, 2, 19)
    ]
    by_size = sorted(pairs, key=lambda pair: (len(pair[1]), len(pair[0])))
    for number, batch in enumerate(Batches(pairs, 3, seed=None)):
        wanted = collate(by_size[3 * number : 3 * number + 3])
        for found, tensor in zip(batch[:4], wanted[:4], strict=True):
            assert found.dtype == tensor.dtype == torch.int64
            assert torch.equal(found, tensor)


def test_the_seed_decides_the_order_and_each_round_has_another():
    pairs = numbered([(3, 4)] * 12 + [(5, 1)] * 7)

    def rounds(seed):
        batches = Batches(pairs, 1, seed, batch_tokens=15)
        return [[members(batch) for batch in batches.epoch(number)] for number in range(2)]

    assert rounds(5) == rounds(5)
    assert rounds(5) != rounds(6)
    first, second = rounds(5)
    assert first != second
    assert sorted(map(sorted, first)) != sorted(map(sorted, second))  # other company, not only another order
    assert rounds(None)[0] == rounds(None)[1]


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 17), st.sampled_from([None, 0, 1]), st.sampled_from([None, 23]))
def test_buffer_by_buffer_each_pair_is_still_in_one_batch(lengths, buffer, seed, batch_tokens):
    batches = Batches(numbered(lengths), 3, seed, buffer=buffer, batch_tokens=batch_tokens)
    for number in range(3):
        found = list(batches.epoch(number))
        assert len(found) == len(batches)
        assert sorted(index for batch in found for index in members(batch)) == list(range(len(lengths)))
        for batch in found:
            assert len(batch.source) <= (23 if batch_tokens else 3)
            assert max(batch.source.numel(), batch.target[:, 1:].numel()) <= (batch_tokens or 1000)


def test_a_buffer_holds_the_same_pairs_in_each_epoch_from_all_over_the_corpus_and_comes_at_another_time():
    batches = Batches(numbered([(1, 1)] * 640), 1000, 5, buffer=64)  # each buffer is one batch
    epochs = [[frozenset(members(batch)) for batch in batches.epoch(number)] for number in range(3)]
    assert len(batches) == 10
    assert {len(buffer) for buffer in epochs[0]} == {64}
    assert set(epochs[0]) == set(epochs[1]) == set(epochs[2])
    assert epochs[0] != epochs[1] != epochs[2]
    assert all(max(buffer) - min(buffer) > 320 for buffer in epochs[0])
    for buffer in epochs[0]:  # blocks of 64 / 16 neighbours
        assert {index // 4 * 4 + offset for index in buffer for offset in range(4)} == buffer


def test_within_a_buffer_pairs_have_other_company_in_each_epoch():
    batches = Batches(numbered([(1, 1)] * 640), 8, 5, buffer=64)
    first, second = ({frozenset(members(batch)) for batch in batches.epoch(number)} for number in range(2))
    assert len(first & second) < 8


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one[:4], other[:4], strict=True)) and one[4:] == other[4:]


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 40), st.sampled_from([None, 0, 1]), st.integers(0, 2), st.data())
def test_from_any_position_it_goes_on_as_if_it_had_not_stopped(lengths, buffer, seed, epoch, data):
    batches, resumed = (Batches(numbered(lengths), 3, seed, buffer=buffer) for _ in range(2))
    handed_out = list(batches.epoch(epoch))
    first = data.draw(st.integers(0, len(handed_out)))
    rest = list(resumed.epoch(epoch, first))
    assert len(rest) == len(handed_out) - first
    assert all(map(same, rest, handed_out[first:]))


def test_an_epoch_depends_on_the_seed_and_its_number_alone():
    pairs = numbered([(1, 1)] * 50)
    one, other = Batches(pairs, 2, 5), Batches(pairs, 2, 5)
    third = [list(one.epoch(number)) for number in range(3)][2]
    assert all(map(same, third, other.epoch(2)))


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 7), st.integers(1, 5), st.sampled_from([None, 2]))
def test_the_ranks_together_get_each_batch_once(lengths, batch_size, world, seed):
    pairs = numbered(lengths)
    whole = list(Batches(pairs, batch_size, seed))
    ranks = [list(Batches(pairs, batch_size, seed, rank=rank, world=world)) for rank in range(world)]
    for number, batch in enumerate(whole):
        tokens = sum(lengths[index][1] + 1 for index in members(batch))
        assert batch.total_tokens == tokens
        assert batch.counts
        shares = [rank[number] for rank in ranks]
        assert [share.total_tokens for share in shares] == [tokens] * world
        assert sorted(itertools.chain(*(members(share) for share in shares if share.counts))) == sorted(members(batch))
        assert all(members(share) == members(batch)[:1] for share in shares if not share.counts)
        assert sum(int(share.target_lengths.sum()) for share in shares if share.counts) == tokens
        assert max(len(share.source) for share in shares) - min(len(share.source) for share in shares) <= 1


def test_no_pairs_make_no_batches():
    with pytest.raises(ValueError, match="pairs: got none"):
        Batches([], 2, 0)


def test_the_callers_random_numbers_stay_as_they_are():
    torch.manual_seed(0)
    wanted = torch.rand(1)
    torch.manual_seed(0)
    list(Batches(numbered([(1, 1), (2, 2)]), 1, seed=3))
    assert torch.equal(torch.rand(1), wanted)


@pytest.mark.parametrize(("lengths", "longest"), [((9, 3), 9), ((3, 9), 10)])
def test_a_pair_that_no_batch_can_hold_is_named_with_the_setting(lengths, longest):
    message = f"batch_tokens: got {longest - 1}; expected at least {longest}, the tokens of .*smaller max_length"
    with pytest.raises(SettingsError, match=message):
        Batches(numbered([(1, 1), lengths]), 1, 0, batch_tokens=longest - 1)
    assert len(Batches(numbered([(1, 1), lengths]), 1, 0, batch_tokens=longest)) == 2
