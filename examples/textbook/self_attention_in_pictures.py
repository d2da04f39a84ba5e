"""Self-attention in pictures: the three characters of 早上好, good morning, look at each other.

Each character is a vector of two numbers, so that it can be drawn; 早 and 上, which together are the morning, point in
similar directions. Everything that self-attention does can then be seen:

- `self-projections.png`: a dot product is the length of one arrow times the length of the other's shadow on it. So
  X Xᵀ holds how far each character goes in the direction of each: what they have in common.
- `self-products.png` and `self-weights.png`: X Xᵀ, then its softmax, row by row: shares that add up to 1.
- `self-mixture.png`: softmax(X Xᵀ) X. Each character moves to the mean of the three, weighted by its row, and so never
  leaves the triangle between them. 好 has moved towards the morning that it greets.
- `self-query-key-value.png`: Q, K and V are X turned, stretched and sheared, each by a matrix of its own. What a
  character looks for (Q) need not be what it is found by (K), so the weights are no longer those of X Xᵀ, nor
  symmetric before the softmax; and what it hands on (V) is a third thing. The matrices here are drawn at random, those
  of a model are learned.
- `self-scaling.png`: why scores are divided by √d. The product of two vectors of d independent numbers of variance 1
  is a sum of d terms of variance 1: its own variance is d, measured on the left. On the right is what comes of it:
  without the division the softmax gives nearly everything to one key, and hardly a gradient to any; with it, nothing
  depends on d.
- `self-shuffled.png`: shuffle the characters, and weights and outputs are shuffled with them, nothing more: to
  self-attention a sentence is a set. Add a vector to each place, and order matters.

It ends with two mistakes that self-attention written by hand often has, beside what is right: dividing by √d after the
softmax instead of before it, and cutting the heads with a reshape alone.

Where no installed font has Chinese characters, the labels are their sounds: zǎo, shàng, hǎo.
"""

import argparse
import math
import warnings
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import dikkat
from dikkat import scores
from dikkat.show import heatmaps, save
from dikkat.show.fonts import families_for

CHARACTERS, SOUNDS = list("早上好"), ["zǎo", "shàng", "hǎo"]
COLOURS = ["#1f6fb4", "#c4302b", "#2a8a4a"]
X = torch.tensor([[1.8, 0.3], [1.3, 1.0], [0.2, 1.5]])
SIZES = [2**power for power in range(11)]
ORDER = [2, 0, 1]  # 好早上


def labels() -> list[str]:
    """The characters; their sounds where no installed font could draw them."""
    with warnings.catch_warnings(action="error", category=UserWarning):
        try:
            families_for(CHARACTERS)
        except UserWarning:
            print("no installed font has Chinese characters (fonts-noto-cjk has): the figures say how they sound")
            return SOUNDS
    return CHARACTERS


def project(vector: Tensor, onto: Tensor) -> Tensor:
    """The shadow of a vector on the line of another."""
    return (vector @ onto) / (onto @ onto) * onto


