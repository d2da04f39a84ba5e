"""The counts of tools/words.py, which `make lint` compares with their limits."""

import ast

import pytest

from words import BROKEN, docstring_openings, sentences, vague_names


def test_vague_names_are_bound_names() -> None:
    tree = ast.parse("def f(given, rows):\n    for each in rows:\n        own_ = each.place\n    return own_\n")
    assert [name for _, name in vague_names(tree)] == ["given", "each", "own_"]


def test_openings_are_first_sentences() -> None:
    tree = ast.parse('"""Of what it is. More."""\ndef f():\n    """Return rows:\n    two."""\n')
    assert [text for _, text in docstring_openings(tree)] == ["Of what it is.", "Return rows:"]


def test_sentences_are_prose() -> None:
    page = (
        "---\ntitle: a page; of words\n---\n# A heading\n\nYou pass `a; b` to [the call](x.md#a;b). It returns one row "
        "of weights.\n\n$$ a; b c d $$\n\n- An item of four words\n\n| a | b; c d |\n\n```\na; b c d\n```\n"
    )
    assert list(sentences(page)) == [
        "You pass x to the call.",
        "It returns one row of weights.",
        "An item of four words",
    ]


@pytest.mark.parametrize(
    ("sentence", "rule"),
    [
        ("What is hidden has no effect.", "a clause with 'what'"),
        ("Of a batch it shows the second.", "a sentence that begins with 'Of'"),
        ("It prints the words alone.", "'alone' for 'only'"),
        ("Zero where nothing is visible.", "'where' for 'if'"),
        ("Missing cells are refused.", "a program that says or refuses"),
        ("The last branch stands behind it.", "things that stand or lie"),
        ("It computes the state anew.", "an archaic word"),
        ("It fits; it predicts.", "a semicolon"),
        ("The call raises ValueError and names the argument.", None),
    ],
)
def test_rules(sentence: str, rule: str | None) -> None:
    assert [name for name, pattern in BROKEN.items() if pattern.search(sentence)] == ([rule] if rule else [])
