import importlib.util
import json
import math
import os
import re
import subprocess
import sys

import pytest
import sacrebleu

import kit
from dikkat.translation import InputError, bleu_k, evaluate, evaluate_lowercased_tokens
from dikkat.translation.decoding.evaluation import evaluate_by_length, significance

HYPOTHESES = ["Il est calme, je crois.", "Le chat dort sur le lit.", "Va !"]
REFERENCES = ["Il est très calme, je crois.", "Le chat dort sur le grand lit.", "Va !"]


def test_scores_are_sacrebleus_own():
    found = evaluate(HYPOTHESES, REFERENCES)
    bleu, chrf = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]), sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES])
    assert (found.bleu, found.chrf) == (bleu.score, chrf.score)
    assert found.bleu_line == str(bleu)
    assert found.bleu_line.startswith("BLEU = ")
    assert found.chrf_line == str(chrf)


@pytest.mark.parametrize(
    ("source", "hypothesis", "reference", "exact", "lost", "invented"),
    [
        ("At 14:05.", "À 14h05.", "À 14h05.", 1, 0, 0),
        ("At 14:05.", "À 9h30 14:05.", "À 14h05.", 0, 0, 2),  # 9 and 30
        ("1\u00a0000 000 apples", "des 000 000 pommes", "1 000 000 pommes", 0, 1, 0),  # 1
        ("12 dogs", "douze chiens", "douze  chiens", 1, 0, 0),  # the reference has no 12
        ("12 dogs", "12 chiens", "douze chiens", 0, 0, 0),  # the source has it
        ("7 and 7", "7", "7 et 7", 0, 1, 0),
        ("7", "7 et 7", "7", 0, 0, 1),
        ("2024-01-05", "05/01/2024", "05/01/2024", 1, 0, 0),
        ("cafe\u0301 ٣", "cafe\u0301 ٣", " caf\u00e9\t٣", 1, 0, 0),
        ("a", "l'ami", "l’ami", 0, 0, 0),
        ("a 5", "", "b 5", 0, 1, 0),
    ],
)
def test_exact_matches_and_wrong_numbers_by_hand(source, hypothesis, reference, exact, lost, invented):
    scores = evaluate([hypothesis, "x 1"], [reference, "x 1"], [source, "x 1"])
    assert (scores.exact_matches, scores.lost_numbers, scores.invented_numbers) == (exact + 1, lost, invented)
    assert evaluate([hypothesis], [reference]).lost_numbers is None


def test_signatures_say_how():
    found = evaluate(HYPOTHESES, REFERENCES)
    assert found.bleu_signature == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    assert found.chrf_signature == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{sacrebleu.__version__}"


def test_bleu_is_cased():
    assert evaluate(["il est calme ici ."], ["Il est calme ici ."]).bleu < 100


@pytest.mark.parametrize(
    ("function", "corpora", "message"),
    [
        (evaluate, ([], []), "hypotheses and references: got 0 and 0"),
        (evaluate, (["a"], ["a", "b"]), "hypotheses and references: got 1 and 2"),
        (evaluate_by_length, (["a"], ["b", "c"], ["b", "c"]), "sources, hypotheses and references: got 1, 2 and 2"),
        (significance, (["a"], ["b", "c"], ["b", "c"]), "got 1, 2 and 2 texts; expected as many of each"),
    ],
)
def test_corpora_that_do_not_fit_are_refused(function, corpora, message):
    with pytest.raises(InputError, match=message):
        function(*corpora)


def test_bleu_of_lowercased_tokens_by_hand():
    """Of le chat n&apos; est là . and … ici .: 5 of 6, 3 of 5, 2 of 4 and 1 of 3 runs of words are the same."""
    found = evaluate_lowercased_tokens(["Le CHAT n'est là."], ["le chat n'est ici."], "fr")
    assert found.bleu == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert found.bleu_line.endswith("hyp_len = 6 ref_len = 6)")
    assert re.fullmatch(r"lower case, sacremoses [\d.]+ fr\|nrefs:1\|case:mixed\|.*tok:none.*", found.bleu_signature)
    with pytest.raises(InputError, match=r"language: got 'xx'; expected one of as, .*, fr,"):
        evaluate_lowercased_tokens(["a"], ["a"], "xx")


