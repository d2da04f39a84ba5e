import dataclasses
import itertools
import math
from fractions import Fraction
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import kit
from command import run_before
from dikkat.translation import (
    InputError,
    Search,
    Settings,
    SettingsError,
    TranslationModel,
    beam_search,
    forced_scores,
    greedy,
)  # fmt: skip
from dikkat.translation.decoding import search as search_module
from dikkat.translation.decoding.stepwise import find_likeliest
from dikkat.translation.network.model import collate
from dikkat.translation.text.special_tokens import BEGIN, END, PAD, SPECIAL, UNKNOWN


@pytest.fixture(params=["one call", "step by step"])
def way(request, monkeypatch):
    """Both ways of a search."""
    if request.param == "step by step":
        monkeypatch.setattr(search_module, "find_panels", lambda *_: None)


@pytest.fixture
def steps(monkeypatch):
    """The way that calls the model's steps."""
    monkeypatch.setattr(search_module, "find_panels", lambda *_: None)


def make(vocabulary=13, seed=0, sharpness=2.5, **changes) -> TranslationModel:
    """A random model of strong opinions: an untrained one looks everywhere alike and likes all tokens alike."""
    torch.manual_seed(seed)
    sizes = {"embedding_size": 6, "hidden_size": 10, "num_layers": 2, "dropout": 0.0, "lexical": False}
    model = TranslationModel(Settings(**sizes | changes), 11, vocabulary).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(sharpness)
        model.output_bias.normal_()
        model.output_bias[END] += 0.5
    return model


def normalised(score, length, search):
    penalty = 1 if search.length_penalty is None else search.length_penalty  # networks alone have none of their own
    return score / ((5 + length) / 6) ** penalty


def lengths_of(source, search):
    """Fewest and most tokens, in fractions of whole numbers."""
    most = min(2 * len(source) + 10, len(source) + 50)
    if search.max_ratio is not None:
        most = max(1, math.floor(Fraction(search.max_ratio).limit_denominator(1000) * len(source)))
    fewest = max(1, math.ceil(Fraction(search.min_ratio).limit_denominator(1000) * len(source)))
    return fewest, min(most, search.max_length or math.inf)


SLOTS = ({8: 0, 9: 1, 10: 2}, {5: 0, 6: 0, 7: 1, 8: 2})  # of source and target tokens


@torch.no_grad()
def plain(models, source, search, slots=({}, {})):
    """Beam search of one sentence with lists, as one would say it, and without stopping early."""
    models = models if isinstance(models, list) else [models]
    memories, states = zip(
        *(m.encode(torch.tensor([source]), torch.tensor([len(source)])) for m in models), strict=True
    )
    copies = UNKNOWN in source and any(model.attends for model in models)
    forbidden = {PAD, BEGIN} if copies else {PAD, BEGIN, UNKNOWN}
    fewest, most = lengths_of(source, search)
    of_source, of_target = slots
    vocabulary = len(models[0].output_bias)
    if set(range(SPECIAL, vocabulary)) <= of_target.keys():
        fewest = 0  # a vocabulary of only slots has no word for a source without slots
    needed = {of_source[token] for token in source if token in of_source}
    live, finished, room = [(0.0, [], states, [])], [], search.beam

    def missing(ids):
        return needed - {of_target[token] for token in ids if token in of_target}

    for length in range(1, most + 1):
        candidates = []
        for place, (score, ids, states, weights) in enumerate(live):
            previous = torch.tensor([ids[-1] if ids else BEGIN])
            steps = [m.step(previous, memory, state) for m, memory, state in zip(models, memories, states, strict=True)]
            gains = (sum(scores[0].softmax(0) for scores, *_ in steps) / len(models)).log()
            looks = [step[1][0] for step, model in zip(steps, models, strict=True) if model.attends]
            looked_at = sum(looks) / len(looks) if looks else torch.ones(len(source)) / len(source)
            after, row = [state for *_, state in steps], []
            for token, gain in enumerate(gains.tolist()):
                is_needed = token not in of_target or of_target[token] in missing(ids)
                if token not in forbidden and is_needed and (len(ids) >= fewest or token != END):
                    grown = (score + gain, [*ids, token], after, [*weights, looked_at])
                    row.append((-score - gain, place, token, grown))
            candidates += sorted(row, key=lambda each: each[:3])[: search.beam]
        candidates.sort(key=lambda each: each[:3])
        if needed:  # the best one with each number of missing slots comes first
            best = {}
            for each in candidates:
                best.setdefault(len(missing(each[3][1])), each)
            reserved = sorted(best.values(), key=lambda each: each[:3])[: search.beam]
            others = [each for each in candidates if not any(each is one for one in reserved)]
            candidates = sorted(reserved + others[: search.beam - len(reserved)], key=lambda each: each[0])
        chosen = [grown for *_, grown in candidates[:room]]
        live = [grown for grown in chosen if grown[1][-1] != END]
        finished += [
            (bool(missing(ids)), -normalised(score, length, search), ids[:-1], score, weights[:-1])
            for score, ids, _, weights in chosen
            if ids[-1] == END
        ]
        room = search.beam - sum(not lacks for lacks, *_ in finished)
        if not live:
            break
    found = [(ids, score, weights, True) for *_, ids, score, weights in sorted(finished, key=lambda each: each[:2])]
    return (found + [(ids, score, weights, False) for score, ids, _, weights in live])[: search.n_best]


