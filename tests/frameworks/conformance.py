"""What every framework must compute: a table of cases, with expected values from NumPy in float64 alone.

The references go query by query over the visible keys and know nothing of masks, tiles, projections done once, or
tricks with exponentials. Gradients are those of the sum of every output times a fixed number of its own (`probe`), by
the complex step: with f analytic, f(x + ih) = f(x) + ih f'(x) + O(h²), so that the imaginary part over h is the
derivative to the last digit, whatever the formula. Squire, Trapp, "Using complex variables to estimate derivatives of
real functions" (1998). A framework's test runs each case and hands what it found to `Case.check`.

Arrays of a case are of its `dtype` where they are floating point (bfloat16, which NumPy has not, as float32 of the same
values), so that rounding the inputs is nobody's error.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]

TOLERANCE = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
_STEP = 1e-30  # of the complex derivative: its error is of the order of the square

B, N, M, D, V, H, Q = 2, 3, 5, 4, 7, 6, 11  # H, the hidden features, and D divide by two; the others are primes


@dataclass(frozen=True)
class Case:
    """One call of one layer.

    Attributes:
        name: of the case.
        layer: the class's name in `dikkat.frameworks.*`; or "attend" with `settings["score"]`, the name of a class of
            scores.
        settings: the constructor's keyword arguments.
        tensors: the parameters under PyTorch's names.
        inputs: the floating-point arguments of the call, by name. `SelfAttention`: x. The others: query, key,
            value.
        given: the other arguments: valid_lens, mask, causal, key_bias, exclude.
        reference: tensors, inputs, given -> outputs by name: "output" and "weights", of several heads (B, heads, n, m).
        dtype: in which the framework computes.
        differentiated: whether gradients are compared, which take the reference once for each number that comes in.
    """

    name: str
    layer: str
    settings: Mapping[str, Any]
    tensors: Arrays
    inputs: Arrays
    given: Mapping[str, Any]
    reference: Callable[[Arrays, Arrays, Mapping[str, Any]], dict[str, Array]] = field(repr=False)
    dtype: str = "float32"
    differentiated: bool = True

    @cached_property
    def outputs(self) -> dict[str, Array]:
        """The expected outputs, float64."""
        return {name: value.real for name, value in self._run({}).items()}

    @cached_property
    def probes(self) -> dict[str, Array]:
        """What each output is multiplied with before all are added up."""
        rng = np.random.default_rng(7)
        return {name: rng.uniform(-1, 1, value.shape).round(2) for name, value in self.outputs.items()}

    @cached_property
    def gradients(self) -> dict[str, Array]:
        """Of that sum, with respect to every input and parameter, float64; none in half precision."""
        found = {}
        for name, array in {**self.inputs, **self.tensors}.items():
            gradient = np.zeros(np.shape(array))
            if name != "score.fixed_bandwidth":  # a buffer
                for index in np.ndindex(gradient.shape):
                    gradient[index] = self._slope(name, index)
                found[name] = gradient
        return found

    def check(self, outputs: Arrays, gradients: Arrays | None = None) -> None:
        """Compare what a framework found; gradients are compared in float32.

        Raises:
            AssertionError: something is missing, or differs by more than `TOLERANCE` of the largest expected entry.
        """
        _compare(self.name, outputs, self.outputs, TOLERANCE[self.dtype])
        if self.dtype == "float32" and self.differentiated:
            assert gradients is not None, f"{self.name}: no gradients"
            _compare(f"{self.name}: gradient", gradients, self.gradients, TOLERANCE[self.dtype])

    def _slope(self, name: str, index: tuple[int, ...]) -> float:
        outputs = self._run({name: index})
        return sum(float((value.imag / _STEP * self.probes[key]).sum()) for key, value in outputs.items())

    def _run(self, step: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
        def wide(arrays: Arrays) -> dict[str, Array]:
            copies = {name: np.array(array, dtype=np.complex128) for name, array in arrays.items()}
            for name, index in step.items():
                if name in copies:
                    copies[name][index] += 1j * _STEP
            return copies

        return self.reference(wide(self.tensors), wide(self.inputs), self.given)


def _compare(name: str, found: Arrays, expected: Arrays, tolerance: float) -> None:
    assert set(found) >= set(expected), f"{name}: {sorted(set(expected) - set(found))} missing"
    for key, value in expected.items():
        got = np.asarray(found[key], dtype=np.float64)
        assert got.shape == value.shape, f"{name}: {key} has shape {got.shape}, expected {value.shape}"
        scale = max(1.0, float(np.abs(value).max(initial=0.0)))
        error = float(np.abs(got - value).max(initial=0.0))
        assert error <= tolerance * scale, f"{name}: {key} differs by {error:.2e}; allowed: {tolerance * scale:.2e}"


# --- the references


def _visible(given: Mapping[str, Any], batch: int, row: int, queries: int, keys: int) -> list[int]:
    """The keys that a query sees."""
    lens, mask, bias, exclude = (given.get(name) for name in ("valid_lens", "mask", "key_bias", "exclude"))
    most = keys if lens is None else int(lens[batch] if np.ndim(lens) == 1 else lens[batch][row])
    return [
        key
        for key in range(min(keys, most))
        if (mask is None or mask[batch, row, key])
        and not (given.get("causal") and key > row + keys - queries)
        and (bias is None or bias[batch, key] != -np.inf)
        and (exclude is None or exclude[batch, row] != key)
    ]


def _softmax(scores: Array) -> Array:
    share = np.exp(scores - scores.real.max())
    return share / share.sum()


def _attend(
    score: Callable[[Array, Array], complex], query: Array, key: Array, value: Array, given: Mapping[str, Any]
) -> dict[str, Array]:
    """Query by query: (B, n, d_q), (B, m, d_k), (B, m, d_v) -> the output and the weights."""
    batch, queries, keys = len(query), query.shape[1], key.shape[1]
    output = np.zeros((batch, queries, value.shape[-1]), complex)
    weights = np.zeros((batch, queries, keys), complex)
    for b, row in np.ndindex(batch, queries):
        scores = {j: score(query[b, row], key[b, j]) for j in _visible(given, b, row, queries, keys)}
        seen = [j for j, each in scores.items() if each.real != -np.inf]
        if seen:
            bias = given["key_bias"][b, seen] if given.get("key_bias") is not None else 0.0
            share = _softmax(np.array([scores[j] for j in seen]) + bias)
            weights[b, row, seen], output[b, row] = share, share @ value[b, seen]
    return {"output": output, "weights": weights}


def _reach(difference: Array, tensors: Arrays) -> Array:
    """The squared scaled distance."""
    learnt = "score.log_bandwidth" in tensors
    sigma = np.exp(tensors["score.log_bandwidth"]) if learnt else tensors["score.fixed_bandwidth"]
    return (difference / sigma) @ (difference / sigma)


def _log(value: complex) -> complex:
    """−∞ outside of a kernel's support."""
    return np.log(value) if value.real > 0 else complex(-np.inf)


