"""The translator's network as a Keras model, with the parameters that it has in PyTorch."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import keras
from keras import ops

from dikkat.frameworks.keras import scores
from dikkat.frameworks.keras.backend import product, readable
from dikkat.frameworks.keras.blocks import Block, Linear, registered
from dikkat.frameworks.keras.decoders import AttentionalGRU, AttentionalLSTM
from dikkat.frameworks.keras.encoders import GRUEncoder, LSTMEncoder
from dikkat.frameworks.keras.steps import Memory
from dikkat.translation.architecture import has_source_table, score_of
from dikkat.translation.settings import Settings
from dikkat.translation.text.tokenizer import PAD


@registered
class Embedding(Block):
    """A table of vectors, as `torch.nn.Embedding`.

    Args:
        count: Vectors.
        features: Of a vector, e.
        **options: Keras's own: `name`, `dtype`, `trainable`.

    Attributes:
        weight: (count, e), normal with variance 1/e at first.
    """

    arguments = ("count", "features")

    def __init__(self, count: int, features: int, **options: Any) -> None:
        super().__init__(**options)
        self.count, self.features = count, features

    def build(self, numbers_shape: Sequence[int | None]) -> None:
        """Make the table."""
        # As output weights, a variance of 1 would begin with scores of the size of the square root of e.
        initial = keras.initializers.RandomNormal(stddev=self.features**-0.5)
        self.weight = self.add_weight(name="weight", shape=(self.count, self.features), initializer=initial)
        self.built = True

    def call(self, numbers: Any) -> Any:
        """(...) integers -> (..., e).

        Raises:
            ValueError: A number that no vector has, where values can be read.
        """
        if readable(numbers) and bool(ops.any(ops.logical_or(numbers < 0, numbers >= self.count))):
            raise ValueError(f"token numbers: got some outside the vocabulary; expected from 0 to {self.count - 1}")
        return ops.take(self.weight.value, numbers, axis=0)

    def compute_output_shape(self, numbers_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        """(..., e)."""
        return (*numbers_shape, self.features)


@registered
class TranslationModel(keras.Model):
    r"""The network of `dikkat.translation.TranslationModel`, with its parameters under the same names.

    Embeddings, a recurrent encoder, a bridge, an attentional recurrent decoder, a readout: with $s_t$ the decoder's
    state, $c_t$ the context and $e_{t-1}$ the previous token's embedding,

    $$ p_t = \mathrm{softmax}(E \tanh(W [s_t; c_t; e_{t-1}] + b) + b') $$

    Bahdanau, Cho, Bengio (2015), appendix A. What `settings` say of the network and of dropout holds here; how it is
    trained is up to `compile` and `fit`. Scores of padding have a Keras mask, so that every loss and metric of Keras's
    leaves them out.

    Args:
        settings: The sizes, the cell, the score and what there is beside; as a dictionary too.
        source_size: Tokens of the source vocabulary.
        target_size: Tokens of the target vocabulary; with three-way tied embeddings as many.
        **options: Keras's own: `name`, `dtype` (a mixed precision for instance), `trainable`.

    Attributes:
        attends: Whether there is attention.

    Raises:
        SettingsError: three-way tied embeddings of two vocabularies, or settings that are none.

    Example:
        >>> from dikkat.frameworks.keras import SentencePairs, TokenCrossEntropy, TranslationModel
        >>> from dikkat.translation import Settings
        >>> model = TranslationModel(Settings(embedding_size=3, hidden_size=4), source_size=11, target_size=13)
        >>> model.compile(optimizer="adam", loss=TokenCrossEntropy())
        >>> history = model.fit(SentencePairs([([5, 6, 7], [8]), ([9], [4, 5])]), epochs=1, verbose=0)
    """

    def __init__(self, settings: Settings | dict[str, Any], source_size: int, target_size: int, **options: Any) -> None:
        super().__init__(**options)
        self.settings = settings = settings if isinstance(settings, Settings) else Settings.from_dict(settings)
        self.source_size, self.target_size = source_size, target_size
        self.attends = settings.score != "none"
        drops = settings.dropout or settings.word_dropout
        self.seed_generator = keras.random.SeedGenerator(name="seed_generator") if drops else None
        self._add_embeddings()
        self._add_network()
        if settings.tied_embeddings == "none":
            initial = keras.initializers.RandomNormal(stddev=settings.embedding_size**-0.5)
            shape = (target_size, settings.embedding_size)
            self.output_weight = self.add_weight(name="output_weight", shape=shape, initializer=initial)
        self.output_bias = self.add_weight(name="output_bias", shape=(target_size,), initializer="zeros")
        self._forward = _Forward(self._scores, dtype=self.dtype_policy)
        self.built = True

    def _scores(self, inputs: tuple[Any, Any, Any], training: bool | None) -> Any:
        source, source_lengths, target = inputs
        memory, state = self.encode(source, source_lengths, training=training)
        return self.scores(self.features(memory, state, target, training=training))

    def _add_embeddings(self) -> None:
        sizes = {"source_embedding": self.source_size, "target_embedding": self.target_size}
        if not has_source_table(self.settings, self.source_size, self.target_size):
            del sizes["source_embedding"]
        for name, size in sizes.items():
            table = Embedding(size, self.settings.embedding_size, dtype=self.dtype_policy, name=name)
            table.build((None, None))
            setattr(self, name, table)

    def _add_network(self) -> None:
        settings, dtype = self.settings, self.dtype_policy
        embedding, hidden, layers = settings.embedding_size, settings.hidden_size, settings.num_layers
        between = settings.dropout if layers > 1 else 0.0
        lstm = settings.cell == "lstm"
        # Keys are as wide as queries, so that every score fits: each direction of the encoder gets half.
        self.encoder = (LSTMEncoder if lstm else GRUEncoder)(
            hidden // 2 if settings.bidirectional else hidden,
            layers,
            bidirectional=settings.bidirectional,
            dropout=between,
            dtype=dtype,
            name="encoder",
        )
        self.encoder.build((None, None, embedding))
        self.bridge = _linear("bridge", hidden, hidden, dtype)
        if lstm:
            self.cell_bridge = _linear("cell_bridge", hidden, hidden, dtype)
        self.decoder = (AttentionalLSTM if lstm else AttentionalGRU)(
            hidden,
            _score(settings, dtype),
            layers,
            between,
            weight_dropout=settings.attention_dropout,
            coverage=settings.coverage,
            dtype=dtype,
            name="decoder",
        )
        self.decoder.build_sizes(embedding, hidden)
        self.readout = _linear("readout", hidden + hidden + embedding, embedding, dtype)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Scores of every next token, given the true ones before it.

        Args:
            inputs: A dictionary, or a tuple in this order, of `source`, (B, S) integers, padded with 0;
                `source_lengths`, (B,) integers from 1 to S; `target`, (B, T + 1) integers: `<bos>`, the sentence,
                `<eos>`, padded with 0. `SentencePairs` makes them.
            training: Whether anything is dropped.

        Returns:
            (B, T, target tokens): unnormalised log-probabilities, with a mask that says where a token is to be
            predicted.

        Raises:
            ValueError: Something else than these three.
        """
        return self._forward(_parts(inputs), training=training)

    def compute_output_spec(self, inputs: Any, training: bool | None = None) -> Any:
        """Shape and dtype of the scores."""
        batch, positions = _parts(inputs)[2].shape
        steps = None if positions is None else positions - 1
        return keras.KerasTensor((batch, steps, self.target_size), self.compute_dtype)

    def encode(self, source: Any, lengths: Any, training: bool | None = None) -> tuple[Memory, Any]:
        """What the decoder looks at, and its first state.

        Args:
            source: (B, S) integers; those behind a length have no effect.
            lengths: (B,) integers from 1 to S.
            training: Whether anything is dropped.

        Returns:
            The memory, its keys projected, of S positions, or of one without attention; the decoder's state before the
            first step.
        """
        embedded = self._embed(self._source_table(), source, training)
        outputs, final = self.encoder(embedded, lengths=lengths, training=training)
        states, cells = final if isinstance(final, tuple) else (final, None)
        looked_at = (outputs, lengths) if self.attends else (ops.expand_dims(states[-1], 1), None)
        memory = self.decoder.prepare(self._dropped(looked_at[0], training), looked_at[1])
        first = ops.tanh(self.bridge(states))
        return memory, self.decoder.begin(first if cells is None else (first, self.cell_bridge(cells)), memory)

    def features(self, memory: Memory, state: Any, target: Any, training: bool | None = None) -> Any:
        """What the output layer makes scores of, for given translations.

        Args:
            memory: From `encode`.
            state: From `encode`.
            target: (B, T + 1) integers, as in `call`.
            training: Whether anything is dropped.

        Returns:
            (B, T, e): the readout.
        """
        target = ops.convert_to_tensor(target)
        real = ops.sum(ops.cast(ops.not_equal(target[:, 1:], PAD), "int32"), axis=1)
        previous = self._embed(self.target_embedding, target[:, :-1], training)
        # A sentence that is padding alone, as some data pipelines add, takes a step that nobody looks at.
        lengths = ops.maximum(real, 1)
        states, contexts, _, _ = self.decoder(previous, memory, state, lengths=lengths, training=training)
        return self._readout(states, contexts, previous, training)

    def step_features(self, previous: Any, memory: Memory, state: Any) -> tuple[Any, Any, Any]:
        """One step of a search, up to the output layer.

        Args:
            previous: (B,) integers, the tokens before.
            memory: From `encode`.
            state: From `encode` or the step before.

        Returns:
            The readout (B, e); where the model looked, (B, S), or (B, 1) without attention; the next state.
        """
        embedded = self._embed(self.target_embedding, previous, None)
        states, contexts, weights, state = self.decoder.step(embedded, memory, state, return_weights=True)
        return self._readout(states, contexts, embedded, None), weights, state

    def scores(self, features: Any) -> Any:
        """The output layer.

        Args:
            features: (..., e), from `features` or `step_features`.

        Returns:
            Unnormalised log-probabilities (..., target tokens).
        """
        return product(features, ops.transpose(self.output_table().value)) + self.output_bias.value

    def output_table(self) -> Any:
        """The output layer's weights, a variable (target tokens, e): with tied embeddings, those of the target."""
        return self.output_weight if self.settings.tied_embeddings == "none" else self.target_embedding.weight

    def get_config(self) -> dict[str, Any]:
        """The arguments, as `.keras` files keep them."""
        own = {"settings": self.settings.to_dict(), "source_size": self.source_size, "target_size": self.target_size}
        kept = {"name": self.name, "trainable": self.trainable}
        return {**own, **kept, "dtype": keras.dtype_policies.serialize(self.dtype_policy)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """A model of the arguments that `get_config` returned."""
        return cls(**{**config, "dtype": keras.dtype_policies.deserialize(config["dtype"])})

    def _embed(self, table: Embedding, numbers: Any, training: bool | None) -> Any:
        """Embeddings with features of variance 1 at the start of training."""
        embedded = self._dropped(table(numbers) * math.sqrt(self.settings.embedding_size), training)
        if training and self.settings.word_dropout:
            ones = ops.ones_like(embedded[..., :1])
            embedded = embedded * keras.random.dropout(ones, self.settings.word_dropout, seed=self.seed_generator)
        return embedded

    def _readout(self, states: Any, contexts: Any, previous: Any, training: bool | None) -> Any:
        joined = ops.concatenate([states, contexts, previous], axis=-1)
        return self._dropped(ops.tanh(self.readout(joined)), training)

    def _dropped(self, features: Any, training: bool | None) -> Any:
        if not (training and self.settings.dropout):
            return features
        return keras.random.dropout(features, self.settings.dropout, seed=self.seed_generator)

    def _source_table(self) -> Embedding:
        return self.target_embedding if self.settings.tied_embeddings == "three" else self.source_embedding


class _Forward(keras.layers.Layer):
    """A model's computation as a layer's, since JAX's training calls neither a model's mask nor its precision."""

    def __init__(self, method: Callable[..., Any], **options: Any) -> None:
        super().__init__(**options)
        self.method = method
        self.supports_masking = True

    def call(self, inputs: tuple[Any, Any, Any], training: bool | None = None) -> Any:
        """What the method returns."""
        return self.method(inputs, training)

    def compute_mask(self, inputs: tuple[Any, Any, Any], previous_mask: Any = None) -> Any:
        """(B, T) booleans: where there is a token to be predicted."""
        return ops.not_equal(inputs[2][:, 1:], PAD)


def _linear(name: str, features_in: int, features: int, dtype: Any) -> Linear:
    layer = Linear(features, dtype=dtype, name=name)
    layer.build((None, features_in))
    return layer


def _parts(inputs: Any) -> tuple[Any, Any, Any]:
    names = ("source", "source_lengths", "target")
    if isinstance(inputs, dict) and set(names) <= set(inputs):
        source, lengths, target = (inputs[name] for name in names)
        return source, lengths, target
    if isinstance(inputs, (tuple, list)) and len(inputs) == len(names):
        return inputs[0], inputs[1], inputs[2]
    got = f"a dictionary of {', '.join(map(str, inputs))}" if isinstance(inputs, dict) else type(inputs).__name__
    raise ValueError(f"inputs: got {got}; expected a dictionary or a tuple of {', '.join(names)}")


def _score(settings: Settings, dtype: Any) -> scores.Score:
    spec = score_of(settings)
    score: scores.Score = getattr(scores, spec.name)(**spec.options, dtype=dtype)
    return score
