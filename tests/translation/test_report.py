import pytest
import torch
from sacrebleu.metrics.chrf import CHRF

from dikkat.translation import InputError, Translation
from dikkat.translation.decoding.evaluation import evaluate
from dikkat.translation.decoding.report import count_words, evaluate_by_rarity, judge, words


def judged(source, target, reference, **more):
    tokens = target.split()
    weights = torch.zeros(len(tokens), len(source.split()))
    translation = Translation(source, target, source.split(), tokens, weights, -1.0)
    return judge(translation, reference, more.get("met"), more.get("came"), more.get("wanted"))


def test_words_are_counted_whatever_their_case():
    assert count_words(["The man, the MAN.", "3.5 l'homme", "हिन्दी"]) == {
        "the": 2, "man": 2, "3.5": 1, "l'homme": 1, "हिन्दी": 1,
    }  # fmt: skip


def test_scores_by_the_rarest_word():
    met = count_words(["a"] * 100 + ["b"] * 19 + ["c"] * 5 + ["d"])
    sources = ["a b", "a.", "c a", "d", "e a", "a, a", "..."]  # the last has no word, and is in no class
    targets, references = ["x y"] * 7, ["x y z w", "x y", "x", "y", "q", "x y z", "x"]
    found = evaluate_by_rarity(sources, targets, references, met)
    assert [(each.least, each.most, each.sentences) for each in found] == [
        (0, 0, 1), (1, 1, 1), (5, 19, 2), (100, None, 2),
    ]  # fmt: skip
    wanted = evaluate([targets[1], targets[5]], [references[1], references[5]])
    assert (found[-1].bleu, found[-1].chrf) == (wanted.bleu, wanted.chrf)
    with pytest.raises(InputError, match="got 1, 0 and 1 texts; expected as many of each"):
        evaluate_by_rarity(["a"], [], ["b"], met)


@pytest.mark.parametrize(
    ("source", "target", "reference", "missing"),
    [
        ("In 1999 Marie met Paul.", "En 1998 Marie a vu.", "En 1999 Marie a vu Paul.", ["1999", "Paul"]),
        ("The man of London", "L'homme", "L'homme de Londres", []),  # which a person translated
        ("Paul", "Jean", "Paul", []),  # every sentence begins with a capital
        ("at 10 or 10", "à 10", "à 10 ou 10", ["10"]),
    ],
)
def test_numbers_and_names_that_are_not_copied(source, target, reference, missing):
    assert judged(source, target, reference).not_copied == missing


@pytest.mark.parametrize(
    ("target", "reference", "doubled"),
    [
        ("un un homme", "un homme", ["un"]),
        ("nous nous levons", "Nous nous levons", []),
        ("un homme un homme va", "un homme va", ["un homme"]),
        ("a b c", "a b c", []),
        ("妈妈慢慢地走很好很好", "妈妈走", ["很 好"]),
    ],
)
def test_words_that_are_doubled(target, reference, doubled):
    assert judged("x", target, reference).doubled == doubled


def test_words_of_which_nothing_is_left():
    came, wanted = torch.tensor([1.5, 0.1, 0.1, 0.3]), torch.tensor([1.0, 0.9, 0.3, 1.0])
    assert judged("the red old car", "la voiture", "la vieille voiture rouge", came=came, wanted=wanted).dropped == [
        "red"
    ]
    assert judged("the red old car", "la voiture", "").dropped == []


def test_words_that_training_never_met_and_the_score():
    met = count_words(["The cat"])
    one = judged("the Cat sat", "le chat", "le chat assis", met=met)
    assert one.unseen == ["sat"]
    assert one.chrf == CHRF().sentence_score("le chat", ["le chat assis"]).score
    assert judged("the Cat sat", "le chat", "le chat assis").unseen == []


def test_words_have_no_marks():
    assert words("ទៅ។ 老人， 3.14 well-known.") == ["ទៅ", "老", "人", "3.14", "well-known"]
