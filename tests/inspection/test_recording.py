"""Recording: what models look at is what their layers return as weights, and nothing else changes."""

import gc
import json
import threading
import tracemalloc
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

import dikkat
import kit
from command import run_before
from dikkat import scores
from dikkat._core import recording_hooks
from dikkat._core.implementations.numba import launch
from dikkat.recurrent import AttentionalGRU

EVERYTHING: dict[str, Any] = {"rows": [0, -1], "top_k": 2, "sums": True, "entropy": True, "argmax": True, "overview": 2}


def assert_tells(seen: dikkat.Inspection, weights: Tensor, atol: float = 1e-5) -> None:
    """The summaries are those of the weights."""
    weights = weights.detach().float()
    order = weights.sort(-1, descending=True)
    right = {
        "rows": weights[..., [0, -1], :],
        "top_weights": order.values[..., :2],
        "sums": weights.sum(-2),
        "entropy": torch.special.entr(weights).sum(-1),
    }
    for name, tensor in right.items():
        torch.testing.assert_close(getattr(seen, name), tensor, rtol=1e-5, atol=atol, msg=lambda m, n=name: f"{n}: {m}")
    best = weights.gather(-1, seen.argmax.clamp(min=0)[..., None])[..., 0]
    torch.testing.assert_close(best, order.values[..., 0], rtol=1e-5, atol=atol)
    assert seen.overview.shape[-2:] == (min(2, weights.shape[-2]), 2)


