"""Local moments against the formula, query by query in NumPy's float64, and against what their definition promises."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dikkat.regression import local
from dikkat.regression.joined import join
from dikkat.regression.local import Moments, Points, moments, sensitivity, weights
from dikkat.regression.moments import launch as moments_launch
from dikkat.regression.moments.launch import Window, spatial_order

KERNELS = {"gaussian": lambda r: np.exp(-(r**2) / 2), "epanechnikov": lambda r: np.maximum(0, 1 - r**2)}
EPS = {torch.float32: 2.0**-23, torch.float64: 2.0**-52}


def arranged(key: Tensor, value: Tensor, weight: Tensor) -> Points:
    """The points in the order in which joined rows come."""
    order = torch.from_numpy(spatial_order(key.numpy()))
    return Points(key[order], value[order], weight[order])


def problem(
    queries: int = 97,
    keys: int = 211,
    size: int = 3,
    values: int = 2,
    dtype: torch.dtype = torch.float64,
    seed: int = 1,
) -> tuple[Tensor, Points, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    query, key, value = draw(queries, size), draw(keys, size), draw(keys, values)
    weight = torch.rand(keys, generator=generator, dtype=torch.float64).to(dtype) + 0.1
    exclude = torch.randint(-1, keys, (queries,), generator=generator)
    return query, arranged(key, value, weight), exclude


def bandwidth(size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.linspace(0.7, 2.0, size, dtype=torch.float64).to(dtype)


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


def twin(query: Tensor, points: Points, window: Window, exclude: Tensor | None = None) -> dict[str, np.ndarray]:
    """The moments by their formula; and what their terms' absolute values add up to."""
    rows: dict[str, list[np.ndarray]] = {name: [] for name in ("lse", "value", "offset", "spread", "cross")}
    key, value, weight = array(points.key), array(points.value), array(points.weight)
    sigma = np.broadcast_to(array(window.bandwidth), query.shape)
    for i, x in enumerate(array(query)):
        delta = (key - x) / sigma[i]
        w = weight * KERNELS[window.profile](np.sqrt((delta**2).sum(1))) ** (2 if window.squared else 1)
        if exclude is not None and exclude[i] >= 0:
            w[exclude[i]] = 0
        whole = w.sum()
        w = w / whole if whole else w
        rows["lse"].append(np.log(whole) if whole else np.float64(-np.inf))
        rows["value"].append(w @ value)
        rows["offset"].append(w @ delta)
        rows["spread"].append(np.einsum("m,mc,me->ce", w, delta, delta))
        rows["cross"].append(np.einsum("m,mc,mv->cv", w, delta, value))
    return {name: np.array(found) for name, found in rows.items()}


def assert_moments(found: Moments, right: dict[str, np.ndarray], within: float) -> None:
    for name, tensor in found._asdict().items():
        if name in ("offset", "spread", "cross") and not found.offset.shape[1]:
            continue  # of degree 0
        came, wanted = array(tensor), right[name]
        assert came.shape == wanted.shape
        assert (np.isneginf(came) == np.isneginf(wanted)).all()
        seen = np.isfinite(wanted)
        assert np.abs(came[seen] - wanted[seen]).max(initial=0) <= within * max(1, np.abs(wanted[seen]).max(initial=0))


