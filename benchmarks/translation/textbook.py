"""The translator that a textbook builds, with its loop over time: what this library is measured against.

Written anew after the description in Zhang, Lipton, Li, Smola, "Dive into Deep Learning", sections
"Sequence-to-Sequence Learning for Machine Translation" and "The Bahdanau Attention Mechanism": at each of T steps
additive attention, which projects the keys again, and one call of a GRU; then the output layer and the loss over all
positions, real or not.

One thing is not the book's. Its encoder hands over the state that it has after the padding; here that is the state at
each sentence's true end, so that all ways compute the same. PyTorch's GRU of several layers shows the top one's states
alone, hence one GRU a layer, which is what PyTorch computes anyway.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.translation.corpora import Sizes
from dikkat.translation.decoding.options import length_limit
from dikkat.translation.network.model import Batch
from dikkat.translation.text.tokenizer import BEGIN, END, PAD, UNKNOWN


class Loop(nn.Module):
    """Embeddings, GRU encoder, attention, GRU decoder, output layer. The decoder reads [embedding; context]."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        hidden, embedding = sizes.hidden, sizes.embedding
        self.source_embedding = nn.Embedding(sizes.source, embedding)
        self.target_embedding = nn.Embedding(sizes.target, embedding)
        self.encoder = nn.ModuleList(
            nn.GRU(hidden if layer else embedding, hidden, batch_first=True) for layer in range(sizes.layers)
        )
        self.W_q = nn.Linear(hidden, hidden, bias=False)
        self.W_k = nn.Linear(hidden, hidden, bias=False)
        self.w_v = nn.Linear(hidden, 1, bias=False)
        self.decoder = nn.GRU(embedding + hidden, hidden, sizes.layers, batch_first=True)
        self.output = nn.Linear(hidden, sizes.target)

    def encode(self, embedded: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, e) -> outputs (B, S, h); each layer's state at the sentences' ends (layers, B, h)."""
        outputs, rows = embedded, torch.arange(len(lengths))
        ends = []
        for layer in self.encoder:
            outputs, _ = layer(outputs)
            ends.append(outputs[rows, lengths - 1])
        return outputs, torch.stack(ends)

    def attend(self, query: Tensor, encoded: Tensor, lengths: Tensor) -> Tensor:
        """(B, 1, h) looks at (B, S, h)."""
        features = torch.tanh(self.W_q(query).unsqueeze(2) + self.W_k(encoded).unsqueeze(1))
        scores = self.w_v(features).squeeze(-1)
        hidden = torch.arange(encoded.shape[1]) >= lengths[:, None]
        weights = torch.softmax(scores.masked_fill(hidden[:, None], -1e6), dim=-1)
        return torch.bmm(weights, encoded)

    def decode(self, inputs: Tensor, encoded: Tensor, lengths: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, e) -> the top layer's states (B, T, h); the state after the last step."""
        outputs = []
        for given in inputs.unbind(1):
            context = self.attend(state[-1].unsqueeze(1), encoded, lengths)
            output, state = self.decoder(torch.cat([given.unsqueeze(1), context], dim=-1), state)
            outputs.append(output)
        return torch.cat(outputs, dim=1), state

    def forward(self, batch: Batch) -> Tensor:
        """Scores at all positions, (B, T, target tokens)."""
        encoded, state = self.encode(self.source_embedding(batch.source), batch.source_lengths)
        inputs = self.target_embedding(batch.target[:, :-1])
        outputs, _ = self.decode(inputs, encoded, batch.source_lengths, state)
        return self.output(outputs)

    def loss(self, batch: Batch) -> Tensor:
        return masked_loss(self(batch), batch)


def masked_loss(scores: Tensor, batch: Batch) -> Tensor:
    """Mean loss of the real tokens, from scores at all positions."""
    losses = F.cross_entropy(scores.flatten(0, 1), batch.target[:, 1:].flatten(), reduction="none")
    mask = torch.arange(scores.shape[1]) < batch.target_lengths[:, None]
    return (losses * mask.flatten()).sum() / mask.sum()


