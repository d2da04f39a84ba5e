"""The extras that messages name, and those that are installed."""

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

import dikkat
from dikkat import extras
from processes import python

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Distributions that are imported under another name.
IMPORTED = {"prometheus-client": "prometheus_client", "scikit-learn": "sklearn", "pillow": "PIL"}


def packages(extra: str) -> set[str]:
    """What an extra installs, by the names that are imported; dikkat's own extras unfolded."""
    found: set[str] = set()
    for requirement in PROJECT["optional-dependencies"][extra]:
        name = re.match(r"[\w-]+", requirement)[0]
        inner = re.search(r"\[([\w,-]+)\]", requirement)
        found |= set().union(*map(packages, inner[1].split(","))) if name == "dikkat" else {IMPORTED.get(name, name)}
    return found


@pytest.mark.parametrize("extra", extras._EXTRAS)
def test_a_message_names_an_extra_that_brings_the_package(extra):
    own = packages(extra)
    assert extras._EXTRAS[extra] <= own
    named = set().union(*extras._EXTRAS.values())
    assert own <= named, "a package of an extra that no message names"


def test_the_textbook_needs_no_package_of_the_translator_beyond_its_own_extra():
    absent = packages("translation") - packages("textbook")
    assert "sacrebleu" in absent
    hidden = f"import sys\nsys.modules.update(dict.fromkeys({sorted(absent)}))\n"
    python(f"{hidden}import dikkat.textbook.torch, dikkat.textbook.text\n")


@pytest.mark.parametrize(
    ("told", "source"),
    [
        (None, "dikkat"),
        ('{"url": "https://example.org/dikkat.whl"}', "dikkat"),
        ('{"url": "file:///some%20where/dikkat-1-py3-none-any.whl"}', "/some where/dikkat-1-py3-none-any.whl"),
    ],
)
def test_a_message_says_where_this_package_came_from(monkeypatch, told, source):
    monkeypatch.setattr(extras, "__file__", "/nowhere/lib/dikkat/extras.py")
    monkeypatch.setattr(extras, "distributions", lambda name: [SimpleNamespace(read_text=lambda _: told)])
    assert extras.missing("dask", "dask") == f'dask is not installed. Run: pip install "{source}[dask]"'


UNINSTALLED = """
import sys
from importlib.metadata import MetadataPathFinder

find = MetadataPathFinder.find_distributions
MetadataPathFinder.find_distributions = lambda context: () if context.name == "dikkat" else find(context)
from dikkat import cli, extras

extras.__file__ = "/nowhere/lib/dikkat/extras.py"  # with no pyproject.toml above it
print(extras.missing("dask", "dask"))
for arguments in ("--version", "report", sys.argv[1]):
    sys.argv = ["dikkat", *arguments.split()]
    try:
        cli.main()
    except SystemExit as stopped:
        assert not stopped.code, stopped
"""


def test_an_installation_is_no_condition(tmp_path):
    train = f'train --corpus {{name="phrasebook",first=9}} --validation none --output {tmp_path / "model"} --epochs 1'
    done = python(UNINSTALLED, f"{train} --hidden-size 8 --embedding-size 8")
    version = f"dikkat {dikkat.__version__}"
    told, shown, *lines = done.stdout.splitlines()
    assert (told, shown) == ('dask is not installed. Run: pip install "dikkat[dask]"', version)
    assert f"  {version}" in lines
    assert dikkat.__version__ in (tmp_path / "model" / "settings.json").read_text(encoding="utf-8")


def test_a_torch_that_is_too_old_is_said():
    (oldest,) = (each.partition(">=")[2] for each in PROJECT["dependencies"] if each.startswith("torch"))
    code = (
        "import torch, dikkat\n"
        "torch.__version__ = torch.torch_version.TorchVersion('2.5.1+cu124')\n"
        "try:\n    dikkat.attend\n"
        "except ImportError as error:\n    print(error)\n"
    )
    said = f"torch: got 2.5.1+cu124; expected {oldest} or later. Run: pip install --upgrade torch\n"
    assert python(code).stdout == said


WITHOUT_NUMBA = """
import sys, warnings
sys.modules["numba"] = None  # as where it is not installed, or refuses this NumPy
import torch, dikkat
from dikkat import scores
from dikkat.recurrent import GRUEncoder
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    x = torch.randn(2, 256, 64, requires_grad=True)
    score = scores.Additive(64, 64, 16)
    for _ in range(3):
        dikkat.attend(x, x, x, score=score).sum().backward()
        dikkat.attend(x[:, :1], x, x, score=scores.Dot(), valid_lens=torch.tensor([100, 256]))
        with torch.no_grad():
            came = dikkat.attend(x, x, x, score=score)
            dikkat.attend(x, x, x, score=scores.Dot(), valid_lens=torch.tensor([100, 256]))
            memory = dikkat.prepare(torch.randn(8, 2048, 64), torch.randn(8, 2048, 64), score=score)
            dikkat.attend_memory(torch.randn(8, 1, 64), memory)
            dikkat.inspect(x, x, score=score, top_k=3)
            GRUEncoder(3, 13)(torch.randn(2, 7, 3), torch.tensor([7, 5]))
compiled = torch.compile(lambda t: dikkat.attend(t, t, t, score=score), backend="aot_eager", fullgraph=True)
with torch.no_grad():
    torch.testing.assert_close(compiled(x), came)
torch.testing.assert_close(came, dikkat.attend(x, x, x, score=score, impl="reference"))
mine = [str(each.message) for each in told if "numba" in str(each.message)]
assert len(mine) == 1 and "'auto' uses slower implementations" in mine[0], mine
by_name = {each.name: each for each in dikkat.implementations(x, x, x, score=score)}
assert by_name["reference"].runs and by_name["chunked"].runs and not by_name["numba"].runs
assert "numba cannot be imported here" in by_name["numba"].reasons[0], by_name["numba"]
try:
    dikkat.attend(x, x, x, score=score, impl="numba")
except ValueError as error:
    assert "numba cannot be imported here" in str(error)
else:
    raise AssertionError
"""


def test_without_numba_the_others_serve() -> None:
    python(WITHOUT_NUMBA)
