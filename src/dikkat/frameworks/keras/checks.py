"""Checks of shapes and names. `None` in a shape is a length not known yet."""

from typing import Any, NamedTuple

Shape = tuple[int | None, ...]


class Call(NamedTuple):
    """The sizes of a call, as far as they are known.

    Attributes:
        lead: The leading dimensions of query, key and value, broadcast.
        queries: n.
        keys: m.
    """

    lead: Shape
    queries: int | None
    keys: int | None


def same(shape: Shape, other: Shape) -> bool:
    """Whether two shapes may be equal, as far as they are known."""
    return len(shape) == len(other) and all(
        have is None or want is None or have == want for have, want in zip(shape, other, strict=True)
    )


def check_fit(name: str, shape: Shape, whole: Shape) -> None:
    """A check that one shape broadcasts to another.

    Raises:
        ValueError: It does not.
    """
    own = whole[max(0, len(whole) - len(shape)) :]
    if len(shape) > len(whole) or any(
        have not in (1, None, want) and want is not None for have, want in zip(shape, own, strict=True)
    ):
        raise ValueError(f"{name}: got shape {shape}; expected one that broadcasts to {whole}")


def leading(shapes: dict[str, Shape]) -> Shape:
    """The leading dimensions that shapes (..., length, features) broadcast to.

    Raises:
        ValueError: They do not broadcast.
    """
    leads = [shape[:-2] for shape in shapes.values()]
    rank = max(len(lead) for lead in leads)
    found: list[int | None] = []
    for sizes in zip(*((1,) * (rank - len(lead)) + lead for lead in leads), strict=True):
        sure = {size for size in sizes if size not in (1, None)}
        if len(sure) > 1:
            got = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise ValueError(f"{', '.join(shapes)}: got shapes {got}; expected leading dimensions that broadcast")
        found.append(sure.pop() if sure else None if None in sizes else 1)
    return tuple(found)


def check_features(name: str, shape: Shape, expected: int) -> None:
    """A check that a tensor has the number of features that something was made for.

    Raises:
        ValueError: It has another.
    """
    if shape[-1] != expected:
        raise ValueError(f"{name}: got {shape[-1]} features (shape {shape}); expected {expected}, as this was made")


def check_name(name: str, got: Any, expected: tuple[Any, ...], error: type[Exception] = ValueError) -> None:
    """A check that a name is one of several.

    Raises:
        Exception: It is none; of the type `error`.
    """
    if got not in expected:
        raise error(f"{name}: got {got!r}; expected {', '.join(map(repr, expected))}")