def draw_projections(names: list[str]) -> Figure:
    """A panel for each character: the shadows of the others on it."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    for this, axes in enumerate(figure.subplots(1, 3)):
        lines = [f"shadows on {names[this]}, of length {X[this].norm():.2f}"]
        draw_arrows(axes, X, names)
        for other in range(3):
            if other != this:
                foot = project(X[other], X[this])
                axes.plot(*torch.stack([X[other], foot]).T.numpy(), ":", color=COLOURS[other])
                axes.plot(*foot.tolist(), "o", color=COLOURS[other], markersize=5)
                length, product = foot.norm(), X[other] @ X[this]
                lines.append(f"of {names[other]}: {length:.2f} × {X[this].norm():.2f} = {product:.2f}")
        axes.set_title("\n".join(lines), fontsize=10, fontfamily=families_for(lines))
    return figure


def draw_arrows(axes: Axes, vectors: Tensor, names: list[str], *, faint: bool = False) -> None:
    """Vectors of two numbers from the origin, each with its name at the tip."""
    for vector, name, colour in zip(vectors.tolist(), names, COLOURS, strict=True):
        style = {"arrowstyle": "->", "color": colour, "linewidth": 1.2 if faint else 2, "alpha": 0.35 if faint else 1}
        axes.annotate("", vector, (0, 0), arrowprops={**style, "shrinkA": 0, "shrinkB": 0})
        if not faint:
            x, y = (part / math.hypot(*vector) for part in vector)
            axes.annotate(  # beyond the tip, in its direction
                name,
                vector,
                xytext=(5 * x, 5 * y),
                textcoords="offset points",
                ha="left" if x > 0.4 else "right" if x < -0.4 else "center",
                va="bottom" if y > 0.4 else "top" if y < -0.4 else "center",
                color=colour,
                fontsize=12,
                fontfamily=families_for([name]),
            )
    axes.update_datalim([(0, 0), *vectors.tolist()])
    axes.autoscale_view()
    axes.margins(0.3)
    axes.set_aspect("equal", adjustable="datalim")
    axes.axhline(0, color="0.85", linewidth=0.8, zorder=0)
    axes.axvline(0, color="0.85", linewidth=0.8, zorder=0)
    axes.spines[["top", "right"]].set_visible(False)


def draw_numbers(title: str, matrix: Tensor, names: list[str]) -> Figure:
    """A matrix of three by three as a heat map, with its numbers in the cells."""
    figure = heatmaps(
        matrix, queries=names, keys=names, xlabel="looked at", ylabel="looks", titles=[title], figsize=(3.6, 3.1)
    )
    axes = figure.axes[0]
    axes.tick_params(labelsize=12)
    for row, numbers in enumerate(matrix.tolist()):
        for column, number in enumerate(numbers):
            colour = "white" if number > 0.6 * matrix.max() else "black"
            axes.text(column, row, f"{number:.2f}", ha="center", va="center", color=colour)
    return figure


def draw_mixture(mixed: Tensor, names: list[str]) -> Figure:
    """The characters, faint, and where the weighted sums are."""
    figure = Figure(figsize=(5.4, 4.6), layout="constrained")
    axes = figure.subplots()
    draw_arrows(axes, X, names, faint=True)
    draw_arrows(axes, mixed, names)
    axes.fill(*X.T.numpy(), color="0.5", alpha=0.12, linewidth=0)
    for before, after, colour in zip(X, mixed, COLOURS, strict=True):
        axes.plot(*torch.stack([before, after]).T.numpy(), ":", color=colour)
    axes.set_title("faint: X; full: softmax(X Xᵀ) X", fontsize=10)
    return figure


def draw_query_key_value(layer: dikkat.SelfAttention, names: list[str]) -> Figure:
    """X and its three projections, as arrows."""
    ways = {"$X$": X} | {
        rf"${name.upper()} = X W_{name}^\top$": projection(X)
        for name, projection in (("q", layer.W_q), ("k", layer.W_k), ("v", layer.W_v))
    }
    figure = Figure(figsize=(13, 3.8), layout="constrained")
    for axes, (title, vectors) in zip(figure.subplots(1, 4), ways.items(), strict=True):
        draw_arrows(axes, vectors.detach(), names)
        axes.set_title(title)
    return figure


def measure_scaling() -> dict[str, list[tuple[float, float]]]:
    """For each d the variance of the scores and the mean largest of ten weights; plain products and those over √d."""
    torch.manual_seed(0)
    found: dict[str, list[tuple[float, float]]] = {"⟨q, k⟩": [], "⟨q, k⟩ / √d": []}
    for size in SIZES:
        query, key = torch.randn(2_000, 1, size), torch.randn(2_000, 10, size)
        for name, score in zip(found, (scores.Dot(), scores.ScaledDot()), strict=True):
            products = score.project_query(query) @ score.project_key(key).mT
            largest = dikkat.attention_weights(query, key, score=score).amax(-1)
            found[name].append((products.var().item(), largest.mean().item()))
    return found


def draw_scaling(found: dict[str, list[tuple[float, float]]]) -> Figure:
    """Variance on the left, what the softmax makes of it on the right."""
    figure = Figure(figsize=(9.5, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for (name, pairs), colour in zip(found.items(), ("C3", "C0"), strict=True):
        variances, largest = zip(*pairs, strict=True)
        left.plot(SIZES, variances, "o-", color=colour, label=name)
        right.plot(SIZES, largest, "o-", color=colour, label=name)
    left.set(yscale="log", ylabel="variance of the scores")
    right.set(ylim=(0, 1.03), ylabel="largest of ten weights, mean")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set(xlabel="features d", xticks=SIZES[::2], xticklabels=[str(size) for size in SIZES[::2]])
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="upper left" if axes is left else "center right")
    left.yaxis.set_major_formatter("{x:g}")
    return figure


def draw_shuffled(layer: dikkat.SelfAttention, names: list[str]) -> Figure:
    """Weights as they are and shuffled, without places and with them."""
    places = torch.tensor([[1.5, 0.0], [0.0, 0.0], [-1.5, 0.0]])
    shuffled = [names[which] for which in ORDER]
    panels: list[Tensor] = []
    with torch.no_grad():
        for place in (torch.zeros(3, 2), places):
            output, weights = layer(X + place, return_weights=True)
            other, their_weights = layer(X[ORDER] + place, return_weights=True)
            panels += [weights[0], their_weights[0]]
            kind = "with places" if place.any() else "without places"
            print(f"shuffled, {kind}: a character's output changes by up to {(output[ORDER] - other).abs().max():.2f}")
    figure = heatmaps(
        torch.stack(panels)[None],
        queries=[names, shuffled] * 2,
        keys=[names, shuffled] * 2,
        xlabel="looked at",
        ylabel="looks",
        titles=["in order", "shuffled: the same", "in order, with places", "shuffled: others"],
        figsize=(11, 3.2),
    )
    for axes in figure.axes[: len(panels)]:
        axes.tick_params(labelsize=12)
    return figure


def by_hand(
    layer: dikkat.SelfAttention, x: Tensor, *, scaled_late: bool = False, cut_flat: bool = False
) -> tuple[Tensor, Tensor]:
    """A layer's output and weights, computed step by step, with either mistake on request."""
    heads, steps = layer.num_heads, len(x)

    def cut(features: Tensor) -> Tensor:
        if cut_flat:  # the rows of a head are pieces of the sequence as it lies in memory: tokens, not features, part
            return features.reshape(heads, steps, -1)
        return features.reshape(steps, heads, -1).transpose(0, 1)

    query, key, value = (cut(projection(x)) for projection in (layer.W_q, layer.W_k, layer.W_v))
    root = query.shape[-1] ** 0.5
    products = query @ key.mT
    weights = products.softmax(-1) / root if scaled_late else (products / root).softmax(-1)
    pooled = weights @ value
    return (pooled if cut_flat else pooled.transpose(0, 1)).reshape(steps, -1), weights


