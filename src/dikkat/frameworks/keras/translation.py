"""The translator as a Keras model: the same parameters, the same model folders and the same search as in PyTorch."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import keras
import numpy as np
import torch
from keras import ops
from torch import Tensor

from dikkat.frameworks.keras import scores
from dikkat.frameworks.keras.backend import Array, product, readable
from dikkat.frameworks.keras.blocks import Block, Linear, load_tensors, registered, tensors
from dikkat.frameworks.keras.recurrent import AttentionalGRU, AttentionalLSTM, GRUEncoder, LSTMEncoder, Memory, State
from dikkat.translation.decoding.translator import Translates
from dikkat.translation.errors import SettingsError
from dikkat.translation.formats import model_folder
from dikkat.translation.network.model import Batch, OutputLayer
from dikkat.translation.settings import Precision, ScoreName, Settings
from dikkat.translation.text.tokenizer import BEGIN, END, PAD, Tokenizer


@registered
class Embedding(Block):
    """A table of vectors, as `torch.nn.Embedding`.

    Args:
        count: vectors.
        features: of a vector, e.
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
            ValueError: a number that no vector has, where values can be read.
        """
        if readable(numbers) and bool(ops.any(ops.logical_or(numbers < 0, numbers >= self.count))):
            raise ValueError(f"token numbers are from 0 to {self.count - 1}; there are others among those that came")
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
        settings: the sizes, the cell, the score and what there is beside; as a dictionary too.
        source_size: tokens of the source vocabulary.
        target_size: tokens of the target vocabulary; with three-way tied embeddings as many.
        **options: Keras's own: `name`, `dtype` (a mixed precision for instance), `trainable`.

    Attributes:
        attends: whether there is attention.

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
        if self.settings.tied_embeddings == "three":
            if self.source_size != self.target_size:
                raise SettingsError(
                    f"tied_embeddings is 'three', and the source vocabulary has {self.source_size} tokens and the "
                    f"target vocabulary {self.target_size}; they must be one vocabulary: train one tokenizer on both "
                    "languages, or use tied_embeddings 'two'"
                )
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
            inputs: a dictionary, or a tuple in this order, of `source`, (B, S) integers, padded with 0;
                `source_lengths`, (B,) integers from 1 to S; `target`, (B, T + 1) integers: `<bos>`, the sentence,
                `<eos>`, padded with 0. `SentencePairs` makes them.
            training: whether anything is dropped.

        Returns:
            (B, T, target tokens): unnormalised log-probabilities, with a mask that says where a token is to be
            predicted.

        Raises:
            ValueError: something else than these three.
        """
        return self._forward(_parts(inputs), training=training)

    def compute_output_spec(self, inputs: Any, training: bool | None = None) -> Any:
        """Shape and dtype of the scores."""
        batch, positions = _parts(inputs)[2].shape
        steps = None if positions is None else positions - 1
        return keras.KerasTensor((batch, steps, self.target_size), self.compute_dtype)

    def encode(self, source: Any, lengths: Any, training: bool | None = None) -> tuple[Memory, State]:
        """What the decoder looks at, and its first state.

        Args:
            source: (B, S) integers; those behind a length have no effect.
            lengths: (B,) integers from 1 to S.
            training: whether anything is dropped.

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

    def features(self, memory: Memory, state: State, target: Any, training: bool | None = None) -> Any:
        """What the output layer makes scores of, for given translations.

        Args:
            memory: from `encode`.
            state: from `encode`.
            target: (B, T + 1) integers, as in `call`.
            training: whether anything is dropped.

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

    def step_features(self, previous: Any, memory: Memory, state: State) -> tuple[Any, Any, State]:
        """One step of a search, up to the output layer.

        Args:
            previous: (B,) integers, the tokens before.
            memory: from `encode`.
            state: from `encode` or the step before.

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
    came = f"a dictionary of {', '.join(map(str, inputs))}" if isinstance(inputs, dict) else type(inputs).__name__
    raise ValueError(f"inputs came as {came}; they must be a dictionary or a tuple of {', '.join(names)}")


def _score(settings: Settings, dtype: Any) -> scores.Score:
    """The score of a name; the queries, which are states, and the keys have `hidden_size` features."""
    # Two states, whose features lie in −1 … 1, are at most 2√size apart: so a kernel reaches most keys at first.
    reach = math.sqrt(settings.hidden_size)
    makers: dict[ScoreName, Callable[[], scores.Score]] = {
        "additive": lambda: scores.Additive(settings.hidden_size, dtype=dtype),
        "dot": lambda: scores.Dot(dtype=dtype),
        "scaled_dot": lambda: scores.ScaledDot(dtype=dtype),
        "bilinear": lambda: scores.Bilinear(dtype=dtype),
        "cosine": lambda: scores.Cosine(dtype=dtype),
        "gaussian": lambda: scores.Gaussian(reach, learnable=True, dtype=dtype),
        "boxcar": lambda: scores.Boxcar(reach, dtype=dtype),
        "epanechnikov": lambda: scores.Epanechnikov(reach, learnable=True, dtype=dtype),
        "triangular": lambda: scores.Triangular(reach, learnable=True, dtype=dtype),
        "vector_sum": lambda: scores.VectorSum(dtype=dtype),
        "average": lambda: scores.Average(dtype=dtype),
        "none": lambda: scores.Average(dtype=dtype),  # of the one position that there is
    }
    return makers[settings.score]()


@registered
class TokenCrossEntropy(keras.losses.Loss):
    r"""Cross-entropy of the next tokens, in nats, with label smoothing; a mean over the real ones of a batch.

    With scores $z$, target t, V tokens and label smoothing s,

    $$ \ell = -(1 - s) \log \mathrm{softmax}(z)_t - \frac{s}{V} \sum_v \log \mathrm{softmax}(z)_v $$

    Which tokens are real says the Keras mask of the scores, as `TranslationModel` gives them one. Szegedy and others,
    "Rethinking the Inception architecture for computer vision" (2016), section 7.

    Args:
        label_smoothing: part of the true token's probability that is spread over all tokens, from 0 to 1.
        **options: Keras's own: `reduction`, `name`, `dtype`.

    Raises:
        ValueError: a label smoothing outside 0 … 1.

    Example:
        >>> import numpy as np
        >>> loss = TokenCrossEntropy()(np.array([[1, 0]]), np.zeros((1, 2, 4), np.float32))
        >>> round(float(loss), 4)
        1.3863
    """

    def __init__(self, label_smoothing: float = 0.0, **options: Any) -> None:
        super().__init__(**options)
        if not 0.0 <= label_smoothing <= 1.0:
            raise ValueError(f"label_smoothing is {label_smoothing}; it must be from 0 to 1")
        self.label_smoothing = label_smoothing

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """(B, T) tokens and (B, T, V) scores -> (B, T)."""
        total = ops.logsumexp(y_pred, axis=-1)
        of_true = ops.take_along_axis(y_pred, ops.expand_dims(ops.cast(y_true, "int32"), -1), axis=-1)[..., 0]
        loss = total - (1 - self.label_smoothing) * of_true
        return loss - self.label_smoothing * ops.mean(y_pred, axis=-1) if self.label_smoothing else loss

    def get_config(self) -> dict[str, Any]:
        """The arguments, as `.keras` files keep them."""
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


class SentencePairs(keras.utils.PyDataset):
    """Sentence pairs as batches for `TranslationModel.fit`, pairs of similar lengths together.

    Where the batches are cut depends on the lengths alone; in what order they come, on the seed and the epoch.

    Args:
        pairs: token numbers of a source, at least one, and of its translation, without the ends.
        batch_size: pairs of a batch.
        multiple: what numbers of positions are padded to a multiple of, so that there are few shapes for which a
            compiling backend has to compile.
        seed: of the order of the batches; None: by length, the longest first.

    Raises:
        ValueError: no pair, a source without tokens, or a number below 1.

    Example:
        >>> (inputs, expected), = SentencePairs([([5, 6, 7], [8]), ([9], [4, 5])], multiple=1)
        >>> inputs["source"].tolist(), inputs["source_lengths"].tolist(), expected.tolist()
        ([[9, 0, 0], [5, 6, 7]], [1, 3], [[4, 5, 3], [8, 3, 0]])
    """

    def __init__(
        self,
        pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
        batch_size: int = 64,
        multiple: int = 8,
        seed: int | None = 0,
    ) -> None:
        super().__init__()
        for name, value in (("batch_size", batch_size), ("multiple", multiple), ("the number of pairs", len(pairs))):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        for index, (source, _) in enumerate(pairs):
            if not len(source):
                raise ValueError(
                    f"pairs[{index}] has a source without tokens, to which nothing can be said: leave it out"
                )
        order = sorted(range(len(pairs)), key=lambda index: (-len(pairs[index][1]), -len(pairs[index][0])))
        self._pairs, self._multiple = pairs, multiple
        self._batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
        self._random = None if seed is None else np.random.default_rng(seed)
        self.on_epoch_end()

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> tuple[dict[str, Array], Array]:
        if not 0 <= index < len(self):
            raise IndexError(f"index is {index}; there are {len(self)} batches")
        pairs = [self._pairs[each] for each in self._batches[index]]
        target = self._padded([[BEGIN, *target, END] for _, target in pairs], extra=1)
        lengths = np.array([len(source) for source, _ in pairs], np.int32)
        inputs = {"source": self._padded([source for source, _ in pairs]), "source_lengths": lengths, "target": target}
        return inputs, target[:, 1:]

    def on_epoch_end(self) -> None:
        """Another order of the batches."""
        if self._random is not None:
            self._random.shuffle(self._batches)

    def _padded(self, sentences: Sequence[Sequence[int]], extra: int = 0) -> Array:
        longest = max(map(len, sentences)) - extra
        positions = -(-longest // self._multiple) * self._multiple + extra
        return padded(sentences, positions)


def padded(sentences: Sequence[Sequence[int]], positions: int) -> Array:
    """Token numbers of several sentences as one array (B, positions) int32, padded behind each."""
    numbers = np.full((len(sentences), positions), PAD, np.int32)
    for row, sentence in zip(numbers, sentences, strict=True):
        row[: len(sentence)] = sentence
    return numbers


class _Rows(NamedTuple):
    """Some rows of tensors of the backend, taken when they are needed: in one compiled step with all the rest.

    Attributes:
        whole: the tensors of all rows.
        rows: (R,) int64 on the CPU, indices into them.
        positions: of a memory, how many there are before padding; of a state, 0.
    """

    whole: Any
    rows: Tensor
    positions: int = 0

    def select(self, rows: Tensor) -> "_Rows":
        """Those of some of the rows."""
        return self._replace(rows=self.rows[rows])


class _Within(keras.layers.Layer):
    """A model's method as a call of Keras's, so that it runs in the model's precision."""

    def __init__(self, method: Callable[..., Any], dtype: Any) -> None:
        super().__init__(dtype=dtype, name="search")
        self.method = method

    def call(self, *args: Any) -> Any:
        """What the method returns."""
        return self.method(*args)


