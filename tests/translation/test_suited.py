import itertools
import math
import re
import time
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from command import run_before
from dikkat.translation import Recipe, Settings, TranslationModel, TsvCorpus, settings_for
from dikkat.translation.training import suited as module
from dikkat.translation.training.suited import Sample, fitted, reason, suited
from translation.taught import tell_bfloat16

EVERY = [("the man eats", "l'homme mange"), ("the cat sleeps", "le chat dort")]


def corpus(pairs, *, rare=False):
    """Of so many pairs: each word many times, or with a word of its own in each."""
    lines = [each for _ in range(200) for each in EVERY]
    return Sample(
        [(source, f"{target} w{place}" if rare else target) for place, (source, target) in enumerate(lines)], pairs
    )


def test_words_are_cut_where_many_occur_once():
    # l' homme mange w0, le chat dort w1: of 8 words 2 occur once.
    assert corpus(3_000, rare=True).once == pytest.approx(2 / 8)
    assert corpus(3_000).once == 0
    assert suited(corpus(3_000), {}).tokenizer == "word"
    assert suited(corpus(3_000, rare=True), {}).tokenizer == "bpe"
    assert suited(corpus(10_000), {}).tokenizer == "bpe"  # there rare words can be learnt by their parts
    assert suited(corpus(100, rare=True), {}).tokenizer == "word"  # too few to learn parts from


def test_single_words_are_cut_almost_into_letters():
    names = [(f"Na{number}me", f"На{number}ме") for number in range(200)]
    settings = suited(Sample(names, 200), {})
    assert (settings.tokenizer, settings.vocabulary_size, settings.min_freq) == ("bpe", 260, 2)
    assert "mostly single words): 260 parts of words" in reason(Sample(names, 200), settings)
    assert suited(Sample(names, 20_000), {}).vocabulary_size == 260
    assert suited(Sample(names, 200), {"tokenizer": "word"}).min_freq == 1
    assert suited(Sample([(f"{name} goes", f"{other} va") for name, other in names], 200), {}).tokenizer == "word"


def test_what_is_written_without_spaces_is_cut():
    captions = [("the man eats", "男人在吃饭"), ("the cat sleeps", "猫在睡觉")] * 100
    assert (suited(Sample(captions, 200), {}).tokenizer, suited(Sample(captions, 200), {}).min_freq) == ("bpe", 2)
    assert suited(Sample([(target, source) for source, target in captions], 3_000), {}).tokenizer == "bpe"
    assert suited(Sample(captions, 200), {"tokenizer": "word"}).min_freq == 1
    assert suited(Sample(captions, 10_000), {}).criterion == "bleu"  # of sacreBLEU's own words
    back = Sample([(target, source) for source, target in captions], 10_000)
    assert suited(back, {}).criterion == "bleu"
    assert ", a script without spaces): 5,000 parts of words" in reason(back, suited(back, {}))
    assert suited(Sample([("the man 男", "l'homme 人")] * 200, 200), {}).tokenizer == "word"


def test_a_small_corpus_takes_more_epochs_and_every_word():
    few = suited(corpus(100), {})
    assert (few.min_freq, few.epochs) == (1, 200)
    assert suited(corpus(1), {}).epochs == 200
    more = suited(corpus(3_000), {})
    assert (more.min_freq, more.epochs, more.hidden_size) == (2, 30, 256)
    assert suited(corpus(30_000), {}).hidden_size == 512
    # Of 3 target words a pair, 9,000,000 are 20 epochs up to 150,000 pairs, and 5 from 600,000 on.
    assert [suited(corpus(pairs), {}).epochs for pairs in (100_000, 300_000, 10**7)] == [20, 10, 5]


@pytest.mark.parametrize("has", [True, False])
def test_many_pairs_are_computed_in_bfloat16_where_the_processor_has_it(monkeypatch, has):
    tell_bfloat16(monkeypatch, avx512_bf16=has)
    monkeypatch.setattr(module, "device_type", lambda: "cpu")
    assert suited(corpus(10_000), {}).precision == ("bfloat16" if has else "float32")
    assert suited(corpus(9_999), {}).precision == "float32"
    assert suited(corpus(10_000), {"precision": "float32"}).precision == "float32"


