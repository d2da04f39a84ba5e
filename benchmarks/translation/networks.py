"""The same translator out of this library's modules, and every way of training it that takes part in the comparison."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.translation import textbook
from benchmarks.translation.corpora import Sizes, padded
from dikkat import scores
from dikkat.attention import Memory
from dikkat.cpu.search.network import Affine, Network
from dikkat.recurrent import AttentionalGRU, GRUEncoder, described
from dikkat.translation.decoding.options import Search, SearchPrecision
from dikkat.translation.decoding.search import beam_search
from dikkat.translation.network.loss import linear_cross_entropy
from dikkat.translation.network.model import Batch, OutputLayer, expected
from dikkat.translation.settings import Precision

LOOP, COMPILED, LOOP_HALF = "textbook's loop", "loop under torch.compile", "loop in bfloat16"
WHOLE = "loop under torch.compile with allow_rnn"
REFERENCE, OURS, OURS_HALF = "reference", "dikkat", "dikkat in bfloat16"
OURS_INT8 = "dikkat in int8"
WAYS = (LOOP, COMPILED, WHOLE, REFERENCE, OURS, LOOP_HALF, OURS_HALF)


# The network ---------------------------------------------------------------------------------------------------------


class Ours(nn.Module):
    """What `textbook.Loop` is; `impl` is "auto" or "reference"."""

    attends = True

    def __init__(self, sizes: Sizes, impl: str = "auto") -> None:
        super().__init__()
        hidden, embedding = sizes.hidden, sizes.embedding
        self.impl = impl
        self.source_embedding = nn.Embedding(sizes.source, embedding)
        self.target_embedding = nn.Embedding(sizes.target, embedding)
        self.encoder = GRUEncoder(embedding, hidden, sizes.layers, bidirectional=False)
        score = scores.Additive(hidden, hidden, hidden)
        self.decoder = AttentionalGRU(embedding, hidden, hidden, score, sizes.layers)
        self.output = nn.Linear(hidden, sizes.target)

    def encode(self, source: Tensor, lengths: Tensor) -> tuple[Memory, Tensor]:
        encoded, state = self.encoder(self.source_embedding(source), lengths, impl=self.impl)
        return self.decoder.prepare(encoded, lengths), state

    def features(self, batch: Batch) -> Tensor:
        """The top layer's states at the real positions, (N, h)."""
        memory, state = self.encode(batch.source, batch.source_lengths)
        inputs = self.target_embedding(batch.target[:, :-1])
        return self.decode(inputs, memory, state, batch.target_lengths)[real(batch)]

    def decode(self, inputs: Tensor, memory: Memory, state: Tensor, lengths: Tensor) -> Tensor:
        """The top layer's states, (B, T, h)."""
        return self.decoder(inputs, memory, state, lengths=lengths, impl=self.impl)[0]

    def loss(self, batch: Batch) -> Tensor:
        return self.output_loss(self.features(batch), expected(batch))

    def output_loss(self, features: Tensor, target: Tensor) -> Tensor:
        """Mean loss of the features (N, h) of the real positions."""
        if self.impl == "reference":
            return F.cross_entropy(self.output(features), target)
        return linear_cross_entropy(features, self.output.weight, self.output.bias, target)

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
        return described.obstacles(self) if self.impl == "auto" else ["the reference is asked for"]

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

    def output_layer(self, precision: Precision) -> OutputLayer:
        return OutputLayer(self.output.weight, self.output.bias, precision)

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
        _, state = self.encoder(embedded, batch.source_lengths, impl=self.impl)
        inputs = self.target_embedding(batch.target[:, :-1])
        context = state[-1].unsqueeze(1).expand(-1, inputs.shape[1], -1)
        return self.decoder(torch.cat([inputs, context], dim=-1), state)[0][real(batch)]


def real(batch: Batch) -> Tensor:
    """(B, T): the positions with a token to be predicted."""
    return torch.arange(batch.target.shape[1] - 1) < batch.target_lengths[:, None]


def our_name(name: str) -> str:
    """What a parameter of the loop is called in ours."""
    part, _, rest = name.partition(".")
    if part == "encoder":
        layer, _, rest = rest.partition(".")
        return f"encoder.gru.{rest.removesuffix('_l0')}_l{layer}"
    return f"decoder.score.{name}" if part in ("W_q", "W_k", "w_v") else name


def like(loop: textbook.Loop, sizes: Sizes, impl: str = "auto") -> Ours:
    """Ours, with the loop's weights and dtype."""
    made = Ours(sizes, impl).to(loop.output.weight.dtype)
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
        compiled(model.loss, whole=name == WHOLE) if name in (COMPILED, WHOLE) else model.loss,
        prepare=lambda batch: padded(batch, sizes.steps),
        clip=lambda: textbook.clip(model),
        optimizer=torch.optim.Adam(model.parameters()),
        precision=half if name == LOOP_HALF else nullcontext,
    )


def compiled(loss: Callable[[Batch], Tensor], whole: bool) -> Callable[[Batch], Tensor]:
    """By default the compiler leaves every call of a GRU alone, one a step, and compiles what stands between them."""
    if not whole:
        return torch.compile(loss, dynamic=False)

    def inductor(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., object]:
        # A backend of its own: or the compiler finds what it has made of the same code for the way above.
        return compile_fx(graph, inputs)

    from torch._inductor.compile_fx import compile_fx  # which takes seconds to import

    made = torch.compile(loss, dynamic=False, fullgraph=True, backend=inductor)

    def run(batch: Batch) -> Tensor:
        with torch._dynamo.config.patch(allow_rnn=True):
            return made(batch)

    return run


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
    """A way with weights of its own, the same for every way."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        loop = textbook.Loop(sizes)
    loop.to(dtype)
    if name in (LOOP, COMPILED, WHOLE, LOOP_HALF):
        return loop_way(name, loop, sizes)
    return our_way(name, like(loop, sizes, "reference" if name == REFERENCE else "auto"))