def assert_agree(found, wanted):
    assert [each.ids for each in found] == [ids for ids, *_ in wanted]
    for hypothesis, (_, score, weights, finished) in zip(found, wanted, strict=True):
        assert hypothesis.score == pytest.approx(score, rel=1e-12)
        expected = torch.stack(weights).float() if weights else torch.zeros(0, hypothesis.weights.shape[1])
        torch.testing.assert_close(hypothesis.weights, expected)
        assert hypothesis.weights.untyped_storage().nbytes() == hypothesis.weights.nbytes
        assert hypothesis.finished == finished


SOURCES = st.lists(st.lists(st.sampled_from([UNKNOWN, *range(4, 11)]), min_size=1, max_size=7), min_size=1, max_size=5)


@hypothesis_settings(max_examples=30, deadline=None)
@given(
    SOURCES,
    st.sampled_from([11, 12, 13]),
    st.integers(0, 5),
    st.sampled_from([(1, 1), (2, 1), (2, 2), (3, 2), (5, 1), (5, 3), (5, 5)]),
    st.sampled_from([0, 0.6, 1.0, 3.0]),
    st.sampled_from([1, 2, 7, None]),
    st.sampled_from([(0, None), (0.4, None), (1, 1.1), (2.2, 2.2), (0, 0.3), (3, None)]),
    st.sampled_from([({}, {}), SLOTS]),
)
def test_a_batch_is_searched_as_its_sentences_are_one_by_one(
    sources, vocabulary, seed, widths, penalty, longest, ratios, slots
):
    model = make(vocabulary, seed)
    search = Search(*widths, penalty, *ratios, max_length=longest)
    compiled = beam_search(model, sources, search, slots)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_module, "find_panels", lambda *_: None)
        stepped = beam_search(model, sources, search, slots)
    for source, *found in zip(sources, compiled, stepped, strict=True):
        wanted = plain(model, source, search, slots)
        for each in found:
            assert_agree(each, wanted)


MANY = [[5, 6], [7], [8, 9, 10, 4], [UNKNOWN, 4, 5, 6], [10, 10], [9, 4, 4], [6, 6, 6, 6, 6, 6, 6]]


@cache
def all_plain(search, **changes):
    """What both ways are to find for `MANY`, made once."""
    model = make(**changes)
    return [plain(model, source, search) for source in MANY]


