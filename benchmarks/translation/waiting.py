"""How much of a training's time goes into waiting for its next batch: one round through 4,000 pairs of Multi30k.

    python -m benchmarks.translation.waiting --data FOLDER

FOLDER holds Multi30k's train.en.gz and train.fr.gz. The network is a small one of the recipe's kind.
"""

import argparse
import time
from pathlib import Path

import torch

from benchmarks.kit.report import write
from dikkat.translation import Settings, read_aligned
from dikkat.translation.data.batches import Batches
from dikkat.translation.network.model import TranslationModel
from dikkat.translation.text.tokenizer import Tokenizer

PAIRS, SIZE = 4000, 5000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with train.en.gz and train.fr.gz")
    data = parser.parse_args().data
    sides = zip(*read_aligned(data / "train.en.gz", data / "train.fr.gz")[:PAIRS], strict=True)
    numbers = [Tokenizer.train(side, "bpe", min_freq=2, vocabulary_size=SIZE).numbers(side) for side in sides]
    model = TranslationModel(Settings(dropout=0.3), SIZE, SIZE)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    batches = iter(Batches(list(zip(*numbers, strict=True)), 64, seed=0))
    waiting, start = 0.0, time.perf_counter()
    while True:
        asked = time.perf_counter()
        batch = next(batches, None)
        waiting += time.perf_counter() - asked
        if batch is None:
            break
        optimizer.zero_grad()
        model.loss(batch, label_smoothing=0.1).backward()
        optimizer.step()
    seconds = time.perf_counter() - start
    found = {"pairs": PAIRS, "seconds": seconds, "waiting_seconds": waiting, "share": waiting / seconds}
    print(found, write("waiting", found, "tokenizers"), sep="\n")


if __name__ == "__main__":
    main()
