"""The translator in MXNet against PyTorch's: the same numbers, the same translations, the same folders."""

import math
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from mxnet import autograd, gluon, np

from dikkat import translation
from dikkat.frameworks import mxnet as dikkat_mxnet
from dikkat.frameworks.mxnet import TranslationModel, Translator, clip_gradients, collate
from dikkat.frameworks.mxnet.blocks import named_parameters
from dikkat.translation import ModelFolderError, Search, Settings, SettingsError, Tokenizer
from dikkat.translation.network import model as core

ENGLISH = ["the cat sleeps .", "a dog eats the fish .", "the small bird sings well .", "go !", "the dog sleeps here ."]
FRENCH = [
    "le chat dort .",
    "un chien mange le poisson .",
    "le petit oiseau chante bien .",
    "va !",
    "le chien dort ici .",
]
PAIRS = [([5, 6, 7, 4], [8, 9]), ([9], [4, 5, 6, 7]), ([4, 10], [])]
KINDS = [
    {},
    {"cell": "lstm", "num_layers": 2, "coverage": True},
    {"score": "none", "tied_embeddings": "two"},
    {"score": "gaussian", "bidirectional": False, "tied_embeddings": "three"},
    {"score": "bilinear", "cell": "lstm"},
]


def _settings(**changes: Any) -> Settings:
    return Settings(embedding_size=6, hidden_size=8, dropout=0.0, **changes)


def _translator(steps: int = 60, **changes: Any) -> translation.Translator:
    """Trained a little, so that sentences have translations of their own."""
    torch.manual_seed(7)
    three = changes.get("tied_embeddings") == "three"
    source, target = (
        Tokenizer.train(ENGLISH + FRENCH if three else lines, "word", min_freq=1, vocabulary_size=60)
        for lines in (ENGLISH, FRENCH)
    )
    settings = _settings(**changes)
    model = translation.TranslationModel(settings, len(source), len(target))
    batch = core.collate(list(zip(source.numbers(ENGLISH), target.numbers(FRENCH), strict=True)))
    optimizer = torch.optim.Adam(model.parameters(), 0.03)
    for _ in range(steps):
        optimizer.zero_grad()
        model.loss(batch).backward()
        optimizer.step()
    return translation.Translator(model, settings, source, target)


@pytest.mark.parametrize("changes", KINDS)
def test_a_translator_of_pytorch_translates_identically(changes: dict[str, Any], tmp_path: Path) -> None:
    theirs = _translator(**changes)
    theirs.save(tmp_path / "model")
    ours = Translator.load(tmp_path / "model")
    sentences = [*ENGLISH, "the dog reads a newspaper .", ""]
    for search in (Search(beam=1), Search(beam=3, n_best=2), Search(sample=True, n_best=2, seed=3)):
        found = list(ours.translate_n_best(sentences, search=search))
        expected = list(theirs.translate_n_best(sentences, search=search))
        for mine, its in zip(found, expected, strict=True):
            assert [each.target for each in mine] == [each.target for each in its]
            for a, b in zip(mine, its, strict=True):
                assert a.score == pytest.approx(b.score, abs=1e-4)
                numpy.testing.assert_allclose(a.weights.numpy(), b.weights.numpy(), atol=1e-5)
    assert len({each.target for each in ours.translate(sentences)}) > 3
    pairs = list(zip(ENGLISH, FRENCH, strict=True))
    assert ours.score(pairs) == pytest.approx(theirs.score(pairs), abs=1e-4)


@pytest.mark.parametrize("changes", KINDS)
@pytest.mark.parametrize(("smoothing", "reduction"), [(0.0, "mean"), (0.1, "sum")])
def test_the_loss_and_its_gradients_are_those_of_pytorch(
    changes: dict[str, Any], smoothing: float, reduction: str
) -> None:
    theirs = translation.TranslationModel(_settings(**changes), 11, 11)
    ours = TranslationModel(_settings(**changes), 11, 11)
    dikkat_mxnet.load_tensors(ours, {name: each.detach().numpy() for name, each in theirs.state_dict().items()})
    expected = theirs.loss(core.collate(PAIRS), label_smoothing=smoothing, reduction=reduction)
    expected.backward()
    with autograd.record():
        loss = ours.loss(collate(PAIRS), label_smoothing=smoothing, reduction=reduction)
    loss.backward()
    assert float(loss) == pytest.approx(expected.item(), rel=1e-5)
    parameters = named_parameters(ours)
    for name, parameter in theirs.named_parameters():
        gradient = 0 * parameter if parameter.grad is None else parameter.grad
        numpy.testing.assert_allclose(parameters[name].grad().asnumpy(), gradient.detach().numpy(), atol=2e-5)
    numpy.testing.assert_allclose(
        ours(collate(PAIRS)).asnumpy(), theirs(core.collate(PAIRS)).detach().numpy(), atol=1e-5
    )


