"""Where does a classifier look? A small vision transformer names one digit among pieces of other digits.

    python examples/digits.py digits.html            # about two minutes of one core

Each image has a digit of scikit-learn's data at a random position, six pieces of other digits, and noise. The labels
of the training are only the digits' names, never their positions. The page shows one image. The printed table has
held-out images: how much of the class token's map is inside the digit's box, and how often its largest patch is.
"""

import sys
from typing import NamedTuple

import patches
import torch
from patches import GRID, SIDE
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import dikkat

DIGIT, PIECE, PIECES = 16, 6, 6  # pixels, and the number of pieces
TRAINING = 1400  # the first 1,400 digits are for training, the last 397 are held out


class Batch(NamedTuple):
    """Images (B, 1, 48, 48), labels (B,), and boxes (B, 4): left, top, right and bottom of the digit in pixels."""

    images: Tensor
    labels: Tensor
    boxes: Tensor


def read_digits() -> tuple[Tensor, Tensor]:
    """Return digits (1797, 16, 16) and labels (1797,)."""
    data = load_digits()
    digits = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    digits = F.interpolate(digits, size=(DIGIT, DIGIT), mode="bicubic", align_corners=False).clamp(0, 1)
    return digits[:, 0], torch.tensor(data.target)


def make_batch(digits: Tensor, labels: Tensor, count: int, draw: torch.Generator) -> Batch:
    """Return images of one digit each, with pieces of other digits, which the digit covers."""

    def positions(size: int, side: int, *shape: int) -> Tensor:
        return torch.randint(side - size + 1, (*shape, 2), generator=draw)

    images = torch.zeros(count, SIDE, SIDE)
    sources = torch.randint(len(digits), (count, PIECES), generator=draw)
    cuts, places = (positions(PIECE, side, count, PIECES).tolist() for side in (DIGIT, SIDE))
    for image, rows, starts, ends in zip(images, sources.tolist(), cuts, places, strict=True):
        for row, (y, x), (top, left) in zip(rows, starts, ends, strict=True):
            canvas = image[top : top + PIECE, left : left + PIECE]
            torch.maximum(canvas, digits[row, y : y + PIECE, x : x + PIECE], out=canvas)
    chosen, corners = torch.randint(len(digits), (count,), generator=draw), positions(DIGIT, SIDE, count)
    for image, row, (top, left) in zip(images, chosen.tolist(), corners.tolist(), strict=True):
        image[top : top + DIGIT, left : left + DIGIT] = digits[row]
    images = (images + 0.05 * torch.randn(images.shape, generator=draw)).clamp(0, 1)
    return Batch(images[:, None], labels[chosen], torch.cat([corners.flip(1), corners.flip(1) + DIGIT], 1))


class Transformer(nn.Module):
    """A vision transformer with a class token and 8 × 8 patches.

    In all layers but the last, patches look only at their neighbours, and the class token only at itself. If patches
    look everywhere, all of them copy the digit, and the class token may read it from any patch of the background.
    """

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.patches = patches.patch_layers(1, width)
        self.class_token = nn.Parameter(torch.zeros(width))
        self.positions = nn.Parameter(0.02 * torch.randn(GRID**2, width))
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, 10)
        hidden = F.pad(patches.distant_patches(), (1, 0, 1, 0), value=True)
        hidden[0, 0] = False
        self.register_buffer("hidden", hidden, persistent=False)  # (65, 65), True where a query ignores a key

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, 10) of images (B, 1, 48, 48)."""
        tokens = self.patches(images).flatten(2).mT + self.positions
        tokens = torch.cat([self.class_token.expand(len(images), 1, -1), tokens], 1)
        *layers, last = self.encoder.layers
        for layer in layers:
            tokens = layer(tokens, src_mask=self.hidden)
        return self.output(self.norm(last(tokens))[:, 0])


def train(steps: int = 700, seed: int = 0) -> Transformer:
    """Return a trained model."""
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(seed)
    digits, labels = (data[:TRAINING] for data in read_digits())
    model = Transformer()

    def compute_loss() -> Tensor:
        batch = make_batch(digits, labels, 64, draw)
        return F.cross_entropy(model(batch.images), batch.labels)

    patches.train(model, compute_loss, steps, weight_decay=0.05)
    return model


def held_out(count: int, seed: int = 1) -> Batch:
    """Return images of digits and pieces that the training did not see."""
    digits, labels = (data[TRAINING:] for data in read_digits())
    return make_batch(digits, labels, count, torch.Generator().manual_seed(seed))


def class_maps(model: Transformer, batch: Batch) -> dict[str, Tensor]:
    """Return maps (B, 64) from the class token to the patches, each with a sum of 1."""
    with torch.no_grad(), dikkat.record(model, weights=True) as trace:
        model(batch.images)
    rows = torch.arange(len(batch.labels))
    maps = {
        "weights of the last layer": trace[-1].weights.mean(1)[:, 0, 1:],
        "rollout": trace.rollout()[:, 0, 1:],
        "relevance": dikkat.relevance(model, batch.images, target=lambda out: out[rows, batch.labels])[:, 0, 1:],
        "uniform": torch.ones(len(rows), GRID**2),
    }
    return {name: values / values.sum(-1, keepdim=True) for name, values in maps.items()}


def measure(model: Transformer, batch: Batch) -> dict[str, tuple[float, float]]:
    """Return for each map the mean share inside the digit's box, and the share of images whose largest patch is."""
    inside = patches.patches_inside(batch.boxes).float()
    shares = {}
    for name, values in class_maps(model, batch).items():
        largest = values == values.amax(-1, keepdim=True)  # all patches of a uniform map
        hits = (largest * inside).sum(-1) / largest.sum(-1)
        shares[name] = ((values * inside).sum(-1).mean().item(), hits.mean().item())
    return shares


def draw_page(model: Transformer, image: Tensor, path: str | None = None) -> dikkat.Trace:
    """Return the trace of the last layer for one image (1, 48, 48), and write its page."""
    return dikkat.show.attention(
        model, image[None], layers=-1, tokens=["class", dikkat.Grid(GRID, GRID, image=image)], path=path,
        title="A digit among pieces of digits",
    )  # fmt: skip


def main() -> None:
    """Train, print figures of 400 held-out images, and write the page of one image."""
    torch.set_num_threads(1)
    model, batch = train(), held_out(400)
    with torch.no_grad():
        right = (model(batch.images).argmax(-1) == batch.labels).float().mean().item()
    print(f"right answers: {right:.3f}\nshare inside the digit's box, largest patch inside the box")
    for name, (share, hits) in measure(model, batch).items():
        print(f"{share:.3f}  {hits:.3f}  {name}")
    if sys.argv[1:]:
        draw_page(model, batch.images[0], sys.argv[1])


if __name__ == "__main__":
    main()
