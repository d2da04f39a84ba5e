"""The network: an encoder, a bridge, an attentional decoder and a readout."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dikkat import scores
from dikkat._engine.addresses import to_device
from dikkat.attention import Memory
from dikkat.recurrent import AttentionalGRU, AttentionalLSTM, GRUEncoder, LSTMEncoder
from dikkat.translation.errors import SettingsError
from dikkat.translation.network.loss import Reduction, linear_cross_entropy
from dikkat.translation.settings import Settings
from dikkat.translation.text.special_tokens import BEGIN, END, PAD

COMPILED = "_compiled"  # the attribute in which searches store a model's compiled weights
DecoderState = Tensor | tuple[Tensor, Tensor]  # a GRU's states, or an LSTM's states and cells


class Batch(NamedTuple):
    """Sentence pairs as padded token numbers.

    Attributes:
        source: (B, S) int64.
        source_lengths: (B,) int64, on the CPU or elsewhere.
        target: (B, T + 1) int64: `<bos>`, the sentence, `<eos>`.
        target_lengths: (B,) int64: tokens to predict, `<eos>` included.
        total_tokens: The target tokens of all processes' rows; 0 if unknown.
        counts: Whether the rows count in the loss; False for a row that a process computes only to stay in step.
    """

    source: Tensor
    source_lengths: Tensor
    target: Tensor
    target_lengths: Tensor
    total_tokens: int = 0
    counts: bool = True

    def to(self, device: torch.device) -> "Batch":
        """Return the batch with its tokens on a device; the lengths stay on the CPU, which reads them."""
        return self._replace(source=to_device(self.source, device), target=to_device(self.target, device))


def pad(sentences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return padded token numbers (B, S) int64 of sentences, and their lengths (B,) int64.

    Example:
        >>> numbers, lengths = pad([[5, 6, 7], [8]])
        >>> numbers.tolist(), lengths.tolist()
        ([[5, 6, 7], [8, 0, 0]], [3, 1])
    """
    rows = [torch.tensor(sentence, dtype=torch.int64, device="cpu") for sentence in sentences]
    lengths = torch.tensor([len(sentence) for sentence in sentences], dtype=torch.int64, device="cpu")
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD), lengths


