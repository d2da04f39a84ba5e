"""How the second generation's models learn: what its `Module`, `DataModule` and `Trainer` share in every framework."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dikkat.textbook import text
from dikkat.textbook.pictures import ProgressBoard
from dikkat.textbook.text import Ids, parallel_arrays
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
        trainer = getattr(self, "trainer", None)
        if trainer is None:
            raise RuntimeError("the model has no trainer; plot is for the steps of Trainer.fit")
        kind, batches, points = (
            ("train", trainer.train_batches, self.plot_train_per_epoch)
            if train
            else ("val", trainer.val_batches, self.plot_valid_per_epoch)
        )
        self.board.draw(trainer.progress, value, f"{kind}_{key}", every_n=len(batches) // points)

    def training_step(self, batch: Sequence[Any]) -> Any:
        """The loss of a batch, whose last array is what to say; it is drawn."""
        return self.drawn_loss(batch, train=True)

    def validation_step(self, batch: Sequence[Any]) -> None:
        """Draw the loss of a batch."""
        self.drawn_loss(batch, train=False)

    def drawn_loss(self, batch: Sequence[Any], train: bool, **kwargs: Any) -> Any:
        """What both steps share; `kwargs` go to the model with all arrays of the batch but the last."""
        *inputs, wanted = batch
        loss = self.loss(self(*inputs, **kwargs), wanted)  # type: ignore[operator]
        self.plot("loss", loss, train)
        return loss


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
    """Goes through the data, epoch by epoch; a framework says what `step` and `judge` do with a batch.

    Args:
        max_epochs: how often.
        num_gpus: how many GPUs to use, of those that there are.
        gradient_clip_val: the norm to which a batch's gradients are shrunk; 0: not at all.

    Attributes:
        model: what is trained.
        optimizer: the model's own.
        train_batches: to learn from.
        val_batches: to validate with.
        steps: batches learned from so far.
    """

    max_epochs: int
    gradient_clip_val: float

    def __init__(self, max_epochs: int, num_gpus: int = 0, gradient_clip_val: float = 0) -> None:
        self.save_hyperparameters()

    @property
    def progress(self) -> float:
        """Epochs so far, the part of the present one among them."""
        return self.steps / len(self.train_batches)

    def fit(self, model: Any, data: Any) -> None:
        """Train a model on data."""
        self.prepare_data(data)
        self.prepare_model(model)
        for _ in range(self.max_epochs):
            self.fit_epoch()

    def prepare_data(self, data: Any) -> None:
        """Take the batches; a kind that the data does not have is of none."""
        self.steps = 0
        self.train_batches, self.val_batches = (
            () if batches is None else batches for batches in (data.train_dataloader(), data.val_dataloader())
        )

    def prepare_model(self, model: Any) -> None:
        """Take the model, and what it learns with."""
        self.model, self.optimizer = model, model.configure_optimizers()
        model.trainer = self
        model.board.xlabel, model.board.xlim = "epoch", [0, self.max_epochs]

    def prepare_batch(self, batch: Sequence[Any]) -> Sequence[Any]:
        """A batch where the model is."""
        return batch

    def fit_epoch(self) -> None:
        """Go through the data once: learn from the one kind of batches, then validate with the other."""
        for batch in self.train_batches:
            self.step(self.prepare_batch(batch))
            self.steps += 1
        for batch in self.val_batches:
            self.judge(self.prepare_batch(batch))

    def step(self, batch: Sequence[Any]) -> None:
        """Learn from a batch; the framework's own."""
        raise NotImplementedError

    def judge(self, batch: Sequence[Any]) -> None:
        """Validate with a batch, from which nothing is learned."""
        self.model.validation_step(batch)


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
        corpus = text.raw_corpus()
        arrays, self.src_vocab, self.tgt_vocab = parallel_arrays(
            corpus.text, num_steps, num_train + num_val, min_freq=corpus.min_freq
        )
        self.arrays = tuple(self.as_tensor(array) for array in arrays)

    def get_dataloader(self, train: bool) -> Any:
        """Batches of one of the two parts."""
        begin, pairs = (0, self.num_train) if train else (self.num_train, self.num_val)
        return self.get_tensorloader(self.arrays, train, slice(begin, begin + pairs))

    def build(self, src_sentences: Sequence[str], tgt_sentences: Sequence[str]) -> tuple[Any, ...]:
        """The arrays of other sentences, by the same vocabularies.

        Raises:
            ValueError: not as many of one kind as of the other.
        """
        if len(src_sentences) != len(tgt_sentences):
            raise ValueError(
                f"tgt_sentences: came {len(tgt_sentences)}; allowed: {len(src_sentences)}, as many as src_sentences"
            )
        pairs = zip(src_sentences, tgt_sentences, strict=True)
        lines = "\n".join(f"{source}\t{target}" for source, target in pairs)
        arrays, _, _ = parallel_arrays(lines, self.num_steps, None, self.src_vocab, self.tgt_vocab)
        return tuple(self.as_tensor(array) for array in arrays)
