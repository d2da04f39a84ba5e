import csv
import gzip
import sys
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dikkat.translation import AlignedCorpus, CorpusError, DatasetCorpus, PairCorpus, TsvCorpus, as_corpus, hold_out
from dikkat.translation.data.corpus import MAX_CHARACTERS, format_rows


def written(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def test_tsv_takes_two_columns_and_ignores_the_others(tmp_path):
    path = written(tmp_path / "pairs.tsv", "Go.\tVa !\tCC-BY\tmore\r\n\n I lost. \tJ'ai perdu.\n")
    assert list(TsvCorpus(path)) == [("Go.", "Va !"), ("I lost.", "J'ai perdu.")]


CELLS = [
    ("Go.", "1", "Va !"),
    ('She said "no", then left; so what?', "2", "Elle a dit « non », puis partit."),
    ('"Why?"', "3", '"Pourquoi ?"'),
    ("a\tb", "4", "c,d;e"),
    ("two\nlines", "5", "deux"),
]


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("pairs.tsv", {"delimiter": "\t"}),
        ("pairs.tsv", {"delimiter": "\t", "quoting": csv.QUOTE_ALL, "lineterminator": "\n"}),
        ("pairs.csv", {}),
        ("pairs.CSV", {"delimiter": ";"}),
        ("pairs.csv", {"delimiter": "\t", "quoting": csv.QUOTE_ALL}),
        ("pairs.csv.gz", {"delimiter": ";"}),
    ],
)
def test_tables_are_read_as_pythons_csv_writes_them(tmp_path, name, layout):
    with (gzip.open if name.endswith("gz") else open)(tmp_path / name, "wt", encoding="utf-8-sig", newline="") as file:
        csv.writer(file, **layout).writerows([(), ("English", "id", "German, old"), *CELLS])
    corpus = TsvCorpus(tmp_path / name, "German, old", "English")
    assert list(corpus) == [(third, first.replace("\n", " ")) for first, _, third in CELLS]
    assert corpus.languages == ("German, old", "English")
    with pytest.raises(CorpusError, match="line 2: column 'French' is missing; expected one of English, id, German"):
        list(TsvCorpus(tmp_path / name, "English", "French"))


@pytest.mark.filterwarnings("default:.*skipped the column names")
@pytest.mark.parametrize(
    "pairs",
    [
        [("Go.", "Va !"), ("He's calm.", "Il est calme.")],
        [('"Go!"', '"Va !"')],
        [('"Go!"', "Va !"), ("Go", 'say "no"'), ('"', '""'), ('"a', "b")],
        [("a", "b")] * 10_000 + [('"c"', '"d"')],
        [("a\tb", "c"), ("d", "\te\tf\x1b[31m"), ("\x0bg\x85", "h\u2028i\x0c")],
        [("source", "target")],
        [("Turkish", "Chinese"), ('"a"', "b")],
    ],
)
def test_written_rows_are_read_as_the_same_pairs(tmp_path, pairs):
    lines = [*format_rows(pairs)]
    read = list(TsvCorpus(written(tmp_path / "pairs.tsv", "".join(f"{line}\n" for line in lines))))
    assert read == [(source.strip(), target.strip()) for source, target in pairs]
    for line, pair in zip(lines[-len(pairs) :][-2:], pairs[-2:], strict=True):  # also a selection
        assert list(TsvCorpus(written(tmp_path / "pairs.tsv", f"x\ty\n{line}\n")))[1] == tuple(map(str.strip, pair))


def test_line_breaks_are_written_as_spaces():
    assert [*format_rows([("a\nb", "c\rd")])] == ["a b\tc d"]


def test_quotation_marks_of_speech_stay(tmp_path):
    path = written(tmp_path / "pairs.tsv", '"Go!"\t"Va !"\nHe said "no".\tIl dit "non".\n"Go," he said.\tVa.\n')
    assert list(TsvCorpus(path)) == [('"Go!"', '"Va !"'), ('He said "no".', 'Il dit "non".'), ('"Go," he said.', "Va.")]
    with pytest.raises(CorpusError, match=r"pairs\.csv, line 3: a quotation mark is not closed"):
        list(TsvCorpus(written(tmp_path / "pairs.csv", 'a,b\n"c,d\ne,f\n')))


