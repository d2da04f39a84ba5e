"""README and docs as a reader copies them: programs run, commands and links exist."""

import html
import re
import shlex
import shutil
import tomllib
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch

import kit

typer = pytest.importorskip("typer")
pd = pytest.importorskip("pandas")

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def blocks(page, language):
    """The blocks of a page, but for doctests and those marked as needing a network."""
    found = re.findall(rf"(<!-- skip: next -->\n)?```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return [text for skipped, text in found if not skipped and ">>>" not in text]


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    """The files that the pages name: models, pairs, sentences, a table."""
    from dikkat.translation import Settings, Tokenizer, TranslationModel, Translator
    from dikkat.translation.phrasebook import pairs

    folder = tmp_path_factory.mktemp("things")
    (folder / "demo").mkdir()
    some = pairs()[:300]
    sides = [Tokenizer.train(side, "word", min_freq=1, vocabulary_size=500) for side in zip(*some, strict=True)]
    settings = Settings(embedding_size=8, hidden_size=8)
    torch.manual_seed(0)
    model = TranslationModel(settings, *map(len, sides))
    for name in ("my-model", "model-1", "model-2", "demo/model"):
        Translator(model, settings, *sides).save(folder / name)
    (folder / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in some), encoding="utf-8")
    (folder / "letters.en").write_text("I lost.\nGo.\n", encoding="utf-8")
    random = np.random.default_rng(0)
    homes = pd.DataFrame({"area": random.uniform(30, 90, 40_000), "age": random.uniform(0, 90, 40_000)})
    homes["price"] = 3 * homes["area"] - homes["age"]
    (folder / "homes.d").mkdir()
    homes.to_parquet(folder / "homes.d" / "part-0.parquet")
    return folder


@pytest.fixture
def copied(things, tmp_path, monkeypatch):
    folder = tmp_path / "things"
    shutil.copytree(things, folder)
    monkeypatch.chdir(folder)
    # A process group of one.
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    yield folder
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings(
    "ignore:enable_nested_tensor is True:UserWarning", "ignore:'pin_memory' argument:UserWarning"
)
def test_programs_run_as_they_are_copied(name, copied):
    scope = {}
    if name == "docs/page.md":  # which begins where a translator is loaded
        scope["translator"] = pytest.importorskip("dikkat.translation").Translator.load("my-model")
    for text in blocks(ROOT / name, "python"):
        exec(compile(text, name, "exec"), scope)


@kit.each("language", ["tr", "zh"])
@kit.each("name", ["translation", "attention", "index"])
def test_translated_pages_have_the_sections_programs_and_numbers_of_the_english_page(name, language):
    english, translated = (
        _outline((ROOT / "docs" / folder / f"{page}.md").read_text(encoding="utf-8"))
        for folder, page in (("", name), (language, name.replace("translation", "translator")))
    )
    assert translated[0].startswith(english[0])  # the translator's page also has two shorter sections of other pages
    assert english[1] <= translated[1]
    assert english[2] <= translated[2]


def _outline(page):
    """The levels of the headings, the blocks of code without comments, and the numbers of the text."""
    page = re.sub(r"\A---\n.*?\n---\n", "", page, flags=re.DOTALL)
    code = {re.sub(r" *#.*", "", block) for block in re.findall(r"```\w+\n.*?```", page, re.DOTALL)}
    text = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    levels = "".join(str(len(marks)) for marks in re.findall(r"^(#+) ", text, re.MULTILINE))
    numbers = {re.sub("[.,]", "", number) for number in re.findall(r"(?<!\w)\d[\d.,]*", text)}
    return levels, code, numbers


@pytest.mark.parametrize("program", sorted((ROOT / "examples" / "gallery").glob("*.py")), ids=lambda path: path.stem)
def test_the_gallery_shows_the_picture_that_its_lines_make(program, copied):
    exec(compile(program.read_text(encoding="utf-8"), program.name, "exec"), {})
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert f"<!-- program: {program.stem} -->" in text
    if program.stem in {"links", "translator"}:  # pages, which the site makes of the demo's translator
        assert (copied / f"{program.stem}.html").read_text("utf-8").startswith("<!doctype html>")
        return
    made, shown = (folder / f"{program.stem}.png" for folder in (copied, ROOT / "docs" / "images" / "gallery"))
    assert f"(images/gallery/{shown.name})" in text
    if program.stem != "alignment":  # whose size is that of a trained model's sentence
        assert _size(made) == _size(shown)


@kit.each("name", NAMES)
def test_living_pages_have_their_programs(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    for page in re.findall(r'<iframe[^>]* src="(?:\.\./)*([\w/]+)\.html', text):
        assert (ROOT / "examples" / "gallery" / f"{page}.py").is_file()


def _size(picture):
    """Width and height that the head of a PNG file says."""
    return picture.read_bytes()[16:24]


def _commands(page):
    for text in blocks(page, "sh"):
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words and "=" in words[0]:
                del words[0]  # a variable of the environment
            if words:
                yield words


@kit.each("name", NAMES)
def test_commands_exist_with_their_options(name):
    from dikkat.cli.app import app

    ours = typer.main.get_command(app)
    context = typer.Context(ours)
    targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    others = "pip uv source torchrun srun split ls cat git cd npm npx"
    for words in _commands(ROOT / name):
        first = words[0]
        if first == "dikkat":
            _, command, _ = ours.resolve_command(context, words[1:2])  # an error, if there is none
            options = [*command.get_params(context), *ours.get_params(context)]
            known = {name for each in options for name in (*each.opts, *each.secondary_opts)}
            given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
            assert given <= known, f"{words}: {given - known}"
        elif first == "make":
            assert len(words) == 1 or words[1] in targets, words
        elif first.endswith("python") or first == "python3":
            program = words[1]
            assert program == "-m" or (ROOT / program).is_file(), words
        else:
            assert first in others.split(), words
        for named in re.findall(r"\.\[([\w,-]+)\]", " ".join(words)):
            assert set(named.split(",")) <= set(extras), words


@kit.each("name", [name for name in NAMES if not name.startswith("docs/api/")])
def test_links_and_pictures_are_there(name):
    page = ROOT / name
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        if path.startswith("notebooks/"):  # which the site takes from there
            there = ROOT / "examples" / path
        assert there.exists(), target
        if anchor and there.suffix == ".md":
            assert anchor in _anchors(there), target


def _anchors(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        plain = unicodedata.normalize("NFKD", html.unescape(heading)).encode("ascii", "ignore").decode()
        yield re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def test_the_readme_is_two_screens():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 125
