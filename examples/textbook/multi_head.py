"""Multi-head attention: several small looks side by side, in place of one large one.

A head has its own share of the projected features, and so its own idea of what belongs together. Splitting costs
nothing: five heads of 20 features compare as many numbers as one head of 100. What it buys is that a word can look at
several places at once and *keep apart* what it found there; one head can only mix them.

- `multi-head-untrained.png`: the chapter's example, 5 heads, 4 queries, 6 keys, of which the sentences have 3 and 2.
  Each head's weights end at the length; what is behind it has weight 0 in every head.
- `multi-head-masks.png`: one head of one sentence under a length, a causal mask (nobody looks ahead), both, and a mask
  of one's own.
- `multi-head-trained.png`: for each number of a row, a layer must give both its left neighbour and the first number of
  the row. One with two heads learns it, and the heads share the work: one looks a step back, the other at the
  beginning. One with a single head gets one mean of the numbers for each place, and no linear map makes two unrelated
  numbers out of one: half of their variance stays unexplained, however long it learns.

It also checks that the layer is PyTorch's own: the same weights in `torch.nn.MultiheadAttention` give the same output.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import dikkat
from dikkat import scores
from dikkat.show import heatmaps, save

PLACES = 8  # numbers in a row to learn from
WORDS = ["one", "head", "sees", "what", "another", "head", "misses"]


class Trained(NamedTuple):
    """The share of the answers' variance that a layer leaves unexplained, and its weights, (heads, 8, 8)."""

    unexplained: float
    weights: Tensor


def show_shapes() -> Figure:
    """The chapter's sizes; each head is scaled dot-product attention on its own fifth of the features."""
    torch.manual_seed(0)
    layer = dikkat.MultiHeadAttention(embed_dim=100, num_heads=5).eval()
    query, key, lengths = torch.randn(2, 4, 100), torch.randn(2, 6, 100), torch.tensor([3, 2])
    with torch.no_grad():
        output, weights = layer(query, key, key, lengths, return_weights=True)
        print(f"queries {shape(query)}, keys {shape(key)}: output {shape(output)}, weights {shape(weights)}")

        # The same by hand, head after head: what the layer does is no more than this.
        named = zip((query, key, key), layer.in_proj_weight.split(100), strict=True)
        projected = [nn.functional.linear(x, weight) for x, weight in named]
        heads = [
            dikkat.attend(*(x[..., part : part + 20] for x in projected), score=scores.ScaledDot(), valid_lens=lengths)
            for part in range(0, 100, 20)
        ]
        by_hand = layer.out_proj(torch.cat(heads, dim=-1))
    print(f"head after head by hand: differs by {(output - by_hand).abs().max():.0e}")
    return heatmaps(
        weights,
        xlabel="key",
        ylabel="query",
        titles=[f"sentence of {length}, head {head}" for length in lengths.tolist() for head in range(1, 6)],
    )


def shape(tensor: Tensor) -> str:
    """As one writes it."""
    return str(tuple(tensor.shape))


def compare_with_torch() -> None:
    """The state dict of PyTorch's layer loads as it is; then outputs and weights are equal."""
    torch.manual_seed(1)
    theirs = nn.MultiheadAttention(embed_dim=60, num_heads=3, batch_first=True).eval()
    nn.init.normal_(theirs.in_proj_bias)
    ours = dikkat.MultiHeadAttention(embed_dim=60, num_heads=3).eval()
    ours.load_state_dict(theirs.state_dict())
    query, key, lengths = torch.randn(2, 5, 60), torch.randn(2, 7, 60), torch.tensor([7, 4])
    padding = torch.arange(7) >= lengths[:, None]
    with torch.no_grad():
        expected, their_weights = theirs(query, key, key, key_padding_mask=padding, average_attn_weights=False)
        output, weights = ours(query, key, key, lengths, return_weights=True)
    apart = max((output - expected).abs().max(), (weights - their_weights).abs().max())
    print(f"the same weights in torch.nn.MultiheadAttention: output and weights differ by {apart:.0e}")

    with torch.no_grad():
        nothing, _ = theirs(query, key, key, key_padding_mask=torch.ones(2, 7, dtype=torch.bool))
        empty = ours(query, key, key, torch.tensor([0, 0]))
    off = (empty - ours.out_proj.bias).abs().max()
    print(f"a sentence without a word: torch says {nothing[0, 0, 0]:.0f}; here heads say 0: off the bias by {off:.0e}")


