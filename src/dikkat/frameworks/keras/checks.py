"""Checks of shapes and names. `None` in a shape is a length not known yet."""

from typing import NamedTuple

Shape = tuple[int | None, ...]


class Sizes(NamedTuple):
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
    """True of two shapes that may be equal, as far as they are known."""
    return len(shape) == len(other) and all(
        have is None or want is None or have == want for have, want in zip(shape, other, strict=True)
    )


def check_fit(name: str, shape: Shape, whole: Shape) -> None:
    """A check that one shape broadcasts to another."""
    own = whole[max(0, len(whole) - len(shape)) :]
    if len(shape) > len(whole) or any(
        have not in (1, None, want) and want is not None for have, want in zip(shape, own, strict=True)
    ):
        raise ValueError(f"{name}: got shape {shape}; expected one that broadcasts to {whole}")


def leading(shapes: dict[str, Shape]) -> Shape:
    """The leading dimensions that shapes (..., length, features) broadcast to."""
    leads = [shape[:-2] for shape in shapes.values()]
    rank = max(len(lead) for lead in leads)
    common: list[int | None] = []
    for sizes in zip(*((1,) * (rank - len(lead)) + lead for lead in leads), strict=True):
        sure = {size for size in sizes if size not in (1, None)}
        if len(sure) > 1:
            got = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise ValueError(f"{', '.join(shapes)}: got shapes {got}; expected leading dimensions that broadcast")
        common.append(sure.pop() if sure else None if None in sizes else 1)
    return tuple(common)


def check_features(name: str, shape: Shape, expected: int) -> None:
    """A check of a tensor's number of features against the parameters that it meets."""
    if shape[-1] != expected:
        raise ValueError(f"{name}: got {shape[-1]} features (shape {shape}); expected {expected}, as this was made")
