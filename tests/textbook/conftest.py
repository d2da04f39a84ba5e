import matplotlib
import pytest

from dikkat.textbook import text
from dikkat.translation import CorpusError

matplotlib.use("Agg")


@pytest.fixture
def phrasebook(monkeypatch):
    """The corpus of a machine without a network and without a cache."""

    def absent(name):
        raise CorpusError(f"{name}: cannot be fetched")

    monkeypatch.setattr(text, "named", absent)
    text.raw_corpus.cache_clear()
    yield
    text.raw_corpus.cache_clear()


@pytest.fixture
def figures():
    from matplotlib import pyplot

    pyplot.close("all")
    yield pyplot
    pyplot.close("all")
