"""Gluon blocks with PyTorch's parameters, and their weights as files."""

import math
import os
from typing import Any

import numpy
from mxnet import gluon, init, np, npx

from dikkat.frameworks.contract import checks
from dikkat.frameworks.contract.checks import Shape
from dikkat.frameworks.mxnet.backend import Array, cast, check_semantics, kind, wide
from dikkat.storage import tensors as files


class Block(gluon.Block):
    """A Gluon block whose parameters have the names, layouts and shapes that they have in PyTorch.

    A parameter begins as in PyTorch, whatever initializer `initialize` is given: Gluon lets a parameter's own win.
    """

    def __init__(self) -> None:
        check_semantics()
        super().__init__()

    def make(self, name: str, shape: Shape, begin: Any, *, dtype: str = "float32", trained: bool = True) -> None:
        """A parameter, as an attribute of this name.

        Args:
            name: As in PyTorch.
            shape: Likewise.
            begin: An initializer of `mxnet.init`.
            dtype: Of its values.
            trained: Whether it has a gradient; what PyTorch calls a buffer has none.
        """
        grad_req = "write" if trained else "null"
        setattr(self, name, self.params.get(name, shape=shape, init=begin, dtype=dtype, grad_req=grad_req))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """`forward`, with keyword arguments too, which a Gluon block's own does not pass on, and Gluon's hooks."""
        for hook in self._forward_pre_hooks.values():
            hook(self, arguments)
        output = self.forward(*arguments, **named)
        for hook in self._forward_hooks.values():
            hook(self, arguments, output)
        return output


class Values(init.Initializer):
    """A parameter's first values, of any shape; `mxnet.init.Constant` cannot fill one of shape ().

    Args:
        values: What it begins with.
    """

    def __init__(self, values: Any) -> None:
        super().__init__()
        self._values = values

    def _init_weight(self, _: str, parameter: Array) -> None:
        np.array(self._values, dtype=parameter.dtype).copyto(parameter)


class Linear(Block):
    """W x + b, with `weight` (out, in) and `bias` (out,) as in `torch.nn.Linear`.

    Args:
        inputs: Features that come in.
        outputs: Features that come out.
        bias: Whether there is a bias.

    Example:
        >>> from mxnet import np, npx
        >>> npx.set_np()
        >>> layer = Linear(3, 5)
        >>> layer.initialize()
        >>> layer(np.zeros((2, 7, 3))).shape
        (2, 7, 5)
    """

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        bound = 1 / math.sqrt(inputs)
        self.make("weight", (outputs, inputs), init.Uniform(bound))
        if bias:
            self.make("bias", (outputs,), init.Uniform(bound))
        self.has_bias = bias

    def forward(self, x: Array, name: str = "x") -> Array:
        """The map.

        Args:
            x: (..., in), in the dtype of the weight.
            name: What to call it in a message.

        Raises:
            TypeError: Another dtype.
            ValueError: Another number of features.
        """
        bias = self.bias.data(x.ctx) if self.has_bias else None
        return linear(x, self.weight.data(x.ctx), bias, name)


def linear(x: Array, weight: Array, bias: Array | None, name: str) -> Array:
    """W x + b, computed in float32 or wider, after checks that name the array.

    Raises:
        TypeError: x of another dtype than the weight.
        ValueError: x of another number of features.
    """
    checks.check_features(name, x.shape, weight.shape[1])
    if kind(x) != kind(weight):
        raise TypeError(
            f"{name}: got dtype {kind(x)}; expected {kind(weight)}, that of the layer's parameters (layer.cast changes "
            "it)"
        )
    if not x.size:  # which MXNet's product refuses
        return np.zeros((*x.shape[:-1], weight.shape[0]), dtype=x.dtype, ctx=x.ctx)
    operands = [cast(each, wide(x)) for each in (x, weight, bias) if each is not None]
    output = npx.fully_connected(*operands, num_hidden=weight.shape[0], no_bias=bias is None, flatten=False)
    return cast(output, kind(x))


def tensors(layer: gluon.Block) -> dict[str, numpy.ndarray[Any, Any]]:
    """A layer's weights, under the names that they have in PyTorch.

    Args:
        layer: With its parameters initialized.

    Returns:
        NumPy arrays by name, the same names, shapes and order of gates as the PyTorch layer's state dict.

    Raises:
        RuntimeError: The parameters are not initialized.

    Example:
        >>> from mxnet import npx
        >>> npx.set_np()
        >>> layer = Linear(3, 5)
        >>> layer.initialize()
        >>> {name: tensor.shape for name, tensor in tensors(layer).items()}
        {'weight': (5, 3), 'bias': (5,)}
    """
    return {name: parameter.data().asnumpy() for name, parameter in named_parameters(layer).items()}


def load_tensors(layer: gluon.Block, source: files.Tensors | str | os.PathLike[str]) -> None:
    """Give a layer the weights of another, of any framework.

    Args:
        layer: Initialized or not.
        source: Arrays by name, or the name of a safetensors file.

    Raises:
        FileNotFoundError: No such file.
        ValueError: A file that is no safetensors file, or a tensor that is missing, too many or of another shape; the
            message names it and both shapes, and the layer is as it was.

    Example:
        >>> from mxnet import npx
        >>> npx.set_np()
        >>> layer = Linear(3, 2, bias=False)
        >>> load_tensors(layer, {"weight": numpy.ones((2, 3))})
        >>> layer.weight.data()
        array([[1., 1., 1.],
               [1., 1., 1.]])
    """
    named, found = named_parameters(layer), files.read(source)
    files.check({name: tuple(parameter.shape) for name, parameter in named.items()}, found)
    for name, parameter in named.items():
        if not _is_initialized(parameter):
            parameter.initialize()
        for copy in parameter.list_data():  # `set_data` cannot fill one of shape ()
            np.array(found[name], dtype=parameter.dtype).copyto(copy)


def save_tensors(layer: gluon.Block, path: str | os.PathLike[str]) -> None:
    """Write a layer's weights to a safetensors file, whole or not at all.

    Args:
        layer: With its parameters initialized.
        path: The file.

    Raises:
        OSError: The system could not write; an older file is as it was.
        RuntimeError: The parameters are not initialized.
    """
    files.write(tensors(layer), path)


def named_parameters(layer: gluon.Block, prefix: str = "") -> dict[str, Any]:
    """A layer's parameters, by the names of the attributes that lead to them: those that they have in PyTorch.

    Args:
        layer: Any Gluon block.
        prefix: What comes before every name.
    """
    named = {f"{prefix}{name}": parameter for name, parameter in layer._reg_params.items()}
    for name, child in layer._children.items():
        named |= named_parameters(child, f"{prefix}{name}.")
    return named


def _is_initialized(parameter: gluon.Parameter) -> bool:
    try:
        parameter.list_ctx()
    except RuntimeError:
        return False
    return True
