"""Training of the textbook's translators on PyTorch, for both editions."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

from dikkat.textbook import text
from dikkat.textbook.common import devices, run_epochs
from dikkat.textbook.layers import EncoderDecoder, MaskedSoftmaxCELoss, init_seq2seq
from dikkat.textbook.pictures import ProgressBoard
from dikkat.textbook.text import Vocab, parallel_arrays
from dikkat.textbook.tools import HyperParameters

__all__ = [
    "DataModule", "MTFraEng", "Module", "Seq2Seq", "Trainer", "build_array_nmt", "cpu", "gpu", "grad_clipping",
    "load_array", "load_data_nmt", "num_gpus", "predict_seq2seq", "train_seq2seq", "try_all_gpus", "try_gpu",
]  # fmt: skip

# --- devices


def cpu() -> torch.device:
    """Return the CPU."""
    return torch.device("cpu")


def gpu(i: int = 0) -> torch.device:
    """Return the i-th GPU."""
    return torch.device(f"cuda:{i}")


def num_gpus() -> int:
    """Return the number of GPUs."""
    return torch.cuda.device_count()


try_gpu, try_all_gpus = devices(cpu, gpu, num_gpus)


# --- sentences


def load_array(data_arrays: Sequence[Tensor], batch_size: int, is_train: bool = True) -> DataLoader[Any]:
    """Return batches of matching rows of tensors, shuffled in each epoch if `is_train`.

    Args:
        data_arrays: Tensors with the same number of rows.
        batch_size: Rows of a batch; the last one may have fewer.
        is_train: Whether the rows are shuffled.
    """
    dataset = TensorDataset(*data_arrays)
    order = RandomSampler(dataset) if is_train else SequentialSampler(dataset)
    # A batch is indexed from each tensor at once; the loader's default takes rows one by one.
    return DataLoader(dataset, sampler=BatchSampler(order, batch_size, drop_last=False), batch_size=None)


def build_array_nmt(lines: Sequence[Sequence[str]], vocab: Vocab, num_steps: int) -> tuple[Tensor, Tensor]:
    """Return token ids (sentences, num_steps) and lengths (sentences,) of `text.build_array_nmt` as tensors."""
    ids, lens = text.build_array_nmt(lines, vocab, num_steps)
    return torch.from_numpy(ids), torch.from_numpy(lens)


def load_data_nmt(
    batch_size: int, num_steps: int, num_examples: int | None = 600
) -> tuple[DataLoader[Any], Vocab, Vocab]:
    """Return batches of the corpus's first sentence pairs, and the vocabularies of both languages.

    Args:
        batch_size: Pairs of a batch.
        num_steps: Tokens of a sentence, including `<eos>`.
        num_examples: The number of pairs of `read_data_nmt`; None: all.

    Returns:
        Batches of sources, their lengths, targets and their lengths; the vocabulary of the sources, of the targets.
    """
    arrays, source_vocab, target_vocab = text.load_data_nmt(num_steps, num_examples)
    return load_array([torch.from_numpy(array) for array in arrays], batch_size), source_vocab, target_vocab


# --- edition 0.17


def grad_clipping(net: Any, theta: float) -> None:
    """Scale the gradients of a module, or of an object's `params`, to the norm theta if theirs is larger."""
    nn.utils.clip_grad_norm_(net.parameters() if isinstance(net, nn.Module) else net.params, theta)


def train_seq2seq(net: nn.Module, data_iter: Any, lr: float, num_epochs: int, tgt_vocab: Vocab, device: Any) -> None:
    """Train an `EncoderDecoder` from `init_seq2seq` with Adam and gradients clipped to norm 1.

    It draws the loss, and prints the last epoch's loss per token and target tokens per second.

    Args:
        net: `net(X, dec_X, lengths)` returns scores and a state.
        data_iter: Batches of sources, their lengths, targets and their lengths.
        lr: The learning rate.
        num_epochs: Number of passes over the data.
        tgt_vocab: The targets' vocabulary, for `<bos>`.
        device: Where to train.
    """
    net.apply(init_seq2seq)
    net.to(device).train()
    optimizer, loss = torch.optim.Adam(net.parameters(), lr=lr), MaskedSoftmaxCELoss()

    def step(batch: Sequence[Tensor]) -> tuple[float, float]:
        X, X_lens, Y, Y_lens = (tensor.to(device) for tensor in batch)
        dec_input = torch.cat([torch.full_like(Y[:, :1], tgt_vocab["<bos>"]), Y[:, :-1]], dim=1)
        optimizer.zero_grad()
        scores, _ = net(X, dec_input, X_lens)
        total = loss(scores, Y, Y_lens).sum()
        total.backward()
        grad_clipping(net, 1)
        optimizer.step()
        return total.item(), Y_lens.sum().item()

    run_epochs(step, data_iter, num_epochs, device)


