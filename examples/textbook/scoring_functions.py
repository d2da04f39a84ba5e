"""Scoring functions: how a query is compared with a key, and what that decides.

Whatever the score, a softmax over the keys that may be seen turns it into weights. The chapter's example gives every
key the same features, so that no score can tell them apart: each query spreads its attention evenly, and additive and
dot-product attention give the same answer. That is a property of the example. Its exercises ask what happens
otherwise; the answers are printed and drawn here.

- `scoring-same-keys.png` and `scoring-other-keys.png`: weights of additive and dot-product attention, where the first
  sentence has 2 keys and the second 6. First with keys that are all alike: level up to the length, nothing beyond.
  Then with keys of their own: the two no longer agree, since an inner product and a small network with weights drawn
  at random order the keys differently. They would only agree if one were trained to imitate the other.
- `scoring-sharpness.png`: the same keys made longer and longer. An inner product grows with them, and its softmax ends
  up with all its weight on one key. Each feature of the additive score is a tanh, at most 1, so the score stays
  between −Σ|v| and Σ|v| and the weight of the favourite below a bound (dashed). A dot product has no such bound,
  which is one reason to scale it.
- `scoring-vector-sum.png`: why v·(q + k) cannot attend. The query's share v·q is the same for all keys, so the softmax
  cancels it: all rows of its panel are alike, and nothing that the query says can change them.
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import dikkat
from dikkat import scores
from dikkat.show import heatmaps, save

LENGTHS = torch.tensor([2, 6])


def values() -> Tensor:
    """0 ... 39 as ten values of four numbers, for both sentences: (2, 10, 4)."""
    return torch.arange(40.0).view(10, 4).expand(2, -1, -1)


def show_masked_softmax() -> None:
    """Lengths a sentence or a query; rows without a key; scores far below what others fill masks with."""
    torch.manual_seed(0)
    found = torch.randn(2, 2, 4)
    print("masked softmax, lengths 2 and 3 a sentence; then 1, 3 and 2, 4 a query; then an empty row")
    for lengths in (torch.tensor([2, 3]), torch.tensor([[1, 3], [2, 4]]), torch.tensor([0, 3])):
        print("  " + "  ".join(rounded(row) for row in dikkat.masked_softmax(found, lengths).flatten(0, 1)))
    low = torch.tensor([[[-2e6, -2e6, 0.0]]])  # the third is padding
    filled = torch.softmax(low.masked_fill(torch.arange(3) >= 2, -1e6), -1)
    print(f"scores of -2,000,000 before padding: {rounded(dikkat.masked_softmax(low, torch.tensor([2]))[0, 0])};")
    print(f"  where masks are filled with -1,000,000: {rounded(filled[0, 0])}, all of it on padding")


def rounded(row: Tensor) -> str:
    """A row of weights on a line."""
    return "[" + " ".join(f"{weight:.2f}" for weight in row.tolist()) + "]"


def compare(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Additive and dot-product attention with the same keys: both outputs (2, 1, 4), and weights (2, 1, 10) of both."""
    torch.manual_seed(1)
    additive = dikkat.AdditiveAttention(key_size=key.shape[-1], query_size=query.shape[-1], num_hiddens=8).eval()
    dot = dikkat.DotProductAttention().eval()
    with torch.no_grad():
        by_network, its_weights = additive(query, key, values(), LENGTHS, return_weights=True)
        by_product, others = dot(query, key, values(), LENGTHS, return_weights=True)
    return by_network, by_product, [its_weights, others]


def draw_comparison(weights: list[Tensor]) -> Figure:
    """A panel each, a row a sentence."""
    return heatmaps(
        torch.stack([each[:, 0] for each in weights])[None],
        queries=["length 2", "length 6"],
        keys=[str(number) for number in range(10)],
        xlabel="key",
        ylabel="",
        titles=["additive", "dot product"],
    )


def sharpness(factors: Tensor) -> dict[str, Tensor]:
    """The largest of ten weights, mean over many queries, for keys that are so many times as long."""
    torch.manual_seed(2)
    query, key = torch.randn(200, 8), torch.randn(10, 8)
    ways = {"additive": scores.Additive(8, 8, num_hiddens=8), "dot product, scaled": scores.ScaledDot()}
    bound = 2 * ways["additive"].pair_weight().abs().sum()  # from the lowest score that there can be to the highest
    with torch.no_grad():
        found = {
            name: torch.stack([dikkat.attention_weights(query, f * key, score=score).amax(-1).mean() for f in factors])
            for name, score in ways.items()
        }
    return found | {"bound of this additive score": (1 / (1 + 9 * torch.exp(-bound))).detach().expand(len(factors))}


