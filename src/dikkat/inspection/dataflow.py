"""Follows tensors while a model runs, to find their sequences and the attention weights among them.

Each tensor has an `Origin`. A call of a PyTorch function gives one to its results, by the first rule that applies:

1. An embedding begins with positions.
2. A product of weights and values over the keys is an output of attention.
3. So is a sum over the keys of the elementwise products of weights and values.
4. A concatenation, such as a cache's, continues the latest of its sequences.
5. A function that moves elements moves their positions, keys and weights in the same way.
6. Other results have the sequence and positions of the inputs. The result of a softmax has weights, and so have
   exponentials divided by their sum. A cast, dropout or a factor keeps weights, other functions alter them.

If altered weights, or weights in an unsupported product, multiply values, they are lost (`lose_weights`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from dikkat._engine.pytorch_state import is_transformed
from dikkat.inspection import function_names as names
from dikkat.inspection.dimension_order import einsum_order, matmul_order, permute, sum_order, unpermute
from dikkat.inspection.origins import Origin, Origins, Streams, fit_positions


@dataclass
class _Call:
    """A call of a PyTorch function.

    Attributes:
        name: The function's name, without underscores.
        result: The returned value. A rule replaces it if weights are edited.
        weights: The weights to record, if they are not the result of a softmax or dropout.
        logits: The arguments of a softmax, if they are kept.
        holder: The first input with weights, preferably unaltered ones.
        inputs: The tensors among the arguments.
        numbers: The floating-point inputs.
    """

    function: Any
    name: str
    args: Any
    keywords: Any
    result: Any = None
    weights: Tensor | None = None
    logits: Tensor | None = None
    holder: Tensor | None = None

    def __post_init__(self) -> None:
        self.inputs = [*_tensors((*self.args, *self.keywords.values()))]
        self.numbers = [tensor for tensor in self.inputs if tensor.is_floating_point()]

    @property
    def main(self) -> Tensor:
        """The input whose rows the results have."""
        return self.numbers[1 if self.name in ("addmm", "baddbmm") and len(self.numbers) > 1 else 0]

    @property
    def output(self) -> Any:
        """The returned value, or the tensor that `x[...] = y` writes to."""
        return self.args[0] if self.name == "setitem" else self.result

    @property
    def outputs(self) -> list[Tensor]:
        return [tensor for tensor in _tensors((self.output,)) if tensor.is_floating_point()]

    @property
    def moves(self) -> bool:
        """Whether the call moves the elements of its first argument, and can do so with another tensor."""
        if self.name not in names.REARRANGE and self.function not in names.TRANSPOSE:
            return False
        if not self.args or not isinstance(self.args[0], Tensor) or any(isinstance(a, torch.dtype) for a in self.args):
            return False
        return self.name != "view" or self.output.shape != self.args[0].shape  # not `x.view(dtype)`

    def repeat(self, old: Tensor, new: Tensor) -> Any:
        """Return the result with another tensor in place of `old`."""
        # `view` needs strides that another tensor may not have.
        function: Any = Tensor.reshape if self.name == "view" else self.function
        keywords = {name: new if value is old else value for name, value in self.keywords.items()}
        return function(*(new if value is old else value for value in self.args), **keywords)


class Dataflow(Origins, TorchFunctionMode):
    """Finds the attention of a model: fused functions, and softmaxes whose result multiplies values."""

    # Whether to report weights before dropout. If not, the weights belong to the autograd graph of the result.
    before_dropout = True
    # Whether to keep the arguments of each softmax.
    keeps_logits = False

    def __init__(self) -> None:
        super().__init__()
        self._products: Any = WeakIdKeyDictionary()  # elementwise products, with their weights and values

    # --- events for subclasses

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
        """Note lost weights: they multiplied values in an unsupported way."""
        raise NotImplementedError

    def softmax(self, name: str, logits: Tensor, function: Callable[[Tensor], Any]) -> tuple[Any, Tensor | None]:
        """Call a softmax or exponential. Return its result, and the weights to record if they differ from it."""
        return function(logits), None

    # --- calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in names.READ:
            return func(*args, **(kwargs or {}))
        full_name = getattr(func, "__name__", "").partition(".")[0]
        call, in_place = _Call(func, full_name.strip("_"), args, kwargs or {}), full_name.endswith("_")
        if func is F.multi_head_attention_forward or call.name == "scaled_dot_product_attention":
            return self._call_fused(call)
        transformed = is_transformed()
        if call.name in names.NORMALISED and not in_place and not transformed:
            logits = call.inputs[0]
            call.logits = logits if self.keeps_logits and call.name in names.SOFTMAX else None
            call.result, call.weights = self.softmax(call.name, logits, lambda new: call.repeat(logits, new))
        else:
            if call.name == "dropout" and (call.keywords.get("inplace") or args[3:4] == (True,)):
                call.weights = args[0].detach().clone()
            call.result = func(*args, **call.keywords)
        if transformed:
            self._follow_transformed(call)
        else:
            self._note_constants(call)
            self._follow(call)
        return call.result

    def _follow(self, call: _Call) -> None:
        """Record the origins of a call's results, by the first rule that applies."""
        if not call.numbers or not call.outputs:
            return
        holders = [t for t in call.numbers if self.has_weights(t) and call.name not in names.SHAPED_LIKE]
        call.holder = min(holders, key=lambda tensor: self.origin(tensor).altered, default=None)
        for rule in (
            self._follow_embedding, self._follow_product, self._follow_sum, self._follow_concatenation,
            self._follow_moved, self._follow_other,
        ):  # fmt: skip
            if rule(call):
                return

    def _call_fused(self, call: _Call) -> Any:
        keywords = [call.keywords[name] for name in ("query", "key") if name in call.keywords]
        query, key = [*call.args, *keywords][:2]
        streams = self.streams(query, key, call.name == "scaled_dot_product_attention")
        result = self.call_fused(call.function, call.args, call.keywords, streams)
        self.follow(result[0] if isinstance(result, tuple) else result, streams[2])
        return result

    def _note_constants(self, call: _Call) -> None:
        """Note results that depend on no input of the model."""
        copies = call.name in names.CAST_OR_DROPOUT
        constant = all(tensor in self._constants for tensor in (call.inputs[:1] if copies else call.inputs))
        for output in _tensors((call.output,)):
            if constant and (not call.inputs or copies or call.moves):
                self._constants[output] = True
            elif not constant and any(output is tensor for tensor in call.inputs):  # an in-place write
                self._constants.pop(output, None)

    def _follow_transformed(self, call: _Call) -> None:
        """Follow a call in a transform of torch.func, where only products with the model's constants keep weights."""
        inputs = [*map(_untransformed, call.inputs)]
        flags = [self.has_weights(tensor) for tensor in inputs]
        if not any(flags) and call.name not in names.SOFTMAX:
            return
        weight_shapes = {tensor.shape for tensor, has in zip(call.inputs, flags, strict=True) if has}
        multiplies = call.name in names.MATRIX
        multiplies |= call.name in names.MULTIPLY and weight_shapes != {call.result.shape}
        if multiplies and not all(has or tensor in self._constants for tensor, has in zip(inputs, flags, strict=True)):
            self.lose_weights()
        elif not multiplies:
            for output in map(_untransformed, _tensors((call.result,))):
                self._origins[output] = Origin(next(self._sequence_numbers), altered=True)

    # --- rules: each returns whether it applies

    def _follow_embedding(self, call: _Call) -> bool:
        if call.name == "embedding":
            self._origins.pop(call.result, None)
            self.with_positions(call.result)
        return call.name == "embedding"

    def _follow_product(self, call: _Call) -> bool:
        holder = call.holder
        if holder is None or call.name not in names.MATRIX:
            return False
        origin, factors = self.origin(holder), [tensor for tensor in call.numbers if tensor is not holder]
        index = next(k for k, tensor in enumerate(call.numbers) if tensor is holder)
        order: list[int] | None = None
        key_dim, ndims = 0, [tensor.ndim for tensor in call.numbers]
        if origin.keys is not None and call.name in names.PRODUCT and factors:
            if call.name == "einsum":
                order, key_dim = einsum_order(call.args[0], ndims, index)
            else:
                order, key_dim = matmul_order(call.name, ndims, index)
        if origin.keys is not None and order is not None:
            keys = permute(origin.keys, order)
            row = keys[(0,) * (keys.ndim - 1)] if keys.numel() else keys
            if not keys.numel() or (len(row) > 1 and row[0] == row[-1]):  # the product sums over another dimension
                return False
        by_model = all(tensor in self._constants for tensor in factors)
        self._origins[call.result] = origin.of_rows(call.result)
        if order is None:
            if not by_model:
                self.lose_weights()
        elif not (by_model and call.name == "linear") and not self._is_gate(origin, factors[0], key_dim):
            self._report_weights(call, holder, order, factors[0], lambda new: call.repeat(holder, new))
        return True

    def _follow_sum(self, call: _Call) -> bool:
        if call.name != "sum" or call.main not in self._products:
            return False
        (weights, values), products, dim = self._products[call.main], call.main, _reduced_dim(call)
        if dim is None or weights.shape[dim] != products.shape[dim] or values.shape[dim] != products.shape[dim]:
            return False
        if self._is_gate(self.origin(weights), values, dim):
            return False
        order = sum_order(weights, values, products, dim % products.ndim)
        self._report_weights(call, weights, order, values, lambda new: call.repeat(products, new * values))
        return True

    def _follow_concatenation(self, call: _Call) -> bool:
        if call.name not in names.CONCATENATE or call.holder is not None:
            return False
        # A tensor without an origin, such as an empty cache, is no new sequence, nor is a parameter, such as a sink.
        known = self.known([tensor for tensor in call.numbers if tensor not in self._constants])
        known = known or [self.origin(call.main)]
        self._origins[call.output] = max(known, key=lambda origin: origin.sequence).of_rows(call.output)
        return True

    def _follow_moved(self, call: _Call) -> bool:
        if not call.moves or call.main is not call.args[0]:
            return False
        main, origin, moved = call.main, self.origin(call.main), dict[str, list[Tensor]]()
        for field in ("positions", "keys", "weights", "logits"):
            if (tensor := getattr(origin, field)) is not None:
                moved[field] = [*_tensors((call.repeat(main, tensor),))]
        for number, output in enumerate(call.outputs):
            keeps_last = call.name in ("view", "reshape") and output.shape[-1:] == main.shape[-1:]
            features = origin.features and (keeps_last or origin.keys is not None)
            fields: dict[str, Any] = {field: results[number] for field, results in moved.items()}
            self._origins[output] = origin._replace(**fields, features=features)
        return True

    def _follow_other(self, call: _Call) -> bool:
        main, holder = call.main, call.holder
        by_model = call.name in names.MATRIX and any(tensor in self._constants for tensor in call.numbers[1:])
        begins = by_model or call.name in ("linear", "layer_norm", "rms_norm")
        origin = self.with_positions(main) if begins else self.origin(main)
        # Before the results, as a result of an in-place function is its input.
        holder_origin = None if holder is None else self.origin(holder)
        exponentials = [known.exponential for known in self.known(call.numbers)]
        exponential = _exponential(call.name, exponentials)
        for output in call.outputs:
            features = by_model or (origin.features and output.shape == main.shape)
            merged = self._merge_origins(call, origin, output)
            self._origins[output] = merged._replace(features=features, exponential=exponential)
        if call.name in names.DIVIDE and exponentials == ["sums", "sums"]:  # exp(s) @ v / sum(exp(s))
            self.lose_weights()
        dim = _reduced_dim(call) if call.name in names.SOFTMAX else None
        if exponential == "terms" and (call.name in names.EXPONENTIAL or holder is None):
            dim = _normalised_dim(call.output)
        if dim is not None and (call.output.ndim > 1 or main not in self._constants):
            self._begin_weights(call, dim, origin)
        elif holder is not None and holder_origin is not None and isinstance(call.output, Tensor):
            self._follow_weights(call, holder, holder_origin)
        return True

    def _merge_origins(self, call: _Call, origin: Origin, output: Tensor) -> Origin:
        """Return the origin of an output of several tensors: the latest attention among inputs of its shape."""
        same_shape = [tensor for tensor in call.numbers if tensor.shape == output.shape]
        origins = self.known(same_shape if call.name not in names.MATRIX else []) or [origin]
        latest = max(origins, key=lambda o: (o.attended and o.sequence, o.positions is not None))
        positioned = min((o for o in origins if o.positions is not None), key=lambda o: o.sequence, default=origin)
        return Origin(latest.sequence, latest.attended, fit_positions(positioned.positions, output))

    # --- weights

    def _begin_weights(self, call: _Call, dim: int, origin: Origin) -> None:
        """Set the origin of the result of a softmax over `dim`, of logits with this origin."""
        result, dim = call.output, dim % call.output.ndim
        shape = [-1 if k == dim else 1 for k in range(result.ndim)]
        keys = torch.arange(result.shape[dim], device=result.device).view(shape).expand(result.shape)
        features = origin.features and dim == result.ndim - 1
        self._origins[result] = self._origins[result]._replace(
            keys=keys, weights=call.weights, logits=call.logits, features=features
        )

    def _follow_weights(self, call: _Call, holder: Tensor, origin: Origin) -> None:
        """Set the origin of a result of weights: weights again, products with values, or altered weights."""
        result, name, new = call.output, call.name, self._origins[call.output]
        factor = next((tensor for tensor in _tensors(call.args) if tensor is not holder), None)
        same_shape = result.ndim == holder.ndim and result.shape[-2:] == holder.shape[-2:]
        if origin.keys is not None and same_shape and name in names.KEEP_WEIGHTS | names.MATRIX:
            weights, logits = self._copies_of_weights(call, holder, origin)
            keys = origin.keys.to(result.device).expand(result.shape)
            self._origins[result] = new._replace(keys=keys, weights=weights, logits=logits, features=origin.features)
        elif (
            origin.keys is not None
            and name in names.MULTIPLY
            and factor is not None
            and factor.ndim == holder.ndim == result.ndim
        ):
            self._products[result] = holder, factor
        elif name not in names.MATRIX and (result.numel() <= holder.numel() or name in names.CONCATENATE):
            self._origins[result] = new._replace(altered=True)

    def _copies_of_weights(self, call: _Call, holder: Tensor, origin: Origin) -> tuple[Tensor | None, Tensor | None]:
        """Return the weights before dropout and the logits of weights after a call."""
        in_place = call.output is holder
        weights = call.weights if origin.weights is None else origin.weights
        if call.name in names.MATRIX:  # a product over another dimension, such as the heads
            return None, None
        if call.name in names.CAST_OR_DROPOUT:
            begins = weights is None and not in_place and self.before_dropout
            return holder if begins else weights, origin.logits
        if weights is None:
            return None, None
        before = weights.clone() if in_place else weights
        after = call.repeat(holder, before)
        return before if after is None else after, None

    def _is_gate(self, weights: Origin, values: Tensor, dim: int) -> bool:
        """Return whether a softmax over features weights classes or the results of experts, not a sequence."""
        positions = self.origin(values).positions
        if not weights.features or values in self._constants:
            return weights.features
        if positions is None or not positions.numel():
            return True
        return bool((positions.select(dim, 0) == positions.select(dim, -1)).all())

    def _report_weights(
        self, call: _Call, holder: Tensor, order: list[int], values: Tensor, pool: Callable[[Tensor], Tensor]
    ) -> None:
        """Report weights, and follow the output, which `pool` computes from edited weights."""
        origin, key = self.origin(holder), self.origin(values)
        positions = None if origin.positions is None else permute(origin.positions, order)
        output = self.output_origin(origin._replace(positions=positions), key)
        heads = 0 if positions is None else _count_joined_heads(positions)

        def arrange(tensor: Tensor) -> Tensor:
            tensor = permute(tensor, order)
            return tensor.unflatten(0, (-1, heads)) if heads else tensor

        is_pool = -1 in order or (positions is not None and _varies_by_key(positions))
        query = origin._replace(
            positions=None if origin.positions is None else arrange(origin.positions), is_pool=is_pool
        )
        weights = holder if origin.weights is None else origin.weights
        edited = self.saw_weights(weights, origin.logits, arrange, (query, key, output))
        if edited is not None:
            with torch._C.DisableTorchFunction():
                new = unpermute(edited.flatten(0, 1) if heads else edited, order, holder.ndim)
                call.result = pool(_with_dropout(new, weights, holder).to(holder.dtype))
        self.follow(call.result, output)