def _cosine(q: Array, k: Array) -> complex:
    norms = np.sqrt(q @ q) * np.sqrt(k @ k)
    return q @ k / norms if norms else 0j


SCORES: dict[str, Callable[[Arrays, Array, Array], complex]] = {
    "Average": lambda t, q, k: 0j,
    "Dot": lambda t, q, k: q @ k,
    "ScaledDot": lambda t, q, k: q @ k / np.sqrt(len(q)),
    "Bilinear": lambda t, q, k: k @ (t["score.W_q.weight"] @ q),
    "Cosine": lambda t, q, k: _cosine(q, k),
    "VectorSum": lambda t, q, k: t["score.w_v.weight"][0] @ (q + k),
    "Additive": lambda t, q, k: (
        t["score.w_v.weight"][0] @ np.tanh(t["score.W_q.weight"] @ q + t["score.W_k.weight"] @ k)
    ),
    "Gaussian": lambda t, q, k: -_reach(q - k, t) / 2,
    "Boxcar": lambda t, q, k: 0j if _reach(q - k, t).real <= 1 else complex(-np.inf),
    "Epanechnikov": lambda t, q, k: _log(1 - _reach(q - k, t)),
    "Triangular": lambda t, q, k: _log(1 - np.sqrt(_reach(q - k, t))),
}
"""Each score of one query with one key, by its formula."""


def _by_score(name: str) -> Callable[[Arrays, Arrays, Mapping[str, Any]], dict[str, Array]]:
    def reference(tensors: Arrays, inputs: Arrays, given: Mapping[str, Any]) -> dict[str, Array]:
        def score(q: Array, k: Array) -> complex:
            return SCORES[name](tensors, q, k)

        return _attend(score, inputs["query"], inputs["key"], inputs["value"], given)

    return reference


