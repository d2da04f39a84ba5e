"""The translator's network as a Gluon block, with the parameters that it has in PyTorch."""

import math
from typing import Any, Literal

import numpy
from mxnet import autograd, init, np, npx

from dikkat.frameworks.contract.checks import check_smoothing
from dikkat.frameworks.mxnet import scores
from dikkat.frameworks.mxnet.attention import drop
from dikkat.frameworks.mxnet.backend import Array, whole_numbers
from dikkat.frameworks.mxnet.blocks import Block, Linear, linear
from dikkat.frameworks.mxnet.decoders import AttentionalGRU, AttentionalLSTM, Memory
from dikkat.frameworks.mxnet.encoders import GRUEncoder, LSTMEncoder
from dikkat.translation.architecture import has_source_table, score_of
from dikkat.translation.network.model import Batch
from dikkat.translation.settings import Settings


class _Embedding(Block):
    """Vectors of token numbers, `weight` (V, e) as in `torch.nn.Embedding`."""

    def __init__(self, tokens: int, size: int) -> None:
        super().__init__()
        self.tokens, self.size = tokens, size
        # As output weights, unit variance would begin with scores of the size of the square root of e.
        self.make("weight", (tokens, size), init.Normal(size**-0.5))

    def forward(self, numbers: Array) -> Array:
        found = whole_numbers("token numbers", numbers)
        if found.size and not 0 <= found.min() <= found.max() < self.tokens:
            raise ValueError(f"token numbers: got {found.min()} to {found.max()}; expected 0 to {self.tokens - 1}")
        return npx.embedding(numbers, self.weight.data(), input_dim=self.tokens, output_dim=self.size)


