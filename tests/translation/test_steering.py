"""Translations step by step, and steered: against the search, and against PyTorch's own cells in float64."""

import pytest
import torch
from torch.nn import functional as F

import kit
from dikkat._engine.cancellation import StoppedError, stopping
from dikkat.translation import (
    Hypothesis,
    InputError,
    Search,
    Settings,
    Tokenizer,
    TranslationModel,
    Translator,
    beam_search,
)
from dikkat.translation.decoding.steering import Steering, steps
from dikkat.translation.text.special_tokens import BEGIN, END

SENTENCES = ["Where is the man?", "She sees Marie.", "I lost.", "The man, she lost.", "Zorglub is calm."]


def untrained(**settings) -> Translator:
    torch.manual_seed(2)
    english = Tokenizer.train(["a b c d e f g h i j"], "word", min_freq=1, vocabulary_size=99)
    french = Tokenizer.train(["k l m n o p q r s t u"], "word", min_freq=1, vocabulary_size=99)
    chosen = Settings(embedding_size=7, hidden_size=6, **settings)
    model = TranslationModel(chosen, len(english), len(french))
    with torch.no_grad():
        for each in model.parameters():
            each.copy_(torch.randn_like(each))
    return Translator(model, chosen, english, french)


def greedily(translator: Translator, sentence: str) -> Hypothesis:
    return beam_search(translator.model, translator.source_tokenizer.numbers([sentence]), Search(beam=1))[0][0]


@pytest.mark.parametrize("sentence", SENTENCES)
def test_steps_that_nobody_steers_are_those_of_the_greedy_search(translator, sentence):
    wanted = greedily(translator, sentence)
    taken = list(steps(translator, sentence))
    assert [step.token for step in taken] == [*wanted.ids, *[END] * wanted.finished]
    assert sum(step.log_probability for step in taken) == pytest.approx(wanted.score, abs=1e-4)
    written = torch.stack([step.weights for step in taken[: len(wanted.ids)]])
    torch.testing.assert_close(written, wanted.weights, atol=1e-5, rtol=0)
    for step in taken:
        assert step.token == step.likeliest[0][0]
        assert len(step.likeliest) == 5
        assert [score for _, score in step.likeliest] == sorted((score for _, score in step.likeliest), reverse=True)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_pinned_weight_gives_the_context_and_the_state_that_pytorch_s_cells_give(cell, layers):
    translator = untrained(cell=cell, num_layers=layers)
    model = translator.model.double().eval()
    source = translator.source_tokenizer.numbers(["a b c d"])[0]
    pins = {1: 0.5, 3: 0.125}
    first, second, *_ = steps(translator, "a b c d", Steering(words={0: 6, 1: 7}, pins={0: pins}), likeliest=0)

    with torch.no_grad():
        memory, state = model.encode(torch.tensor([source]), torch.tensor([4]))
        _, own, _ = model.step(torch.tensor([BEGIN]), memory, state)
        rest = (1 - 0.625) / (own[0, 0] + own[0, 2])
        weights = torch.stack(
            [own[0, 0] * rest, torch.tensor(0.5).double(), own[0, 2] * rest, torch.tensor(0.125).double()]
        )
        kind = torch.nn.GRU if cell == "gru" else torch.nn.LSTM
        cells = kind(7 + 6 + 7, 6, layers).double()
        cells.load_state_dict({k: v for k, v in model.decoder.state_dict().items() if not k.startswith("score.")})
        embedded = model.target_embedding.weight[BEGIN] * 7**0.5
        context = weights @ memory.value[0]
        out, after = cells(torch.cat([embedded, context]).view(1, 1, -1), state)
        readout = torch.tanh(model.readout(torch.cat([out.view(-1), context, embedded])))
        readout = readout + model.lexical.weight @ context[6:]
        scores = readout @ model.target_embedding.weight.T + model.output_bias
        scores = F.log_softmax(scores, 0)
        expected, _, _ = model.step(torch.tensor([6]), memory, after)

    torch.testing.assert_close(first.weights.double(), weights, atol=1e-6, rtol=0)
    assert first.log_probability == pytest.approx(float(scores[6]), abs=1e-9)
    assert second.log_probability == pytest.approx(float(expected.log_softmax(1)[0, 7]), abs=1e-9)


