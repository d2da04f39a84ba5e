"""Training of the textbook's translators on PyTorch, as in both editions. `dikkat.textbook.torch` has it all."""

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
    """The CPU."""
    return torch.device("cpu")


def gpu(i: int = 0) -> torch.device:
    """The i-th GPU."""
    return torch.device(f"cuda:{i}")


def num_gpus() -> int:
    """The number of GPUs."""
    return torch.cuda.device_count()


try_gpu, try_all_gpus = devices(cpu, gpu, num_gpus)


# --- sentences


def load_array(data_arrays: Sequence[Tensor], batch_size: int, is_train: bool = True) -> DataLoader[Any]:
    """Batches of tensors that belong together row by row, in another order each time if `is_train`.

    Args:
        data_arrays: Tensors with as many rows each.
        batch_size: Rows of a batch; the last one may have fewer.
        is_train: Whether the rows are shuffled.
    """
    dataset = TensorDataset(*data_arrays)
    order = RandomSampler(dataset) if is_train else SequentialSampler(dataset)
    # A batch is taken out of each tensor at once, where the loader itself would take its rows one by one.
    return DataLoader(dataset, sampler=BatchSampler(order, batch_size, drop_last=False), batch_size=None)


def build_array_nmt(lines: Sequence[Sequence[str]], vocab: Vocab, num_steps: int) -> tuple[Tensor, Tensor]:
    """`dikkat.textbook.text.build_array_nmt` as tensors: token ids (sentences, num_steps), lengths (sentences,)."""
    ids, lens = text.build_array_nmt(lines, vocab, num_steps)
    return torch.from_numpy(ids), torch.from_numpy(lens)


def load_data_nmt(
    batch_size: int, num_steps: int, num_examples: int | None = 600
) -> tuple[DataLoader[Any], Vocab, Vocab]:
    """Batches of the corpus's first sentence pairs, and the vocabularies of both languages.

    Args:
        batch_size: Pairs of a batch.
        num_steps: Tokens of a sentence, `<eos>` among them.
        num_examples: How many pairs of `read_data_nmt` to take; None: all.

    Returns:
        Batches of sources, their lengths, targets and their lengths; the vocabulary of the sources, of the targets.
    """
    arrays, source_vocab, target_vocab = text.load_data_nmt(num_steps, num_examples)
    return load_array([torch.from_numpy(each) for each in arrays], batch_size), source_vocab, target_vocab


# --- edition 0.17


def grad_clipping(net: Any, theta: float) -> None:
    """Shrink the gradients of a module, or of an object's `params`, to a norm of theta if it is larger."""
    nn.utils.clip_grad_norm_(net.parameters() if isinstance(net, nn.Module) else net.params, theta)


def train_seq2seq(net: nn.Module, data_iter: Any, lr: float, num_epochs: int, tgt_vocab: Vocab, device: Any) -> None:
    """Train an `EncoderDecoder` on sentence pairs: Adam, gradients of norm 1 at most, weights of `init_seq2seq`.

    It prints the last epoch's loss a token and how many target tokens a second it read, and draws the loss.

    Args:
        net: `net(X, dec_X, lengths)` returns scores and a state.
        data_iter: Batches of sources, their lengths, targets and their lengths.
        lr: The learning rate.
        num_epochs: How often to go through the data.
        tgt_vocab: Of the targets, for `<bos>`.
        device: Where to train.
    """
    net.apply(init_seq2seq)
    net.to(device).train()
    optimizer, loss = torch.optim.Adam(net.parameters(), lr=lr), MaskedSoftmaxCELoss()

    def step(batch: Sequence[Tensor]) -> tuple[float, float]:
        X, X_lens, Y, Y_lens = (each.to(device) for each in batch)
        read = torch.cat([torch.full_like(Y[:, :1], tgt_vocab["<bos>"]), Y[:, :-1]], dim=1)
        optimizer.zero_grad()
        scores, _ = net(X, read, X_lens)
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
    """Translate a sentence, the likeliest word at each step.

    Args:
        net: As it was trained; it is left in evaluation mode.
        src_sentence: Words and punctuation marks with spaces between them.
        src_vocab: Of the source.
        tgt_vocab: Of the target.
        num_steps: To which the source is padded, and how many words are said at most.
        device: Where the net is.
        save_attention_weights: Whether to return the decoder's `attention_weights` of each step.

    Returns:
        The translation, and the attention weights of each step, that of `<eos>` among them, if asked for.
    """
    X, lens = (each.to(device) for each in build_array_nmt([src_sentence.lower().split()], src_vocab, num_steps))
    begin, end = torch.tensor([[tgt_vocab["<bos>"]]], device=device), tgt_vocab["<eos>"]
    said, looked_at = _likeliest(net, X, lens, begin, num_steps, save_attention_weights, end)
    words = said[0].tolist()
    return " ".join(tgt_vocab.to_tokens(words[:-1] if words[-1] == end else words)), looked_at


