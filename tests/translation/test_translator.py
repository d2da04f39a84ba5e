import dataclasses
import subprocess
import sys

import pytest
import torch

from dikkat.translation import InputError, Settings, Tokenizer, TranslationModel, Translator

PAIRS = [("Where is the man?", "Où est l'homme ?"), ("She sees Marie.", "Elle voit Marie."), ("I lost.", "J'ai perdu.")]


def test_it_translates_what_it_learnt_as_a_person_writes_it(translator):
    found = translator.translate([source for source, _ in PAIRS])
    assert [translation.target for translation in found] == [target for _, target in PAIRS]
    assert [translation.source for translation in found] == [source for source, _ in PAIRS]
    assert found[0].source_tokens == ["Where", "is", "the", "man", "?"]
    assert found[0].target_tokens == ["où", "est", "l'", "homme", "?"]
    for translation in found:
        assert translation.weights.shape == (len(translation.target_tokens), len(translation.source_tokens))
        torch.testing.assert_close(translation.weights.sum(1), torch.ones(len(translation.weights)))
        assert translation.score < 0
        assert translation.finished


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_order_and_batches_do_not_matter(translator, batch_size):
    sentences = ["She lost the man.", "", "Go.", "where is the MAN ?", "Go.", " \t"]
    wanted = [translator.translate([sentence])[0] for sentence in sentences]
    found = translator.translate(sentences, batch_size=batch_size)
    assert [each.target for each in found] == [each.target for each in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-4)
        torch.testing.assert_close(one.weights, other.weights, atol=1e-5, rtol=0)


def test_an_empty_sentence_has_an_empty_translation(translator):
    (nothing,) = translator.translate([""])
    assert (nothing.target, nothing.source_tokens, nothing.target_tokens, nothing.score) == ("", [], [], 0.0)
    assert nothing.weights.shape == (0, 0)
    assert translator.translate([]) == []


@pytest.mark.parametrize("sentence", ["Zorglub!", "🙂👩‍👩‍👧", "漢字", "<eos> <pad>", "man " * 2000])
def test_whatever_comes_it_answers(translator, sentence):
    (found,) = translator.translate([sentence])
    assert found.weights.shape == (len(found.target_tokens), len(found.source_tokens))
    assert not {"<pad>", "<bos>", "<eos>", "<unk>"} & set(found.target_tokens)
    assert "<unk>" not in found.target


def test_an_unknown_word_is_copied_where_the_model_looked():
    torch.manual_seed(0)
    english = Tokenizer.train(["she sees ."], "word", min_freq=1, vocabulary_size=99)
    french = Tokenizer.train(["elle voit ."], "word", min_freq=1, vocabulary_size=99)
    settings = Settings(embedding_size=8, hidden_size=8)
    model = TranslationModel(settings, len(english), len(french))
    with torch.no_grad():
        model.output_bias[1] = 100.0  # it writes nothing but <unk>
    translator = Translator(model, settings, english, french)
    (found,) = translator.translate(["She sees Zorglub and Fantasio."])
    unknown = [index for index, piece in enumerate(found.source_tokens) if piece in ("Zorglub", "and", "Fantasio")]
    for token, weights in zip(found.target_tokens, found.weights, strict=True):
        assert token == found.source_tokens[max(unknown, key=lambda index: weights[index].item())]


def test_what_is_no_sentence_is_refused(translator):
    with pytest.raises(TypeError, match="one string"):
        translator.translate("Go.")
    with pytest.raises(TypeError, match=r"sentences\[1\] is of type int"):
        translator.translate(["Go.", 3])
    with pytest.raises(InputError, match=r"sentences\[1\] has 100,000 characters"):
        translator.translate(["Go.", "a" * 100_000])
    with pytest.raises(InputError, match=r"sentences\[0\] is not Unicode"):
        translator.translate(["\udcff"])
    with pytest.raises(InputError, match="batch_size is 0"):
        translator.translate(["Go."], batch_size=0)


def test_a_translation_cannot_be_changed(translator):
    with pytest.raises(dataclasses.FrozenInstanceError):
        translator.translate(["Go."])[0].target = "x"


def test_translating_imports_neither_lightning_nor_what_scores_or_draws(translator, tmp_path):
    translator.save(tmp_path / "model")
    code = (
        "import sys; from dikkat.cli import main; sys.argv = ['dikkat', 'translate', sys.argv[1], 'I lost.']\n"
        "try: main()\n"
        "except SystemExit as stop: assert not stop.code\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(loaded & {'lightning', 'torchmetrics', 'sacrebleu', 'matplotlib', 'numba'}))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "model")]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["J'ai perdu.", "[]"]
