"""The translator beside PyTorch's: scores, gradients, training, model folders, translations."""

import dataclasses

import keras
import numpy as np
import pytest
import torch
from gradients import differentiate, numpy
from keras import ops
from torch.nn import functional

from dikkat.frameworks.keras import (
    SentencePairs,
    TokenCrossEntropy,
    TranslationModel,
    Translator,
    load_tensors,
    tensors,
)
from dikkat.translation import Search, Settings, Tokenizer
from dikkat.translation import TranslationModel as Reference
from dikkat.translation import Translator as ReferenceTranslator
from dikkat.translation.errors import ModelFolderError, SettingsError
from dikkat.translation.formats import model_folder
from dikkat.translation.network.model import collate, expected

DTYPE, BOUND = ("float32", 5e-5) if keras.backend.backend() == "jax" else ("float64", 1e-11)
# PyTorch compiles every Keras model, but takes minutes for the smallest. JAX takes longer where it does not compile.
COMPILES = keras.backend.backend() != "torch"
ALWAYS_COMPILES = keras.backend.backend() == "jax"
PAIRS = [([5, 6, 7, 8, 5], [4, 9]), ([9], [5, 5, 6, 11]), ([4, 10], [7]), ([6, 6, 6], [10, 8, 4])]
BASE = Settings(embedding_size=3, hidden_size=4, dropout=0.0)
CASES = {
    **{score: {"score": score} for score in (
        "additive", "dot", "scaled_dot", "bilinear", "cosine", "gaussian", "boxcar", "epanechnikov", "triangular",
        "vector_sum", "average", "none",
    )},
    "lstm": {"cell": "lstm", "num_layers": 2},
    "lstm without attention": {"cell": "lstm", "score": "none"},
    "one direction": {"bidirectional": False, "num_layers": 2},
    "untied": {"tied_embeddings": "none", "coverage": True},
    "three tied": {"tied_embeddings": "three", "cell": "lstm", "coverage": True},
}  # fmt: skip


def twins(dtype=DTYPE, **changes):
    """A reference model in float64 with weights that are not those of the start, and ours with the same."""
    settings = dataclasses.replace(BASE, **changes)
    sizes = (13, 13) if settings.tied_embeddings == "three" else (11, 13)
    torch.manual_seed(2)
    reference = Reference(settings, *sizes).double().eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model = TranslationModel(settings, *sizes, dtype=dtype)
    assert tensors(model).keys() == reference.state_dict().keys()
    load_tensors(model, {name: tensor.numpy() for name, tensor in reference.state_dict().items()})
    return reference, model


def batch_of(pairs, **options):
    ((inputs, labels),) = SentencePairs(pairs, seed=None, **options)
    order = sorted(range(len(pairs)), key=lambda index: (-len(pairs[index][1]), -len(pairs[index][0])))
    return inputs, labels, collate([pairs[index] for index in order])


def near(found, reference, bound=BOUND):
    reference = reference.detach().double().numpy() if isinstance(reference, torch.Tensor) else reference
    np.testing.assert_allclose(found, reference, atol=bound, rtol=10 * bound)


@pytest.mark.parametrize("name", list(CASES))
def test_scores_and_gradients(name):
    reference, model = twins(**CASES[name])
    inputs, labels, batch = batch_of(PAIRS, multiple=4)
    real = labels != 0
    logits = reference(batch)
    loss = functional.cross_entropy(logits, expected(batch), reduction="sum")
    gradients = torch.autograd.grad(loss, list(reference.parameters()), allow_unused=True)

    def run(_):
        logits = model(inputs)
        chosen = ops.take_along_axis(ops.log_softmax(logits), labels[..., None].astype("int32"), axis=-1)[..., 0]
        return {"logits": logits, "loss": -ops.sum(ops.where(real, chosen, ops.zeros_like(chosen)))}

    found, found_gradients = differentiate(run, {}, {"loss": np.ones(())}, model, DTYPE)
    near(found["logits"][real], logits)
    near(found["loss"], loss)
    parameters = dict(reference.named_parameters())
    assert found_gradients.keys() == parameters.keys()
    for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
        near(found_gradients[name], torch.zeros_like(parameter) if gradient is None else gradient)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses_leave_padding_out(smoothing):
    reference, model = twins()
    inputs, labels, batch = batch_of(PAIRS, multiple=8)
    wanted = reference.loss(batch, label_smoothing=smoothing)
    model.compile("sgd", TokenCrossEntropy(smoothing), metrics=[keras.metrics.SparseCategoricalAccuracy()])
    found = model.evaluate(inputs, labels, batch_size=len(PAIRS), verbose=0, return_dict=True)
    near(found["loss"], wanted, 1e-5)
    right = (reference(batch).argmax(1) == expected(batch)).double().mean()
    near(found["sparse_categorical_accuracy"], right, 1e-6)
    if not smoothing:
        keras_own = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
        near(numpy(keras_own(labels, model(inputs))), wanted, 1e-5)
    # A tuple in place of the dictionary, and more padding.
    longer = {name: np.pad(array, [(0, 0), (0, 3)]) for name, array in inputs.items() if array.ndim == 2}
    scores = numpy(model((longer["source"], inputs["source_lengths"], longer["target"])))
    near(scores[:, : labels.shape[1]][labels != 0], reference(batch))