def _likeliest(
    net: Any, X: Tensor, lens: Tensor, begin: Tensor, num_steps: int, keep: bool, end: int | None = None
) -> tuple[Tensor, list[Any]]:
    """The likeliest token at each step, (B, steps), until all are `end`; what the decoder looked at, if kept."""
    net.eval()
    with torch.no_grad():
        token, state = begin, net.decoder.init_state(net.encoder(X, lens), lens)
        said, looked_at = [], []
        for _ in range(num_steps):
            scores, state = net.decoder(token, state)
            token = scores.argmax(dim=2)
            said.append(token)
            if keep:
                looked_at.append(net.decoder.attention_weights)
            if end is not None and bool((token == end).all()):
                break
    return torch.cat(said, dim=1), looked_at


# --- edition 1.0


class Module(nn.Module, HyperParameters):
    """A model that draws how it learns; `net` is its network, unless it has a `forward` of its own.

    Args:
        plot_train_per_epoch: Points an epoch of what training says.
        plot_valid_per_epoch: Points an epoch of what validation says.

    Attributes:
        board: On which `plot` draws.
        trainer: Set by the trainer that fits the model.
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
        """The output of `net`."""
        return self.net(*inputs)

    def loss(self, y_hat: Tensor, y: Tensor) -> Tensor:
        """The number that training makes small; the model's own."""
        raise NotImplementedError

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Stochastic gradient descent with the learning rate `lr`."""
        return torch.optim.SGD(self.parameters(), lr=self.lr)

    def apply_init(self, inputs: Sequence[Any], init: Any = None) -> None:
        """Run the model once, so that every layer has a size, and draw the weights by `init`."""
        self(*inputs)
        if init is not None:
            self.net.apply(init)

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

    def training_step(self, batch: Sequence[Any]) -> Tensor:
        """The loss of a batch, whose last tensor is what to say; it is drawn."""
        loss = self.loss(self(*batch[:-1]), batch[-1])
        self.plot("loss", loss, train=True)
        return loss

    def validation_step(self, batch: Sequence[Any]) -> None:
        """Draw the loss of a batch."""
        self.plot("loss", self.loss(self(*batch[:-1]), batch[-1]), train=False)


class DataModule(HyperParameters):
    """Batches to learn from and to validate with.

    Args:
        root: Kept as an attribute, as by the book's class.
        num_workers: Kept as an attribute too.
    """

    batch_size: int

    def __init__(self, root: str = "../data", num_workers: int = 4) -> None:
        self.save_hyperparameters()

    def get_dataloader(self, train: bool) -> Any:
        """Batches of either kind; the data's own."""
        raise NotImplementedError

    def get_tensorloader(self, tensors: Sequence[Tensor], train: bool, indices: slice = slice(0, None)) -> Any:
        """Batches of `batch_size` of some rows of tensors."""
        return load_array([each[indices] for each in tensors], self.batch_size, train)

    def train_dataloader(self) -> Any:
        """Batches to learn from."""
        return self.get_dataloader(train=True)

    def val_dataloader(self) -> Any:
        """Batches to validate with; None where there are none."""
        return self.get_dataloader(train=False)


class MTFraEng(DataModule):
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
        self.arrays = tuple(torch.from_numpy(array) for array in arrays)

    def get_dataloader(self, train: bool) -> Any:
        """Batches of one of the two parts."""
        begin, pairs = (0, self.num_train) if train else (self.num_train, self.num_val)
        return self.get_tensorloader(self.arrays, train, slice(begin, begin + pairs))

    def build(self, src_sentences: Sequence[str], tgt_sentences: Sequence[str]) -> tuple[Tensor, ...]:
        """The tensors of other sentences, by the same vocabularies.

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
        return tuple(torch.from_numpy(array) for array in arrays)


class Trainer(HyperParameters):
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
        self.device = try_gpu() if self.num_gpus else cpu()
        self.model = model.to(self.device)
        self.optimizer = model.configure_optimizers()
        model.trainer = self
        model.board.xlabel, model.board.xlim = "epoch", [0, self.max_epochs]

    def prepare_batch(self, batch: Sequence[Tensor]) -> list[Tensor]:
        """A batch where the model is."""
        return [each.to(self.device) for each in batch]

    def fit_epoch(self) -> None:
        """Go through the data once: learn from the one kind of batches, then validate with the other."""
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
        decoder: With `init_state`.
        tgt_pad: The padding token's number, whose loss does not count.
        lr: The learning rate.
    """

    tgt_pad: int

    def __init__(self, encoder: nn.Module, decoder: nn.Module, tgt_pad: int, lr: float) -> None:
        super().__init__(encoder, decoder)
        self.save_hyperparameters()

    def forward(self, enc_X: Tensor, dec_X: Tensor, *args: Any) -> Tensor:
        """The decoder's scores (B, T, vocab_size), without its state."""
        return cast(Tensor, super().forward(enc_X, dec_X, *args)[0])

    def loss(self, Y_hat: Tensor, Y: Tensor) -> Tensor:
        """The mean cross-entropy of the tokens that are no padding."""
        return F.cross_entropy(Y_hat.flatten(0, 1), Y.flatten(), ignore_index=self.tgt_pad)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam with the learning rate `lr`."""
        return torch.optim.Adam(self.parameters(), lr=self.lr)

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
        self.to(device)
        X, read, lens = (each.to(device) for each in batch[:3])
        return _likeliest(self, X, lens, read[:, :1], num_steps, save_attention_weights)
