import json
import unicodedata

import pytest
import regex
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from dikkat.translation import ModelFolderError, SettingsError, Tokenizer
from dikkat.translation.text import tokenizer as module
from dikkat.translation.text.special_tokens import BEGIN, END, PAD, UNKNOWN

FRENCH = [
    "Où est l'homme ?", "J'ai perdu, Marie !", "L'homme qu'il aime est à Paris ; il dort.",
    "Aujourd'hui Marie dit : « Va-t'en ! »", 'Elle lit "Le Monde" et part.',
    "Qu'est-ce que c'est ? C'est l'ami de Marie...", "Il a 3,5 kg (environ) de pommes, n'est-ce pas ?",
]  # fmt: skip


def word(texts=FRENCH, **arguments):
    return Tokenizer.train(texts, "word", **{"min_freq": 1, "vocabulary_size": 1000, **arguments})


def byte_pairs(texts=FRENCH, size=400):
    return Tokenizer.train(texts, "bpe", min_freq=1, vocabulary_size=size)


@pytest.fixture(scope="module")
def bpe():
    return byte_pairs()


@kit.each("text", FRENCH)
@kit.each("kind", ["word", "bpe"])
def test_decoding_gives_the_text_as_a_person_wrote_it(text, kind):
    tokenizer = word() if kind == "word" else byte_pairs()
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_words_are_split_as_they_should_be():
    pieces = word().encode("L'homme n'a qu'un vélo, he's Va-t'en aujourd'hui... 3,5 kg!").pieces
    elided = ["L'", "homme", "n'", "a", "qu'", "un", "vélo", ","]
    assert pieces == [*elided, "he's", "Va-t'en", "aujourd'hui", "...", "3,5", "kg", "!"]


def test_english_contractions_are_one_word():
    tokenizer = word(["I'm home.", "He's calm, isn't he?"])
    assert tokenizer.encode("i'm He’s isn't").ids == [
        tokenizer.encode(f"We {text}").ids[1] for text in ("I'm", "he's", "isn’t")
    ]
    assert UNKNOWN not in tokenizer.encode("i'm He’s isn't").ids


def test_case_and_typographic_apostrophes_do_not_matter():
    assert word().encode("MARIE J’AI").ids == word().encode("marie j'ai").ids


def test_spacing_follows_the_training_text():
    """French has a space before ? and !, English has none; neither is written into the code."""
    french, english = word(["Va ! Où ?"]), word(["Go! Where?"])
    assert french.decode(french.encode("va !").ids) == "Va !"
    assert english.decode(english.encode("go !").ids) == "Go!"


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_every_written_sentence_comes_back_letter_for_letter(kind):
    """Nothing about marks, spaces or capitals is written into the code: 306 sentences of every kind, each as it was."""
    inside = [
        "it ended on 2024-01-05", "see e.g. the map", "at 50 km/h", "write to Me@example.org", "and/or A&B Ltd.",
        "open C:\\Temp\\a_b.txt", "¿dónde está Ana?", "¡Hola!", "the 24/7 shop (No. 5) [1]", "iPhone x = y + z[0];",
        "3,5 kg – 10 000 €", "https://a.example/b?c=d&e=f#g", "5 p.m. On Monday", "U.S.A. and the US", "l’homme qu'il",
        "Où\u202f? Là\u00a0!", "50% of 1/2 £20", "{name}, %1$s and <0/>",
    ]  # fmt: skip
    around = [
        "{}.", "¿Why {}?", "«{}».", "« {} », he said.", "„{}“", "“{}.” Then {}", "– {}", "• {};", "* {}", "[{}].",
        "({})", "1. {}: {}", "'{}'", '"{}", "{}"', "{}… {}...", "Ana said: “{}”.", "if ({}) {{ go(); }}",
    ]  # fmt: skip
    texts = [frame.format(each, each) for frame in around for each in inside]
    tokenizer = word(texts, vocabulary_size=10_000) if kind == "word" else byte_pairs(texts)
    again = Tokenizer.from_json(tokenizer.to_json().encode(), "here")
    assert [again.decode(ids) for ids in again.numbers(texts)] == texts