def draw_masks() -> Figure:
    """One head of a sentence that looks at itself, under each restriction."""
    torch.manual_seed(2)
    count = len(WORDS)
    layer = dikkat.MultiHeadAttention(embed_dim=16, num_heads=2).eval()
    x = torch.randn(1, count, 16)
    near = (torch.arange(count)[:, None] - torch.arange(count)).abs() <= 1
    ways = {
        "nothing hidden": {},
        "length 5": {"valid_lens": torch.tensor([5])},
        "causal": {"causal": True},
        "causal, length 5": {"valid_lens": torch.tensor([5]), "causal": True},
        "neighbours (mask)": {"mask": near},
    }
    with torch.no_grad():
        weights = [layer(x, x, x, return_weights=True, **limits)[1][0, 0] for limits in ways.values()]
    print(f"nobody looks ahead: {float(weights[2].triu(1).sum()):.0e} of the weight is on later words")
    return heatmaps(
        torch.stack(weights)[None], queries=WORDS, keys=WORDS, xlabel="looked at", ylabel="looks", titles=list(ways)
    )


class Reader(nn.Module):
    """Places are compared, numbers are averaged, and a linear map makes two answers for each place."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(PLACES, 16))
        self.attention = dikkat.MultiHeadAttention(embed_dim=16, num_heads=num_heads, value_size=1)
        self.answers = nn.Linear(16, 2)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 8) numbers -> both answers (B, 8, 2), and weights (B, heads, 8, 8)."""
        places = self.places.expand(len(rows), -1, -1)
        found, weights = self.attention(places, places, rows[..., None], return_weights=True)
        return self.answers(found), weights


def questions(count: int) -> tuple[Tensor, Tensor]:
    """Rows (count, 8) of variance 1, and for each place the left neighbour (the first's is itself) and the first."""
    rows = torch.randn(count, PLACES)
    neighbours = torch.cat([rows[:, :1], rows[:, :-1]], dim=1)
    return rows, torch.stack([neighbours, rows[:, :1].expand_as(rows)], dim=-1)


def train(num_heads: int, steps: int = 400) -> Trained:
    """Learn both answers from rows that are drawn anew for each step; judge by a thousand others."""
    torch.manual_seed(3)
    reader = Reader(num_heads)
    optimizer = torch.optim.Adam(reader.parameters(), lr=0.02)
    for _ in range(steps):
        rows, answers = questions(64)
        loss = (reader(rows)[0] - answers).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        rows, answers = questions(1_000)
        given, weights = reader(rows)
    asked = slice(2, None)  # at the first two places both answers are the same number
    return Trained((given - answers)[:, asked].square().mean().item(), weights[0])


def main(output: Path) -> None:
    """Print what was found, and write the figures."""
    output.mkdir(parents=True, exist_ok=True)
    save(show_shapes(), output / "multi-head-untrained.png")
    compare_with_torch()
    save(draw_masks(), output / "multi-head-masks.png")

    one, two = train(num_heads=1), train(num_heads=2)
    print(f"left neighbour and first number: one head leaves {one.unexplained:.0%} unexplained", end=", ")
    print(f"two heads {two.unexplained:.0%}")
    places = [str(place) for place in range(1, PLACES + 1)]
    titles = ["one head alone", "head 1 of 2", "head 2 of 2"]
    weights = torch.cat([one.weights, two.weights])[None]
    figure = heatmaps(weights, queries=places, keys=places, xlabel="place looked at", ylabel="place", titles=titles)
    save(figure, output / "multi-head-trained.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("textbook-figures"), help="the folder for the figures")
    main(parser.parse_args().output)