def _heads(heads: int, q: Array, k: Array, v: Array, given: Mapping[str, Any]) -> dict[str, Array]:
    """Projected queries, keys and values, parted into heads; the heads' outputs stand side by side."""

    def part(x: Array, head: int) -> Array:
        size = x.shape[-1] // heads
        return x[..., head * size : (head + 1) * size]

    found = [
        _attend(lambda a, b: SCORES["ScaledDot"]({}, a, b), *(part(x, head) for x in (q, k, v)), given)
        for head in range(heads)
    ]
    output = np.concatenate([each["output"] for each in found], -1)
    return {"output": output, "weights": np.stack([each["weights"] for each in found], 1)}


def _multi_head(heads: int) -> Callable[[Arrays, Arrays, Mapping[str, Any]], dict[str, Array]]:
    def reference(tensors: Arrays, inputs: Arrays, given: Mapping[str, Any]) -> dict[str, Array]:
        if "in_proj_weight" in tensors:
            matrices = np.split(tensors["in_proj_weight"], 3)
        else:
            matrices = [tensors[f"{each}_proj_weight"] for each in "qkv"]
        ends = np.cumsum([len(each) for each in matrices])[:2]
        biases = np.split(tensors["in_proj_bias"], ends)
        arguments = (inputs["query"], inputs["key"], inputs["value"])
        q, k, v = (x @ w.T + b for x, w, b in zip(arguments, matrices, biases, strict=True))
        found = _heads(heads, q, k, v, given)
        output = found["output"] @ tensors["out_proj.weight"].T + tensors["out_proj.bias"]
        return {"output": output, "weights": found["weights"]}

    return reference


def _self(heads: int) -> Callable[[Arrays, Arrays, Mapping[str, Any]], dict[str, Array]]:
    def reference(tensors: Arrays, inputs: Arrays, given: Mapping[str, Any]) -> dict[str, Array]:
        q, k, v = (inputs["x"] @ tensors[f"W_{each}.weight"].T for each in "qkv")
        return _heads(heads, q, k, v, given)

    return reference


# --- the table

_seeds = count(1)


def _numbers(*shape: int, scale: float = 1.0) -> Array:
    """Of a stream of its own each, with few digits, so that no type rounds them much."""
    return (scale * np.random.default_rng(next(_seeds)).normal(size=shape)).round(2).astype(np.float32)


def _qkv(queries: int = N, keys: int = M, query_size: int = D, batch: int = B) -> dict[str, Array]:
    return {
        "query": _numbers(batch, queries, query_size),
        "key": _numbers(batch, keys, D),
        "value": _numbers(batch, keys, V),
    }


def _mask() -> Array:
    mask = np.random.default_rng(5).uniform(size=(B, N, M)) < 0.6
    mask[0, 1] = False  # a row that sees nothing
    return mask


RESTRICTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "one length each": {"valid_lens": np.array([2, 5])},
    "a length of 0": {"valid_lens": np.array([0, 3])},
    "a length a query": {"valid_lens": np.array([[0, 1, 5], [4, 0, 2]])},
    "a mask": {"mask": _mask()},
    "causal": {"causal": True},
    "biased keys": {"key_bias": np.array([[0.5, -np.inf, 0.1, -1.0, 2.0], [1.0, 0.0, -0.3, 0.2, -np.inf]], np.float32)},
    "one left out": {"exclude": np.array([[0, -1, 4], [2, 1, -1]])},
    "all together": {
        "valid_lens": np.array([4, 5]),
        "mask": _mask(),
        "causal": True,
        "key_bias": np.array([[0.5, 0.0, 0.1, -1.0, 2.0], [1.0, -np.inf, -0.3, 0.2, 0.7]], np.float32),
        "exclude": np.array([[0, -1, 2], [2, 1, -1]]),
    },
}

_HEADS = {"in_proj_weight": (3 * D, D), "in_proj_bias": (3 * D,), "out_proj.weight": (D, D), "out_proj.bias": (D,)}
_ADDITIVE = {"score.W_q.weight": (H, Q), "score.W_k.weight": (H, D), "score.w_v.weight": (1, H)}


def _of(shapes: Mapping[str, tuple[int, ...]], scale: float = 0.6) -> dict[str, Array]:
    return {name: _numbers(*shape, scale=scale) for name, shape in shapes.items()}


