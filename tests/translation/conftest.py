import pytest

from dikkat.translation import Translator
from translation.taught import one_thread, taught_model  # noqa: F401 - one_thread is used by all tests


@pytest.fixture(scope="session")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    return Translator.load(taught_model(tmp_path_factory))
