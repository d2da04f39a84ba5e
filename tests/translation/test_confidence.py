"""The confidence of translations: its fit, its calibration and its flags."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from dikkat.translation import InputError, Search, Translation, Translator
from dikkat.translation.confidence import FEATURES, ConfidenceModel, calibration, features, find_right
from dikkat.translation.decoding.translation import FLAGS
from dikkat.translation.text.slots import Slots
from dikkat.translation.training.train import train
from translation.taught import PAIRS, TINY

GOOD, BAD = "Il est calme.", "Va !"


def written(target: str, score: float, **facts: object) -> Translation:
    tokens = target.split()
    return Translation("He is calm.", target, ["He"], tokens, torch.ones(len(tokens), 1), score, **facts)


def drawn(count: int) -> tuple[list[Translation], list[str]]:
    """Translations of random scores, lengths and faults; likely ones are right more often."""
    random = np.random.default_rng(7)
    translations = []
    for _ in range(count):
        score = -float(random.exponential(4))
        target = GOOD if random.random() < math.exp(score / 3) else BAD
        facts = {"finished": random.random() > 0.2, "unknown": ("x",) * int(random.integers(0, 3))}
        translations.append(written(target, score, **facts))
    return translations, [GOOD] * count


def test_the_fit_is_that_of_scikit_learn():
    translations, references = drawn(83)
    model = ConfidenceModel.fit(translations, references)
    rows = np.array([list(features(each).values()) for each in translations])
    is_right = np.array([each.target == GOOD for each in translations])
    targets = np.where(is_right, (is_right.sum() + 1) / (is_right.sum() + 2), 1 / ((~is_right).sum() + 2))
    standardised = (rows - rows.mean(0)) / rows.std(0)
    # A soft target is a right and a wrong row with weights.
    doubled, labels = np.concatenate([standardised] * 2), np.repeat([1, 0], len(rows))
    expected = LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000)
    expected.fit(doubled, labels, sample_weight=np.concatenate([targets, 1 - targets]))
    probabilities = expected.predict_proba(standardised)[:, 1]
    np.testing.assert_allclose([model.of(each) for each in translations], probabilities, atol=1e-6)
    assert (model.pairs, model.right) == (83, is_right.sum())


@pytest.mark.parametrize(("target", "expected"), [(GOOD, 12 / 13), (BAD, 1 / 13)])
def test_all_right_or_all_wrong_translations_have_a_probability_within_0_and_1(target, expected):
    translations = [written(target, -float(score)) for score in range(11)]
    model = ConfidenceModel.fit(translations, [GOOD] * 11)
    assert np.mean([model.of(each) for each in translations]) == pytest.approx(expected)
    assert model.of(written(target, -3000.0)) == pytest.approx(expected, abs=1e-6)


def test_one_translation_is_enough_and_none_is_not():
    assert ConfidenceModel.fit([written(GOOD, -1.0)], [GOOD]).of(written(BAD, -90.0)) == pytest.approx(2 / 3)
    with pytest.raises(InputError, match="got 0 with 0 references; expected as many, at least one"):
        ConfidenceModel.fit([], [])
    with pytest.raises(InputError, match="got 1 with 2 references"):
        ConfidenceModel.fit([written(GOOD, -1.0)], [GOOD, GOOD])


def test_right_is_a_chrf_of_80():
    reference = "Il est vraiment très calme aujourd'hui."
    targets = [reference, reference.replace("très", "tres"), "Il est calme.", ""]
    assert find_right(targets, [reference] * 4).tolist() == [True, True, False, False]


def test_an_extreme_score_overflows_nothing():
    model = ConfidenceModel(dict.fromkeys(FEATURES, 1e6), 0.0, 5, 2)
    assert model.of(written(BAD, -1e6)) == 0.0 or model.of(written(BAD, -1e6)) < 1e-300
    assert ConfidenceModel(dict.fromkeys(FEATURES, 0.0), 1e9, 5, 2).of(written(BAD, -1.0)) == 1.0


def test_a_model_is_the_same_from_json():
    model = ConfidenceModel.fit(*drawn(17))
    assert ConfidenceModel.from_dict(json.loads(json.dumps(model.to_dict()))) == model


@pytest.mark.parametrize(
    "changes",
    [
        {"constant": math.nan}, {"constant": "1"}, {"constant": True}, {"pairs": 1.5}, {"right": 99}, {"right": -1},
        {"weights": {}}, {"weights": {**dict.fromkeys(FEATURES, 0.0), "other": 1.0}}, {"more": 1},
        {"weights": {**dict.fromkeys(FEATURES, 0.0), "faults": math.inf}}, {"pairs": True},
    ],
)  # fmt: skip
def test_values_that_training_does_not_write_raise(changes):
    values = ConfidenceModel(dict.fromkeys(FEATURES, 0.5), 0.0, 5, 2).to_dict()
    with pytest.raises(ValueError, match="confidence: expected weights of"):
        ConfidenceModel.from_dict({**values, **changes})


def test_calibration_is_that_of_plain_loops_and_of_scikit_learn():
    random = np.random.default_rng(3)
    p = np.round(random.random(211), 2)  # ties
    p[:3] = 0.0, 1.0, 0.1  # ends of bins
    right = random.random(211) < p**2
    found = calibration(p, right)
    error = 0.0
    for number in range(10):
        inside = [k for k in range(211) if int(p[k] * 10) == number or (number == 9 and p[k] == 1)]
        error += abs(sum(p[k] for k in inside) - sum(right[k] for k in inside)) / 211
    assert found.error == pytest.approx(error)
    assert found.auc == pytest.approx(roc_auc_score(right, p))
    assert sum(each.sentences for each in found.bins) == found.sentences == 211
    assert sum(each.sentences * each.right for each in found.bins) == pytest.approx(right.sum())
    assert calibration([0.3, 0.4], [True, True]).auc is None
    with pytest.raises(InputError, match="got 1 of them for 2 translations"):
        calibration([0.5], [True, False])


# --- in translators


def test_training_with_validation_pairs_fits_a_confidence(translator, tmp_path):
    sources, references = zip(*PAIRS, strict=True)
    translations = translator.translate(sources)
    model = translator.confidence_model
    assert (model.pairs, model.right) == (8, find_right([each.target for each in translations], references).sum())
    assert model.weights == pytest.approx(ConfidenceModel.fit(translations, references).weights)
    for translation in translations:
        logit = model.constant + sum(model.weights[name] * value for name, value in features(translation).items())
        assert translation.confidence == pytest.approx(1 / (1 + math.exp(-logit)))
    translator.save(tmp_path / "model")
    assert Translator.load(tmp_path / "model").confidence_model == model


def test_without_validation_pairs_there_is_no_confidence(tmp_path):
    translator = train(dataclasses.replace(TINY, epochs=1), PAIRS, progress=False).translator
    translator.save(tmp_path / "model")
    assert Translator.load(tmp_path / "model").confidence_model is None
    assert translator.translate("Go.").confidence is None


def test_a_line_without_letters_is_certain(translator):
    copied, empty = translator.translate(["(25 %)", ""])
    assert (copied.target, copied.confidence, empty.confidence) == ("(25 %)", 1.0, 1.0)


def test_an_ensemble_has_the_mean_of_the_logits(translator):
    other = dataclasses.replace(translator, confidence_model=ConfidenceModel(dict.fromkeys(FEATURES, 1.0), 2.0, 3, 1))
    both = Translator.ensemble([translator, other])
    translation = both.translate("Go.")
    logits = [
        model.constant + sum(model.weights[name] * value for name, value in features(translation).items())
        for model in (translator.confidence_model, other.confidence_model)
    ]
    assert translation.confidence == pytest.approx(1 / (1 + math.exp(-sum(logits) / 2)))
    without = dataclasses.replace(translator, confidence_model=None)
    assert Translator.ensemble([translator, without]).translate("Go.").confidence is None


# --- flags


@pytest.mark.parametrize(
    ("facts", "flags"),
    [
        ({}, ()),
        ({"unknown": ("€",)}, ()),
        ({"unknown": ("€", "zorglub")}, ("unknown words",)),
        ({"repeated": True}, ("repeated",)),
        ({"finished": False}, ("cut",)),
        ({"lost": ("9:30",)}, ("lost numbers",)),
        ({"lost": ("{name}",)}, ("lost placeholders",)),
        ({"lost": ("{name}", "9")}, ("lost numbers", "lost placeholders")),
        ({"lost": ("14h05", "1 000", "٧")}, ("lost numbers",)),
        *(
            ({"lost": (text,)}, ("lost placeholders",))
            for text in ("{0}", "%1$s", "%2", "https://x.org/2", "7@x.org", "<1>", "&#39;")
        ),
        ({"invented": ("9",)}, ("invented numbers",)),
        ({"unknown": ("a",), "invented": ("9",), "finished": False}, ("unknown words", "cut", "invented numbers")),
    ],
)
def test_flags_follow_from_the_facts(facts, flags):
    assert written(GOOD, -1.0, **facts).flags == flags
    assert set(flags) <= set(FLAGS)


HOURS = Slots.learn([(f"At {hour}:30.", f"Às {hour}h30.") for hour in range(9)])


@pytest.mark.parametrize(
    ("slots", "source", "target", "lost", "invented"),
    [
        (Slots(), "It takes 25 minutes.", "Cela prend 25 minutes.", (), ()),
        (Slots(), "It takes 25 minutes.", "Cela prend des minutes.", ("25",), ()),
        (Slots(), "It takes 25 minutes.", "Cela prend 250 minutes.", ("25",), ("250",)),
        (Slots(), "2 and 2", "2 et", ("2",), ()),
        (Slots(), "Save {name} as %s.", "%s.", ("{name}",), ()),
        (Slots(), "See https://example.org.", "Voir https://example.org.", (), ()),
        (Slots(), "Cell A1", "Zelle A1", (), ()),
        (HOURS, "At 14:05.", "Às 14h05.", (), ()),
        (HOURS, "At 14:05.", "Às 14:05.", (), ()),
        (HOURS, "At 14:05.", "Às 14.", ("14h05",), ()),
        (HOURS, "At 14:05.", "Às 15h05.", ("14h05",), ("15",)),
    ],
)
def test_lost_and_invented_numbers(slots, source, target, lost, invented):
    assert slots.find_wrong(source, target) == (lost, invented)


def test_numbers_that_the_pairs_write_as_words_are_not_lost():
    slots = Slots.learn([(f"I see {n} men.", f"Je vois {word} hommes.") for n, word in enumerate("abcdefghijk", 10)])
    assert slots.shapes["99"].written is None
    assert slots.find_wrong("I see 12 men.", "Je vois douze hommes.") == ((), ())


def test_lost_numbers_are_facts_of_a_translation(translator):
    (translation,) = translator.translate(["The man is calm 25."], search=Search(beam=1))
    lost, invented = translator.slots.find_wrong(translation.source, translation.target)
    assert (translation.lost, translation.invented) == (lost, invented)