def test_a_word_that_begins_a_sentence_is_the_one_within_it_and_a_name_is_not():
    tokenizer = word(["Il voit Marie. Elle dort. Marie part.", "On aime, elle dort, il part."])
    first = [tokenizer.encode(text).ids[0] for text in ("Elle dort.", "Marie dort.")]
    assert first == [tokenizer.encode(f"Il voit {text}.").ids[2] for text in ("elle", "Marie")]
    assert tokenizer.decode(tokenizer.encode("il dort. elle part").ids) == "Il dort. Elle part"  # not known otherwise


def test_marks_after_which_something_begins_are_learnt():
    english, shouted = word(["Note: he is. He goes: she"]), word(["Note: He is. he goes: She. we: Go"])
    assert english.decode(english.encode("He is: he. He").ids) == "He is: he. He"
    assert shouted.decode(shouted.encode("He is: He. he").ids) == "He is: He. he"
    assert (":" in shouted._capitals.marks, ":" in english._capitals.marks) == (True, False)


def test_a_form_that_was_never_met_is_read_as_its_kin():
    tokenizer = word(["Où ? Va !"])
    assert tokenizer.encode("OÙ? va!").ids == tokenizer.encode("Où ? Va !").ids


def test_min_freq_and_vocabulary_size_leave_the_most_frequent_words():
    texts = ["a a a b b c"]
    assert [len(word(texts, min_freq=frequency)) for frequency in (1, 2, 3, 4)] == [7, 6, 5, 4]
    small = word(texts, vocabulary_size=5)
    assert small.encode("a b c").ids == [4, UNKNOWN, UNKNOWN]


@pytest.mark.parametrize("make", [word, byte_pairs])
def test_special_tokens_have_their_places_and_are_not_read_from_text(make):
    tokenizer = make()
    inner = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    assert [inner.token_to_id(token) for token in ("<pad>", "<unk>", "<bos>", "<eos>")] == [PAD, UNKNOWN, BEGIN, END]
    again = Tokenizer.from_json(tokenizer.to_json().encode(), "here")
    for each in (tokenizer, again):
        ids = each.encode("a <eos> <pad> <bos> b").ids
        assert not {PAD, BEGIN, END} & set(ids)
    assert tokenizer.decode([BEGIN, *tokenizer.encode("il dort.").ids, END, PAD]) == tokenizer.decode(
        tokenizer.encode("il dort.").ids
    )


def test_an_unknown_word_can_be_replaced():
    tokenizer = word()
    ids = tokenizer.encode("il aime Zorglub.").ids
    assert ids[2] == UNKNOWN
    assert tokenizer.decode(ids, replace=[None, None, "Zorglub", None]) == "Il aime Zorglub."


@settings(max_examples=100, deadline=None)
@given(
    st.text(st.characters(exclude_characters="\x1c\x1d\x1e\x1f", codec="utf-8"), max_size=40)
)  # white space to Python only
def test_bpe_gives_any_text_back(bpe, text):
    ids = bpe.encode(text).ids
    blanks = regex.sub(r"\s{2,}|[\t-\r]", " ", unicodedata.normalize("NFC", text))
    assert bpe.decode(ids) == blanks.strip()
    assert len(bpe.encode(text).pieces) == len(ids)


def test_emoji_and_other_scripts():
    for tokenizer in (word(), byte_pairs()):
        encoded = tokenizer.encode("🙂👩‍👩‍👧 漢字 العربية")
        assert len(encoded.ids) == len(encoded.pieces) > 0
    assert set(word().encode("🙂👩").ids) == {UNKNOWN}
    assert byte_pairs().decode(byte_pairs().encode("👩‍👩‍👧 漢字").ids) == "👩‍👩‍👧 漢字"


@pytest.mark.parametrize("make", [word, byte_pairs])
def test_an_empty_sentence_has_no_tokens(make):
    assert make().encode("").ids == make().encode(" \t\n").ids == []
    assert make().decode([]) == ""


def test_labels_show_where_a_word_goes_on(bpe):
    labels = bpe.labels(bpe.encode("Marie dort").ids)  # a name, also in the training text
    assert "".join(labels).replace("·", "").replace("␣", "") == "Mariedort"
    assert not labels[0].startswith("·")


