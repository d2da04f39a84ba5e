"""The textbook's functions, written once over the operations of a framework.

Those that every framework writes itself are declared here, or raise `NotImplementedError`; the others are made of them.
In the shapes, B is the batch, T and m are steps, n queries, h features of a state.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import numpy as np

from dikkat.textbook import text
from dikkat.textbook.pictures import Animator
from dikkat.textbook.text import Ids, Vocab
from dikkat.textbook.tools import Accumulator, Timer, as_array

__all__ = ["Layer", "OfAFramework", "Skeleton", "Tensor"]

Tensor = Any
Layer = Any


class Skeleton:
    """The textbook's functions.

    Attributes:
        training: Keyword arguments of a layer in training.
        evaluating: Keyword arguments of a layer outside of training.
    """

    training: ClassVar[Mapping[str, Any]] = {}
    evaluating: ClassVar[Mapping[str, Any]] = {}

    # --- arrays; the operations that are declared here are a framework's own

    reshape: Callable[..., Tensor]
    swapaxes: Callable[..., Tensor]
    broadcast_to: Callable[..., Tensor]
    concat: Callable[..., Tensor]
    full_like: Callable[..., Tensor]
    tensor: Callable[[Ids], Tensor]  # of NumPy's token ids or lengths
    integers: Callable[[str, Tensor], Tensor]  # what has a name in messages, seen to be whole: else a ValueError
    most_likely: Callable[[Tensor], Tensor]  # scores (B, T, vocab_size) -> token ids (B, T)

    def shape(self, X: Tensor) -> Sequence[int]:
        """The sizes of a tensor."""
        sizes: Sequence[int] = X.shape
        return sizes

    def lengths(self, valid_lens: Tensor, keys: int, name: str = "valid_lens", least: int = 0) -> Tensor:
        """Lengths as integers, none above the number of keys.

        Raises:
            ValueError: A length that is not whole; or, where its value can be read, one below `least`.
        """
        raise NotImplementedError

    # --- devices

    put: Callable[[Tensor, Any], Tensor]  # a tensor on a device
    move: Callable[[Layer, Any], None]  # a net's weights to a device

    def cpu(self) -> Any:
        """The CPU."""
        raise NotImplementedError

    def gpu(self, i: int = 0) -> Any:
        """The i-th GPU."""
        raise NotImplementedError

    def num_gpus(self) -> int:
        """How many GPUs there are."""
        raise NotImplementedError

    def try_gpu(self, i: int = 0) -> Any:
        """The i-th GPU if it is there, otherwise the CPU."""
        return self.gpu(i) if self.num_gpus() > i else self.cpu()

    def try_all_gpus(self) -> list[Any]:
        """All GPUs, or a list of the CPU where there are none."""
        return [self.gpu(i) for i in range(self.num_gpus())] or [self.cpu()]

    def on(self, device: Any) -> AbstractContextManager[Any]:
        """A context in which tensors are made on a device, in a framework that has such contexts."""
        return nullcontext(device)

    # --- attention

    # Of queries, keys and valid_lens: which keys each query may see, booleans (B, n or 1, m); None: all.
    shown: Callable[[Tensor, Tensor, Tensor | None], Any]
    # Queries, keys and values, with 0 for queries that see no key, and for keys and values that no query sees.
    hide: Callable[[Tensor, Tensor, Tensor, Any], tuple[Tensor, Tensor, Tensor]]
    compare: Callable[[Layer, Tensor, Tensor], Tensor]  # the scores (B, n, m) of projected queries and keys
    # Of scores, values, what is shown and the dropout: the mean of the values, and the weights before dropout.
    pool: Callable[[Tensor, Tensor, Any, Any], tuple[Tensor, Tensor]]
    repeat_rows: Callable[[Any, int], Any]  # what is shown to each batch element, several times one after the other
    dropping: Callable[[Layer, Any], Any]  # the dropout of a layer, in training or not, as `attend` and `pool` take it

    def sequence_mask(self, X: Tensor, valid_len: Tensor, value: float = 0) -> Tensor:
        """A copy in which another value stands behind each sequence's length.

        Args:
            X: (B, T, ...).
            valid_len: (B,) whole numbers.
            value: What stands there.

        Raises:
            ValueError: A length that is not whole.
        """
        raise NotImplementedError

    def masked_softmax(self, X: Tensor, valid_lens: Tensor | None) -> Tensor:
        """The softmax over the first entries of each row; weights 0 in a row that has none.

        Args:
            X: (B, n, m) scores; they stay as they are.
            valid_lens: (B,) or (B, n) whole numbers, those above m meaning m; None: all entries take part.

        Returns:
            (B, n, m).

        Raises:
            ValueError: Lengths of another shape, below 0, or not whole.

        Source: *Dive into Deep Learning*, section "Attention Scoring Functions".

        Example:
            >>> import torch
            >>> from dikkat.textbook import torch as d2l
            >>> d2l.masked_softmax(torch.zeros(1, 2, 4), torch.tensor([[2, 0]]))
            tensor([[[0.5000, 0.5000, 0.0000, 0.0000],
                     [0.0000, 0.0000, 0.0000, 0.0000]]])
        """
        raise NotImplementedError

    def transpose_qkv(self, X: Tensor, num_heads: int) -> Tensor:
        """(B, n, heads · d) -> (B · heads, n, d): a batch element of each head."""
        batch, length, features = self.shape(X)
        size = features // num_heads
        heads = self.swapaxes(self.reshape(X, (batch, length, num_heads, size)), 1, 2)
        return self.reshape(heads, (batch * num_heads, length, size))

    def transpose_output(self, X: Tensor, num_heads: int) -> Tensor:
        """(B · heads, n, d) -> (B, n, heads · d), the reverse of `transpose_qkv`."""
        rows, length, size = self.shape(X)
        joined = self.swapaxes(self.reshape(X, (rows // num_heads, num_heads, length, size)), 1, 2)
        return self.reshape(joined, (rows // num_heads, length, num_heads * size))

    def attend(
        self, score: Layer, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None, dropout: Any
    ) -> tuple[Tensor, Tensor]:
        """Attend with a score, which says its `pair`, projects queries and keys, and may have a `pair_weight`.

        Args:
            score: The layer whose score it is.
            queries: (B, n, d_q).
            keys: (B, m, d_k).
            values: (B, m, d_v).
            valid_lens: (B,) or (B, n); None: all.
            dropout: Of `dropping`.

        Returns:
            (B, n, d_v), and the weights before dropout (B, n, m).
        """
        shown = self.shown(queries, keys, valid_lens)
        # Before the projections: a hidden NaN would reach their weights' gradients as 0 · NaN.
        queries, keys, values = self.hide(queries, keys, values, shown)
        scores = self.compare(score, score.project_query(queries), score.project_key(keys))
        return self.pool(scores, values, shown, dropout)

    def attend_heads(
        self, layer: Layer, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None, dropout: Any
    ) -> tuple[Tensor, Tensor]:
        """Attend with every head of a `MultiHeadAttention`: as `attend`, with weights (B · heads, n, m)."""
        shown = self.shown(queries, keys, valid_lens)
        queries, keys, values = self.hide(queries, keys, values, shown)
        projected = layer.W_q(queries), layer.W_k(keys), layer.W_v(values)
        queries, keys, values = (layer.transpose_qkv(each) for each in projected)
        scores = self.compare(layer.attention, layer.attention.project_query(queries), keys)
        shown = None if shown is None else self.repeat_rows(shown, layer.num_heads)
        output, weights = self.pool(scores, values, shown, dropout)
        return layer.transpose_output(output), weights

    # --- text

    def load_array(self, data_arrays: Sequence[Tensor], batch_size: int, is_train: bool = True) -> Any:
        """Batches of tensors that belong together row by row, in another order each time if `is_train`.

        Args:
            data_arrays: Tensors with as many rows each.
            batch_size: Rows of a batch; the last one may have fewer.
            is_train: Whether the rows are shuffled.
        """
        raise NotImplementedError

    def build_array_nmt(self, lines: Sequence[Sequence[str]], vocab: Vocab, num_steps: int) -> tuple[Tensor, Tensor]:
        """`dikkat.textbook.text.build_array_nmt` as tensors: token ids (sentences, num_steps), lengths (sentences,)."""
        ids, lens = text.build_array_nmt(lines, vocab, num_steps)
        return self.tensor(ids), self.tensor(lens)

    def load_data_nmt(
        self, batch_size: int, num_steps: int, num_examples: int | None = 600
    ) -> tuple[Any, Vocab, Vocab]:
        """Batches of the corpus's first sentence pairs, and the vocabularies of both languages.

        Args:
            batch_size: Pairs of a batch.
            num_steps: Tokens of a sentence, `<eos>` among them.
            num_examples: How many pairs of `read_data_nmt` to take; None: all.

        Returns:
            Batches of sources, their lengths, targets and their lengths; the vocabulary of the sources, of the targets.
        """
        arrays, source_vocab, target_vocab = text.load_data_nmt(num_steps, num_examples)
        return self.load_array([self.tensor(each) for each in arrays], batch_size), source_vocab, target_vocab

    # --- training

    optimizer: Callable[[Layer, str, float], Any]  # "adam" or "sgd" of a net's weights, with a learning rate
    total_loss: Callable[[Tensor, Tensor, Tensor], Tensor]  # the sum of `MaskedSoftmaxCELoss`: scores, labels, lengths
    mean_loss: Callable[[Tensor, Tensor, int], Tensor]  # cross-entropy of the labels that are not a padding token

    def learn(self, net: Layer, optimizer: Any, loss: Callable[[], Tensor], theta: float) -> Tensor:
        """One step of an optimizer.

        Args:
            net: What learns.
            optimizer: Of its weights.
            loss: Computes the loss, of which gradients are taken.
            theta: The norm to which gradients are shrunk; 0: not at all.

        Returns:
            The loss.
        """
        raise NotImplementedError

    def restart(self, net: Layer, device: Any) -> None:
        """Draw a translator's weights anew, on a device, where the framework's book does so before a training."""

    def set_training(self, net: Layer, training: bool) -> None:
        """Set a net to training or to evaluation, in a framework whose nets have such a mode."""

    def without_gradients(self) -> AbstractContextManager[Any]:
        """A context without gradients, in a framework that records them unless it is told otherwise."""
        return nullcontext()

    def compiled(self, step: Callable[..., Tensor], net: Layer) -> Callable[..., Tensor]:
        """A training step, compiled where the framework can do so for this net."""
        return step

    def train_seq2seq(
        self, net: Layer, data_iter: Any, lr: float, num_epochs: int, tgt_vocab: Vocab, device: Any
    ) -> None:
        """Train an `EncoderDecoder` on sentence pairs: Adam, gradients of norm 1 at most.

        It prints the last epoch's loss a token and how many target tokens a second it read, and draws the loss.

        Args:
            net: `net(X, dec_X, lengths)` returns scores and a state.
            data_iter: Batches of sources, their lengths, targets and their lengths.
            lr: The learning rate.
            num_epochs: How often to go through the data.
            tgt_vocab: Of the targets, for `<bos>`.
            device: Where to train.
        """
        self.restart(net, device)
        self.set_training(net, True)
        optimizer, begin = self.optimizer(net, "adam", lr), tgt_vocab["<bos>"]

        def step(X: Tensor, X_lens: Tensor, Y: Tensor, Y_lens: Tensor) -> Tensor:
            read = self.concat([self.full_like(Y[:, :1], begin), Y[:, :-1]], 1)

            def loss() -> Tensor:
                scores, _ = net(X, read, X_lens, **self.training)
                return self.total_loss(scores, Y, Y_lens)

            return self.learn(net, optimizer, loss, 1)

        run = self.compiled(step, net)
        animator, timer = Animator(xlabel="epoch", ylabel="loss", xlim=[1, num_epochs]), Timer()
        with self.on(device):
            for epoch in range(1, num_epochs + 1):
                timer.start()
                metric = Accumulator(2)
                for batch in data_iter:
                    arrays = [self.put(each, device) for each in batch]
                    metric.add(run(*arrays), as_array(arrays[3]).sum())
                timer.stop()
                if epoch % 10 == 0:
                    animator.add(epoch, metric[0] / metric[1])
        print(f"loss {metric[0] / metric[1]:.3f}, {metric[1] / timer.times[-1]:.1f} tokens/sec on {device}")

    # --- translation

    def predict_seq2seq(
        self,
        net: Layer,
        src_sentence: str,
        src_vocab: Vocab,
        tgt_vocab: Vocab,
        num_steps: int,
        device: Any,
        save_attention_weights: bool = False,
    ) -> tuple[str, list[Any]]:
        """Translate a sentence, the likeliest word at each step.

        Args:
            net: As it was trained; one that has such a mode is left in evaluation mode.
            src_sentence: Words and punctuation marks with spaces between them.
            src_vocab: Of the source.
            tgt_vocab: Of the target.
            num_steps: To which the source is padded, and how many words are said at most.
            device: Where the net is.
            save_attention_weights: Whether to return the decoder's `attention_weights` of each step.

        Returns:
            The translation, and the attention weights of each step, that of `<eos>` among them, if asked for.
        """
        self.set_training(net, False)
        arrays = self.build_array_nmt([src_sentence.lower().split()], src_vocab, num_steps)
        sources, lens = (self.put(each, device) for each in arrays)
        begin, end = self.put(self.tensor(np.array([[tgt_vocab["<bos>"]]])), device), tgt_vocab["<eos>"]
        said, looked_at = self.likeliest(net, sources, lens, begin, num_steps, save_attention_weights, end)
        words = as_array(said)[0].tolist()
        return " ".join(tgt_vocab.to_tokens(words[:-1] if words[-1] == end else words)), looked_at

    def likeliest(
        self,
        net: Layer,
        sources: Tensor,
        lens: Tensor,
        begin: Tensor,
        num_steps: int,
        keep: bool,
        end: int | None = None,
    ) -> tuple[Tensor, list[Any]]:
        """The likeliest token at each step, (B, steps), until all are `end`; what the decoder looked at, if kept."""
        with self.without_gradients():
            encoded = net.encoder(sources, lens, **self.evaluating)
            token, state = begin, net.decoder.init_state(encoded, lens)
            said, looked_at = [], []
            for _ in range(num_steps):
                scores, state = net.decoder(token, state, **self.evaluating)
                token = self.most_likely(scores)
                said.append(token)
                if keep:
                    looked_at.append(net.decoder.attention_weights)
                if end is not None and (as_array(token) == end).all():
                    break
            return self.concat(said, 1), looked_at


class OfAFramework:
    """A class of one framework.

    Attributes:
        framework: Its skeleton.
    """

    framework: ClassVar[Skeleton]
