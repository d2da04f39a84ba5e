"""Weights of any framework under PyTorch's names: NumPy arrays, safetensors files, and their checks."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dikkat.storage.files import write_whole

Array = np.ndarray[Any, Any]
Tensors = Mapping[str, Array]


def read(source: Tensors | str | os.PathLike[str]) -> Tensors:
    """Weights that are given themselves, or as the name of a safetensors file.

    What is bfloat16 in a file becomes float32, since NumPy has no such type.

    Raises:
        FileNotFoundError: No such file.
        ValueError: A file that is damaged or of another format.
    """
    if isinstance(source, Mapping):
        return source
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = Path(source)
    try:
        loaded = load(path.read_bytes())
    except (SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"{path}: truncated, damaged or no safetensors file ({error})") from error
    return {
        name: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy() for name, tensor in loaded.items()
    }


def write(tensors: Tensors, path: str | os.PathLike[str]) -> None:
    """Write a safetensors file, whole or not at all."""
    from safetensors.numpy import save

    content = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
    write_whole(path, save(content, metadata={"format": "pt"}))


def check(expected: Mapping[str, tuple[int, ...]], found: Tensors, name: str = "tensors") -> None:
    """Check that weights have a layer's names and shapes.

    Args:
        expected: Each weight's shape, by name.
        found: The weights.
        name: What to call them in the message.

    Raises:
        ValueError: One is missing, one is too many, or the shapes differ; the message names it and both shapes.

    Example:
        >>> check({"v": (1, 5)}, {"v": np.zeros((1, 7))}, name="file")
        Traceback (most recent call last):
            ...
        ValueError: file: v: got (1, 7); expected (1, 5). They are of another layer, or of one of other sizes
    """
    shapes = {each: str(tuple(array.shape)) for each, array in found.items()}
    if faults := misfits({each: str(tuple(shape)) for each, shape in expected.items()}, shapes):
        raise ValueError(f"{name}: {joined(faults)}. They are of another layer, or of one of other sizes")


def misfits(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """The tensors that are missing, too many, or of another shape or type, by descriptions of each.

    Example:
        >>> misfits({"a": "(3,)", "b": "()"}, {"a": "(2,)", "c": "()"})
        ['a: got (2,); expected (3,)', 'b: got nothing; expected ()', 'c: got (); expected nothing']
    """
    return [
        f"{name}: got {found.get(name, 'nothing')}; expected {expected.get(name, 'nothing')}"
        for name in (*expected, *sorted(found.keys() - expected.keys()))
        if found.get(name) != expected.get(name)
    ]


def described(tensor: Array | torch.Tensor) -> str:
    """Type and shape, as `misfits` compares them.

    Example:
        >>> described(torch.zeros(3, 5))
        'float32 (3, 5)'
    """
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def joined(faults: Sequence[str]) -> str:
    """The first five faults, as one text."""
    return "; ".join(faults[:5]) + (" …" if faults[5:] else "")
