"""Every request of a recording × every choice of what is recorded × every view of that: 1,776 cells.

A cell shows what the weights in float64 say (`weights_of`, by the formula), or is refused in the words that `REFUSALS`
has for it. What a page has no map of, though it was recorded, is named in `EMPTY`.

A new request, choice or view is one more name in `REQUESTS`, `CHOICES` or `VIEWS`.
"""

import base64
import copy
import dataclasses
import html
import json
import math
import re
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import dikkat
import kit
from dikkat import scores, show
from kit import BATCH, HEADS, QUERIES

SIZE, SCALE, TOP, CELLS_OF_MAP = 4, 0.7, 3, (2, 3)

# --- the lists that are crossed

REQUESTS: dict[str, dict[str, Any]] = {
    "weights": {"weights": True},
    "rows": {"rows": [0, -1]},
    "top_k": {"top_k": TOP},
    "top_k beyond the keys": {"top_k": QUERIES + 2},
    "sums": {"sums": True},
    "entropy": {"entropy": True},
    "argmax": {"argmax": True},
    "overview": {"overview": CELLS_OF_MAP},
    "overview, largest": {"overview": CELLS_OF_MAP, "pool": "max"},
    "top_k and overview": {"top_k": TOP, "overview": CELLS_OF_MAP},
    "blocks": {"blocks": dikkat.Grid(1, QUERIES)},
    "all": {
        "weights": True, "rows": [0, -1], "top_k": TOP, "sums": True, "entropy": True, "argmax": True,
        "overview": CELLS_OF_MAP,
    },
}  # fmt: skip
CHOICES: dict[str, dict[str, Any]] = {
    "everything": {},
    "heads": {"heads": [2, 0]},
    "one head": {"heads": -1},
    "queries": {"queries": slice(1, None, 2)},
    "one query": {"queries": -1},
    "layers": {"layers": "second"},
    "all three": {"heads": [1], "queries": [3, 1], "layers": ["second"]},
}

# What a card of a page has no map of: weights and the largest of them are drawn as lines from token to token.
SHARED = {"heads", "queries", "query_groups", "key_groups"}  # by all elements of a batch
UNDRAWN = {"entropy", "hidden", *SHARED}
EMPTY = {"weights", "top_weights", "top_keys", "argmax", "lse"}
DRAWN = [{"weights"}, {"top_weights"}, {"overview"}, {"rows"}, {"sums"}, {"entropy"}]


# --- a model, and what its weights are


class Fused(nn.Module):
    """PyTorch's function, with a scale of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, scale=SCALE)


class Ours(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return dikkat.attend(x, x, x, score=scores.Gaussian(1.5), valid_lens=torch.tensor([QUERIES, 2]))


class Model(nn.Module):
    """Two layers of attention, of which the second runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Fused(), Ours()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.second(self.first(x)))


X = torch.randn(BATCH, HEADS, QUERIES, SIZE, generator=torch.Generator().manual_seed(7))


@cache
def weights_of() -> dict[tuple[str, int], Tensor]:
    """The weights (B, H, n, m) of each call, in float64."""
    x, found = X.double(), {}
    found["first", 0] = (x @ x.mT * SCALE).softmax(-1)
    x = found["first", 0] @ x
    for call in range(2):
        logits = -((x[..., :, None, :] - x[..., None, :, :]) / 1.5).square().sum(-1) / 2
        logits[1, ..., 2:] = -torch.inf
        found["second", call] = logits.softmax(-1)
        x = found["second", call] @ x
    return found


Expected = dict[tuple[str, int], dict[str, Tensor]]


