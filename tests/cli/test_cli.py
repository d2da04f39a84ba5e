import dataclasses
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from command import made, refused
from dikkat import extras
from dikkat.cli import options
from dikkat.cli.app import _COMMANDS
from dikkat.cli.messages import complain
from dikkat.translation import Search, Settings, Tokenizer, TranslationModel, Translator
from dikkat.translation.data.corpus_source import CorpusSource
from dikkat.translation.formats.origin import Origin
from dikkat.translation.formats.recipe import read_value
from dikkat.translation.text.special_tokens import END
from processes import python


@pytest.fixture(scope="module")
def obeyed(tmp_path_factory):
    """A stranger's model, of whose words and origin a terminal would obey some letters."""
    english = Tokenizer.train(["go"], "word", min_freq=1, vocabulary_size=9)
    french = Tokenizer.train(["\x9b"] * 2, "word", min_freq=1, vocabulary_size=9)
    settings = Settings(embedding_size=2, hidden_size=2)
    tiny = TranslationModel(settings, len(english), len(french))
    with torch.no_grad():
        for parameter in tiny.parameters():
            parameter.zero_()
        tiny.output_bias[:END] = -99.0
        tiny.output_bias[END] = -1.0
    origin = Origin("today\n\x1b[2J", "1", corpus="\x1b]0;OWNED\x07", test="\x9b31m\u2028\x7f")
    folder = tmp_path_factory.mktemp("obeyed") / "model"
    Translator(tiny, settings, english, french, origin=origin).save(folder)
    return folder


@pytest.mark.parametrize(
    "command",
    [
        ["translate", "--max-length", 5, "Go"],
        ["translate", "--max-length", 5, "--n-best", 2, "Go"],
        ["translate", "--max-length", 5, "--json", "Go"],
        ["show", "Go \x1b[31m"],
        ["info"],
        ["info", "--json"],
    ],
)
def test_a_terminal_obeys_no_letter_of_a_model(run, obeyed, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(command[0], obeyed, *command[1:])
    assert (status, err.count("\n")) == (0, err.count("dikkat: sentence 1: the translation"))
    assert not [letter for letter in out + err if not letter.isprintable() and letter != "\n" and letter != "\t"]
    if "--json" in command:
        assert re.search(r"\\u00[19]b", out)
    else:
        assert re.search("⟨[19]B⟩", out)


def test_control_letters_in_a_message_are_shown(capsys):
    complain("a\x1b[2Jb\x9bc\nd")
    assert capsys.readouterr().err == "dikkat: a⟨1B⟩[2Jb⟨9B⟩c d\n"


def test_line_ends_of_old_macs_are_named(run, model, tmp_path):
    (tmp_path / "mac.tsv").write_bytes(b"Go.\tVa !\rI lost.\tJ'ai perdu.\r")
    said = "mac.tsv: got lines that end in CR, as on old Macs; expected LF or CR LF"
    refused(run("train", "--corpus", tmp_path / "mac.tsv", "-o", tmp_path / "m"), said)
    refused(run("translate", model, "--file", tmp_path / "mac.tsv"), said)
    (tmp_path / "one").write_bytes(b"Go.\r")  # the last line of a file from Windows, cut short
    assert run("translate", model, "--file", tmp_path / "one") == (0, "Va !\n", "")


def test_recipes_are_listed_with_their_purpose_and_place(run):
    out, _ = made(run("recipes"))
    assert re.search(r"^book +The textbook's experiment", out, re.MULTILINE)
    assert Path(out.splitlines()[-1].removeprefix("files: "), "book.toml").is_file()


HOW = f'is not installed. Run: pip install -e "{Path(__file__).parents[2]}[{{extra}}]"'


@pytest.mark.parametrize(
    ("command", "module", "extra"), [("train", "typer", "translation"), ("regress", "typer", "regression")]
)
def test_a_missing_library_says_what_to_install(command, module, extra):
    code = f"import sys; sys.modules[{module!r}] = None; from dikkat.cli import main; main()"
    done = python(code, command, status=2)
    assert done.stderr.splitlines()[-1] == f"dikkat: {module} {HOW.format(extra=extra)}"


LIBRARIES = {
    "from dikkat.translation import Translator": ("tokenizers", "translation"),
    "from dikkat.regression import NadarayaWatson": ("scipy", "regression"),
    "from dikkat.textbook import torch": ("tokenizers", "textbook"),
}


def test_the_libraries_too_say_what_to_install():
    code = (
        "import sys\n"
        "sys.modules['tokenizers'] = sys.modules['scipy'] = None\n"
        f"for statement in {list(LIBRARIES)}:\n"
        "    try:\n"
        "        exec(statement)\n"
        "    except ModuleNotFoundError as error:\n"
        "        print(error)\n"
    )
    assert python(code).stdout.splitlines() == [
        f"{module} {HOW.format(extra=extra)}" for module, extra in LIBRARIES.values()
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--nosuch"], "dikkat: unknown option: --nosuch. See dikkat train --help\n"),
        (["train", "--epoch", 3], "unknown option: --epoch; did you mean --epochs? See dikkat train --help"),
        (["train", "--corpsu", "x"], "unknown option: --corpsu; did you mean --corpus? See"),
        (["train", "--no-bidirectionl"], "did you mean --no-bidirectional? See"),
        (["trian"], "no such command 'trian'. Did you mean 'train'? See dikkat --help"),
        (["translate"], "missing argument 'model'. See dikkat translate --help"),
        (["translate", "m", "--batch-size", 0, "Go."], "'--batch-size'"),
        (
            ["translate", "m", "--max-length", 0, "Go."],
            "--max-length: got 0; expected a whole number of at least 1, or",
        ),
        (["train", "-o"], "option '-o' requires an argument. See dikkat train --help"),
    ],
)
def test_a_command_that_is_written_wrongly_is_one_line(run, arguments, message):
    refused(run(*arguments), message)


