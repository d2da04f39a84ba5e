"""How the second generation's models learn: what its `Module`, `DataModule` and `Trainer` share in every framework."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from dikkat.textbook import text
from dikkat.textbook.layers import EncoderDecoder
from dikkat.textbook.pictures import ProgressBoard
from dikkat.textbook.skeleton import Layer, OfAFramework, Tensor
from dikkat.textbook.text import parallel_arrays
from dikkat.textbook.tools import HyperParameters

__all__ = ["FrenchFromEnglish", "LearningData", "LearningModel", "LearningTrainer", "LearningTranslator"]


class LearningModel(OfAFramework, HyperParameters):
    """A model that draws how it learns; `net` is its network, unless it has a `forward` of its own.

    Args:
        plot_train_per_epoch: Points an epoch of what training says.
        plot_valid_per_epoch: Points an epoch of what validation says.

    Attributes:
        board: On which `plot` draws.
        trainer: Set by the trainer that fits the model.
    """

    net: Layer
    lr: float
    plot_train_per_epoch: int
    plot_valid_per_epoch: int
    trainer: "LearningTrainer"

    def __init__(self, plot_train_per_epoch: int = 2, plot_valid_per_epoch: int = 1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.board = ProgressBoard()

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """What `net` makes of the inputs."""
        return self.net(*inputs, **kwargs)

    def loss(self, y_hat: Tensor, y: Tensor) -> Tensor:
        """What is to become small; the model's own."""
        raise NotImplementedError

    def configure_optimizers(self) -> Any:
        """Stochastic gradient descent with the learning rate `lr`."""
        return self.framework.optimizer(self, "sgd", self.lr)

    def plot(self, key: str, value: Any, train: bool) -> None:
        """Add a point to the board's curve `train_key` or `val_key`.

        Raises:
            RuntimeError: No trainer fits this model.
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
        return self.drawn_loss(batch, train=True, **self.framework.training)

    def validation_step(self, batch: Sequence[Any]) -> None:
        """Draw the loss of a batch."""
        self.drawn_loss(batch, train=False)

    def drawn_loss(self, batch: Sequence[Any], train: bool, **kwargs: Any) -> Any:
        """The loss of a batch, drawn; `kwargs` go to the model with all arrays of the batch but the last."""
        *inputs, wanted = batch
        loss = self.loss(self(*inputs, **kwargs), wanted)  # type: ignore[operator]
        self.plot("loss", loss, train)
        return loss


class LearningData(OfAFramework, HyperParameters):
    """Batches to learn from and to validate with.

    Args:
        root: Kept as an attribute, as by the book's class.
        num_workers: Likewise.
    """

    batch_size: int

    def __init__(self, root: str = "../data", num_workers: int = 4) -> None:
        self.save_hyperparameters()

    def get_dataloader(self, train: bool) -> Any:
        """Batches of either kind; the data's own."""
        raise NotImplementedError

    def get_tensorloader(self, tensors: Sequence[Tensor], train: bool, indices: slice = slice(0, None)) -> Any:
        """Batches of `batch_size` of some rows of tensors."""
        return self.framework.load_array([each[indices] for each in tensors], self.batch_size, train)

    def train_dataloader(self) -> Any:
        """Batches to learn from."""
        return self.get_dataloader(train=True)

    def val_dataloader(self) -> Any:
        """Batches to validate with; None where there are none."""
        return self.get_dataloader(train=False)


class LearningTrainer(OfAFramework, HyperParameters):
    """Goes through the data, epoch by epoch; on the first GPU if it may use one and there is one.

    Args:
        max_epochs: How often.
        num_gpus: How many GPUs it may use.
        gradient_clip_val: The norm to which a batch's gradients are shrunk; 0: not at all.

    Attributes:
        model: What is trained.
        optimizer: The model's own.
        train_batches: To learn from.
        val_batches: To validate with.
        steps: Batches learned from so far.
    """

    max_epochs: int
    num_gpus: int
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
        """Take the model to the device, and what it learns with."""
        self.device = self.framework.try_gpu() if self.num_gpus else self.framework.cpu()
        self.framework.move(model, self.device)
        self.model, self.optimizer = model, model.configure_optimizers()
        model.trainer = self
        model.board.xlabel, model.board.xlim = "epoch", [0, self.max_epochs]

    def prepare_batch(self, batch: Sequence[Tensor]) -> list[Tensor]:
        """A batch where the model is."""
        return [self.framework.put(each, self.device) for each in batch]

    def fit_epoch(self) -> None:
        """Go through the data once: learn from the one kind of batches, then validate with the other."""
        for batch in self.train_batches:
            self.step(self.prepare_batch(batch))
            self.steps += 1
        for batch in self.val_batches:
            self.judge(self.prepare_batch(batch))

    def step(self, batch: Sequence[Tensor]) -> None:
        """Learn from a batch."""
        self.framework.set_training(self.model, True)
        loss = partial(self.model.training_step, batch)
        self.framework.learn(self.model, self.optimizer, loss, self.gradient_clip_val)

    def judge(self, batch: Sequence[Tensor]) -> None:
        """Validate with a batch, from which nothing is learned."""
        self.framework.set_training(self.model, False)
        with self.framework.without_gradients():
            self.model.validation_step(batch)


