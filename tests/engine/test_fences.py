"""Fences about the scratch regions and outputs of the CPU kernels: none is touched, and what touches one is told."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from numba import carray

import dikkat
from command import run_before
from dikkat import scores
from dikkat._core.implementations.numba.record import CALL as ATTENTION
from dikkat._engine import record
from dikkat._engine.compile import Kernel
from dikkat._engine.memory import workplace_of
from dikkat._engine.record import CallRecord, Record
from dikkat._engine.vectors import pointer
from dikkat.recurrent import AttentionalGRU, AttentionalLSTM, GRUEncoder
from dikkat.recurrent.fused.record import CALL as RECURRENCE
from dikkat.regression.moments import launch as moments_launch
from dikkat.regression.moments.record import CALL as MOMENTS
from dikkat.regression.moments.record import SORTED
from dikkat.translation import Search, Settings, TranslationModel, beam_search
from dikkat.translation.decoding.compiled.record import SEARCH
from dikkat.translation.network.fused_loss.launch import CrossEntropy
from dikkat.translation.network.fused_loss.record import CALL as LOSS
from processes import python


@pytest.fixture(autouse=True)
def fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with DIKKAT_FENCES=1 in the environment."""
    monkeypatch.setattr(record, "FENCE", 256)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the regions and outputs that were looked at."""
    names = set[str]()
    run_before(monkeypatch, record, "_check", lambda name, *_: names.add(name))
    return names


def attend(score: scores.Score, dtype: torch.dtype, **restricted: Any) -> None:
    torch.manual_seed(0)
    score = score.to(dtype)
    operands = [torch.randn(2, *size, dtype=dtype, requires_grad=True) for size in ((37, 13), (71, 13), (71, 11))]
    out = dikkat.attend(*operands, score=score, impl="numba", **restricted)
    outputs = out if isinstance(out, tuple) else (out,)
    sum(output.square().sum() for output in outputs).backward()
    restricted = {name: given for name, given in restricted.items() if name in ("key_bias", "exclude", "valid_lens")}
    dikkat.inspect(
        *operands[:2], score=score, impl="numba", top_k=3, sums=True, entropy=True, overview=(5, 7), **restricted
    )


def attends() -> None:
    bias, exclude = torch.randn(2, 71), torch.randint(-1, 71, (2, 37))
    for dtype in (torch.float32, torch.float64):
        for score in (scores.Additive(13, 13, 19), scores.Gaussian(2.0), scores.ScaledDot()):
            attend(score, dtype)
            attend(score, dtype, key_bias=bias.to(dtype), exclude=exclude, dropout=0.3, return_weights=True)
    # Of which one is so large that tanh is computed as such, pair by pair, and the rows are swept twice.
    large = scores.Additive(13, 13, 19)
    torch.nn.init.normal_(large.W_q.weight, std=30)
    attend(large, torch.float32, valid_lens=torch.randint(0, 72, (2, 37)))
    for score in (scores.Additive(13, 13, 19), scores.Gaussian(2.0), scores.Dot()):
        given = [torch.randn(2, 71, size, requires_grad=True) for size in (13, 13, 5)]
        offsets = torch.tensor([0, 3, 3, 40, 71])
        dikkat.attend_ragged(*given, offsets, score=score, causal=True, impl="numba").square().sum().backward()


def recurs() -> None:
    torch.manual_seed(0)
    given, lengths = torch.randn(5, 7, 2), torch.tensor([3, 7, 1, 7, 4])
    encoder = GRUEncoder(2, 13, 2)
    sum(each.square().sum() for each in encoder(given, lengths)).backward()
    for cell in (AttentionalGRU, AttentionalLSTM):
        for score in (scores.Additive(13, 13, 17), scores.Dot(), scores.Triangular(7.0)):
            decoder = cell(2, 13, 13, score, 2, dropout=0.3)
            state = torch.randn(2, 5, 13)
            both = state if cell is AttentionalGRU else (state, state)
            memory = decoder.prepare(torch.randn(5, 11, 13, requires_grad=True), torch.tensor([11, 4, 0, 7, 1]))
            decoder(given, memory, both, lengths=lengths, impl="numba")[0].square().sum().backward()
            with torch.no_grad():
                decoder.eval().step(given[:, 0], decoder.prepare(torch.randn(5, 11, 13)), both)


def averages() -> None:
    torch.manual_seed(0)
    key, query = torch.randn(331, 3), torch.randn(67, 3)
    points = moments_launch.tiles(key, torch.randn(331, 2), torch.rand(331))
    width = torch.full((3,), 0.7)
    for degree in (0, 1):
        for kernel in ("epanechnikov", "gaussian"):
            window = moments_launch.Window(kernel, width, tolerance=1e-6)
            _, lse = moments_launch.moments(query, points, window, degree, degree, torch.randint(-1, 331, (67,)))
        row, fit = torch.randn(67, 1 + 3 * degree), torch.randn(67, 1 + 3 * degree, 2)
        moments_launch.sensitivity(query, points, window, lse, row, fit, torch.tensor([0, 1, 1]), None)
    moments_launch.fit_lines(query, points, window, None, torch.rand(67, 1), torch.rand(67, 2, 3), 1e-5)


def sums_along_a_feature() -> None:
    torch.manual_seed(0)
    key, width = torch.rand(331, dtype=torch.float64).sort().values, torch.tensor([0.3], dtype=torch.float64)
    weight, value = torch.rand(331, dtype=torch.float64), torch.randn(2, 331, dtype=torch.float64)
    points = moments_launch.Line(key, value, weight, float(weight.sum()))
    for kernel in ("gaussian", "epanechnikov"):
        window = moments_launch.Window(kernel, width, squared=True)
        for mass, values in ((0, 0), (2, 1), (2, 2), (4, 3)):
            for exclude in (None, torch.arange(331)):
                moments_launch.powers(key[:, None], points, window, mass, values, exclude)


def searches() -> None:
    torch.manual_seed(0)
    for settings in ({"cell": "lstm"}, {"score": "bilinear"}):
        model = TranslationModel(Settings(embedding_size=6, hidden_size=10, **settings), 11, 59)
        for precision in ("float32", "int8"):
            beam_search(model, [[5, 6, 7], [8]], Search(5, n_best=2, max_ratio=10.0, precision=precision))


def loses() -> None:
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        CrossEntropy(59, dtype, None, 0.1, 1.0).add(torch.randn(11, 59).to(dtype), torch.randint(0, 59, (11,)))


OPERATIONS = {
    "attention": attends, "recurrence": recurs, "moments": averages, "sorted sums": sums_along_a_feature,
    "search": searches, "loss": loses,
}  # fmt: skip
RECORDS = {
    "attention": ATTENTION, "recurrence": RECURRENCE, "moments": MOMENTS, "sorted sums": SORTED, "search": SEARCH,
    "loss": LOSS,
}  # fmt: skip
# Of each the outputs that must have been looked at; of the scratch it is every region.
OUTPUTS = {
    "attention": {"mean", "packed_key", "packed_value", "query_grad", "key_grad"},
    "recurrence": {"last_state", "last_cell", "gates_grad"},
    "moments": {"moments"},
    "sorted sums": {"powers"},
    "search": {"gains", "tokens", "step_totals", "weights", "quantized_scales"},
    "loss": {"bias_sums", "losses"},
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_kernel_writes_outside_its_regions(operation: str, checked: set[str]) -> None:
    OPERATIONS[operation]()
    assert {f"scratch {name}" for name in RECORDS[operation].regions} | OUTPUTS[operation] <= checked


STRAY = Record(numbers="made", whole="which place", regions="first second", integer_regions="third")
workplace = workplace_of(STRAY)


@Kernel
def stray(zero: Any) -> Callable[[Any], None]:
    """Writes one number to a place in, before or behind one of the regions."""
    layout = STRAY.layout("dikkat._engine.memory")

    def stray(address: Any) -> None:
        call = carray(address, 1, layout)[0]
        work = workplace(call, zero)
        if call.which == 0:
            work.first[call.place] = 1.0
        elif call.which == 1:
            work.second[call.place] = 1.0
        elif call.which == 2:
            work.third[call.place] = 1
        else:
            pointer(call.made, zero)[call.place] = 1.0

    return stray


@pytest.mark.parametrize(("place", "side"), [(-1, "before"), (0, None), (15, None), (16, "behind")])
@pytest.mark.parametrize("which", range(4))
def test_one_number_outside_is_told(which: int, place: int, side: str | None) -> None:
    name = ("scratch first", "scratch second", "scratch third", "made")[which]
    call = CallRecord(STRAY, torch.float32)
    call.fields |= {"which": which, "place": place}
    call.new("made", 16)
    outside = (
        nullcontext() if side is None else pytest.raises(RuntimeError, match=f"^{name}: a kernel wrote {side} its")
    )
    with outside:
        call.run(stray, 1, first=16, second=16, third=16)


def test_the_environment_puts_up_fences() -> None:
    program = "from dikkat._engine import record; print(record.FENCE)"
    for value, fence in (("1", "256"), ("0", "0")):
        assert python(program, DIKKAT_FENCES=value).stdout.strip() == fence