class _Reader:
    """What a search needs of a model (`decoding.readers.Reads`): outside, tensors of PyTorch on the CPU.

    The output layer is PyTorch's, whose search reads its products where they are; all before it is the backend's.
    """

    def __init__(self, model: TranslationModel) -> None:
        self.model, self.attends = model, model.attends
        self._encode, self._step, self._features = (
            _compiled(model, method) for method in (model.encode, self._stepped, self._read)
        )

    @property
    def output_bias(self) -> Tensor:
        """(V,)."""
        return _to_torch(self.model.output_bias.value)

    def eval(self) -> Self:
        """Nothing is dropped outside of `fit`."""
        return self

    def encode(self, source: Tensor, lengths: Tensor) -> tuple[_Rows, _Rows]:
        """(B, S) token numbers -> the memory and the state before the first step."""
        memory, state = self._encode(*self._source(source, lengths))
        rows = torch.arange(len(source))
        return _Rows(memory, rows, source.shape[1] if self.attends else 1), _Rows(state, rows)

    def step_features(self, previous: Tensor, memory: _Rows, state: _Rows) -> tuple[Tensor, Tensor, _Rows]:
        """(R,) tokens before -> what the output layer reads; where the model looked; the next state."""
        count = len(previous)
        features, weights, after = self._step(
            *(_from_torch(each, _size(count)) for each in (previous, memory.rows, state.rows)),
            memory.whole,
            state.whole,
        )
        looked_at = _to_torch(weights)[:count, : memory.positions]
        return _to_torch(features)[:count], looked_at, _Rows(after, torch.arange(count))

    def output_layer(self, precision: Precision) -> OutputLayer:
        """The output layer."""
        return OutputLayer(_to_torch(self.model.output_table().value), self.output_bias, precision)

    def select(self, state: _Rows, rows: Tensor) -> _Rows:
        """The state of some rows."""
        return state.select(rows)

    def features(self, batch: Batch) -> Tensor:
        """What `scores` makes scores of, (N, e), at the N real positions of given translations."""
        # Once for all the parts in which `scores` comes to read them.
        self._output = _to_torch(self.model.output_table().value).t(), self.output_bias
        target = _from_torch(batch.target, _size(len(batch.target)), _size(batch.target.shape[1]))
        features = self._features(*self._source(batch.source, batch.source_lengths), target)
        positions = torch.arange(batch.target.shape[1] - 1)
        real = positions < batch.target_lengths.unsqueeze(1)
        return _to_torch(features)[: len(real), : real.shape[1]][real]

    def scores(self, features: Tensor) -> Tensor:
        """Unnormalised log-probabilities (N, V)."""
        table, bias = self._output
        return torch.addmm(bias, features, table)

    def _source(self, source: Tensor, lengths: Tensor) -> tuple[Any, Any]:
        rows, positions = _size(len(source)), _size(source.shape[1])
        # The rows that fill up are of one token, since an encoder reads no empty sentence.
        return _from_torch(source, rows, positions), _from_torch(lengths, rows, fill=1)

    def _stepped(self, previous: Any, memory_rows: Any, state_rows: Any, memory: Any, state: State) -> Any:
        looked_at = Memory(*memory).select(memory_rows)
        return self.model.step_features(previous, looked_at, self.model.decoder.select(state, state_rows))

    def _read(self, source: Any, lengths: Any, target: Any) -> Any:
        return self.model.features(*self.model.encode(source, lengths), target)