def test_the_minutes_are_of_the_precision_that_is_taken(monkeypatch):
    tell_bfloat16(monkeypatch, avx512_bf16=True)
    monkeypatch.setattr(module, "device_type", lambda: "cpu")
    seen = set()

    def spied(*_, **__):
        seen.add(torch.is_autocast_enabled("cpu"))

    run_before(monkeypatch, TranslationModel, "loss", spied)
    for precision in ("float32", "bfloat16"):
        settings = Settings(hidden_size=8, embedding_size=8, precision=precision)
        assert f"epochs in {precision}" in reason(corpus(3_000), settings)
        assert seen == {precision == "bfloat16"}
        seen.clear()


def test_the_minutes_do_not_grow_while_the_processor_waits(monkeypatch):
    monkeypatch.setattr(module, "device_type", lambda: "cpu")
    run_before(monkeypatch, TranslationModel, "loss", lambda *_, **__: time.sleep(0.5))
    line = reason(corpus(100_000), Settings(hidden_size=8, embedding_size=8, epochs=7))
    minutes = re.search(r"(\d+) minutes of CPU time", line)
    waited = 0.5 * 100_000 / 64 * 7 / 60
    assert waited > 90
    assert minutes is None or int(minutes[1]) < waited / 3


def test_the_minutes_include_the_copies_that_practise_slots(monkeypatch):
    monkeypatch.setattr(module, "device_type", lambda: "cpu")
    monkeypatch.setattr(time, "thread_time", itertools.count().__next__)  # a step takes one second
    settings = Settings(hidden_size=8, embedding_size=8, batch_size=10, epochs=60)
    for source, target, copies in [("left at {}", "saiu às {}", 20), ("left at {}", "saiu", 0)]:
        line = reason(Sample.of([(source.format(k), target.format(k)) for k in range(20)]), settings)
        assert f"; about {1.3 * (20 + copies) / 10:.0f} minutes of CPU time" in line


def test_settings_follow_from_what_is_given_too():
    assert suited(corpus(3_000), {"dropout": 0.0}).r_drop == 0
    assert suited(corpus(3_000), {"dropout": 0.0, "attention_dropout": 0.1}).r_drop == 2
    sizes = [
        suited(corpus(pairs), {"tokenizer": kind}).vocabulary_size
        for pairs in (3_000, 20_000)
        for kind in ("word", "bpe")
    ]
    assert sizes == [20_000, 2_000, 20_000, 5_000]
    assert suited(corpus(20_000), {"vocabulary_size": 700}).vocabulary_size == 700
    # 900 pairs in batches of 32 are 29 steps, and 87 epochs of them 2,500; in batches of 4, 225.
    assert [
        suited(corpus(900), more).epochs for more in ({}, {"batch_size": 4}, {"batch_size": 4, "accumulate": 8})
    ] == [87, 30, 87]
    assert suited(corpus(900), {"batch_tokens": None}).batch_size == 32


def test_the_epochs_follow_from_the_tokens_of_a_batch():
    # A target has 3 words and its end, a source 3 words: 900 pairs are 3,600 tokens, 36 steps of 100 or 3 of 1,500.
    def epochs(pairs, **more):
        return suited(corpus(pairs), {"batch_tokens": 100, **more}).epochs

    assert epochs(900) == math.ceil(2_500 / 36)
    assert epochs(900, batch_tokens=1_500) == 200
    assert epochs(900, batch_tokens=50, accumulate=2) == math.ceil(2_500 / 36)
    # The longer side counts: 7 source words and 1 target word with its end.
    long = Sample([("a b c d e f g", "x")] * 9, 900)
    assert suited(long, {"batch_tokens": 100}).epochs == math.ceil(2_500 / 63)