@pytest.fixture(params=["compiled", "plain"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The compiled kernels run; the plain ways are those without Numba."""
    if request.param == "plain":
        monkeypatch.setattr(moments_launch, "runs", lambda tensor: False)
        monkeypatch.setattr(local, "_ELEMENTS", 2**10)  # several parts
    name: str = request.param
    return name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("profile", KERNELS)
@pytest.mark.parametrize("own", [False, True])
def test_moments_are_what_their_formula_says(
    way: str, own: bool, profile: str, degree: int, squared: bool, dtype: torch.dtype
) -> None:
    query, points, exclude = problem(keys=1009 if own else 211, dtype=dtype)
    sigma = bandwidth(3, dtype)
    if own:  # of each query
        wide = torch.rand(97, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        sigma = sigma * (wide.to(dtype) + 0.02)
    window = Window(profile, sigma, squared=squared)  # type: ignore[arg-type]
    found = moments(query, points, window, degree=degree, exclude=exclude)
    assert found.value.dtype == dtype
    assert_moments(found, twin(query, points, window, exclude), (300 if own else 200) * EPS[dtype])


@pytest.mark.parametrize(
    ("queries", "keys", "size", "values"),
    [(1, 1, 1, 1), (2, 31, 1, 3), (33, 64, 2, 1), (31, 65, 5, 1), (5, 129, 11, 2), (67, 257, 1, 1), (3, 70, 2, 7)],
)
def test_all_sizes(way: str, queries: int, keys: int, size: int, values: int) -> None:
    query, points, _ = problem(queries, keys, size, values)
    window = Window("gaussian", bandwidth(size))
    found = moments(query, points, window, degree=1)
    assert_moments(found, twin(query, points, window), 1e-12)


def test_no_query(way: str) -> None:
    query, points, _ = problem(queries=1)
    found = moments(query[:0], points, Window("gaussian", bandwidth(3)), degree=1)
    assert [tuple(t.shape) for t in found] == [(0,), (0, 2), (0, 3), (0, 3, 3), (0, 3, 2)]


def test_joined_rows_keep_what_was_given() -> None:
    random = np.random.default_rng(3)
    x, y, weight = random.random((509, 2)), random.random((509, 3)), random.random(509)
    joined = join(x, y, weight)
    assert np.array_equal(np.sort(joined.unique_index), np.arange(509))
    assert np.array_equal(joined.x[joined.unique_index], x)
    np.testing.assert_allclose((joined.y + joined.origin)[joined.unique_index], y, rtol=1e-14)
    assert np.array_equal(joined.weight[joined.unique_index], weight)


def test_neighbours_in_memory_are_neighbours_in_space() -> None:
    """The box around 32 of 4,096 points of a square has some 1/128 of its area; in the order given, nearly all."""
    key = np.random.default_rng(5).random((4096, 2))
    for points in (key[spatial_order(key)], join(key, key, np.ones(4096)).x):
        groups = points.reshape(-1, 32, 2)
        area = (groups.max(1) - groups.min(1)).prod(1).mean()
        assert area < 4 / 128


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("profile", KERNELS)
def test_weights_are_what_their_formula_says(profile: str, squared: bool) -> None:
    query, points, _ = problem()
    window = Window(profile, bandwidth(3), squared=squared)  # type: ignore[arg-type]
    found = weights(query, points, window)
    assert np.allclose(array(found @ points.value), twin(query, points, window)["value"], rtol=1e-12, atol=1e-13)
    reached = moments(query, points, window).lse > -math.inf
    assert found.sum(1).allclose(reached.double(), rtol=1e-13)


@pytest.mark.parametrize("profile", KERNELS)
def test_a_point_that_is_left_out_has_no_effect(way: str, profile: str) -> None:
    query, points, _ = problem()
    window = Window(profile, bandwidth(3))  # type: ignore[arg-type]
    exclude = torch.full((len(query),), 101)
    value, key = points.value.clone(), points.key.clone()
    before = moments(query, points, window, degree=1, exclude=exclude)
    value[101] = 1e300
    key[101] = query[0]
    after = moments(query, replace(points, key=key, value=value), window, degree=1, exclude=exclude)
    for one, other in zip(before, after, strict=True):
        assert one.allclose(other, rtol=1e-13, atol=1e-13)


def test_leaving_out_oneself_where_all_others_are_far(way: str) -> None:
    """The nearest of the others, though it weighs e^−5000 of what the point itself would."""
    key = torch.tensor([[0.0], [100.0], [300.0]], dtype=torch.float64)
    points = arranged(key, torch.tensor([[2.0], [3.0], [5.0]], dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    found = moments(points.key, points, Window("gaussian", key.new_ones(1)), exclude=torch.arange(3))
    assert found.value.flatten().tolist() == pytest.approx([3.0, 2.0, 3.0], rel=1e-14)
    assert found.lse.tolist() == pytest.approx([-5000, -5000, -20000])


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(1, 4),
    sigma=st.floats(-4, 2),
    tolerance=st.floats(-12, -0.5),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    clustered=st.booleans(),
)
def test_no_more_is_left_out_than_the_tolerance(
    seed: int, size: int, sigma: float, tolerance: float, dtype: torch.dtype, clustered: bool
) -> None:
    query, points, _ = problem(61, 1999, size, 1, dtype, seed)
    if clustered:
        points = arranged((points.key * 3).round() / 3 + points.key / 100, points.value, points.weight * 100)
    window = Window("gaussian", torch.full((size,), 10**sigma, dtype=dtype), tolerance=10**tolerance)
    found = moments(query, points, window)
    right = moments(query, points, replace(window, tolerance=0.0))
    reach = (points.value.max() - points.value.min()).item()
    rounding = 50 * EPS[dtype]
    assert (found.value - right.value).abs().max().item() <= (10**tolerance + rounding) * reach
    # The weight that is missing is that share too.
    assert (found.lse <= right.lse + rounding * right.lse.abs().clamp(min=1)).all()
    missing = -torch.expm1((found.lse - right.lse).double())
    assert missing.max().item() <= 10**tolerance + rounding * right.lse.abs().max().item()


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("sigma", [0.03, 0.3])
@pytest.mark.parametrize("tolerance", [0.1, 0.01])
def test_nor_where_rows_of_a_task_are_near_different_keys(size: int, sigma: float, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(13)
    query, key = (torch.rand(n, size, generator=generator, dtype=torch.float64) for n in (509, 2003))
    points = arranged(key, key, torch.ones(2003, dtype=torch.float64))
    window = Window("gaussian", torch.full((size,), sigma, dtype=torch.float64), tolerance=tolerance)
    right = moments(query, points, replace(window, tolerance=0.0))
    assert (-torch.expm1(moments(query, points, window).lse - right.lse)).max() <= tolerance


def test_a_tolerance_leaves_something_out() -> None:
    query, points, _ = problem(61, 20_011, 1, 1)
    window = Window("gaussian", torch.full((1,), 0.2, dtype=torch.float64), tolerance=0.3)
    exact = moments(query, points, replace(window, tolerance=0.0))
    assert (moments(query, points, window).lse < exact.lse - 1e-4).any()


@pytest.mark.parametrize("profile", KERNELS)
@pytest.mark.parametrize("sigma", [0.003, 0.05])
def test_what_is_skipped_without_a_tolerance_weighs_nothing(profile: str, sigma: float) -> None:
    query, points, _ = problem(61, 1999, 2, 1)
    window = Window(profile, torch.full((2,), sigma, dtype=torch.float64))  # type: ignore[arg-type]
    right = twin(query, points, window)
    found = moments(query, points, window, degree=1)
    # Where the formula's own exponentials are 0 in float64, the kernels still tell the nearest.
    told = np.isfinite(right["lse"])
    for name, tensor in found._asdict().items():
        assert np.allclose(array(tensor)[told], right[name][told], rtol=1e-9, atol=1e-9)
    if profile != "gaussian":
        assert found.lse[~torch.from_numpy(told)].isneginf().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("sigma", [0.02, 0.3, 5.0])
@pytest.mark.parametrize("profile", ["epanechnikov"])
def test_keys_in_many_groups_are_found(
    monkeypatch: pytest.MonkeyPatch, profile: str, sigma: float, dtype: torch.dtype
) -> None:
    """Those in reach of a kernel that ends, wherever in space they are."""
    monkeypatch.setattr(moments_launch, "_FEW_ROWS", 1)  # a box around several queries reaches far
    query, points, _ = problem(queries=37, keys=4999, size=2, dtype=dtype)
    assert points.tiles is not None
    assert points.tiles.group_low.shape[1] > 1
    window = Window(profile, torch.tensor([sigma, 2 * sigma], dtype=dtype))  # type: ignore[arg-type]
    assert_moments(moments(query, points, window, degree=1), twin(query, points, window), 200 * EPS[dtype] / sigma)


def test_as_exact_as_float32_allows_a_thousand_bandwidths_from_the_origin() -> None:
    """The same error as of the formula in float32, term by term: none from an origin that is far."""
    generator = torch.Generator().manual_seed(7)
    query, key = (torch.rand(n, 1, generator=generator) * 1000 for n in (61, 4999))
    value = torch.randn(4999, 1, generator=generator)
    window = Window("gaussian", torch.ones(1))
    points = arranged(key, value, torch.ones(4999))
    found, right = moments(query, points, window).value, twin(query, points, window)["value"]
    plain = torch.softmax(-(key.T - query).square() / 2, 1) @ value
    error = np.abs(array(found) - right).max()
    assert error <= 2 * np.abs(array(plain) - right).max() + 4 * EPS[torch.float32] * value.abs().max().item()


@pytest.mark.parametrize("degree", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("own", [False, True])
def test_sensitivity_is_what_its_formula_says(way: str, degree: int, dtype: torch.dtype, own: bool) -> None:
    query, points, exclude = problem(dtype=dtype)
    generator = torch.Generator().manual_seed(11)
    wide = bandwidth(3, dtype)
    if own:  # of each query
        wide = wide * (torch.rand(97, 3, generator=generator) + 0.3).to(dtype)
    window, sigma = Window("gaussian", wide), array(wide.expand(97, 3))
    terms, held = 1 + 2 * degree, 1 + 3 * degree  # the last slope is that of a plane
    row, fit = (torch.randn(97, *shape, generator=generator).to(dtype) for shape in ((terms,), (held, 2)))
    lse = moments(query, points, window, exclude=exclude).lse
    found = sensitivity(query, points, window, lse, row, fit, np.array([0, 1, 1]), exclude)
    for i in range(97):
        delta = (array(points.key) - array(query[i])) / sigma[i]
        w = array(points.weight) * np.exp(-(delta**2).sum(1) / 2)
        if exclude[i] >= 0:
            w[exclude[i]] = 0
        z = np.concatenate([np.ones((211, 1)), delta], 1)
        left, lever = array(points.value) - z[:, :held] @ array(fit[i]), z[:, :terms] @ array(row[i])
        square = np.column_stack([delta[:, 0] ** 2, (delta[:, 1:] ** 2).sum(1)])
        right = np.einsum("m,mc,m,mv->cv", w / w.sum(), square, lever, left)
        scale = np.einsum("m,mc,m,mv->cv", w / w.sum(), square, np.abs(lever), np.abs(left)).max()
        assert np.abs(array(found[i]) - right).max() <= 200 * EPS[dtype] * scale


@pytest.mark.parametrize("threads", [1, 2])
def test_any_number_of_threads_gives_the_same(threads: int) -> None:
    query, points, _ = problem(331, 997)
    window = Window("gaussian", bandwidth(3))
    before, number = moments(query, points, window, degree=1), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        after = moments(query, points, window, degree=1)
    finally:
        torch.set_num_threads(number)
    assert all(a.equal(b) for a, b in zip(before, after, strict=True) if a is not None and b is not None)


@pytest.mark.parametrize("degree", [0, 1])
def test_in_parts_it_is_the_same_and_every_pair_is_told(monkeypatch: pytest.MonkeyPatch, degree: int) -> None:
    query, points, exclude = problem(2003, 997)
    window = Window("gaussian", bandwidth(3))
    whole = moments(query, points, window, degree=degree, exclude=exclude)
    told = list[int]()
    monkeypatch.setattr(moments_launch, "_TASK_COST", 1)
    with moments_launch.observed(told.append):
        parts = moments(query, points, window, degree=degree, exclude=exclude)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    padded = points.tiles.weight.numel()
    assert len(told) > 2
    assert sum(told) == 2003 * padded
    moments(query, points, window, degree=degree)
    assert sum(told) == 2003 * padded