def _compiled(model: TranslationModel, method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a model as one operation of the backend, where that saves time: on PyTorch it does not."""
    within = _Within(method, model.dtype_policy)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(within, reduce_retracing=True)
    if keras.backend.backend() == "jax":
        import jax

        variables = model.variables

        def stateless(values: list[Any], *args: Any) -> Any:
            with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
                return within(*args)

        compiled = jax.jit(stateless)
        return lambda *args: compiled([variable.value for variable in variables], *args)
    return within


def _size(count: int) -> int:
    """How many rows or positions to compute, of so many: where every new shape is compiled, one of a few sizes."""
    if keras.backend.backend() != "jax":
        return count
    power = 1 << (count - 1).bit_length()
    return 3 * power // 4 if count <= 3 * power // 4 and power > 2 else power


def _from_torch(numbers: Tensor, rows: int, positions: int | None = None, fill: int = 0) -> Any:
    """Integers as the backend's, filled up to so many rows, and positions, if it has any."""
    size = (rows,) if positions is None else (rows, positions)
    filled = np.full(size, fill, np.int32)
    filled[tuple(slice(count) for count in numbers.shape)] = numbers.numpy()
    return ops.convert_to_tensor(filled)


def _to_torch(tensor: Any) -> Tensor:
    """Floating-point numbers of the backend's, float32 on the CPU."""
    # JAX's arrays may not be written to, so that PyTorch wants a copy.
    return torch.tensor(np.asarray(ops.convert_to_numpy(ops.cast(tensor, "float32"))))


@dataclass(frozen=True)
class Translator(Translates):
    """A trained model with its tokenizers: sentences in, translations out, as `dikkat.translation.Translator`.

    It reads and writes the same model folders, and searches with the same beam search; so a model that was trained in
    PyTorch translates here as it does there, and one that was trained here there.

    Attributes:
        model: the network.
        settings: what it was built and trained with.
        source_tokenizer: of the language it reads.
        target_tokenizer: of the language it writes.

    Example:
        >>> from dikkat.frameworks.keras import TranslationModel, Translator
        >>> from dikkat.translation import Settings, Tokenizer
        >>> english = Tokenizer.train(["Go."], "word", min_freq=1, vocabulary_size=9)
        >>> french = Tokenizer.train(["Va !"], "word", min_freq=1, vocabulary_size=9)
        >>> settings = Settings(embedding_size=4, hidden_size=4)
        >>> model = TranslationModel(settings, len(english), len(french))
        >>> translation, nothing = Translator(model, settings, english, french).translate(["Go.", ""])
        >>> translation.source_tokens, nothing.target
        (['Go', '.'], '')
    """

    model: TranslationModel
    settings: Settings
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer

    @classmethod
    def load(cls, folder: str | Path, dtype: Any = None) -> "Translator":
        """Load a model folder, of whatever framework it is.

        Args:
            folder: what `save`, `dikkat.translation.Translator.save` or `dikkat train` wrote.
            dtype: of the model, as Keras's layers take it; None: Keras's own setting.

        Raises:
            ModelFolderError: anything in it is missing, damaged or does not fit; the message says what.
        """
        found = model_folder.read(folder)
        model = TranslationModel(found.settings, len(found.source), len(found.target), dtype=dtype)
        load_tensors(model, {name: tensor.numpy() for name, tensor in found.tensors.items()})
        return cls(model, found.settings, found.source, found.target)

    def save(self, folder: str | Path) -> None:
        """Save a model folder whole or not at all, which every framework loads.

        Args:
            folder: where; a model folder of that name is replaced, anything else is not.

        Raises:
            ModelFolderError: something else than a model is there.
            OSError: the system could not write; an older model is as it was.
        """
        weights = {
            name: torch.tensor(array, dtype=torch.float64 if name.endswith("fixed_bandwidth") else torch.float32)
            for name, array in tensors(self.model).items()
        }
        model_folder.write(
            folder, model_folder.Contents(weights, self.settings, self.source_tokenizer, self.target_tokenizer)
        )

    def _models(self) -> tuple[_Reader, ...]:
        return (self._reader,)

    @cached_property
    def _reader(self) -> _Reader:
        return _Reader(self.model)
