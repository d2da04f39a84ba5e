"""The same translator out of this library's modules, and every way of training it that takes part in the comparison."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.translation import textbook
from benchmarks.translation.corpora import Sizes, padded
from dikkat import scores
from dikkat.attention import Memory
from dikkat.recurrent import AttentionalGRU, GRUEncoder
from dikkat.translation.decoding.options import Search, SearchPrecision
from dikkat.translation.decoding.search import beam_search
from dikkat.translation.network import described
from dikkat.translation.network.loss import linear_cross_entropy
from dikkat.translation.network.model import Batch, expected
from dikkat.translation.network.weights import Affine, Network

LOOP, LOOP_HALF = "textbook's loop", "loop in bfloat16"
OURS, OURS_HALF, OURS_INT8 = "dikkat", "dikkat in bfloat16", "dikkat in int8"


# The network ---------------------------------------------------------------------------------------------------------


class Ours(nn.Module):
    """The network of `textbook.Loop`."""

    attends = True

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        hidden, embedding = sizes.hidden, sizes.embedding
        self.source_embedding = nn.Embedding(sizes.source, embedding)
        self.target_embedding = nn.Embedding(sizes.target, embedding)
        self.encoder = GRUEncoder(embedding, hidden, sizes.layers, bidirectional=False)
        score = scores.Additive(hidden, hidden, hidden)
        self.decoder = AttentionalGRU(embedding, hidden, hidden, score, sizes.layers)
        self.output = nn.Linear(hidden, sizes.target)

    def encode(self, source: Tensor, lengths: Tensor) -> tuple[Memory, Tensor]:
        encoded, state = self.encoder(self.source_embedding(source), lengths)
        return self.decoder.prepare(encoded, lengths), state

    def features(self, batch: Batch) -> Tensor:
        """The top layer's states at the real positions, (N, h)."""
        memory, state = self.encode(batch.source, batch.source_lengths)
        inputs = self.target_embedding(batch.target[:, :-1])
        return self.decoder(inputs, memory, state, lengths=batch.target_lengths)[0][real(batch)]

    def loss(self, batch: Batch) -> Tensor:
        return linear_cross_entropy(self.features(batch), self.output.weight, self.output.bias, expected(batch))

    # As a search asks for them.

    @property
    def output_bias(self) -> Tensor:
        return self.output.bias

    def step_features(self, previous: Tensor, memory: Memory, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inputs = self.target_embedding(previous)
        outputs, _, weights, state = self.decoder.step(inputs, memory, state, return_weights=True)
        assert weights is not None
        return outputs, weights, state

    def network_obstacles(self) -> list[str]:
        return described.search_obstacles(self)

    def network(self) -> Network:
        return Network(
            source_table=self.source_embedding.weight,
            target_table=self.target_embedding.weight,
            scale=1.0,
            encoder=described.encoder_cells(self.encoder, self.decoder.num_layers),
            bridge=None,
            cell_bridge=None,
            decoder=described.decoder_cells(self.decoder),
            compared=described.compared(self.decoder),
            attends=True,
            readout=None,
            output=Affine(self.output.weight, self.output.bias),
        )

    def scores(self, features: Tensor) -> Tensor:
        return self.output(features)

    def select(self, state: Tensor, rows: Tensor) -> Tensor:
        return self.decoder.select(state, rows)


def translate(
    model: Ours, sources: Sequence[Sequence[int]], beam: int, precision: SearchPrecision = "float32"
) -> list[list[int]]:
    """Token numbers without the end."""
    return [found[0].ids for found in beam_search(model, sources, Search(beam=beam, precision=precision))]


class WithoutAttention(Ours):
    """The same with PyTorch's GRU as decoder, for which the encoder's last output is the context of every step."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.decoder = nn.GRU(sizes.embedding + sizes.hidden, sizes.hidden, sizes.layers, batch_first=True)

    def features(self, batch: Batch) -> Tensor:
        embedded = self.source_embedding(batch.source)
        _, state = self.encoder(embedded, batch.source_lengths)
        inputs = self.target_embedding(batch.target[:, :-1])
        context = state[-1].unsqueeze(1).expand(-1, inputs.shape[1], -1)
        return self.decoder(torch.cat([inputs, context], dim=-1), state)[0][real(batch)]


def real(batch: Batch) -> Tensor:
    """(B, T): the positions with a token to be predicted."""
    return torch.arange(batch.target.shape[1] - 1) < batch.target_lengths[:, None]


def our_name(name: str) -> str:
    """The name in ours of a parameter of the loop."""
    part, _, rest = name.partition(".")
    if part == "encoder":
        layer, _, rest = rest.partition(".")
        return f"encoder.gru.{rest.removesuffix('_l0')}_l{layer}"
    return f"decoder.score.{name}" if part in ("W_q", "W_k", "w_v") else name


def like(loop: textbook.Loop, sizes: Sizes) -> Ours:
    """Ours, with the loop's weights and dtype."""
    made = Ours(sizes).to(loop.output.weight.dtype)
    made.load_state_dict({our_name(name): tensor for name, tensor in loop.state_dict().items()})
    return made


# The ways ------------------------------------------------------------------------------------------------------------


@dataclass
class Way:
    """Somebody's whole step: forward, backward, clipping, Adam."""

    name: str
    model: nn.Module
    loss: Callable[[Batch], Tensor]
    prepare: Callable[[Batch], Batch]
    clip: Callable[[], object]
    optimizer: torch.optim.Optimizer
    precision: Callable[[], AbstractContextManager[object]] = nullcontext

    def backward(self, batch: Batch) -> Tensor:
        """The loss, and gradients in place of the last ones."""
        self.optimizer.zero_grad()
        with self.precision():
            loss = self.loss(batch)
        loss.backward()
        return loss.detach()

    def step(self, batch: Batch) -> Tensor:
        loss = self.backward(batch)
        self.clip()
        self.optimizer.step()
        return loss

    def gradients(self, batch: Batch) -> dict[str, Tensor]:
        """The loss and every gradient, by our names."""
        found = {"loss": self.backward(self.prepare(batch))}
        rename = our_name if isinstance(self.model, textbook.Loop) else str
        return found | {rename(name): parameter.grad for name, parameter in self.model.named_parameters()}


def loop_way(name: str, model: textbook.Loop, sizes: Sizes) -> Way:
    return Way(
        name,
        model,
        model.loss,
        prepare=lambda batch: padded(batch, sizes.steps),
        clip=lambda: textbook.clip(model),
        optimizer=torch.optim.Adam(model.parameters()),
        precision=half if name == LOOP_HALF else nullcontext,
    )


def our_way(name: str, model: Ours) -> Way:
    return Way(
        name,
        model,
        model.loss,
        prepare=lambda batch: batch,
        clip=lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True),
        optimizer=torch.optim.Adam(model.parameters(), fused=True),
        precision=half if name == OURS_HALF else nullcontext,
    )


def half() -> AbstractContextManager[object]:
    return torch.autocast("cpu", torch.bfloat16)


def way(name: str, sizes: Sizes, dtype: torch.dtype = torch.float32) -> Way:
    """A way whose weights are the same as every other's."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        loop = textbook.Loop(sizes)
    loop.to(dtype)
    return loop_way(name, loop, sizes) if name in (LOOP, LOOP_HALF) else our_way(name, like(loop, sizes))
