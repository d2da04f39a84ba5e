"""Attention of a translated sentence as an HTML table for notebooks."""

from dikkat.show.arrays import as_array
from dikkat.show.document import escaped
from dikkat.show.page import Aligned


def table(translation: Aligned) -> str:
    """Return an HTML table with a row for each target token, coloured by the weights of the source tokens.

    The table needs no script, so every notebook viewer shows it.

    Example:
        >>> from types import SimpleNamespace
        >>> cat = SimpleNamespace(
        ...     source="le chat", source_tokens=["le", "chat"], target="the cat", target_tokens=["the", "cat"],
        ...     weights=[[0.9, 0.1], [0.2, 0.8]],
        ... )
        >>> "90 %" in table(cat)
        True
    """
    weights = as_array(translation.weights, "weights")
    head = "".join(f'<th style="text-align: center">{escaped(token)}</th>' for token in translation.source_tokens)
    rows = "".join(
        f'<tr><th style="text-align: right">{escaped(token)}</th>{"".join(map(_cell, row))}</tr>'
        for token, row in zip(translation.target_tokens, weights.tolist(), strict=True)
    )
    return (
        f"<p>{escaped(translation.source)} → <b>{escaped(translation.target)}</b></p>"
        f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _cell(weight: float) -> str:
    ink = "#fff" if weight > 0.5 else "inherit"
    style = f"background: rgba(30, 90, 180, {weight:.2f}); color: {ink}; text-align: center"
    return f'<td style="{style}">{weight:.0%}</td>'.replace("%</td>", " %</td>")