class TranslationModel(Block):
    r"""The network: embeddings, a recurrent encoder, a bridge, an attentional recurrent decoder, a readout.

    As `dikkat.translation.TranslationModel`, of which it has the weights, settings and meanings. A dropout acts in
    training mode (`autograd.record`) only.

    Args:
        settings: The sizes, the cell, the score and what there is beside.
        source_size: Tokens of the source vocabulary.
        target_size: Tokens of the target vocabulary; with three-way tied embeddings as many.

    Attributes:
        attends: Whether there is attention. Without it the weights of a step, of one position, say nothing.

    Raises:
        SettingsError: three-way tied embeddings of two vocabularies.

    Example:
        Training, for which a mean loss needs no further scale (`trainer.step(1)`):

        >>> from mxnet import autograd, gluon, npx
        >>> npx.set_np()
        >>> from dikkat.frameworks.mxnet import clip_gradients, collate
        >>> model = TranslationModel(Settings(embedding_size=3, hidden_size=4), source_size=11, target_size=13)
        >>> model.initialize()
        >>> trainer = gluon.Trainer(model.collect_params(), "adam", {"learning_rate": 0.01})
        >>> batch = collate([([5, 6, 7], [8]), ([9], [4, 5])])
        >>> for epoch in range(2):
        ...     with autograd.record():
        ...         loss = model.loss(batch)
        ...     loss.backward()
        ...     norm = clip_gradients(model, 1.0)
        ...     trainer.step(1)
        >>> model(batch).shape  # five tokens to predict, ends included
        (5, 13)
    """

    def __init__(self, settings: Settings, source_size: int, target_size: int) -> None:
        super().__init__()
        embedding, hidden, layers = settings.embedding_size, settings.hidden_size, settings.num_layers
        between = settings.dropout if layers > 1 else 0.0
        self._one_table = not has_source_table(settings, source_size, target_size)
        if not self._one_table:
            self.source_embedding = _Embedding(source_size, embedding)
        self.target_embedding = _Embedding(target_size, embedding)
        self._lstm = settings.cell == "lstm"
        self.encoder = (LSTMEncoder if self._lstm else GRUEncoder)(
            embedding,
            hidden // 2 if settings.bidirectional else hidden,
            layers,
            bidirectional=settings.bidirectional,
            dropout=between,
        )
        self.bridge = Linear(hidden, hidden)
        if self._lstm:
            self.cell_bridge = Linear(hidden, hidden)
        self.decoder = (AttentionalLSTM if self._lstm else AttentionalGRU)(
            embedding,
            hidden,
            hidden,
            _score(settings),
            layers,
            between,
            weight_dropout=settings.attention_dropout,
            coverage=settings.coverage,
        )
        self.readout = Linear(hidden + hidden + embedding, embedding)
        self._own_output = settings.tied_embeddings == "none"
        if self._own_output:
            self.make("output_weight", (target_size, embedding), init.Normal(embedding**-0.5))
        self.make("output_bias", (target_size,), init.Zero())
        self.dropout, self.word_dropout = settings.dropout, settings.word_dropout
        self.attends = settings.score != "none"

    def encode(self, source: Array, lengths: Array) -> tuple[Memory, Any]:
        """What the decoder looks at, and its first state.

        Args:
            source: (B, S) token numbers, of any dtype of numbers; those behind a length have no effect.
            lengths: (B,) whole numbers, from 1 to S.

        Returns:
            The memory, its keys projected, of S positions, or of one without attention; the decoder's state before the
            first step.

        Raises:
            ValueError: A token number that the vocabulary has not, or lengths that do not fit.
        """
        table = self.target_embedding if self._one_table else self.source_embedding
        outputs, final = self.encoder(self._embed(table, source), lengths)
        states, cells = final if self._lstm else (final, None)
        looked_at, valid_lens = (outputs, lengths) if self.attends else (np.expand_dims(states[-1], 1), None)
        memory = self.decoder.prepare(self._drop(looked_at, self.dropout), valid_lens)
        first = np.tanh(self.bridge(states))
        return memory, self.decoder.begin(first if cells is None else (first, self.cell_bridge(cells)), memory)

    def forward(self, batch: Batch) -> Array:
        """Scores of every next token, given the true ones before it.

        Args:
            batch: N target tokens in all, ends included, as `collate` makes it.

        Returns:
            (N, target tokens): unnormalised log-probabilities at the real positions alone, sentence after sentence.
        """
        return self.scores(self.features(batch))

    def features(self, batch: Batch) -> Array:
        """What the output layer makes scores of.

        Args:
            batch: N target tokens in all, ends included.

        Returns:
            (N, e): the readout at the real positions alone, sentence after sentence.
        """
        memory, state = self.encode(batch.source, batch.source_lengths)
        previous = self._embed(self.target_embedding, batch.target[:, :-1])
        states, contexts, _, _ = self.decoder(previous, memory, state, lengths=batch.target_lengths)
        real = _real(batch)
        return self._readout(*(np.take(_flat(each), real, axis=0) for each in (states, contexts, previous)))

    def loss(self, batch: Batch, *, label_smoothing: float = 0.0, reduction: Literal["mean", "sum"] = "mean") -> Array:
        """Cross-entropy of the next tokens, given the true ones before them.

        Args:
            batch: N target tokens in all, ends included.
            label_smoothing: Part of the true token's probability that is spread over all tokens, from 0 to 1.
            reduction: `"mean"` over the N tokens, or their `"sum"`.

        Returns:
            The loss in nats, a scalar.

        Raises:
            ValueError: A label smoothing or a reduction that is none.
        """
        check_smoothing(label_smoothing)
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction: got {reduction!r}; expected 'mean', 'sum'")
        logarithms = npx.log_softmax(self(batch), axis=-1)
        wanted = np.take(batch.target[:, 1:].reshape(-1), _real(batch), axis=0)
        losses = -(1 - label_smoothing) * npx.pick(logarithms, wanted, axis=-1)
        if label_smoothing:
            losses = losses - label_smoothing * logarithms.mean(-1)
        return losses.mean() if reduction == "mean" else losses.sum()

    def step(self, previous: Array, memory: Memory, state: Any) -> tuple[Array, Array, Any]:
        """Scores of the next token, step by step.

        Args:
            previous: (B,) the token numbers before.
            memory: From `encode`.
            state: From `encode` or the step before.

        Returns:
            Unnormalised log-probabilities (B, target tokens); where the model looked, (B, S), or (B, 1) without
            attention; the next state.
        """
        features, weights, state = self.step_features(previous, memory, state)
        return self.scores(features), weights, state

    def step_features(self, previous: Array, memory: Memory, state: Any) -> tuple[Array, Array, Any]:
        """`step` up to the output layer: the readout (B, e) in place of the scores."""
        embedded = self._embed(self.target_embedding, previous)
        states, contexts, weights, state = self.decoder.step(embedded, memory, state, return_weights=True)
        return self._readout(states, contexts, embedded), weights, state

    def scores(self, features: Array) -> Array:
        """The output layer: (N, e) -> unnormalised log-probabilities (N, target tokens)."""
        weight = self.output_weight if self._own_output else self.target_embedding.weight
        return linear(features, weight.data(), self.output_bias.data(), "features")

    def select(self, state: Any, rows: Array) -> Any:
        """The decoder's state of these rows of a batch, (R,), in their order; a row may come several times."""
        return self.decoder.select(state, rows)

    def _embed(self, table: _Embedding, numbers: Array) -> Array:
        """Embeddings with features of variance 1 at the start of training."""
        embedded = self._drop(table(numbers) * math.sqrt(table.size), self.dropout)
        if self.word_dropout and autograd.is_training():
            whole = np.ones((*numbers.shape, 1), dtype=embedded.dtype, ctx=embedded.ctx)
            embedded = embedded * drop(whole, self.word_dropout)
        return embedded

    def _readout(self, states: Array, contexts: Array, previous: Array) -> Array:
        joined = np.concatenate([states, contexts, previous], axis=-1)
        return self._drop(np.tanh(self.readout(joined)), self.dropout)

    @staticmethod
    def _drop(tensor: Array, probability: float) -> Array:
        return drop(tensor, probability) if autograd.is_training() else tensor


def _real(batch: Batch) -> Array:
    """(N,): the positions of which the next token is to be predicted, among all B · T."""
    lengths = whole_numbers("target_lengths", batch.target_lengths)
    (positions,) = (numpy.arange(batch.target.shape[1] - 1) < lengths[:, None]).reshape(-1).nonzero()
    target: Array = batch.target
    return np.array(positions, dtype="int64", ctx=target.ctx)


def _flat(sequences: Array) -> Array:
    return sequences.reshape(-1, sequences.shape[-1])


def _score(settings: Settings) -> scores.Score:
    spec = score_of(settings)
    score: scores.Score = getattr(scores, spec.name)(**spec.sizes, **spec.options)
    return score
