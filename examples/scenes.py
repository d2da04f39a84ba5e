"""Which region does a word describe? A small captioner writes "a red square left of a blue circle".

    python examples/scenes.py scenes.html            # about three minutes of one core

A scene has two objects, grey pebbles that no caption mentions, and noise. The caption starts with the left object, or
with the upper one if the objects are more above each other than side by side. The training has only scenes and
captions. While the decoder writes a shape, its cross-attention looks at that object. Before a colour, it compares both
objects, and looks at the described one less often. The page shows one scene. The printed table has held-out scenes: how
often the largest patch of such a word is inside its object's box.
"""

import sys
from typing import NamedTuple

import patches
import torch
from patches import GRID, SIDE
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

import dikkat

COLOURS = {"red": (0.85, 0.15, 0.15), "green": (0.1, 0.6, 0.2), "blue": (0.15, 0.3, 0.85), "yellow": (0.95, 0.8, 0.1)}
SHAPES = ["square", "circle", "triangle"]
START, END = "<start>", "<end>"
WORDS = [END, START, "a", "of", "left", "above", *COLOURS, *SHAPES]
NUMBERS = {word: number for number, word in enumerate(WORDS)}
LONGEST = 9  # "a red square left of a blue circle <end>"
CROSS = "*.multihead_attn"  # the cross-attention of torch.nn.TransformerDecoder


class Scene(NamedTuple):
    """An image (3, 48, 48), the words of its caption, and the box of each noun: left, top, right, bottom in pixels."""

    image: Tensor
    words: list[str]
    boxes: list[tuple[float, float, float, float] | None]  # None for words that are no nouns


class Item(NamedTuple):
    """An object: its colour and shape, its centre, and half of its size in pixels."""

    colour: str
    shape: str
    x: float
    y: float
    size: float


def draw_scene(draw: torch.Generator) -> Scene:
    """Return a random scene."""

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * torch.rand((), generator=draw).item()

    image = uniform(0.75, 1.0) * torch.ones(3, SIDE, SIDE)
    for _ in range(4):
        image[:, region("circle", uniform(0, SIDE), uniform(0, SIDE), uniform(1.5, 3))] = uniform(0.3, 0.7)
    kinds = [divmod(number, len(SHAPES)) for number in torch.randperm(12, generator=draw)[:2].tolist()]
    across = down = 0.0
    while max(abs(across), abs(down)) < 19 or abs(abs(across) - abs(down)) < 5:  # touching, or neither left nor above
        items = []
        for colour, shape in kinds:
            size = uniform(6, 9)
            centre = (uniform(size, SIDE - size), uniform(size, SIDE - size))
            items.append(Item([*COLOURS][colour], SHAPES[shape], *centre, size))
        across, down = items[1].x - items[0].x, items[1].y - items[0].y
    beside = abs(across) > abs(down)
    first, second = sorted(items, key=lambda item: item.x if beside else item.y)
    for item in items:
        image[:, region(item.shape, item.x, item.y, item.size)] = torch.tensor(COLOURS[item.colour])[:, None]
    image = (image + 0.03 * torch.randn(image.shape, generator=draw)).clamp(0, 1)
    relation = ["left", "of"] if beside else ["above"]
    words = ["a", first.colour, first.shape, *relation, "a", second.colour, second.shape]
    return Scene(image, words, [None, *[box(first)] * 2, *[None] * len(relation), None, *[box(second)] * 2])


def region(shape: str, x: float, y: float, size: float) -> Tensor:
    """Return a mask (48, 48) of the pixels of a shape."""
    across, down = torch.arange(SIDE)[None] + 0.5 - x, torch.arange(SIDE)[:, None] + 0.5 - y
    if shape == "circle":
        return across**2 + down**2 <= size**2
    width = size if shape == "square" else (down + size) / 2
    return (across.abs() <= width) & (down.abs() <= size)


def box(item: Item) -> tuple[float, float, float, float]:
    """Return the box around an object."""
    return item.x - item.size, item.y - item.size, item.x + item.size, item.y + item.size


def draw_scenes(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor, list[Scene]]:
    """Return images (B, 3, 48, 48), the numbers of the captions' words (B, 10), padded with END, and the scenes."""
    scenes = [draw_scene(draw) for _ in range(count)]
    captions = [torch.tensor([NUMBERS[word] for word in [START, *scene.words, END]]) for scene in scenes]
    captions.append(torch.zeros(LONGEST + 1, dtype=torch.int64))  # all batches have one length
    return torch.stack([scene.image for scene in scenes]), pad_sequence(captions, True)[:-1], scenes


