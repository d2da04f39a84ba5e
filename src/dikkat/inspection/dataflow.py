"""Follows tensors while a model runs: the sequence that a tensor belongs to, and the attention weights among them."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from dikkat._core.problem import Problem
from dikkat._engine.pytorch_state import is_transformed

# Functions by name, without underscores: "softmax" is `x.softmax`, `F.softmax` and `torch.ops.aten._softmax`.
_SOFTMAX = {"softmax", "safe_softmax", "special_softmax"}
_EXPONENTIAL = {"exp", "exp2", "gumbel_softmax", "softmin"}  # may be, or become, a softmax: the numbers show it
_PRODUCT = {"matmul", "bmm", "mm", "mv", "dot", "einsum", "linear"}
_MATRIX = {*_PRODUCT, "addmm", "baddbmm", "rmatmul", "inner", "tensordot"}
_CONCATENATE = {"cat", "concat", "index_copy", "copy", "setitem"}
_CAST_OR_DROPOUT = {
    "bfloat16", "clone", "contiguous", "cpu", "cuda", "detach", "double", "dropout", "float", "half", "to", "type",
    "type_as",
}  # fmt: skip
_SHAPED_LIKE = {"empty_like", "full_like", "ones_like", "rand_like", "randn_like", "zeros_like"}
_MULTIPLY = {"mul", "multiply"}
_DIVIDE = {"div", "divide", "idiv", "itruediv", "true_divide", "truediv"}
_RESCALE = {  # weights remain weights
    *_MULTIPLY, *_DIVIDE, "add", "clamp", "clamp_min", "masked_fill", "nan_to_num", "normalize", "setitem", "where",
}  # fmt: skip
_REARRANGE = {
    "broadcast_to", "chunk", "expand", "expand_as", "flatten", "flip", "getitem", "index_select", "movedim", "narrow",
    "permute", "repeat", "repeat_interleave", "reshape", "roll", "select", "split", "squeeze", "swapaxes", "t", "tile",
    "transpose", "unbind", "unflatten", "unsqueeze", "view",
}  # fmt: skip
_ELLIPSIS = "UVWXYZ"  # the letters of an ellipsis in an einsum, of which it has the last ones
_PROPERTIES: tuple[Any, ...] = (Tensor.mT, Tensor.T)
_TRANSPOSE = [attribute.__get__ for attribute in _PROPERTIES]


class Origin(NamedTuple):
    """The origin of a tensor.

    Attributes:
        sequence: The number of its sequence. Each input is a new sequence, and so is the output of self-attention.
        attended: Whether the sequence is an output of self-attention.
        places: The number of the position that each element belongs to, of the tensor's shape; None if unknown.
        keys: If the tensor has attention weights, the number of the key of each weight, of the tensor's shape.
        weights: These weights before dropout, if the tensor itself is something else.
        altered: Whether the tensor was computed from weights in a way that is not followed.
        features: Whether its last dimension has the features that a matrix of the model makes; of weights, whether the
            softmax is over such features.
        pools: Whether these are the queries of an attention pool, which are no positions of the keys' sequence.
        exponential: "terms" if the tensor has exponentials, which may be divided by their sum; "sums" for sums of them.
    """

    sequence: int
    attended: bool = False
    places: Tensor | None = None
    keys: Tensor | None = None
    weights: Tensor | None = None
    altered: bool = False
    features: bool = False
    pools: bool = False
    exponential: str = ""

    @property
    def rows(self) -> Tensor | None:
        """The positions of the queries, (B, n), from the places of queries or weights (B, H, n, ...)."""
        if self.places is None:
            return None
        rows = self.places[..., 0]
        return rows if rows.ndim < 3 else rows.select(-2, 0)


# The origins of queries, keys and output.
Streams = tuple[Origin, Origin, Origin]


class Dataflow(TorchFunctionMode):
    """Finds the attention of a model: fused functions, and softmaxes whose result multiplies values."""

    # Whether weights are those before dropout. If not, they are part of the graph of the result.
    before_dropout = True

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._origins: Any = WeakIdKeyDictionary()
        # Parameters, buffers and literals, which depend on no input.
        self._constants: Any = WeakIdKeyDictionary(dict.fromkeys([*model.parameters(), *model.buffers()]))
        self._weighted: Any = WeakIdKeyDictionary()  # products, element by element: their weights and values
        self._numbers = itertools.count(1)
        self._output: Origin | None = None  # of the last call of dikkat's
        self._rows: dict[int, Tensor | None] = {}  # the positions of each output of self-attention

    def call_fused(self, function: Any, arguments: Any, named: Any, streams: Streams) -> Any:
        """Call one of PyTorch's attention functions."""
        raise NotImplementedError

    def saw_weights(self, weights: Tensor, arranged: Callable[[Tensor], Tensor], streams: Streams) -> None:
        """Take note of weights that multiply values, and how they are arranged to (..., n, m)."""
        raise NotImplementedError

    def lose_weights(self) -> None:
        """Take note of weights that multiply values in a way that is not followed."""
        raise NotImplementedError

    def softmax(self, name: str, logits: Tensor, function: Callable[[Tensor], Any]) -> tuple[Any, Tensor | None]:
        """Call a softmax or exponential. Returns its result, and the weights to record if these are not the result."""
        return function(logits), None

    def origin(self, tensor: Tensor) -> Origin:
        """The origin of a tensor, which is an input if nothing else is known."""
        if tensor not in self._origins:
            self._origins[tensor] = Origin(next(self._numbers))
        found: Origin = self._origins[tensor]
        return found

    def placed(self, tensor: Tensor, heads: bool = False) -> Origin:
        """The origin of a tensor (..., n, d), with places; with `heads`, dimension 1 of four has the heads."""
        origin = self.origin(tensor)
        if origin.places is None:
            lead = [
                1 if heads and tensor.ndim == 4 and dim == 1 else size for dim, size in enumerate(tensor.shape[:-1])
            ]
            places = torch.arange(torch.Size(lead).numel(), device=tensor.device).view(*lead, 1).expand(tensor.shape)
            origin = self._origins[tensor] = origin._replace(places=places)
        return origin

    def streams(self, query: Tensor, key: Tensor, heads: bool = True) -> Streams:
        """The origins of queries (..., n, d), keys and output."""
        asked = self.placed(query, heads), self.origin(key)
        return *asked, self.output_of(*asked)

    def streams_of(self, problem: Problem) -> Streams:
        """The origins of queries, keys and output of a call of dikkat's, whose output is observed next."""
        streams = self.streams(problem.query, problem.key)
        self._output = streams[2]
        return streams

    def observe_output(self, output: Tensor) -> None:
        """Take note of the output of the last call of dikkat's."""
        if self._output is not None:
            self.follow(output, self._output)

    def reads(self, streams: Streams) -> int:
        """The number of the sequence that self-attention continues; −1 if it has other windows of it."""
        query, _, output = streams
        before, rows = self._rows.get(query.sequence), query.rows
        self._rows[output.sequence] = rows
        continues = before is None or (rows is not None and torch.equal(before.to(rows.device), rows))
        return query.sequence if continues else -1

    def output_of(self, query: Origin, key: Origin) -> Origin:
        """The origin of an output of attention: a new sequence after self-attention, else that of the queries."""
        is_self = query.sequence == key.sequence
        number = next(self._numbers) if is_self else query.sequence
        return Origin(number, is_self or query.attended, query.places)

    def follow(self, output: Tensor, origin: Origin) -> None:
        """Take note of the origin of an output of attention."""
        self._origins[output] = origin._replace(places=_spread(origin.places, output))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function and follow its tensors."""
        named, weights = kwargs or {}, None
        full_name = getattr(func, "__name__", "").partition(".")[0]
        name, in_place = full_name.strip("_"), full_name.endswith("_")
        if func is F.multi_head_attention_forward or name == "scaled_dot_product_attention":
            query, key = [*args, *(named[name] for name in ("query", "key") if name in named)][:2]
            streams = self.streams(query, key, func is not F.multi_head_attention_forward)
            result = self.call_fused(func, args, named, streams)
            self.follow(result[0] if isinstance(result, tuple) else result, streams[2])
            return result
        transformed = is_transformed()
        if name in _SOFTMAX | _EXPONENTIAL and not in_place and not transformed:
            logits = next(_tensors((*args, *named.values())))
            result, weights = self.softmax(
                name, logits, lambda new: func(*_exchanged(args, logits, new), **_exchanged(named, logits, new))
            )
        else:
            if name == "dropout" and (named.get("inplace") or args[3:4] == (True,)):
                weights = args[0].detach().clone()
            result = func(*args, **named)
        if not transformed:
            self._follow(func, name, args, named, args[0] if name == "setitem" else result, weights)
        else:
            self._follow_transformed(name, [*_tensors((*args, *named.values()))], result)
        return result

    def _follow_transformed(self, name: str, tensors: list[Tensor], result: Any) -> None:
        """Within a transform of torch.func, weights are lost in a product with anything but the model's constants."""
        inputs = [*map(_untransformed, tensors)]
        held = [self._has_weights(each) for each in inputs]
        if not any(held) and name not in _SOFTMAX:
            return
        sizes = {each.shape for each, holds in zip(tensors, held, strict=True) if holds}
        multiplies = name in _MATRIX or (name in _MULTIPLY and sizes != {result.shape})
        if multiplies and not all(holds or each in self._constants for each, holds in zip(inputs, held, strict=True)):
            self.lose_weights()
        elif not multiplies:
            for output in map(_untransformed, _tensors((result,))):
                self._origins[output] = Origin(next(self._numbers), altered=True)

    def _follow(self, func: Any, name: str, args: Any, named: Any, result: Any, weights: Tensor | None) -> None:
        inputs = [*_tensors((*args, *named.values()))]
        tensors = [each for each in inputs if each.is_floating_point()]
        outputs = [each for each in _tensors((result,)) if each.is_floating_point()]
        moves = (name in _REARRANGE or func in _TRANSPOSE) and _moves_elements(name, args, result)
        constant = all(each in self._constants for each in (inputs[:1] if name in _CAST_OR_DROPOUT else inputs))
        for output in _tensors((result,)):
            if constant and (not inputs or moves or name in _CAST_OR_DROPOUT):
                self._constants[output] = True
            elif output in self._constants and not constant:  # numbers were written into it
                del self._constants[output]
        if not tensors or not outputs:
            return
        main = tensors[1 if name in ("addmm", "baddbmm") and len(tensors) > 1 else 0]
        holders = [each for each in tensors if self._has_weights(each) and name not in _SHAPED_LIKE]
        holder = min(holders, key=lambda each: self._origins[each].altered, default=None)
        if name == "embedding":
            self._origins.pop(result, None)
            self.placed(result)
        elif (holder is not None and name in _MATRIX and self._multiplies(name, args, tensors, holder, result)) or (
            name == "sum" and main in self._weighted and self._sums(args, named, main, result)
        ):
            pass  # the output of attention
        elif name in _CONCATENATE and holder is None:  # a cache that is empty yet is no sequence of its own
            known = [self._origins[each] for each in tensors if each in self._origins]
            latest = max(known, key=_number) if known else self.origin(main)
            self._origins[result] = Origin(latest.sequence, latest.attended, _spread(latest.places, result))
        elif moves and main is args[0]:
            self._rearrange(Tensor.reshape if name == "view" else func, name, args, named, main, outputs)
        else:
            by_model = name in _MATRIX and any(each in self._constants for each in tensors[1:])
            placing = by_model or name in ("linear", "layer_norm", "rms_norm")
            origin = self.placed(main) if placing else self.origin(main)
            weighted = None if holder is None else self._origins[holder]
            exponentials = [self._origins[each].exponential for each in tensors if each in self._origins]
            exponential = _exponential(name, exponentials)
            for output in outputs:
                merged = self._merged(name, main, origin, tensors, output)
                features = by_model or (origin.features and output.shape == main.shape)
                self._origins[output] = merged._replace(features=features, exponential=exponential)
            if name in _DIVIDE and exponentials == ["sums", "sums"]:  # a softmax that is divided last
                self.lose_weights()
            dim = _dim(args, named) if name in _SOFTMAX else None
            if exponential == "terms" and (name in _EXPONENTIAL or holder is None):
                dim = _dim_of_shares(result)
            if dim is not None and (result.ndim > 1 or main not in self._constants):
                shape = [-1 if k == dim % result.ndim else 1 for k in range(result.ndim)]
                keys = torch.arange(result.shape[dim], device=result.device).view(shape).expand(result.shape)
                features = origin.features and dim % result.ndim == result.ndim - 1
                self._origins[result] = self._origins[result]._replace(keys=keys, weights=weights, features=features)
            elif holder is not None and weighted is not None and isinstance(result, Tensor):
                if weighted.weights is None and weights is not None:
                    weighted = weighted._replace(weights=weights)
                self._follow_weights(func, name, args, named, holder, weighted, result)

    def _has_weights(self, tensor: Tensor) -> bool:
        origin = self._origins.get(tensor)
        return origin is not None and (origin.keys is not None or origin.altered)

    def _merged(self, name: str, main: Tensor, origin: Origin, tensors: list[Tensor], output: Tensor) -> Origin:
        """The origin of what is made of several tensors: the latest attention among those of its shape."""
        alike = [] if name in _MATRIX else [self._origins[each] for each in tensors
                                            if each in self._origins and each.shape == output.shape]  # fmt: skip
        latest = max(alike or [origin], key=lambda each: (each.attended and each.sequence, each.places is not None))
        placed = min((each for each in alike or [origin] if each.places is not None), key=_number, default=origin)
        return Origin(latest.sequence, latest.attended, _spread(placed.places, output))

    def _rearrange(self, func: Any, name: str, args: Any, named: Any, main: Tensor, outputs: list[Tensor]) -> None:
        """Move the places, keys and weights of a tensor as the function moves its elements."""
        origin, moved = self.origin(main), dict[str, list[Tensor]]()
        for field in ("places", "keys", "weights"):
            if (tensor := getattr(origin, field)) is not None:
                result = func(*_exchanged(args, main, tensor), **named)
                moved[field] = [result] if isinstance(result, Tensor) else list(result)
        for number, output in enumerate(outputs):
            last = name in ("view", "reshape") and output.shape[-1:] == main.shape[-1:]
            features = origin.features and (last or origin.keys is not None)
            fields = {field: each[number] for field, each in moved.items()}
            self._origins[output] = Origin(
                origin.sequence, origin.attended, **fields, altered=origin.altered, features=features,
                pools=origin.pools, exponential=origin.exponential,
            )  # fmt: skip

    def _follow_weights(
        self, func: Any, name: str, args: Any, named: Any, holder: Tensor, origin: Origin, result: Tensor
    ) -> None:
        """Weights that are cast, dropped or scaled are still weights."""
        keys, weights = origin.keys, origin.weights
        alike = result.ndim == holder.ndim and result.shape[-2:] == holder.shape[-2:]
        if keys is None or not alike or name not in _RESCALE | _CAST_OR_DROPOUT | _MATRIX:
            values = [each for each in _tensors(args) if each is not holder]
            if keys is not None and name in _MULTIPLY and values and values[0].ndim == holder.ndim == result.ndim:
                self._weighted[result] = holder, values[0]
            elif name not in _MATRIX and (result.numel() <= holder.numel() or name in _CONCATENATE):
                self._origins[result] = self._origins[result]._replace(altered=True)
            return
        if name in _MATRIX:  # a product over another dimension, such as that of heads
            weights = None
        elif name in _CAST_OR_DROPOUT:
            weights = holder if weights is None and result is not holder and self.before_dropout else weights
        elif weights is not None:
            before = weights.clone() if result is holder else weights
            after = func(*_exchanged(args, holder, before), **_exchanged(named, holder, before))
            weights = before if after is None else after
        keys = keys.to(result.device).expand(result.shape)
        self._origins[result] = self._origins[result]._replace(keys=keys, weights=weights, features=origin.features)

    def _multiplies(self, name: str, args: Any, tensors: list[Tensor], holder: Tensor, result: Tensor) -> bool:
        """Whether a product sums over the keys of weights. Report weights of values, and ignore a classifier's."""
        origin, others = self.origin(holder), [each for each in tensors if each is not holder]
        index = next(k for k, each in enumerate(tensors) if each is holder)
        dims = [*range(-1 if holder.ndim == 1 else 0, holder.ndim)]
        order: list[int] | None = dims if index == 0 or holder.ndim == 1 else [*dims[:-2], dims[-1], dims[-2]]
        summed = -1 if index or name == "linear" or tensors[-1].ndim == 1 else -2
        if name == "einsum":
            order = None
            if len(tensors) == 2:
                order, summed = _order_of(args[0], [each.ndim for each in tensors], index)
        if origin.keys is None or name not in _PRODUCT or not others:
            order = None
        if origin.keys is not None and order is not None:
            keys = _permuted(origin.keys, order)
            row = keys[(0,) * (keys.ndim - 1)] if keys.numel() else keys
            if not keys.numel() or (len(row) > 1 and row[0] == row[-1]):  # the product sums over another dimension
                return False
        by_model = all(each in self._constants for each in others)
        self._origins[result] = Origin(origin.sequence, origin.attended, _spread(origin.places, result))
        if order is None and not by_model:
            self.lose_weights()
        elif order is not None and not (by_model and name == "linear") and not self._is_gate(origin, others[0], summed):
            self._tell(holder, order, others[0], result)
        return True

    def _is_gate(self, weights: Origin, values: Tensor, dim: int) -> bool:
        """Whether a softmax over features weighs what is no sequence: classes, or the results of several experts."""
        places = self.origin(values).places
        if not weights.features or values in self._constants:
            return weights.features
        return places is None or not places.numel() or bool((places.select(dim, 0) == places.select(dim, -1)).all())

    def _sums(self, args: Any, named: Any, main: Tensor, result: Tensor) -> bool:
        """Whether a sum over products, element by element, is one over the keys of weights, which are then told."""
        (weights, values), dim = self._weighted[main], _dim(args, named)
        if dim is None or weights.shape[dim] != main.shape[dim] or values.shape[dim] != main.shape[dim]:
            return False
        dim %= main.ndim
        if self._is_gate(self.origin(weights), values, dim):
            return False
        lead = [k for k in range(main.ndim) if k != dim and weights.shape[k] == main.shape[k]]
        asks = bool(lead) and values.shape[lead[-1]] == 1
        self._tell(weights, [*lead, *([] if asks else [-1]), dim], values, result)
        return True

    def _tell(self, holder: Tensor, order: list[int], values: Tensor, result: Tensor) -> None:
        """Tell of weights, of which `order` has the dimensions (..., n, m), and follow what they made of the values."""
        origin, key = self.origin(holder), self.origin(values)
        places = None if origin.places is None else _permuted(origin.places, order)
        # The weights of a pool are computed at each key.
        of_keys = places is not None and places.shape[-2] != places.shape[-1]
        if of_keys and places is not None:
            of_keys = bool((places[..., 0] != places[..., -1]).any())
        output, pools = self.output_of(origin._replace(places=places), key), -1 in order or of_keys
        heads = 0 if places is None else _joined_heads(places)
        if places is not None and heads:
            places = places.unflatten(0, (-1, heads))

        def arranged(tensor: Tensor) -> Tensor:
            tensor = _permuted(tensor, order)
            return tensor.unflatten(0, (-1, heads)) if heads else tensor

        weights = holder if origin.weights is None else origin.weights
        self.saw_weights(weights, arranged, (origin._replace(places=places, pools=pools), key, output))
        self.follow(result, output)


