"""Attention pooling: fifty noisy points, averaged by how near they are to where a value is asked for.

The chapter begins with the oldest attention there is: Nadaraya and Watson's estimate of 1964, a weighted mean of known
values. The place that is asked about is the query, the known places are the keys, what was measured there are the
values, and a kernel of the distance says how much each counts.

Three figures:

- `pooling-kernels.png`: the same points under five kernels of width 1. Above, the estimates; below, who looks at
  whom. Look at the edges of the band in each heat map: the boxcar ends sharply, the Gaussian fades. The average sees
  everything alike, whatever it is asked, so its estimate is a level line. The width is a standard deviation for the
  Gaussian and a reach for the kernels that end: compare their shapes, not their errors. (The kernel that the
  textbook's code names after Epanechnikov falls in a straight line; that is the triangular one. Epanechnikov's is a
  parabola.)
- `pooling-widths.png`: one kernel, four widths. Too narrow, and the estimate follows the noise; too wide, and it is
  nearly the average.
- `pooling-learned.png`: the width is learned. Each point is predicted from the *others* (`exclude` hides it from
  itself), and gradient descent makes the error of that small. Let a point see itself, and the best width is none at
  all: it would copy its own noise, and the error that it shows would be no error at all.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import dikkat
from dikkat import scores
from dikkat.regression import NadarayaWatson
from dikkat.show import save

KERNELS: dict[str, scores.Score] = {
    "average": scores.Average(),
    "Gaussian": scores.Gaussian(1.0),
    "boxcar": scores.Boxcar(1.0),
    "Epanechnikov": scores.Epanechnikov(1.0),
    "triangular": scores.Triangular(1.0),
}
WIDTHS = (0.05, 0.2, 0.5, 1.5)


class Data(NamedTuple):
    """Columns, (n, 1): known places and the values measured there; places to ask about and what is true there."""

    x: Tensor
    y: Tensor
    at: Tensor
    truth: Tensor


class Lesson(NamedTuple):
    """The learnt layer, and the width σ before each step and after the last."""

    layer: dikkat.KernelAttention
    widths: list[float]


def curve(x: Tensor) -> Tensor:
    """2 sin x + x^0.8, which nobody knows but we."""
    return 2 * torch.sin(x) + x**0.8


def draw_data(seed: int = 0) -> Data:
    """Fifty places in 0 ... 5, in order, with noise of standard deviation 0.5 on their values."""
    random = torch.Generator().manual_seed(seed)
    x = 5 * torch.rand(50, 1, generator=random, dtype=torch.float64).sort(dim=0).values
    y = curve(x) + 0.5 * torch.randn(50, 1, generator=random, dtype=torch.float64)
    at = torch.arange(0, 5, 0.05, dtype=torch.float64)[:, None]
    return Data(x, y, at, curve(at))


def pool(data: Data, score: scores.Score) -> tuple[Tensor, Tensor]:
    """The estimates at all places that are asked about, and how each looked at the points."""
    return dikkat.attend(data.at, data.x, data.y, score=score, return_weights=True)


def error(estimate: Tensor, truth: Tensor) -> float:
    """Mean squared."""
    return (estimate - truth).square().mean().item()


def misfit(data: Data, layer: dikkat.KernelAttention, exclude: Tensor | None) -> Tensor:
    """The mean squared error at the known places themselves."""
    return (layer(data.x, data.x, data.y, exclude=exclude) - data.y).square().mean()


def learn(data: Data, exclude: Tensor | None, steps: int = 300) -> Lesson:
    """Find the width with the least misfit, by gradient descent from σ = 1."""
    layer = dikkat.KernelAttention(torch.tensor(1.0, dtype=torch.float64), learnable=True)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.03)
    widths = [1.0]
    for _ in range(steps):
        optimizer.zero_grad()
        misfit(data, layer, exclude).backward()
        optimizer.step()
        widths.append(layer.score.bandwidth.item())
    return Lesson(layer, widths)


def draw_pooling(data: Data, ways: dict[str, scores.Score]) -> Figure:
    """One column a way: above, its estimate; below, its weights."""
    figure = Figure(figsize=(0.8 + 2.7 * len(ways), 5.6), layout="constrained")
    above, below = figure.subplots(2, len(ways), sharey="row")
    found = {name: pool(data, score) for name, score in ways.items()}
    # One colour scale: the strongest weights of a kernel with an end are near the border, and would make all else pale.
    strongest = float(np.quantile(np.concatenate([weights.max(1).values for _, weights in found.values()]), 0.9))
    for (name, (estimate, weights)), axes, heat in zip(found.items(), above, below, strict=True):
        draw_estimate(axes, data, estimate)
        axes.set_title(f"{name}\nmean squared error {error(estimate, data.truth):.2f}", fontsize=10)
        image = heat.imshow(
            weights.numpy(), cmap="Reds", vmin=0, vmax=strongest, aspect="auto", extent=(0, len(data.x), 5, 0)
        )
        heat.set(xlabel="point looked at", xticks=range(0, 50, 20))
    above[0].set_ylabel("y")
    below[0].set_ylabel("x that is asked about")
    figure.colorbar(image, ax=list(below), aspect=24, pad=0.02, label="attention weight", extend="max")
    figure.legend(*above[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
    return figure


def draw_estimate(axes: Axes, data: Data, estimate: Tensor) -> None:
    """Points, truth and estimate."""
    axes.plot(data.x, data.y, "o", color="0.45", alpha=0.6, markersize=4, markeredgewidth=0, label="points with noise")
    axes.plot(data.at, data.truth, "--", color="0.2", label="truth")
    axes.plot(data.at, estimate, color="C0", linewidth=2, label="estimate")
    axes.set_xlabel("x")
    axes.spines[["top", "right"]].set_visible(False)


def draw_lesson(data: Data, others: Tensor, lesson: Lesson, cheating: Lesson) -> Figure:
    """The misfit of all widths and what was learned; the width step by step; the estimate in the end."""
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    by_width, by_step, result = figure.subplots(1, 3)
    widths = np.geomspace(0.005, 2, 60)
    ways = {"a point sees the others": (lesson, others, "C0"), "a point sees itself too": (cheating, None, "C3")}
    for name, (learned, exclude, colour) in ways.items():
        errors = [misfit(data, dikkat.KernelAttention(width), exclude).item() for width in widths]
        by_width.plot(widths, errors, color=colour, label=name)
        by_width.plot(learned.widths[-1], misfit(data, learned.layer, exclude).item(), "o", color=colour)
        by_step.plot(learned.widths, color=colour, label=name)
    by_width.set(xscale="log", xlabel="width σ", ylabel="mean squared error", ylim=(0, 1.2))
    by_width.set_title("error at the points; dots: learned")
    by_step.set(yscale="log", xlabel="step", ylabel="width σ", title="the width while it learns")
    draw_estimate(result, data, lesson.layer(data.at, data.x, data.y).detach())
    result.set(ylabel="y", title=f"the estimate with σ = {lesson.widths[-1]:.3f}")
    for axes, axis in ((by_width, by_width.xaxis), (by_step, by_step.yaxis)):
        axis.set_major_formatter("{x:g}")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    result.legend(frameon=False)
    return figure


def main(output: Path) -> None:
    """Print what was found, and write the figures."""
    data = draw_data()
    print("kernel, width 1  mean squared error")
    for name, score in KERNELS.items():
        print(f"{name:<15}  {error(pool(data, score)[0], data.truth):.3f}")

    others = torch.arange(len(data.x))  # row i must not see key i
    lesson, cheating = learn(data, exclude=others), learn(data, exclude=None)
    width = lesson.widths[-1]
    searched = NadarayaWatson(bandwidth="loo").fit(data.x.numpy(), data.y[:, 0].numpy())
    estimate = lesson.layer(data.at, data.x, data.y).detach()
    print(f"learned width: σ = {width:.3f} in the units of x; the textbook's multiplier is w = 1/σ = {1 / width:.2f}")
    print(f"NadarayaWatson finds: σ = {searched.bandwidth_[0]:.3f}")
    print(f"mean squared error with it: {error(estimate, data.truth):.3f}")
    print(f"where a point may see itself: σ = {cheating.widths[-1]:.3f}, and it goes on falling")

    output.mkdir(parents=True, exist_ok=True)
    save(draw_pooling(data, KERNELS), output / "pooling-kernels.png")
    widths = {f"Gaussian, σ = {width:g}": scores.Gaussian(width) for width in WIDTHS}
    save(draw_pooling(data, widths), output / "pooling-widths.png")
    save(draw_lesson(data, others, lesson, cheating), output / "pooling-learned.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("textbook-figures"), help="the folder for the figures")
    main(parser.parse_args().output)
