"""What heads do, and what follows from all layers: made heads, published formulas written out, plain loops."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dikkat
import kit
from dikkat.inspection import Inspection, Token
from dikkat.inspection.calls import Call

transformers = pytest.importorskip("transformers")

SIZES = (7, 31, 83)


def tokens(count: int) -> list[Token]:
    """Words that come again and again, in another order each time, a special token at either end and in the middle."""
    order = torch.Generator().manual_seed(5)
    words = [f"w{k}" for _ in range(count) for k in torch.randperm(max(3, count // 4), generator=order).tolist()]
    return [Token("<s>" if k == 0 else "</s>" if k in (count // 2, count - 1) else words[k],
                  k in (0, count // 2, count - 1)) for k in range(count)]  # fmt: skip


def looked_at(i: int, count: int, causal: bool) -> list[tuple[str, list[tuple[float, list[int]]]]]:
    """Of each of the twenty kinds of head the score that is to be its largest, and where row i looks, in shares."""
    names, seen = [token.text for token in tokens(count)], range(i + 1 if causal else count)
    same = [j for j in seen if j != i and names[j] == names[i]]
    behind = [j + 1 for j in range(i - 1) if names[j] == names[i]]
    ends = [j for j in (count // 2, count - 1) if j in seen]
    kinds = [
        ("previous", [(1.0, [i - 1])]),
        ("previous", [(0.7, [i - 1]), (0.3, [i])]),
        ("previous", [(0.6, [i - 1]), (0.25, [i - 2]), (0.15, [i - 3])]),
        ("itself", [(1.0, [i])]),
        ("itself", [(0.6, [i]), (0.2, [i - 1]), (0.2, [i + 1])]),
        ("first", [(1.0, [0])]),
        ("first", [(0.7, [0]), (0.3, [i])]),
        ("same", [(1.0, same)]),
        ("same", [(1.0, same[-1:])]),
        ("same", [(1.0, [j for j in same if j < i] or same[:1])]),
        ("induction", [(1.0, behind)]),
        ("induction", [(1.0, behind[-1:])]),
        ("separator", [(1.0, ends)]),
        ("separator", [(1.0, ends[-1:])]),
        ("separator", [(1.0, [j for j in ends if j >= i][:1] or ends[-1:])]),
        ("evenly", [(1.0, list(seen))]),
        ("evenly", [(0.8, list(seen)), (0.2, list(seen[len(seen) // 2 :]))]),
        ("next", [(1.0, [i + 1])]),
        ("next", [(0.7, [i + 1]), (0.3, [i])]),
        ("next", [(0.6, [i + 1]), (0.25, [i + 2]), (0.15, [i + 3])]),
    ]
    few = ("same", "induction", "separator" if causal else "")  # in seven rows
    return [
        (score, [(share, [j for j in keys if j in seen] or [0]) for share, keys in parts])
        for score, parts in kinds
        # Of a few rows several is evenly, and one or two queries are no pattern.
        if not (causal and score == "next") and (count > 7 or (len(parts) == 1 and score not in few))
    ]


def made(count: int, noise: float, causal: bool) -> tuple[list[str], Tensor]:
    """(heads, n, n): heads that do one thing each, and look at random with a part of their weight, the blurred less."""
    rows = [looked_at(i, count, causal) for i in range(count)]
    wanted = torch.zeros(len(rows[0]), count, count, dtype=torch.float64)
    for i, heads in enumerate(rows):
        for head, (_, parts) in enumerate(heads):
            for share, keys in parts:
                wanted[head, i, keys] += (1 - noise * parts[0][0]) * share / len(keys)
    drawn = torch.rand(wanted.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    drawn = drawn.tril() if causal else drawn
    at_random = (1 - wanted.sum(-1, keepdim=True)) * drawn / drawn.sum(-1, keepdim=True)
    return [score for score, _ in rows[0]], wanted + at_random


@kit.each("noise", [0.0, 0.2, 0.4])
@kit.each("count", SIZES)
@kit.each("causal", [False, True])
def test_the_largest_score_is_of_what_a_head_was_made_to_do(count: int, causal: bool, noise: float) -> None:
    wanted, made_ones = made(count, noise, causal)
    weights = made_ones.float()[None]
    largest, keys = weights.topk(min(16, count), -1)
    for seen in (Inspection(weights=weights), Inspection(top_weights=largest, top_keys=keys)):
        trace = dikkat.Trace()
        trace.add(seen, Call("layer"))
        trace.tokens = tokens(count)
        scores = trace.scores()
        assert list(scores.looks) == wanted
        shares = scores[[*dict.fromkeys(wanted)]].to_numpy()
        assert ((shares >= 0) & (shares <= 1) | np.isnan(shares)).all()


def test_scores_are_the_formulas() -> None:
    count = 13
    names = [token.text for token in tokens(count)]
    weights = torch.rand(1, 2, count, count, generator=torch.Generator().manual_seed(1)).softmax(-1)
    trace = dikkat.show.weights(weights[0], tokens=tokens(count))
    scores = trace.scores()
    for head in range(2):
        w = weights[0, head].double().numpy()
        beyond = []
        for i in range(count):
            keys = [j for j in range(count) if j != i and names[j] == names[i]]
            if keys:
                even = len(keys) / count
                beyond.append((w[i, keys].sum() - even) / (1 - even))
        assert math.isclose(scores.same[head], max(0.0, np.mean(beyond)), abs_tol=1e-6)
        before = [(w[i, i - 1] - 1 / count) / (1 - 1 / count) for i in range(1, count)]
        assert math.isclose(scores.previous[head], max(0.0, np.mean(before)), abs_tol=1e-6)
        assert math.isclose(
            scores.evenly[head], ((np.minimum(w, 1 / count).sum(-1) - 1 / count) / (1 - 1 / count)).mean(), rel_tol=1e-5
        )
        told = -(w.mean(0) * np.log(w.mean(0))).sum() + (w * np.log(w)).sum(-1).mean()
        assert math.isclose(scores.information[head], told / math.log(count), rel_tol=1e-5)


def test_the_frame_has_every_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = torch.rand(2, 3, 5).softmax(-1)
    words = (["le", "chat", "noir", "dort", "ici"], ["the", "black", "cat"])
    trace = dikkat.show.weights(weights, tokens=words)
    frame = trace.frame()
    assert len(frame) == weights.numel()
    row = frame[(frame["head"] == 1) & (frame["query"] == 2) & (frame["key"] == 4)].iloc[0]
    assert (row.layer, row.query_token, row.key_token) == (0, "cat", "ici")
    assert row.weight == weights[1, 2, 4].item()
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    plain = trace.frame()
    assert isinstance(plain, np.recarray)
    assert np.array_equal(plain.weight, frame.weight.to_numpy())


def bert(attention: str) -> Any:
    torch.manual_seed(2)
    config = transformers.BertConfig(
        vocab_size=43, hidden_size=12, num_hidden_layers=3, num_attention_heads=3, intermediate_size=17, num_labels=5,
        attn_implementation=attention,
    )  # fmt: skip
    made = transformers.BertForSequenceClassification(config).eval()
    for parameter in made.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.4)
    return made


def published(layers: tuple[Tensor, ...], result: Tensor) -> Tensor:
    """Equations 5 and 6 of Chefer et al. 2021."""
    whole = torch.eye(layers[0].shape[-1]).expand(len(layers[0]), -1, -1)
    for weights, gradient in zip(layers, torch.autograd.grad(result, layers), strict=True):
        whole = whole + (gradient * weights).clamp(min=0).mean(1).detach() @ whole
    return whole


@pytest.mark.parametrize("attention", ["eager", "sdpa", "dikkat"])
def test_relevance_is_the_published_formula_on_eager_weights(attention: str) -> None:
    dikkat.register_transformers()
    ids = torch.randint(1, 43, (2, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    found = bert("eager")(ids, attention_mask=mask, output_attentions=True)
    right = published(found.attentions, found.logits[..., 2].sum())
    came = dikkat.relevance(bert(attention), ids, attention_mask=mask, target=2)
    torch.testing.assert_close(came, right, rtol=1e-4, atol=1e-6)


def test_relevance_of_pytorchs_layers() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 11, 0.0, batch_first=True, dtype=torch.float64).eval()
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    came = dikkat.relevance(layer, x, target=lambda output: output[0, 0, 3])
    q, k, v = nn.functional.linear(x, layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias).chunk(3, -1)
    q, k, v = (each.unflatten(-1, (2, 4)).transpose(1, 2) for each in (q, k, v))
    weights = (q @ k.mT / 2).softmax(-1)
    y = layer.norm1(x + layer.self_attn.out_proj((weights @ v).transpose(1, 2).flatten(-2)))
    y = layer.norm2(y + layer.linear2(layer.linear1(y).relu()))
    (gradient,) = torch.autograd.grad(y[0, 0, 3], weights)
    torch.testing.assert_close(
        came, torch.eye(5, dtype=torch.float64) + (gradient * weights).clamp(min=0).mean(1).detach()
    )


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"target": "cat"}, TypeError, "target: got str; expected a function of the output, or a class's number"),
        ({"target": lambda output: torch.ones((), requires_grad=True)}, ValueError, "target: got a result that"),
    ],
)
def test_relevance_of_nothing(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        dikkat.relevance(bert("sdpa"), torch.ones(1, 3, dtype=torch.int64), **given)


@pytest.mark.parametrize(
    ("weights", "words", "error", "message"),
    [
        (torch.ones(2, 3, 5, 5) / 5, ["a"] * 4, ValueError, "tokens: got 4 .*; expected 5, a label for each"),
        (torch.ones(5), None, ValueError, r"weights: got a layer of shape \(5,\); expected \(n, m\) or"),
        (-torch.ones(2, 2), None, ValueError, "weights: got -1 to -1; expected weights from 0 to 1"),
        (torch.eye(2) * math.nan, None, ValueError, "weights: got nan"),
        (torch.eye(2), "ab", TypeError, "tokens: got str; expected a list of strings"),
        (torch.eye(2), ["a", 3], TypeError, r"tokens\[1\]: got int; expected str"),
        (torch.eye(2), {"key": ["a", "b"]}, TypeError, "tokens: got 'key'; expected 'self', and 'encoder'"),
        (torch.eye(2), (["a", "b"], ["c"]), ValueError, "tokens: got 1 .*; expected 2, a label for each position"),
    ],
)
def test_weights_and_tokens_that_do_not_fit(weights: Any, words: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        dikkat.show.weights(weights, tokens=words)


def test_sums_that_are_not_1_are_said(tmp_path: Any) -> None:
    with pytest.warns(UserWarning, match=r"rows add up to 0\.5 … 0\.5, not to 1"):
        dikkat.show.weights(np.eye(3) / 2, tokens=list("abc"), path=tmp_path / "page.html")
    assert "rows add up to 0.5 … 0.5" in (tmp_path / "page.html").read_text(encoding="utf-8")