def _moves_elements(name: str, args: Any, result: Any) -> bool:
    """Whether a call that moves elements can be repeated with other tensors in the place of its first argument."""
    if not args or not isinstance(args[0], Tensor) or any(isinstance(each, torch.dtype) for each in args):
        return False
    return name != "view" or result.shape != args[0].shape


def _untransformed(tensor: Tensor) -> Tensor:
    """The tensor that a transform of torch.func wraps, however often."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def _exchanged(arguments: Any, old: Tensor, new: Tensor) -> Any:
    """The arguments of a call, by position or by name, with a tensor in the place of another."""
    if isinstance(arguments, dict):
        return {name: new if each is old else each for name, each in arguments.items()}
    return [new if each is old else each for each in arguments]


def _joined_heads(places: Tensor) -> int:
    """The number of heads of weights (B · H, n, m), whose heads have the positions of one element; 0 for others."""
    if places.ndim != 3:
        return 0
    rows = places[..., 0]
    heads = int((rows == rows[0]).all(-1).long().cumprod(0).sum())
    return heads if heads > 1 and len(rows) % heads == 0 else 0


def _exponential(name: str, inputs: list[str]) -> str:
    """Return the `exponential` of an output, from those of the inputs of a function."""
    if name in _EXPONENTIAL:
        return "terms"
    if name in _MATRIX or name == "sum":
        return "sums" if any(inputs) else ""
    return next(filter(None, inputs), "") if name in _RESCALE | _CAST_OR_DROPOUT else ""


def _dim_of_shares(tensor: Tensor) -> int | None:
    """Return the last dimension along which all numbers are shares of 1, or 0 without keys; None if there is none."""
    numbers = tensor.detach().nan_to_num(0.0).float()
    if not numbers.numel() or bool((numbers < 0).any()):
        return None
    tolerance = max(1e-4, 2 * torch.finfo(tensor.dtype).eps)
    for dim in reversed(range(tensor.ndim)):
        sums = numbers.sum(dim)
        if bool((((sums - 1).abs() < tolerance) | (sums == 0)).all()) and bool(sums.any()):
            return dim
    return None


def _dim(args: Any, named: Any) -> int | None:
    """Return the dimension that a softmax or a sum is over; None for none or several."""
    dim = named.get("dim", named.get("axis", args[1] if len(args) > 1 else None))
    dim = dim[0] if isinstance(dim, tuple | list) and len(dim) == 1 else dim
    return dim if isinstance(dim, int) else None


def _number(origin: Origin) -> int:
    return origin.sequence


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


def _spread(places: Tensor | None, tensor: Tensor) -> Tensor | None:
    """The places of a tensor with the same rows."""
    if places is None or places.shape == tensor.shape:
        return None if places is None else places.to(tensor.device)
    alike = 0 < tensor.ndim == places.ndim and places.shape[:-1] == tensor.shape[:-1] and places.shape[-1] > 0
    return places[..., :1].to(tensor.device).expand(tensor.shape) if alike else None


def _order_of(equation: object, ndims: list[int], index: int) -> tuple[list[int] | None, int]:
    """The order of dimensions that brings weights in an einsum to (..., n, m), and the dimension of the values' keys.

    The order has −1 for a query that is not there; it is None for an einsum that is not followed.
    """
    if not isinstance(equation, str) or "->" not in equation:
        return None, 0
    inputs, output = equation.replace(" ", "").split("->")
    terms = [
        term.replace("...", _ELLIPSIS[len(_ELLIPSIS) - 3 + len(term) - ndim :])
        for term, ndim in zip(inputs.split(","), ndims, strict=True)
    ]
    weights, values = terms[index], terms[1 - index]
    output = output.replace("...", _ELLIPSIS)
    summed = [letter for letter in weights if letter in values and letter not in output]
    queries = [letter for letter in weights if letter not in values and letter in output]
    shared = [letter for letter in weights if letter in values and letter in output]
    if len(summed) != 1 or len(queries) + len(shared) + 1 != len(weights):
        return None, 0
    order = [weights.index(letter) for letter in [*shared, *queries]] + [-1] * (not queries)
    return [*order, weights.index(summed[0])], values.index(summed[0])


def _permuted(tensor: Tensor, order: list[int]) -> Tensor:
    """The dimensions of a tensor in order, with a new one for −1 and without those (of size 1) that are not in it."""
    dropped = [dim for dim in range(tensor.ndim) if dim not in order]
    moved = tensor.permute([*dropped, *(dim for dim in order if dim >= 0)])[(0,) * len(dropped)]
    return moved.unsqueeze(-2) if -1 in order else moved
