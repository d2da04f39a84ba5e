from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dikkat.translation.model import TranslationModel, pad
from dikkat.translation.tokenizer import BEGIN, END, PAD, UNKNOWN


@dataclass(frozen=True)
class Hypothesis:
    """What a search found for a sentence.

    Attributes:
        ids: the T target tokens, without the end.
        score: log-probability of the tokens and the end, natural logarithm.
        weights: (T, S) float32 on the CPU: where each token looked; every row adds up to 1.
        finished: whether the model ended the sentence itself, rather than the limit on its length.
    """

    ids: list[int]
    score: float
    weights: Tensor
    finished: bool


def length_limit(source_tokens: int) -> int:
    """Most target tokens for a source of so many: twice as many and ten, and at most fifty more.

    A model that has not learnt to stop would go on for ever; no sensible translation comes near these.
    """
    return min(2 * source_tokens + 10, source_tokens + 50)


@torch.no_grad()
def greedy(model: TranslationModel, sources: Sequence[Sequence[int]]) -> list[Hypothesis]:
    """Translate a batch by taking the likeliest token at every step. Finished sentences leave the batch.

    `<pad>` and `<bos>` are never output, and `<eos>` not first. `<unk>` is, but only for a source that has an
    unknown word itself, which a caller can put in its place; otherwise the likeliest known word is better than a hole.

    Args:
        model: the network; it is put in evaluation mode.
        sources: token numbers, at least one in each sentence.

    Returns:
        One hypothesis a source, in their order.

    Raises:
        ValueError: a source without tokens.
    """
    if not all(sources):
        raise ValueError("a source sentence has no tokens, so there is nothing to look at: leave it out")
    if not sources:
        return []
    model.eval()
    device = model.output_bias.device
    numbers, lengths = pad(sources)
    memory, state = model.encode(numbers.to(device), lengths.to(device))
    found = _Found(sources)
    previous = torch.full((len(sources),), BEGIN, device=device)
    while found.active:
        scores, weights, state = model.step(previous, memory, state)
        previous, kept = found.extend(scores, weights)
        if len(kept) < len(scores):
            rows = torch.tensor(kept, dtype=torch.int64, device=device)
            previous, state, memory = previous[rows], state[:, rows], memory.select(rows)
    return found.hypotheses()


class _Found:
    """The hypotheses of a batch while they grow."""

    def __init__(self, sources: Sequence[Sequence[int]]) -> None:
        self.lengths = [len(source) for source in sources]
        self.copies = [UNKNOWN in source for source in sources]
        self.active = list(range(len(sources)))  # which sentence each row of the batch is
        self.ids: list[list[int]] = [[] for _ in sources]
        self.weights: list[list[Tensor]] = [[] for _ in sources]
        self.score = [0.0] * len(sources)
        self.finished = [False] * len(sources)

    def extend(self, scores: Tensor, weights: Tensor) -> tuple[Tensor, list[int]]:
        """Put the likeliest token to each active sentence; returns the tokens, and the rows that go on."""
        log_probabilities = torch.log_softmax(scores.float(), dim=-1)
        allowed = log_probabilities.clone()
        allowed[:, [PAD, BEGIN]] = -torch.inf
        allowed[[not self.copies[sentence] for sentence in self.active], UNKNOWN] = -torch.inf
        allowed[[not self.ids[sentence] for sentence in self.active], END] = -torch.inf
        tokens = allowed.argmax(dim=-1)
        gained = log_probabilities.gather(1, tokens.unsqueeze(1)).squeeze(1).tolist()
        looked_at = weights.float().cpu()
        kept = []
        for row, token in enumerate(tokens.tolist()):
            sentence = self.active[row]
            self.score[sentence] += gained[row]
            if token == END:
                self.finished[sentence] = True
                continue
            self.ids[sentence].append(token)
            self.weights[sentence].append(looked_at[row, : self.lengths[sentence]])
            if len(self.ids[sentence]) < length_limit(self.lengths[sentence]):
                kept.append(row)
        self.active = [self.active[row] for row in kept]
        return tokens, kept

    def hypotheses(self) -> list[Hypothesis]:
        return [
            Hypothesis(ids, score, torch.stack(weights), finished)
            for ids, score, weights, finished in zip(self.ids, self.score, self.weights, self.finished, strict=True)
        ]