def test_pairs_that_training_takes_once_count_once(tmp_path, monkeypatch):
    pairs = [("Go.", "Va !")] * 100 + [(f"I see {number}.", f"Je vois {number}.") for number in range(50)]
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    assert Sample.of(TsvCorpus(file)).pair_count == 51
    assert Sample.of(TsvCorpus(file)).words[0]["go"] == 1
    assert Sample.of(pairs).pair_count == 150  # in a list they are meant
    monkeypatch.setattr(module, "_SAMPLED", 40)  # every fourth: 25 of the same, of which one counts, and 13 others
    assert Sample.of(TsvCorpus(file)).pair_count == 4 * 14


@given(st.integers(1, 10**7), st.booleans(), st.booleans())
def test_what_is_given_stays_whatever_the_corpus(pairs, rare, validated):
    chosen = {"dropout": 0.07, "epochs": 3, "tokenizer": "word", "batch_tokens": 900}
    settings = suited(corpus(pairs, rare=rare), chosen, validated=validated)
    assert {name: getattr(settings, name) for name in chosen} == chosen
    if validated:
        assert settings.average <= settings.epochs
    else:
        assert (settings.criterion, settings.average) == ("loss", 1)


def test_the_reason_is_one_line_with_the_minutes(monkeypatch):
    settings = Settings(hidden_size=8, embedding_size=8, epochs=7)
    line = reason(corpus(3_000), settings)
    assert "\n" not in line
    corpus_text = "3,000 pairs; 0% of running words in 400 of them occur once"
    assert line.startswith(f"settings from the corpus ({corpus_text}): whole words, hidden_size 8,")
    assert "up to 7 epochs in float32; less than a minute of CPU time" in line
    slow = reason(corpus(9_000_000), settings)
    assert int(re.search(r"about (\d+) minutes", slow)[1]) > 1
    limited = reason(corpus(9_000_000), replace(settings, max_minutes=2))
    assert "minutes of CPU time, of which max_minutes allows 2" in limited
    monkeypatch.setattr(module, "device_type", lambda: "cuda")
    assert "minute" not in reason(corpus(3_000), settings)


def test_a_gpu_gets_larger_batches_of_many_pairs_and_a_rate_for_them(monkeypatch):
    def batch(pairs, given):
        settings = suited(corpus(pairs), given)
        return settings.batch_size, settings.batch_tokens, settings.learning_rate

    on_cpu = [batch(pairs, {}) for pairs in (9_999, 10_000)]
    monkeypatch.setattr(module, "device_type", lambda: "cuda")
    assert batch(9_999, {}) == on_cpu[0]
    assert batch(10_000, {})[1:] == (4_096, 2 * on_cpu[1][2])
    assert batch(10_000, {"learning_rate": 0.25})[1:] == (4_096, 0.25)
    assert batch(10_000, {"batch_size": 7}) == (7, None, on_cpu[1][2])
    assert batch(10_000, {"batch_tokens": 700})[1:] == (700, on_cpu[1][2])


def test_what_a_recipe_lacks_follows_from_the_corpus():
    pairs = EVERY * 200
    recipe = Recipe().with_values({"dropout": 0.1, "epochs": 3})
    full, sample = fitted(recipe, pairs, validated=True)
    assert full.settings == settings_for(pairs, {"dropout": 0.1, "epochs": 3})
    assert (full.settings.dropout, full.settings.epochs, full.settings.r_drop) == (0.1, 3, 2)
    assert sample is not None
    assert sample.pairs
    assert full.values.keys() == Settings.options().keys()

    def unread():
        raise AssertionError("nothing follows from the corpus, which was read")
        yield

    assert fitted(full, unread(), validated=True) == (full, None)
    plain = Recipe().with_values({name: value for name, value in Settings().to_dict().items() if name != "seed"})
    assert fitted(plain, unread(), validated=True) == (Recipe(values=Settings().to_dict()), None)


@pytest.mark.parametrize(("name", "count", "validated"), [("book", 300, False), ("phrasebook", 10_000, True)])
def test_these_recipes_give_all_that_would_follow(name, count, validated):
    recipe = Recipe.load(name)
    pairs = [(f"the man eats {place}", f"l'homme mange {place}") for place in range(2 * count)]
    assert fitted(recipe, pairs, validated=validated)[0].settings == recipe.settings
