"""Multi-head attention: several small looks side by side, in place of one large one.

A head has its own share of the projected features, and so its own idea of what belongs together. Splitting costs
nothing: five heads of 20 features compare as many numbers as one head of 100. What it buys is that a word can look at
several places at once and *keep apart* what it found there; one head can only mix them.

- `multi-head-untrained.png`: the chapter's example, 5 heads, 4 queries, 6 keys, of which the sentences have 3 and 2.
  Each head's weights end at the length; what is behind it has weight 0 in every head.
- `multi-head-masks.png`: one head of one sentence under a length, a causal mask (nobody looks ahead), both, and a mask
  of one's own.
- `multi-head-trained.png`: each symbol of a row must name both its left neighbour and the first symbol of the row. A
  layer with two heads learns it, and its heads share the work: one looks one step back, the other at the beginning.
  The layer with one head has to look at both places at once and cannot tell which is which.

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

LENGTH, SYMBOLS = 8, 6  # of the rows to learn from, and how many different ones there are
WORDS = "one head sees what another head misses".split()


class Trained(NamedTuple):
    """A layer, the share of its answers that are right, and its weights for one row, (heads, 8, 8)."""

    layer: nn.Module
    right: float
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
        projected = [
            nn.functional.linear(x, weight) for x, weight in zip((query, key, key), layer.in_proj_weight.split(100))
        ]
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
    print(f"a sentence without a word: torch {nothing[0, 0, 0]:.0f}, dikkat its output bias", end=", ")
    print("finite" if empty.isfinite().all() else "not finite")


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
    print(f"nobody looks ahead: {float(weights[2].triu(1).sum()):.0f} of the weight is on later words")
    return heatmaps(
        torch.stack(weights)[None], queries=WORDS, keys=WORDS, xlabel="looked at", ylabel="looks", titles=list(ways)
    )


class Reader(nn.Module):
    """Symbols and places as vectors, one attention layer, and two answers for each place."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.symbol = nn.Embedding(SYMBOLS, 32)
        self.place = nn.Embedding(LENGTH, 32)
        self.attention = dikkat.MultiHeadAttention(embed_dim=32, num_heads=num_heads)
        self.answers = nn.Linear(32, 2 * SYMBOLS)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 8) symbols -> scores of both answers (B, 8, 2, 6), and weights (B, heads, 8, 8)."""
        x = self.symbol(rows) + self.place.weight
        found, weights = self.attention(x, x, x, return_weights=True)
        return self.answers(found).unflatten(-1, (2, SYMBOLS)), weights


def questions(count: int) -> tuple[Tensor, Tensor]:
    """Rows of symbols (count, 8), and for each place the left neighbour (the first has none: itself) and the first."""
    rows = torch.randint(SYMBOLS, (count, LENGTH))
    neighbour = torch.cat([rows[:, :1], rows[:, :-1]], dim=1)
    return rows, torch.stack([neighbour, rows[:, :1].expand_as(rows)], dim=-1)


def train(num_heads: int, steps: int = 500) -> Trained:
    """Learn both answers from rows that are drawn anew for each step; judge by a thousand others."""
    torch.manual_seed(3)
    reader = Reader(num_heads)
    optimizer = torch.optim.Adam(reader.parameters(), lr=0.01)
    for _ in range(steps):
        rows, answers = questions(64)
        scores_of_answers, _ = reader(rows)
        loss = nn.functional.cross_entropy(scores_of_answers.flatten(0, 2), answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        rows, answers = questions(1_000)
        given, weights = reader(rows)
    right = (given.argmax(-1) == answers)[:, 1:].float().mean().item()  # the first place's two answers are one
    return Trained(reader, right, weights.mean(0))


def main(output: Path) -> None:
    """Print what was found, and write the figures."""
    output.mkdir(parents=True, exist_ok=True)
    save(show_shapes(), output / "multi-head-untrained.png")
    compare_with_torch()
    save(draw_masks(), output / "multi-head-masks.png")

    one, two = train(num_heads=1), train(num_heads=2)
    print(f"left neighbour and first symbol, answers that are right: one head {one.right:.0%}, two heads {two.right:.0%}")
    places = [str(place) for place in range(1, LENGTH + 1)]
    titles = ["one head alone", "head 1 of 2", "head 2 of 2"]
    weights = torch.cat([one.weights, two.weights])[None]
    figure = heatmaps(weights, queries=places, keys=places, xlabel="place looked at", ylabel="place", titles=titles)
    save(figure, output / "multi-head-trained.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("textbook-figures"), help="the folder for the figures")
    main(parser.parse_args().output)
