"""PyTorch's fast path: when it runs, that it runs, and what is not copied for it."""

import threading
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import dikkat
import kit
from dikkat import scores
from dikkat._core import implementations, validation
from dikkat._core.implementations import BACKENDS, sdpa

FUSED = "_scaled_dot_product_flash_attention_for_cpu"


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """ "auto" chooses for these small calls as it does for large ones."""
    for quicker in ("_prefers_reference", "_prefers_few"):
        monkeypatch.setattr(f"dikkat._core.implementations.{quicker}", lambda problem: False)


class Operators(TorchDispatchMode):
    """The names of PyTorch's operators that run meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


# The same shape (2, 10, size) in memory: side by side, turned, with gaps, from behind, shared.
LAYOUTS: dict[str, Any] = {
    "side by side": lambda size: torch.randn(2, 10, size),
    "turned": lambda size: torch.randn(2, size, 10).mT,
    "every other": lambda size: torch.randn(2, 10, 2 * size)[..., ::2],
    "a part": lambda size: torch.randn(2, 13, size + 3)[:, 3:, 3:],
    "rows of a column": lambda size: torch.randn(2, 10, 1).expand(2, 10, size),
    "one for all": lambda size: torch.randn(10, size).expand(2, 10, size),
}


@kit.each("dtype", kit.DTYPES)
@kit.each("size", [1, 7, 8, 16])
@kit.each("layout", LAYOUTS)
def test_the_fast_path_takes_every_layout(layout: str, size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = LAYOUTS[layout](size).to(dtype)
    x = x.as_strided(x.shape, x.stride()).requires_grad_()
    with Operators() as ran:
        came = dikkat.attend(x, x, x, score=scores.ScaledDot())
    assert FUSED in ran.names
    exact = x.detach().double().requires_grad_()
    expected = (exact @ exact.mT / size**0.5).softmax(-1) @ exact
    upstream = torch.randn(2, size, 10).mT.to(dtype)  # turned as well
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(came.double(), expected, rtol=0, atol=8 * eps * x.abs().max().item())
    (grad,), (exact_grad,) = (
        torch.autograd.grad(out, leaf, upstream.to(out.dtype)) for out, leaf in ((came, x), (expected, exact))
    )
    torch.testing.assert_close(grad.double(), exact_grad, rtol=0, atol=64 * eps * exact_grad.abs().max().item())


def test_layers_and_heads_take_what_is_turned() -> None:
    x = torch.randn(2, 8, 10).mT
    exact = (x @ x.mT / 8**0.5).softmax(-1) @ x
    torch.testing.assert_close(dikkat.DotProductAttention()(x, x, x), exact)
    torch.testing.assert_close(dikkat.self_attention(x), (x @ x.mT).softmax(-1) @ x)
    heads = torch.randn(2, 3, 8, 10).mT
    for mixed in ((heads, heads, heads), (heads, heads.contiguous(), heads), (heads.contiguous(), heads, heads)):
        torch.testing.assert_close(
            dikkat.DotProductAttention()(*mixed), (heads @ heads.mT / 8**0.5).softmax(-1) @ heads
        )


@pytest.mark.parametrize("leaves", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)])
def test_a_gradient_for_parts_only(leaves: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    given = [torch.randn(2, 3, n, 8, dtype=torch.float64) for n in (5, 7, 7)]
    wanted = [given[i].requires_grad_() for i in leaves]
    lens = torch.tensor([3, 7])
    hidden = torch.arange(7) >= lens[:, None, None, None]
    query, key, value = given
    exact = (query @ key.mT / 8**0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ value
    with kit.record() as ran:
        came = dikkat.attend(*given, score=scores.ScaledDot(), valid_lens=lens)
    assert ran == ["sdpa"]
    torch.testing.assert_close(
        torch.autograd.grad(came.sin().sum(), wanted), torch.autograd.grad(exact.sin().sum(), wanted)
    )


@pytest.mark.parametrize(("one", "other", "told"), [(1e20, 1e25, 2), (1e19, 1e19, 3)])
def test_a_product_that_overflows_reaches_only_the_rows_that_see_it(one: float, other: float, told: int) -> None:
    """Of finite numbers: ∞ − ∞ is no way to hide it. In the second case only the sum of eight products overflows."""
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 3, 8), torch.randn(1, 5, 8), torch.randn(1, 5, 8)
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[0, 4] = mask[1, 4] = False
    query[0, 1], key[0, 4] = one, other
    key[0, :4] /= one
    came = dikkat.attend(query, key, value, score=scores.Dot(), mask=mask)
    exact = (query.double() @ key.double().mT).masked_fill(~mask, -torch.inf).softmax(-1) @ value.double()
    torch.testing.assert_close(came[0, :told].double(), exact[0, :told], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("impl", kit.BACKENDS)
def test_under_autocast_what_is_turned_runs_or_is_refused(impl: str) -> None:
    torch.manual_seed(0)
    layer = dikkat.MultiHeadAttention(8, 2)
    x = torch.randn(2, 8, 10).mT.requires_grad_()
    exact = layer(x, x, x, impl="reference")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for given in ((x, x, x), (x.bfloat16(), x, x)):
            try:
                came = layer(*given, torch.tensor([10, 10]), impl=impl)
            except ValueError as error:
                assert impl in ("triton", "products"), error  # noqa: PT017
                return
            torch.testing.assert_close(came.float(), exact, rtol=0, atol=0.1)
            came.sum().backward()
    assert x.grad is not None


def test_where_the_fast_path_is_switched_off_it_says_so() -> None:
    x = torch.randn(1, 5, 8)
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        with pytest.raises(ValueError, match="switched off"):
            dikkat.attend(x, x, x, score=scores.Dot(), impl="sdpa")
        torch.testing.assert_close(dikkat.attend(x, x, x, score=scores.Dot()), (x @ x.mT).softmax(-1) @ x)
    finally:
        torch.backends.cuda.enable_flash_sdp(True)


def test_no_switch_of_the_process_is_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread's own attention would run under it, and what is turned back there would stay so."""
    inside, over = threading.Event(), threading.Event()
    real = sdpa.scaled_dot_product_attention

    def waits(*arguments: Any, **options: Any) -> Tensor:
        inside.set()
        over.wait(10)
        return real(*arguments, **options)

    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", waits)
    x = torch.randn(1, 5, 8)
    thread = threading.Thread(target=lambda: dikkat.attend(x, x, x, score=scores.Dot(), impl="sdpa"))
    thread.start()
    inside.wait(10)
    try:
        assert torch.backends.cuda.math_sdp_enabled()
        assert torch.backends.cuda.mem_efficient_sdp_enabled()
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("longest", [11, 5])
def test_what_fits_is_not_copied(longest: int) -> None:
    """Zeros that are not needed, and lengths that hide nothing, or the same from all."""
    query, key, value = torch.randn(2, 1, 8), torch.randn(2, 11, 8), torch.randn(2, 11, 8)
    with Operators() as ran:
        came = dikkat.attend(query, key, value, score=scores.ScaledDot(), valid_lens=torch.full((2,), longest))
    assert FUSED in ran.names
    assert not {"constant_pad_nd", "clone", "masked_fill", "where", "copy_", "_to_copy"} & set(ran.names)
    exact = (query @ key[:, :longest].mT / 8**0.5).softmax(-1) @ value[:, :longest]
    torch.testing.assert_close(came, exact)