def test_the_model_s_own_weights_pinned_change_nothing(translator):
    plain = list(steps(translator, "Where is the man?"))
    pins = {index: dict(enumerate(step.weights.double().tolist())) for index, step in enumerate(plain)}
    scaled = {i: {j: w / (1 + 1e-7) for j, w in of.items()} for i, of in pins.items()}
    again = list(steps(translator, "Where is the man?", Steering(pins=scaled)))
    assert [step.token for step in again] == [step.token for step in plain]
    for one, other in zip(again, plain, strict=True):
        assert one.log_probability == pytest.approx(other.log_probability, abs=1e-4)


def test_pins_where_nothing_is_left_to_others():
    translator = untrained()
    everything, *_ = steps(translator, "a b", Steering(pins={0: {0: 0.1, 1: 0.3}}))
    torch.testing.assert_close(everything.weights, torch.tensor([0.25, 0.75]))
    tiny, *_ = steps(translator, "a b", Steering(pins={0: {0: 1e-46, 1: 3e-46}}))  # less than float32 has
    torch.testing.assert_close(tiny.weights, torch.tensor([0.25, 0.75]))
    nothing, *_ = steps(translator, "a b c", Steering(pins={0: {1: 1.0}}))
    torch.testing.assert_close(nothing.weights, torch.tensor([0.0, 1.0, 0.0]))


def test_a_word_of_the_reader_s_own_and_an_end(translator):
    french = translator.target_tokenizer
    elle = french.numbers(["Elle"])[0][0]
    taken = list(steps(translator, "I lost.", Steering(words={0: elle, 2: END})))
    assert [taken[0].token, taken[2].token, len(taken)] == [elle, END, 3]


def test_a_model_without_attention_goes_step_by_step_too():
    translator = untrained(score="none")
    wanted, taken = greedily(translator, "a b c"), list(steps(translator, "a b c"))
    assert [step.token for step in taken[: len(wanted.ids)]] == wanted.ids
    torch.testing.assert_close(torch.stack([step.weights for step in taken[: len(wanted.ids)]]), wanted.weights)


@kit.each(
    ("steering", "what"),
    [
        (Steering(words={-1: 4}), "words: got step -1"),
        (Steering(words={0: 2}), "words: got token 2 at step 0; expected the end, 3, or a number up to"),
        (Steering(words={0: 99}), "words: got token 99"),
        (Steering(words={0: True}), "words: got token True"),
        (Steering(words={0: 3}), "words: got the end at step 0; expected it at step 1 or later"),
        (Steering(pins={0: {3: 0.5}}), "pins: got position 3; expected a whole number from 0 to 2"),
        (Steering(pins={0: {-1: 0.5}}), "pins: got position -1"),
        (Steering(pins={0: {0: -0.1}}), "pins: got a weight of -0.1 at step 0; expected 0 to 1"),
        (Steering(pins={0: {0: float("nan")}}), "pins: got a weight of nan"),
        (Steering(pins={0: {0: 1.5}}), "pins: got a weight of 1.5"),
        (Steering(pins={2: {0: 0.7, 1: 0.7}}), "pins: got weights that add up to 1.4 at step 2; expected at most 1"),
        (Steering(pins={0: {0: 0, 1: 0, 2: 0}}), "pins: got 0 for every position at step 0"),
    ],
)
def test_steering_that_cannot_be(steering, what):
    with pytest.raises(InputError, match=what.replace("(", r"\(")):
        steps(untrained(), "a b c", steering)


def test_sentences_and_models_that_cannot_be_steered():
    with pytest.raises(InputError, match="sentence: got one without tokens"):
        steps(untrained(), " ")
    with pytest.raises(InputError, match="the model has no attention"):
        steps(untrained(score="none"), "a", Steering(pins={0: {0: 1.0}}))


@pytest.mark.parametrize("search", [Search(beam=2), Search(sample=True, seed=1)])
def test_a_search_that_nobody_waits_for_stops(translator, search, monkeypatch):
    from dikkat.translation.decoding.compiled import run

    monkeypatch.setattr(run, "_FIRST", 1)  # parts of a step or two
    monkeypatch.setattr(run, "_LEAST", 1)
    asked = []
    with stopping(lambda: len(asked.append(None) or asked) > 1), pytest.raises(StoppedError):
        translator.translate(SENTENCES, search=search)
    assert len(asked) == 2
    assert translator.translate(["I lost."], search=search)  # nothing is left behind


def test_steps_that_nobody_waits_for_stop(translator):
    walk = steps(translator, "I lost.")
    next(walk)
    with stopping(lambda: True), pytest.raises(StoppedError):
        next(walk)