class Captioner(nn.Module):
    """An encoder of 8 × 8 patches and a decoder of words.

    In the encoder, patches look only at their neighbours. If they look everywhere, patches of the background describe
    objects, and the decoder may read an object's colour from them.
    """

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.patches = patches.patch_layers(3, width)
        self.positions = nn.Parameter(0.02 * torch.randn(GRID**2, width))
        self.words = nn.Embedding(len(WORDS), width)
        self.order = nn.Parameter(0.02 * torch.randn(LONGEST, width))
        form = {"dim_feedforward": 2 * width, "dropout": 0.0, "activation": "gelu"}
        form |= {"batch_first": True, "norm_first": True}
        encoder, decoder = nn.TransformerEncoderLayer, nn.TransformerDecoderLayer
        self.encoder = nn.TransformerEncoder(
            encoder(width, heads, **form), 1, nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(decoder(width, heads, **form), 2, nn.LayerNorm(width))
        self.output = nn.Linear(width, len(WORDS))
        self.register_buffer("distant", patches.distant_patches(), persistent=False)

    def forward(self, images: Tensor, words: Tensor) -> Tensor:
        """Return logits (B, n, words) of the next word after each of the words (B, n)."""
        memory = self.encoder(self.patches(images).flatten(2).mT + self.positions, self.distant)
        queries = self.words(words) + self.order[: words.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        return self.output(self.decoder(queries, memory, tgt_mask=mask, tgt_is_causal=True))


def train(steps: int = 900, seed: int = 0) -> Captioner:
    """Return a trained model."""
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(seed)
    model = Captioner()

    def compute_loss() -> Tensor:
        images, words, _ = draw_scenes(64, draw)
        return F.cross_entropy(model(images, words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())

    patches.train(model, compute_loss, steps, weight_decay=0.01)
    return model


@torch.no_grad()
def write_captions(model: Captioner, images: Tensor) -> list[list[str]]:
    """Return the words that the model writes for images (B, 3, 48, 48), the most probable word at each step."""
    words = torch.full((len(images), 1), NUMBERS[START])
    for _ in range(LONGEST):
        words = torch.cat([words, model(images, words)[:, -1:].argmax(-1)], 1)
    captions = [[WORDS[number] for number in row] for row in words[:, 1:].tolist()]
    return [caption[: (*caption, END).index(END)] for caption in captions]


def measure(model: Captioner, count: int = 200, seed: int = 1) -> dict[str, float]:
    """Return shares of correct held-out captions, and of colour and shape words whose largest patch is on the object.

    The query of a word is the position that writes it. The weights are the mean of the last layer's heads. A patch is
    on an object if its centre is inside the object's box. The words are those of the reference captions, so that each
    colour and shape has an object.
    """
    images, words, scenes = draw_scenes(count, torch.Generator().manual_seed(seed))
    with torch.no_grad(), dikkat.record(model, layers=CROSS, weights=True) as trace:
        model(images, words[:, :-1])
    nouns = [(row, column) for row, scene in enumerate(scenes) for column, box in enumerate(scene.boxes) if box]
    maps = torch.stack([trace[-1].weights.mean(1)[noun] for noun in nouns])
    boxes = torch.tensor([scenes[row].boxes[column] for row, column in nouns])
    inside = patches.patches_inside(boxes).float()
    captions = write_captions(model, images)
    hits = inside.gather(1, maps.argmax(-1, keepdim=True))[:, 0]
    is_colour = torch.tensor([scenes[row].words[column] in COLOURS for row, column in nouns])
    return {
        "captions as expected": sum(a == scene.words for a, scene in zip(captions, scenes, strict=True)) / count,
        "words whose largest patch is inside the box": hits.mean().item(),
        "colours whose largest patch is inside the box": hits[is_colour].mean().item(),
        "shapes whose largest patch is inside the box": hits[~is_colour].mean().item(),
        "weight inside the box": (maps * inside).sum(-1).mean().item(),
        "patches inside the box (uniform weights)": inside.mean().item(),
        "words whose box has the most frequent patch": inside.mean(0).max().item(),
    }


def draw_page(model: Captioner, scene: Scene, path: str | None = None) -> dikkat.Trace:
    """Return the trace of the cross-attention while the model writes its caption, and write the page."""
    caption = write_captions(model, scene.image[None])[0]
    words = torch.tensor([[NUMBERS[word] for word in [START, *caption[:-1]]]])
    return dikkat.show.attention(
        model, scene.image[None], words, layers=CROSS, path=path, title="A caption and its scene",
        tokens=([dikkat.Grid(GRID, GRID, image=scene.image)], caption),
    )  # fmt: skip


def main() -> None:
    """Train, print figures of 200 held-out scenes, and write the page of one scene."""
    torch.set_num_threads(1)
    model = train()
    for name, share in measure(model).items():
        print(f"{share:.3f}  {name}")
    if sys.argv[1:]:
        draw_page(model, draw_scene(torch.Generator().manual_seed(29)), sys.argv[1])


if __name__ == "__main__":
    main()
