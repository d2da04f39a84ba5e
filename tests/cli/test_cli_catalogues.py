"""Files of translation programs on the command line."""

import gettext
import subprocess

import pytest

from cli.conftest import QUICK
from command import made, refused
from dikkat.translation import Translator
from translation.taught import PAIRS

HEADER = (
    'msgid ""\nmsgstr ""\n"Language: fr\\n"\n"MIME-Version: 1.0\\n"\n"Content-Type: text/plain; charset=UTF-8\\n"\n'
    '"Content-Transfer-Encoding: 8bit\\n"\n"Plural-Forms: nplurals=2; plural=(n > 1);\\n"\n'
)
PO = HEADER + "".join(f'\nmsgid "{source}"\nmsgstr "{target}"\n' for source, target in PAIRS[2:])
MISSING = '\nmsgid "Go.\\n"\n"  I lost.\\n"\nmsgstr ""\n\n#, fuzzy\nmsgid "I lost."\nmsgstr "Va !"\n'


@pytest.fixture
def messages(tmp_path):
    path = tmp_path / "messages.po"
    path.write_text(PO + MISSING, encoding="utf-8")
    return path


def test_a_catalogue_is_filled_in(run, model, messages, tmp_path):
    out, err = made(run("translate", model, "--file", messages, "--output", tmp_path / "filled.po"))
    assert out == ""
    assert err == (
        f"{tmp_path / 'filled.po'}: 1 texts translated, 6 were already translated, 1 are fuzzy and stay "
        "(--replace-fuzzy translates them)\n"
    )
    filled = (tmp_path / "filled.po").read_text(encoding="utf-8")
    entry = '#, fuzzy\nmsgid ""\n"Go.\\n"\n"  I lost.\\n"\nmsgstr ""\n"Va !\\n"\n"  J\'ai perdu.\\n"\n'
    assert filled == messages.read_text(encoding="utf-8").replace('msgid "Go.\\n"\n"  I lost.\\n"\nmsgstr ""\n', entry)
    made(run("translate", model, "--file", messages, "-o", messages, "--replace-fuzzy"))
    subprocess.run(["msgfmt", "--check", "--use-fuzzy", "-o", tmp_path / "a.mo", messages], check=True)
    with (tmp_path / "a.mo").open("rb") as file:
        texts = gettext.GNUTranslations(file)
    assert [texts.gettext(source) for source in ("I lost.", "Go.\n  I lost.\n")] == [
        "J'ai perdu.", "Va !\n  J'ai perdu.\n",
    ]  # fmt: skip


def test_warnings_and_errors_name_lines_of_the_catalogue(run, model, messages, tmp_path):
    messages.write_text(f'{PO}\nmsgid "Go zebra."\nmsgstr ""\n', encoding="utf-8")
    line = PO.count("\n") + 2
    _, err = made(run("translate", model, "--file", messages, "--output", tmp_path / "a.po"))
    assert f"{messages}, line {line}: unknown words: zebra" in err
    messages.write_text(f'{PO}\nmsgid "{"a" * 10_001}"\nmsgstr ""\n', encoding="utf-8")
    refused(run("translate", model, "--file", messages, "-o", tmp_path / "b.po"), f"{messages}, line {line}: ")
    assert not (tmp_path / "b.po").exists()


def test_tags_of_xliff_move_with_their_words(run, model, tmp_path):
    path = tmp_path / "a.xlf"
    source = '<source>She sees <g id="1">Marie</g>.</source>'
    text = (
        '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file source-language="en" '
        f'target-language="fr"><body><trans-unit id="1">{source}TARGET</trans-unit></body></file></xliff>'
    )
    path.write_text(text.replace("TARGET", ""), encoding="utf-8")
    made(run("translate", model, "--file", path, "--output", path))
    target = '<target state="needs-review-translation">Elle voit <g id="1">Marie</g>.</target>'
    assert f"{source}{target}" in path.read_text(encoding="utf-8")


def test_elements_over_two_lines_move_with_their_words(run, model, messages):
    messages.write_text(f'{PO}\nmsgid "She sees <b>Marie\\n</b>."\nmsgstr ""\n', encoding="utf-8")
    made(run("translate", model, "--file", messages, "-o", messages, "--markup", "html"))
    assert 'msgstr "Elle voit <b>Marie</b>' in messages.read_text(encoding="utf-8").replace(" </b>", "</b>")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--file", "messages.po"], "--output: missing; expected the name of the filled-in file for messages.po"),
        (["--file", "messages.po", "-o", "a.po", "--json"], "--json: got it with messages.po"),
        (["--file", "messages.po", "-o", "a.po", "--n-best", 2], "--n-best: got 2 for messages.po"),
        (["--file", "memory.tmx", "-o", "a.tmx"], "memory.tmx: got a TMX file; expected a PO or XLIFF file"),
        (["--file", "letters.txt", "-o", "a.txt"], "--output: got it with letters.txt; expected a PO or XLIFF --file"),
        (["Go.", "--replace-fuzzy"], "--replace-fuzzy: got it; expected a PO or XLIFF --file"),
    ],
)
def test_options_that_do_not_fit_raise(run, model, messages, monkeypatch, arguments, message):
    monkeypatch.chdir(messages.parent)
    refused(run("translate", model, *arguments), message)
    assert [path.name for path in messages.parent.iterdir()] == ["messages.po"]


def test_a_catalogue_is_a_corpus(run, model, messages, tmp_path):
    folder = tmp_path / "new-model"
    made(run("train", "--corpus", messages, "--validation", "none", "-o", folder, *QUICK))
    assert Translator.load(folder).origin.pairs == 6
    out, _ = made(run("evaluate", model, "--corpus", messages, "--json"))
    assert '"sentences": 6' in out
    refused(run("train", messages, "-o", tmp_path / "other"), "got sentence pairs; expected a recipe")


def test_a_memory_of_three_languages_needs_two_names(run, tmp_path):
    memory = tmp_path / "memory.tmx"
    units = "".join(
        f'<tu><tuv xml:lang="en"><seg>{source}</seg></tuv><tuv xml:lang="fr"><seg>{target}</seg></tuv>'
        f'<tuv xml:lang="de"><seg>nichts</seg></tuv></tu>'
        for source, target in PAIRS
    )
    memory.write_text(f"<tmx><header/><body>{units}</body></tmx>", encoding="utf-8")
    train = ["train", "--validation", "none", "-o", tmp_path / "model", *QUICK]
    refused(run(*train, "--corpus", memory), "got 3 languages: de, en, fr; expected two. Choose them:")
    made(run(*train, "--corpus", f'{{tsv = "{memory}", source = "fr", target = "en"}}'))
    assert Translator.load(tmp_path / "model").origin.languages == ("fr", "en")