class Model(nn.Module):
    """An attention of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.own = dikkat.MultiHeadAttention(6, 2, score=scores.Additive(3, 3, 5), dropout=0.3)
        self.plain = nn.MultiheadAttention(6, 3, batch_first=True, dropout=0.2)
        self.blocks = nn.ModuleList([Fused(), Fused()])

    def forward(self, x: Tensor, lens: Tensor) -> Tensor:
        padding = torch.arange(x.shape[1]) >= lens[:, None]
        x = x + self.own(x, x, x, lens)
        x = x + self.plain(x, x, x, key_padding_mask=padding)[0]
        for block in self.blocks:
            x = x + block(x, ~padding)
        return x


class Fused(nn.Module):
    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, attn_mask=seen[:, None])


X, LENS = torch.randn(3, 7, 6, generator=torch.Generator().manual_seed(1)), torch.tensor([7, 2, 5])


def weights_of(model: Model) -> dict[str, Tensor]:
    """What each layer looks at, as itself tells, or as the formula has it."""
    x, padding = X, torch.arange(7) >= LENS[:, None]
    model.eval()
    output, own = model.own(x, x, x, LENS, return_weights=True)
    x = x + output
    output, plain = model.plain(x, x, x, key_padding_mask=padding, average_attn_weights=False)
    x, found = x + output, {"own": own, "plain": plain}
    for name in ("blocks.0", "blocks.1"):
        dots = (x @ x.mT / 6**0.5).masked_fill(padding[:, None], -torch.inf)
        found[name] = dots.softmax(-1)
        x = x + found[name] @ x
    return {name: weights.detach() for name, weights in found.items()}


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        ("plain", ["plain"]), ("blocks", ["blocks.0", "blocks.1"]), (1, ["blocks.1"]), (-2, ["blocks.0"]),
        ("*.1", ["blocks.1"]), (["own", -1], ["own", "blocks.1"]), ("b*.[0]", ["blocks.0"]),
    ],
)  # fmt: skip
def test_what_is_not_chosen_runs_untouched(layers: Any, names: list[str]) -> None:
    model, told = Model().eval(), []
    for name, module in model.named_modules():
        module.register_forward_pre_hook(
            lambda *_, name=name: told.append((name, recording_hooks.current_observer() is not None))
        )
    before = model(X, LENS)
    told.clear()
    with dikkat.record(model, layers=layers, sums=True) as trace:
        assert torch.equal(model(X, LENS), before)
    assert trace.names == names
    assert all(name.startswith(tuple(names)) for name, observed in told if observed)
    assert not any(m._forward_hooks for m in model.modules())


def test_weights_of_a_transformer_of_pytorchs() -> None:
    torch.manual_seed(1)
    model, x, y = nn.Transformer(6, 2, 2, 2, 7, batch_first=True).eval(), torch.randn(2, 5, 6), torch.randn(2, 3, 6)
    found = dikkat.attentions(model, x, y, heads=[1])
    assert isinstance(found, tuple)
    shapes = [[tuple(w.shape) for w in each] for each in (found, found.encoder_attentions, found.cross_attentions)]
    assert shapes == [[(2, 1, 3, 3)] * 2, [(2, 1, 5, 5)] * 2, [(2, 1, 3, 5)] * 2]
    layer = model.encoder.layers[0].self_attn
    torch.testing.assert_close(found.encoder_attentions[0][:, 0], layer(x, x, x, average_attn_weights=False)[1][:, 1])
    with dikkat.record(model, sums=True) as trace:
        model(x, y)
    with pytest.raises(ValueError, match="got no weights; expected a recording with weights=True"):
        trace.attentions()


@kit.each(
    ("asked", "error", "message"),
    [
        ({"layers": "blocks.7"}, ValueError, "layers: got 'blocks.7'; expected a module's name, such as 'blocks"),
        ({"layers": ["own", "plane"]}, ValueError, "layers: got 'plane'; .*such as 'plain'"),
        ({"layers": 2}, ValueError, "layers: got 2; expected -2 to 1"),
        ({"layers": []}, ValueError, "layers: got none"),
        ({"layers": 1.5}, TypeError, "layers: got 1.5; expected a module's name, a whole number or a pattern"),
        ({"layers": "plain.out_proj"}, ValueError, "layers: got 'plain.out_proj', in which no attention ran"),
        ({"layers": "plain", "heads": 3}, ValueError, r"heads: got 3; expected -3 to 2.*\(recording 'plain'\)"),
        ({"queries": [9]}, ValueError, r"queries: got 9; expected -7 to 6"),
        ({"heads": "two"}, TypeError, "heads: got 'two'; expected a list of whole numbers"),
        ({"weights": 1}, TypeError, "weights: got int; expected True or False"),
    ],
)
def test_a_choice_that_is_not_there(asked: dict[str, Any], error: type[Exception], message: str) -> None:
    model, fused = Model().eval(), F.scaled_dot_product_attention
    with pytest.raises(error, match=message), dikkat.record(model, **{"sums": True} | asked):
        model(X, LENS)
    assert nothing_is_left(model, fused)


def test_a_recording_inside_of_what_is_compiled_is_refused() -> None:
    model = Model().eval()

    @torch.compile(backend="eager", fullgraph=True)
    def inside(x: Tensor) -> Tensor:
        with dikkat.record(model, sums=True):
            return model(x, LENS)

    with pytest.raises(torch._dynamo.exc.Unsupported, match="record"):
        inside(X)


def test_every_layer_by_name_and_the_model_as_it_was() -> None:
    torch.manual_seed(0)
    model = Model().eval()
    before = model(X, LENS)
    with dikkat.record(model, **EVERYTHING) as trace:
        after = model(X, LENS)
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert trace.names == ["own", "plain", "blocks.0", "blocks.1"]
    for name, weights in weights_of(model).items():
        assert_tells(trace[name], weights)
    assert not any(t.requires_grad for _, _, seen in trace for t in seen.tensors().values())


def test_training_has_the_same_losses_and_gradients_and_weights_before_dropout() -> None:
    torch.manual_seed(0)
    model = Model().train()

    def gradients() -> list[Tensor]:
        torch.manual_seed(5)
        loss = model(X, LENS).square().sum()
        return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)]

    alone = gradients()
    with dikkat.record(model, **EVERYTHING) as trace:
        recorded = gradients()
    for one, other in zip(alone, recorded, strict=True):
        assert (one is None and other is None) or torch.equal(one, other)
    assert_tells(trace["own"], weights_of(model)["own"])
    assert float(trace["plain"].rows.sum(-1).sub(1).abs().max()) < 1e-5


def test_in_inference_what_is_recorded_is_a_by_product(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer, x = dikkat.MultiHeadAttention(12, 3, score=scores.Additive(4, 4, 5)).eval(), torch.randn(2, 331, 12)
    pooled: list[bool] = []
    run_before(monkeypatch, launch, "summarise", lambda *_, pools=False: pooled.append(pools))
    with torch.no_grad():
        before, weights = layer(x, x, x, LENS[:2] * 30), layer(x, x, x, LENS[:2] * 30, return_weights=True)[1]
        for recorders in (1, 2):
            with ExitStack() as stack:
                traces = [stack.enter_context(dikkat.record(layer, **EVERYTHING)) for _ in range(recorders)]
                torch.testing.assert_close(layer(x, x, x, LENS[:2] * 30), before, rtol=0, atol=0)
            for trace in traces:
                assert len(trace) == 1
                assert trace[""].output is None
                assert_tells(trace[""], weights)
    assert pooled == [True, True, False]
    with dikkat.record(layer, sums=True):
        assert layer(x, x, x).requires_grad
    assert pooled[3:] == [False]


def test_compiled_models_run_as_written_and_compiled_ones_come_back() -> None:
    model = Model().eval()
    compiled = torch.compile(model, backend="aot_eager")
    expected = compiled(X, LENS)
    for recorded in (model, compiled):
        with dikkat.record(recorded, sums=True) as trace:
            torch.testing.assert_close(compiled(X, LENS), expected)
        assert trace.names == ["own", "plain", "blocks.0", "blocks.1"]
    with torch.compiler.set_stance("fail_on_recompile"):
        torch.testing.assert_close(compiled(X, LENS), expected)


def test_under_autocast() -> None:
    model = Model().eval()
    with torch.autocast("cpu", torch.bfloat16), dikkat.record(model, **EVERYTHING) as trace:
        model(X, LENS)
        assert torch.is_autocast_enabled("cpu")
    for name, weights in weights_of(model).items():
        assert trace[name].sums.dtype == torch.float32
        assert_tells(trace[name], weights, atol=0.05)


@kit.each("masks", ["none", "causal", "booleans", "numbers", "both", "mixed"])
@kit.each("kind", ["one matrix", "three matrices", "bias and zero", "alone"])
def test_torch_multi_head_attention(masks: str, kind: str) -> None:
    torch.manual_seed(2)
    more = {"kdim": 5, "vdim": 4} if kind == "three matrices" else {}
    layer = nn.MultiheadAttention(
        6, 3, add_bias_kv=kind == "bias and zero", add_zero_attn=kind == "bias and zero", **more
    )
    lead = () if kind == "alone" else (2,)
    sizes = ((5, 6), (7, more.get("kdim", 6)), (7, more.get("vdim", 6)))
    query, key, value = (torch.randn(length, *lead, size) for length, size in sizes)
    block = torch.rand(5, 7) < 0.3
    padding = torch.zeros(*lead, 7, dtype=torch.bool)
    padding[..., 5:] = True
    given: dict[str, Any] = {
        "none": {},
        "causal": {"attn_mask": torch.ones(5, 7).triu(3).bool()},
        "booleans": {"attn_mask": block, "key_padding_mask": padding},
        "numbers": {"attn_mask": torch.randn(5, 7)},
        "both": {"attn_mask": torch.randn(3 * (lead or (1,))[0], 5, 7), "key_padding_mask": padding.float()},
        "mixed": {"attn_mask": torch.randn(5, 7), "key_padding_mask": padding.float().masked_fill(padding, -torch.inf)},
    }[masks]
    with dikkat.record(layer, **EVERYTHING) as trace:
        layer(query, key, value, need_weights=False, **given)
    weights = layer(query, key, value, average_attn_weights=False, **given)[1]
    assert_tells(trace[""], weights if lead else weights[None])


@kit.each("more", [{}, {"is_causal": True}, {"scale": 0.3}, {"enable_gqa": True}, {"dropout_p": 0.5}])
@kit.each("keys", [3, 5, 7])
def test_torch_fused_function(more: dict[str, Any], keys: int) -> None:
    query, key = torch.randn(2, 4, 5, 3), torch.randn(2, 2 if "enable_gqa" in more else 4, keys, 3)

    class Net(nn.Module):
        def forward(self) -> Tensor:
            return F.scaled_dot_product_attention(query, key, key, **more)

    net = Net()
    with dikkat.record(net, **EVERYTHING) as trace:
        net()
    keys_of = key.repeat_interleave(4 // key.shape[1], 1)
    dots = query @ keys_of.mT * more.get("scale", 3**-0.5)
    if "is_causal" in more:
        dots = dots.masked_fill(~torch.ones(5, keys).tril().bool(), -torch.inf)
    assert_tells(trace[""], dots.softmax(-1))


@pytest.mark.parametrize("score", [scores.Additive(7, 5, 11), scores.Cosine()])  # compiled, and in a loop
def test_recurrences_whole_and_step_by_step(score: scores.Score) -> None:
    torch.manual_seed(4)
    layer = AttentionalGRU(3, 5, size := 7 if score.pair == "additive" else 5, score)
    inputs, encoded, lens = torch.randn(2, 6, 3), torch.randn(2, 13, size), torch.tensor([13, 4])
    with torch.no_grad():
        memory = layer.prepare(encoded, lens)
        start = torch.zeros(1, 2, 5)
        right = layer(inputs, memory, start, return_weights=True)[2]
        with dikkat.record(nn.ModuleDict({"decoder": layer}), **EVERYTHING) as trace:
            assert layer(inputs, memory, start)[2] is None
            state = start
            for step in range(3):
                *_, state = layer.step(inputs[:, step], memory, state)
    assert trace.count("decoder") == 4
    assert trace["decoder", 0].lse is None
    assert_tells(trace["decoder", 0], right)
    for step in range(3):
        torch.testing.assert_close(trace["decoder", 1 + step].sums, right[:, step], rtol=1e-5, atol=1e-6)


def test_parts_that_take_no_hooks_are_passed_over() -> None:
    script = torch.jit.script(nn.Sequential(nn.Linear(6, 6), nn.ReLU()))
    model = nn.Sequential(script, dikkat.SelfAttention(6, 6, 6))
    with dikkat.record(model, sums=True) as trace:
        model(X)
    assert trace.names == ["1"]


def test_what_a_module_does_in_another_method_belongs_to_the_one_that_calls_it() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = dikkat.SelfAttention(6, 6, 6)

        def forward(self, x: Tensor) -> Any:
            return self.inner.forward(x)

    outer = Outer()
    with dikkat.record(outer, sums=True) as trace:
        outer(X)
        outer.inner.forward(X)  # of which nothing is called
    assert trace.names == [""]
    assert trace.count("") == 1


def test_a_module_that_runs_twice_has_two_records() -> None:
    layer = dikkat.SelfAttention(6, 6, 6)
    with dikkat.record(layer, sums=True) as trace:
        layer(X), layer(2 * X)
    assert not torch.equal(trace["", 0].sums, trace["", -1].sums)
    with pytest.raises(IndexError, match="got call 2; expected -2 to 1"):
        trace["", 2]
    with pytest.raises(KeyError, match="unknown module; expected one of ''"):
        trace["decoder"]


def test_what_a_backward_computes_again_is_not_recorded_again() -> None:
    layer = dikkat.MultiHeadAttention(6, 2)
    with dikkat.record(layer, sums=True) as trace:
        checkpoint(layer, X.clone().requires_grad_(), X, X, use_reentrant=False).sum().backward()
    assert trace.count("") == 1


def test_nested_recordings_each_have_theirs() -> None:
    model = Model().eval()
    with dikkat.record(model, entropy=True) as outer:
        with dikkat.record(model.blocks, sums=True) as inner:
            model(X, LENS)
        model.own(X, X, X)
    assert inner.names == ["0", "1"]
    assert [outer.count(name) for name in outer.names] == [2, 1, 1, 1]
    assert inner["0"].entropy is None
    assert outer["blocks.0"].sums is None


def test_threads_record_their_own_runs_alone() -> None:
    model, both = Model().eval(), threading.Barrier(3)
    traces: dict[int, dikkat.Trace] = {}

    def run(number: int) -> None:
        if number == 2:  # which records nothing
            both.wait()
            model(X, LENS)
            both.wait()
            return
        with dikkat.record(model, sums=True) as trace:
            both.wait()
            for _ in range(number + 1):
                model(X[: number + 1], LENS[: number + 1])
            both.wait()
        traces[number] = trace

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(run, range(3)))
    assert [[traces[number].count(name) for name in traces[number].names] for number in range(2)] == [[1] * 4, [2] * 4]
    assert [len(traces[number]["own", 0].sums) for number in range(2)] == [1, 2]


def nothing_is_left(model: nn.Module, fused: Callable[..., Tensor]) -> bool:
    hooks = [module._forward_hooks or module._forward_pre_hooks for module in model.modules()]
    stance = torch._dynamo.eval_frame._stance.stance
    modes = torch._C._len_torch_function_stack()
    return (
        not any(hooks)
        and stance == "default"
        and not modes
        and recording_hooks.current_observer() is None
        and (F.scaled_dot_product_attention is fused)
    )


def test_nothing_is_left_behind_by_a_call_that_raises() -> None:
    model, fused = Model(), F.scaled_dot_product_attention
    for error, run in (
        (ValueError, lambda: model(X, torch.tensor([8, 1, 1]))),  # a length beyond the keys
        (KeyboardInterrupt, lambda: (_ for _ in ()).throw(KeyboardInterrupt)),
    ):
        with pytest.raises(error), dikkat.record(model, sums=True):  # noqa: PT012
            assert not nothing_is_left(model, fused)
            next(iter(run()))
        assert nothing_is_left(model, fused)
    with pytest.raises(ValueError, match=r"rows: got 7; expected -7 to 6 \(recording 'own'\)"):  # noqa: SIM117
        with dikkat.record(model, rows=[7]):
            model(X, LENS)
    assert nothing_is_left(model, fused)


def test_a_model_without_attention_is_said_to_be_one() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    with (
        pytest.raises(ValueError, match=r"no attention ran.*The modules: Linear, ReLU, Sequential"),
        dikkat.record(model, sums=True),
    ):
        model(X)
    other = dikkat.SelfAttention(6, 6, 6)
    with pytest.raises(ValueError, match="no attention ran during the recording"), dikkat.record(model, sums=True):
        other(X)  # of another model


def test_tensors_that_stand_for_many_values_are_refused() -> None:
    layer = dikkat.SelfAttention(6, 6, 6)
    with (
        pytest.raises(ValueError, match=r"record: got a call of '' inside a transform of torch\.func"),
        dikkat.record(layer, sums=True),
    ):
        torch.func.vmap(layer)(X[:, None])


@pytest.mark.parametrize(
    ("model", "asked", "error", "message"),
    [
        ("model", {"sums": True}, TypeError, "model: got str; expected a torch.nn.Module"),
        (nn.Linear(3, 3), {"weights": False}, ValueError, "record: got nothing to record; expected weights, rows"),
        (nn.Linear(3, 3), {"overview": 0}, ValueError, "overview: got 0; expected a whole number of at least 1"),
    ],
)
def test_bad_input(model: Any, asked: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message), dikkat.record(model, **asked):
        pass


def test_a_damaged_file_is_no_trace(tmp_path: Path) -> None:
    model, path = Model().eval(), tmp_path / "trace.safetensors"
    with dikkat.record(model, **EVERYTHING) as trace:
        model(X, LENS), model.own(X, X, X)
    trace.save(path)
    whole = path.read_bytes()
    for cut in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match="truncated, damaged or not a trace"):
            dikkat.Trace.load(path)
    newer = whole.replace(b'\\"version\\": 5', b'\\"version\\": 6')
    assert newer != whole
    path.write_bytes(newer)
    with pytest.raises(ValueError, match=r"version: got 6; expected 5. Use the dikkat that wrote it, or record again"):
        dikkat.Trace.load(path)
    path.write_bytes(whole.replace(b'"own:1:sums"', b'"own:7:sums"'))
    with pytest.raises(ValueError, match="own:7:sums: got a tensor that belongs to no call"):
        dikkat.Trace.load(path)
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match="format: got None; expected 'dikkat trace'"):
        dikkat.Trace.load(path)


def test_a_trace_that_claims_many_calls_takes_no_memory(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    content = {"format": "dikkat trace", "version": 5, "tokens": []}
    content["calls"] = [["m", 1, -1, "self", "", 0, 0, [3], [0, 0]]] * 50_000
    save_file({"m:0:sums": torch.zeros(3)}, tmp_path / "trace", metadata={"dikkat": json.dumps(content)})
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="m:1: got no tensor"):
            dikkat.Trace.load(tmp_path / "trace")
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()


class Flexible(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return flex_attention(x, x, x)


class Direct(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_layers_of_flexible_attention_are_told() -> None:
    x = torch.randn(1, 2, 17, 8)
    mixed = nn.Sequential(Direct(), Flexible(), Flexible())
    with pytest.warns(UserWarning, match="record: '1', '2': not recorded") as told, dikkat.record(mixed) as trace:
        mixed(mixed(x))
    assert trace.names == ["0"]
    assert [Path(each.filename).name for each in told if "not recorded" in str(each.message)] == [Path(__file__).name]
    with warnings.catch_warnings():  # none of layers that were not chosen
        warnings.filterwarnings("error", message="record")
        with dikkat.record(mixed, layers=0):
            mixed(x)


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_a_checkpoint_that_is_recorded_and_computed_again_afterwards(impl: str) -> None:
    class Attending(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return dikkat.attend(x, x, x, score=scores.Dot(), causal=True, impl=impl)

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Attending()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)

    model, x = Checkpointed(), torch.randn(2, 5, 3, requires_grad=True)
    (right,) = torch.autograd.grad(model(x).square().sum(), x)
    with dikkat.record(model, top_k=2):
        out = model(x)
    (found,) = torch.autograd.grad(out.square().sum(), x)
    torch.testing.assert_close(found, right, rtol=1e-6, atol=1e-6)


def test_of_fewer_keys_than_the_largest_asked_for() -> None:
    model = Direct()
    with dikkat.record(model, top_k=5, argmax=True) as trace:
        for keys in (3, 7):
            model(torch.randn(2, 3, keys, 4))
    for keys, seen in ((3, trace["", 0]), (7, trace["", 1])):
        assert seen.top_weights.shape == seen.top_keys.shape == (2, 3, keys, 5)
        assert torch.equal(seen.top_keys[..., 0], seen.argmax)
        assert bool((seen.top_keys[..., 3:] == -1).all()) == (keys == 3)
        assert bool((seen.top_weights[..., 3:] == 0).all()) == (keys == 3)


def test_a_record_names_its_tensors_and_how_to_get_the_weights() -> None:
    model, x = nn.MultiheadAttention(6, 2, batch_first=True), torch.randn(1, 5, 6)
    with dikkat.record(model, entropy=True) as trace:
        model(x, x, x, need_weights=False)
    assert trace[0].weights is None
    hint = ". weights=True would also return the weights"
    assert repr(trace[0]) == f"Inspection of lse (1, 2, 5), entropy (1, 2, 5){hint}"
    with dikkat.record(model, weights=True) as trace:
        model(x, x, x, need_weights=False)
    assert "weights (1, 2, 5, 5)" in repr(trace[0])
    assert hint not in repr(trace[0])


class Packed(nn.Module):
    def forward(self, rows: Tensor, offsets: Tensor) -> Tensor:
        return dikkat.attend_ragged(rows, rows, rows, offsets, score=scores.Dot())


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"rows": [0]}, [[0], [], [0], [0]]),
        ({"rows": [3, -1]}, [[1], [], [3, 3], [0]]),
        ({"rows": torch.tensor([-3, 1])}, [[1], [], [1, 1], []]),
        ({"weights": True, "queries": 0}, [[0], [], [0], [0]]),
        ({"weights": True, "queries": [-1, 2]}, [[1], [], [3, 2], [0]]),
        ({"weights": True, "queries": slice(1, 3)}, [[1], [], [1, 2], []]),
        ({"rows": [1], "queries": [-1, 0]}, [[0], [], [0], [0]]),
    ],
    ids=str,
)
def test_a_sequence_is_recorded_without_the_rows_it_lacks(asked: dict[str, Any], expected: list[list[int]]) -> None:
    torch.manual_seed(0)
    x, sequences, model = torch.randn(7, 3), [slice(0, 2), slice(2, 2), slice(2, 6), slice(6, 7)], Packed()
    with dikkat.record(model, **asked) as trace:
        model(x, torch.tensor([0, 2, 2, 6, 7]))
    for (_, seen), own, rows in zip(trace.calls(), sequences, expected, strict=True):
        right = (x[own] @ x[own].T).softmax(-1)[rows]
        torch.testing.assert_close(seen.rows if "rows" in asked else seen.weights, right)
    assert repr(trace)
    with dikkat.record(model, **asked) as trace:
        model(x[:0], torch.tensor([0, 0]))
    assert len(trace) == 1
    with pytest.raises(ValueError, match=r"rows: got 4; expected -4 to 3$"), dikkat.record(model, rows=[4]):
        model(x, torch.tensor([0, 2, 2, 6, 7]))


@pytest.mark.parametrize("asked", [{"weights": True}, {"top_k": 4}, {}, {"top_k": 4, "sums": True}], ids=str)
def test_tables_and_pages_leave_out_an_empty_sequence(asked: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, model, page = torch.randn(6, 3), Packed(), tmp_path / "page.html"
    with torch.no_grad(), dikkat.record(model, **asked) as trace:
        model(x, torch.tensor([0, 2, 2, 6]))
    right = torch.cat([(each @ each.T).softmax(-1).flatten() for each in (x[:2], x[2:])])
    torch.testing.assert_close(torch.tensor(sorted(trace.frame()["weight"])), right.sort().values)
    assert list(trace.scores()["queries"] > 0) == [True, True]
    trace.to_html(page)
    for shape in ((2, 2, 0, 4), (0, 3)):
        with dikkat.record(sdpa := Crossed(), **asked) as trace:
            sdpa(torch.randn(shape), torch.randn(*shape[:-2], 3, shape[-1]))
        assert (len(trace.frame()), len(trace.scores())) == (0, 0)
        trace.to_html(page)


class Crossed(nn.Module):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, key)


def test_an_unbatched_call_has_a_batch_of_one():
    layer, x = nn.MultiheadAttention(6, 2), torch.randn(5, 6)
    with dikkat.record(layer, weights=True) as trace:
        layer(x, x, x, need_weights=False)
    _, right = layer(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(trace[""].weights, right[None])
    assert len(trace.scores()) == 2


def test_a_recording_keeps_no_arguments_of_a_softmax() -> None:
    """Such as those of a large vocabulary, which no attention uses."""
    arguments: list[Any] = []

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.head = dikkat.MultiHeadAttention(6, 2), torch.nn.Linear(6, 31)

        def forward(self, x: Tensor) -> Tensor:
            logits = self.head(self.attention(x, x, x))
            arguments.append(weakref.ref(logits))
            return logits.softmax(-1)

    model = Model()
    with dikkat.record(model, max_score=True), torch.no_grad():
        model(torch.randn(2, 5, 6))
        gc.collect()
        assert arguments[0]() is None