def _attention_layers(**sizes: int) -> Iterator[tuple[str, str, dict[str, Any], dict[str, Array], dict[str, Array]]]:
    """Name of the score, of the layer, its settings, parameters and inputs."""
    yield "Average", "attend", {"score": "Average"}, {}, _qkv(query_size=Q, **sizes)
    sigma = np.array([0.7, 1.3, 2.0, 1.1])
    learnt = {"score.log_bandwidth": np.log(sigma).astype(np.float32)}
    yield "Gaussian", "KernelAttention", {"bandwidth": sigma.tolist()}, {"score.fixed_bandwidth": sigma}, _qkv(**sizes)
    yield "Gaussian", "KernelAttention", {"bandwidth": [1.0] * D, "learnable": True}, learnt, _qkv(**sizes)
    yield "Additive", "AdditiveAttention", {"num_hiddens": H}, _of(_ADDITIVE), _qkv(query_size=Q, **sizes)
    yield "ScaledDot", "DotProductAttention", {}, {}, _qkv(**sizes)
    yield "Bilinear", "BilinearAttention", {}, _of({"score.W_q.weight": (D, Q)}), _qkv(query_size=Q, **sizes)


def _cases() -> Iterator[Case]:
    for kind, given in RESTRICTIONS.items():
        for score, layer, settings, tensors, inputs in _attention_layers():
            name = f"{layer}{' learnt' if 'learnable' in settings else ''}, {kind}"
            yield Case(name, layer, settings, tensors, inputs, given, _by_score(score))
        yield from _head_cases(kind, given)
    yield from _score_cases()
    yield from _edge_cases()
    yield from _half_cases()
    yield from _square_cases()


def _head_cases(kind: str, given: Mapping[str, Any]) -> Iterator[Case]:
    inputs = _qkv() | {"value": _numbers(B, M, D)}
    settings: dict[str, Any] = {"embed_dim": D, "num_heads": 2}
    yield Case(
        f"MultiHeadAttention, {kind}", "MultiHeadAttention", settings, _of(_HEADS), inputs, given, _multi_head(2)
    )
    if kind in ("nothing", "a length a query"):
        shapes = {
            "q_proj_weight": (6, Q),
            "k_proj_weight": (6, D),
            "v_proj_weight": (8, V),
            "in_proj_bias": (20,),
            "out_proj.weight": (Q, 8),
            "out_proj.bias": (Q,),
        }
        settings = {"embed_dim": Q, "num_heads": 2, "key_dim": 6, "value_dim": 8}
        yield Case(
            f"MultiHeadAttention of sizes, {kind}",
            "MultiHeadAttention",
            settings,
            _of(shapes),
            _qkv(query_size=Q),
            given,
            _multi_head(2),
        )
    if set(given) <= {"causal"}:
        x = {"x": _numbers(B, M, D)}
        shapes = {"W_q.weight": (6, D), "W_k.weight": (6, D), "W_v.weight": (8, D)}
        settings = {"key_dim": 6, "value_dim": 8, "num_heads": 2}
        yield Case(f"SelfAttention, {kind}", "SelfAttention", settings, _of(shapes), x, given, _self(2))


def _score_cases() -> Iterator[Case]:
    given = RESTRICTIONS["a length a query"]
    wide = {"score.fixed_bandwidth": np.array(3.0)}
    learnt = {"score.log_bandwidth": np.array(np.log(4.0), np.float32)}
    table: list[tuple[str, dict[str, Any], dict[str, Array]]] = [
        ("Dot", {}, {}),
        ("Cosine", {}, {}),
        ("VectorSum", {}, _of({"score.w_v.weight": (1, D)})),
        ("Boxcar", {"bandwidth": 3.0}, wide),
        ("Epanechnikov", {"bandwidth": 1.0, "learnable": True}, learnt),
        ("Triangular", {"bandwidth": 1.0, "learnable": True}, learnt),
    ]
    for score, settings, tensors in table:
        yield Case(score, "attend", {"score": score, **settings}, tensors, _qkv(), given, _by_score(score))


