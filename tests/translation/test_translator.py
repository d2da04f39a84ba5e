import dataclasses
import re

import pytest
import torch

from dikkat.translation import (
    InputError,
    Search,
    Settings,
    Tokenizer,
    Translation,
    TranslationModel,
    Translator,
    beam_search,
)
from dikkat.translation.decoding import translator as translator_module
from processes import python

PAIRS = [("Where is the man?", "Où est l'homme ?"), ("She sees Marie.", "Elle voit Marie."), ("I lost.", "J'ai perdu.")]


def test_it_translates_what_it_learnt_as_a_person_writes_it(translator):
    found = translator.translate([source for source, _ in PAIRS])
    assert [translation.target for translation in found] == [target for _, target in PAIRS]
    assert [translation.source for translation in found] == [source for source, _ in PAIRS]
    assert found[0].source_tokens == ["Where", "is", "the", "man", "?"]
    assert found[0].target_tokens == ["Où", "est", "l'", "homme", "?"]
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


def test_one_sentence_has_one_translation(translator):
    (wanted,) = translator.translate(["Go."])
    found = translator.translate("Go.")
    assert (found.source, found.target, found.score) == ("Go.", wanted.target, wanted.score)


def test_a_notebook_shows_the_weights():
    weights = torch.tensor([[0.0, 0.996], [0.25, 0.75]])
    page = Translation("a <b>", "x", ["a", "<b>"], ["<x>", "y"], weights, 0.0)._repr_html_()
    assert re.findall(r"<th[^>]*>([^<]*)</th>", page) == ["", "a", "&lt;b&gt;", "&lt;x&gt;", "y"]
    assert re.findall(r"<td[^>]*>([^<]*)</td>", page) == ["0 %", "100 %", "25 %", "75 %"]
    assert re.findall(r"180, ([\d.]+)", page) == ["0.00", "1.00", "0.25", "0.75"]
    assert "a &lt;b&gt; → <b>x</b>" in page


def test_what_is_no_sentence_is_refused(translator):
    with pytest.raises(TypeError, match=r"sentences\[1\]: got int"):
        translator.translate(["Go.", 3])
    with pytest.raises(TypeError, match="one string"):
        translator.translate_lines("Go.")  # before anything is asked of it
    with pytest.raises(InputError, match=r"sentences\[1\]: got 100,000 characters"):
        translator.translate(["Go.", "a" * 100_000])
    with pytest.raises(InputError, match=r"sentences\[0\]: got .*; expected Unicode"):
        translator.translate(["\udcff"])
    with pytest.raises(InputError, match="batch_size: got 0"):
        translator.translate(["Go."], batch_size=0)
    with pytest.raises(InputError, match=r"batch_size: got 1\.5; expected a whole number"):
        translator.translate(["Go."], batch_size=1.5)


def test_a_stream_gives_what_a_list_gives_and_reads_no_further_than_it_must(translator):
    sentences = ["She lost the man.", "", "Go.", "where is the MAN ?", "Zorglub!"] * 8
    read = []

    def lines():
        for sentence in sentences:
            read.append(sentence)
            yield sentence

    stream = translator.translate_lines(lines(), batch_size=2)
    assert read == []
    found = [next(stream)]
    assert len(read) == 32  # 16 batches
    found += stream
    wanted = translator.translate(sentences)
    assert [each.source for each in found] == sentences
    assert [each.target for each in found] == [each.target for each in wanted]
    assert len(list(translator.translate_lines(iter(sentences[:32]), batch_size=2))) == 32
    read.clear()
    next(translator.translate_lines(lines(), batch_size=1))
    assert len(read) == 1  # who asks for one at a time is not made to wait


@pytest.mark.parametrize("bad", [OSError("the disk is gone"), 7, "a" * 100_000])
def test_what_was_read_before_an_error_is_translated(translator, bad):
    def lines():
        yield from ["Go.", "I lost."]
        if isinstance(bad, Exception):
            raise bad
        yield bad

    stream = translator.translate_lines(lines())
    assert [next(stream).target for _ in range(2)] == ["Va !", "J'ai perdu."]
    with pytest.raises((OSError, TypeError, InputError), match=r"the disk is gone|sentences\[2\]"):
        next(stream)


