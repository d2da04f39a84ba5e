import pytest

from command import command_line
from translation.taught import PAIRS, one_thread, taught_model  # noqa: F401 - one_thread is used by all tests

QUICK = ["--epochs", 1, "--hidden-size", 8, "--embedding-size", 8, "--min-freq", 1]
FEW, OTHERS = '{name = "phrasebook", first = 8}', '{name = "phrasebook", part = "test", first = 5}'
BOOK = ["--corpus", FEW, "--validation", OTHERS]


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return taught_model(tmp_path_factory)


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line; returns (status, standard output, standard error)."""
    return command_line(monkeypatch, capsys)


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\tCC-BY\n" for source, target in PAIRS), encoding="utf-8")
    return path
