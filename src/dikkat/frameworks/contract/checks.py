"""Checks of shapes, sizes and names, on tuples and strings alone. `None` in a shape is a length not known yet."""

from typing import Any, NamedTuple, get_args

from dikkat.scores import Pair, Profile

Shape = tuple[int | None, ...]


class Call(NamedTuple):
    """What is known of a call's sizes beforehand.

    Attributes:
        lead: The leading dimensions of query, key and value, broadcast.
        queries: n.
        keys: m.
    """

    lead: Shape
    queries: int | None
    keys: int | None


class Given(NamedTuple):
    """A restriction of a call, as far as it is known.

    Attributes:
        shape: Of the tensor.
        values: NumPy's, where they can be read.
    """

    shape: Shape
    values: Any = None


def same(shape: Shape, other: Shape) -> bool:
    """Whether two shapes may be equal, as far as they are known."""
    return len(shape) == len(other) and all(
        have is None or want is None or have == want for have, want in zip(shape, other, strict=True)
    )


def check_fit(name: str, shape: Shape, whole: Shape) -> None:
    """Whether one shape broadcasts to another.

    Raises:
        ValueError: It does not.
    """
    own = whole[max(0, len(whole) - len(shape)) :]
    if len(shape) > len(whole) or any(
        have not in (1, None, want) and want is not None for have, want in zip(shape, own, strict=True)
    ):
        raise ValueError(f"{name}: got shape {shape}; expected one that broadcasts to {whole}")


def check_range(name: str, values: Any, low: int, high: int | None, meaning: str) -> None:
    """Whether whole numbers lie in a range.

    Args:
        name: What to call them in the message.
        values: NumPy's; None where they cannot be read.
        low: The smallest that is allowed.
        high: The largest; None where it is not known.
        meaning: Of the numbers, for the message.

    Raises:
        ValueError: One does not.
    """
    if values is None or high is None:
        return
    outside = values[(values < low) | (values > high)]
    if outside.size:
        raise ValueError(f"{name}: got {outside.flat[0]}; expected {low} to {high}, {meaning}")


def check_restrictions(
    call: Call,
    *,
    valid_lens: Given | None = None,
    mask: Given | None = None,
    causal: bool = False,
    key_bias: Given | None = None,
    exclude: Given | None = None,
) -> None:
    """Whether restrictions, whose dtypes are right, fit a call.

    Raises:
        TypeError: `causal` is no boolean.
        ValueError: One has the wrong shape, or a value out of range.
    """
    lead, queries, keys = call
    if not isinstance(causal, bool):
        raise TypeError(f"causal: got {type(causal).__name__}; expected True or False")
    if valid_lens is not None:
        expected = [lead[:1], (*lead[:1], queries)]
        if not any(same(valid_lens.shape, each) for each in expected):
            raise ValueError(
                f"valid_lens: got shape {valid_lens.shape}; expected {expected[0]} (one length a batch element) or "
                f"{expected[1]} (one a query), aligned with the first leading dimension and shared by the heads"
            )
        check_range("valid_lens", valid_lens.values, 0, keys, "a length among the keys")
    if mask is not None:
        check_fit("mask", mask.shape, (*lead, queries, keys))
    if key_bias is not None:
        check_fit("key_bias", key_bias.shape, (*lead, keys))
    if exclude is not None:
        check_fit("exclude", exclude.shape, (*lead, queries))
        last = None if keys is None else keys - 1
        check_range("exclude", exclude.values, -1, last, "the index of a key, or -1 for none")


def check_call(shapes: dict[str, Shape], kinds: dict[str, str]) -> Call:
    """The sizes of a call.

    Args:
        shapes: Of query, key and value, by name, each (..., length, features).
        kinds: Their dtypes.

    Raises:
        TypeError: A dtype that is not the query's.
        ValueError: Shapes that do not fit.
    """
    keys, values = shapes["key"][-2], shapes["value"][-2]
    if None not in (keys, values) and keys != values:
        raise ValueError(
            f"value: got {values} rows (shape {shapes['value']}); expected {keys}, one for each key (shape "
            f"{shapes['key']})"
        )
    for name, kind in kinds.items():
        if kind != kinds["query"]:
            raise TypeError(f"{name}: got dtype {kind}; expected {kinds['query']}, that of query")
    return Call(leading(shapes), shapes["query"][-2], keys)


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


def check_rank(name: str, shape: Shape) -> None:
    """Whether a tensor is (..., length, features).

    Raises:
        ValueError: It has one dimension or none.
    """
    if len(shape) < 2:
        raise ValueError(f"{name}: got shape {shape}; expected (..., length, features)")


def check_features(name: str, shape: Shape, expected: int) -> None:
    """Whether a tensor has the number of features that something was made for.

    Raises:
        ValueError: It has another.
    """
    if shape[-1] != expected:
        raise ValueError(f"{name}: got {shape[-1]} features (shape {shape}); expected {expected}, as this was made")


def check_compared(query: Shape, key: Shape, pair: str, weight: Shape | None, profile: str) -> None:
    """Whether projected queries and keys can be compared.

    Args:
        query: Shape (..., n, h).
        key: Shape (..., m, h).
        pair: The pair function.
        weight: Shape (h,), or None without one.
        profile: Of a distance.

    Raises:
        TypeError: A weight that is missing or too many.
        ValueError: Different numbers of features, or no such pair function or profile.
    """
    check_name("pair", pair, get_args(Pair))
    check_name("profile", profile, get_args(Profile))
    if query[-1] != key[-1]:
        raise ValueError(
            f"query, key: got {query[-1]} and {key[-1]} features after projection; expected the same number (for "
            "different sizes: Bilinear, Additive)"
        )
    if (weight is None) == (pair == "additive"):
        got = "None" if weight is None else f"shape {weight}"
        raise TypeError(f"weight: got {got}; expected v, (h,), for pair 'additive', None for others")
    if weight is not None and not same(weight, query[-1:]):
        raise ValueError(f"weight: got shape {weight}; expected {query[-1:]}, one a feature")


def check_name(name: str, got: Any, expected: tuple[Any, ...], error: type[Exception] = ValueError) -> None:
    """Whether a name is one of several.

    Raises:
        Exception: It is none; of the type `error`.
    """
    if got not in expected:
        raise error(f"{name}: got {got!r}; expected {', '.join(map(repr, expected))}")


def check_score(score: Any, base: type) -> None:
    """Whether a score is an instance of a framework's `Score` that says of itself what it must.

    Raises:
        TypeError: It is none, or has no such pair function or profile.
    """
    if not isinstance(score, base):
        is_class = isinstance(score, type)
        hint = ": make one, with its brackets" if is_class and issubclass(score, base) else ""
        got = score.__name__ if is_class else repr(score) if isinstance(score, str) else type(score).__name__
        framework = base.__module__.removesuffix(".scores")
        raise TypeError(f"score: got {got}; expected an instance of a {framework}.Score{hint}")
    for name, expected in (("pair", get_args(Pair)), ("profile", get_args(Profile))):
        check_name(f"score: {type(score).__name__}.{name}", getattr(score, name, None), expected, TypeError)


def check_smoothing(label_smoothing: float) -> None:
    """Whether a label smoothing is a part of a whole.

    Raises:
        ValueError: It is not from 0 to 1.
    """
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing: got {label_smoothing}; expected 0 to 1")