def test_a_search_without_a_penalty_has_that_of_the_translators(translator, tmp_path):
    def of(penalty):
        settings = dataclasses.replace(translator.settings, length_penalty=penalty)
        return dataclasses.replace(translator, settings=settings)

    def found(one, **own):
        sentences = ["She lost the man.", "Where is Marie?", "Go, man.", "The man is home. I'm calm."]
        search = Search(5, n_best=5, **own)
        return [[each.target for each in group] for group in one.translate_n_best(sentences, search=search)]

    of(3.0).save(tmp_path / "model")
    of(3.0).save(tmp_path / "int8", int8=True)
    loaded = Translator.load(tmp_path / "model")
    whole, small = found(translator, length_penalty=3), found(Translator.load(tmp_path / "int8"), length_penalty=3)
    assert found(of(3.0)) == found(loaded) == found(Translator.ensemble([of(1.0), of(5)])) == whole
    assert found(Translator.load(tmp_path / "int8")) == small
    plain = found(translator, length_penalty=1)
    assert found(of(None)) == found(Translator.ensemble([of(None), of(1.0)])) == plain != whole
    assert found(of(3.0), length_penalty=1) == plain
    samples = Search(n_best=2, sample=True)
    drawn = [[each.target for each in next(one.translate_n_best(["Go."], search=samples))] for one in (of(3.0), loaded)]
    assert drawn[0] == drawn[1]


def test_the_n_best_of_each_sentence(translator):
    sentences, search = ["She lost the man.", "", "Go."], Search(4, n_best=3, length_penalty=0)
    found = list(translator.translate_n_best(iter(sentences), search=search))
    assert [[each.source for each in group] for group in found] == [
        ["She lost the man."] * 3, [""], ["Go."] * 3,
    ]  # fmt: skip
    for group in found:
        assert [each.score for each in group] == sorted((each.score for each in group), reverse=True)
        assert len({tuple(each.target_tokens) for each in group}) == len(group)
    assert [group[0] for group in found][1].target == ""
    best = translator.translate(sentences, search=search)
    assert [group[0].target for group in found] == [each.target for each in best]
    ids = [translator.source_tokenizer.encode(sentence).ids for sentence in ("She lost the man.", "Go.")]
    for group, hypotheses in zip([found[0], found[2]], beam_search(translator.model, ids, search), strict=True):
        assert [each.score for each in group] == pytest.approx([each.score for each in hypotheses], abs=1e-4)


def test_sentences_of_similar_lengths_go_together_and_long_ones_few_at_once(translator, monkeypatch):
    batches = []

    def search(model, sources, search, *rest):
        batches.append([len(source) for source in sources])
        return beam_search(model, sources, search)

    monkeypatch.setattr(translator_module, "beam_search", search)
    lengths = [3, 450, 7, 1, 2, 130, 5, 160, 11, 120, 110, 6]
    found = translator.translate(["go " * length for length in lengths], batch_size=4, search=Search(1, max_length=1))
    assert batches == [[450], [160, 130], [120, 110, 11], [7, 6, 5, 3], [2, 1]]
    assert [len(each.source_tokens) for each in found] == lengths


def test_given_translations_are_scored(translator):
    pairs = [(source, target) for source, target in PAIRS] * 2 + [("", ""), ("Zorglub!", "Le Zorglub !"), ("Go.", "")]
    alone = [translator.score([pair])[0] for pair in pairs]
    assert alone == pytest.approx(translator.score(iter(pairs), batch_size=2), rel=1e-5)
    assert alone[6] == 0.0
    best = translator.translate([source for source, _ in PAIRS], search=Search(1))
    assert [each.target for each in best] == [target for _, target in PAIRS]
    assert alone[:3] == pytest.approx([each.score for each in best], rel=1e-4)
    assert translator.score([(PAIRS[0][0], PAIRS[1][1])])[0] < alone[0] - 1  # another sentence's
    assert translator.score([]) == []


