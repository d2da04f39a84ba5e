"""How the second generation's models learn: what its `Module`, `DataModule` and `Trainer` share in every framework."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dikkat.textbook.pictures import ProgressBoard
from dikkat.textbook.text import Ids, parallel_arrays, raw_corpus
from dikkat.textbook.tools import HyperParameters

__all__ = ["FrenchFromEnglish", "LearningData", "LearningModel", "LearningTrainer"]


class LearningModel(HyperParameters):
    """A model that draws how it learns; its `board` and its `trainer` are attributes.

    Attributes:
        board: on which `plot` draws.
        trainer: set by the trainer that fits the model.
        plot_train_per_epoch: points an epoch of what training says.
        plot_valid_per_epoch: points an epoch of what validation says.
    """

    board: ProgressBoard
    trainer: "LearningTrainer"
    plot_train_per_epoch: int
    plot_valid_per_epoch: int

    def loss(self, y_hat: Any, y: Any) -> Any:
        """What is to become small; the model's own."""
        raise NotImplementedError

    def configure_optimizers(self) -> Any:
        """The optimizer; the model's own."""
        raise NotImplementedError

    def plot(self, key: str, value: Any, train: bool) -> None:
        """Add a point to the board's curve `train_key` or `val_key`.

        Raises:
            RuntimeError: no trainer fits this model.
        """
        if getattr(self, "trainer", None) is None:
            raise RuntimeError("the model has no trainer; plot is for the steps of Trainer.fit")
        if train:
            place = self.trainer.train_batch_idx / self.trainer.num_train_batches
            every = self.trainer.num_train_batches // self.plot_train_per_epoch
        else:
            place = self.trainer.epoch + 1
            every = self.trainer.num_val_batches // self.plot_valid_per_epoch
        self.board.xlabel = "epoch"
        self.board.draw(place, value, ("train_" if train else "val_") + key, every_n=every)

    def training_step(self, batch: Sequence[Any]) -> Any:
        """The loss of a batch, whose last array is what to say; it is drawn."""
        loss = self.loss(self(*batch[:-1]), batch[-1])  # type: ignore[operator]
        self.plot("loss", loss, train=True)
        return loss

    def validation_step(self, batch: Sequence[Any]) -> None:
        """Draw the loss of a batch."""
        self.plot("loss", self.loss(self(*batch[:-1]), batch[-1]), train=False)  # type: ignore[operator]


class LearningData(HyperParameters):
    """Batches to learn from and to validate with."""

    def __init__(self, root: str = "../data", num_workers: int = 4) -> None:
        self.save_hyperparameters()

    def get_dataloader(self, train: bool) -> Any:
        """Batches of either kind; the data's own."""
        raise NotImplementedError

    def train_dataloader(self) -> Any:
        """Batches to learn from."""
        return self.get_dataloader(train=True)

    def val_dataloader(self) -> Any:
        """Batches to validate with; None where there are none."""
        return self.get_dataloader(train=False)


class LearningTrainer(HyperParameters):
    """Goes through the data, epoch by epoch.

    Args:
        max_epochs: how often.
        num_gpus: how many GPUs to use, of those that there are.
        gradient_clip_val: the norm to which a batch's gradients are shrunk; 0: not at all.
    """

    max_epochs: int
    gradient_clip_val: float

    def __init__(self, max_epochs: int, num_gpus: int = 0, gradient_clip_val: float = 0) -> None:
        self.save_hyperparameters()

    def prepare_data(self, data: Any) -> None:
        """Take the batches."""
        self.train_dataloader, self.val_dataloader = data.train_dataloader(), data.val_dataloader()
        self.num_train_batches = len(self.train_dataloader)
        self.num_val_batches = 0 if self.val_dataloader is None else len(self.val_dataloader)

    def prepare_model(self, model: Any) -> None:
        """Take the model."""
        model.trainer = self
        model.board.xlim = [0, self.max_epochs]
        self.model = model

    def fit(self, model: Any, data: Any) -> None:
        """Train a model on data."""
        self.prepare_data(data)
        self.prepare_model(model)
        self.optim = model.configure_optimizers()
        self.epoch = self.train_batch_idx = self.val_batch_idx = 0
        while self.epoch < self.max_epochs:
            self.fit_epoch()
            self.epoch += 1

    def fit_epoch(self) -> None:
        """Go through the data once; the framework's own."""
        raise NotImplementedError


class FrenchFromEnglish:
    """Sentence pairs in batches: what `MTFraEng` is but for the framework's `get_tensorloader`.

    A class of a framework inherits this and its `DataModule`, and says with `as_tensor` what a NumPy array becomes.
    The pairs are those of `dikkat.textbook.text.raw_corpus`.

    Args:
        batch_size: pairs a batch.
        num_steps: tokens of a sentence, `<eos>` among them.
        num_train: the first pairs, to learn from.
        num_val: the next ones, to validate with.

    Attributes:
        arrays: sources, what the decoder reads, the sources' lengths, what the decoder is to say.
        src_vocab: of English.
        tgt_vocab: of French.
    """

    as_tensor: Callable[[Ids], Any] = staticmethod(np.asarray)
    get_tensorloader: Callable[..., Any]

    def __init__(self, batch_size: int, num_steps: int = 9, num_train: int = 512, num_val: int = 128) -> None:
        super().__init__()
        self.batch_size, self.num_steps, self.num_train, self.num_val = batch_size, num_steps, num_train, num_val
        corpus = raw_corpus()
        arrays, self.src_vocab, self.tgt_vocab = parallel_arrays(
            corpus.text, num_steps, num_train + num_val, min_freq=corpus.min_freq
        )
        self.arrays = tuple(self.as_tensor(array) for array in arrays)

    def get_dataloader(self, train: bool) -> Any:
        """Batches of one of the two parts."""
        part = slice(0, self.num_train) if train else slice(self.num_train, None)
        return self.get_tensorloader(self.arrays, train, part)

    def build(self, src_sentences: Sequence[str], tgt_sentences: Sequence[str]) -> tuple[Any, ...]:
        """The arrays of other sentences, by the same vocabularies.

        Raises:
            ValueError: not as many of one kind as of the other.
        """
        if len(src_sentences) != len(tgt_sentences):
            raise ValueError(
                f"tgt_sentences: came {len(tgt_sentences)}; allowed: {len(src_sentences)}, as many as src_sentences"
            )
        text = "\n".join(f"{source}\t{target}" for source, target in zip(src_sentences, tgt_sentences, strict=True))
        arrays, _, _ = parallel_arrays(text, self.num_steps, None, self.src_vocab, self.tgt_vocab)
        return tuple(self.as_tensor(array) for array in arrays)