def test_dropouts():
    """What is dropped as a whole leaves what can be computed with PyTorch from the rest."""
    inputs, labels, batch = batch_of(PAIRS)
    reference, _ = twins(num_layers=2)
    weights = {name: tensor.numpy() for name, tensor in reference.state_dict().items()}

    def trained(**settings):
        model = TranslationModel(dataclasses.replace(BASE, num_layers=2, **settings), 11, 13, dtype=DTYPE)
        load_tensors(model, weights)
        kept = numpy(model(inputs))
        near(kept[labels != 0], reference(batch))  # outside of training nothing is dropped
        first, second = (numpy(model(inputs, training=True)) for _ in range(2))
        return kept, first, second

    for settings in ({"dropout": 0.5}, {"attention_dropout": 0.5}, {"word_dropout": 0.5}):
        kept, first, second = trained(**settings)
        assert (first != kept).any()
        assert (first != second).any()
    # All words dropped, by this seed: what is left of the scores is the same, whatever the words were.
    keras.utils.set_random_seed(1)
    model = TranslationModel(dataclasses.replace(BASE, num_layers=2, word_dropout=0.999), 11, 13, dtype=DTYPE)
    load_tensors(model, weights)
    with torch.no_grad():
        reference.source_embedding.weight.zero_()
        previous, reference._embed = reference._embed, lambda table, numbers: 0 * table(numbers)
    near(numpy(model(inputs, training=True))[labels != 0], reference(batch), 1e-5)
    reference._embed = previous


def fitted(policy="float32", jit_compile=ALWAYS_COMPILES, **changes):
    keras.utils.set_random_seed(4)
    settings = dataclasses.replace(BASE, embedding_size=8, hidden_size=8, **changes)
    model = TranslationModel(settings, 11, 13, dtype=policy)
    model.compile(keras.optimizers.Adam(0.03), TokenCrossEntropy(0.1), jit_compile=jit_compile)
    history = model.fit(SentencePairs(PAIRS, batch_size=4, seed=1), epochs=12, verbose=0).history["loss"]
    return model, history


@pytest.mark.parametrize(
    ("policy", "jit_compile"),
    [("float32", ALWAYS_COMPILES), ("mixed_float16", COMPILES), ("mixed_bfloat16", ALWAYS_COMPILES)],
)
def test_fit(policy, jit_compile):
    model, losses = fitted(policy, jit_compile, dropout=0.1, attention_dropout=0.1, word_dropout=0.1)
    assert losses[-1] < 0.85 * losses[0]
    assert all(array.dtype == np.float32 for array in tensors(model).values())


def test_keras_files(tmp_path):
    model, _ = fitted(cell="lstm")
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    inputs, _, _ = batch_of(PAIRS)
    np.testing.assert_array_equal(numpy(model(inputs)), numpy(again(inputs)))
    assert again.settings == model.settings
    # What compile was given is there too: it learns on.
    assert again.loss.label_smoothing == 0.1
    again.fit(SentencePairs(PAIRS), verbose=0)


SENTENCES = ["go home .", "she sees the man .", "the man is calm .", "where is she ?", "i lost the man .", "go go go ."]


def tokenizer():
    return Tokenizer.train(SENTENCES, "word", min_freq=1, vocabulary_size=30)


