"""Follows tensors while a model runs, to find their sequences and the attention weights among them."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from dikkat._engine.pytorch_state import is_transformed

# Names of functions without underscores: "softmax" is `x.softmax`, `F.softmax` and `torch.ops.aten._softmax`.
_SOFTMAX = {"softmax", "safe_softmax", "special_softmax"}
_EXPONENTIAL = {"exp", "exp2", "gumbel_softmax", "softmin"}  # may become a softmax, which their values show
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
_ELLIPSIS = "UVWXYZ"  # letters for the dimensions of an ellipsis in an einsum
_PROPERTIES: tuple[Any, ...] = (Tensor.mT, Tensor.T)
_TRANSPOSE = [attribute.__get__ for attribute in _PROPERTIES]


class Origin(NamedTuple):
    """The origin of a tensor.

    Attributes:
        sequence: The number of its sequence. Each input and each output of self-attention is a new sequence.
        attended: Whether the sequence is an output of self-attention.
        positions: The position of each element, in the tensor's shape; None if unknown.
        keys: If the tensor has attention weights, the key of each weight, in the tensor's shape.
        weights: The weights before dropout, if the tensor has weights after dropout.
        logits: The softmax's arguments, if the tensor has its results and `keeps_logits` is set.
        altered: Whether dikkat does not follow how the tensor was computed from weights.
        features: Whether the last dimension has the features that a matrix of the model returns. For weights, whether
            the softmax is over features.
        pools: Whether the queries belong to an attention pool, so that they are no positions of the keys' sequence.
        exponential: "terms" if the tensor has exponentials, which may be divided by their sum; "sums" for sums of them.
    """

    sequence: int
    attended: bool = False
    positions: Tensor | None = None
    keys: Tensor | None = None
    weights: Tensor | None = None
    logits: Tensor | None = None
    altered: bool = False
    features: bool = False
    pools: bool = False
    exponential: str = ""

    @property
    def query_positions(self) -> Tensor | None:
        """The positions (B, n) of the queries, from `positions` (B, n, ...), or (B, H, n, ...) of the first head."""
        if self.positions is None:
            return None
        rows = self.positions[..., 0]
        return rows if rows.ndim < 3 else rows.select(-2, 0)


# The origins of queries, keys and outputs.
Streams = tuple[Origin, Origin, Origin]


class Dataflow(TorchFunctionMode):
    """Finds the attention of a model: fused functions, and softmaxes whose result multiplies values."""

    # Whether to report weights before dropout. If not, the weights belong to the autograd graph of the result.
    before_dropout = True
    # Whether to keep the arguments of each softmax.
    keeps_logits = False

    def __init__(self) -> None:
        super().__init__()
        self._origins: Any = WeakIdKeyDictionary()
        self._constants: Any = WeakIdKeyDictionary()  # parameters, buffers and literals, which depend on no input
        self._products: Any = WeakIdKeyDictionary()  # elementwise products, with their weights and values
        self._sequence_numbers = itertools.count(1)
        self._query_positions: dict[int, Tensor | None] = {}  # by the sequence of an output of self-attention

    def add_constants(self, model: nn.Module) -> None:
        """Register a model's parameters and buffers."""
        for tensor in (*model.parameters(), *model.buffers()):
            self._constants[tensor] = True

    def call_fused(self, function: Any, arguments: Any, keywords: Any, streams: Streams) -> Any:
        """Call one of PyTorch's attention functions."""
        raise NotImplementedError

    def saw_weights(
        self, weights: Tensor, logits: Tensor | None, arrange: Callable[[Tensor], Tensor], streams: Streams
    ) -> Tensor | None:
        """Handle weights that multiply values; return edited weights (..., n, m), or None to keep them.

        `arrange` brings tensors of their shape, such as `logits`, to (..., n, m).
        """
        raise NotImplementedError

    def lose_weights(self) -> None:
        """Handle weights that multiply values in an unsupported way."""
        raise NotImplementedError

    def softmax(self, name: str, logits: Tensor, function: Callable[[Tensor], Any]) -> tuple[Any, Tensor | None]:
        """Call a softmax or exponential. Return its result, and the weights to record if they differ from it."""
        return function(logits), None

    def origin(self, tensor: Tensor) -> Origin:
        """Return the origin of a tensor. An unknown tensor is an input."""
        if tensor not in self._origins:
            self._origins[tensor] = Origin(next(self._sequence_numbers))
        origin: Origin = self._origins[tensor]
        return origin

    def with_positions(self, tensor: Tensor, heads: bool = False) -> Origin:
        """Return the origin of a tensor (..., n, d) with positions. With `heads`, dimension 1 of 4 has the heads."""
        origin = self.origin(tensor)
        if origin.positions is None:
            lead = [
                1 if heads and tensor.ndim == 4 and dim == 1 else size for dim, size in enumerate(tensor.shape[:-1])
            ]
            positions = torch.arange(torch.Size(lead).numel(), device=tensor.device).view(*lead, 1).expand(tensor.shape)
            origin = self._origins[tensor] = origin._replace(positions=positions)
        return origin

    def streams(self, query: Tensor, key: Tensor, heads: bool = True) -> Streams:
        """Return the origins of queries (..., n, d), keys and outputs."""
        origins = self.with_positions(query, heads), self.origin(key)
        return *origins, self.output_origin(*origins)

    def continued_sequence(self, streams: Streams) -> int:
        """Return the number of the sequence that self-attention reads, or −1 if its positions are in another order.

        Their order is compared with the queries of the self-attention that computed the sequence, if any.
        """
        query, _, output = streams
        previous, current = self._query_positions.get(query.sequence), query.query_positions
        self._query_positions[output.sequence] = current
        continues = previous is None or (current is not None and torch.equal(previous.to(current.device), current))
        return query.sequence if continues else -1

    def output_origin(self, query: Origin, key: Origin) -> Origin:
        """Return the origin of attention's output: a new sequence for self-attention, else the queries' origin."""
        is_self = query.sequence == key.sequence
        number = next(self._sequence_numbers) if is_self else query.sequence
        return Origin(number, is_self or query.attended, query.positions)

    def follow(self, output: Tensor, origin: Origin) -> None:
        """Record the origin of an output of attention."""
        self._origins[output] = origin._replace(positions=_spread(origin.positions, output))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords, weights = kwargs or {}, None
        full_name = getattr(func, "__name__", "").partition(".")[0]
        name, in_place = full_name.strip("_"), full_name.endswith("_")
        if func is F.multi_head_attention_forward or name == "scaled_dot_product_attention":
            query, key = [*args, *(keywords[name] for name in ("query", "key") if name in keywords)][:2]
            streams = self.streams(query, key, func is not F.multi_head_attention_forward)
            result = self.call_fused(func, args, keywords, streams)
            self.follow(result[0] if isinstance(result, tuple) else result, streams[2])
            return result
        transformed, logits = is_transformed(), None
        if name in _SOFTMAX | _EXPONENTIAL and not in_place and not transformed:
            softmax_input = next(_tensors((*args, *keywords.values())))
            logits = softmax_input if self.keeps_logits and name in _SOFTMAX else None
            result, weights = self.softmax(
                name,
                softmax_input,
                lambda new: func(*_substitute(args, softmax_input, new), **_substitute(keywords, softmax_input, new)),
            )
        else:
            if name == "dropout" and (keywords.get("inplace") or args[3:4] == (True,)):
                weights = args[0].detach().clone()
            result = func(*args, **keywords)
        if transformed:
            self._follow_transformed(name, [*_tensors((*args, *keywords.values()))], result)
            return result
        followed = args[0] if name == "setitem" else result
        edited = self._follow(func, name, args, keywords, followed, weights, logits)
        return result if edited is None else edited

    def _follow_transformed(self, name: str, tensors: list[Tensor], result: Any) -> None:
        """Follow a call in a transform of torch.func, where only products with the model's constants keep weights."""
        inputs = [*map(_untransformed, tensors)]
        flags = [self._has_weights(tensor) for tensor in inputs]
        if not any(flags) and name not in _SOFTMAX:
            return
        weight_shapes = {tensor.shape for tensor, has in zip(tensors, flags, strict=True) if has}
        multiplies = name in _MATRIX or (name in _MULTIPLY and weight_shapes != {result.shape})
        if multiplies and not all(has or tensor in self._constants for tensor, has in zip(inputs, flags, strict=True)):
            self.lose_weights()
        elif not multiplies:
            for output in map(_untransformed, _tensors((result,))):
                self._origins[output] = Origin(next(self._sequence_numbers), altered=True)

    def _follow(
        self, func: Any, name: str, args: Any, keywords: Any, result: Any, weights: Tensor | None,
        logits: Tensor | None,
    ) -> Tensor | None:  # fmt: skip
        """Record the origins of a call's results; return the result with edited weights, or None to keep it."""
        inputs = [*_tensors((*args, *keywords.values()))]
        tensors = [tensor for tensor in inputs if tensor.is_floating_point()]
        outputs = [tensor for tensor in _tensors((result,)) if tensor.is_floating_point()]
        moves = (name in _REARRANGE or func in _TRANSPOSE) and _moves_elements(name, args, result)
        constant = all(tensor in self._constants for tensor in (inputs[:1] if name in _CAST_OR_DROPOUT else inputs))
        for output in _tensors((result,)):
            if constant and (not inputs or moves or name in _CAST_OR_DROPOUT):
                self._constants[output] = True
            elif output in self._constants and not constant:  # an in-place write
                del self._constants[output]
        if not tensors or not outputs:
            return None
        main = tensors[1 if name in ("addmm", "baddbmm") and len(tensors) > 1 else 0]
        holders = [tensor for tensor in tensors if self._has_weights(tensor) and name not in _SHAPED_LIKE]
        holder = min(holders, key=lambda tensor: self._origins[tensor].altered, default=None)
        if name == "embedding":
            self._origins.pop(result, None)
            self.with_positions(result)
        elif (
            holder is not None
            and name in _MATRIX
            and (product := self._follow_product(func, name, args, keywords, tensors, holder, result))
        ) or (
            name == "sum"
            and main in self._products
            and (product := self._follow_sum(func, args, keywords, main, result))
        ):
            return product.edited
        elif name in _CONCATENATE and holder is None:  # an empty cache is no new sequence
            known_origins = [self._origins[tensor] for tensor in tensors if tensor in self._origins]
            latest = max(known_origins, key=_sequence) if known_origins else self.origin(main)
            self._origins[result] = Origin(latest.sequence, latest.attended, _spread(latest.positions, result))
        elif moves and main is args[0]:
            self._rearrange(Tensor.reshape if name == "view" else func, name, args, keywords, main, outputs)
        else:
            by_model = name in _MATRIX and any(tensor in self._constants for tensor in tensors[1:])
            needs_positions = by_model or name in ("linear", "layer_norm", "rms_norm")
            origin = self.with_positions(main) if needs_positions else self.origin(main)
            holder_origin = None if holder is None else self._origins[holder]
            exponentials = [self._origins[tensor].exponential for tensor in tensors if tensor in self._origins]
            exponential = _exponential(name, exponentials)
            for output in outputs:
                merged = self._merge_origins(name, main, origin, tensors, output)
                features = by_model or (origin.features and output.shape == main.shape)
                self._origins[output] = merged._replace(features=features, exponential=exponential)
            if name in _DIVIDE and exponentials == ["sums", "sums"]:  # a softmax that divides after the product
                self.lose_weights()
            dim = _reduced_dim(args, keywords) if name in _SOFTMAX else None
            if exponential == "terms" and (name in _EXPONENTIAL or holder is None):
                dim = _normalised_dim(result)
            if dim is not None and (result.ndim > 1 or main not in self._constants):
                shape = [-1 if k == dim % result.ndim else 1 for k in range(result.ndim)]
                keys = torch.arange(result.shape[dim], device=result.device).view(shape).expand(result.shape)
                features = origin.features and dim % result.ndim == result.ndim - 1
                self._origins[result] = self._origins[result]._replace(
                    keys=keys, weights=weights, logits=logits, features=features
                )
            elif holder is not None and holder_origin is not None and isinstance(result, Tensor):
                if holder_origin.weights is None and weights is not None:
                    holder_origin = holder_origin._replace(weights=weights)
                self._follow_weights(func, name, args, keywords, holder, holder_origin, result)
        return None

    def _has_weights(self, tensor: Tensor) -> bool:
        origin = self._origins.get(tensor)
        return origin is not None and (origin.keys is not None or origin.altered)

    def _merge_origins(self, name: str, main: Tensor, origin: Origin, tensors: list[Tensor], output: Tensor) -> Origin:
        """Return the origin of an output of several tensors: the latest attention among inputs of its shape."""
        same_shape = (
            []
            if name in _MATRIX
            else [self._origins[t] for t in tensors if t in self._origins and t.shape == output.shape]
        )
        latest = max(same_shape or [origin], key=lambda o: (o.attended and o.sequence, o.positions is not None))
        positioned = min((o for o in same_shape or [origin] if o.positions is not None), key=_sequence, default=origin)
        return Origin(latest.sequence, latest.attended, _spread(positioned.positions, output))

    def _rearrange(self, func: Any, name: str, args: Any, keywords: Any, main: Tensor, outputs: list[Tensor]) -> None:
        """Move the positions, keys and weights of a tensor like its elements."""
        origin, moved = self.origin(main), dict[str, list[Tensor]]()
        for field in ("positions", "keys", "weights", "logits"):
            if (tensor := getattr(origin, field)) is not None:
                result = func(*_substitute(args, main, tensor), **keywords)
                moved[field] = [result] if isinstance(result, Tensor) else list(result)
        for number, output in enumerate(outputs):
            keeps_last = name in ("view", "reshape") and output.shape[-1:] == main.shape[-1:]
            features = origin.features and (keeps_last or origin.keys is not None)
            fields = {field: results[number] for field, results in moved.items()}
            self._origins[output] = Origin(
                origin.sequence, origin.attended, **fields, altered=origin.altered, features=features,
                pools=origin.pools, exponential=origin.exponential,
            )  # fmt: skip

    def _follow_weights(
        self, func: Any, name: str, args: Any, keywords: Any, holder: Tensor, origin: Origin, result: Tensor
    ) -> None:
        """Set the origin of a cast, dropped out or rescaled copy of weights, which are still weights."""
        keys, weights, logits = origin.keys, origin.weights, None
        keeps_shape = result.ndim == holder.ndim and result.shape[-2:] == holder.shape[-2:]
        if keys is None or not keeps_shape or name not in _RESCALE | _CAST_OR_DROPOUT | _MATRIX:
            values = [tensor for tensor in _tensors(args) if tensor is not holder]
            if keys is not None and name in _MULTIPLY and values and values[0].ndim == holder.ndim == result.ndim:
                self._products[result] = holder, values[0]
            elif name not in _MATRIX and (result.numel() <= holder.numel() or name in _CONCATENATE):
                self._origins[result] = self._origins[result]._replace(altered=True)
            return
        if name in _MATRIX:  # a product over another dimension, such as the heads
            weights = None
        elif name in _CAST_OR_DROPOUT:
            weights = holder if weights is None and result is not holder and self.before_dropout else weights
            logits = origin.logits
        elif weights is not None:
            before = weights.clone() if result is holder else weights
            after = func(*_substitute(args, holder, before), **_substitute(keywords, holder, before))
            weights = before if after is None else after
        keys = keys.to(result.device).expand(result.shape)
        self._origins[result] = self._origins[result]._replace(
            keys=keys, weights=weights, logits=logits, features=origin.features
        )

    def _follow_product(
        self, func: Any, name: str, args: Any, keywords: Any, tensors: list[Tensor], holder: Tensor, result: Tensor
    ) -> "_Pooled | None":
        """Report the weights of a product over their keys, unless they are a classifier's; None: another product."""
        origin, factors = self.origin(holder), [tensor for tensor in tensors if tensor is not holder]
        index = next(k for k, tensor in enumerate(tensors) if tensor is holder)
        dims = [*range(-1 if holder.ndim == 1 else 0, holder.ndim)]
        order: list[int] | None = dims if index == 0 or holder.ndim == 1 else [*dims[:-2], dims[-1], dims[-2]]
        dim = -1 if index or name == "linear" or tensors[-1].ndim == 1 else -2
        if name == "einsum":
            order = None
            if len(tensors) == 2:
                order, dim = _einsum_order(args[0], [tensor.ndim for tensor in tensors], index)
        if origin.keys is None or name not in _PRODUCT or not factors:
            order = None
        if origin.keys is not None and order is not None:
            keys = _permute(origin.keys, order)
            row = keys[(0,) * (keys.ndim - 1)] if keys.numel() else keys
            if not keys.numel() or (len(row) > 1 and row[0] == row[-1]):  # the product sums over another dimension
                return None
        by_model = all(tensor in self._constants for tensor in factors)
        self._origins[result] = Origin(origin.sequence, origin.attended, _spread(origin.positions, result))
        if order is None and not by_model:
            self.lose_weights()
        elif order is not None and not (by_model and name == "linear") and not self._is_gate(origin, factors[0], dim):
            return self._report_weights(
                holder, order, factors[0], result,
                lambda new: func(*_substitute(args, holder, new), **_substitute(keywords, holder, new)),
            )  # fmt: skip
        return _Pooled(None)

    def _is_gate(self, weights: Origin, values: Tensor, dim: int) -> bool:
        """Return whether a softmax over features weights classes or the results of experts, not a sequence."""
        numbers = self.origin(values).positions
        if not weights.features or values in self._constants:
            return weights.features
        return numbers is None or not numbers.numel() or bool((numbers.select(dim, 0) == numbers.select(dim, -1)).all())

    def _follow_sum(self, func: Any, args: Any, keywords: Any, main: Tensor, result: Tensor) -> "_Pooled | None":
        """Report the weights of a sum of elementwise products over their keys; None: another sum."""
        (weights, values), dim = self._products[main], _reduced_dim(args, keywords)
        if dim is None or weights.shape[dim] != main.shape[dim] or values.shape[dim] != main.shape[dim]:
            return None
        dim %= main.ndim
        if self._is_gate(self.origin(weights), values, dim):
            return None
        lead_dims = [k for k in range(main.ndim) if k != dim and weights.shape[k] == main.shape[k]]
        has_queries = bool(lead_dims) and values.shape[lead_dims[-1]] == 1
        return self._report_weights(
            weights, [*lead_dims, *([] if has_queries else [-1]), dim], values, result,
            lambda new: func(*_substitute(args, main, new * values), **keywords),
        )  # fmt: skip

    def _report_weights(
        self, holder: Tensor, order: list[int], values: Tensor, result: Tensor, pool: Callable[[Tensor], Tensor]
    ) -> "_Pooled":
        """Report weights, with `order` as their dimensions (..., n, m), and follow the output, by `pool` if edited."""
        origin, key = self.origin(holder), self.origin(values)
        positions = None if origin.positions is None else _permute(origin.positions, order)
        # A pool computes the weight of a key at the key's position.
        varies_by_key = positions is not None and positions.shape[-2] != positions.shape[-1]
        if varies_by_key and positions is not None:
            varies_by_key = bool((positions[..., 0] != positions[..., -1]).any())
        output, pools = self.output_origin(origin._replace(positions=positions), key), -1 in order or varies_by_key
        heads = 0 if positions is None else _count_joined_heads(positions)
        if positions is not None and heads:
            positions = positions.unflatten(0, (-1, heads))

        def arrange(tensor: Tensor) -> Tensor:
            tensor = _permute(tensor, order)
            return tensor.unflatten(0, (-1, heads)) if heads else tensor

        weights = holder if origin.weights is None else origin.weights
        streams = origin._replace(positions=positions, pools=pools), key, output
        edited = self.saw_weights(weights, origin.logits, arrange, streams)
        if edited is not None:
            with torch._C.DisableTorchFunction():
                new = _unpermute(edited.flatten(0, 1) if heads else edited, order, holder.ndim)
                if origin.weights is not None:  # dropout keeps its factors, and rows without an edit stay
                    before, after = weights.detach().to(holder.dtype), holder.detach()  # the factors of a cast are 1
                    factors = torch.where(before > 0, after / before, 1.0)
                    new = torch.where(new == weights, holder, new * factors)
                result = pool(new.to(holder.dtype))
        self.follow(result, output)
        return _Pooled(None if edited is None else result)


