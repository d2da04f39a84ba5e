"""Attention in Keras 3, written once, on TensorFlow, JAX and PyTorch.

Masks by exclusion, rows without a key, lengths and the rest of the contract are those of `dikkat.attend`; parameters
have PyTorch's names and layouts, so that `load_tensors` takes any framework's weights.
"""

from dikkat.frameworks.keras import backend  # noqa: F401 - first, since it says what is missing

# isort: split
from dikkat.frameworks.keras.attention import attend
from dikkat.frameworks.keras.layers import (
    AdditiveAttention,
    Attention,
    BilinearAttention,
    DotProductAttention,
    KernelAttention,
    MultiHeadAttention,
    SelfAttention,
)
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
from dikkat.frameworks.keras.weights import Block, Linear, load_tensors, save_tensors, tensors

__all__ = [
    "Additive", "AdditiveAttention", "Attention", "Average", "Bilinear", "BilinearAttention", "Block", "Boxcar",
    "Cosine", "Dot", "DotProductAttention", "Epanechnikov", "Gaussian", "KernelAttention", "Linear",
    "MultiHeadAttention", "ScaledDot", "Score", "SelfAttention", "Triangular", "VectorSum",
    "attend", "load_tensors", "save_tensors", "tensors",
]  # fmt: skip
