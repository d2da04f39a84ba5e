"""Attention in Keras 3, written once, on TensorFlow, JAX and PyTorch.

Masks by exclusion, rows without a key, lengths and the rest of the contract are those of `dikkat.attend`; parameters
have PyTorch's names and layouts, so that `load_tensors` takes any framework's weights.
"""

from dikkat.frameworks.keras import backend  # noqa: F401 - first, since it says what is missing

# isort: split
from dikkat.frameworks.keras.attention import attend, attention_weights
from dikkat.frameworks.keras.blocks import Block, Linear, load_tensors, save_tensors, tensors
from dikkat.frameworks.keras.heads import MultiHeadAttention, SelfAttention
from dikkat.frameworks.keras.layers import (
    AdditiveAttention,
    Attention,
    BilinearAttention,
    DotProductAttention,
    KernelAttention,
    MaskedSoftmax,
)
from dikkat.frameworks.keras.masking import masked_softmax
from dikkat.frameworks.keras.scores import (
    Additive,
    Average,
    Bilinear,
    Boxcar,
    Cosine,
    Dot,
    Epanechnikov,
    Gaussian,
    ScaledDot,
    Score,
    Triangular,
    VectorSum,
)

__all__ = [
    "Additive", "AdditiveAttention", "Attention", "Average", "Bilinear", "BilinearAttention", "Block", "Boxcar",
    "Cosine", "Dot", "DotProductAttention", "Epanechnikov", "Gaussian", "KernelAttention", "Linear",
    "MaskedSoftmax", "MultiHeadAttention", "ScaledDot", "Score", "SelfAttention", "Triangular", "VectorSum",
    "attend", "attention_weights", "load_tensors", "masked_softmax", "save_tensors", "tensors",
]  # fmt: skip