@pytest.mark.parametrize(
    ("first", "skipped", "languages"),
    [
        ("English\tFrench", True, ("English", "French")),
        ("de-AT\ten", True, ("de-AT", "en")),
        ("source\ttarget", True, None),
        ("Source text\tde", True, None),
        ("go\tva", False, None),
        ("English\tAnglais", False, None),
        ("text\ttext", False, None),
    ],
)
def test_a_first_row_that_names_the_columns_is_skipped_and_that_is_said_once(tmp_path, first, skipped, languages):
    corpus = TsvCorpus(written(tmp_path / "pairs.tsv", f"{first}\nGo.\tVa !\n"))
    with warnings.catch_warnings(record=True, action="always") as said:
        pairs = [list(corpus), list(corpus)]
    assert pairs == [[*([] if skipped else [tuple(first.split("\t"))]), ("Go.", "Va !")]] * 2
    assert [str(each.message).partition(", line 1: ")[2] for each in said] == skipped * [
        f"skipped the column names {' and '.join(map(repr, first.split(chr(9))))}"
    ]
    assert corpus.languages == languages


def test_only_a_line_feed_ends_a_line_and_a_byte_order_mark_is_no_letter(tmp_path):
    path = written(tmp_path / "pairs.tsv", "\ufeffa\u2028b\x85c\tx\u2029y\n")
    assert list(TsvCorpus(path)) == [("a\u2028b\x85c", "x\u2029y")]


def test_a_byte_order_mark_between_joined_files_is_no_letter(tmp_path):
    path = written(tmp_path / "pairs.tsv", "\ufeffa\tx\n\ufeffb\t\ufeffy\n")
    assert list(TsvCorpus(path)) == [("a", "x"), ("b", "y")]


@pytest.mark.parametrize("compressed", [False, True])
def test_aligned_files_plain_and_compressed(tmp_path, compressed):
    pack = gzip.compress if compressed else bytes
    ending = ".gz" if compressed else ""
    source = written(tmp_path / f"a.en{ending}", pack(b"Go.\nI lost.\n"))
    target = written(tmp_path / f"a.fr{ending}", pack(b"Va !\nJ'ai perdu."))
    assert list(AlignedCorpus(source, target)) == [("Go.", "Va !"), ("I lost.", "J'ai perdu.")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "got no sentence pairs; expected at least one"),
        ("\n\n", "got no sentence pairs; expected at least one"),
        ("a\tb\nno tab here\n", r"pairs\.tsv, line 2: got 'no tab here', which has no tab"),
        ("a\tb\nc\t\n", r"line 2: the target sentence is empty"),
        ("a\tb\n \tc\n", r"line 2: the source sentence is empty"),
        ("a\tb\nc\td\n" + "e" * 100_000 + "\tf\n", r"pairs\.tsv, line 3: got more than 10,000 characters.*'eeee"),
        ("a\tb\n" + "é" * 100_000, r"line 2: got more than 10,000 characters"),
        (b"a\tb\nc\td\n\xe9t\xe9\te\n", r"pairs\.tsv, line 3: not UTF-8 \(byte 0xe9 at column 1\)"),
        (b"a\tb\n" + b"\x00\xff" * 100_000, r"line 2: got more than 10,000 characters"),
        ("a\tb\nc\td\ne\tf\0g\n", r"pairs\.tsv, line 3: got a NUL character; expected text: binary, or UTF-16\?"),
        ("a\tb\nc\td".encode("utf-16-le"), r"pairs\.tsv, line 1: got a NUL character"),
    ],
)
def test_bad_tsv_names_the_file_and_the_line(tmp_path, content, message):
    with pytest.raises(CorpusError, match=message):
        list(TsvCorpus(written(tmp_path / "pairs.tsv", content)))


