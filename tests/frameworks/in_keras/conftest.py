import pytest

# Of the frameworks' own making, by the line of theirs or NumPy's that says it.
_THEIRS = ["ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if {"in_keras", "keras"} & set(item.path.parts):  # the tests, and the examples in docstrings
            for warning in _THEIRS:
                item.add_marker(pytest.mark.filterwarnings(warning))