def draw_sharpness(factors: Tensor, found: dict[str, Tensor]) -> Figure:
    """One line a score; the bound dashed."""
    figure = Figure(figsize=(6, 3.8), layout="constrained")
    axes = figure.subplots()
    for (name, largest), style in zip(found.items(), ("C0-", "C3-", "C0--"), strict=True):
        axes.plot(factors.numpy(), largest.numpy(), style, label=name)
    axes.axhline(0.1, color="0.6", linewidth=0.8)
    axes.annotate("all ten alike", (1e3, 0.1), xytext=(0, 3), textcoords="offset points", ha="right", color="0.4")
    axes.set(xscale="log", ylim=(0, 1.03), xlabel="keys so many times as long", ylabel="largest of ten weights, mean")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center right")
    return figure


def compare_sizes() -> None:
    """Queries of 20 numbers and keys of 2: a plain product refuses, a bilinear one brings the query to the keys."""
    torch.manual_seed(3)
    query, key = torch.randn(2, 1, 20), torch.randn(2, 10, 2)
    try:
        dikkat.DotProductAttention()(query, key, values(), LENGTHS)
    except ValueError as error:
        print(f"dot product of 20 and 2 features: {error}")
    bilinear = dikkat.BilinearAttention(key_size=2, query_size=20)
    with torch.no_grad():
        mapped = dikkat.attend(bilinear.score.W_q(query), key, values(), score=scores.Dot(), valid_lens=LENGTHS)
        apart = (bilinear(query, key, values(), LENGTHS) - mapped).abs().max()
    print(f"bilinear: (2, 1, 20) and (2, 10, 2) attend; from the dot product with W q it differs by {apart:.0e}")
    print(f"  it learns {bilinear.score.W_q.weight.numel()} numbers, W of 2 × 20")


def vector_sum() -> list[Tensor]:
    """Weights (5, 10) of the same queries and keys by three scores; the last ones cannot depend on the query."""
    torch.manual_seed(4)
    query, key = 2 * torch.randn(5, 4), 2 * torch.randn(10, 4)
    ways = (scores.ScaledDot(), scores.Additive(4, 4, num_hiddens=8), scores.VectorSum(4))
    for score in ways:
        for weight in score.parameters():
            nn.init.normal_(weight)
    with torch.no_grad():
        return [dikkat.attention_weights(query, key, score=score) for score in ways]


def main(output: Path) -> None:
    """Print what was found, and write the figures."""
    output.mkdir(parents=True, exist_ok=True)
    show_masked_softmax()

    torch.manual_seed(0)
    query, own = torch.randn(2, 1, 2), torch.randn(2, 10, 2)
    for name, key in (("same", torch.ones(2, 10, 2)), ("other", own)):
        by_network, by_product, weights = compare(query, key)
        apart = (weights[0] - weights[1]).abs().max()
        print(f"{name} keys: additive and dot product differ by at most {apart:.2f} in a weight")
        for way, result in (("additive", by_network), ("dot product", by_product)):
            print(f"  {way:<11}  " + "  ".join(rounded(row) for row in result[:, 0]))
        save(draw_comparison(weights), output / f"scoring-{name}-keys.png")

    factors = torch.logspace(-1, 3, 33)
    found = sharpness(factors)
    largest = ", ".join(f"{name} {each[-1]:.2f}" for name, each in found.items())
    print(f"keys 1,000 times as long, the largest weight: {largest}")
    save(draw_sharpness(factors, found), output / "scoring-sharpness.png")

    compare_sizes()

    weights = vector_sum()
    names = ["scaled dot", "additive", "vector sum"]
    for name, each in zip(names, weights, strict=True):
        print(f"{name}: between two queries, a weight changes by up to {(each - each[:1]).abs().max():.2f}")
    figure = heatmaps(torch.stack(weights)[None], titles=names, xlabel="key", ylabel="query")
    save(figure, output / "scoring-vector-sum.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("textbook-figures"), help="the folder for the figures")
    main(parser.parse_args().output)