def clip(model: nn.Module, most: float = 1.0) -> None:
    """Shrink the gradients to a norm of 1, parameter by parameter."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.sqrt(sum((gradient**2).sum() for gradient in gradients))
    if norm > most:
        for gradient in gradients:
            gradient[:] *= most / norm


@torch.no_grad()
def greedy(model: Loop, sources: Tensor, lengths: Tensor) -> list[list[int]]:
    """The likeliest token at each step, for the whole batch until its last sentence has ended.

    The book goes on to a fixed length. What may be said, and for how long, is as in this library's search.
    """
    encoded, state = model.encode(model.source_embedding(sources), lengths)
    previous = torch.full((len(lengths), 1), BEGIN)
    limits = torch.tensor([length_limit(length) for length in lengths.tolist()])
    said, over = [], torch.zeros(len(lengths), dtype=torch.bool)
    while not over.all():
        outputs, state = model.decode(model.target_embedding(previous), encoded, lengths, state)
        scores = permitted(model.output(outputs[:, 0]), first=not said)
        previous = scores.argmax(dim=-1, keepdim=True)
        said.append(previous)
        over |= (previous[:, 0] == END) | (len(said) >= limits)
    rows = torch.cat(said, dim=1).tolist()
    return [until_end(row[:limit]) for row, limit in zip(rows, limits.tolist(), strict=True)]


def permitted(scores: Tensor, first: bool) -> Tensor:
    """Scores without what no translation may have, `<eos>` at its beginning among it."""
    scores[:, [PAD, BEGIN, UNKNOWN, *([END] if first else [])]] = -torch.inf
    return scores


def until_end(row: list[int]) -> list[int]:
    return row[: row.index(END)] if END in row else row


@torch.no_grad()
def beam(model: Loop, source: list[int], width: int, length_penalty: float = 1.0) -> list[int]:
    """Beam search as such code has it: one sentence at a time, a batch of its hypotheses a step, which are lists.

    One that ends leaves the beam, and its place stays empty; of these the one with the highest log-probability over
    ((5 + length) / 6)^length_penalty wins, the end counted, once none that goes on can become better (Wu et al.,
    "Google's neural machine translation system", 2016, section 7). At the limit, without any, the likeliest.
    """
    lengths, limit = torch.tensor([len(source)]), length_limit(len(source))
    encoded, state = model.encode(model.source_embedding(torch.tensor([source])), lengths)
    alive, ended = [(0.0, [BEGIN])], []
    for length in range(1, limit + 1):
        rows = len(alive)
        previous = torch.tensor([words[-1:] for _, words in alive])
        outputs, state = model.decode(
            model.target_embedding(previous), encoded.expand(rows, -1, -1), lengths.expand(rows), state
        )
        gained = permitted(torch.log_softmax(model.output(outputs[:, 0]), dim=-1), first=length == 1)
        best, tokens = gained.topk(min(width, gained.shape[-1]), dim=-1)
        found = [
            (alive[row][0] + gain, row, token)
            for row, (gains, row_tokens) in enumerate(zip(best.tolist(), tokens.tolist(), strict=True))
            for gain, token in zip(gains, row_tokens, strict=True)
            if gain > -math.inf
        ]
        found = sorted(found, key=lambda one: -one[0])[: width - len(ended)]
        ended += [
            (total / penalty(length, length_penalty), alive[row][1][1:]) for total, row, token in found if token == END
        ]
        going = [one for one in found if one[2] != END]
        alive = [(total, [*alive[row][1], token]) for total, row, token in going]
        hope = max((total for total, _ in alive), default=-math.inf) / penalty(limit, length_penalty)
        if ended and max(ended)[0] >= hope:
            break
        state = state[:, [row for _, row, _ in going]]
    return max(ended)[1] if ended else max(alive)[1][1:]


def penalty(length: int, exponent: float) -> float:
    return ((5 + length) / 6) ** exponent