def test_the_longest_allowed_line_is_allowed(tmp_path):
    half = "é" * (MAX_CHARACTERS // 2)
    assert list(TsvCorpus(written(tmp_path / "pairs.tsv", f"{half}\t{half[1:]}\n"))) == [(half, half[1:])]
    with pytest.raises(CorpusError, match="line 1: got more than"):
        list(TsvCorpus(written(tmp_path / "pairs.tsv", f"{half}\t{half}\n")))


def test_unequal_files_say_how_many_lines_each_has(tmp_path):
    source, target = written(tmp_path / "a.en", "a\nb\nc\n"), written(tmp_path / "a.fr", "x\ny\n")
    with pytest.raises(CorpusError, match=r"a\.en has 3 lines and .*a\.fr has 2"):
        list(AlignedCorpus(source, target))
    written(target, "x\n" * 7)
    with pytest.raises(CorpusError, match=r"a\.en has 3 lines and .*a\.fr has 7"):
        list(AlignedCorpus(source, target))
    with pytest.raises(CorpusError, match=r"a\.fr has 7 lines and .*a\.en has 3"):
        list(AlignedCorpus(target, source))


def test_an_empty_line_of_aligned_files_is_named(tmp_path):
    source, target = written(tmp_path / "a.en", "a\nb\n"), written(tmp_path / "a.fr", "x\n\n")
    with pytest.raises(CorpusError, match="line 2: the target sentence is empty"):
        list(AlignedCorpus(source, target))


@pytest.mark.parametrize("damage", ["cut", "rotten"])
def test_a_damaged_gz_is_named(tmp_path, damage):
    lines = "".join(f"{number} {number * 7919 % 1009}\n" for number in range(2000))
    packed = bytearray(gzip.compress(lines.encode()))
    if damage == "cut":
        del packed[len(packed) // 2 :]
    else:
        packed[len(packed) // 2 : len(packed) // 2 + 8] = b"\xff" * 8
    source, target = written(tmp_path / "a.en.gz", bytes(packed)), written(tmp_path / "a.fr", lines)
    with pytest.raises(CorpusError, match=r"a\.en\.gz, line \d+: the \.gz file is truncated or damaged"):
        list(AlignedCorpus(source, target))


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError):
        list(TsvCorpus(tmp_path / "none.tsv"))
    with pytest.raises(CorpusError, match="a folder"):
        list(TsvCorpus(tmp_path))


words = st.text("abC ", min_size=1, max_size=4).filter(str.strip)


@settings(deadline=None)
@given(st.lists(st.tuples(words, words), min_size=2, max_size=30), st.floats(0.01, 0.99), st.integers(0, 5))
def test_held_out_shares_no_source_sentence_with_training(pairs, share, seed):
    def key(source):
        return source.lower().split()

    if len({tuple(key(source)) for source, _ in pairs}) < 2:
        with pytest.raises(CorpusError, match="nothing to hold out"):
            hold_out(pairs, share, seed)
        return
    training, held = hold_out(pairs, share, seed)
    assert training
    assert held
    assert sorted(training + held) == sorted(set(pairs))
    assert not [source for source, _ in held if key(source) in [key(other) for other, _ in training]]
    assert hold_out(pairs, share, seed) == (training, held)


def test_held_out_is_the_share_that_was_asked_for():
    training, held = hold_out([(str(number), "x") for number in range(1000)], 0.1, seed=3)
    assert (len(training), len(held)) == (900, 100)
    assert hold_out([(str(number), "x") for number in range(1000)], 0.1, seed=4)[1] != held


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, float("nan")])
def test_a_share_that_leaves_one_side_empty_is_refused(share):
    with pytest.raises(CorpusError, match="share: got"):
        hold_out([("a", "b"), ("c", "d")], share)


def test_files_are_read_as_far_as_asked_for_and_anew_each_time(tmp_path):
    path = written(tmp_path / "pairs.tsv", "a\tb\nc\td\nno tab here\n")
    corpus = TsvCorpus(path)
    assert next(iter(corpus)) == next(iter(corpus)) == ("a", "b")  # the third line would be an error
    source, target = written(tmp_path / "a.en", "a\nb\n"), written(tmp_path / "a.fr", "x\n")
    assert next(iter(AlignedCorpus(source, target))) == ("a", "x")
    written(path, "e\tf\n")
    assert list(corpus) == [("e", "f")]


def test_an_aligned_fingerprint_has_both_files(tmp_path):
    source, target = written(tmp_path / "a.en", "a\n"), written(tmp_path / "a.fr", "x\n")
    first = AlignedCorpus(source, target).fingerprint()
    assert AlignedCorpus(target, source).fingerprint() != first
    assert AlignedCorpus(str(source), str(target)).fingerprint() == first
    written(target, "xyz\n")
    assert AlignedCorpus(source, target).fingerprint() != first


