"""Texts end to end: is a sentence English or French? Read letter by letter, in batches without a padded letter.

    python examples/texts.py                            # a few seconds

The sentences are the phrasebook's, in lower case. Each letter attends to the letters near it, in its own sentence
alone (`attend_ragged`); attention pooling makes one row of a sentence, whatever its length, and its weights tell which
letters gave the language away.
"""

import torch
from torch import Tensor, nn

from dikkat import AttentionPooling, LengthBatchSampler, attend_ragged, scores
from dikkat.translation import phrasebook

LETTERS, SIZE, NEAR = 128, 32, 3


class Network(nn.Module):
    """Letters to features, attention to letters near by, and one number a sentence: positive for French."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, SIZE)
        self.near = scores.Additive(SIZE, SIZE, SIZE)
        self.pool = AttentionPooling(SIZE, hidden=SIZE)
        self.last = nn.Linear(SIZE, 1)

    def forward(self, letters: Tensor, lens: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) logits, and the weight of each letter in its sentence, of (N,) letters and (B,) lengths."""
        rows = self.letters(letters)
        offsets = torch.cat([lens.new_zeros(1), lens.cumsum(0)])
        rows = rows + attend_ragged(rows, rows, rows, offsets, score=self.near, window=(NEAR, NEAR))
        pooled = self.pool(rows, bag_lens=lens, return_weights=True)
        return self.last(pooled.output)[:, 0], pooled.weights


def end_to_end(sentences: list[str]) -> tuple[Tensor, Tensor]:
    """The letters of all sentences one behind the other, and the sentences' lengths."""
    letters = torch.tensor([ord(letter) % LETTERS for sentence in sentences for letter in sentence])
    return letters, torch.tensor([len(sentence) for sentence in sentences])


def main() -> None:
    """Train for two rounds, print the accuracy on held-out sentences, and mark the letters of some that weigh most."""
    torch.manual_seed(0)
    training, held_out = phrasebook.split()
    known, held_out = (
        [(pair[side].lower(), float(side)) for pair in pairs for side in (0, 1)] for pairs in (training[::6], held_out)
    )
    network = Network()
    optimiser = torch.optim.Adam(network.parameters(), 3e-3, fused=True)
    for batch in LengthBatchSampler([len(sentence) for sentence, _ in known] * 2, max_rows=4096):
        chosen = [known[place % len(known)] for place in batch]
        logits, _ = network(*end_to_end([sentence for sentence, _ in chosen]))
        french = torch.tensor([label for _, label in chosen])
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(logits, french).backward()
        optimiser.step()
    with torch.no_grad():
        letters, lens = end_to_end([sentence for sentence, _ in held_out])
        logits, weights = network(letters, lens)
    right = ((logits > 0) == torch.tensor([label > 0 for _, label in held_out])).double().mean()
    print(f"{len(held_out):,} held-out sentences of {min(lens)} to {max(lens)} letters: {right:.1%} right")
    for (sentence, _), own, logit in list(zip(held_out, weights.split(lens.tolist()), logits, strict=True))[::333]:
        most = set(own.topk(4).indices.tolist())
        marked = "".join(letter.upper() if place in most else letter for place, letter in enumerate(sentence))
        print(f"  {'French ' if logit > 0 else 'English'}  {marked}")


if __name__ == "__main__":
    main()
