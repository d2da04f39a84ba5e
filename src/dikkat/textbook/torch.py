"""The textbook's helper library on PyTorch: `from dikkat.textbook import torch as d2l`.

Names, signatures and shapes are those of both editions of *Dive into Deep Learning*: 0.17 (and its second Chinese
edition), whose layers get all sizes as arguments, and 1.0, whose layers infer input sizes from the first call. A class
in both editions recognises the edition by its arguments. Corrections of the book:

- A row of attention without a valid key has weights 0, scores may be below −10⁶, and no function changes its arguments.
- An encoder with lengths, as `EncoderDecoder` calls it, reads no padding, and its last state is at the sentence's end.
- Lengths and token ids may be integral floats; a length above the number of keys means all keys.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: F401 - readers use it through this module

from dikkat.textbook.common import *  # noqa: F403
from dikkat.textbook.common import absent
from dikkat.textbook.layers import *  # noqa: F403
from dikkat.textbook.learning import *  # noqa: F403
from dikkat.textbook.tools import as_array

__getattr__ = partial(absent, __name__)

ones, ones_like, zeros, zeros_like, eye = torch.ones, torch.ones_like, torch.zeros, torch.zeros_like, torch.eye
tensor, arange, linspace, meshgrid = torch.tensor, torch.arange, torch.linspace, torch.meshgrid
normal, rand, randn = torch.normal, torch.rand, torch.randn
abs, exp, log, sigmoid = torch.abs, torch.exp, torch.log, torch.sigmoid
sin, cos, sinh, cosh, tanh = torch.sin, torch.cos, torch.sinh, torch.cosh, torch.tanh
matmul, batch_matmul, concat, stack = torch.matmul, torch.bmm, torch.cat, torch.stack
float32, int32 = torch.float32, torch.int32
nn_Module = nn.Module  # noqa: N816  (the book's name)
reshape, astype, to, transpose, repeat = Tensor.reshape, Tensor.type, Tensor.to, Tensor.t, Tensor.repeat
reduce_sum, reduce_mean, argmax, size = Tensor.sum, Tensor.mean, Tensor.argmax, Tensor.numel
expand_dims, swapaxes = Tensor.unsqueeze, Tensor.swapaxes
numpy = as_array
