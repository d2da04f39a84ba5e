"""The description of a trace in its file: calls, spans, tokens with their grids and times, and images."""

from collections.abc import Iterator, Mapping
from typing import Any

from dikkat.inspection.calls import Call
from dikkat.show.pictures import parse_png, png_text
from dikkat.show.positions import Grid, Times, Token, TokenList

TokensByElement = Mapping[int | None, Mapping[str, TokenList]]


def is_call(entry: object) -> bool:
    """Return whether an entry has the fields of a call, a shape and positions."""
    if not isinstance(entry, list) or [*map(type, entry)] != [*map(type, Call("")), list, list]:
        return False
    return entry[1] >= 0 and len(entry[-1]) == 2 and all(type(size) is int for size in (*entry[-2], *entry[-1]))


def parse_spans(content: object) -> tuple[str, ...]:
    """Return the names of spans.

    Raises:
        ValueError: They are no list of strings.
    """
    if not isinstance(content, list) or not all(isinstance(name, str) for name in content):
        raise ValueError("spans: got malformed names; expected a list of strings. Record again")
    return tuple(content)


def describe_tokens(tokens: TokensByElement) -> dict[str, Any]:
    """Return the tokens, the grids and times in them, and the different images as PNG."""
    images, layouts = list[Any](), list[Any]()
    for element, kind, first, layout in _layouts_of(tokens):
        if isinstance(layout, Times):
            layouts.append([element, kind, first, {"values": layout.values, "series": layout.series}])
            continue
        if layout.image is not None and layout.image not in images:
            images.append(layout.image)
        fields = {"rows": layout.rows, "columns": layout.columns, "box": layout.box, "order": layout.order,
                  "pixel_size": layout.pixel_size}  # fmt: skip
        layouts.append([element, kind, first, fields | {"image": images.index(layout.image) if layout.image else None}])
    return {"tokens": [*tokens.items()], "parts": layouts, "images": [*map(png_text, images)]}


def _layouts_of(tokens: TokensByElement) -> Iterator[tuple[int | None, str, int, Grid | Times]]:
    for element, kinds in tokens.items():
        for kind, labels in kinds.items():
            for first, layout in labels.parts.items():
                yield element, kind, first, layout


def parse_tokens(content: Mapping[str, Any]) -> dict[int | None, dict[str, TokenList]]:
    """Return the tokens by element and kind, with their grids and times.

    Raises:
        ValueError: The content is damaged.
    """
    tokens, stored = dict[int | None, dict[str, TokenList]](), content.get("tokens")
    for pair in stored if isinstance(stored, list) else [None]:
        labelled: Any = pair if isinstance(pair, list) and len(pair) == 2 else (0, None)
        element, kinds = labelled
        valid = isinstance(kinds, dict) and (element is None or type(element) is int)
        if not valid or not all(isinstance(labels, list) and all(map(_is_token, labels)) for labels in kinds.values()):
            raise ValueError("tokens: got malformed labels; expected [text, special, continues]. Record again")
        tokens[element] = {kind: TokenList(Token(*entry) for entry in entries) for kind, entries in kinds.items()}
    images = [parse_png(image) for image in content.get("images", [])]
    try:
        for element, kind, first, fields in content.get("parts", []):
            if "values" in fields:
                layout: Grid | Times = Times(fields.pop("values"), **fields)
            else:
                image = None if fields["image"] is None else images[fields["image"]]
                width, height = fields.get("pixel_size", (1.0, 1.0))
                fields |= {"image": image, "pixel_size": (float(width), float(height))}
                layout = Grid(fields.pop("rows"), fields.pop("columns"), **fields)
            tokens[element][kind].add(first, layout)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise ValueError(f"parts: got a malformed grid or time axis ({error}). Record again") from None
    return tokens


def _is_token(entry: object) -> bool:
    return isinstance(entry, list) and [type(value) for value in entry] == [str, bool, bool]