@pytest.mark.parametrize("make", [word, byte_pairs])
@pytest.mark.parametrize("text", FRENCH)
def test_labels_have_the_letters_of_the_text(make, text):
    labels = make().labels(make().encode(text).ids)
    letters = "".join(label for label in labels if "\ufffd" not in label).replace("·", "").replace("␣", "")
    assert labels[0][0] == text[0]
    assert [each for each in letters if each.isupper()] == [each for each in text if each.isupper()]


def test_a_full_stop_is_labelled_as_it_is(bpe):
    assert bpe.labels(bpe.encode("Marie dort.").ids)[-1] == "."


@pytest.mark.parametrize(
    ("text", "label"), [(" cat", "cat"), ("s", "·s"), ("9", "·9"), ("é", "·é"), (".", "."), (" ", "␣"), ("…", "…")]
)
def test_only_letters_and_digits_are_marked_as_going_on(text, label):
    assert module._byte_pair_label(text) == label


@pytest.mark.parametrize("make", [word, byte_pairs])
def test_saved_and_loaded_it_is_the_same(tmp_path, make):
    tokenizer = make()
    tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert again.kind == tokenizer.kind
    assert len(again) == len(tokenizer)
    for text in FRENCH:
        assert again.encode(text) == tokenizer.encode(text)
        assert again.decode(again.encode(text).ids) == text


def test_the_library_itself_reads_and_decodes_all_but_capitals():
    tokenizer = word()
    inner = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    assert inner.decode(tokenizer.encode("Où est l'homme ?").ids) == "où est l'homme ?"


@pytest.mark.parametrize("text", ["", "{}", "[1, 2]", json.dumps({"model": {"type": "WordLevel"}})])
def test_what_is_no_tokenizer_is_refused(tmp_path, text):
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ModelFolderError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_another_librarys_tokenizer_is_refused(tmp_path):
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "t.json"))
    with pytest.raises(ModelFolderError, match="first tokens"):
        Tokenizer.load(tmp_path / "t.json")


@pytest.mark.parametrize("pattern", ["(a+)+$", "(?<=[ ].*)[ ]"])
def test_no_pattern_but_dikkats_own_reaches_the_library(tmp_path, pattern):
    content = json.loads(word().to_json())
    step = {"type": "Replace", "pattern": {"Regex": pattern}, "content": "b"}
    content["decoder"]["decoders"].insert(2, step)
    (tmp_path / "t.json").write_text(json.dumps(content))
    with pytest.raises(ModelFolderError, match=r"t\.json: .*decoder: got"):
        Tokenizer.load(tmp_path / "t.json")


def test_a_switch_that_only_another_version_of_the_library_knows_may_be_off(tmp_path):
    content = json.loads(byte_pairs().to_json())
    del content["model"]["ignore_merges"]
    content["model"]["new_switch"] = False
    (tmp_path / "t.json").write_text(json.dumps(content))
    assert Tokenizer.load(tmp_path / "t.json").to_json() == byte_pairs().to_json()
    content["model"]["new_switch"] = True
    (tmp_path / "t.json").write_text(json.dumps(content))
    with pytest.raises(ModelFolderError, match=r"model: got .*; expected"):
        Tokenizer.load(tmp_path / "t.json")


def test_a_byte_pair_vocabulary_has_room_for_all_bytes():
    assert len(byte_pairs(size=260)) == 260
    with pytest.raises(SettingsError, match="vocabulary_size: got 259; expected at least 260"):
        byte_pairs(size=259)


def test_an_unknown_kind_and_number_are_refused():
    with pytest.raises(SettingsError, match=r"'char'.*word, bpe"):
        Tokenizer.train(FRENCH, "char", min_freq=1, vocabulary_size=10)
    with pytest.raises(ValueError, match="ids: got 1000; expected 0 to "):
        word().decode([1000])


def test_a_capital_before_a_combining_mark_comes_back():
    """With its case exchanged, the letter and the mark would become one letter without a way back: İ, ẖ, ẗ."""
    tokenizer = Tokenizer.train(["The man left."] * 2, "bpe", min_freq=1, vocabulary_size=400)
    for text in ("i\u0307s left", "H\u0331as left", "T\u0308wo left"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