def collate(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Batch:
    """Return a batch of (source, target) token numbers, with BEGIN and END around the targets."""
    source, source_lengths = pad([source for source, _ in pairs])
    target, lengths = pad([[BEGIN, *target, END] for _, target in pairs])
    return Batch(source, source_lengths, target, lengths - 1)


class TranslationModel(nn.Module):
    r"""The network: embeddings, a recurrent encoder, a bridge, an attentional recurrent decoder, a readout.

    With $s_t$ the decoder's state, $c_t$ the context and $e_{t-1}$ the previous token's embedding,

    $$ p_t = \mathrm{softmax}(E (\tanh(W [s_t; c_t; e_{t-1}] + b) + M f_t) + b') $$

    Bahdanau, Cho, Bengio (2015), appendix A. With `lexical`, f_t is the mean of the source embeddings by the attention
    weights, a part of the context. Then E M f_t scores the next word by the attended source words, independent of the
    translation so far. Nguyen, Chiang, "Improving lexical choice in neural machine translation" (2018), section 4, with
    an e × e matrix M instead of its hidden layer and its output weights.

    The decoder's first state is tanh of a linear map of the encoder's last state. An LSTM's first cells are another
    linear map of the last cells, without tanh as cells are unbounded.

    E are the target embeddings with `tied_embeddings` two, the source embeddings too with three, and separate weights
    with none. Press, Wolf, "Using the output embedding to improve language models" (2017).

    If `score` is none, the memory has one position: the last state of the encoder's top layer, which is the context of
    every step. Cho and others, "Learning phrase representations using RNN encoder–decoder" (2014).

    In training, `dropout` applies to the embeddings, the memory, between layers and to the readout, and
    `attention_dropout` to the attention weights. The remaining values are scaled, so that the mean is unchanged.

    Args:
        settings: The settings of the network.
        source_size: Tokens of the source vocabulary.
        target_size: Tokens of the target vocabulary; equal to `source_size` with three-way tied embeddings.

    Attributes:
        attends: Whether the model has attention. Without it, a step's weights have only one position.

    Raises:
        SettingsError: Three-way tied embeddings of two vocabularies.

    Example:
        >>> model = TranslationModel(Settings(embedding_size=3, hidden_size=4), source_size=11, target_size=13)
        >>> model(collate([([5, 6, 7], [8]), ([9], [4, 5])])).shape  # five tokens to predict, ends included
        torch.Size([5, 13])
    """

    def __init__(self, settings: Settings, source_size: int, target_size: int) -> None:
        super().__init__()
        self.attends = settings.score != "none"
        embedding, hidden, layers = settings.embedding_size, settings.hidden_size, settings.num_layers
        layer_dropout = settings.dropout if layers > 1 else 0.0
        context = hidden + embedding if settings.is_lexical else hidden
        if settings.tied_embeddings != "three":
            self.source_embedding = nn.Embedding(source_size, embedding)
        elif source_size != target_size:
            raise SettingsError(
                f"tied_embeddings: got 'three' with {source_size} source tokens and {target_size} target tokens; "
                "expected one vocabulary: train one tokenizer on both languages, or use tied_embeddings 'two'"
            )
        self.target_embedding = nn.Embedding(target_size, embedding)
        is_lstm = settings.cell == "lstm"
        # Keys need as many features as queries for all scores, so each direction of the encoder has half of them.
        self.encoder = (LSTMEncoder if is_lstm else GRUEncoder)(
            embedding,
            hidden // 2 if settings.bidirectional else hidden,
            layers,
            bidirectional=settings.bidirectional,
            dropout=layer_dropout,
        )
        self.bridge = nn.Linear(hidden, hidden)
        if is_lstm:
            self.cell_bridge = nn.Linear(hidden, hidden)
        self.decoder = (AttentionalLSTM if is_lstm else AttentionalGRU)(
            embedding,
            hidden,
            context,
            _make_score(settings),
            layers,
            layer_dropout,
            weight_dropout=settings.attention_dropout,
            key_size=hidden,
        )
        self.readout = nn.Linear(hidden + context + embedding, embedding)
        if settings.is_lexical:
            self.lexical = nn.Linear(embedding, embedding, bias=False)
        if settings.tied_embeddings == "none":
            self.output_weight = nn.Parameter(torch.empty(target_size, embedding))
        self.output_bias = nn.Parameter(torch.zeros(target_size))
        self.dropout = nn.Dropout(settings.dropout)
        tables = [self.source_table.weight, self.target_embedding.weight, self.output_table]
        for table in {id(table): table for table in tables}.values():
            # PyTorch's unit variance would give output scores of about √e. `_embed` restores it for inputs.
            nn.init.normal_(table, std=embedding**-0.5)

    def encode(self, source: Tensor, lengths: Tensor) -> tuple[Memory, DecoderState]:
        """Encode sentences, (B, S) int64 token numbers of lengths (B,) int64; padding has no effect.

        Returns:
            The memory with projected keys, of S positions or of one without attention; the decoder's first state.
        """
        embedded = self._embed(self.source_table, source)
        outputs, final = self.encoder(embedded, lengths)
        states, cells = final if isinstance(final, tuple) else (final, None)
        attended = (outputs, to_device(lengths, source.device)) if self.attends else (states[-1].unsqueeze(1), None)
        encoded = self.dropout(attended[0])
        values = torch.cat([encoded, embedded], dim=-1) if self.is_lexical else encoded
        memory = self.decoder.prepare(encoded, attended[1], values)
        initial = torch.tanh(self.bridge(states))
        return memory, initial if cells is None else (initial, self.cell_bridge(cells))

    def forward(self, batch: Batch) -> Tensor:
        """Return scores (N, target tokens) of the N target tokens, ends included, given the true previous tokens.

        Scores are unnormalised log-probabilities at the positions without padding, sentence after sentence. So padding
        costs no time in the output layer and the loss. `expected(batch)` has the true tokens.
        """
        return self.scores(self.features(batch))

    def features(self, batch: Batch, rows: Tensor | None = None) -> Tensor:
        """Return the output layer's inputs (N, e) at the positions without padding, sentence after sentence.

        `rows` (B,) int64 are the rows of the targets' sources, if the batch has each source once.
        """
        memory, state = self.encode(batch.source, batch.source_lengths)
        if rows is not None:
            memory, state = memory.select(rows), self.select(state, rows)
        previous = self._embed(self.target_embedding, batch.target[:, :-1])
        states, contexts, _, _ = self.decoder(previous, memory, state, lengths=batch.target_lengths)
        positions = _real_positions(batch)
        return self._readout(*(outputs.flatten(0, 1)[positions] for outputs in (states, contexts, previous)))

    def loss(
        self, batch: Batch, *, label_smoothing: float = 0.0, r_drop: float = 0.0, reduction: Reduction = "mean"
    ) -> Tensor:
        """Return the cross-entropy of the target tokens, given the true previous ones, without storing all scores.

        Args:
            batch: A batch with N target tokens, ends included.
            label_smoothing: The share of the true token's probability that is spread over all tokens, from 0 to 1.
            r_drop: The weight of the divergence of two passes with different dropout (`linear_cross_entropy`);
                0: one pass.
            reduction: `"mean"` over the N tokens, or their `"sum"`.

        Returns:
            The loss in nats, a scalar, of `forward(batch)` and `expected(batch)`; with `r_drop`, of two passes.
        """
        return linear_cross_entropy(
            self.features(_repeat(batch) if r_drop else batch),
            self.output_table,
            self.output_bias,
            expected(batch),
            label_smoothing=label_smoothing,
            r_drop=r_drop,
            reduction=reduction,
        )

    def step(self, previous: Tensor, memory: Memory, state: DecoderState) -> tuple[Tensor, Tensor, DecoderState]:
        """Decode one step from the previous tokens (B,) int64, the memory that `encode` returned, and the last state.

        Returns:
            Unnormalised log-probabilities (B, target tokens); attention weights (B, S), or (B, 1) without attention;
            the next state.
        """
        features, weights, state = self.step_features(previous, memory, state)
        return self.scores(features), weights, state

    def step_features(
        self, previous: Tensor, memory: Memory, state: DecoderState
    ) -> tuple[Tensor, Tensor, DecoderState]:
        """Run `step` without the output layer `scores`.

        Returns:
            The output layer's inputs (B, e); attention weights (B, S), or (B, 1) without attention; the next state.
        """
        embedded = self._embed(self.target_embedding, previous)
        states, contexts, weights, state = self.decoder.step(embedded, memory, state, return_weights=True)
        if weights is None:
            raise RuntimeError("the decoder returned no weights, which were requested")
        return self._readout(states, contexts, embedded), weights, state

    def train(self, mode: bool = True) -> Self:
        """Put the model in training or evaluation mode; training mode removes the compiled weights of searches."""
        if mode:
            vars(self).pop(COMPILED, None)
        return super().train(mode)

    def load_state_dict(self, *arguments: Any, **options: Any) -> Any:
        """Load the weights of a state dict, and remove the compiled weights of searches."""
        vars(self).pop(COMPILED, None)
        return super().load_state_dict(*arguments, **options)

    def _apply(self, *arguments: Any, **options: Any) -> Self:  # called by `to`, `double` and so on
        vars(self).pop(COMPILED, None)
        super()._apply(*arguments, **options)  # type: ignore[no-untyped-call]
        return self

    def scores(self, features: Tensor) -> Tensor:
        """Return unnormalised log-probabilities (N, target tokens) of `features` or `step_features` (N, e)."""
        return F.linear(features, self.output_table, self.output_bias)

    def select(self, state: DecoderState, rows: Tensor) -> DecoderState:
        """Return the decoder's state of rows (R,) int64 of a batch, in order; rows may be repeated."""
        return self.decoder.select(state, rows)

    def _embed(self, table: nn.Embedding, numbers: Tensor) -> Tensor:
        """Return embeddings whose features have variance 1 at the start of training."""
        embedded: Tensor = self.dropout(table(numbers) * math.sqrt(table.embedding_dim))
        return embedded

    def _readout(self, states: Tensor, contexts: Tensor, previous: Tensor) -> Tensor:
        features: Tensor = self.dropout(torch.tanh(self.readout(torch.cat([states, contexts, previous], dim=-1))))
        if self.is_lexical:
            attended = contexts[..., self.decoder.key_size :].to(features.dtype)
            features = features + self.lexical(attended)
        return features

    @property
    def source_table(self) -> nn.Embedding:
        """The embeddings of source tokens; those of target tokens too if three tables are tied."""
        return self.source_embedding if hasattr(self, "source_embedding") else self.target_embedding

    @property
    def is_lexical(self) -> bool:
        """Whether the source embeddings are a part of the context and the readout."""
        return hasattr(self, "lexical")

    @property
    def output_table(self) -> Tensor:
        """The weight of the output layer (target tokens, e): the target embeddings if tables are tied."""
        return self.output_weight if hasattr(self, "output_weight") else self.target_embedding.weight


def expected(batch: Batch) -> Tensor:
    """Return the true target tokens at the batch's positions without padding, (N,) int64, sentence after sentence."""
    return batch.target[:, 1:].flatten()[_real_positions(batch)]


def _repeat(batch: Batch) -> Batch:
    source, source_lengths, target, target_lengths = (torch.cat([tensor, tensor]) for tensor in batch[:4])
    return Batch(source, source_lengths, target, target_lengths, batch.total_tokens, batch.counts)


def _real_positions(batch: Batch) -> Tensor:
    """Return the positions in (B · T) without padding, (N,) int64, computed on the CPU without synchronisation."""
    lengths = batch.target_lengths.cpu()
    is_real = torch.arange(batch.target.shape[1] - 1, device="cpu") < lengths.unsqueeze(1)
    return to_device(is_real.flatten().nonzero().squeeze(1), batch.target.device)


def _make_score(settings: Settings) -> scores.Score:
    size = settings.hidden_size
    makers: dict[str, Callable[[], scores.Score]] = {
        "additive": lambda: scores.Additive(size, size, size),
        "dot": scores.Dot,
        "scaled_dot": scores.ScaledDot,
        "bilinear": lambda: scores.Bilinear(size, size),
        "none": scores.Average,  # of the only position
    }
    return makers[settings.score]()