def expected(request: dict[str, Any], choice: dict[str, Any]) -> Expected:
    """What is recorded of each call, by the names of an `Inspection`, from the weights."""
    found: Expected = {}
    for (name, call), whole in weights_of().items():
        if name not in (choice.get("layers") or name):
            continue
        heads, queries = (
            torch.arange(count)[places if isinstance(places := choice.get(of, slice(None)), slice | list) else [places]]
            for of, count in (("heads", HEADS), ("queries", QUERIES))
        )
        weights = whole[:, heads][:, :, queries]
        largest, keys = weights.sort(dim=-1, descending=True, stable=True)
        keys = keys.masked_fill(largest == 0, -1)
        seen: dict[str, Tensor] = {}
        if "heads" in choice:
            seen["heads"] = heads
        if "queries" in choice:
            seen["queries"] = queries
        if "weights" in request:
            seen["weights"] = weights
        if "rows" in request:
            seen["rows"] = weights[..., [0, -1], :]
        if "top_k" in request:
            more = (0, request["top_k"] - min(request["top_k"], QUERIES))
            seen["top_weights"] = F.pad(largest[..., : request["top_k"]], more)
            seen["top_keys"] = F.pad(keys[..., : request["top_k"]], more, value=-1)
        if "blocks" in request:  # of one patch
            seen["blocks"] = weights
            for of, axis in (("query_groups", -2), ("key_groups", -1)):
                seen[of] = torch.arange(weights.shape[axis])
        if {"weights", "top_k"} & set(request):
            seen["hidden"] = (weights == 0).all(-2)
        if "sums" in request:
            seen["sums"] = weights.sum(-2)
        if "entropy" in request:
            seen["entropy"] = torch.special.entr(weights).sum(-1)
        if "argmax" in request:
            seen["argmax"] = keys[..., 0]
        if "overview" in request:
            seen["overview"] = cells(weights, request.get("pool", "mean"))
        found[name, call] = seen
    return found


