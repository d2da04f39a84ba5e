"""Layers with one head over `attend`, batch first, serialisable, on every backend; called as `calls` says."""

from collections.abc import Sequence
from typing import Any, ClassVar

import keras

from dikkat.frameworks.keras import attention
from dikkat.frameworks.keras.backend import as_tensor, features, shape_of
from dikkat.frameworks.keras.blocks import Block, registered
from dikkat.frameworks.keras.calls import Attending, shapes_in_order
from dikkat.frameworks.keras.checks import Shape
from dikkat.frameworks.keras.masking import check_restrictions, masked_softmax
from dikkat.frameworks.keras.scores import Additive, Bilinear, Gaussian, ScaledDot


@registered
class MaskedSoftmax(Block):
    r"""Softmax over the last axis, over the first `valid_lens` entries of each row: `masked_softmax` as a layer.

    Example:
        >>> from keras import ops
        >>> weights = MaskedSoftmax()(ops.zeros((1, 2, 4)), ops.array([2]))
        >>> ops.convert_to_numpy(weights)[0, 0].tolist()
        [0.5, 0.5, 0.0, 0.0]
    """

    def call(self, scores: Any, valid_lens: Any = None) -> Any:
        """(..., n, m) and None, (B,) or (B, n) integers -> weights (..., n, m)."""
        return masked_softmax(scores, valid_lens)

    def compute_output_spec(self, scores: Any, valid_lens: Any = None) -> Any:
        """The shape and dtype of the weights."""
        *lead, queries, keys = shape_of(features("scores", scores))
        check_restrictions(tuple(lead), queries, keys, valid_lens=as_tensor(valid_lens))
        return keras.KerasTensor(scores.shape, scores.dtype)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """That of the scores."""
        return input_shape


@registered
class Attention(Attending):
    r"""Attention with any scoring function: `attend` as a layer, for functional models too.

    $$ o_i = \sum_j w_{ij} v_j, \qquad w_{ij} = \frac{e^{a(q_i, k_j)}}{\sum_l e^{a(q_i, k_l)}} $$

    Args:
        score: The scoring function a; its parameters are the layer's.
        dropout: On the weights.
        seed: Where the random numbers of dropout begin; None: anywhere.
        **options: Keras's `name`, `dtype` and `trainable`.

    Raises:
        TypeError: A score that is none.

    Example:
        >>> import keras
        >>> from dikkat.frameworks.keras import Cosine
        >>> query, key = keras.Input((None, 5)), keras.Input((7, 5))
        >>> Attention(Cosine())(query, key).shape
        (None, None, 5)
    """

    arguments: ClassVar[tuple[str, ...]] = ("score", "dropout", "seed")

    def build(self, query_shape: Any, key_shape: Any = None) -> None:
        """Make the score's parameters, for queries and keys of these shapes, or for a list of them in Keras's order."""
        query_shape, key_shape, _ = shapes_in_order(query_shape, key_shape, None)
        if not self.score.built:
            self.score.build(query_shape, key_shape)

    def attend(self, tensors: tuple[Any, Any, Any], limits: dict[str, Any], dropout: float) -> tuple[Any, Any]:
        """The output (..., n, d_v) and the weights (..., n, m)."""
        found: tuple[Any, Any] = attention.attend(
            *tensors,
            score=self.score,
            dropout=dropout,
            seed_generator=self.seed_generator,
            return_weights=True,
            **limits,
        )
        return found

    def size_out(self, value_shape: Shape) -> int | None:
        """d_v."""
        return value_shape[-1]


@registered
class KernelAttention(Attention):
    r"""Attention pooling with a Gaussian kernel: Nadaraya–Watson regression.

    $$ a(q, k) = -\tfrac12 \lVert (q - k) / \sigma \rVert^2 $$

    Args:
        bandwidth: σ, in the units of the data: a positive number, or one for each feature.
        learnable: Whether σ is trained.
        **options: Keras's `name`, `dtype` and `trainable`.

    Raises:
        TypeError: A bandwidth that is no number.
        ValueError: A bandwidth that is not positive and finite, or of the wrong shape.

    Source: Nadaraya 1964; Watson 1964.

    Example:
        >>> from keras import ops
        >>> x = ops.array([[0.0], [1.0]])
        >>> round(float(KernelAttention(bandwidth=0.5)(x, x, x)[0, 0]), 4)
        0.1192
    """

    arguments = ("learnable",)

    def __init__(self, bandwidth: float | Sequence[float] = 1.0, learnable: bool = False, **options: Any) -> None:
        super().__init__(Gaussian(bandwidth, learnable, dtype=options.get("dtype")), **options)
        self.learnable = learnable

    def get_config(self) -> dict[str, Any]:
        """The bandwidth that it was made with; a learned one is among the weights."""
        return super().get_config() | {"bandwidth": self.score.get_config()["bandwidth"]}


@registered
class AdditiveAttention(Attention):
    r"""Attention with the score of Bahdanau: queries and keys of different sizes compared by a small network.

    $$ a(q, k) = w_v^\top \tanh(W_q q + W_k k) $$

    Args:
        num_hiddens: h.
        dropout: See `Attention`, as for `seed` and `**options`.
        seed: Of the dropout.
        **options: Keras's.

    Source: Bahdanau, Cho and Bengio 2015, section 3.1 and appendix A.1.2.

    Example:
        >>> from keras import ops
        >>> layer = AdditiveAttention(num_hiddens=7)
        >>> query, key, value = ops.zeros((2, 1, 5)), ops.zeros((2, 11, 3)), ops.zeros((2, 11, 13))
        >>> tuple(layer(query, key, value, ops.array([2, 6])).shape)
        (2, 1, 13)
    """

    arguments = ("num_hiddens", "dropout", "seed")

    def __init__(self, num_hiddens: int, dropout: float = 0.0, seed: int | None = None, **options: Any) -> None:
        super().__init__(Additive(num_hiddens, dtype=options.get("dtype")), dropout, seed, **options)
        self.num_hiddens = num_hiddens


@registered
class DotProductAttention(Attention):
    r"""Attention with the scaled dot product, $a(q, k) = \langle q, k \rangle / \sqrt{d}$.

    Args:
        dropout: See `Attention`, as for `seed` and `**options`.
        seed: Of the dropout.
        **options: Keras's.

    Source: Vaswani et al. 2017, section 3.2.1.

    Example:
        >>> from keras import ops
        >>> x = ops.zeros((2, 3, 5))
        >>> tuple(DotProductAttention()(x, x, x, ops.array([2, 0])).shape)
        (2, 3, 5)
    """

    arguments = ("dropout", "seed")

    def __init__(self, dropout: float = 0.0, seed: int | None = None, **options: Any) -> None:
        super().__init__(ScaledDot(dtype=options.get("dtype")), dropout, seed, **options)


@registered
class BilinearAttention(Attention):
    r"""Attention with the bilinear score, $a(q, k) = k^\top W_q q$.

    Args:
        dropout: See `Attention`, as for `seed` and `**options`.
        seed: Of the dropout.
        **options: Keras's.

    Source: Luong, Pham and Manning 2015, section 3.1, "general".

    Example:
        >>> from keras import ops
        >>> tuple(BilinearAttention()(ops.zeros((2, 1, 5)), ops.zeros((2, 7, 3)), ops.zeros((2, 7, 3))).shape)
        (2, 1, 3)
    """

    arguments = ("dropout", "seed")

    def __init__(self, dropout: float = 0.0, seed: int | None = None, **options: Any) -> None:
        super().__init__(Bilinear(dtype=options.get("dtype")), dropout, seed, **options)