def test_help_needs_no_extra():
    absent = sorted(set().union(*extras._EXTRAS.values()) - {"typer"})
    code = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({absent}))\n"
        "from dikkat.cli import main\n"
        "for command in sys.argv[1:]:\n"
        "    sys.argv = ['dikkat', command, '--help']\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit as end:\n"
        "        print('status', command, end.code)\n"
    )
    pages = re.split(r"^status (\w+ \w+)\n", python(code, *_COMMANDS).stdout, flags=re.MULTILINE)
    assert pages[1::2] == [f"{command} 0" for command in _COMMANDS]
    for command, page in zip(_COMMANDS, pages[::2], strict=False):
        # The options of these commands follow from classes of the extra.
        if command in ("train", "translate", "evaluate", "show", "compare"):
            assert _COMMANDS[command] in " ".join(page.split())
            assert "is not installed. Run: pip install" in page
        else:
            assert page.startswith(f"Example:\n  dikkat {command}")


def test_help_does_not_wait_for_pytorch():
    code = (
        "import sys\n"
        "from dikkat.cli import main\n"
        "sys.argv[1:] = ['--help']\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout.splitlines()[-1]) == (0, "", "False")


@pytest.mark.parametrize(("chosen", "kept"), [(None, "passive"), ("active", "active")])
def test_threads_wait_passively_unless_the_user_says_otherwise(chosen, kept):
    """Before PyTorch is imported, since its threads read it then; those that wait busily take other work's cores."""
    code = (
        "import os, sys\n"
        "class Seeing:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'torch':\n"
        "            print(os.environ.get('OMP_WAIT_POLICY'), flush=True)\n"
        "            os._exit(0)\n"
        "sys.meta_path.insert(0, Seeing())\n"
        "from dikkat.cli import main\n"
        "main()\n"
    )
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment = inherited | ({} if chosen is None else {"OMP_WAIT_POLICY": chosen})
    command = [sys.executable, "-c", code, "report"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines()[-1] == kept


@pytest.mark.parametrize("library", ["typer", "dikkat.translation.text.tokenizer"])
def test_an_interrupt_while_libraries_are_imported_is_one_line(tmp_path, library):
    code = (
        "import sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {library!r}:\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from dikkat.cli import main\n"
        "main()\n"
    )
    done = python(code, "translate", tmp_path, "Go.", status=130)
    assert (done.stdout, done.stderr) == ("", "dikkat: interrupted\n")


@pytest.mark.parametrize("columns", [80, 40])
def test_help_begins_with_an_example_and_fits_the_terminal(run, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    for command in _COMMANDS:
        status, page, _ = run(command, "--help")
        assert status == 0
        assert page.startswith(f"Example:\n  dikkat {command}")
        quoted = re.compile(r" +'.+'")  # which cannot be broken
        assert max(len(line) for line in page.splitlines() if not quoted.match(line)) <= columns
        assert not re.search(r"<(bool|str|path|list|int|float)|[\\…│\x1b]", re.sub(r" \\\n", "", page), re.IGNORECASE)
        assert "(0.05)" not in page
    _, page, _ = run("--help")
    assert all(re.search(rf"^  {name}\b", page, re.MULTILINE) for name in _COMMANDS)
    assert max(map(len, page.splitlines())) <= columns
    assert run("--version") == (0, f"dikkat {version('dikkat')}\n", "")
    _, page, _ = run("train", "--help")
    page = " ".join(page.split())
    for text in ("--no-bidirectional ", "[default: 64]", "[default: none]", "--max-length", "scaled_dot,"):
        assert text in page


def test_dikkat_alone_shows_the_ways_in(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    status, page, error = run()
    assert (status, error) == (0, "")
    assert len(page.splitlines()) < 30
    assert max(map(len, page.splitlines())) <= 40
    typed = page.replace(" \\\n", "")
    for way in (
        "dikkat train --corpus",
        "dikkat export my-model --html",
        "dikkat regress",
        "with dikkat.record(model)",
    ):
        assert f"\n  {way}" in re.sub(" +", " ", typed).replace("\n ", "\n  ")


@pytest.mark.parametrize(("lines", "paged"), [(20, True), (2000, False)])
def test_help_that_a_terminal_is_too_low_for_is_paged(run, monkeypatch, lines, paged):
    pages = []
    monkeypatch.setenv("LINES", str(lines))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr("pydoc.pager", pages.append)
    _, shown, _ = run("train", "--help")
    assert ("--embedding-size" in shown) != paged
    assert len(pages) == paged


def test_a_terminal_is_told_the_next_step(run, model, tmp_path, monkeypatch):
    page = tmp_path / "a page.html"
    assert run("export", model, "--html", page)[2] == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run("export", model, "--html", page)[2] == f"next: open {page.as_uri()} in a browser\n"
    assert "%20" in page.as_uri()
    assert run("translate", model, "Go.")[2] == f"next: dikkat show {model} Go., to see its attention\n"


def test_every_setting_and_every_way_of_searching_has_the_option_of_its_name(run):
    for command, kind in (("train", Settings), ("translate", Search)):
        _, page, _ = run(command, "--help")
        for field in dataclasses.fields(kind):
            assert f"--{field.name.replace('_', '-')} " in page
    assert set(options._SEARCH_HELP) == {field.name for field in dataclasses.fields(Search)}


def test_the_help_of_a_corpus_shows_each_form_in_braces(run):
    for command in ("train", "evaluate"):
        _, page, _ = run(command, "--help")
        help_text = " ".join(page.split()).split("--corpus CORPUS")[1].split(" --")[0]
        forms = [CorpusSource.parse(read_value(form, "--corpus")) for form in re.findall(r"'(\{.+?\})'", help_text)]
        assert forms == [
            CorpusSource(tsv="pairs.csv", source="COLUMN", target="COLUMN"),
            CorpusSource(source="FILE", target="FILE"),
            CorpusSource(dataset="NAME", source="COLUMN", target="COLUMN"),
        ]


def test_the_shell_completes_options_and_values(run, monkeypatch):
    def completed(words):
        for name, value in (("COMPLETE", "complete_bash"), ("COMP_WORDS", words), ("COMP_CWORD", words.count(" "))):
            monkeypatch.setenv(name.replace("COMPLETE", "_DIKKAT_COMPLETE"), str(value))
        return run()[1].split()

    assert {"--num-layers", "--no-bidirectional"} <= set(completed("dikkat train --n"))
    assert completed("dikkat train --score b") == ["bilinear"]
    assert completed("dikkat regress --set kernel=ep") == ["kernel=epanechnikov"]


def test_a_path_is_named_as_it_is_though_it_has_an_options_name(run, model, tmp_path):
    folder = tmp_path / "batch_size" / "label_smoothing.d"
    folder.mkdir(parents=True)
    (folder / "hidden_size.tsv").write_text("no tab\n")
    refused(
        run("train", "--corpus", folder / "hidden_size.tsv", "-o", tmp_path / "m"), f"{folder}/hidden_size.tsv, line 1"
    )
    refused(
        run("evaluate", model, "--corpus", "phrasebook", "--report", tmp_path / "r", "--training", "{oops"),
        "--training: got",
    )