class _Pooled(NamedTuple):
    """An output of attention: the result with edited weights; None if the weights are not edited."""

    edited: Tensor | None


def _moves_elements(name: str, args: Any, result: Any) -> bool:
    """Return whether a call that moves elements can be repeated with another tensor as its first argument."""
    if not args or not isinstance(args[0], Tensor) or any(isinstance(argument, torch.dtype) for argument in args):
        return False
    return name != "view" or result.shape != args[0].shape


def _untransformed(tensor: Tensor) -> Tensor:
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def _substitute(arguments: Any, old: Tensor, new: Tensor) -> Any:
    if isinstance(arguments, dict):
        return {name: new if value is old else value for name, value in arguments.items()}
    return [new if value is old else value for value in arguments]


def _count_joined_heads(positions: Tensor) -> int:
    """Return H for weights (B · H, n, m), from equal positions of neighbouring elements; 0 for other weights."""
    if positions.ndim != 3:
        return 0
    query_positions = positions[..., 0]
    heads = int((query_positions == query_positions[0]).all(-1).long().cumprod(0).sum())
    return heads if heads > 1 and len(query_positions) % heads == 0 else 0


def _exponential(name: str, inputs: list[str]) -> str:
    """Return `Origin.exponential` of an output."""
    if name in _EXPONENTIAL:
        return "terms"
    if name in _MATRIX or name == "sum":
        return "sums" if any(inputs) else ""
    return next(filter(None, inputs), "") if name in _RESCALE | _CAST_OR_DROPOUT else ""


