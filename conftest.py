"""Seeds for every test, and the files that pytest does not collect."""

import importlib.util
import os
import random
import signal
import sys

import pytest

# Under CI, Hypothesis has a profile of its own without a deadline: how long a test takes is no reason to fail.
if "CI" not in os.environ and importlib.util.find_spec("hypothesis"):
    import hypothesis

    hypothesis.settings.register_profile("untimed", deadline=None)
    hypothesis.settings.load_profile("untimed")
collect_ignore_glob = [
    "tests/stress/*",  # programs that look for faults for hours, and are no modules of tests
    "tests/*/conftest.py",  # no examples, and pytest cannot import several as modules
]
if importlib.util.find_spec("latex2mathml") is None:  # what builds the pages comes with `make check`
    collect_ignore_glob += ["docs/*.py"]
if importlib.util.find_spec("mxnet") is None:
    collect_ignore_glob += ["tests/textbook/test_textbook_mxnet.py", "src/dikkat/textbook/mxnet.py"]
if os.environ.get("TF_USE_LEGACY_KERAS") != "1":
    collect_ignore_glob += ["tests/textbook/test_textbook_tensorflow.py", "src/dikkat/textbook/tensorflow.py"]


# A shell without job control starts what is in the background (`make test &`) with Ctrl-C ignored, and Python leaves it
# so, as do the processes that tests start; some tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the notebooks, one of which trains for minutes, so that both processes end at the same time."""
    items.sort(key=lambda item: item.path.name != "test_notebooks.py")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Each test, and what is set up for it, draws the same numbers whatever ran before it in its process."""
    random.seed(0)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _names_of_examples(request: pytest.FixtureRequest) -> None:
    """Give the examples in docstrings what they need not import; those in documents import everything they use."""
    if not isinstance(request.node, pytest.DoctestItem):
        return
    names = request.getfixturevalue("doctest_namespace")
    names.clear()
    if request.path.suffix == ".py":
        import numpy
        import torch

        import dikkat

        names.update(np=numpy, torch=torch, dikkat=dikkat)
        for name in names.keys() & request.node.dtest.globs.keys():
            del names[name]  # the module's own np may be MXNet's
        if request.path.parent.name in ("translation", "decoding", "training", "serving"):
            names["translator"] = _translator()


def _translator() -> object:
    """Return an untrained translator from one English to one French sentence."""
    from dikkat.translation import Settings, Tokenizer, TranslationModel, Translator

    english, french = (Tokenizer.train([text], "word", min_freq=1, vocabulary_size=9) for text in ("Go.", "Va !"))
    settings = Settings(embedding_size=4, hidden_size=4)
    return Translator(TranslationModel(settings, len(english), len(french)), settings, english, french)
