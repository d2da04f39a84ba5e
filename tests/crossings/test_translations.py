"""Every option of a translation × each kind of request: plain, with terms, in HTML, without splitting."""

import copy

import pytest
import torch

from dikkat.translation import InputError, Search, Translator
from translation.taught import one_thread, taught_model, untrained  # noqa: F401 - one_thread is used by all tests

LINES = ["She lost the man. The man is calm.", "Go.", ""]
TERMS = {"man": "ami"}
OPTIONS = {
    "defaults": {},
    "greedy": {"search": Search(beam=1)},
    "int8": {"search": Search(precision="int8")},
    "n_best": {"search": Search(beam=3, n_best=3)},
    "samples": {"search": Search(sample=True, n_best=2, seed=3, temperature=0.1)},
    "one by one": {"batch_size": 1},
}
REQUESTS = {
    "plain": {},
    "terms": {"terms": TERMS},
    "whole": {"split": False, "terms": TERMS},
    "html": {"markup": "html"},
    "html with terms": {"markup": "html", "terms": TERMS},
}


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    return Translator.load(taught_model(tmp_path_factory))


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("members", [1, 2])
def test_a_translation_has_its_terms_and_a_confidence(translator, option, request_name, members):
    options, asked = OPTIONS[option], REQUESTS[request_name]
    translating = translator if members == 1 else Translator.ensemble([translator] * members)
    if members > 1 and option == "int8":
        with pytest.raises(InputError, match="precision: got 'int8'"):
            list(translating.translate_n_best(LINES, **options, **asked))
        return
    lines = ["The <b>man</b> is calm.", *LINES[1:]] if "markup" in asked else LINES  # HTML is not split
    results = list(translating.translate_n_best(lines, **options, **asked))
    assert [group[0].source for group in results] == lines
    for group in results:
        assert all(0 < each.confidence <= 1 for each in group)
        assert all(each.weights.shape == (len(each.target_tokens), len(each.source_tokens)) for each in group)
        torch.testing.assert_close(group[0].weights.sum(1), torch.ones(len(group[0].weights)))
    assert [group[0].target for group in results[1:]] == ["Va !", ""]
    for each in results[0]:
        assert not each.unused_terms
        expected = 0 if "terms" not in asked else 1 if "markup" in asked else 2
        assert each.target.count("ami") == expected
        if request_name == "html with terms":
            assert "<b>ami</b>" in each.target


@pytest.mark.parametrize("option", OPTIONS)
def test_terms_need_attention(translator, option):
    blind = untrained(translator, score="none")
    with pytest.raises(InputError, match="terms: got terms, and a model without attention"):
        blind.translate(LINES, terms=TERMS, **OPTIONS[option])


CORRECTIONS = [("Go.", "Elle voit l'homme."), ("The man is calm.", "Marie a perdu !")]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("members", [1, 2])
def test_a_corrected_sentence_is_translated_as_corrected(translator, option, request_name, members):
    corrected = copy.deepcopy(translator)
    for pair in CORRECTIONS:
        corrected.correct(*pair)
    options = OPTIONS[option] | REQUESTS[request_name]
    translating = corrected if members == 1 else Translator.ensemble([corrected] * members)
    sources = [source for source, _ in CORRECTIONS]
    if members > 1 and option == "int8":
        with pytest.raises(InputError, match="precision: got 'int8'"):
            translating.translate(sources, **options)
        return
    translations = translating.translate(sources, **options)
    assert [translation.target for translation in translations] == [target for _, target in CORRECTIONS]
    assert all(bool(translation.sources) is (members == 1) for translation in translations)
