"""A trained translator in Keras: the same model folders and the same beam search as in PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import keras
import numpy as np
import torch
from keras import ops
from torch import Tensor

from dikkat.frameworks.keras.blocks import load_tensors, tensors
from dikkat.frameworks.keras.model import TranslationModel
from dikkat.frameworks.keras.steps import Memory
from dikkat.translation.decoding.translator import Translates
from dikkat.translation.formats import model_folder
from dikkat.translation.network.model import Batch, OutputLayer
from dikkat.translation.settings import Precision, Settings
from dikkat.translation.text.tokenizer import Tokenizer


class _Rows(NamedTuple):
    """Some rows of tensors of the backend, taken when they are needed: in one compiled step with all the rest.

    Attributes:
        whole: The tensors of all rows.
        rows: (R,) int64 on the CPU, indices into them.
        positions: Of a memory, how many there are before padding; of a state, 0.
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
        target = _from_torch(batch.target, _size(len(batch.target)), _size(batch.target.shape[1]))
        features = self._features(*self._source(batch.source, batch.source_lengths), target)
        positions = torch.arange(batch.target.shape[1] - 1)
        real = positions < batch.target_lengths.unsqueeze(1)
        return _to_torch(features)[: len(real), : real.shape[1]][real]

    def scores(self, features: Tensor) -> Tensor:
        """Unnormalised log-probabilities (N, V)."""
        return torch.addmm(self.output_bias, features, _to_torch(self.model.output_table().value).t())

    def _source(self, source: Tensor, lengths: Tensor) -> tuple[Any, Any]:
        rows, positions = _size(len(source)), _size(source.shape[1])
        # The rows that fill up are of one token, since an encoder reads no empty sentence.
        return _from_torch(source, rows, positions), _from_torch(lengths, rows, fill=1)

    def _stepped(self, previous: Any, memory_rows: Any, state_rows: Any, memory: Any, state: Any) -> Any:
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
        model: The network.
        settings: What it was built and trained with.
        source_tokenizer: Of the language it reads.
        target_tokenizer: Of the language it writes.

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
            folder: What `save`, `dikkat.translation.Translator.save` or `dikkat train` wrote.
            dtype: Of the model, as Keras's layers take it; None: Keras's own setting.

        Raises:
            ModelFolderError: Anything in it is missing, damaged or does not fit; the message says what.
        """
        found = model_folder.read(folder)
        model = TranslationModel(found.settings, len(found.source), len(found.target), dtype=dtype)
        load_tensors(model, {name: tensor.numpy() for name, tensor in found.tensors.items()})
        return cls(model, found.settings, found.source, found.target)

    def save(self, folder: str | Path) -> None:
        """Save a model folder whole or not at all, which every framework loads.

        Args:
            folder: Where; a model folder of that name is replaced, anything else is not.

        Raises:
            ModelFolderError: Something else than a model is there.
            OSError: The system could not write; an older model is as it was.
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