def _with_dropout(new: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Return new weights with the dropout between two tensors of weights. Rows without an edit stay `after`."""
    if before is after:
        return new
    rounded = before.detach().to(after.dtype)  # so that a cast has no factors
    factors = torch.where(rounded > 0, after.detach() / rounded, 1.0)
    return torch.where(new == before, after, new * factors)


def _varies_by_key(positions: Tensor) -> bool:
    """Return whether the weights (..., n, m) of a query have several positions, as in a pool of all keys."""
    return positions.shape[-2] != positions.shape[-1] and bool((positions[..., 0] != positions[..., -1]).any())


def _untransformed(tensor: Tensor) -> Tensor:
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def _count_joined_heads(positions: Tensor) -> int:
    """Return H for weights (B · H, n, m), from equal positions of neighbouring elements; 0 for other weights."""
    if positions.ndim != 3:
        return 0
    query_positions = positions[..., 0]
    heads = int((query_positions == query_positions[0]).all(-1).long().cumprod(0).sum())
    return heads if heads > 1 and len(query_positions) % heads == 0 else 0


def _exponential(name: str, inputs: list[str]) -> str:
    """Return `Origin.exponential` of an output."""
    if name in names.EXPONENTIAL:
        return "terms"
    if name in names.MATRIX or name == "sum":
        return "sums" if any(inputs) else ""
    return next(filter(None, inputs), "") if name in names.KEEP_WEIGHTS else ""


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


def _reduced_dim(call: _Call) -> int | None:
    """Return the dimension that a softmax or a sum reduces; None for none or several."""
    dim = call.keywords.get("dim", call.keywords.get("axis", call.args[1] if len(call.args) > 1 else None))
    dim = dim[0] if isinstance(dim, tuple | list) and len(dim) == 1 else dim
    return dim if isinstance(dim, int) else None


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)
