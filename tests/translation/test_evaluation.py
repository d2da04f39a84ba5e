import math

import pytest
import sacrebleu

from dikkat.translation import InputError, bleu_k, evaluate

HYPOTHESES = ["Il est calme, je crois.", "Le chat dort sur le lit.", "Va !"]
REFERENCES = ["Il est très calme, je crois.", "Le chat dort sur le grand lit.", "Va !"]


def test_scores_are_sacrebleus_own():
    found = evaluate(HYPOTHESES, REFERENCES)
    bleu, chrf = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]), sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES])
    assert (found.bleu, found.chrf) == (bleu.score, chrf.score)
    assert found.bleu_line == str(bleu)
    assert found.bleu_line.startswith("BLEU = ")
    assert found.chrf_line == str(chrf)


def test_signatures_say_how():
    found = evaluate(HYPOTHESES, REFERENCES)
    assert found.bleu_signature == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    assert found.chrf_signature == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{sacrebleu.__version__}"


def test_bleu_is_cased():
    assert evaluate(["il est calme ici ."], ["Il est calme ici ."]).bleu < 100


@pytest.mark.parametrize(("hypotheses", "references"), [([], []), (["a"], ["a", "b"])])
def test_refuses_corpora_that_do_not_fit(hypotheses, references):
    with pytest.raises(InputError, match="translations and"):
        evaluate(hypotheses, references)


@pytest.mark.parametrize(
    ("hypothesis", "reference", "k", "score"),
    [
        ("va !", "va !", 2, 1.0),
        # The textbook's example: p1 = 4/5, p2 = 3/4, p3 = 1/3 ..., of A B B C D against A B C D E F.
        ("A B B C D", "A B C D E F", 1, math.exp(1 - 6 / 5) * (4 / 5) ** 0.5),
        ("A B B C D", "A B C D E F", 2, math.exp(1 - 6 / 5) * (4 / 5) ** 0.5 * (3 / 4) ** 0.25),
        ("A B B C D", "A B C D E F", 4, 0.0),
        ("the the the the", "the cat", 1, (1 / 4) ** 0.5),  # each word counts as often as in the reference
        ("je", "je suis là", 4, math.exp(1 - 3)),  # no pairs of words: the product ends
        ("il est calme .", "il est calme", 2, (3 / 4) ** 0.5 * (2 / 3) ** 0.25),  # no bonus for a long one
        ("", "va !", 2, 0.0),
        ("va", "", 2, 0.0),
        ("a b", "c d", 2, 0.0),
    ],
)
def test_bleu_of_a_sentence_by_hand(hypothesis, reference, k, score):
    assert bleu_k(hypothesis, reference, k) == pytest.approx(score, abs=1e-12)
    assert bleu_k(hypothesis.split(), reference.split(), k) == pytest.approx(score, abs=1e-12)


def test_bleu_of_a_sentence_refuses_no_n_grams():
    with pytest.raises(ValueError, match="k is 0"):
        bleu_k("a", "a", 0)
