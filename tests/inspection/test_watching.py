"""Watching a training: statistics of each head, next to formulas in float64, and what a watch leaves as it was."""

import copy
import csv
import logging
import math
import threading
import warnings
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import dikkat
from dikkat._core import recording_hooks
from dikkat.inspection import observation
from dikkat.recurrent import AttentionalGRU

BATCH, HEADS, QUERIES, SIZE = 2, 3, 11, 5
LENGTHS = torch.tensor([11, 7])
FIELDS = ("max_score", "entropy", "first_mass")


class Block(nn.Module):
    """Self-attention with a mask that hides all keys of the last two queries of the second element."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(HEADS * SIZE, 3 * HEADS * SIZE)

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(part.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for part in self.project(x).chunk(3, -1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        return x + F.scaled_dot_product_attention(q, k, v, attn_mask=MASK).transpose(1, 2).flatten(-2)


MASK = (torch.arange(QUERIES) < LENGTHS[:, None, None, None]).expand(BATCH, 1, QUERIES, QUERIES).clone()
MASK[1, :, -2:] = False


class Model(nn.Module):
    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.fails: BaseException | None = None

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
            if self.fails is not None:
                raise self.fails
        return x


def batch(seed: int = 0) -> Tensor:
    return torch.randn(BATCH, QUERIES, HEADS * SIZE, generator=torch.Generator().manual_seed(seed))


def statistics_of(model: Model, x: Tensor) -> list[tuple[str, int, list[float]]]:
    """Module, head and the three statistics, query by query in float64."""
    model, x, found = copy.deepcopy(model).double(), x.double(), []
    with torch.no_grad():
        for number, block in enumerate(model.blocks):
            q, k, _ = block.heads(x)
            for head in range(HEADS):
                rows = [(q[b, head, i] @ k[b, head, : LENGTHS[b]].T / SIZE**0.5)
                        for b in range(BATCH) for i in range(QUERIES) if MASK[b, 0, i].any()]  # fmt: skip
                weights = [row.softmax(-1) for row in rows]
                means = [
                    float(torch.stack([-(w * w.log()).sum() for w in weights]).mean()),
                    float(torch.stack([w[0] for w in weights]).mean()),
                ]
                found.append((f"blocks.{number}", head, [float(max(row.max() for row in rows)), *means]))
            x = block(x)
    return found


def assert_statistics(rows: list[Any], model: Model, x: Tensor) -> None:
    expected = statistics_of(model, x)
    assert [(row.layer, row.module, row.head) for row in rows] == [
        (int(name[-1]), name, head) for name, head, _ in expected
    ]
    for row, (_, _, numbers) in zip(rows, expected, strict=True):
        assert row[4:] == pytest.approx(numbers, rel=2e-5, abs=2e-5)


def table_of(path: Path) -> list[dict[str, str]]:
    return [*csv.DictReader(path.read_text().splitlines())]


def untouched(model: nn.Module) -> bool:
    """No hook is left, and nothing observes this thread."""
    observed = recording_hooks.current_observer() is not None or getattr(observation._thread, "observation", None)
    return not observed and not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_the_statistics_are_those_of_the_formulas_in_every_watched_step() -> None:
    model, told = Model(), dict[int, dict[str, float]]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    with dikkat.watch(model, every=3, log=lambda step, values: told.update({step: values})) as watched:
        for step in range(7):
            before, x = copy.deepcopy(model), batch(step)
            model.eval()(x)  # neither is a step
            with torch.no_grad():
                model.train()(x)
            model(x).square().mean().backward()
            if step % 3 == 0:
                assert_statistics(watched.latest, before, x)
                assert {row.step for row in watched.latest} == {step}
            optimizer.step()
            optimizer.zero_grad()
    assert untouched(model)
    assert list(told) == [0, 3, 6]
    row = watched.latest[4]
    assert [told[6][f"attention/blocks.1/head 1/{name}"] for name in FIELDS] == list(row[4:])
    assert len(told[6]) == 2 * HEADS * 3
    frame = watched.frame()
    assert list(frame.columns) == ["step", "layer", "module", "head", *FIELDS]
    assert len(frame) == 3 * 2 * HEADS
    assert frame[(frame.step == 6) & (frame["head"] == 1)].entropy.tolist()[1] == row.entropy


def test_a_watch_changes_neither_results_nor_gradients_nor_random_numbers() -> None:
    def train(watches: bool) -> list[Tensor]:
        torch.manual_seed(3)
        layer = nn.TransformerEncoderLayer(12, 3, 17, batch_first=True, dropout=0.3)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        optimizer = torch.optim.Adam(model.parameters())
        with dikkat.watch(model, every=2) if watches else nullcontext():
            for _ in range(4):
                model(torch.randn(2, 7, 12)).square().mean().backward()
                optimizer.step()
        return [*model.parameters()]

    for got, expected in zip(train(True), train(False), strict=True):
        assert torch.equal(got, expected)


def test_calls_of_a_module_are_joined_and_a_repeated_layer_is_named() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: Tensor) -> Tensor:
            return self.block(x) + self.block(3 * x)

    model, x = Twice(), batch()
    with dikkat.watch(model) as watched:
        model(x)
    single = Model(1)
    single.blocks[0] = model.block
    once, again = statistics_of(single, x), statistics_of(single, 3 * x)
    for row, (_, _, first), (_, _, second) in zip(watched.latest, once, again, strict=True):
        expected = [max(first[0], second[0]), (first[1] + second[1]) / 2, (first[2] + second[2]) / 2]
        assert row[4:] == pytest.approx(expected, rel=2e-5, abs=2e-5)

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Block()])

        def forward(self, x: Tensor) -> Tensor:
            return self.blocks[0](self.blocks[0](x))

    names: list[str] = []
    with dikkat.watch(Shared(), log=lambda _, values: names.extend(values)) as watched:
        watched._model(x)
    assert [(row.layer, row.head) for row in watched.latest] == [(n, head) for n in range(2) for head in range(HEADS)]
    assert "attention/blocks.0/layer 1/head 2/entropy" in names
    assert len({*names}) == 2 * HEADS * 3


def test_a_model_that_is_an_attention_itself() -> None:
    model, x = nn.MultiheadAttention(12, 3, batch_first=True), torch.randn(2, 7, 12)
    with dikkat.watch(model) as watched:
        model(x, x, x)
    with dikkat.record(model, entropy=True) as trace:
        model(x, x, x)
    assert [(row.module, row.head) for row in watched.latest] == [("model", head) for head in range(3)]
    torch.testing.assert_close(
        torch.tensor([row.entropy for row in watched.latest]), trace[""].entropy.mean((0, 2)), rtol=1e-5, atol=1e-6
    )


def test_a_recurrence_has_no_scores_and_its_ended_queries_do_not_count(tmp_path: Path) -> None:
    layer = AttentionalGRU(6, 3, 4, dikkat.scores.Additive(4, 3, 5))
    inputs, lengths = torch.randn(2, 5, 6), torch.tensor([5, 2])
    memory = layer.prepare(torch.randn(2, 7, 4), torch.tensor([7, 4]))
    state = torch.zeros(1, 2, 3)
    weights = layer(inputs, memory, state, lengths=lengths, return_weights=True)[2].detach().double()
    live = torch.cat([weights[0], weights[1, :2]])
    told: list[dict[str, float]] = []
    with dikkat.watch(layer, log=lambda _, values: told.append(values)) as watched:
        layer(inputs, memory, state, lengths=lengths)
    (row,) = watched.latest
    assert math.isnan(row.max_score)
    assert row.entropy == pytest.approx(float(torch.special.entr(live).sum(-1).mean()), rel=1e-5)
    assert row.first_mass == pytest.approx(float(live[:, 0].mean()), rel=1e-5)
    assert [*told[0]] == ["attention/model/head 0/entropy", "attention/model/head 0/first_mass"]
    with dikkat.watch(layer, log=tmp_path / "gru.csv"):
        layer(inputs, memory, state, lengths=lengths)
    (line,) = table_of(tmp_path / "gru.csv")
    assert line["max_score"] == ""
    assert float(line["entropy"]) == pytest.approx(row.entropy, rel=1e-5)
    with dikkat.watch(layer, log=tmp_path / "gru.html"):  # without a picture of scores
        layer(inputs, memory, state, lengths=lengths)
    assert "Largest score" not in (tmp_path / "gru.html").read_text()


# --- logs


class Scalars:
    def __init__(self) -> None:
        self.rows: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.rows.append((tag, scalar_value, global_step))


class Run:
    def __init__(self) -> None:
        self.rows: list[tuple[str, float, int]] = []

    def log(self, data: dict[str, float], step: int) -> None:
        self.rows += [(name, value, step) for name, value in data.items()]


@pytest.mark.parametrize("kind", [Scalars, Run])
def test_writers_and_runs_get_each_number(kind: type[Any]) -> None:
    model, log = Model(1), kind()
    with dikkat.watch(model, every=1, log=log) as watched:
        for step in range(2):
            model(batch(step))
    expected = [(f"attention/blocks.0/head {row.head}/{name}", getattr(row, name), row.step)
                for row in watched._rows for name in FIELDS]  # fmt: skip
    assert log.rows == expected


def test_tensorboard_reads_the_numbers(tmp_path: Path) -> None:
    writers = pytest.importorskip("torch.utils.tensorboard")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    model, writer = Model(1), writers.SummaryWriter(str(tmp_path))
    with dikkat.watch(model, every=2, log=writer) as watched:
        for step in range(3):
            model(batch(step))
    writer.close()
    accumulator = events.EventAccumulator(str(tmp_path)).Reload()
    scalars = accumulator.Scalars("attention/blocks.0/head 2/entropy")
    assert [event.step for event in scalars] == [0, 2]
    assert scalars[1].value == pytest.approx(watched.latest[2].entropy, rel=1e-6)


def test_files_are_whole_while_the_training_runs_and_at_its_end(tmp_path: Path) -> None:
    model, path = Model(), tmp_path / "attention.csv"
    with dikkat.watch(model, every=1, log=str(path)) as watched:
        for step in range(3):
            model(batch(step))
            assert path.read_text().startswith("step,layer,module,head,max_score,entropy,first_mass\n0,0,blocks.0,0,")
            assert path.read_text().endswith("\n")
    lines = table_of(path)
    assert [int(line["step"]) for line in lines] == [row.step for row in watched._rows]
    assert [float(line["entropy"]) for line in lines] == pytest.approx([row.entropy for row in watched._rows], rel=1e-5)
    assert [*tmp_path.iterdir()] == [path]


def test_a_page_has_a_row_for_each_head_and_the_warnings(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    model, path = Model(), tmp_path / "attention.html"
    with warnings.catch_warnings(action="ignore"), dikkat.watch(model, every=2, log=path, max_score=0):
        for step in range(3):
            model(batch(step))
    page = path.read_text(encoding="utf-8")
    for text in ("6 heads, steps 0 to 2", "Largest score", "Mean entropy", "blocks.1", "&#x27;blocks.0&#x27; has a sc"):
        assert text in page
    assert page.count("<li>") == 6
    assert "http" not in page.replace("http://www.w3.org/", "").replace("http://purl.org", "").split("</style>")[0]


@pytest.mark.parametrize("ending", ["csv", "html"])
def test_a_file_continues_at_the_first_step(tmp_path: Path, ending: str) -> None:
    if ending == "html":
        pytest.importorskip("matplotlib")
    path, complete = tmp_path / f"a <b>.{ending}", tmp_path / f"complete.{ending}"
    options: dict[str, Any] = {"every": 2, "max_score": 0, "min_entropy": 0}

    def train(log: Path, passes: range) -> Any:
        with warnings.catch_warnings(action="ignore"), dikkat.watch(
            Model(), log=log, first_step=passes.start, **options
        ) as watched:  # fmt: skip
            for step in passes:
                watched._model(batch(step))
        return watched

    expected = train(complete, range(7))
    train(path, range(5))
    watched = train(path, range(3, 7))  # a checkpoint after three passes; steps 3 and 4 run again
    assert [row.step for row in watched._rows[:: 2 * HEADS]] == [0, 2, 4, 6]
    for row, other in zip(watched._rows, expected._rows, strict=True):
        assert row[:4] == other[:4]
        assert row[4:] == pytest.approx(other[4:], rel=1e-5)
    if ending == "csv":
        assert path.read_text() == complete.read_text()
    else:
        assert path.read_text().count("has a score of") == complete.read_text().count("has a score of") + 2 * HEADS
    path.write_text("Something else.")
    with pytest.raises(ValueError, match=f"log: got '.*{ending}' of another program; expected a file of dikkat.watch"):
        dikkat.watch(Model(), log=path, first_step=3)


def test_a_training_that_continues_without_a_watched_pass_gives_no_warning(tmp_path: Path) -> None:
    path = tmp_path / "attention.csv"
    model = Model()
    with warnings.catch_warnings(action="error"), dikkat.watch(model, every=5, log=path, first_step=6):
        model(batch())
    assert not path.exists()


def test_an_error_of_a_log_reaches_the_caller_and_the_next_step_is_watched() -> None:
    model, calls = Model(), list[int]()

    def log(step: int, values: dict[str, float]) -> None:
        calls.append(step)
        raise OSError("the disk is full")

    with dikkat.watch(model, every=1, log=log):
        for _ in range(2):
            with pytest.raises(OSError, match="the disk is full"):
                model(batch())
    assert calls == [0, 1]
    assert untouched(model)


# --- warnings


def scaled(model: Model, factor: float) -> Model:
    """Multiply queries and keys of head 1 of block 1."""
    with torch.no_grad():
        for part in range(2):
            rows = slice((part * HEADS + 1) * SIZE, (part * HEADS + 2) * SIZE)
            model.blocks[1].project.weight[rows] *= factor
            model.blocks[1].project.bias[rows] *= factor
    return model


def test_a_head_that_runs_away_warns_once() -> None:
    model, largest = scaled(Model(), 20), statistics_of(scaled(Model(), 20), batch())[HEADS + 1][2][0]
    assert largest > 100
    with warnings.catch_warnings(record=True) as caught, dikkat.watch(model, every=1, min_entropy=0):
        warnings.simplefilter("always")
        for _ in range(3):
            model(batch())
    (warning,) = caught
    expected = f"watch: head 1 of 'blocks.1' has a score of {largest:.4g} in step 0, above 100. Lower the learning rate"
    assert str(warning.message).startswith(expected)


def test_a_head_that_collapses_warns_after_some_watched_steps_in_a_row() -> None:
    model = scaled(Model(), 20)
    limit = 1.01 * statistics_of(model, batch())[HEADS + 1][2][1]
    assert limit < 0.2
    options: dict[str, Any] = {"every": 2, "patience": 2, "min_entropy": limit, "max_score": math.inf}
    with warnings.catch_warnings(), dikkat.watch(model, **options):
        warnings.simplefilter("error")
        for blocks in (model.blocks, Model().blocks, model.blocks):  # the second is healthy
            model.blocks = blocks
            model(batch())
            model(batch())
        message = "head 1 of 'blocks.1' attends to single keys: its .* in 2 watched steps, up to step 6"
        with pytest.raises(UserWarning, match=message):
            model(batch())
        for _ in range(4):
            model(batch())


def test_short_texts_say_nothing_about_a_head() -> None:
    model = nn.MultiheadAttention(4, 1, batch_first=True)
    with warnings.catch_warnings(), dikkat.watch(model, every=1, min_entropy=3, patience=1) as watched:
        warnings.simplefilter("error")
        for keys in (1, 7):
            x = torch.randn(2, keys, 4)
            model(x, x, x)
        assert watched.latest[0].entropy < 3
        x = torch.randn(2, 8, 4)
        with pytest.raises(UserWarning, match="attends to single keys"):
            model(x, x, x)


# --- what may go wrong


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
def test_a_pass_that_fails_is_not_counted_among_the_statistics(error: BaseException) -> None:
    model = Model()
    with dikkat.watch(model, every=1) as watched:
        model.fails = error
        with pytest.raises(type(error)):
            model(batch())
        assert watched.latest == []
        model.fails = None
        model(batch())
        assert {row.step for row in watched.latest} == {1}
        assert_statistics(watched.latest, model, batch())
    assert untouched(model)


def test_a_pass_in_an_except_block_is_watched() -> None:
    model = Model()
    with dikkat.watch(model) as watched:
        try:
            raise MemoryError
        except MemoryError:
            model(batch())
    assert_statistics(watched.latest, model, batch())


def test_after_ctrl_c_the_end_of_the_watch_ends_the_recording() -> None:
    model = Model()
    watched = dikkat.watch(model)
    model.fails = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        model(batch())
    with pytest.warns(UserWarning, match="no forward pass was watched"):
        watched.close()
    assert untouched(model)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("entire", [True, False])
def test_checkpoints_do_not_count_their_second_pass(entire: bool, reentrant: bool) -> None:
    class Checkpointed(Model):
        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant)
            return x

    model, x = (Model if entire else Checkpointed)(), batch().requires_grad_()
    with dikkat.watch(model, every=1) as watched:
        for _ in range(2):
            output = checkpoint(model, x, use_reentrant=reentrant) if entire else model(x)
            output.square().mean().backward()
        if entire and reentrant:  # without gradients in its first pass
            assert watched.latest == []
            model(x)
            assert {row.step for row in watched.latest} == {0}
        else:
            assert {row.step for row in watched.latest} == {1}
    assert_statistics(watched.latest, model, x.detach())
    plain = Model()
    plain(x.detach()).square().mean().backward()
    for got, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(got.grad, 2 * expected.grad)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("when", ["before", "after", "passed", "ran before", "in place after", "blocks"])
def test_a_compiled_model_is_watched_and_runs_compiled_again(when: str) -> None:
    graphs = list[int]()

    def backend(graph: Any, inputs: Any) -> Any:
        def run(*arguments: Any) -> Any:
            graphs.append(1)
            return graph(*arguments)

        return run

    torch.compiler.reset()
    model = Model()
    called: nn.Module = model
    if when in ("before", "passed", "ran before"):
        called = torch.compile(model, backend=backend)
        if when == "ran before":
            called(batch())
            assert graphs.pop()
    if when == "blocks":
        for block in model.blocks:
            block.compile(backend=backend)
    with dikkat.watch(called if when == "passed" else model, every=2) as watched:
        if when == "after":
            called = torch.compile(model, backend=backend)
        if when == "in place after":
            model.compile(backend=backend)
        for step in range(4):
            graphs.clear()
            output = called(batch(step))
            torch.testing.assert_close(output, copy.deepcopy(Model()).forward(batch(step)))
            assert bool(graphs) == (step % 2 == 1)
            assert_statistics(watched.latest, model, batch(step - step % 2))
            assert {row.step for row in watched.latest} == {step - step % 2}
    assert getattr(observation._thread, "observation", None) is None
    torch.compiler.reset()


@pytest.mark.parametrize("when", ["passed", "in place before", "in place after", "wrapped"])
def test_a_model_compiled_as_one_graph(when: str) -> None:
    torch.compiler.reset()
    model, options = Model(), {"fullgraph": True, "backend": "aot_eager"}
    called: nn.Module = model
    if when in ("passed", "wrapped"):
        called = torch.compile(model, **options)
    if when == "in place before":
        model.compile(**options)
    with dikkat.watch(called if when == "passed" else model, every=2) as watched:
        if when == "in place after":
            model.compile(**options)
        for step in range(4):
            torch.testing.assert_close(called(batch(step)), Model()(batch(step)))
            assert_statistics(watched.latest, model, batch(step - step % 2))
    assert untouched(model)
    torch.compiler.reset()


def test_a_sequential_compiled_as_one_graph_has_to_be_passed() -> None:
    torch.compiler.reset()
    model = nn.Sequential(Model(1))
    called = torch.compile(model, fullgraph=True, backend="eager")
    message = r"expected the compiled model, dikkat.watch\(torch"
    with pytest.raises(torch._dynamo.exc.Unsupported, match=message), dikkat.watch(model):
        called(batch())
    with dikkat.watch(called) as watched:
        called(batch())
    assert [row.module for row in watched.latest] == ["0.blocks.0"] * HEADS
    torch.compiler.reset()


def test_a_pytorch_whose_compiler_dikkat_cannot_suspend_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch._C._dynamo.eval_frame.set_eval_frame")
    with pytest.raises(ImportError, match=r"torch: got .*; expected 2.6 to 2.13, for a watch"):
        dikkat.watch(Model())


def test_a_failed_pass_of_a_compiled_model_leaves_no_recording() -> None:
    torch.compiler.reset()
    model = Model()
    called = torch.compile(model, backend="eager")
    with dikkat.watch(model, every=1) as watched:
        model.fails = ValueError("mine")
        with pytest.raises(ValueError, match="mine"):
            called(batch())
        model.fails = None
        called(batch())
        assert {row.step for row in watched.latest} == {1}
    assert untouched(model)
    torch.compiler.reset()


def test_two_threads_share_the_steps() -> None:
    model, steps = Model(), list[int]()
    with dikkat.watch(model, every=2, log=lambda step, _: steps.append(step)):
        gate = threading.Barrier(2)

        def train() -> None:
            gate.wait()
            for _ in range(10):
                model(batch()).sum().backward()

        threads = [threading.Thread(target=train) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(steps) == [*range(0, 20, 2)]
    assert untouched(model)


def test_watches_recordings_and_changes_nest() -> None:
    model, x = Model(), batch()
    with ExitStack() as stack:
        first, second = (stack.enter_context(dikkat.watch(model, every=every)) for every in (1, 2))
        with dikkat.record(model, entropy=True) as trace:
            for _ in range(2):
                model(x)
        assert len(trace) == 4
        assert_statistics(first.latest, model, x)
        assert_statistics(second.latest, model, x)
        assert [watched.latest[0].step for watched in (first, second)] == [1, 0]
        start = {"start": slice(0, 1)}
        with dikkat.change(model, layers="blocks.1", heads=[1], spans=start, mass=0.75):
            model(x)
        assert first.latest[HEADS + 1].first_mass == pytest.approx(0.75)
        assert first.latest[HEADS + 1][:4] == (2, 1, "blocks.1", 1)
    assert untouched(model)


def test_copies_of_a_model_are_not_watched() -> None:
    model = Model()
    with dikkat.watch(model, every=1) as watched:
        mean = copy.deepcopy(model)
        mean(batch())
        assert watched.latest == []
        model(batch())
        assert watched.latest[0].step == 0
    mean(batch())


def test_layers_that_are_dropped_at_random_are_left_out() -> None:
    class Dropping(Model):
        kept: tuple[int, ...] = (0, 1)

        def forward(self, x: Tensor) -> Tensor:
            for number in self.kept:
                x = self.blocks[number](x)
            return x

    model = Dropping()
    with dikkat.watch(model, every=1) as watched:
        for kept in ((0, 1), (), (1,)):
            model.kept = kept
            model(batch())
    assert [(row.step, row.module) for row in watched._rows[::HEADS]] == [
        (0, "blocks.0"), (0, "blocks.1"), (2, "blocks.1"),
    ]  # fmt: skip


def test_a_model_without_attention_fails_in_its_first_step() -> None:
    model = nn.Linear(3, 3)
    with pytest.raises(ValueError, match="got Linear, in which no attention ran"), dikkat.watch(model):
        model(torch.randn(2, 3))


def test_a_training_that_never_ran_is_reported() -> None:
    model = Model()
    message = "no forward pass was watched; expected calls of the model in training mode"
    with pytest.warns(UserWarning, match=message), dikkat.watch(model):
        model.eval()(batch())
    with pytest.raises(ZeroDivisionError), dikkat.watch(model):  # its own error is enough
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"every": 0}, ValueError, "every: got 0; expected a whole number of at least 1"),
        ({"every": 2.5}, TypeError, "every: got 2.5"),
        ({"patience": 0}, ValueError, "patience: got 0"),
        ({"log": "attention.txt"}, ValueError, r"log: got 'attention.txt'; expected a path that ends in .csv or .html"),
        ({"log": "no-such-folder/a.csv"}, FileNotFoundError, "no-such-folder"),
        ({"log": 3}, TypeError, r"log: got int; expected a function, .* or log\(values, step=...\), a path, or None"),
        ({"log": logging.getLogger("training")}, TypeError, "log: got Logger; expected a function"),
        ({"layers": "no such layer"}, ValueError, "layers: got 'no such layer'"),
        ({"min_entropy": "low"}, TypeError, "min_entropy: got 'low'; expected a number"),
        ({"max_score": math.nan}, TypeError, "max_score: got nan; expected a number"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    model = Model()
    with pytest.raises(error, match=message):
        dikkat.watch(model, **arguments)
    assert untouched(model)


def test_only_modules_are_watched() -> None:
    with pytest.raises(TypeError, match=r"model: got function; expected a torch.nn.Module"):
        dikkat.watch(lambda x: x)  # type: ignore[arg-type]


def test_selected_layers() -> None:
    model = Model()
    with dikkat.watch(model, layers=-1) as watched:
        model(batch())
    assert {row.module for row in watched.latest} == {"blocks.1"}


# --- the Trainer of transformers


def trainer_of(model: Any, folder: Path, callback: Any, **arguments: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    texts = torch.randint(50, (64, 13), generator=torch.Generator().manual_seed(1))
    settings = transformers.TrainingArguments(
        str(folder), report_to="none", use_cpu=True, disable_tqdm=True, per_device_train_batch_size=4, save_steps=100,
        logging_steps=100, **arguments,
    )  # fmt: skip
    data = [{"input_ids": text, "labels": text} for text in texts]
    return transformers.Trainer(model, settings, train_dataset=data, callbacks=[callback])


def llama(**options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=24, intermediate_size=17, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=1, **options,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def test_a_trainer_logs_by_its_own_steps(tmp_path: Path) -> None:
    model = llama()
    watched = dikkat.watch(model, every=2)
    trainer = trainer_of(model, tmp_path, watched.callback(), max_steps=5, gradient_accumulation_steps=2)
    trainer.train()
    assert watched.frame().step.unique().tolist() == [0, 2, 4]
    entries = [entry for entry in trainer.state.log_history if any(name.startswith("attention/") for name in entry)]
    assert [entry["step"] for entry in entries] == [0, 2, 4]
    name = "attention/model.layers.1.self_attn/head 2/entropy"
    assert entries[2][name] == watched.latest[5].entropy
    assert 0 < entries[2][name] < math.log(13)
    watched.close()
    assert untouched(model)


class Reports:
    """A callback such as those of `report_to`."""

    def __init__(self) -> None:
        from transformers import TrainerCallback

        class Reporter(TrainerCallback):  # type: ignore[misc]
            def on_log(_, args: Any, state: Any, control: Any, logs: Any = None, **__: Any) -> None:  # noqa: N805
                self.steps += [state.global_step] * any(name.startswith("attention/") for name in logs)
                self.names |= {*logs}

        self.callback, self.steps, self.names = Reporter(), list[int](), set[str]()


@pytest.mark.parametrize("logs", [None, lambda step, values: None])
def test_the_loggers_of_a_trainer_receive_the_statistics(tmp_path: Path, capsys: Any, logs: Any) -> None:
    model = llama()
    reports, watched = Reports(), dikkat.watch(model, every=2, log=logs)
    trainer = trainer_of(model, tmp_path, reports.callback, max_steps=4)
    trainer.add_callback(watched.callback(trainer))
    trainer.train()
    watched.close()
    name = "attention/model.layers.1.self_attn/head 2/entropy"
    assert (reports.steps, name in reports.names) == (([0, 2], True) if logs is None else ([], False))
    assert "attention/" not in capsys.readouterr().out


def test_a_trainer_that_continues_at_a_checkpoint_continues_the_file(tmp_path: Path) -> None:
    path = tmp_path / "attention.csv"
    for steps, resume in ((2, False), (4, True)):
        model = llama()
        watched = dikkat.watch(model, every=1, log=path)
        trainer = trainer_of(model, tmp_path, watched.callback(), max_steps=steps)
        trainer.train(resume_from_checkpoint=resume)
        watched.close()
    assert [int(line["step"]) for line in table_of(path)[::6]] == [0, 1, 2, 3]


def test_a_second_training_is_watched_from_its_first_step(tmp_path: Path) -> None:
    model = llama()
    with dikkat.watch(model, every=2) as watched:
        trainer = trainer_of(model, tmp_path, watched.callback(), max_steps=1)
        for _ in range(2):
            trainer.train()
            assert any(
                "attention/model.layers.1.self_attn/head 2/entropy" in entry for entry in trainer.state.log_history
            )
    assert watched.frame().step.tolist() == [0] * 2 * 6


@pytest.mark.parametrize("attention", ["eager", "sdpa", "dikkat"])
def test_a_trainer_with_checkpoints_autocast_and_a_file(tmp_path: Path, attention: str) -> None:
    if attention == "dikkat":
        dikkat.register_transformers()
    model, path = llama(attn_implementation=attention), tmp_path / "attention.csv"
    watched = dikkat.watch(model, every=2, log=path)
    trainer = trainer_of(
        model, tmp_path, watched.callback(), max_steps=3, bf16=True, activation_checkpointing=True
    )  # fmt: skip
    trainer.train()
    lines = table_of(path)
    assert [int(line["step"]) for line in lines] == [0] * 6 + [2] * 6
    assert all(math.isfinite(float(line[name])) for line in lines for name in FIELDS)
    watched.close()


def test_a_compiled_trainer_is_watched(tmp_path: Path) -> None:
    model = llama()
    watched = dikkat.watch(model, every=2)
    trainer_of(
        model, tmp_path, watched.callback(), max_steps=3, torch_compile=True, torch_compile_backend="aot_eager"
    ).train()  # fmt: skip
    assert watched.frame().step.unique().tolist() == [0, 2]
    watched.close()
    torch.compiler.reset()