def _normalised_dim(tensor: Tensor) -> int | None:
    """Return the last dimension along which all sums are 1 (0 for a query without keys); None if there is none."""
    numbers = tensor.detach().nan_to_num(0.0).float()
    if not numbers.numel() or bool((numbers < 0).any()):
        return None
    tolerance = max(1e-4, 2 * torch.finfo(tensor.dtype).eps)
    for dim in reversed(range(tensor.ndim)):
        sums = numbers.sum(dim)
        if bool((((sums - 1).abs() < tolerance) | (sums == 0)).all()) and bool(sums.any()):
            return dim
    return None


def _reduced_dim(args: Any, keywords: Any) -> int | None:
    """Return the dimension that a softmax or a sum reduces; None for none or several."""
    dim = keywords.get("dim", keywords.get("axis", args[1] if len(args) > 1 else None))
    dim = dim[0] if isinstance(dim, tuple | list) and len(dim) == 1 else dim
    return dim if isinstance(dim, int) else None


def _sequence(origin: Origin) -> int:
    return origin.sequence


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


def _spread(positions: Tensor | None, tensor: Tensor) -> Tensor | None:
    """Return the positions for a tensor with the same rows; None if the rows differ."""
    if positions is None or positions.shape == tensor.shape:
        return None if positions is None else positions.to(tensor.device)
    fits = 0 < tensor.ndim == positions.ndim and positions.shape[:-1] == tensor.shape[:-1] and positions.shape[-1] > 0
    return positions[..., :1].to(tensor.device).expand(tensor.shape) if fits else None


