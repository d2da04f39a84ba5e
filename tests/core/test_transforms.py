"""Every implementation under compile, export, vmap, forward mode and autocast; and the operators themselves."""

from typing import Any

import pytest
import torch
from torch import Tensor

import dikkat
import kit
from dikkat import scores
from dikkat._core.implementations import chunked
from kit import GENERAL, KINDS, TRACED, pairwise, runs

# --- under torch's transforms


def test_one_compiled_graph_serves_all_lengths() -> None:
    graphs = []

    def count(graph: Any, examples: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    layer = dikkat.AdditiveAttention(4, 4, 5)
    compiled = torch.compile(layer, fullgraph=True, backend=count)
    for length in (5, 7, 11, 13, 17):
        x, lens = torch.randn(2, length, 4), torch.tensor([length - 2, 3])
        torch.testing.assert_close(compiled(x, x, x, lens), layer(x, x, x, lens))
    assert len(graphs) == 2  # one for the first length, one for any


def test_compile_with_dropout_and_weights_and_a_memory() -> None:
    torch.compiler.reset()
    made = kit.call("additive", "lengths")
    memory = dikkat.prepare(made.key, made.value, score=made.score, **made.restricted)
    memory = kit.replace(memory, key=memory.key.detach(), value=memory.value.detach())

    def step(query: Tensor) -> tuple[Tensor, Tensor]:
        return dikkat.attend_memory(query, memory, return_weights=True)

    def dropped(query: Tensor) -> Tensor:
        return dikkat.attend(query, made.key, made.value, score=made.score, dropout=0.5, **made.restricted)

    for run in (step, dropped):
        compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
        torch.manual_seed(3)
        came = compiled(made.query)
        torch.manual_seed(3)
        torch.testing.assert_close(came, run(made.query), rtol=1e-12, atol=1e-12)


LAYERS: dict[str, Any] = {
    "dot": dikkat.DotProductAttention,
    "additive": lambda: dikkat.AdditiveAttention(8, 8, 5),
    "bilinear": lambda: dikkat.BilinearAttention(8, 8),
    "kernel": lambda: dikkat.KernelAttention(1.5),
    "heads": lambda: dikkat.MultiHeadAttention(8, 2),
    "additive heads": lambda: dikkat.MultiHeadAttention(8, 2, score=scores.Additive(4, 4, 5)),
}


@pytest.mark.parametrize(
    ("layer", "restricted"),
    [(layer, "lengths") for layer in LAYERS]
    + [(layer, restricted) for layer in ("dot", "additive heads") for restricted in ("mask", "causal", "bias")],
)
def test_export_for_any_batch_and_any_lengths(layer: str, restricted: str) -> None:
    """Without a size of which it was asked before, and without operators of our own."""

    class Attend(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = LAYERS[layer]()

        def forward(self, query: Tensor, key: Tensor, limit: Tensor) -> Any:
            limits = {"lengths": "valid_lens", "mask": "mask", "bias": "key_bias"}
            if restricted == "causal":
                return self.layer(query, key, key, causal=True)
            return self.layer(query, key, key, **{limits[restricted]: limit}, return_weights=restricted == "mask")

    def given(batch: int, queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
        torch.manual_seed(0)
        lens = torch.randint(0, keys + 1, (batch,))
        mask = torch.rand(batch, queries, keys) < 0.7
        limit = {"lengths": lens, "mask": mask, "bias": torch.randn(batch, keys), "causal": lens}[restricted]
        return torch.randn(batch, queries, 8), torch.randn(batch, keys, 8), limit

    batch, queries, keys = (torch.export.Dim(name) for name in ("batch", "queries", "keys"))
    shapes = {"lengths": {0: batch}, "causal": {0: batch}, "mask": {0: batch, 1: queries, 2: keys}}
    limit = shapes.get(restricted, {0: batch, 1: keys})
    module = Attend().eval()
    exported = torch.export.export(
        module, given(2, 5, 7), dynamic_shapes=({0: batch, 1: queries}, {0: batch, 1: keys}, limit)
    )
    assert not any("dikkat" in str(node.target) for node in exported.graph.nodes)
    for sizes in ((3, 11, 13), (5, 3, 2)):
        other = given(*sizes)
        torch.testing.assert_close(exported.module()(*other), module(*other))


def test_forward_mode_over_reverse() -> None:
    """The inner transform hides what the outer one goes through."""
    torch.manual_seed(0)
    query, key = (torch.randn(1, rows, 3, dtype=torch.float64) for rows in (67, 131))
    score, tangent, step = scores.Gaussian(1.3), torch.randn(1, 67, 3, dtype=torch.float64), 1e-6
    gradient = torch.func.grad(lambda x: dikkat.attend(x, key, key, score=score).sin().sum())
    right = (gradient(query + step * tangent) - gradient(query - step * tangent)) / (2 * step)
    torch.testing.assert_close(torch.func.jvp(gradient, (query,), (tangent,))[1], right, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("way", ["reference", "chunked", "numba"])
def test_dropout_differs_where_nothing_but_the_seeds_is_batched(way: str) -> None:
    """As for a Monte Carlo estimate: the mean over many draws is the output without dropout."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, size, 5, dtype=torch.float64) for size in (3, 7, 7))
    score = scores.Gaussian(2.0)

    def draw(_: Tensor) -> Tensor:
        return dikkat.attend(query, key, value, score=score, dropout=0.5, impl=way)

    drawn = torch.vmap(draw, randomness="different")(torch.zeros(997))
    assert not torch.equal(drawn[0], drawn[1])
    exact = dikkat.attend(query, key, value, score=score, impl="reference")
    error = (drawn.mean(0) - exact).abs() / (drawn.std(0) / len(drawn) ** 0.5)
    assert error.max() < 5


# Additive projections are autocast's to round.
@kit.each(("way", "case"), [(w, c) for w in TRACED for c in KINDS if c != "additive" and runs(w, c)])
def test_autocast_leaves_attention_in_the_types_that_come(way: str, case: str) -> None:
    made = kit.call(case, "lengths").to(torch.float32)
    with kit.way(way) as impl:
        expected = made.run(impl)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            came = made.run(impl)
            came.sum().backward()
    torch.testing.assert_close(came, expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_autocast_and_a_memory_whose_score_has_weights(dtype: torch.dtype) -> None:
    query, key, value = (torch.randn(2, n, 3).to(dtype) for n in (3, 5, 5))
    score = scores.Gaussian([1.0, 1.5, 2.0], learnable=True).to(dtype)
    expected = dikkat.attend(query, key, value, score=score)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        came = dikkat.attend_memory(query, dikkat.prepare(key, value, score=score))
    torch.testing.assert_close(came, expected)


@pytest.mark.parametrize("way", GENERAL)
def test_autocast_projects_in_half_and_accumulates_in_single(way: str) -> None:
    made = kit.call("additive", "lengths").to(torch.float32)
    with kit.way(way) as impl, torch.autocast("cpu", dtype=torch.bfloat16):
        state, out = made.state(impl), made.run(impl)
        out.sum().backward()
    assert state.mean.dtype == out.dtype == torch.float32
    torch.testing.assert_close(out, made.run(impl), rtol=0.05, atol=0.05)
    assert made.query.grad is not None


@kit.each("dtype", [torch.float16, torch.bfloat16])
@kit.each("way", [way for way in TRACED if runs(way, "dot")])
def test_a_bias_is_not_rounded_to_half(way: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, n, 8).to(dtype) for n in (3, 5, 5))
    with kit.way(way) as impl:
        for bias in (torch.full((1, 5), -1e5), 1000 + torch.linspace(0, 1, 5)[None]):
            came = dikkat.attend(query, key, value, score=scores.Dot(), key_bias=bias, impl=impl)
            exact = dikkat.attend(
                query.double(), key.double(), value.double(), score=scores.Dot(), key_bias=bias.double()
            )
            torch.testing.assert_close(came.double(), exact, rtol=0, atol=8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("way", [way for way in TRACED if runs(way, "dot")])
def test_autocast_with_mixed_types_and_a_bias(way: str) -> None:
    query, key, value = torch.randn(2, 3, 8).bfloat16(), torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    bias = torch.randn(2, 5)
    with kit.way(way) as impl, torch.autocast("cpu", dtype=torch.bfloat16):
        came = dikkat.attend(query, key, value, score=scores.Dot(), key_bias=bias, impl=impl)
    expected = dikkat.attend(query.float(), key, value, score=scores.Dot(), key_bias=bias)
    torch.testing.assert_close(came, expected, rtol=1e-5, atol=1e-5)


# --- operators


OPERATORS = [name for name in GENERAL if hasattr(torch.ops.dikkat, name)]


def test_chunked_is_an_operator() -> None:
    assert "chunked" in OPERATORS


# An operator's code for autograd, shapes and vmap is one for all kinds of scores.
@pytest.mark.parametrize(
    ("name", "case", "restriction"),
    pairwise({"name": OPERATORS, "case": KINDS, "restriction": ["none", "lengths", "all", *kit.REFUSED]}),
)
def test_opcheck(name: str, case: str, restriction: str) -> None:
    made = kit.call(case, restriction)
    operands: list[Any] = []
    operator = getattr(torch.ops.dikkat, name).default

    class Catch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is operator:
                operands.append(args)
            return func(*args, **(kwargs or {}))

    with Catch():
        made.run(name, return_weights=True)
    (args,) = operands
    detached = tuple(a.detach().requires_grad_(a.is_floating_point()) if isinstance(a, Tensor) else a for a in args)
    torch.library.opcheck(operator, detached)


def test_many_batch_elements_do_not_make_small_tiles() -> None:
    """Leading dimensions are cut before tiles become so small that there are thousands of them."""
    made = kit.call("additive", "none")
    large = [t.detach()[:1, :1].expand(1009, 3, -1, -1) for t in (made.query, made.key, made.value)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked, "_TILE", 2**16)
        tiles = []
        patch.setattr(chunked, "_state", lambda tile, run=chunked._state: tiles.append(tile) or run(tile))
        came = dikkat.attend(*large, score=made.score, impl="chunked")
    assert len(tiles) <= 1009
    torch.testing.assert_close(came, made.run()[:1, :1].expand_as(came), rtol=1e-12, atol=1e-12)
