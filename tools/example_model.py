"""Train the example model of dikkat.show on texts with repetitions: `python tools/example_model.py`.

A text has 64 random tokens, in which most pieces of 2 to 11 tokens copy an earlier piece. The training takes about
three minutes of one core. Prints the accuracy on tokens inside copies, and writes src/dikkat/show/example_model.npz.
"""

import argparse

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dikkat.show.example import MAX_WORDS, VOCABULARY, WEIGHTS, ExampleModel

COPIED = 0.85  # share of the pieces that copy an earlier piece


def texts(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return (count, 64) tokens, and whether each token continues a copy."""

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    tokens = torch.randint(VOCABULARY, (count, MAX_WORDS), generator=generator)
    continues_copy = torch.zeros(count, MAX_WORDS, dtype=torch.bool)
    for row in range(count):
        end = draw(4, 12)
        while end < MAX_WORDS:
            size = min(draw(2, 12), MAX_WORDS - end)
            if end > size and torch.rand((), generator=generator) < COPIED:
                start = draw(0, end - size)
                tokens[row, end : end + size] = tokens[row, start : start + size].clone()
                continues_copy[row, end + 1 : end + size] = True
            end += size
    return tokens, continues_copy


def train(steps: int, seed: int, batch_size: int = 64, learning_rate: float = 3e-3) -> ExampleModel:
    """Return a model trained on the next token of random texts."""
    torch.manual_seed(seed)
    model, generator = ExampleModel(), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), learning_rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, learning_rate, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        tokens, _ = texts(batch_size, generator)
        loss = F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return model.eval()


def accuracy(model: ExampleModel, seed: int) -> float:
    """Return the share of correct predictions of tokens that continue a copy, in 512 new texts."""
    tokens, continues_copy = texts(512, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        correct = model(tokens)[:, :-1].argmax(-1) == tokens[:, 1:]
    return float(correct[continues_copy[:, 1:]].float().mean())


def main() -> None:
    """Train, print the accuracy, and write the weights in float16."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default=str(WEIGHTS))
    options = parser.parse_args()
    model = train(options.steps, options.seed)
    print(f"accuracy inside copies: {accuracy(model, seed=options.seed + 1):.3f}")
    np.savez_compressed(options.output, **{name: t.half().numpy() for name, t in model.state_dict().items()})


if __name__ == "__main__":
    main()
