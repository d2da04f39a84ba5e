"""Pooling of bags, beside the formula written out for each bag by itself, in float64."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader

import dikkat
import kit
from dikkat import AttentionPooling, LengthBatchSampler, bags, collate_bags, scores
from dikkat._engine import gating
from processes import python

FEATURES, HIDDENS = 5, 7
LENGTHS = torch.tensor([3, 0, 11, 1, 2])


def made(heads=1, gated=True, dtype=torch.float64, features=FEATURES, **more):
    torch.manual_seed(heads + 2 * gated)
    return AttentionPooling(features, HIDDENS, heads, gated, **more).to(dtype)


def rows(number=17, dtype=torch.float64, features=FEATURES):
    torch.manual_seed(number)
    return torch.randn(number, features, dtype=dtype, requires_grad=True)


def dense(pool, x, lengths):
    """Output (B, K, D), weights and scores (N, K): bag by bag."""
    parameters = dict(pool.named_parameters())
    hidden = torch.tanh(x @ parameters["V.weight"].T + parameters["V.bias"])
    if "U.weight" in parameters:
        hidden = hidden / (1 + torch.exp(-(x @ parameters["U.weight"].T + parameters["U.bias"])))
    score = hidden @ parameters["w.weight"].T + parameters["w.bias"]
    outputs, weights = [], []
    for own, bag in zip(score.split(lengths), x.split(lengths), strict=True):
        share = (own - own.amax(0) if len(own) else own).exp()
        weights.append(share / share.sum(0))
        outputs.append(torch.einsum("nk,nd->kd", weights[-1], bag))
    return torch.stack(outputs), torch.cat(weights), score


def gradients(output, *leaves):
    return torch.autograd.grad(output, leaves, kit.upstream_of(output).to(output.dtype), retain_graph=True)


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("block", [2**20, 1])
def test_each_bag_is_pooled_as_if_it_were_alone(heads, gated, block, monkeypatch):
    monkeypatch.setattr(gating, "_BLOCK", block)
    monkeypatch.setattr(bags, "_PIECE", 64)
    monkeypatch.setattr(bags, "_AT_ONCE", block)
    pool, lengths = made(heads, gated), [3, 0, 211, 1, 2, 0]
    x = rows(sum(lengths))
    found = pool(x, torch.tensor(lengths), return_weights=True)
    output, weights, score = dense(pool, x, lengths)
    leaves = [x, *pool.parameters()]
    if heads == 1:
        output, weights, score = output[:, 0], weights[:, 0], score[:, 0]
    for came, expected in zip(found, (output, weights, score), strict=False):
        torch.testing.assert_close(came, expected, rtol=1e-10, atol=1e-12)
        for own, other in zip(gradients(came, *leaves), gradients(expected, *leaves), strict=True):
            torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-12)
    assert found.top is None
    assert torch.equal(pool(x, torch.tensor(lengths, dtype=torch.int32)), found.output)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_types_are_computed_in_float32_or_wider(dtype):
    pool, x = made(2, dtype=dtype), rows(dtype=dtype)
    exact = dense(pool.double(), x.double(), LENGTHS.tolist())[0]
    found = made(2, dtype=dtype)(x, LENGTHS)
    assert found.dtype == dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=4 * eps * x.abs().max().item())
    pool = made(2, dtype=dtype)
    for name, grad in zip("xVvUuwb", gradients(pool(x, LENGTHS), x, *pool.parameters()), strict=True):
        assert grad.dtype == dtype, name
        assert bool(grad.isfinite().all()), name


def test_first_and_second_derivatives():
    pool, x = made(2), rows(7)
    lengths, others = torch.tensor([4, 0, 3]), [p.detach().clone().requires_grad_() for p in pool.parameters()]
    names = [name for name, _ in pool.named_parameters()]

    def run(x, *parameters):
        values = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(pool, values, (x, lengths))

    assert torch.autograd.gradcheck(run, (x, *others))
    assert torch.autograd.gradgradcheck(run, (x, *others))
    assert torch.autograd.gradgradcheck(lambda x: pool(x, lengths, return_weights=True)[1], (x,))


def test_compiled_and_mapped_it_is_the_same():
    pool, x = made(3), rows()
    compiled = torch.compile(pool, backend="aot_eager")
    came, expected = compiled(x, LENGTHS), pool(x, LENGTHS)
    torch.testing.assert_close(came, expected, rtol=1e-10, atol=1e-12)
    for own, other in zip(gradients(came, x), gradients(expected, x), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-12)
    several = torch.randn(3, 17, FEATURES, dtype=torch.float64)
    mapped = torch.func.vmap(lambda x: scores.gated_scores(x, pool.V, pool.U, pool.w, "rows")[0])(several)
    expected = torch.stack([dense(pool, x, [17])[2] for x in several])
    torch.testing.assert_close(mapped, expected, rtol=1e-10, atol=1e-12)
    with torch.autocast("cpu", torch.bfloat16):
        half = pool.float()(x.float(), LENGTHS)
    torch.testing.assert_close(half.double(), dense(pool.double(), x, LENGTHS.tolist())[0], rtol=0.1, atol=0.1)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("weights", [True, False])
def test_exported_for_any_number_of_bags_and_rows(padded, weights):
    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.pool = made(2)

        def forward(self, x, of_bags):
            by = {"mask": of_bags} if padded else {"bag_lens": of_bags}
            return self.pool(x, **by, return_weights=True)[:2] if weights else self.pool(x, **by)

    def bags_of(lengths):
        if not padded:
            return rows(sum(lengths)).detach(), torch.tensor(lengths)
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        return torch.randn(*mask.shape, FEATURES, dtype=torch.float64), mask

    model, (count, longest) = Pool(), (torch.export.Dim(name, min=2) for name in ("count", "longest"))
    shapes = ({0: count, 1: longest}, {0: count, 1: longest}) if padded else ({0: longest}, {0: count})
    exported = torch.export.export(model, bags_of([3, 1, 5]), dynamic_shapes=shapes).module()
    for lengths in ([3, 1, 5], [0, 4], [7, 2, 1, 9]):
        came = exported(*(given := bags_of(lengths)))
        x = given[0][given[1]] if padded else given[0]
        output, by_row, _ = dense(model.pool, x, lengths)
        torch.testing.assert_close(came[0] if weights else came, output, rtol=1e-10, atol=1e-12)
        if weights:
            found = came[1][given[1]] if padded else came[1]
            torch.testing.assert_close(found, by_row, rtol=1e-10, atol=1e-12)


def test_a_module_in_a_layers_place_is_called():
    pool, x = made(), rows()
    expected = pool(x, LENGTHS)
    pool.V = nn.Sequential(pool.V)
    torch.testing.assert_close(pool(x, LENGTHS), expected, rtol=1e-12, atol=1e-12)
    pool.V[0].register_forward_hook(lambda *_: torch.zeros(17, HIDDENS, dtype=torch.float64))
    assert not torch.allclose(pool(x, LENGTHS), expected)


@pytest.mark.parametrize("heads", [1, 2])
def test_a_mask_hides_rows_whatever_they_hold(heads):
    pool, mask = made(heads), torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 1]], dtype=torch.bool)
    torch.manual_seed(0)
    padded = torch.randn(3, 4, FEATURES, dtype=torch.float64)
    padded = padded.masked_fill(~mask[..., None], float("nan")).requires_grad_()
    found = pool(padded, mask=mask, return_weights=True, top_k=3)
    output, weights, _ = dense(pool, padded[mask].detach(), mask.sum(1).tolist())
    torch.testing.assert_close(found.output, output.squeeze(1) if heads == 1 else output, rtol=1e-10, atol=1e-12)
    assert found.weights.shape == found.scores.shape == ((3, 4) if heads == 1 else (3, 4, heads))
    torch.testing.assert_close(found.weights[mask].reshape(-1, heads), weights, rtol=1e-10, atol=1e-12)
    assert bool((found.weights[~mask] == 0).all())
    assert bool((found.scores[~mask] == -np.inf).all())
    for bag in range(3):  # places in the bag as it came
        for head in range(heads):
            own = found.weights[bag].reshape(4, heads)[:, head].tolist()
            expected = sorted(mask[bag].nonzero()[:, 0].tolist(), key=lambda place: -own[place])[:3]
            top = found.top[bag].reshape(heads, 3)[head].tolist()
            assert top == expected + [-1] * (3 - len(expected))
    leaves = [padded, *pool.parameters()]
    for grad in gradients(found.output, *leaves):
        assert bool(grad.isfinite().all())
    assert torch.equal(
        pool(padded.detach().nan_to_num()), pool(padded.detach().nan_to_num(), mask=torch.ones_like(mask))
    )


def test_what_is_nan_in_one_bag_stays_there():
    pool, x = made(2), rows()
    expected = pool(x, LENGTHS)
    with torch.no_grad():
        x[3] = float("nan")  # the third bag's first row
    found = pool(x, LENGTHS)
    others = torch.tensor([0, 1, 3, 4])
    assert torch.equal(found[others], expected[others])
    assert bool(found[2].isnan().all())
    (grad,) = torch.autograd.grad(found[others].sum(), x)
    assert bool(grad[:3].isfinite().all() and grad[14:].isfinite().all())


@given(st.lists(st.integers(0, 9), max_size=9), st.integers(1, 3), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_chunks_of_any_size_merge_to_the_whole(lengths, heads, seed):
    pool = made(heads)
    torch.manual_seed(seed)
    chunks = [torch.randn(n, FEATURES, dtype=torch.float64, requires_grad=True) for n in [*lengths, 2]]
    whole = torch.cat(chunks)
    expected, leaves = pool(whole), list(pool.parameters())
    state = pool.state(chunks[0])
    for chunk in chunks[1:]:
        state = dikkat.merge(state, pool.state(chunk))
    exact = dense(pool, whole, [len(whole)])
    torch.testing.assert_close(state.lse, exact[2].logsumexp(0), rtol=1e-10, atol=1e-12)
    for output in (state.mean[None] if heads > 1 else state.mean, pool.in_chunks(chunks)):
        torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-12)
        pairs = zip(gradients(output, *chunks, *leaves), gradients(expected, *chunks, *leaves), strict=True)
        for own, other in pairs:
            torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-12)


def test_chunks_that_are_read_are_read_once_more_for_the_gradient_and_dropped_rows_are_the_same():
    pool, whole, reads = made(dropout=0.5), rows().detach(), []

    def reader(place):
        def read():
            reads.append(place)
            return whole[place : place + 4]

        return read

    torch.manual_seed(3)
    output = pool.in_chunks(reader(place) for place in range(0, 17, 4))
    torch.manual_seed(3)
    expected = pool.in_chunks(whole.split(4))
    assert torch.equal(output, expected)
    torch.manual_seed(4)
    found = torch.autograd.grad(output.sum(), list(pool.parameters()))
    other = torch.autograd.grad(expected.sum(), list(pool.parameters()))
    assert reads == [0, 4, 8, 12, 16, 16, 12, 8, 4, 0]
    assert all(map(torch.equal, found, other))


def test_dropout_leaves_rows_out_and_the_others_share():
    pool, x = made(dropout=0.3), rows(1009)
    found = pool(x, return_weights=True)
    dropped = found.scores == -np.inf
    assert 0.2 < dropped.double().mean() < 0.4
    assert bool((found.weights[dropped] == 0).all())
    expected = dense(pool, x[~dropped], [int((~dropped).sum())])[0]
    torch.testing.assert_close(found.output, expected[:, 0], rtol=1e-10, atol=1e-12)
    assert torch.equal(pool.eval()(x), pool(x))
    assert bool((made(dropout=1.0)(x) == 0).all())


def test_a_million_bags_of_one_row_and_a_bag_of_a_million_rows():
    pool, x = made(dtype=torch.float32, features=2), rows(10**6, torch.float32, 2).detach()
    torch.testing.assert_close(pool(x, torch.ones(10**6, dtype=torch.int64)), x, rtol=1e-6, atol=0)
    exact = dense(pool.double(), x.double(), [10**6])[0][0]
    torch.testing.assert_close(pool.float()(x).double(), exact, rtol=0, atol=2e-6)


def test_memory_is_that_of_the_rows():
    """Hidden features of all rows would take 400 MB."""
    code = """
