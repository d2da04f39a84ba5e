"""What the pages of the documentation are made of."""

import importlib.util
import re
from pathlib import Path

import pytest

griffe = pytest.importorskip("griffe")
pytest.importorskip("latex2mathml")

ROOT = Path(__file__).parents[2]


def module(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def documented(thing):
    if thing.is_alias:
        return
    if thing.docstring is not None:
        yield thing
    for member in thing.members.values():
        yield from documented(member)


def test_every_example_is_shown_as_code():
    """Griffe makes a box of text of a section that it does not know, and Markdown three quotations of each >>>."""
    extensions = griffe.load_extensions(module("docstrings").Examples())
    package = griffe.load("dikkat", search_paths=[ROOT / "src"], extensions=extensions)
    with_examples = [each for each in documented(package) if ">>>" in each.docstring.value]
    assert len(with_examples) > 100
    for each in with_examples:
        sections = each.docstring.parse("google")
        text = [part for kind, part in _examples(sections) if kind is griffe.DocstringSectionKind.examples]
        others = [
            str(section.value) for section in sections if section.kind is not griffe.DocstringSectionKind.examples
        ]
        assert text, each.path
        assert not [part for part in others if ">>>" in part], each.path


def _examples(sections):
    for section in sections:
        if section.kind is griffe.DocstringSectionKind.examples:
            yield from section.value


LAYERS = ("AdditiveAttention", "BilinearAttention", "DotProductAttention", "KernelAttention", "MultiHeadAttention")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Pages of the reference, by name: the text below each heading, by the heading's anchor."""
    config, build = (pytest.importorskip(f"mkdocs.{name}") for name in ("config", "commands.build"))
    pytest.importorskip("mkdocstrings_handlers.python")
    sources, site = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("site")
    names = ("attention", "scores-and-layers")
    for name in names:
        (sources / f"{name}.md").write_bytes((ROOT / "docs" / "api" / f"{name}.md").read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        build.build(config.load_config("mkdocs.yml", docs_dir=str(sources), site_dir=str(site), nav=None))
    return {name: dict(_below((site / name / "index.html").read_text("utf-8"))) for name in names}


def _below(html):
    for part in re.split(r'<h\d id="', html)[1:]:
        anchor, _, rest = part.partition('"')
        yield anchor, re.sub(r"<[^>]*>", "", rest)


def test_the_reference_says_how_a_layer_is_made_and_called(reference):
    page = reference["scores-and-layers"]
    for name in LAYERS:
        argument = "bandwidth" if name == "KernelAttention" else "dropout"
        assert re.search(rf"{name}\([^)]*{argument}:", page[f"dikkat.layers.{name}"]), name
        assert re.search(r"forward\([^)]*valid_lens:", page[f"dikkat.layers.{name}.forward"]), name


def test_the_reference_begins_with_attend_and_leaves_out_internals(reference):
    assert next(name for name in reference["attention"] if "." in name) == "dikkat.attention.attend"
    internal = r"\.(_\w+|(?!check_values)check_\w+|writes|extra_repr|get_config|from_config|compute_output_\w+)$"
    assert not [name for page in reference.values() for name in page if re.search(internal, name)]


@pytest.mark.parametrize(
    ("html", "wanted"),
    [
        ("<p>x_j and q'_h</p>", "<p><i>x</i><sub>j</sub> and <i>q'</i><sub>h</sub></p>"),
        ("a(s_{i−1}, (W_q q)_h)", "a(<i>s</i><sub>i−1</sub>, (<i>W</i><sub>q</sub> q)<sub>h</sub>)"),
        (
            '<code>x_j</code> <pre class="a_b">y_j</pre> <a id="d_q">',
            '<code>x_j</code> <pre class="a_b">y_j</pre> <a id="d_q">',
        ),
        ("valid_lens a_long x_1y2", "valid_lens a_long x_1y2"),
        (r'<span class="arithmatex">\(x_j\)</span>', None),
    ],
)
def test_subscripts_look_like_those_of_formulas(html, wanted):
    made = module("hooks").on_page_content(html)
    if wanted is None:
        assert made.startswith("<math")
        assert "<sub>" not in made
    else:
        assert made == wanted


def test_warnings_fail_the_build():
    """With --quiet, MkDocs drops its warnings before --strict could count them."""
    (command,) = re.findall(r"mkdocs build[^#\n]*", (ROOT / "Makefile").read_text())
    assert "--strict" in command
    assert "--quiet" not in command