class FrenchFromEnglish(LearningData):
    """English sentences and their French translations in batches, those of `dikkat.textbook.text.raw_corpus`.

    Args:
        batch_size: Pairs a batch.
        num_steps: Tokens of a sentence, `<eos>` among them.
        num_train: The first pairs, to learn from.
        num_val: The next ones, to validate with.

    Attributes:
        arrays: Sources, what the decoder reads, the sources' lengths, what the decoder is to say.
        src_vocab: Of English.
        tgt_vocab: Of French.
    """

    def __init__(self, batch_size: int, num_steps: int = 9, num_train: int = 512, num_val: int = 128) -> None:
        super().__init__()
        self.batch_size, self.num_steps, self.num_train, self.num_val = batch_size, num_steps, num_train, num_val
        corpus = text.raw_corpus()
        arrays, self.src_vocab, self.tgt_vocab = parallel_arrays(
            corpus.text, num_steps, num_train + num_val, min_freq=corpus.min_freq
        )
        self.arrays = tuple(self.framework.tensor(array) for array in arrays)

    def get_dataloader(self, train: bool) -> Any:
        """Batches of one of the two parts."""
        begin, pairs = (0, self.num_train) if train else (self.num_train, self.num_val)
        return self.get_tensorloader(self.arrays, train, slice(begin, begin + pairs))

    def build(self, src_sentences: Sequence[str], tgt_sentences: Sequence[str]) -> tuple[Any, ...]:
        """The arrays of other sentences, by the same vocabularies.

        Raises:
            ValueError: Not as many of one kind as of the other.
        """
        if len(src_sentences) != len(tgt_sentences):
            raise ValueError(
                f"tgt_sentences: got {len(tgt_sentences)}; expected {len(src_sentences)}, as many as src_sentences"
            )
        pairs = zip(src_sentences, tgt_sentences, strict=True)
        lines = "\n".join(f"{source}\t{target}" for source, target in pairs)
        arrays, _, _ = parallel_arrays(lines, self.num_steps, None, self.src_vocab, self.tgt_vocab)
        return tuple(self.framework.tensor(array) for array in arrays)


class LearningTranslator(EncoderDecoder, HyperParameters):
    """A translator that `Trainer` trains with Adam.

    Args:
        encoder: `encoder(X, lengths)`.
        decoder: With `init_state`.
        tgt_pad: The padding token's number, whose loss does not count.
        lr: The learning rate.
    """

    tgt_pad: int
    lr: float

    def __init__(self, encoder: Layer, decoder: Layer, tgt_pad: int, lr: float) -> None:
        super().__init__(encoder, decoder)  # type: ignore[call-arg]
        self.save_hyperparameters()

    def forward(self, enc_X: Tensor, dec_X: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The decoder's scores (B, T, vocab_size), without its state."""
        return super().forward(enc_X, dec_X, *args, **kwargs)[0]

    def loss(self, Y_hat: Tensor, Y: Tensor) -> Tensor:
        """The mean cross-entropy of the tokens that are no padding."""
        return self.framework.mean_loss(Y_hat, Y, self.tgt_pad)

    def configure_optimizers(self) -> Any:
        """Adam with the learning rate `lr`."""
        return self.framework.optimizer(self, "adam", self.lr)

    def predict_step(
        self, batch: Sequence[Tensor], device: Any, num_steps: int, save_attention_weights: bool = False
    ) -> tuple[Tensor, list[Any]]:
        """Translate a batch, the likeliest token at each step.

        Args:
            batch: Sources, what the decoder reads, of which the first tokens count, and the sources' lengths.
            device: Where to.
            num_steps: How many tokens to say, whether `<eos>` was among them or not.
            save_attention_weights: Whether to return the decoder's `attention_weights` of each step.

        Returns:
            Tokens (B, num_steps), and the attention weights of each step, if they were asked for.
        """
        framework = self.framework
        framework.move(self, device)
        framework.set_training(self, False)
        with framework.on(device):
            sources, targets, lens = (framework.put(each, device) for each in batch[:3])
            return framework.likeliest(self, sources, lens, targets[:, :1], num_steps, save_attention_weights)
