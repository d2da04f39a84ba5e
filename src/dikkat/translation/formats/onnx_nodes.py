"""ONNX graphs, written node by node."""

from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dikkat.errors import InputError
from dikkat.extras import needing

with needing("onnx"):
    import onnx
    from onnx import TensorProto, helper, numpy_helper

FLOAT, WHOLE, FLAG = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
_OPERATORS = 17  # a set of 2022, which every runtime has; nothing newer is needed
_FORMAT = 8  # that came with it
_LARGEST = 2**31 - 2**20  # bytes of weights: a file has at most 2 GiB


class Graph:
    """A graph that is being written. Values are names: what makes one returns its name.

    Args:
        names: What to call weights, by their `id`.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._tensors: dict[str, TensorProto] = {}
        self._numbers = count()
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def body(self) -> "Graph":
        """A graph within this one, which sees its values, and keeps its weights and numbers here."""
        inner = Graph(self._names)
        inner._tensors, inner._numbers = self._tensors, self._numbers
        return inner

    def input(self, name: str, kind: int, *sizes: int | str) -> str:
        """An input; a size is a number, or the name of one that varies."""
        self._inputs.append(helper.make_tensor_value_info(name, kind, sizes))
        return name

    def output(self, name: str, value: str, kind: int, *sizes: int | str) -> None:
        """A value that comes out, under a name."""
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, kind, sizes))

    def __call__(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """A node of one output."""
        return self.several(operator, 1, *inputs, **attributes)[0]

    def several(self, operator: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        """A node of so many outputs."""
        names = [self.new(operator.lower()) for _ in range(outputs)]
        self._nodes.append(helper.make_node(operator, inputs, names, **attributes))
        return names

    def number(self, value: float) -> str:
        """A float32 number."""
        return self._keep(self.new("number"), np.array(value, np.float32))

    def whole(self, value: int | Iterable[int]) -> str:
        """An int64 number, or a vector of them."""
        return self._keep(self.new("whole"), np.array(value, np.int64))

    def weight(self, tensor: Tensor) -> str:
        """A weight, which is kept once however often it is used."""
        name = self._names.get(id(tensor)) or self.new("weight")
        return name if name in self._tensors else self._keep(name, tensor.detach().numpy())

    def _keep(self, name: str, array: np.ndarray[Any, Any]) -> str:
        self._tensors[name] = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        return name

    def new(self, stem: str) -> str:
        """A name that nothing else has."""
        return f"{stem}_{next(self._numbers)}"

    def as_body(self, name: str) -> Any:
        """This graph as an attribute of a node of the one around it."""
        return helper.make_graph(self._nodes, name, self._inputs, self._outputs)

    def model(self, name: str) -> bytes:
        """The graph as an ONNX file's content, checked by ONNX's own rules.

        Raises:
            InputError: It has more weights than such a file can hold.
        """
        tensors = list(self._tensors.values())
        size = sum(len(tensor.raw_data) for tensor in tensors)
        if size > _LARGEST:
            raise InputError(
                f"{name}: got weights of {size / 2**30:.2f} GiB; expected less than 2, all that ONNX files hold"
            )
        graph = helper.make_graph(self._nodes, name, self._inputs, self._outputs, tensors)
        operators = [helper.make_opsetid("", _OPERATORS)]
        model = helper.make_model(graph, opset_imports=operators, ir_version=_FORMAT, producer_name="dikkat")
        onnx.checker.check_model(model, full_check=True)
        content: bytes = model.SerializeToString()
        return content

    # --- what several graphs need

    def sizes(self, value: str, *axes: int) -> str:
        """A vector of some of a value's sizes."""
        return self("Gather", self("Shape", value), self.whole(axes))

    def with_axis(self, value: str, axis: int) -> str:
        """A value with an axis of size 1 more."""
        return self("Unsqueeze", value, self.whole([axis]))

    def without_axis(self, value: str, axis: int) -> str:
        """A value without an axis of size 1."""
        return self("Squeeze", value, self.whole([axis]))

    def stacked(self, values: list[str], axis: int) -> str:
        """Values side by side along a new axis."""
        return self("Concat", *(self.with_axis(value, axis) for value in values), axis=axis)

    def within(self, lengths: str, like: str, axis: int) -> str:
        """(B, S) flags: the positions, as many as a value has along an axis, that are within each of B lengths."""
        size = self.without_axis(self.sizes(like, axis), 0)
        positions = self("Range", self.whole(0), size, self.whole(1))
        return self("Less", self.with_axis(positions, 0), self.with_axis(lengths, 1))

    def transposed(self, matrix: Tensor) -> str:
        """A weight's transpose, of which runtimes make a weight when they load the graph."""
        return self("Transpose", self.weight(matrix), perm=[1, 0])

    def affine(self, value: str, weight: Tensor, bias: Tensor | None) -> str:
        """W x + b of the last axis."""
        identity = weight.shape[0] == weight.shape[1] and torch.equal(weight, torch.eye(len(weight)))
        product = value if identity else self("MatMul", value, self.transposed(weight))
        return product if bias is None else self("Add", product, self.weight(bias))