import torch, dikkat
def status(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field)) // 1024
pool, rows = dikkat.AttentionPooling(128, 512), torch.randn(50_000, 128)
pool(rows[:5000]).sum().backward()
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # the high-water mark begins anew
pool(rows).sum().backward()
print(status("VmHWM") - before)
"""
    if not Path("/proc/self/status").exists():
        pytest.skip("peaks are read where Linux writes them")
    assert int(python(code).stdout) < 100


class Clam(nn.Module):
    """The attention of CLAM, as its state dict names it."""

    def __init__(self, gated=True):
        super().__init__()
        V, U = nn.Linear(FEATURES, HIDDENS), nn.Linear(FEATURES, HIDDENS)
        if gated:
            self.attention_a, self.attention_b = nn.Sequential(V, nn.Tanh()), nn.Sequential(U, nn.Sigmoid())
            self.attention_c = nn.Linear(HIDDENS, 2)
        else:
            self.module = nn.Sequential(V, nn.Tanh(), nn.Dropout(0.0), nn.Linear(HIDDENS, 2))

    def forward(self, x):
        if hasattr(self, "module"):
            return self.module(x)
        return self.attention_c(self.attention_a(x) * self.attention_b(x))


class Deep(nn.Module):
    """The attention of AttentionDeepMIL."""

    def __init__(self, gated=True):
        super().__init__()
        V, U = nn.Linear(FEATURES, HIDDENS), nn.Linear(FEATURES, HIDDENS)
        if gated:
            self.attention_V, self.attention_U = nn.Sequential(V, nn.Tanh()), nn.Sequential(U, nn.Sigmoid())
            self.attention_weights = nn.Linear(HIDDENS, 1)
        else:
            self.attention = nn.Sequential(V, nn.Tanh(), nn.Linear(HIDDENS, 1))

    def forward(self, x):
        if hasattr(self, "attention"):
            return self.attention(x)
        return self.attention_weights(self.attention_V(x) * self.attention_U(x))


class Trident(nn.Module):
    """The attention of TRIDENT: heads with networks of their own."""

    def __init__(self, gated=True):
        super().__init__()
        numbers = range(3)
        self.attention_heads = nn.ModuleList(nn.Sequential(nn.Linear(FEATURES, HIDDENS), nn.Tanh()) for _ in numbers)
        if gated:
            self.gating_layers = nn.ModuleList(
                nn.Sequential(nn.Linear(FEATURES, HIDDENS), nn.Sigmoid()) for _ in numbers
            )
        self.branching_layers = nn.ModuleList(nn.Linear(HIDDENS, 1) for _ in numbers)

    def forward(self, x):
        hidden = [each(x) for each in self.attention_heads]
        if hasattr(self, "gating_layers"):
            hidden = [a * each(x) for a, each in zip(hidden, self.gating_layers, strict=True)]
        return torch.cat([each(a) for a, each in zip(hidden, self.branching_layers, strict=True)], -1)


class Wrapped(nn.Module):
    """The layer of torchmil that may learn how many features come."""

    def __init__(self):
        super().__init__()
        self.module = nn.Linear(FEATURES, HIDDENS)

    def forward(self, x):
        return self.module(x)


class Torchmil(nn.Module):
    """The attention of torchmil, whose last layer has no bias."""

    def __init__(self, gated=True):
        super().__init__()
        self.fc1, self.fc2 = Wrapped(), nn.Linear(HIDDENS, 1, bias=False)
        if gated:
            self.fc_gated = Wrapped()

    def forward(self, x):
        hidden = self.fc1(x).tanh()
        return self.fc2(hidden * self.fc_gated(x).sigmoid() if hasattr(self, "fc_gated") else hidden)


@kit.each("gated", [True, False])
@kit.each("theirs", [Clam, Deep, Trident, Torchmil])
@kit.each("place", ["", "attention_net.3."])
def test_parameters_of_others_are_found_by_their_names(theirs, gated, place):
    torch.manual_seed(0)
    other, x = theirs(gated).double(), rows()
    state_dict = {f"{place}{name}": tensor for name, tensor in other.state_dict().items()}
    state_dict |= {"attention_net.0.weight": torch.zeros(3, 3), "classifiers.bias": torch.zeros(2)}
    pool = AttentionPooling.from_state_dict(state_dict)
    expected = other(x)
    found = pool(x, return_weights=True).scores
    torch.testing.assert_close(found.reshape(expected.shape), expected, rtol=1e-12, atol=1e-12)
    again = AttentionPooling.from_state_dict({f"pool.{name}": t for name, t in pool.state_dict().items()}, dropout=0.25)
    assert again.dropout == 0.25
    assert all(torch.equal(t, pool.state_dict()[name]) for name, t in again.state_dict().items())


def test_a_state_dict_without_attention_is_refused():
    perceptron = {"fc1.weight": torch.zeros(7, 5), "fc2.weight": torch.zeros(5, 7)}  # of which every network has some
    with pytest.raises(ValueError, match=r"^state_dict: got fc1.weight, fc2.weight; expected the names of one set: V"):
        AttentionPooling.from_state_dict(perceptron)
    with pytest.raises(ValueError, match=r"^state_dict: got w1, w2, w3, w4, w5, w6, …; expected the names of one set"):
        AttentionPooling.from_state_dict({f"w{number}": torch.zeros(3) for number in range(1, 8)})


@kit.each(
    ("arguments", "error", "message"),
    [
        ((rows(), torch.tensor([3.0, 14.0])), TypeError, "bag_lens: got dtype torch.float32; expected torch.int64 or"),
        ((rows(), torch.tensor([3, 13])), ValueError, "bag_lens: got 16 rows in total; expected 17, as in bags"),
        ((rows(), torch.tensor([-1, 18])), ValueError, "bag_lens: got -1; expected at least 0 rows in each bag"),
        ((rows(), torch.tensor([2**62] * 4 + [17])), ValueError, f"bag_lens: got {2**62}; expected at most 17"),
        ((rows(), torch.tensor([3, 15])), ValueError, "bag_lens: got 18 rows in total; expected 17, as in bags"),
        ((rows(), torch.tensor([[3, 14]])), ValueError, r"bag_lens: got shape \(1, 2\); expected \(B,\)"),
        ((rows(), [3, 14]), TypeError, "bag_lens: got list; expected a torch.Tensor"),
        ((rows(), torch.tensor([3, 14], device="meta")), ValueError, "bag_lens: got a tensor on meta; expected cpu"),
        (
            (rows(), None, torch.ones(17, dtype=torch.bool)),
            ValueError,
            "mask: got a mask with bags .*; expected bag_lens",
        ),
        ((rows()[None], torch.tensor([17])), ValueError, "bag_lens: got lengths with bags .*; expected a mask"),
        ((rows()[None], None, torch.ones(17)), TypeError, "mask: got dtype torch.float32; expected torch.bool"),
        ((rows()[None], None, torch.ones(17).bool()), ValueError, r"mask: got shape \(17,\); expected \(1, 17\)"),
        ((rows()[None, None],), ValueError, r"bags: got shape \(1, 1, 17, 5\); expected \(N, D\), or \(B, N, D\)"),
        ((rows()[:, :3],), ValueError, r"bags: got 3 features \(shape \(17, 3\)\); expected 5"),
        ((rows().float(),), TypeError, "bags: got dtype torch.float32; expected torch.float64"),
        ((torch.ones(17, 5, dtype=torch.int64),), TypeError, "bags: got dtype torch.int64"),
        ((rows().to_sparse(),), TypeError, "bags: got a tensor with layout torch.sparse_coo; expected a dense"),
    ],
)
def test_bad_bags_are_refused(arguments, error, message):
    with pytest.raises(error, match=f"^{message}"):
        made()(*arguments)


def test_other_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"^top_k: got 0; expected a whole number of at least 1"):
        made()(rows(), top_k=0)
    with pytest.raises(ValueError, match=r"^heads: got 0"):
        AttentionPooling(3, 5, heads=0)
    with pytest.raises(ValueError, match=r"^dropout: got 1.5; expected a number from 0 to 1"):
        AttentionPooling(3, 5, dropout=1.5)
    with pytest.raises(ValueError, match=r"^chunk: got shape \(1, 17, 5\); expected \(rows, features\)"):
        made().state(rows()[None])
    with pytest.raises(ValueError, match=r"^chunks: got no chunk"):
        made().in_chunks([])


@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0]])
@pytest.mark.parametrize("heads", [1, 2])
def test_no_rows_at_all(lengths, heads):
    pool, x = made(heads), torch.zeros(0, FEATURES, dtype=torch.float64, requires_grad=True)
    found = pool(x, torch.tensor(lengths, dtype=torch.int64), top_k=2)
    assert found.output.shape == ((len(lengths), FEATURES) if heads == 1 else (len(lengths), heads, FEATURES))
    assert bool((found.output == 0).all() and (found.top == -1).all())
    for grad in gradients(found.output, x, *pool.parameters()):
        assert bool((grad == 0).all())
    assert bool((pool.state(x).lse == -np.inf).all())


def test_bags_are_collated_and_loaded():
    data = [(torch.full((n, 2), float(n)), n % 2, {"name": f"bag {n}"}) for n in (3, 0, 2, 7)]
    loader = DataLoader(data, batch_sampler=LengthBatchSampler([3, 0, 2, 7], 5, shuffle=False), collate_fn=collate_bags)
    (first, lens, labels, names), (second, *_) = loader
    assert first[:, 0].tolist() == [3.0] * 3 + [2.0] * 2
    assert (lens.tolist(), labels.tolist(), names) == ([3, 0, 2], [1, 0, 0], {"name": ["bag 3", "bag 0", "bag 2"]})
    assert second.shape == (7, 2)
    alone = collate_bags([torch.zeros(3, 2), torch.zeros(5, 2)])
    assert (alone[0].shape, alone[1].tolist(), len(alone)) == ((8, 2), [3, 5], 2)


@given(st.lists(st.integers(0, 19), max_size=40), st.integers(1, 30), st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_batches_hold_each_bag_once_and_no_more_rows_than_they_may(lengths, most, seed):
    batches = list(LengthBatchSampler(lengths, most, generator=torch.Generator().manual_seed(seed)))
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert all(len(batch) == 1 or sum(lengths[index] for index in batch) <= most for batch in batches)
    for batch, after in pairwise(batches):  # no bag that would have fitted is put off
        assert sum(lengths[index] for index in batch) + lengths[after[0]] > most
    assert batches == list(
        LengthBatchSampler(torch.tensor(lengths), most, generator=torch.Generator().manual_seed(seed))
    )


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (lambda: collate_bags([]), ValueError, "samples: got none"),
        (
            lambda: collate_bags([(torch.zeros(3, 2), 1), (torch.zeros(3), 0)]),
            ValueError,
            r"samples\[1\]: got a bag of",
        ),
        (lambda: collate_bags([torch.zeros(3, 2), torch.zeros(3, 5)]), ValueError, r".*expected \(rows, 2\)"),
        (lambda: collate_bags([torch.zeros(3, 2), torch.zeros(3, 2).double()]), TypeError, r"samples\[1\]: got a bag"),
        (lambda: collate_bags([[[1.0]]]), TypeError, r"samples\[0\]: got list; expected a torch.Tensor"),
        (lambda: LengthBatchSampler([1, 2], 0), ValueError, "max_rows: got 0; expected a whole number of at least 1"),
        (lambda: LengthBatchSampler([1, -2], 3), ValueError, r"lengths\[1\]: got -2; expected at least 0 rows"),
        (lambda: LengthBatchSampler([1, 2.5], 3), TypeError, r"lengths\[1\]: got 2.5; expected a whole number"),
    ],
)
def test_bad_samples_are_refused(bad, error, message):
    with pytest.raises(error, match=f"^{message}"):
        bad()


def test_hidden_features_of_a_chunk_are_computed_twice(monkeypatch):
    pool, chunks, seen = made(), rows().detach().split(7), []
    hidden = gating._Network.hidden
    monkeypatch.setattr(
        gating._Network, "hidden", lambda self, rows, into=None: seen.append(len(rows)) or hidden(self, rows, into)
    )
    pool.in_chunks(chunks).sum().backward()
    assert sorted(seen) == sorted([len(chunk) for chunk in chunks] * 2)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("gated", [False, True])
def test_many_gradients_at_once(heads, gated):
    """`is_grads_batched` maps the backward, whose sums are not made in place then."""
    torch.manual_seed(0)
    pool, rows = AttentionPooling(5, 7, heads, gated).double(), torch.randn(11, 5, dtype=torch.float64)
    lens = torch.tensor([4, 0, 7])
    one, many = (
        torch.autograd.functional.jacobian(lambda rows: pool(rows, lens), rows, vectorize=at_once)
        for at_once in (False, True)
    )
    torch.testing.assert_close(many, one, rtol=1e-12, atol=1e-12)
    out = pool(rows, lens)
    above = torch.eye(out.numel(), dtype=torch.float64).reshape(-1, *out.shape)
    came = torch.autograd.grad(out, list(pool.parameters()), above, is_grads_batched=True, retain_graph=True)
    for each, alone in enumerate(above):
        exact = torch.autograd.grad(out, list(pool.parameters()), alone, retain_graph=True)
        torch.testing.assert_close([grad[each] for grad in came], list(exact), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("how", [np.nan, np.inf, 3e38])
def test_a_bag_without_a_gradient_has_no_effect_on_the_parameters(heads, how):
    torch.manual_seed(0)
    pool, found = AttentionPooling(5, 7, heads), []
    rows, lens = torch.randn(11, 5), torch.tensor([4, 7])
    for number in (1.0, how):
        rows[2] = number
        leaf = rows.clone().requires_grad_()
        found.append(torch.autograd.grad(pool(leaf, lens)[1].sin().sum(), [leaf, *pool.parameters()]))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    assert not found[1][0][:4].any()


def test_on_the_meta_device():
    rows, lens = torch.empty(7, 5, device="meta", requires_grad=True), torch.tensor([3, 4], device="meta")
    pool = AttentionPooling(5, 11, heads=2).to("meta")
    found = pool(rows, lens, top_k=3)
    assert [t.shape for t in found] == [(2, 2, 5), (7, 2), (7, 2), (2, 2, 3)]
    assert torch.autograd.grad(found.output.sum(), rows)[0].shape == (7, 5)
    with pytest.raises(ValueError, match="mask: got a tensor on meta"):
        pool(rows[None], mask=torch.ones(1, 7, dtype=torch.bool, device="meta"))


def test_whole_numbers_of_numpy():
    sampler = LengthBatchSampler(np.array([3, 4, 2]), max_rows=np.int64(7), shuffle=False)
    assert list(sampler) == list(LengthBatchSampler([3, 4, 2], max_rows=7, shuffle=False))
    assert AttentionPooling(np.int64(5), 7).V.in_features == 5
