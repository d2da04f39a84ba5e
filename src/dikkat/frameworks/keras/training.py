"""What trains a translator with Keras's `fit`: a loss, and batches of sentence pairs."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from dikkat.frameworks.contract.checks import check_smoothing
from dikkat.frameworks.keras.backend import Array
from dikkat.frameworks.keras.blocks import registered
from dikkat.translation.text.tokenizer import BEGIN, END, PAD


@registered
class TokenCrossEntropy(keras.losses.Loss):
    r"""Cross-entropy of the next tokens, in nats, with label smoothing; a mean over the real ones of a batch.

    With scores $z$, target t, V tokens and label smoothing s,

    $$ \ell = -(1 - s) \log \mathrm{softmax}(z)_t - \frac{s}{V} \sum_v \log \mathrm{softmax}(z)_v $$

    Which tokens are real says the Keras mask of the scores, as `TranslationModel` gives them one. Szegedy and others,
    "Rethinking the Inception architecture for computer vision" (2016), section 7.

    Args:
        label_smoothing: Part of the true token's probability that is spread over all tokens, from 0 to 1.
        **options: Keras's own: `reduction`, `name`, `dtype`.

    Raises:
        ValueError: A label smoothing outside 0 … 1.

    Example:
        >>> import numpy as np
        >>> loss = TokenCrossEntropy()(np.array([[1, 0]]), np.zeros((1, 2, 4), np.float32))
        >>> round(float(loss), 4)
        1.3863
    """

    def __init__(self, label_smoothing: float = 0.0, **options: Any) -> None:
        super().__init__(**options)
        check_smoothing(label_smoothing)
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
        pairs: Token numbers of a source, at least one, and of its translation, without the ends.
        batch_size: Pairs of a batch.
        multiple: What numbers of positions are padded to a multiple of, so that there are few shapes for which a
            compiling backend has to compile.
        seed: Of the order of the batches; None: by length, the longest first.

    Raises:
        ValueError: No pair, a source without tokens, or a number below 1.

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
                raise ValueError(f"{name}: got {value}; expected at least 1")
        for index, (source, _) in enumerate(pairs):
            if not len(source):
                raise ValueError(f"pairs[{index}]: got a source without tokens; expected one at least: leave it out")
        order = sorted(range(len(pairs)), key=lambda index: (-len(pairs[index][1]), -len(pairs[index][0])))
        self._pairs, self._multiple = pairs, multiple
        self._batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
        self._random = None if seed is None else np.random.default_rng(seed)
        self.on_epoch_end()

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> tuple[dict[str, Array], Array]:
        if not 0 <= index < len(self):
            raise IndexError(f"index: got {index}; expected one of {len(self)} batches")
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
        numbers = np.full((len(sentences), positions), PAD, np.int32)
        for row, sentence in zip(numbers, sentences, strict=True):
            row[: len(sentence)] = sentence
        return numbers