@pytest.mark.parametrize("changes", [{}, {"cell": "lstm", "coverage": True}])
def test_it_trains_on_and_goes_back_to_pytorch(changes: dict[str, Any], tmp_path: Path) -> None:
    _translator(steps=5, **changes).save(tmp_path / "model")
    ours = Translator.load(tmp_path / "model")
    trainer = gluon.Trainer(ours.model.collect_params(), "adam", {"learning_rate": 0.02})
    numbers = zip(ours.source_tokenizer.numbers(ENGLISH), ours.target_tokenizer.numbers(FRENCH), strict=True)
    batch, losses = collate(list(numbers)), []
    for _ in range(80):
        with autograd.record():
            loss = ours.model.loss(batch)
        loss.backward()
        clip_gradients(ours.model, 1.0)
        trainer.step(1)
        losses.append(float(loss))
    assert losses[-1] < 0.3 < losses[0]
    decode = ours.target_tokenizer.decode
    written = [decode(each) for each in ours.target_tokenizer.numbers(FRENCH)]
    assert [each.target for each in ours.translate(ENGLISH)] == written
    ours.save(tmp_path / "again")
    theirs = translation.Translator.load(tmp_path / "again")
    assert [each.target for each in theirs.translate(ENGLISH)] == written
    assert theirs.settings == ours.settings


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_a_model_of_any_dtype_is_saved_for_all(kind: str, tmp_path: Path) -> None:
    theirs = _translator(steps=0, score="boxcar")  # whose bandwidth is float64
    theirs.save(tmp_path / "model")
    ours = Translator.load(tmp_path / "model")
    ours.model.cast(kind)
    ours.save(tmp_path / "again")
    expected, found = theirs.model.state_dict(), translation.Translator.load(tmp_path / "again").model.state_dict()
    tolerance = 2e-3 if kind == "float16" else 1e-7
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        torch.testing.assert_close(found[name], tensor, rtol=tolerance, atol=tolerance)


def test_dropouts_act_in_training_alone() -> None:
    for name in ("dropout", "attention_dropout", "word_dropout"):
        settings = Settings(embedding_size=6, hidden_size=8, **{"dropout": 0.0, name: 0.5})
        model = TranslationModel(settings, 11, 11)
        model.initialize()
        batch = collate(PAIRS)
        assert float(model.loss(batch)) == float(model.loss(batch))
        with autograd.record():
            losses = {float(model.loss(batch)) for _ in range(3)}
        assert len(losses) == 3, name


def test_gradients_are_clipped_together() -> None:
    model = TranslationModel(_settings(), 11, 11)
    model.initialize()
    with autograd.record():
        loss = model.loss(collate(PAIRS), reduction="sum")
    loss.backward()

    def norm() -> float:
        squares = [numpy.square(each.grad().asnumpy().astype("float64")).sum() for each in parameters]
        return math.sqrt(sum(squares))

    parameters = list(named_parameters(model).values())
    before, first = norm(), parameters[0].grad().asnumpy()
    assert clip_gradients(model, 2 * before) == pytest.approx(before, rel=1e-5)
    assert norm() == before
    assert clip_gradients(model, before / 4) == pytest.approx(before, rel=1e-5)
    assert norm() == pytest.approx(before / 4, rel=1e-5)
    numpy.testing.assert_allclose(parameters[0].grad().asnumpy(), first / 4, rtol=1e-5)
    with pytest.raises(ValueError, match=r"max_norm: got 0; expected a number greater than 0"):
        clip_gradients(model, 0)


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="tied_embeddings: got 'three', and 7 tokens in the source vocabulary"):
        TranslationModel(_settings(tied_embeddings="three"), 7, 11)
    with pytest.raises(ModelFolderError, match="no such model folder"):
        Translator.load(tmp_path / "nothing")
    model = TranslationModel(_settings(), 7, 11)
    model.initialize()
    with pytest.raises(ValueError, match="token numbers: got 5 to 10; expected 0 to 6"):
        model.encode(np.array([[5, 10]]), np.array([2]))
    with pytest.raises(ValueError, match=r"token numbers: got 0\.5; expected whole numbers"):
        model.encode(np.array([[0.5, 1]]), np.array([2]))
    batch = collate([([5, 6], [7])])
    with pytest.raises(ValueError, match="label_smoothing: got 2; expected 0 to 1"):
        model.loss(batch, label_smoothing=2)
    with pytest.raises(ValueError, match="reduction: got 'none'; expected 'mean', 'sum'"):
        model.loss(batch, reduction="none")
    wider = translation.TranslationModel(Settings(embedding_size=6, hidden_size=10), 7, 11)
    with pytest.raises(ValueError, match=r"weight_ih_l0: got \(15, 6\); expected \(12, 6\)"):
        dikkat_mxnet.load_tensors(model, {name: each.numpy() for name, each in wider.state_dict().items()})
