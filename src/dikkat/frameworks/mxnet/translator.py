"""A trained translator in MXNet: the same model folders and the same beam search as in PyTorch.

It needs the libraries of `dikkat.translation` beside MXNet: `pip install '.[mxnet,textbook]'` has those that are
used here.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from mxnet import autograd

from dikkat.frameworks.mxnet.backend import Array
from dikkat.frameworks.mxnet.blocks import load_tensors, tensors
from dikkat.frameworks.mxnet.decoders import Memory
from dikkat.frameworks.mxnet.model import TranslationModel
from dikkat.frameworks.mxnet.training import array_of, to_mxnet
from dikkat.translation.decoding.translator import Translates
from dikkat.translation.errors import SettingsError
from dikkat.translation.formats import model_folder
from dikkat.translation.network.model import Batch
from dikkat.translation.settings import Precision, Settings
from dikkat.translation.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Translator(Translates):
    """A trained model with its tokenizers: sentences in, translations out; `translate` and all others as in PyTorch.

    Attributes:
        model: The network.
        settings: What it was built and trained with.
        source_tokenizer: Of the language it reads.
        target_tokenizer: Of the language it writes.

    Example:
        >>> from mxnet import npx
        >>> npx.set_np()
        >>> from dikkat.translation import Settings, Tokenizer
        >>> english = Tokenizer.train(["Go."], "word", min_freq=1, vocabulary_size=9)
        >>> french = Tokenizer.train(["Va !"], "word", min_freq=1, vocabulary_size=9)
        >>> settings = Settings(embedding_size=4, hidden_size=4)
        >>> model = TranslationModel(settings, len(english), len(french))
        >>> model.initialize()
        >>> translation, nothing = Translator(model, settings, english, french).translate(["Go.", ""])
        >>> translation.source_tokens, nothing.target
        (['Go', '.'], '')
    """

    model: TranslationModel
    settings: Settings
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer

    @classmethod
    def load(cls, folder: str | Path) -> "Translator":
        """Load a model folder of any framework, onto the CPU.

        Args:
            folder: What `save`, that of another framework, or `dikkat train` wrote.

        Raises:
            ModelFolderError: Anything in it is missing, damaged or does not fit; the message says what.
        """
        contents = model_folder.read(folder)
        model = TranslationModel(contents.settings, len(contents.source), len(contents.target))
        load_tensors(model, {name: tensor.numpy() for name, tensor in contents.tensors.items()})
        return cls(model, contents.settings, contents.source, contents.target)

    def save(self, folder: str | Path) -> None:
        """Save a model folder, which loads in every framework, whole or not at all.

        Args:
            folder: Where; a model folder of that name is replaced, anything else is not.

        Raises:
            ModelFolderError: Something else than a model is there.
            OSError: The system could not write; an older model is as it was.
        """
        weights = {name: torch.from_numpy(each) for name, each in tensors(self.model).items()}
        contents = model_folder.Contents(weights, self.settings, self.source_tokenizer, self.target_tokenizer)
        model_folder.write(folder, contents)

    def _models(self) -> tuple["_Reader", ...]:
        return (_Reader(self.model),)


@dataclass(frozen=True)
class _Looked:
    """A memory, for a search."""

    memory: Memory

    def select(self, rows: torch.Tensor) -> "_Looked":
        """That of some rows."""
        return _Looked(self.memory.select(array_of(rows, self.memory.key.ctx)))


class _Outputs:
    """The output layer, for a search."""

    def __init__(self, model: TranslationModel) -> None:
        self._model = model
        self.bias = torch.zeros(model.output_bias.shape)  # the products have it already

    def products(self, features: Array, out: torch.Tensor | None = None) -> torch.Tensor:
        """(R, e) -> (R, V), always in new memory."""
        return _tensor(self._model.scores(features))


class _Reader:
    """A model as a search wants it: what `decoding.readers.Reads` says, with tensors of PyTorch outside."""

    def __init__(self, model: TranslationModel) -> None:
        self._model = model
        self._ctx = model.output_bias.list_ctx()[0]
        self.attends = model.attends

    @property
    def output_bias(self) -> torch.Tensor:
        return _tensor(self._model.output_bias.data())

    def eval(self) -> Self:
        return self  # a Gluon block is in training where it is recorded, and nowhere else

    def encode(self, source: torch.Tensor, lengths: torch.Tensor) -> tuple[_Looked, Any]:
        with autograd.pause():
            memory, state = self._model.encode(array_of(source, self._ctx), array_of(lengths, self._ctx))
        return _Looked(memory), state

    def step_features(self, previous: torch.Tensor, memory: _Looked, state: Any) -> tuple[Array, torch.Tensor, Any]:
        with autograd.pause():
            features, weights, state = self._model.step_features(array_of(previous, self._ctx), memory.memory, state)
        return features, _tensor(weights), state

    def output_layer(self, precision: Precision) -> _Outputs:
        if precision != "float32":
            raise SettingsError(
                f"precision: got {precision!r}; expected 'float32', since arrays of mxnet.np have no bfloat16"
            )
        return _Outputs(self._model)

    def select(self, state: Any, rows: torch.Tensor) -> Any:
        return self._model.select(state, array_of(rows, self._ctx))

    def features(self, batch: Batch) -> torch.Tensor:
        with autograd.pause():
            return _tensor(self._model.features(to_mxnet(batch, self._ctx)))

    def scores(self, features: torch.Tensor) -> torch.Tensor:
        with autograd.pause():
            return _tensor(self._model.scores(array_of(features, self._ctx)))


def _tensor(array: Array) -> torch.Tensor:
    return torch.from_numpy(array.asnumpy())