@pytest.mark.parametrize(
    ("pairs", "error", "message"),
    [
        ([("Go.", "Va !"), ("", "Va !")], InputError, r"pairs\[1\]: got a translation of an empty sentence, 'Va !'"),
        ([("Go.", "a" * 100_000)], InputError, r"pairs\[0\]\[1\]: got 100,000 characters"),
        ([("\udcff", "Va !")], InputError, r"pairs\[0\]\[0\]: got .*; expected Unicode"),
        ([("Go.", 3)], TypeError, r"pairs\[0\]\[1\]: got int; expected a string"),
        ([("Go.",)], TypeError, r"pairs\[0\]: got \('Go.',\); expected a sentence and its translation"),
        (["ab"], TypeError, r"pairs\[0\]: got 'ab'; expected a sentence and its translation"),
    ],
)
def test_what_cannot_be_scored_is_refused(translator, pairs, error, message):
    with pytest.raises(error, match=message):
        translator.score(pairs)
    with pytest.raises(InputError, match="batch_size: got 0"):
        translator.score([], batch_size=0)


def another(translator, **changes):
    """An untrained one of other settings and the same tokenizers."""
    torch.manual_seed(0)
    settings = dataclasses.replace(translator.settings, **changes)
    sizes = len(translator.source_tokenizer), len(translator.target_tokenizer)
    return dataclasses.replace(translator, model=TranslationModel(settings, *sizes), settings=settings)


def test_translators_translate_together(translator):
    sentences = ["She lost the man.", "", "Go.", "Zorglub sees the man."]
    itself = Translator.ensemble([translator, translator])
    for one, other in zip(translator.translate(sentences), itself.translate(sentences), strict=True):
        assert (one.target, one.source_tokens, one.target_tokens) == (
            other.target, other.source_tokens, other.target_tokens,
        )  # fmt: skip
        assert other.score == pytest.approx(one.score, rel=1e-4)
        torch.testing.assert_close(one.weights, other.weights)
    stranger = another(translator, cell="lstm", score="dot", hidden_size=8)
    both = Translator.ensemble([translator, stranger])
    pairs = [("Go.", "Va !"), ("I lost.", "Il est calme.")]
    for together, one, other in zip(*(each.score(pairs) for each in (both, translator, stranger)), strict=True):
        assert (one + other) / 2 < together < 0  # a mean's logarithm is at least the mean of logarithms, at each token
    (found,) = both.translate(["Go."])
    assert both.score([("Go.", found.target)]) == pytest.approx([found.score], rel=1e-4)


def test_translators_of_other_words_do_not_translate_together(translator):
    words = Tokenizer.train(["go ."], "word", min_freq=1, vocabulary_size=99)
    for name in ("source_tokenizer", "target_tokenizer"):
        other = dataclasses.replace(translator, **{name: words})
        with pytest.raises(
            InputError, match=rf"translators\[1\]: got a {name} that differs from that of translators\[0\]"
        ):
            Translator.ensemble([translator, other])
    with pytest.raises(InputError, match="translators: got none"):
        Translator.ensemble([])
    with pytest.raises(TypeError, match=r"translators\[1\]: got Ensemble; expected a Translator of one model"):
        Translator.ensemble([translator, Translator.ensemble([translator])])


def test_without_attention_no_word_is_copied(translator):
    without = another(translator, score="none")
    with torch.no_grad():
        without.model.output_bias[1] = 100.0  # it would write nothing but <unk>
    (found,) = without.translate(["Zorglub sees Fantasio."])
    assert "Zorglub" not in found.target_tokens
    assert "<unk>" not in found.target_tokens
    torch.testing.assert_close(found.weights, torch.full((len(found.target_tokens), 4), 0.25))


def test_samples_are_translations_too(translator):
    search = Search(n_best=3, sample=True, temperature=2.0, seed=7)
    sentences = ["She lost the man.", "", "Zorglub sees the man."]
    found = list(translator.translate_n_best(sentences, search=search))
    assert [len(group) for group in found] == [3, 1, 3]
    alone = list(translator.translate_n_best(sentences[2:], search=search))
    assert [each.target for each in alone[0]] == [each.target for each in found[2]]
    assert len({each.target for each in found[2]}) > 1


def test_translating_imports_nothing_that_scores_or_draws(translator, tmp_path):
    translator.save(tmp_path / "model")
    code = (
        "import sys; from dikkat.cli import main; sys.argv = ['dikkat', 'translate', sys.argv[1], 'I lost.']\n"
        "try: main()\n"
        "except SystemExit as stop: assert not stop.code\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(loaded & {'sacrebleu', 'matplotlib', 'sympy', 'pyarrow', 'httpx'}))"
    )
    assert python(code, tmp_path / "model").stdout.splitlines() == ["J'ai perdu.", "[]"]