@pytest.mark.parametrize("score", [scores.Dot(), scores.ScaledDot()], ids=["dot", "scaled dot"])
def test_hidden_keys_are_copied_only_where_they_would_have_an_effect(
    score: scores.Score, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: list[Any] = []
    real = BACKENDS["sdpa"]
    kept = kit.replace(real, run=lambda problem, *found: met.append(problem) or real.run(problem, *found))
    monkeypatch.setitem(BACKENDS, "sdpa", kept)
    torch.manual_seed(0)
    lens = torch.tensor([3, 11])
    for query_size, hidden in ((1.0, 1.0), (1.0, 1e30), (1e30, 1e30), (1.0, torch.inf), (1.0, torch.nan)):
        query, key, value = query_size * torch.randn(2, 5, 8), torch.randn(2, 11, 8), torch.randn(2, 11, 8)
        key[0, 3:] *= hidden
        leaves = [t.clone().requires_grad_() for t in (query, key, value)]
        came = dikkat.attend(*leaves, score=score, valid_lens=lens)
        as_it_came = met[-1].key.data_ptr() == leaves[1].data_ptr()
        assert as_it_came == (query_size * hidden < 1e38)
        alone = [t.clone().requires_grad_() for t in (query[:1], key[:1, :3], value[:1, :3])]
        expected = dikkat.attend(*alone, score=score)
        torch.testing.assert_close(came[:1], expected)
        grads = torch.autograd.grad(came[0].sum(), leaves)
        exact = torch.autograd.grad(expected.sum(), alone)
        for grad, other in zip(grads, exact, strict=True):
            torch.testing.assert_close(grad[:1, : other.shape[1]], other)
            assert bool((grad[:1, other.shape[1] :] == 0).all())


@pytest.mark.parametrize("limits", [{"causal": True}, {"valid_lens": torch.tensor([3, 5]), "causal": True}])
def test_values_are_looked_at_once(limits: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    for place in (implementations, validation, sdpa):
        real = place.are_finite
        monkeypatch.setattr(place, "are_finite", lambda *given, real=real: looked.append(1) or real(*given))
    x = torch.randn(2, 5, 8)
    for use in (dikkat.attend, dikkat.implementations):
        looked.clear()
        use(x, x, x, score=scores.Dot(), **limits)
        assert len(looked) == 1


def test_heads_that_share_keys_are_read_without_a_copy() -> None:
    """The grouped queries of (B, G, H/G, n, d) beside keys of (B, G, 1, m, d)."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, of, length, 8) for of, length in ((5, 7), (1, 11), (1, 11)))
    folded = sdpa.fold(key, 8, torch.Size((2, 3, 5)))
    assert folded.data_ptr() == key.data_ptr()
    assert folded.stride(1) == 0
    expected = (query @ key.mT).softmax(-1) @ value
    for impl in ("sdpa", "numba", "chunked", "reference"):
        came = dikkat.attend(query, key, value, score=scores.Dot(), impl=impl)
        torch.testing.assert_close(came, expected, rtol=1e-5, atol=1e-5)


def test_a_bias_is_not_copied() -> None:
    x, bias = torch.randn(2, 3, 5, 8), torch.randn(5, 5, 3).permute(2, 0, 1)[None]
    problem = validation.problem_of_call(x, x, x, scores.Dot(), validation.Requested(), bias=bias)
    mask = sdpa._make_mask(problem).mask
    assert mask is not None
    assert mask.data_ptr() == bias.data_ptr()
    came = dikkat.attend(x, x, x, score=scores.Dot(), bias=bias, impl="sdpa")
    torch.testing.assert_close(came, (x @ x.mT + bias).softmax(-1) @ x, rtol=1e-5, atol=1e-5)


@kit.each(("keys", "longest"), [(1, 1), (5, 5), (15, 15), (16, 16), (53, 7), (53, 31)])
@kit.each("dtype", [torch.float32, torch.float64])
def test_a_query_of_nan_is_not_swallowed(keys: int, longest: int, dtype: torch.dtype) -> None:
    """PyTorch's kernel takes a row of NaN for one without keys where the keys do not fill a vector of the processor."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, rows, size, dtype=dtype) for rows, size in ((37, 3), (keys, 3), (keys, 5)))
    query[0, 11] = torch.nan
    lens, score = torch.full((2,), longest), scores.Dot()
    exact = (query.double() @ key[:, :longest].double().mT).softmax(-1) @ value[:, :longest].double()
    memory = dikkat.prepare(key, value, score=score, valid_lens=lens)
    came = [dikkat.attend(query, key, value, score=score, valid_lens=lens), dikkat.attend_memory(query, memory)]
    if keys == longest:
        came.append(dikkat.attend(query, key, value, score=score))
    for each in came:
        assert bool(each[0, 11].isnan().all())
        torch.testing.assert_close(each.double(), exact, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", ["bias", "key_bias"])
def test_a_bias_that_learns_is_no_obstacle_where_nothing_is_recorded(name: str) -> None:
    x = torch.randn(2, 31, 8)
    bias = torch.nn.Parameter(torch.randn(31, 31) if name == "bias" else torch.randn(31))
    with torch.no_grad(), kit.record() as ran:
        came = dikkat.attend(x, x, x, score=scores.Dot(), **{name: bias})
    assert ran == ["sdpa"]
    torch.testing.assert_close(came, (x @ x.mT + bias.detach()).softmax(-1) @ x, rtol=1e-5, atol=1e-5)
    assert "gradient" in str(dikkat.implementations(x, x, x, score=scores.Dot(), **{name: bias}))
