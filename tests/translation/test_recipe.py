import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kit
from dikkat.translation import CorpusError, InputError, Settings, SettingsError
from dikkat.translation.data.corpus_source import CorpusSource
from dikkat.translation.formats import recipe as recipes
from dikkat.translation.formats.recipe import Recipe, built_in, read_value
from dikkat.translation.training.suited import _CHOSEN

FOLDER = Path(__file__).parents[2] / "recipes"


@pytest.fixture
def written(tmp_path):
    def write(text, name="r.toml"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


def options_of(path):
    """The keys of a recipe with the comment above each, read without the code that is tested."""
    found, comment = {}, []
    for line in path.read_text(encoding="utf-8").splitlines():
        if match := re.match(r"#?(\w+) =", line):
            found[match[1]] = " ".join(comment)
        elif line.startswith("#"):
            comment.append(line.removeprefix("# "))
        else:
            comment = []
    return found


def test_every_setting_is_in_own_corpus_with_its_default_and_its_meaning(written):
    own = FOLDER / "own-corpus.toml"
    found = options_of(own)
    assert list(found) == ["corpus", "validation", "test", *Settings.options()]
    assert Recipe.load(own).values == {}
    _, _, follow = own.read_text(encoding="utf-8").partition("which follow from the corpus (the command prints them): ")
    assert set(re.findall(r"\w+", follow.partition(".\n")[0])) == _CHOSEN
    chosen = re.sub(r"^#(?=\w+ =)", "", own.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert Recipe.load(written(chosen)).values.keys() == Settings.options().keys()
    assert Recipe.load(written(chosen)).settings == Settings()
    for name, option in Settings.options().items():
        assert option.help in found[name]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_loads_and_every_option_has_a_comment(path):
    assert Recipe.load(path).corpus is not None
    assert Recipe.load(path.stem) == Recipe.load(path)
    assert all(options_of(path).values())
    assert path.read_text(encoding="utf-8").startswith("# ")


def test_the_recipes_that_come_with_dikkat():
    assert list(built_in()) == ["book", "multi30k-en-de", "multi30k-en-fr", "own-corpus", "phrasebook"]


def test_the_book_is_the_textbooks_experiment():
    book = Recipe.load("book")
    settings = book.settings
    assert str(book.corpus) == '{name = "tatoeba-fra-eng", part = "whole", first = 600}'
    assert book.validation == "none"
    assert (settings.num_layers, settings.hidden_size, settings.embedding_size) == (2, 32, 32)
    assert (settings.batch_size, settings.max_length, settings.learning_rate) == (64, 10, 0.005)
    assert (settings.dropout, settings.epochs, settings.gradient_clip, settings.min_freq) == (0.1, 250, 1, 1)
    assert (settings.bidirectional, settings.schedule, settings.warmup_steps) == (False, "constant", 0)


def test_values_are_those_of_toml(written):
    text = 'learning_rate = 1e-3\nmax_minutes = "none"\nbatch_tokens = 4_000\nseed = 0\nscore = "none"\ndropout = 0.5\n'
    settings = Recipe.load(written(text)).settings
    assert (settings.learning_rate, settings.max_minutes, settings.batch_tokens) == (1e-3, None, 4000)
    assert (settings.score, settings.dropout) == ("none", 0.5)
    plan = Recipe.load(written('[corpus]\nname = "phrasebook"\nfirst = 3\n[validation]\nshare = 0.5\n'))
    assert (plan.corpus, plan.validation) == (CorpusSource(name="phrasebook", first=3), 0.5)


@kit.each(
    ("text", "value"),
    [
        ("20", 20),
        ("1e-3", 0.001),
        (".5", 0.5),
        ("-1", -1),
        ("true", True),
        ("no", "no"),
        ("none", "none"),
        ("1:30", "1:30"),
        ("pairs.tsv", "pairs.tsv"),
        ("[a]", "[a]"),
        ('{tsv = "a b.tsv", first = 3}', {"tsv": "a b.tsv", "first": 3}),
        (" {share = 0.5}", {"share": 0.5}),
    ],
)
def test_an_option_has_a_recipes_value(text, value):
    found = read_value(text, "--it")
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "text", ["{", "{name: phrasebook}", "{name = phrasebook}", "{share = 0.1}\nseed = 3", "{a = 1} {"]
)
def test_braces_of_an_option_are_a_table(text):
    with pytest.raises(
        InputError, match=rf'^--it: got {re.escape(text)}; expected a table such as {{name = "phrasebook", first'
    ):
        read_value(text, "--it")


@kit.each(
    ("text", "message"),
    [
        ('corpus = "phrasebook"\nepoch = 3\n', "line 2: epoch: unknown key of a recipe; did you mean epochs?"),
        ("zebra = 3\n", "line 1: zebra: unknown key of a recipe; there are corpus, validation, test, tokenizer"),
        (
            "[zebra]\nseed = 3\n",
            "line 1: zebra: unknown key of a recipe; there are corpus, validation, test, tokenizer",
        ),
        ('\n\nepochs = "many"\n', "line 3: epochs: got 'many'; expected a whole number"),
        ("epochs =\n", ": Invalid value (at line 1, column 9); expected TOML, lines such as `epochs = 20`"),
        ("epochs: 20\n", ": Expected '=' after a key in a key/value pair (at line 1, column 7); expected TOML"),
        ("epochs = 1.5\n", "line 1: epochs: got 1.5; expected a whole number"),
        ('epochs = "3"\n', "line 1: epochs: got '3'; expected a whole number"),
        ("epochs = 2026-11-23\n", "line 1: epochs: got datetime.date(2026, 11, 23); expected a whole number"),
        ("learning_rate = inf\n", "line 1: learning_rate: got inf; expected a number greater than 0"),
        ("dropout = nan\n", "line 1: dropout: got nan; expected a number of at least 0"),
        ("bidirectional = yes\n", ": Invalid value (at line 1, column 17); expected TOML"),
        ('bidirectional = "yes"\n', "line 1: bidirectional: got 'yes'; expected true or false"),
        (
            "dropout = 0.1\n\ndropout = 0.2\nseed = 1",
            ": Cannot overwrite a value (at line 3, column 14); expected TOML, ",
        ),
        ('corpus = {tsv = "a", tsv = "b"}\n', ": Duplicate inline table key 'tsv' (at line 1, column 31)"),
        ('corpus = "phrasbook"\n', "line 1: corpus: phrasbook: unknown corpus; did you mean phrasebook?"),
        ('corpus = {tsv = "x", frist = 2}\n', "line 1: corpus: frist: unknown key of a corpus; did you mean first?"),
        ('corpus = {tsv = "x", first = 0}\n', "line 1: corpus: first: got 0; expected a whole number of at least 1"),
        ('[corpus]\ntsv = "x"\nfirst = 0\n', "line 1: corpus: first: got 0; expected a whole number of at least 1"),
        ('corpus = {source = "x"}\n', "line 1: corpus: target is missing from the corpus"),
        ('corpus = {target = "x"}\n', "line 1: corpus: source is missing from the corpus"),
        ("corpus = {tsv = 7}\n", "line 1: corpus: tsv: got 7; expected a text"),
        ('corpus = {part = "test"}\n', 'line 1: corpus: part: unknown key of a corpus; expected "NAME", "FILE",'),
        (
            'corpus = {name = "phrasebook", part = "tset"}\n',
            "line 1: corpus: part: got 'tset'; expected one of training",
        ),
        ('corpus = ["a", "b"]\n', "line 1: corpus: got ['a', 'b']; expected "),
        ("corpus = 5\n", "line 1: corpus: got 5; expected "),
        ("validation = {share = 1}\n", "line 1: validation: got {'share': 1}; expected only {share = NUMBER}, with a"),
        (
            "validation = {share = 0.1, first = 3}\n",
            "line 1: validation: got {'share': 0.1, 'first': 3}; expected only",
        ),
        ("- epochs\n", ": Expected '=' after a key in a key/value pair (at line 1, column 3); expected TOML"),
        ("epochs = {3\n", "(at line 1, column 12); expected TOML"),
        ("seed = 1\nhidden_size = 7\n", "line 2: hidden_size: got 7; expected an even number"),
        (f"epochs = {'9' * 5000}\n", "Exceeds the limit"),
        (f"corpus = {'[' * 3000}{']' * 3000}\n", "nested too deeply"),
        ('corpus = "a\\u0000.tsv"\n', "line 1: corpus: tsv: got 'a\\x00.tsv'; expected the name of a file"),
        ('corpus = {tsv = "~nobody-at-all/x"}\n', "tsv: got '~nobody-at-all/x'; expected the name of a file"),
    ],
)
def test_a_fault_is_named_with_its_file_and_line(written, text, message):
    path = written(text)
    with pytest.raises(InputError, match=re.escape(f"{path}") + ".*" + re.escape(message)):
        Recipe.load(path)


def test_a_name_that_no_recipe_can_have_is_said():
    with pytest.raises(InputError, match=r"corpus: tsv: got 'a\\udcff\.tsv'; expected the name of a file"):
        Recipe().with_values({"corpus": {"tsv": "a\udcff.tsv"}})


def test_a_recipe_that_is_none(tmp_path, written):
    with pytest.raises(InputError, match="got a folder; expected a recipe"):
        Recipe.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        Recipe.load(tmp_path / "nowhere.toml")
    with pytest.raises(InputError, match="nowhere: neither a file nor a built-in recipe; there are book, "):
        Recipe.load("nowhere")
    (tmp_path / "latin.toml").write_bytes(b"# \xe9t\xe9\n")
    with pytest.raises(InputError, match=r"latin.toml: got a file that is not UTF-8"):
        Recipe.load(tmp_path / "latin.toml")
    assert Recipe.load(written("")) == Recipe()


def test_files_begin_in_the_recipes_folder(written, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    corpus = Recipe.load(written('corpus = {source = "a.en", target = "/b.fr"}\n')).corpus
    assert (Path(corpus.source), corpus.target) == (tmp_path / "a.en", "/b.fr")
    assert Recipe().with_values({"corpus": {"tsv": "x"}}).corpus.tsv == "x"
    hub = Recipe.load(written('corpus = {dataset = "a/b", source = "en", target = "fr"}\n')).corpus
    assert (hub.dataset, hub.source, hub.target) == ("a/b", "en", "fr")


def test_a_file_without_a_dot_is_named_with_the_way_to_write_it(written, tmp_path):
    (tmp_path / "pairs").write_text("Go.\tVa !\n", encoding="utf-8")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=r"pairs: unknown corpus; there are .*; write \./pairs for the file$"):
        Recipe.load(written('corpus = "pairs"\n'))
    for other in ("pear", "folder", "x" * 5_000, "\ud800"):
        with pytest.raises(InputError, match=r"unknown corpus; [^;]*$"):
            CorpusSource.parse(other, tmp_path)
    assert list(Recipe.load(written('corpus = "./pairs"\n')).corpus.open("training")) == [("Go.", "Va !")]


def test_the_folder_of_a_data_set_begins_in_the_recipes_folder(written, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    recipe = Recipe.load(written('corpus = {dataset = "./data", source = "en", target = "fr"}\n'))
    assert Path(recipe.corpus.dataset) == tmp_path / "data"
    here = CorpusSource.parse({"dataset": "./data", "source": "en", "target": "fr"})
    assert Path(here.spelling()["dataset"]) == tmp_path / "elsewhere" / "data"
    assert CorpusSource.parse(here.spelling(), tmp_path).spelling() == here.spelling()
    made = CorpusSource(dataset="../data", source="en", target="fr").spelling()["dataset"]
    assert Path(made).is_absolute()
    assert Path(made).resolve() == tmp_path / "data"


def test_a_table_has_columns_and_languages_by_name(tmp_path):
    (tmp_path / "pairs.csv").write_text("French,id,English\nVa !,1,Go.\n", encoding="utf-8")
    found = CorpusSource.parse({"tsv": "pairs.csv", "source": "English", "target": "French"}, tmp_path)
    assert (list(found.open("training")), found.languages) == ([("Go.", "Va !")], ("English", "French"))
    assert CorpusSource.parse(found.spelling()) == found
    assert found.title() == '{tsv = "pairs.csv", source = "English", target = "French"}'
    assert CorpusSource.parse("multi30k-en-de").languages == ("en", "de")
    with pytest.raises(CorpusError, match="columns: got source='English' and target=None"):
        CorpusSource.parse({"tsv": "pairs.csv", "source": "English"}, tmp_path).open("training")


@pytest.mark.parametrize("form", [{"tsv": "~/a"}, {"source": "~/a", "target": "b"}, {"dataset": "~/a"}])
def test_a_tilde_is_the_home_folder(monkeypatch, form):
    monkeypatch.setenv("HOME", "/home-of-a-test")
    columns = {"source": "en", "target": "fr"} if "dataset" in form else {}
    found = CorpusSource.parse(form | columns)
    assert getattr(found, next(iter(form))) == "/home-of-a-test/a"


@given(
    dropout=st.floats(0, 0.99),
    rate=st.floats(1e-9, 9),
    tokens=st.none() | st.integers(1, 10**9),
    tied=st.sampled_from(["none", "two", "three"]),
    validation=st.sampled_from(
        [None, "none", 0.25, CorpusSource(name="phrasebook", part="test"), CorpusSource(tsv='/a "b" = \\ \x7f\t🦉')]
    ),
    test=st.sampled_from([None, CorpusSource(source="/no", target="/1e3", first=3)]),
)
def test_a_saved_recipe_is_the_same_when_it_is_loaded(tmp_path_factory, dropout, rate, tokens, tied, validation, test):
    values = {"dropout": dropout, "learning_rate": rate, "batch_tokens": tokens, "tied_embeddings": tied}
    recipe = Recipe(CorpusSource(dataset="a/b", source="no", target="1e3"), validation, test, values)
    path = tmp_path_factory.mktemp("saved") / "r.toml"
    recipe.save(path)
    assert Recipe.load(path) == recipe


def test_data_has_no_source_on_both_sides(written, tmp_path):
    def same(pairs):
        return {source.casefold() for source, _ in pairs}

    plan = Recipe.load(written('corpus = {name = "phrasebook", first = 90}\nvalidation = {share = 0.2}\n'))
    learnt, judged = plan.data()
    assert not same(learnt) & same(judged)
    assert len(same(judged)) == round(0.2 * (len(same(judged)) + len(same(learnt))))
    (tmp_path / "val.tsv").write_text("\n".join("\t".join(pair) for pair in learnt[:7]), encoding="utf-8")
    plan = plan.with_values({"validation": {"tsv": str(tmp_path / "val.tsv")}})
    with pytest.warns(UserWarning, match="of 90 pairs left out"):
        learnt, judged = plan.data()
    assert len(list(judged)) == 7
    assert not same(learnt) & same(judged)
    learnt, judged = plan.with_values({"validation": "none"}).data()
    assert (len(learnt), judged) == (90, None)
    with pytest.raises(InputError, match="corpus: got none"):
        Recipe().data()


@pytest.mark.parametrize("lines", [1, 10_000])
def test_a_corpus_of_one_sentence_is_learnt_without_validation_unless_that_is_asked_for(tmp_path, lines):
    (tmp_path / "one.tsv").write_text("Go.\tVa !\n" * lines, encoding="utf-8")
    plan = Recipe().with_values({"corpus": "one.tsv"}, tmp_path)
    with pytest.warns(UserWarning, match="trained without validation: the corpus has 1 different source sentence:"):
        learnt, judged = plan.data()
    assert (list(learnt), judged) == ([("Go.", "Va !")] * lines, None)
    with pytest.raises(CorpusError, match=r"1 different source sentence:.*--validation none"):
        plan.with_values({"validation": {"share": 0.05}}).data()
    learnt, judged = plan.with_values({"validation": "none"}).data()
    assert (len(list(learnt)), judged) == (lines, None)


def test_a_small_file_has_validation_pairs_and_the_same_ones_each_time(tmp_path):
    for number in range(20):
        path = tmp_path / f"{number}.tsv"
        path.write_text("".join(f"{number} {row}\tx {row}\n" for row in range(10)), encoding="utf-8")
        parts, again = (Recipe().with_values({"corpus": str(path)}).data() for _ in range(2))
        assert [len(list(part)) for part in parts] == [9, 1]
        assert [(list(part), part.fingerprint()) for part in parts] == [(list(p), p.fingerprint()) for p in again]
        assert all(part.fingerprint() and str(part).endswith(str(path)) for part in parts)


def test_no_source_is_in_both_validation_and_test(tmp_path):
    lines = {"corpus": ["a\tx", "b\tx", "c\tx", "d\tx"], "val": ["B\ty", "c\ty"], "test": ["a\tz", "b \tz"]}
    for name, content in lines.items():
        (tmp_path / f"{name}.tsv").write_text("\n".join(content), encoding="utf-8")
    files = {"corpus": "corpus.tsv", "validation": "val.tsv", "test": "test.tsv"}
    with pytest.warns(UserWarning, match="left out") as said:
        learnt, judged = map(list, Recipe().with_values(files, tmp_path).data())
    assert (learnt, judged) == ([("d", "x")], [("c", "y")])
    assert sum("val.tsv: 1 of 2 pairs left out" in str(each.message) for each in said) == 1


def test_the_parts_of_a_named_corpus(monkeypatch):
    class Parts:
        training, validation, test, whole = ([(part, "x")] for part in ("training", "validation", "test", "whole"))

    monkeypatch.setattr("dikkat.translation.data.corpus_source.named", lambda name: {"multi30k-en-fr": Parts}[name])
    plan = Recipe().with_values({"corpus": "multi30k-en-fr"})
    assert plan.data() == ([("training", "x")], [("validation", "x")])
    assert plan.corpus.open("test") == [("test", "x")]
    assert CorpusSource.parse({"name": "multi30k-en-fr", "part": "whole"}).open("test") == [("whole", "x")]


def test_what_a_recipe_is_for_is_its_first_line(written):
    assert recipes.purpose(written("# Small.\n# More.\n")) == "Small."


def test_the_recipe_of_a_file_is_checked_as_settings_are(written):
    with pytest.raises(SettingsError, match="expected 0 with score 'none'"):
        Recipe.load(written('score = "none"\nattention_dropout = 0.1\n'))


def test_a_saved_recipe_is_plain_toml(written):
    path = written('corpus = "phrasebook"\nepochs = 3\n')
    Recipe.load(path).save(path)
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    assert (values["corpus"], values["epochs"], values["test"]) == ({"name": "phrasebook"}, 3, "none")
    assert list(values)[:2] == ["corpus", "test"]