def _einsum_order(equation: object, ndims: list[int], index: int) -> tuple[list[int] | None, int]:
    """Return the order of dimensions that brings weights in an einsum to (..., n, m), and the values' key dimension.

    The order has −1 for a missing query. It is None for an unsupported einsum.
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
    summed_letters = [letter for letter in weights if letter in values and letter not in output]
    query_letters = [letter for letter in weights if letter not in values and letter in output]
    shared_letters = [letter for letter in weights if letter in values and letter in output]
    if len(summed_letters) != 1 or len(query_letters) + len(shared_letters) + 1 != len(weights):
        return None, 0
    order = [weights.index(letter) for letter in [*shared_letters, *query_letters]] + [-1] * (not query_letters)
    return [*order, weights.index(summed_letters[0])], values.index(summed_letters[0])


def _permute(tensor: Tensor, order: list[int]) -> Tensor:
    """Permute dimensions. `order` has −1 for a new dimension and omits dimensions of size 1, which are removed."""
    dropped = [dim for dim in range(tensor.ndim) if dim not in order]
    moved = tensor.permute([*dropped, *(dim for dim in order if dim >= 0)])[(0,) * len(dropped)]
    return moved.unsqueeze(-2) if -1 in order else moved


def _unpermute(tensor: Tensor, order: list[int], ndim: int) -> Tensor:
    """Return the tensor of `ndim` dimensions of which `_permute` made this one."""
    dropped = [dim for dim in range(ndim) if dim not in order]
    moved = (tensor.squeeze(-2) if -1 in order else tensor)[(None,) * len(dropped)]
    dims = [*dropped, *(dim for dim in order if dim >= 0)]
    return moved.permute([dims.index(dim) for dim in range(ndim)])