def cells(weights: Tensor, pool: str) -> Tensor:
    """The map, pooled: query i is in row ⌊i · a / n⌋, key j in column ⌊j · b / m⌋."""
    (n, m), (a, b) = weights.shape[-2:], CELLS_OF_MAP
    a = min(a, n)
    rows = []
    for row, col in product(range(a), range(b)):
        inside = [(i, j) for i in range(n) for j in range(m) if (i * a // n, j * b // m) == (row, col)]
        each = torch.stack([weights[..., i, j] for i, j in inside])
        rows.append(each.amax(0) if pool == "max" else each.mean(0))
    return torch.stack(rows, -1).unflatten(-1, (a, b))


# --- the views: what each shows, and what it should


def assert_near(came: Any, right: Any) -> None:
    came, right = (
        each.double() if isinstance(each, Tensor) else torch.tensor(np.asarray(each, dtype=float))
        for each in (came, right)
    )
    torch.testing.assert_close(came, right, rtol=1e-5, atol=1e-6)


def assert_recorded(seen: dikkat.Inspection, right: dict[str, Tensor]) -> None:
    came = seen.tensors()
    assert came.keys() - {"lse"} == right.keys()
    for name, tensor in right.items():
        assert came[name].dtype == (torch.float32 if tensor.is_floating_point() else tensor.dtype)
        assert_near(came[name], tensor)


def index(trace: dikkat.Trace, right: Expected, path: Path) -> None:
    for (name, call), seen in right.items():
        assert_recorded(trace[name, call], seen)
        assert trace[name, call - trace.count(name)] is trace[name, call]
        if trace.count(name) == 1:
            assert trace[name] is trace[name, 0]
        else:
            with pytest.raises(ValueError, match="got a module with 2 calls"):
                trace[name]


def iteration(trace: dikkat.Trace, right: Expected, path: Path) -> None:
    assert [(name, call) for name, call, _ in trace] == list(right)
    assert len(trace) == len(right)
    assert trace.names == list(dict.fromkeys(name for name, _ in right))
    for name, call, seen in trace:
        assert_recorded(seen, right[name, call])


def element(trace: dikkat.Trace, right: Expected, path: Path) -> None:
    for (name, call), seen in right.items():
        own = {what: tensor if what in SHARED else tensor[1] for what, tensor in seen.items()}
        assert_recorded(trace[name, call].of_element(1), own)


def attentions(trace: dikkat.Trace, right: Expected, path: Path) -> None:
    found = trace.attentions()
    assert len(found) == len(right)
    for came, seen in zip(found, right.values(), strict=True):
        assert_near(came, seen["weights"])


def saved(trace: dikkat.Trace, right: Expected, path: Path) -> None:
    trace.save(path / "trace")
    iteration(dikkat.Trace.load(path / "trace"), right, path)


def rollout(trace: dikkat.Trace, right: Expected, path: Path) -> None:
    """Of a loaded trace too; what was recorded of some queries is no square."""
    trace.save(path / "trace")
    for each in (trace, dikkat.Trace.load(path / "trace")):
        if {"queries", "weights"} <= set(next(iter(right.values()))):
            with pytest.raises(ValueError, match=r"rollout: got weights .*; expected \(B, H, n, n\)"):
                each.rollout()
            continue
        came, whole = each.rollout(), torch.eye(QUERIES, dtype=torch.float64)
        for seen in right.values():
            mean = seen["weights"].mean(1)
            whole = (mean + torch.eye(QUERIES)) / (mean.sum(-1, keepdim=True) + 1) @ whole
        assert_near(came, whole)


def copied(trace: dikkat.Trace, right: Expected, path: Path) -> None:
    iteration(copy.deepcopy(trace), right, path)


def said(trace: dikkat.Trace, right: Expected, path: Path) -> None:
    """`repr` has every name of what was recorded."""
    for (name, call), seen in right.items():
        words = repr(trace[name, call])
        assert all(f"{what} (" in words for what in seen)
    assert "Trace" in repr(trace)


def content_of(page: str) -> dict[str, Any]:
    (found,) = re.findall(r'<script id="dikkat-content" type="application/json">(.*?)</script>', page)
    return json.loads(found)["calls"]


def numbers(maps: dict[str, Any]) -> Any:
    return np.frombuffer(base64.b64decode(maps["values"]), "<f4").reshape(-1, *maps["shape"])


def assert_page(page: str, right: Expected, words: str = "01234") -> None:
    content, lines = content_of(page), any({"weights", "top_weights"} & set(seen) for seen in right.values())
    if lines:
        assert_lines(content, right, words)
    carded = {which: seen for which, seen in right.items() if not lines or {"rows", "sums", "entropy"} & set(seen)}
    assert len(content["calls"]) == len(carded)
    for call, (which, seen) in zip(content["calls"], carded.items(), strict=True):
        assert which[0] in call["name"]
        shown = {maps["kind"]: numbers(maps) for maps in call["maps"]}
        for name, tensor in seen.items():
            assert f"{name} {tuple(tensor.shape)}" in call["recorded"]
            if name not in EMPTY and name not in (
                "entropy",
                "heads",
                "hidden",
                "queries",
                "query_groups",
                "key_groups",
            ):
                of_first = tensor[0][None] if name == "sums" else tensor[0]
                assert_near(shown.pop(name), of_first)
        assert not shown
    if len(right) > 1 and all("entropy" in seen for seen in right.values()):
        assert_near(numbers(content["overall"])[0], [seen["entropy"].mean((0, 2)).tolist() for seen in right.values()])


def assert_lines(content: dict[str, Any], right: Expected, words: str) -> None:
    """Of the first element the largest weights with the words of queries, and the map: also of those alone."""
    (view,) = content["views"]
    chosen = next(iter(right.values())).get("queries", torch.arange(QUERIES)).tolist()
    assert [text for text, *_ in view["queries"]] == [words[place] for place in chosen]
    assert [text for text, *_ in view["keys"]] == list(words)
    assert len(view["layers"]) == len(right)
    for layer, seen in zip(view["layers"], right.values(), strict=True):
        weights = seen.get("weights")
        largest = seen["top_weights"] if weights is None else weights.sort(-1, descending=True).values
        of_map = seen.get("overview") if weights is None else weights
        if of_map is None:
            there = seen["top_keys"].clamp(min=0)
            of_map = torch.zeros(*largest.shape[:-1], QUERIES, dtype=torch.float64)
            of_map.scatter_reduce_(-1, there, largest.double(), "amax")
        for name, whole in (("weights", largest[0, ..., : layer["top"]]), ("map", of_map[0])):
            codes = np.frombuffer(base64.b64decode(layer[name]), "<u2").reshape(whole.shape)
            shown = np.where(codes == 2**16 - 1, 0, 2.0 ** (-codes.astype(float) / 2048))
            np.testing.assert_allclose(shown, whole, rtol=1e-3, atol=1e-6)


def page(trace: dikkat.Trace, right: Expected, path: Path) -> None:
    trace.to_html(path / "page.html")
    assert_page((path / "page.html").read_text(encoding="utf-8"), right)


def notebook(trace: dikkat.Trace, right: Expected, path: Path) -> None:
    (found,) = re.findall(r'<iframe srcdoc="(.*?)"', trace._repr_html_(), re.DOTALL)
    assert_page(html.unescape(found), right)


def page_with_tokens(trace: dikkat.Trace, right: Expected, path: Path) -> None:
    trace.to_html(path / "page.html", tokens=["a", "b", "c", "d", "e"])
    assert_page((path / "page.html").read_text(encoding="utf-8"), right, "abcde")
    assert not trace.tokens


def page_of_elements(trace: dikkat.Trace, right: Expected, path: Path) -> None:
    trace.to_html(path / "page.html", element=[1, 0])
    content = content_of((path / "page.html").read_text(encoding="utf-8"))
    for element, view in zip([1, 0], content["views"], strict=bool(content["views"])):
        own = {
            which: {name: each if name in SHARED else each[element:] for name, each in seen.items()}
            for which, seen in right.items()
        }
        assert view["element"] == element
        assert_lines({"views": [view]}, own, "01234")


def head_scores(trace: dikkat.Trace, right: Expected, path: Path) -> None:
    """A row for each head; where all weights are known, how far those of the first key are above an even share."""
    table, row = trace.scores(element=1), 0
    for (name, _), seen in right.items():
        heads = seen.get("heads", torch.arange(HEADS)).tolist()
        assert table["head"][row : row + len(heads)].tolist() == heads
        assert set(table["module"][row : row + len(heads)]) == {name}
        if "weights" in seen:
            weights, places = seen["weights"][1], seen.get("queries", torch.arange(QUERIES))
            even = 1 / (weights > 0).sum(-1, keepdim=True)
            beyond = ((weights[..., :1] - even) / (1 - even))[..., 0][:, places > 0]
            assert_near(table["first"][row : row + len(heads)].fillna(0), beyond.mean(-1).clamp(min=0).nan_to_num())
        row += len(heads)
    assert row == len(table)


def weights_frame(trace: dikkat.Trace, right: Expected, path: Path) -> None:
    table = trace.frame()
    known = [seen.get("weights", seen.get("top_weights"))[0] for seen in right.values()]  # type: ignore[index]
    known = torch.cat([each[each > 0] for each in known])
    assert_near(table["weight"].to_numpy(), known)


def panels_of(figure: Any) -> list[Any]:
    return [axes.images[0].get_array() for axes in figure.axes if axes.images]


def heatmaps(trace: dikkat.Trace, right: Expected, path: Path) -> None:
    """Of the last call's weights, rows and overview: one panel a head."""
    which, seen = list(right.items())[-1]
    for what in ("weights", "rows", "overview"):
        if what in seen:
            assert_near(np.stack(panels_of(show.heatmaps(getattr(trace[which], what)[:1]))), seen[what][0])


def key_sums(trace: dikkat.Trace, right: Expected, path: Path) -> None:
    for (name, call), seen in right.items():
        given = trace[name, call].sums
        figure = show.key_sums(given if given is None else given[0])
        assert_near([line.get_ydata() for line in figure.axes[0].lines], seen["sums"][0])


def entropies(trace: dikkat.Trace, right: Expected, path: Path) -> None:
    figure = show.entropies({f"{name} {call}": seen.entropy for name, call, seen in trace})
    assert_near(panels_of(figure)[0], [seen["entropy"].mean((0, 2)).tolist() for seen in right.values()])


def real_queries(which: tuple[str, int], seen: dict[str, Tensor]) -> Tensor:
    """Which queries (B, n) are no padding: of the second module, if no queries were chosen, the first two of a text."""
    lengths = torch.tensor([QUERIES, 2 if which[0] == "second" and "queries" not in seen else QUERIES])
    return torch.arange(len(seen.get("queries", torch.arange(QUERIES)))) < lengths[:, None]


def own_patterns(trace: dikkat.Trace, right: Expected, path: Path) -> None:
    """The mean weight of two keys, where all weights are known."""
    mask, row = torch.arange(QUERIES) % 2 == 1, 0
    table = trace.scores(patterns={"odd": mask}, element=1)
    for which, seen in right.items():
        heads = len(seen.get("heads", range(HEADS)))
        if "weights" in seen:
            weights = seen["weights"][1][:, real_queries(which, seen)[1]]
            assert_near(table["odd"][row : row + heads], weights[..., mask].sum(-1).mean(-1))
        row += heads
    assert row == len(table)


def difference(trace: dikkat.Trace, right: Expected, path: Path) -> None:
    """Of two recordings, the second with the elements of the batch in the other order; and its views."""
    other, changes = dikkat.Trace(), []
    for call, seen in trace.calls():
        tensors = {name: each.flip(0) for name, each in seen.tensors().items() if name not in SHARED}
        other.add(dataclasses.replace(seen, **tensors), call)
    came = trace - other
    came.save(path / "difference")
    for each in (came, dikkat.Trace.load(path / "difference")):
        for (which, seen), record in zip(right.items(), [record for _, record in each.calls()], strict=True):
            assert_near(record.weights, seen["weights"] - seen["weights"].flip(0))
            real = real_queries(which, seen).all(0)
            change = (seen["weights"] - seen["weights"].flip(0)).abs().sum(-1) / 2
            assert_near(record.change[..., real], change[..., real])
            assert record.change[..., ~real].isnan().all()
            changes += change[1][:, real].mean(-1).tolist()
    assert_near(dikkat.compare(trace, other, element=1)["change"], sorted(changes[: len(changes) // 2], reverse=True))
    came.to_html(path / "page.html")
    (view,) = content_of((path / "page.html").read_text(encoding="utf-8"))["views"]
    for layer, seen in zip(view["layers"], right.values(), strict=True):
        codes = np.frombuffer(base64.b64decode(layer["map"]), "<u2").astype(int)
        sizes = np.where(codes == 2**16 - 1, 0, 2.0 ** (-(codes % 2**15) / 2048))
        expected = (seen["weights"][0] - seen["weights"][1]).numpy().ravel()
        np.testing.assert_allclose(np.where(codes >= 2**15, -sizes, sizes), expected, rtol=1e-3, atol=2e-5)


def page_with_effects(trace: dikkat.Trace, right: Expected, path: Path) -> None:
    """An effect for each head of a module, in any order; a module that ran twice has the effects once."""
    layers = {call.name: call.layer for call, _ in trace.calls()}
    heads = {which[0]: seen.get("heads", torch.arange(HEADS)).tolist() for which, seen in right.items()}
    rows = [(layers[name], name, head, len(name) - head, math.nan) for name in heads for head in heads[name]]
    table = pd.DataFrame(rows[::-1], columns=["layer", "module", "head", "effect", "estimate"])
    trace.to_html(path / "page.html", effects=table)
    (view,) = content_of((path / "page.html").read_text(encoding="utf-8"))["views"]
    for layer, (name, _) in zip(view["layers"], right, strict=True):
        assert layer["shares"]["effect"] == [len(name) - head for head in heads[name]]
    with pytest.raises(ValueError, match=r"effects: got head 1 of layer -1 .* twice|effects: got .* which is not in"):
        trace.to_html(path / "page.html", effects=pd.concat([table, table.assign(head=1)]))


def figure(trace: dikkat.Trace, right: Expected, path: Path) -> None:
    """A map of the known weights of the last layer's last head, and its lines."""
    seen, number = list(right.values())[-1], len(right) - 1
    head = seen["heads"].tolist()[-1] if "heads" in seen else HEADS - 1
    drawn = trace.figure(number, head, kind="map", element=1)
    known = seen.get("weights")
    if known is None:
        known = torch.zeros(*seen["top_keys"].shape[:-1], QUERIES, dtype=torch.float64)
        known.scatter_add_(-1, seen["top_keys"].clamp(min=0), seen["top_weights"].double())
    assert_near(panels_of(drawn)[0], known[1, -1])
    (lines,) = trace.figure(number, head, element=1).axes[0].collections
    assert len(lines.get_segments()) == int((known[1, -1] >= 0.01).sum())


VIEWS: dict[str, Callable[[dikkat.Trace, Expected, Path], None]] = {
    "trace[name, call]": index, "iteration": iteration, "of_element": element, "attentions": attentions,
    "rollout": rollout, "save and load": saved, "a copy": copied, "repr": said, "to_html": page,
    "to_html with tokens": page_with_tokens, "to_html of elements": page_of_elements, "a notebook": notebook,
    "scores": head_scores, "frame": weights_frame, "show.heatmaps": heatmaps, "show.key_sums": key_sums,
    "show.entropies": entropies, "scores of patterns": own_patterns, "a difference": difference,
    "to_html with effects": page_with_effects, "figure": figure,
}  # fmt: skip
# A view that wants what was not recorded: what it needs at the least, the error, and its words.
REFUSALS: dict[str, tuple[list[set[str]], str]] = {
    **dict.fromkeys(
        ("attentions", "rollout"),
        ([{"weights"}], r"trace\['\w+'\]: got no weights; expected a recording with weights=True"),
    ),
    **dict.fromkeys(
        ("to_html", "to_html with tokens", "to_html of elements", "a notebook"),
        (DRAWN, r"trace\['.*'\]: got only .*; expected a recording with weights=True"),
    ),
    **dict.fromkeys(
        ("scores", "frame", "scores of patterns", "figure"),
        ([{"weights"}, {"top_weights"}], r"trace\['\w+'\]: got .*; expected a recording with weights=True or top_k"),
    ),
    "to_html with effects": ([{"weights"}, {"top_weights"}], "effects: got a recording without weights or top_k"),
    "a difference": ([{"weights"}], r"trace\['\w+'\]: got .*; expected two recordings with weights=True"),
    "show.key_sums": ([{"sums"}], r"sums: got None; expected .*sums=True"),
    "show.entropies": ([{"entropy"}], r"by_layer\['\w+ 0'\]: got None; expected .*entropy=True"),
}
CELLS = list(product(REQUESTS, CHOICES, VIEWS))


@cache
def recorded(request: str, choice: str) -> dikkat.Trace:
    with torch.no_grad(), dikkat.record(model := Model(), **REQUESTS[request], **CHOICES[choice]) as trace:
        model(X)
    return trace


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("request_", REQUESTS)
def test_a_view_of_a_request(request_: str, view: str, tmp_path: Path) -> None:
    red = []
    for choice in CHOICES:
        trace, right = copy.copy(recorded(request_, choice)), expected(REQUESTS[request_], CHOICES[choice])
        enough, words = REFUSALS.get(view, ([set()], ""))
        there = set(next(iter(right.values())))
        try:
            if any(needed <= there for needed in enough):
                VIEWS[view](trace, right, tmp_path)
            else:
                with pytest.raises((ValueError, TypeError), match=words):
                    VIEWS[view](trace, right, tmp_path)
        except (Exception, pytest.fail.Exception) as error:
            red.append(f"{choice}: {type(error).__name__}: {' '.join(str(error).split())[:400]}")
    assert not red, "\n".join(red)


# --- relevance, whatever it is asked within, and of a model that is compiled or checkpointed


class Checkpointed(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.model, x, use_reentrant=False)


WITHIN: dict[str, Callable[[nn.Module], Any]] = {
    "nothing": lambda model: nullcontext(),
    "no_grad": lambda model: torch.no_grad(),
    "autocast": lambda model: torch.autocast("cpu", dtype=torch.bfloat16),
    "a recording": lambda model: dikkat.record(model, sums=True),
}
MADE = {
    "as it is": lambda model: model,
    "compiled": partial(torch.compile, backend="aot_eager"),
    "checkpointed": Checkpointed,
}


def relevant() -> Tensor:
    """By the published formula, in float64."""
    x, found = X.double().requires_grad_(), []
    for layer in ("first", "second", "second"):
        logits = x @ x.mT * SCALE
        if layer == "second":
            logits = -((x[..., :, None, :] - x[..., None, :, :]) / 1.5).square().sum(-1) / 2
            logits = torch.cat([logits[:1], logits[1:].masked_fill(torch.arange(QUERIES) >= 2, -torch.inf)])
        found.append(logits.softmax(-1))
        x = found[-1] @ x
    whole = torch.eye(QUERIES, dtype=torch.float64)
    for weights, gradient in zip(found, torch.autograd.grad(x[..., 0].sum(), found), strict=True):
        whole = whole + (gradient * weights).detach().clamp(min=0).mean(1) @ whole
    return whole


@pytest.mark.parametrize(("within", "made"), list(product(WITHIN, MADE)))
def test_relevance_is_the_same_within(within: str, made: str) -> None:
    model = MADE[made](Model())
    for _ in range(2):
        with WITHIN[within](model) as trace:
            if made == "checkpointed":
                with pytest.raises(ValueError, match="model: got attention inside gradient checkpointing"):
                    dikkat.relevance(model, X, target=lambda output: output[..., 0])
                continue
            came = dikkat.relevance(model, X, target=lambda output: output[..., 0])
        rough = 0.05 if within == "autocast" else 1e-4
        torch.testing.assert_close(came.double(), relevant(), rtol=rough, atol=rough)
        assert not came.requires_grad
        assert within != "a recording" or len(trace) == 3


def test_relevance_is_refused_within_a_transform() -> None:
    def asked(x: Tensor) -> Tensor:
        return dikkat.relevance(Model(), x[None], target=lambda output: output[..., 0])

    for transform in (torch.vmap, torch.func.jacrev, torch.func.jacfwd, torch.inference_mode()):
        with pytest.raises(ValueError, match=r"model: got a call inside a transform of torch\.func"):
            transform(asked)(X)


def test_the_number_of_cells_is_the_one_at_the_head() -> None:
    assert kit.cells_said(__doc__) == len(CELLS) + len(WITHIN) * len(MADE)
