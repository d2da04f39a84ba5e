"""`DTensor`s: tensors that say by themselves how they lie on the ranks."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor


class Placed(TypedDict):
    """The options that follow from where `DTensor`s lie."""

    method: Literal["ring", "reduce"]
    group: Any


def is_sharded(tensor: object) -> bool:
    """Whether this is a `DTensor`, without importing what it comes from for those who have none."""
    return isinstance(tensor, Tensor) and hasattr(tensor, "device_mesh")


def to_local(
    query: Any, key: Any, value: Any, options: Mapping[str, Any]
) -> tuple[Tensor, Tensor, Tensor, Placed, Callable[[Tensor], Tensor]]:
    """This rank's parts, the options that follow from where they lie, and what makes the output a `DTensor` again.

    Raises:
        TypeError: Some are `DTensor`s, and some are not.
        ValueError: They lie on meshes, or along dimensions, other than those that are expected.
    """
    from torch.distributed.tensor import DTensor, Replicate, Shard

    named = {"query": query, "key": key, "value": value}
    mesh = next(tensor for tensor in named.values() if is_sharded(tensor)).device_mesh
    if mesh.ndim != 1:
        raise ValueError(f"query, key, value: got a mesh of {mesh.ndim} dimensions; expected one of 1, a slice of it")
    for name, tensor in named.items():
        if not isinstance(tensor, DTensor):
            raise TypeError(f"{name}: got a plain tensor beside DTensors; expected query, key and value alike")
        if tensor.device_mesh != mesh:
            raise ValueError(f"{name}: got a DTensor on another mesh; expected query, key and value on one")
        along = Shard(tensor.ndim - 2)
        allowed = [along, Replicate()] if name == "query" else [along]
        if tensor.placements[0] not in allowed:
            raise ValueError(
                f"{name}: got placement {tensor.placements[0]}; expected {' or '.join(map(str, allowed))}, along the "
                "sequence"
            )
    replicated = query.placements[0] == Replicate()
    method: Literal["ring", "reduce"] = "reduce" if replicated else "ring"
    if options["method"] not in ("auto", method):
        came = f"{options['method']!r} and a query that is {query.placements[0]}"
        raise ValueError(f"method: got {came}; expected {method!r}")
    if options["order"] != "contiguous":
        raise ValueError(f"order: got {options['order']!r}; expected 'contiguous', in which DTensors lie")
    group = mesh.get_group()
    if options["group"] not in (None, group):
        raise ValueError("group: got another group than that of the DTensors' mesh; expected None, or that one")

    def whole(output: Tensor) -> Tensor:
        shape = torch.Size((*output.shape[:-2], query.shape[-2], output.shape[-1]))
        strides = torch.empty(shape, device="meta").stride()
        made: Tensor = DTensor.from_local(
            output.contiguous(), mesh, query.placements, run_check=False, shape=shape, stride=strides
        )
        return made

    placed: Placed = {"method": method, "group": group}
    return query.to_local(), key.to_local(), value.to_local(), placed, whole