def _edge_cases() -> Iterator[Case]:
    for queries, keys, words in ((1, M, "one query"), (N, 1, "one key"), (1, 1, "one of each")):
        given = {"valid_lens": np.array([keys, 0])}
        inputs = _qkv(queries, keys, query_size=Q)
        additive, dot = _by_score("Additive"), _by_score("ScaledDot")
        yield Case(
            f"additive, {words}", "AdditiveAttention", {"num_hiddens": H}, _of(_ADDITIVE), inputs, given, additive
        )
        yield Case(f"dot, {words}", "DotProductAttention", {}, {}, _qkv(queries, keys), given, dot)
    # Whole numbers, so that float32 has scores of −2,000,000 and less exactly.
    far = _qkv()
    for name in ("query", "key"):
        far[name] = far[name].round(0)
    given = {"valid_lens": np.array([4, 0]), "key_bias": np.full((B, M), -2e6, np.float32)}
    yield Case("dot of scores below −10⁶", "DotProductAttention", {}, {}, far, given, _by_score("ScaledDot"))
    # Behind the lengths stands anything.
    spoilt = _qkv(query_size=Q)
    for name, value in (("key", np.nan), ("value", np.inf)):
        spoilt[name][0, 2:] = value
    given = {"valid_lens": np.array([2, 5])}
    yield Case(
        "additive, NaN behind the length",
        "AdditiveAttention",
        {"num_hiddens": H},
        _of(_ADDITIVE),
        spoilt,
        given,
        _by_score("Additive"),
    )
    spoilt = _qkv()
    for name, value in (("key", np.inf), ("value", np.nan)):
        spoilt[name][1, 3:] = value
    given = {"valid_lens": np.array([[1, 2, 5], [3, 0, 2]])}
    yield Case("dot, NaN behind the lengths", "DotProductAttention", {}, {}, spoilt, given, _by_score("ScaledDot"))
    # Where tanh is saturated and the exponentials overflow.
    steep = _qkv(query_size=Q)
    steep["query"] = (40 * steep["query"]).round(0)
    # Whole numbers and eighths: a projection of 600 that float32 rounds would be wrong by more than is allowed.
    eighths = {name: (8 * each).round() / 8 for name, each in _of(_ADDITIVE, 2.0).items()}
    yield Case(
        "additive, saturated",
        "AdditiveAttention",
        {"num_hiddens": H},
        eighths,
        steep,
        {},
        _by_score("Additive"),
    )


def _half_cases() -> Iterator[Case]:
    given = RESTRICTIONS["a length a query"]
    for dtype in ("float16", "bfloat16"):
        for score, layer, settings, tensors, inputs in _attention_layers():
            if "learnable" in settings:
                continue
            rounded = {
                name: each if name == "score.fixed_bandwidth" else _rounded(each, dtype)
                for name, each in tensors.items()
            }
            halves = {name: _rounded(each, dtype) for name, each in inputs.items()}
            yield Case(f"{layer} in {dtype}", layer, settings, rounded, halves, given, _by_score(score), dtype)


def _square_cases() -> Iterator[Case]:
    """One sequence with as many queries as keys: nothing but its place says which axis is which."""
    all_together = {
        "valid_lens": np.array([4]),
        "mask": np.random.default_rng(11).uniform(size=(1, M, M)) < 0.7,
        "causal": True,
        "key_bias": np.array([[0.5, 0.0, -np.inf, -1.0, 2.0]], np.float32),
        "exclude": np.array([[0, -1, 1, 2, 3]]),
    }
    for kind, given in (("nothing", {}), ("all together", all_together)):
        for score, layer, settings, tensors, inputs in _attention_layers(batch=1, queries=M, keys=M):
            name = f"{layer}{' learnt' if 'learnable' in settings else ''} of one square, {kind}"
            yield Case(name, layer, settings, tensors, inputs, given, _by_score(score))
        inputs = _qkv(M, M, batch=1) | {"value": _numbers(1, M, D)}
        name = f"MultiHeadAttention of one square, {kind}"
        settings = {"embed_dim": D, "num_heads": 2}
        yield Case(name, "MultiHeadAttention", settings, _of(_HEADS), inputs, given, _multi_head(2))
    # Many pairs; and beyond what exponentials take.
    long = 59
    given = {"valid_lens": np.array([53]), "causal": True}
    settings = {"num_hiddens": 19}
    tensors = {
        "score.W_q.weight": _numbers(19, Q),
        "score.W_k.weight": _numbers(19, D),
        "score.w_v.weight": _numbers(1, 19),
    }
    tensors = {name: (8 * each).round() / 8 for name, each in tensors.items()}
    for words, steepness in (("long", 1), ("long and steep", 40)):
        inputs = _qkv(long, long, Q, batch=1)
        inputs["query"] = (steepness * inputs["query"]).round(0 if steepness > 1 else 2)
        name = f"AdditiveAttention of one square, {words}"
        yield Case(
            name, "AdditiveAttention", settings, tensors, inputs, given, _by_score("Additive"), differentiated=False
        )


def _rounded(array: Array, dtype: str) -> Array:
    """To values that the type has; of bfloat16 as float32."""
    if dtype == "float16":
        return array.astype(np.float16)
    bits = array.astype(np.float32).view(np.uint32)
    return ((bits + 0x8000) & np.uint32(0xFFFF0000)).view(np.float32)


CASES = list(_cases())
