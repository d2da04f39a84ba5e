"""dikkat for Apache MXNet 1.9.1: the layers of the PyTorch library as Gluon blocks over `mxnet.np` and `mxnet.npx`.

Names, arguments, shapes, results and weights are those of `dikkat`; `mxnet.npx.set_np()` comes first, once a program.
Since `mxnet.np.array([2, 3])` is float32, whole numbers are taken as lengths and token numbers in that dtype too.

Example:
    >>> from mxnet import np, npx
    >>> from dikkat.frameworks import mxnet as dikkat_mxnet
    >>> npx.set_np()
    >>> layer = dikkat_mxnet.AdditiveAttention(key_size=3, query_size=5, num_hiddens=7)
    >>> layer.initialize()
    >>> layer(np.zeros((2, 1, 5)), np.zeros((2, 11, 3)), np.zeros((2, 11, 13)), np.array([2, 6])).shape
    (2, 1, 13)
"""

from dikkat.frameworks.mxnet._require import import_mxnet

import_mxnet()

from dikkat.frameworks.contract.recurrent import Covered  # noqa: E402
from dikkat.frameworks.mxnet.attention import attend, attention_weights, compare, pool  # noqa: E402
from dikkat.frameworks.mxnet.blocks import Block, Linear, load_tensors, save_tensors, tensors  # noqa: E402
from dikkat.frameworks.mxnet.decoders import AttentionalGRU, AttentionalLSTM, Memory  # noqa: E402
from dikkat.frameworks.mxnet.encoders import GRUEncoder, LSTMEncoder  # noqa: E402
from dikkat.frameworks.mxnet.layers import (  # noqa: E402
    AdditiveAttention,
    AverageAttention,
    BilinearAttention,
    DotProductAttention,
    KernelAttention,
    MaskedSoftmax,
    MultiHeadAttention,
    SelfAttention,
)
from dikkat.frameworks.mxnet.masking import masked_softmax, visible  # noqa: E402
from dikkat.frameworks.mxnet.model import TranslationModel  # noqa: E402
from dikkat.frameworks.mxnet.scores import (  # noqa: E402
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
from dikkat.frameworks.mxnet.training import clip_gradients, collate  # noqa: E402
from dikkat.frameworks.mxnet.translator import Translator  # noqa: E402

__all__ = [
    "Additive",
    "AdditiveAttention",
    "AttentionalGRU",
    "AttentionalLSTM",
    "Average",
    "AverageAttention",
    "Bilinear",
    "BilinearAttention",
    "Block",
    "Boxcar",
    "Cosine",
    "Covered",
    "Dot",
    "DotProductAttention",
    "Epanechnikov",
    "GRUEncoder",
    "Gaussian",
    "KernelAttention",
    "LSTMEncoder",
    "Linear",
    "MaskedSoftmax",
    "Memory",
    "MultiHeadAttention",
    "ScaledDot",
    "Score",
    "SelfAttention",
    "TranslationModel",
    "Translator",
    "Triangular",
    "VectorSum",
    "attend",
    "attention_weights",
    "clip_gradients",
    "collate",
    "compare",
    "load_tensors",
    "masked_softmax",
    "pool",
    "save_tensors",
    "tensors",
    "visible",
]