def predict_seq2seq(
    net: nn.Module, src_sentence: str, src_vocab: Vocab, tgt_vocab: Vocab, num_steps: int, device: Any,
    save_attention_weights: bool = False,
) -> tuple[str, list[Any]]:  # fmt: skip
    """Return a greedy translation of a sentence: the most probable word at each step.

    Args:
        net: A trained network; it is set to evaluation mode.
        src_sentence: Words and punctuation marks with spaces between them.
        src_vocab: The source's vocabulary.
        tgt_vocab: The target's vocabulary.
        num_steps: The source's padded length, and the largest number of words.
        device: The device of the net.
        save_attention_weights: Whether to return the decoder's `attention_weights` of each step.

    Returns:
        The translation, and the attention weights of each step including `<eos>` (empty if not saved).
    """
    X, lens = (tensor.to(device) for tensor in build_array_nmt([src_sentence.lower().split()], src_vocab, num_steps))
    begin, end = torch.tensor([[tgt_vocab["<bos>"]]], device=device), tgt_vocab["<eos>"]
    tokens, weights = _decode_greedily(net, X, lens, begin, num_steps, save_attention_weights, end)
    words = tokens[0].tolist()
    return " ".join(tgt_vocab.to_tokens(words[:-1] if words[-1] == end else words)), weights


def _decode_greedily(
    net: Any, X: Tensor, lens: Tensor, begin: Tensor, num_steps: int, save_weights: bool, end: int | None = None
) -> tuple[Tensor, list[Any]]:
    """Return the most probable tokens (B, steps), until all are `end`, and the saved attention weights."""
    net.eval()
    with torch.no_grad():
        token, state = begin, net.decoder.init_state(net.encoder(X, lens), lens)
        tokens, weights = [], []
        for _ in range(num_steps):
            scores, state = net.decoder(token, state)
            token = scores.argmax(dim=2)
            tokens.append(token)
            if save_weights:
                weights.append(net.decoder.attention_weights)
            if end is not None and bool((token == end).all()):
                break
    return torch.cat(tokens, dim=1), weights


# --- edition 1.0