@kit.each(
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
    with pytest.raises(ValueError, match="k: got 0"):
        bleu_k("a", "a", 0)


def test_scores_by_length_are_those_of_each_bucket():
    sources = ["a " * words for words in (1, 10, 11, 20, 21, 0)]
    references = ["va !", "il est là .", "je suis ici .", "non , merci .", "elle dort .", "oui ."]
    hypotheses = ["va !", "il est ici .", "je suis là .", "non , merci .", "elle rit .", "oui ."]
    found = evaluate_by_length(sources, hypotheses, references)
    wanted = [(1, 10, [0, 1, 5]), (11, 20, [2, 3]), (21, 30, [4])]
    assert [(each.least, each.most, each.sentences) for each in found] == [
        (least, most, len(members)) for least, most, members in wanted
    ]
    for each, (_, _, members) in zip(found, wanted, strict=True):
        chosen = [hypotheses[index] for index in members], [[references[index] for index in members]]
        assert (each.bleu or 0.0) == sacrebleu.corpus_bleu(*chosen).score  # None where no reference has four words
        assert each.chrf == sacrebleu.corpus_chrf(*chosen).score


def test_letters_are_words_where_there_are_no_spaces():
    sources = ["老人坐在公园的长椅子上。", "老人坐在公园的长椅上。", "ผมไม่รู้จักคุณครับ", "well-known: 3.14"]
    found = evaluate_by_length(sources, ["a"] * 4, ["a"] * 4)
    assert [(each.least, each.sentences) for each in found] == [(1, 2), (11, 2)]


def test_the_difference_of_two_systems_is_what_sacrebleus_own_program_says(tmp_path):
    references = [f"the cat number {number} sat on mat {number % 7} today ." for number in range(60)]
    better = [line if number % 5 else line.replace("cat", "dog") for number, line in enumerate(references)]
    worse = [line if number % 2 else line.replace("sat on", "lay under") for number, line in enumerate(references)]
    for name, content in (("ref", references), ("better", better), ("worse", worse)):
        (tmp_path / name).write_text("\n".join(content) + "\n")
    command = [sys.executable, "-m", "sacrebleu", tmp_path / "ref", "-i", tmp_path / "worse", tmp_path / "better"]
    options = ["--paired-bs", "-m", "bleu", "chrf", "-f", "text"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True, env=_without_seed())
    # A row with "score (mean ± interval)" of each metric, and one with "(p = value)".
    said = re.findall(r"(\d+\.\d) \(\d+\.\d ± (\d+\.\d)\)", done.stdout)
    p_values = re.findall(r"p = (\d\.\d{4})", done.stdout)
    found = significance(better, worse, references)
    assert [each.metric for each in found] == ["BLEU", "chrF2"]
    assert [(f"{each.other_score:.1f}", f"{each.other_interval:.1f}") for each in found] == said[:2]
    assert [(f"{each.score:.1f}", f"{each.interval:.1f}") for each in found] == said[2:]
    assert [f"{each.p_value:.4f}" for each in found] == p_values
    assert all(each.signature in done.stdout for each in found)
    json.dumps([vars(each) for each in found])


def test_equal_systems_do_not_differ():
    for each in significance(HYPOTHESES, HYPOTHESES, REFERENCES):
        assert each.p_value == 1
        assert (each.score, each.interval) == (each.other_score, each.other_interval)


def _without_seed():
    return {name: value for name, value in os.environ.items() if name != "SACREBLEU_SEED"}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("男人在吃饭。", "zh"),
        ("猫はソファで寝ています。", "char"),
        ("แมวกำลังนอน", "char"),
        ("แมวกำลังนอน ア", "char"),
        ("L'homme.", "13a"),
        ("고양이가 잔다", "13a"),
    ],
)
def test_words_are_those_of_sacrebleus_tokenizer_for_the_script(text, name):
    if name == "char" and "は" in text and importlib.util.find_spec("MeCab"):
        name = "ja-mecab"
    scores = evaluate([text], [text])
    assert f"tok:{name}" in scores.bleu_signature
    assert scores.bleu == (pytest.approx(100) if name != "13a" else None)


def test_where_no_translation_has_four_words_bleu_says_nothing():
    assert evaluate(["Va !"], ["Va !"]).bleu is None
    assert evaluate([""], ["Elle dort à Paris."]).bleu == 0
    assert evaluate_by_length(["Go."], ["Va !"], ["Va !"])[0].bleu is None