def test_what_is_a_corpus():
    pairs = [("a", "b")]
    corpus = PairCorpus(pairs)
    assert as_corpus(corpus) is corpus
    assert list(as_corpus(pairs)) == pairs
    for other in ("pairs.tsv", 7, iter(pairs)):
        with pytest.raises(TypeError, match=r"corpus: got .*; expected a list of"):
            as_corpus(other)


@pytest.mark.parametrize("row", [("a", "b", "c"), ("a",), ("a", None), (b"a", "b"), None, 7, "ab", {"a": 1, "b": 2}])
def test_a_row_that_is_no_pair_is_named_when_it_comes(row):
    corpus = iter(as_corpus([("a", "b"), ["c", "d"], row]))
    assert [tuple(next(corpus)) for _ in range(2)] == [("a", "b"), ("c", "d")]
    with pytest.raises(CorpusError, match=r"3 pairs in memory, row 3: got .*; expected \(source, target\), two texts"):
        next(corpus)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("c", ""), "row 2: the target sentence is empty. Remove the pair"),
        (("\ufeff ", "d"), "row 2: the source sentence is empty"),
        (("c", "d\0"), "row 2: got a NUL character"),
    ],
)
def test_a_list_is_checked_as_a_file_is(row, message):
    with pytest.raises(CorpusError, match=message):
        list(as_corpus([("a", "b"), row]))


def rows(folder, *lines, name="train.jsonl"):
    folder.mkdir(exist_ok=True)
    written(folder / name, "\n".join(lines) + "\n")
    return str(folder)


def test_a_data_set_from_a_folder(tmp_path):
    folder = rows(
        tmp_path / "data",
        '{"translation": {"en": " Go. ", "fr": "Va !"}, "id": 1}',
        '{"translation": {"en": "I lost.", "fr": "J\'ai perdu."}, "id": 2}',
    )
    corpus = DatasetCorpus(folder, source="translation.en", target="translation.fr")
    assert list(corpus) == list(corpus) == [("Go.", "Va !"), ("I lost.", "J'ai perdu.")]
    backwards = DatasetCorpus(folder, source="translation.fr", target="translation.en")
    assert next(iter(backwards)) == ("Va !", "Go.")
    assert corpus.fingerprint() != backwards.fingerprint()
    assert corpus.fingerprint() == DatasetCorpus(folder, source="translation.en", target="translation.fr").fingerprint()


def test_rows_of_a_data_set_without_text_are_counted(tmp_path):
    long = "x" * (MAX_CHARACTERS + 1)
    lines = ['{"en": "a", "fr": "b"}', '{"en": " ", "fr": "b"}', '{"en": "a", "fr": null}']
    folder = rows(tmp_path / "data", *lines, f'{{"en": "a", "fr": "{long}"}}')
    with pytest.warns(UserWarning, match=r"split train: 3 of 4 rows left out"):
        assert list(DatasetCorpus(folder, source="en", target="fr")) == [("a", "b")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": "de"}, r"column 'de' is missing; expected one of id, en, fr"),
        ({"target": "fr.text"}, r"column 'fr.text' is missing; expected one of id, en, fr"),
        ({"source": "id"}, r"row 1: column 'id': got int; expected text. The columns are id, en, fr"),
        ({"split": "test"}, r"split test: unknown split .*train"),
        ({"config": "en-fr"}, r"\(en-fr\), split train: cannot be opened .*default"),
    ],
)
def test_what_a_data_set_lacks_is_said(tmp_path, arguments, message):
    folder = rows(tmp_path / "data", '{"id": 1, "en": "a", "fr": "b"}')
    with pytest.raises(CorpusError, match=message):
        list(DatasetCorpus(folder, **({"source": "en", "target": "fr"} | arguments)))


def test_a_data_set_that_is_not_there(tmp_path):
    with pytest.raises(CorpusError, match=r"cannot be opened .*none.* Check its name.*give the path of a folder"):
        list(DatasetCorpus(str(tmp_path / "none"), source="en", target="fr"))


def test_without_the_library_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(CorpusError, match=r"pip install .*\[datasets\]"):
        list(DatasetCorpus("any/name", source="en", target="fr"))