class Module(nn.Module, HyperParameters):
    """A model that draws its training curves; `net` is its network unless it overrides `forward`.

    Args:
        plot_train_per_epoch: Points of training curves per epoch.
        plot_valid_per_epoch: Points of validation curves per epoch.

    Attributes:
        board: The `ProgressBoard` of `plot`.
        trainer: The trainer that fits the model.
    """

    net: nn.Module
    lr: float
    plot_train_per_epoch: int
    plot_valid_per_epoch: int
    trainer: "Trainer"

    def __init__(self, plot_train_per_epoch: int = 2, plot_valid_per_epoch: int = 1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.board = ProgressBoard()

    def forward(self, *inputs: Any) -> Any:
        """Return the output of `net`."""
        return self.net(*inputs)

    def loss(self, y_hat: Tensor, y: Tensor) -> Tensor:
        """Return the loss to minimise; defined by subclasses."""
        raise NotImplementedError

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return stochastic gradient descent with the learning rate `lr`."""
        return torch.optim.SGD(self.parameters(), lr=self.lr)

    def apply_init(self, inputs: Sequence[Any], init: Any = None) -> None:
        """Run the model once, so that every layer has a size, and initialise weights with `init`."""
        self(*inputs)
        if init is not None:
            self.net.apply(init)

    def plot(self, key: str, value: Any, train: bool) -> None:
        """Add a point to the board's curve `train_key` or `val_key`.

        Raises:
            RuntimeError: The model has no trainer.
        """
        trainer = getattr(self, "trainer", None)
        if trainer is None:
            raise RuntimeError("plot: got a model without a trainer; call it from the steps of Trainer.fit")
        prefix, batches, points = (
            ("train", trainer.train_batches, self.plot_train_per_epoch)
            if train
            else ("val", trainer.val_batches, self.plot_valid_per_epoch)
        )
        self.board.draw(trainer.progress, value, f"{prefix}_{key}", every_n=len(batches) // points)

    def training_step(self, batch: Sequence[Any]) -> Tensor:
        """Return and draw the loss of a batch, whose last tensor is the label."""
        loss = self.loss(self(*batch[:-1]), batch[-1])
        self.plot("loss", loss, train=True)
        return loss

    def validation_step(self, batch: Sequence[Any]) -> None:
        """Draw the loss of a batch."""
        self.plot("loss", self.loss(self(*batch[:-1]), batch[-1]), train=False)


class DataModule(HyperParameters):
    """Batches for training and validation.

    Args:
        root: Stored as an attribute, as in the book's class.
        num_workers: Stored as an attribute.
    """

    batch_size: int

    def __init__(self, root: str = "../data", num_workers: int = 4) -> None:
        self.save_hyperparameters()

    def get_dataloader(self, train: bool) -> Any:
        """Return batches for training or validation; defined by subclasses."""
        raise NotImplementedError

    def get_tensorloader(self, tensors: Sequence[Tensor], train: bool, indices: slice = slice(0, None)) -> Any:
        """Return batches of `batch_size` rows of tensors."""
        return load_array([tensor[indices] for tensor in tensors], self.batch_size, train)

    def train_dataloader(self) -> Any:
        """Return training batches."""
        return self.get_dataloader(train=True)

    def val_dataloader(self) -> Any:
        """Return validation batches, or None."""
        return self.get_dataloader(train=False)


class MTFraEng(DataModule):
    """English sentences and their French translations in batches, those of `dikkat.textbook.text.raw_corpus`.

    Args:
        batch_size: Pairs of a batch.
        num_steps: Tokens of a sentence, including `<eos>`.
        num_train: Training pairs, the first of the corpus.
        num_val: Validation pairs, the next.

    Attributes:
        arrays: Sources, decoder inputs, the sources' lengths, labels.
        src_vocab: The English vocabulary.
        tgt_vocab: The French vocabulary.
    """

    def __init__(self, batch_size: int, num_steps: int = 9, num_train: int = 512, num_val: int = 128) -> None:
        super().__init__()
        self.batch_size, self.num_steps, self.num_train, self.num_val = batch_size, num_steps, num_train, num_val
        corpus = text.raw_corpus()
        arrays, self.src_vocab, self.tgt_vocab = parallel_arrays(
            corpus.text, num_steps, num_train + num_val, min_freq=corpus.min_freq
        )
        self.arrays = tuple(torch.from_numpy(array) for array in arrays)

    def get_dataloader(self, train: bool) -> Any:
        """Return training or validation batches."""
        begin, pairs = (0, self.num_train) if train else (self.num_train, self.num_val)
        return self.get_tensorloader(self.arrays, train, slice(begin, begin + pairs))

    def build(self, src_sentences: Sequence[str], tgt_sentences: Sequence[str]) -> tuple[Tensor, ...]:
        """Return the tensors of other sentences, with these vocabularies.

        Raises:
            ValueError: Different numbers of sources and targets.
        """
        if len(src_sentences) != len(tgt_sentences):
            raise ValueError(
                f"tgt_sentences: got {len(tgt_sentences)}; expected {len(src_sentences)}, as many as src_sentences"
            )
        pairs = zip(src_sentences, tgt_sentences, strict=True)
        lines = "\n".join(f"{source}\t{target}" for source, target in pairs)
        arrays, _, _ = parallel_arrays(lines, self.num_steps, None, self.src_vocab, self.tgt_vocab)
        return tuple(torch.from_numpy(array) for array in arrays)


class Trainer(HyperParameters):
    """Trains a model for some epochs, on the first GPU if it may use one and there is one.

    Args:
        max_epochs: Number of epochs.
        num_gpus: GPUs that it may use.
        gradient_clip_val: The norm to which a batch's gradients are clipped; 0: no clipping.

    Attributes:
        model: The trained model.
        optimizer: The model's optimizer.
        train_batches: Training batches.
        val_batches: Validation batches.
        steps: Training steps so far.
    """

    max_epochs: int
    num_gpus: int
    gradient_clip_val: float

    def __init__(self, max_epochs: int, num_gpus: int = 0, gradient_clip_val: float = 0) -> None:
        self.save_hyperparameters()

    @property
    def progress(self) -> float:
        """Epochs so far, including the fraction of the current one."""
        return self.steps / len(self.train_batches)

    def fit(self, model: Any, data: Any) -> None:
        """Train a model on data."""
        self.prepare_data(data)
        self.prepare_model(model)
        for _ in range(self.max_epochs):
            self.fit_epoch()

    def prepare_data(self, data: Any) -> None:
        """Set the training and validation batches; () for batches that the data module does not have."""
        self.steps = 0
        self.train_batches, self.val_batches = (
            () if batches is None else batches for batches in (data.train_dataloader(), data.val_dataloader())
        )

    def prepare_model(self, model: Any) -> None:
        """Move the model to the device, and create its optimizer."""
        self.device = try_gpu() if self.num_gpus else cpu()
        self.model = model.to(self.device)
        self.optimizer = model.configure_optimizers()
        model.trainer = self
        model.board.xlabel, model.board.xlim = "epoch", [0, self.max_epochs]

    def prepare_batch(self, batch: Sequence[Tensor]) -> list[Tensor]:
        """Return a batch on the model's device."""
        return [tensor.to(self.device) for tensor in batch]

    def fit_epoch(self) -> None:
        """Train on all training batches, then validate."""
        self.model.train()
        for batch in self.train_batches:
            self.optimizer.zero_grad()
            self.model.training_step(self.prepare_batch(batch)).backward()
            if self.gradient_clip_val:
                grad_clipping(self.model, self.gradient_clip_val)
            self.optimizer.step()
            self.steps += 1
        self.model.eval()
        with torch.no_grad():
            for batch in self.val_batches:
                self.model.validation_step(self.prepare_batch(batch))


class Seq2Seq(EncoderDecoder, Module):
    """A translator that `Trainer` trains with Adam.

    Args:
        encoder: `encoder(X, lengths)`.
        decoder: A decoder with `init_state`.
        tgt_pad: The number of the padding token, which has no loss.
        lr: The learning rate.
    """

    tgt_pad: int

    def __init__(self, encoder: nn.Module, decoder: nn.Module, tgt_pad: int, lr: float) -> None:
        super().__init__(encoder, decoder)
        self.save_hyperparameters()

    def forward(self, enc_X: Tensor, dec_X: Tensor, *args: Any) -> Tensor:
        """Return the decoder's scores (B, T, vocab_size), without its state."""
        return cast(Tensor, super().forward(enc_X, dec_X, *args)[0])

    def loss(self, Y_hat: Tensor, Y: Tensor) -> Tensor:
        """Return the mean cross-entropy of the tokens without padding."""
        return F.cross_entropy(Y_hat.flatten(0, 1), Y.flatten(), ignore_index=self.tgt_pad)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam with the learning rate `lr`."""
        return torch.optim.Adam(self.parameters(), lr=self.lr)

    def predict_step(
        self, batch: Sequence[Tensor], device: Any, num_steps: int, save_attention_weights: bool = False
    ) -> tuple[Tensor, list[Any]]:
        """Return greedy translations of a batch: the most probable token at each step.

        Args:
            batch: Sources, decoder inputs (only the first tokens are used), and the sources' lengths.
            device: The device to use.
            num_steps: The number of tokens, also after `<eos>`.
            save_attention_weights: Whether to return the decoder's `attention_weights` of each step.

        Returns:
            Tokens (B, num_steps), and the attention weights of each step (empty if not saved).
        """
        self.to(device)
        X, dec_input, lens = (tensor.to(device) for tensor in batch[:3])
        return _decode_greedily(self, X, lens, dec_input[:, :1], num_steps, save_attention_weights)