def show_mistakes() -> None:
    """Both, and what is right, beside the layer: four tokens, two heads of four features."""
    torch.manual_seed(7)
    layer = dikkat.SelfAttention(embed_dim=8, key_dim=8, value_dim=8, num_heads=2)
    x = torch.randn(4, 8)
    ways = {"scaled after the softmax": {"scaled_late": True}, "heads by reshape only": {"cut_flat": True}, "right": {}}
    for name, mistake in ways.items():
        with torch.no_grad():
            output, weights = by_hand(layer, x, **mistake)
            off = (output - layer(x[None])[0]).abs().max()
            others = [by_hand(layer, x + token, **mistake)[1] for token in torch.eye(4).unsqueeze(-1)]
        seen = sum(bool((other - weights)[0].abs().max() > 1e-4) for other in others)  # by the first head
        total = weights.sum(-1).mean()
        print(f"{name}: weights sum to {total:.2f}, a head sees {seen} of 4 tokens, off by up to {off:.2f}")


def main(output: Path) -> None:
    """Print what was found, and write the figures."""
    output.mkdir(parents=True, exist_ok=True)
    names = labels()
    products = X @ X.T
    mixed, weights = dikkat.self_attention(X, return_weights=True)
    for character, vector, row, after in zip(CHARACTERS, X, weights, mixed, strict=True):
        shares = ", ".join(f"{share:.2f} {each}" for share, each in zip(row.tolist(), CHARACTERS, strict=True))
        was, is_now = (tuple(round(part, 2) for part in each.tolist()) for each in (vector, after))
        print(f"{character} {was} becomes {is_now}: {shares}")
    save(draw_projections(names), output / "self-projections.png")
    save(draw_numbers("X Xᵀ", products, names), output / "self-products.png")
    save(draw_numbers("softmax(X Xᵀ)", weights, names), output / "self-weights.png")
    save(draw_mixture(mixed, names), output / "self-mixture.png")

    torch.manual_seed(5)
    layer = dikkat.SelfAttention(embed_dim=2, key_dim=2, value_dim=2)
    torch.nn.init.normal_(layer.W_q.weight)
    torch.nn.init.normal_(layer.W_k.weight)
    torch.nn.init.normal_(layer.W_v.weight)
    save(draw_query_key_value(layer, names), output / "self-query-key-value.png")

    found = measure_scaling()
    for name, pairs in found.items():
        variance, largest = pairs[-1]
        print(f"{name} of {SIZES[-1]} features: variance {variance:.4g}, the largest of ten weights {largest:.2f}")
    save(draw_scaling(found), output / "self-scaling.png")
    save(draw_shuffled(layer, names), output / "self-shuffled.png")
    show_mistakes()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("textbook-figures"), help="the folder for the figures")
    main(parser.parse_args().output)
