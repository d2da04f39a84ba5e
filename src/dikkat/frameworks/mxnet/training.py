"""What trains a translator with Gluon's `Trainer`: batches of sentence pairs, and gradients of a bounded norm."""

import math
from collections.abc import Sequence
from typing import Any

import mxnet
from mxnet import gluon, np
from torch import Tensor

from dikkat.frameworks.mxnet.backend import Array
from dikkat.translation.network import model as core
from dikkat.translation.network.model import Batch


def collate(pairs: Sequence[tuple[Sequence[int], Sequence[int]]], ctx: Any = None) -> Batch:
    """A batch of (source, target) token numbers, the target's ends put on.

    Args:
        pairs: At least one.
        ctx: Where the arrays are to be, an `mxnet.Context`; None: the current one.

    Returns:
        A `dikkat.translation.network.model.Batch` of MXNet arrays.

    Example:
        >>> from mxnet import npx
        >>> npx.set_np()
        >>> collate([([5, 6, 7], [8]), ([9], [4, 5])]).target_lengths
        array([2, 3], dtype=int64)
    """
    return to_mxnet(core.collate(pairs), ctx or mxnet.current_context())


def clip_gradients(layer: gluon.Block, max_norm: float) -> float:
    """Scale a layer's gradients down, all by the same factor, so that their norm together is at most `max_norm`.

    What `gluon.utils.clip_global_norm` does for MXNet's older arrays: on those of `mxnet.np` it fails.

    Args:
        layer: After `backward`.
        max_norm: Greater than 0.

    Returns:
        The norm before.

    Raises:
        ValueError: A `max_norm` that is not positive.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm: got {max_norm}; expected a number greater than 0")
    trained = [each for each in layer.collect_params().values() if each.grad_req != "null"]
    gradients = [gradient for parameter in trained for gradient in parameter.list_grad()]
    norm = math.sqrt(sum(float(np.square(gradient).sum()) for gradient in gradients))
    if norm > max_norm:
        for gradient in gradients:
            gradient *= max_norm / norm
    return norm


def array_of(tensor: Tensor, ctx: Any) -> Array:
    """A tensor of PyTorch as MXNet's array on a device."""
    values = tensor.cpu().numpy()
    return np.array(values, dtype=values.dtype, ctx=ctx)


def to_mxnet(batch: Batch, ctx: Any) -> Batch:
    """A batch of PyTorch's tensors as one of MXNet's arrays."""
    names = ("source", "source_lengths", "target", "target_lengths")
    return batch._replace(**{name: array_of(getattr(batch, name), ctx) for name in names})