def reference_translator(**changes):
    words = tokenizer()
    settings = dataclasses.replace(BASE, embedding_size=16, hidden_size=16, **changes)
    torch.manual_seed(6)
    model = Reference(settings, len(words), len(words)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return ReferenceTranslator(model, settings, words, words)


def same(found, wanted):
    assert [each.target_tokens for each in found] == [each.target_tokens for each in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert one.target == other.target
        assert one.finished == other.finished
        near(one.score, other.score, 2e-5)
        near(one.weights.numpy(), other.weights, 2e-5)


@pytest.mark.parametrize(
    "changes",
    [{}, {"cell": "lstm", "num_layers": 2, "score": "dot"}, {"coverage": True}, {"score": "none"}, {"score": "boxcar"}],
    ids=str,
)
def test_translations_are_those_of_pytorch(changes, tmp_path):
    reference = reference_translator(**changes)
    reference.save(tmp_path / "model")
    translator = Translator.load(tmp_path / "model")
    sentences = [*SENTENCES, "", "zebras go .", "the the the the the the the the the"]
    for search in (Search(beam=1), Search(beam=3, n_best=3, max_length=7), Search(sample=True, n_best=2, seed=3)):
        found = list(translator.translate_n_best(sentences, batch_size=4, search=search))
        wanted = list(reference.translate_n_best(sentences, batch_size=4, search=search))
        for ours, theirs in zip(found, wanted, strict=True):
            same(ours, theirs)
    pairs = [("go home .", "she sees ."), ("where is she ?", ""), ("", "")]
    near(translator.score(pairs), np.array(reference.score(pairs)), 2e-5)
    # And back again: what is saved here is a model there, of the same numbers.
    translator.save(tmp_path / "again")
    again = ReferenceTranslator.load(tmp_path / "again")
    for name, tensor in reference.model.state_dict().items():
        assert torch.allclose(again.model.state_dict()[name], tensor, rtol=1e-7, atol=0), name


def test_trained_here_translates_there(tmp_path):
    words = tokenizer()
    keras.utils.set_random_seed(5)
    settings = dataclasses.replace(BASE, embedding_size=16, hidden_size=16)
    model = TranslationModel(settings, len(words), len(words))
    translator = Translator(model, settings, words, words)
    untrained = translator.translate(SENTENCES)
    numbers = words.numbers(SENTENCES)
    model.compile(keras.optimizers.Adam(0.02), TokenCrossEntropy(), jit_compile=COMPILES)
    model.fit(SentencePairs(list(zip(numbers, numbers, strict=True)), batch_size=8), epochs=60, verbose=0)
    # The same translator: what is compiled reads the weights as they are now.
    found = translator.translate(SENTENCES)
    assert [each.target for each in found] != [each.target for each in untrained]
    assert [each.target_tokens for each in found[:3]] == [sentence.split() for sentence in SENTENCES[:3]]
    translator.save(tmp_path / "model")
    same(found, ReferenceTranslator.load(tmp_path / "model").translate(SENTENCES))


def test_mixed_precision_translates(tmp_path):
    reference = reference_translator()
    reference.save(tmp_path / "model")
    half = Translator.load(tmp_path / "model", dtype="mixed_bfloat16")
    found, wanted = (each.translate(SENTENCES[:1])[0] for each in (half, reference))
    assert found.target_tokens[:2] == wanted.target_tokens[:2]
    half.save(tmp_path / "half")
    assert torch.equal(ReferenceTranslator.load(tmp_path / "half").model.output_bias, reference.model.output_bias)


def test_a_model_of_another_size(tmp_path):
    reference_translator().save(tmp_path / "model")
    found = model_folder.read(tmp_path / "model")
    other = dataclasses.replace(found.settings, hidden_size=20)
    model = TranslationModel(other, len(found.source), len(found.target))
    weights = {name: tensor.numpy() for name, tensor in found.tensors.items()}
    with pytest.raises(ValueError, match=r"encoder\.gru\.weight_ih_l0: got \(24, 16\); expected \(30, 16\)"):
        load_tensors(model, weights)
    checkpoint_settings = tmp_path / "model" / "settings.json"
    changed = checkpoint_settings.read_text().replace('"hidden_size": 16', '"hidden_size": 20')
    checkpoint_settings.write_text(changed.replace('"version": 2', '"version": 1'))  # which had no sums
    with pytest.raises(ModelFolderError, match=r"weight_ih_l0: got float32 \(24, 16\); expected float32 \(30, 16\)"):
        Translator.load(tmp_path / "model")


def test_errors():
    with pytest.raises(SettingsError, match="11 tokens in the source vocabulary and 13 in the target"):
        TranslationModel(dataclasses.replace(BASE, tied_embeddings="three"), 11, 13)
    _, model = twins()
    with pytest.raises(ValueError, match="a tuple of source, source_lengths, target"):
        model({"source": np.ones((1, 2), "int32")})
    inputs, _, _ = batch_of(PAIRS)
    with pytest.raises(ValueError, match="from 0 to 10"):
        model({**inputs, "source": inputs["source"] + 11})
    with pytest.raises(ValueError, match="label_smoothing: got 2"):
        TokenCrossEntropy(2)
    with pytest.raises(ValueError, match=r"pairs\[1\]"):
        SentencePairs([([4], [5]), ([], [5])])
    with pytest.raises(ValueError, match="multiple: got 0"):
        SentencePairs(PAIRS, multiple=0)
    with pytest.raises(ValueError, match="number of pairs: got 0"):
        SentencePairs([])


def test_batches_of_sentence_pairs():
    batches = SentencePairs(PAIRS, batch_size=3, multiple=2, seed=7)
    assert [len(labels) for _, labels in (batches[0], batches[1])] in ([3, 1], [1, 3])
    seen = [tuple(row[1:]) for inputs, _ in (batches[0], batches[1]) for row in inputs["target"]]
    wanted = {(*target, 3) for _, target in PAIRS}
    assert {tuple(number for number in row if number) for row in seen} == wanted
    assert all(inputs["source"].shape[1] % 2 == 0 for inputs, _ in (batches[0], batches[1]))
    with pytest.raises(IndexError):
        batches[2]