@pytest.mark.usefixtures("way")
@kit.each("penalty", [0, 1])
@kit.each("beam", [1, 2, 3, 5, 11])
def test_sentences_that_end_at_different_times(beam, penalty):
    changes, search = {"seed": 7, "sharpness": 4}, Search(beam, n_best=(beam + 1) // 2, length_penalty=penalty)
    found = beam_search(make(**changes), MANY, search)
    for hypotheses, wanted in zip(found, all_plain(search, **changes), strict=True):
        assert_agree(hypotheses, wanted)
    assert len({len(hypotheses[0].ids) for hypotheses in found}) >= 4


def test_a_beam_of_one_is_greedy_whatever_the_penalty():
    model = make()
    for penalty in (0, 7):
        wide = beam_search(model, MANY, Search(1, length_penalty=penalty))
        for (one,), other in zip(wide, greedy(model, MANY), strict=True):
            assert (one.ids, one.score, one.finished) == (other.ids, other.score, other.finished)
            torch.testing.assert_close(one.weights, other.weights, rtol=0, atol=0)


def test_a_wider_beam_finds_likelier_translations():
    scores = {
        beam: sum(found[0].score for found in beam_search(make(), MANY, Search(beam, length_penalty=0)))
        for beam in (1, 13)
    }
    assert scores[13] > scores[1] + 0.1


def word_or_end(word):
    """A model of the word 4 with this probability, whatever came before, and else the end."""
    model = make()
    with torch.no_grad():
        model.target_embedding.weight.zero_()
        model.output_bias.fill_(-math.inf)
        model.output_bias[4], model.output_bias[END] = math.log(word), math.log(1 - word)
    return model


@pytest.mark.usefixtures("way")
def test_a_search_goes_on_while_a_longer_translation_may_win():
    """The end is likelier than the word, so each longer translation is less likely, and the penalty prefers it."""
    scores = [(words * math.log(0.4) + math.log(0.6)) / ((5 + words + 1) / 6) ** 10 for words in range(1, 5)]
    assert max(scores) == scores[-1]
    ((found,),) = beam_search(word_or_end(0.4), [[5, 6]], Search(5, length_penalty=10, max_length=5))
    assert found.ids == [4] * 4


def test_where_a_longer_one_wins_is_where_the_formula_says():
    model = word_or_end(0.9)
    one, two = math.log(0.9) + math.log(0.1), 2 * math.log(0.9) + math.log(0.1)
    turn = math.log(two / one) / math.log(((5 + 3) / 6) / ((5 + 2) / 6))  # there both are equal; the ends are counted
    for penalty, words in ((turn - 0.001, 1), (turn + 0.001, 2)):
        ((found,),) = beam_search(model, [[5, 6]], Search(3, length_penalty=penalty, max_length=3))
        assert found.ids == [4] * words


@pytest.mark.usefixtures("way")
def test_a_beam_with_room_for_everything_finds_everything():
    model = make(vocabulary=6)  # two words
    (found,) = beam_search(model, [[5, 7, 7]], Search(6, n_best=6, max_length=2, length_penalty=0.0))

    def forced(ids, ended):
        table = model(collate([([5, 7, 7], ids)])).log_softmax(1)
        return sum(table[step, token].item() for step, token in enumerate([*ids, END] if ended else ids))

    ended = sorted(((forced([word], True), [word]) for word in (4, 5)), reverse=True)
    cut = sorted((forced(list(words), False), list(words)) for words in itertools.product((4, 5), repeat=2))[::-1]
    assert [each.ids for each in found] == [ids for _, ids in ended + cut]
    assert [each.score for each in found] == pytest.approx([score for score, _ in ended + cut], rel=1e-12)
    assert [each.finished for each in found] == [True] * 2 + [False] * 4


@pytest.mark.parametrize("beam", [1, 5])
def test_a_score_is_what_teacher_forcing_gives(beam):
    model = make()
    for source, hypotheses in zip(MANY, beam_search(model, MANY, Search(beam, n_best=beam)), strict=True):
        for found in hypotheses:
            table = model(collate([(source, found.ids)])).log_softmax(1)
            tokens = [*found.ids, END] if found.finished else found.ids
            assert found.score == pytest.approx(sum(table[step, t].item() for step, t in enumerate(tokens)), rel=1e-12)


@pytest.mark.usefixtures("way")
def test_equally_likely_ones_come_in_order():
    model = make()
    with torch.no_grad():
        model.target_embedding.weight.zero_()
        model.output_bias.zero_()
    (found,) = beam_search(model, [[5, 6]], Search(3, n_best=3, length_penalty=0))
    # All tokens are equally likely. After 4, 5, 6: the end, 4 and 5 after the first of them; then the end and 4 after
    # the first of those; then the end.
    assert [each.ids for each in found] == [[4], [4, 4], [4, 4, 4]]
    (found,) = beam_search(model, [[5, 6]], Search(3, n_best=3, length_penalty=0, max_length=1))
    assert [each.ids for each in found] == [[4], [5], [6]]


@pytest.mark.usefixtures("steps")
def test_what_ended_costs_nothing_any_more(monkeypatch):
    model, search, batches = make(seed=7, sharpness=4), Search(5, n_best=5, length_penalty=0), []

    def counted(previous, memory, state):
        assert len(previous) == memory.key.shape[0] == state.shape[1]
        batches.append(len(previous))

    run_before(monkeypatch, model, "step_features", counted)
    found = beam_search(model, MANY, search)
    assert batches[:2] == [7, 35]
    assert batches[1:] == sorted(batches[1:], reverse=True)
    for rows, length in zip(batches[1:], itertools.count(2)):
        assert rows == sum(len(each.ids) + each.finished >= length for hypotheses in found for each in hypotheses)


@pytest.mark.usefixtures("steps")
def test_a_sentence_that_is_decided_is_not_searched_on(monkeypatch):
    model, steps = make(), []
    with torch.no_grad():
        model.output_bias[END] += 9.0  # one word, then the end: nothing else comes near
    step = model.step_features
    monkeypatch.setattr(model, "step_features", lambda *arguments: steps.append(None) or step(*arguments))
    beam_search(model, MANY, Search(5, length_penalty=0))
    assert len(steps) == 2


@pytest.mark.usefixtures("way")
@kit.each("value", [math.nan, math.inf, -math.inf])
@kit.each("beam", [1, 5])
def test_scores_that_are_no_numbers_are_an_error(beam, value):
    model = make()
    with torch.no_grad():
        model.output_bias.fill_(value) if value < 0 else model.output_bias[7].fill_(value)
    with pytest.raises(InputError, match="NaN"):
        beam_search(model, MANY, Search(beam))


@pytest.mark.usefixtures("way")
def test_impossible_tokens_leave_fewer_hypotheses():
    model = make()
    with torch.no_grad():
        model.output_bias.fill_(-math.inf)
        model.output_bias[[END, 7]] = 0.0
    (found,) = beam_search(model, [[5, 6]], Search(5, n_best=5, max_length=3))
    assert sorted(each.ids for each in found) == [[7], [7, 7], [7, 7, 7]]


@torch.no_grad()
def test_scores_of_low_precision_are_added_up_in_float32():
    model, source = make().to(torch.bfloat16), [5, 6, 7]
    (found,) = greedy(model, [source])
    memory, state = model.encode(torch.tensor([source]), torch.tensor([3]))
    score, previous = 0.0, BEGIN
    for token in [*found.ids, END] if found.finished else found.ids:
        features, _, state = model.step_features(torch.tensor([previous]), memory, state)
        scores = model.scores(features).double()
        score, previous = score + scores[0].log_softmax(0)[token].item(), token
    assert found.score == pytest.approx(score, rel=1e-5)
    assert found.weights.dtype == torch.float32


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("seed", [10, 28])
def test_a_sentence_that_gains_a_row_while_another_loses_one(seed):
    model, search, sources = make(seed=seed, sharpness=4), Search(11, n_best=11), [[5, 6], [7, UNKNOWN]]
    for source, found in zip(sources, beam_search(model, sources, search), strict=True):
        assert_agree(found, plain(model, source, search))


@pytest.mark.usefixtures("way")
def test_a_token_that_may_not_come_out_may_be_by_far_the_likeliest():
    model = make().float()
    with torch.no_grad():
        model.output_bias[PAD] = 200.0  # whose exponential float32 has not
    (found,) = greedy(model, [[5, 6]])
    table = model(collate([([5, 6], found.ids)])).log_softmax(1)
    tokens = [*found.ids, END] if found.finished else found.ids
    assert found.score == pytest.approx(sum(table[step, t].item() for step, t in enumerate(tokens)), rel=1e-5)


@pytest.mark.parametrize("seed", range(8))
def test_a_translation_without_its_slots_ends_no_search(seed):
    model, sources = make(seed=seed), [[8, 5], [9, 8, 4], [10, 9, 8, 7]]
    with torch.no_grad():
        model.output_bias[END] += 4.0  # the end is likelier than a slot
        model.output_bias[[5, 6, 7, 8]] -= 1.0
    for search in (Search(2), Search(3), Search(5, n_best=2)):
        for source, found in zip(sources, beam_search(model, sources, search, SLOTS), strict=True):
            assert_agree(found, plain(model, source, search, SLOTS))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("widths", [(1, 1), (3, 2)])
def test_a_vocabulary_of_only_slots(widths):
    slots = SLOTS[0], {4: 0, 5: 0, 6: 1, 7: 2}
    for seed in range(4):
        model, search = make(8, seed), Search(*widths)
        for source in ([8, 5], [5, 4], [10, 9, 8, 8]):
            assert_agree(beam_search(model, [source], search, slots)[0], plain(model, source, search, slots))


KINDS = {
    "gru": {},
    "lstm": {"cell": "lstm"},
    "one layer": {"num_layers": 1, "bidirectional": False},
    "lstm of dot products": {"cell": "lstm", "score": "dot"},
    "no attention": {"score": "none"},
    "lstm without attention": {"cell": "lstm", "score": "none", "num_layers": 3},
    "own output weights": {"tied_embeddings": "none"},
    "lexical": {"lexical": True},
    "lexical lstm": {"cell": "lstm", "score": "bilinear", "lexical": True},
}


@pytest.mark.usefixtures("way")
@kit.each("kind", KINDS)
def test_every_kind_of_model_is_searched_as_its_sentences_are_one_by_one(kind):
    changes = {"seed": 2, **KINDS[kind]}
    for search in (Search(1), Search(4, n_best=3, min_ratio=0.5)):
        for found, wanted in zip(beam_search(make(**changes), MANY, search), all_plain(search, **changes), strict=True):
            assert_agree(found, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_the_score_of_what_is_found_is_its_forced_score(kind):
    for dtype, share in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        model, other = make(seed=3, **KINDS[kind]).to(dtype), make(seed=4).to(dtype)
        with torch.no_grad():
            model.output_bias[END] += 12.0 if model.is_lexical else 3.5  # so that translations end
        ways = [Search(1), Search(5, n_best=5), Search(n_best=3, sample=True, temperature=1.5, top_k=7, seed=5)]
        for models, search in itertools.product((model, [model, other]), ways):
            found = list(zip(MANY, beam_search(models, MANY, search), strict=True))
            pairs = [(source, each) for source, group in found for each in group if each.finished]
            assert len(pairs) > 3
            wanted = [each.score for _, each in pairs]
            assert forced_scores(models, [(s, each.ids) for s, each in pairs]) == pytest.approx(wanted, rel=share)


def test_forced_scores_are_sums_of_log_probabilities(monkeypatch):
    monkeypatch.setattr(search_module, "_CHUNK", 3)  # which ends within a translation
    models = [make(seed=seed) for seed in range(3)]
    pairs = [([5, 6, 7], [8, 9, 4, 4]), ([9], []), ([7, 8], [5]), ([5, 6, 7], [9]), ([9], [4, 8])]
    wanted = []
    for source, target in pairs:
        tables = [model(collate([(source, target)])).detach().softmax(1) for model in models]
        mean = torch.stack(tables).mean(0)
        wanted.append(sum(math.log(mean[step, token]) for step, token in enumerate([*target, END])))
    assert forced_scores(models, pairs) == pytest.approx(wanted, rel=1e-12)
    assert forced_scores(models, []) == []
    with pytest.raises(InputError, match="got an empty source sentence"):
        forced_scores(models, [([], [4])])


def test_several_models_write_what_they_find_likely_on_average():
    models = [make(seed=0), make(seed=5, cell="lstm"), make(seed=6, score="none")]
    alone = [[found[0].ids for found in beam_search(model, MANY, Search(3))] for model in models]
    for search in (Search(1), Search(3, n_best=2, max_ratio=2.5), Search(13, length_penalty=0)):
        together = beam_search(models, MANY, search)
        for source, found in zip(MANY, together, strict=True):
            assert_agree(found, plain(models, source, search))
    assert all([found[0].ids for found in beam_search(models, MANY, Search(3))] != ids for ids in alone)


@pytest.mark.parametrize("search", [Search(1), Search(4, n_best=4), Search(n_best=3, sample=True, seed=1)])
@pytest.mark.usefixtures("way")
def test_a_model_with_itself_is_that_model(search):
    model = make()
    for one, other in zip(beam_search(model, MANY, search), beam_search([model] * 3, MANY, search), strict=True):
        assert_agree(other, [(each.ids, each.score, list(each.weights), each.finished) for each in one])


def test_models_that_do_not_go_together_are_refused():
    with pytest.raises(ValueError, match="models: got none"):
        beam_search([], MANY)
    with pytest.raises(ValueError, match="target vocabularies of sizes 13, 12; expected equal ones"):
        beam_search([make(), make(12)], MANY)
    with pytest.raises(ValueError, match="got devices cpu, meta; expected equal ones"):
        greedy([make(), make().to("meta")], MANY)


def test_without_attention_nothing_is_looked_at_and_no_unknown_word_comes_out():
    model = make(score="none")
    with torch.no_grad():
        model.output_bias[UNKNOWN] = 100.0
    for search in (Search(1), Search(3, n_best=3), Search(sample=True)):
        for source, group in zip(MANY, beam_search(model, MANY, search), strict=True):
            for found in group:
                assert UNKNOWN not in found.ids
                torch.testing.assert_close(found.weights, torch.full((len(found.ids), len(source)), 1 / len(source)))
    assert UNKNOWN in beam_search([model, make()], [[UNKNOWN, 4]])[0][0].ids  # the other one says where


@pytest.mark.parametrize("search", [Search(1), Search(5, n_best=5), Search(n_best=20, sample=True)])
@pytest.mark.usefixtures("way")
def test_translations_are_as_long_as_they_may_be(search):
    short, long, lengths = make(), make(), set()
    with torch.no_grad():
        short.output_bias[END] += 9.0
        long.output_bias[END] -= 99.0
    sources = [[5], [5, 6], [5] * 10]
    for group, wanted in zip(
        beam_search(short, sources, dataclasses.replace(search, min_ratio=1.1)), (2, 3, 11), strict=True
    ):
        lengths |= {len(found.ids) - wanted for found in group}
        assert len(group[0].ids) == wanted
        assert all(found.finished for found in group)
    assert min(lengths) == 0
    for group, wanted in zip(
        beam_search(long, sources, dataclasses.replace(search, max_ratio=0.7)), (1, 1, 7), strict=True
    ):
        assert {len(found.ids) for found in group} == {wanted}
        assert not any(found.finished for found in group)
    # A ratio is the decimal that was written: in binary 2.2 times 25 is more than 55 and 0.58 times 50 less than 29.
    for model, source, options, wanted in (
        (short, [5] * 25, {"min_ratio": 2.2}, 55), (long, [5] * 50, {"max_ratio": 0.58}, 29),
    ):  # fmt: skip
        assert len(beam_search(model, [source], dataclasses.replace(search, **options))[0][0].ids) == wanted
    # Where the two contradict each other for a sentence, the most wins.
    both = dataclasses.replace(search, min_ratio=2, max_length=3)
    assert [len(group[0].ids) for group in beam_search(short, sources, both)] == [2, 3, 3]


def probabilities(model, source, temperature=1.0, top_k=None):
    """What the first token should be drawn with."""
    scores = model(collate([(source, [])]))[0].detach()
    scores[[PAD, BEGIN, END, UNKNOWN]] = -math.inf
    shares = scores.exp() ** (1 / temperature)
    if top_k is not None:
        shares[shares < shares.sort(descending=True).values[top_k - 1]] = 0
    return shares / shares.sum()


@pytest.mark.parametrize("options", [{}, {"temperature": 0.5}, {"temperature": 3.0}, {"top_k": 3}, {"top_k": 13}])
def test_tokens_are_drawn_as_often_as_they_should(options):
    model, count = make(sharpness=1.5), 4000
    (samples,) = beam_search(model, [[5, 6, 7]], Search(n_best=count, sample=True, max_length=1, **options))
    drawn = torch.bincount(torch.tensor([found.ids[0] for found in samples]), minlength=13) / count
    wanted = probabilities(model, [5, 6, 7], **options)
    assert (drawn > 0).sum() > 2
    assert not drawn[wanted == 0].any()
    assert ((drawn - wanted).abs() <= 4 * (wanted * (1 - wanted) / count).sqrt()).all()


def test_samples_depend_on_the_seed_and_the_sentence_alone():
    model = make()

    def ids(sources, count=3, seed=0):
        found = beam_search(model, sources, Search(n_best=count, sample=True, seed=seed))
        return [[each.ids for each in group] for group in found]

    together = ids(MANY)
    assert together == [ids([source])[0] for source in MANY]
    assert together[::-1] == ids(MANY[::-1])
    assert ids(MANY, 1) == [group[:1] for group in together]
    other = ids(MANY, seed=1)
    assert sum(one == two for one, two in zip(together, other, strict=True)) <= 1
    assert sum(group[0] == group[1] for group in together) <= 2
    assert ids([[5, 6], [5, 6]])[0] == ids([[5, 6]])[0]


@pytest.mark.parametrize("options", [{"top_k": 1}, {"temperature": 0.01}])
def test_cold_samples_are_greedy(options):
    model = make()
    for (sample,), wanted in zip(
        beam_search(model, MANY, Search(sample=True, **options)), greedy(model, MANY), strict=True
    ):
        assert sample.ids == wanted.ids
        assert sample.score == pytest.approx(wanted.score, rel=1e-12)  # the model's own, whatever the temperature
        torch.testing.assert_close(sample.weights, wanted.weights)


def test_ties_at_the_edge_of_what_is_drawn():
    model = make()
    with torch.no_grad():
        (model.target_embedding.weight.zero_(), model.output_bias.zero_())
    (samples,) = beam_search(model, [[5]], Search(n_best=200, sample=True, top_k=2, max_length=1))
    assert {found.ids[0] for found in samples} == {4, 5}  # of equally likely ones the lowest


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_samples_of_scores_that_are_no_numbers_are_an_error(value):
    model = make()
    with torch.no_grad():
        model.output_bias[7] = value
    with pytest.raises(InputError, match="NaN"):
        beam_search(model, MANY, Search(sample=True))


@pytest.mark.parametrize("search", [Search(2, n_best=2), Search(n_best=2, sample=True)])
@pytest.mark.parametrize("models", [make(), [make(), make(seed=1)], make(score="none"), make(score="bilinear")])
def test_the_smallest_of_everything(search, models):
    assert beam_search(models, [], search) == []
    ((one, two),) = beam_search(models, [[7]], dataclasses.replace(search, max_length=1))
    assert len(one.ids) == len(two.ids) == 1
    assert one.weights.tolist() == two.weights.tolist() == [[1.0]]
    (first, second) = beam_search(make(vocabulary=5), [[7], [8]], Search(5, n_best=5, max_length=2))  # one word
    assert [each.ids for each in first] == [each.ids for each in second] == [[4], [4, 4]]


def test_nothing_to_search():
    assert beam_search(make(), []) == []
    with pytest.raises(InputError, match="got an empty sentence"):
        beam_search(make(), [[4], []])


@kit.each(
    ("values", "message"),
    [
        ({"beam": 0}, "beam: got 0; expected a whole number of at least 1"),
        ({"beam": True}, "beam: got True; expected"),
        ({"beam": 2.0}, "beam: got 2.0; expected"),
        ({"beam": 3, "n_best": 4}, "n_best: got 4; expected a whole number from 1 to 3, the beam"),
        ({"n_best": 0}, "n_best: got 0; expected"),
        ({"length_penalty": -0.1}, "length_penalty: got -0.1; expected a number from 0 to 10"),
        ({"length_penalty": math.nan}, "length_penalty: got nan; expected"),
        ({"length_penalty": "1"}, "length_penalty: got '1'; expected"),
        ({"min_ratio": -0.1}, "min_ratio: got -0.1; expected a number from 0 to 10"),
        ({"min_ratio": None}, "min_ratio: got None; expected a number from 0 to 10"),
        ({"max_ratio": 11}, "max_ratio: got 11; expected a number greater than 0 and at most 10, or none"),
        ({"max_ratio": 0}, "max_ratio: got 0; expected a number greater than 0"),
        ({"min_ratio": 2, "max_ratio": 1.9}, "max_ratio: got 1.9; expected at least 2, the min_ratio"),
        ({"sample": 1}, "sample: got 1; expected true or false"),
        ({"sample": True, "beam": 4}, "beam: got 4 with sample=True; expected 5, since samples are drawn one by one"),
        ({"sample": True, "length_penalty": 0}, "length_penalty: got 0 with sample=True; expected None"),
        ({"temperature": 0.5}, "temperature: got 0.5 with sample=False; expected 1.0, since it only affects samples"),
        ({"top_k": 5}, "top_k: got 5 with sample=False"),
        ({"seed": 5}, "seed: got 5 with sample=False"),
        ({"sample": True, "temperature": 0}, "temperature: got 0; expected a number from 0.01 to 100"),
        ({"sample": True, "top_k": 0}, "top_k: got 0; expected a whole number of at least 1, or none"),
        ({"sample": True, "seed": -1}, "seed: got -1; expected a whole number from 0 to 4294967295"),
        ({"sample": True, "n_best": 0}, "n_best: got 0; expected a whole number of at least 1"),
        ({"max_length": 0}, "max_length: got 0; expected a whole number of at least 1, or none"),
    ],
)
def test_options_out_of_range_are_refused(values, message):
    with pytest.raises(SettingsError, match=message):
        Search(**values)


def test_a_beam_wider_than_the_vocabulary_is_refused():
    beam_search(make(vocabulary=11), [[5]], Search(11))
    with pytest.raises(SettingsError, match="beam: got 12; expected at most 11, the size of the model's vocabulary"):
        beam_search(make(vocabulary=11), [[5]], Search(12))
    with pytest.raises(SettingsError, match="top_k: got 12; expected at most 11, the size of the model's vocabulary"):
        beam_search(make(vocabulary=11), [[5]], Search(sample=True, top_k=12))


@hypothesis_settings(deadline=None)
@given(st.integers(1, 7), st.integers(1, 700), st.integers(1, 7), st.integers(0, 2**31), st.sampled_from([3, 1000]))
def test_the_best_are_those_of_a_sort_by_value_and_column(rows, columns, k, seed, different):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(different, (rows, columns), generator=generator).double()
    values[values == 0] = -math.inf
    k = min(k, columns)
    where = find_likeliest(k, values)
    found = values.gather(1, where)
    for row, row_found, row_where in zip(values.tolist(), found.tolist(), where.tolist(), strict=True):
        wanted = sorted(range(columns), key=lambda column: (-row[column], column))[:k]
        assert row_where == wanted
        assert row_found == [row[column] for column in wanted]
