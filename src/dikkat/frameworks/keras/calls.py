"""Layers over `attend`, batch first, serialisable, on every backend.

Each is called `layer(query, key, value, valid_lens=None, ...)`, with the further restrictions as keywords:
`attention_mask`, `causal`, `key_bias`, `exclude`. Keras's own masks are understood: a query, key or value that
`Embedding(mask_zero=True)` or `Masking` marks as padding takes no part, and the query's mask goes on to the output. All
restrictions intersect. A layer returns a tensor, or with `return_weights=True` the pair (output, weights). Dropout acts
on the weights, in training only.

Calls of Keras's own layers are understood: `layer([query, value])`, `layer([query, value, key])`, `mask=[query_mask,
value_mask]`, `use_causal_mask` and `return_attention_scores`. Without a list the order is query, key, value.
"""

from functools import reduce
from typing import Any

import keras
from keras import ops

from dikkat._core.validation import probability
from dikkat.frameworks.keras.attention import check_call
from dikkat.frameworks.keras.backend import as_tensor, features, kind, shape_of
from dikkat.frameworks.keras.blocks import Block
from dikkat.frameworks.keras.checks import Shape, Sizes, leading
from dikkat.frameworks.keras.masking import check_mask, check_restrictions
from dikkat.frameworks.keras.scores import Score, check_score


class Attending(Block):
    """A layer with a score and a dropout, called with query, key and value, as here or as Keras's own layers are."""

    num_heads: int | None = None  # None: there are no heads

    def __init__(self, score: Score, dropout: float = 0.0, seed: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        check_score(score)
        self.score = score
        self.dropout, self.seed = probability(dropout), seed
        self.seed_generator = keras.random.SeedGenerator(seed, name="seed_generator") if self.dropout else None
        self.supports_masking = True

    def __call__(
        self, query: Any, key: Any = None, value: Any = None, *args: Any, mask: Any = None, **options: Any
    ) -> Any:
        """`call`, in Keras's order and by Keras's names of the arguments too."""
        query, key, value = _ordered(query, key, value)
        return super().__call__(query, key, value, *args, **_named_masks(mask, options), **renamed(options))

    def call(
        self,
        query: Any,
        key: Any,
        value: Any,
        valid_lens: Any = None,
        query_mask: Any = None,
        key_mask: Any = None,
        value_mask: Any = None,
        *,
        attention_mask: Any = None,
        causal: bool = False,
        key_bias: Any = None,
        exclude: Any = None,
        use_causal_mask: bool = False,
        return_weights: bool = False,
        training: bool | None = None,
    ) -> Any:
        """Attend. With heads, the leading dimension is B alone, and a restriction holds for all heads.

        Args:
            query: (..., n, d_q).
            key: (..., m, d_k).
            value: (..., m, d_v).
            valid_lens: None, (B,) or (B, n) integers in 0 ... m: key j takes part where j < valid_len.
            query_mask: (..., n) booleans: a query where it is False sees no key. Keras passes the query's own mask.
            key_mask: (..., m) booleans: a key where it is False is seen by none. Keras passes the key's own mask.
            value_mask: (..., m) booleans: Keras passes the value's own mask, which acts as that of the key.
            attention_mask: Booleans that broadcast to (..., n, m), or (B, heads, n, m); True takes part.
            causal: Query i sees keys j <= i + m − n.
            key_bias: (..., m), or (B, heads, m), added to the scores. −∞ hides a key.
            exclude: (..., n), or (B, heads, n), integers: one key index that a row must not see, −1 for none.
            use_causal_mask: Keras's: query i sees keys j <= i, however many there are. With as many queries as keys it
                is what `causal` is.
            return_weights: Whether to return the weights too, as they are before dropout.
            training: Whether weights are dropped; Keras passes it.

        Returns:
            (..., n, d_v), or (B, n, embed_dim) with heads; with `return_weights` the pair (output, weights), these
            (..., n, m), or (B, heads, n, m).

        Raises:
            TypeError: An argument of the wrong kind or dtype.
            ValueError: Shapes or values that do not fit.
        """
        tensors, _, restrictions = self._checked(
            query, key, value, valid_lens, query_mask, key_mask, value_mask, attention_mask=attention_mask,
            use_causal_mask=use_causal_mask, causal=causal, key_bias=key_bias, exclude=exclude,
        )  # fmt: skip
        output, weights = self.attend(tensors, restrictions, self.dropout if training else 0.0)
        return (output, weights) if return_weights else output

    def _checked(
        self, query: Any, key: Any, value: Any, *masks: Any, use_causal_mask: bool = False, **restrictions: Any
    ) -> tuple[tuple[Any, Any, Any], Sizes, dict[str, Any]]:
        """The tensors of a call, its sizes and its restrictions."""
        tensors = features("query", query), features("key", key), features("value", value)
        not_ahead = _not_ahead(use_causal_mask, query, key)
        return tensors, *restrictions_of(tensors, self.num_heads, *masks, not_ahead=not_ahead, **restrictions)

    def attend(self, tensors: tuple[Any, Any, Any], restrictions: dict[str, Any], dropout: float) -> tuple[Any, Any]:
        """The output and the weights, of checked tensors and restrictions; the layer's own."""
        raise NotImplementedError

    def size_out(self, value_shape: Shape) -> int | None:
        """The features of the output; the layer's own."""
        raise NotImplementedError

    def compute_output_spec(
        self, query: Any, key: Any = None, value: Any = None, *masks: Any, return_weights: bool = False,
        training: bool | None = None, **restrictions: Any,
    ) -> Any:  # fmt: skip
        """The shapes and dtypes of what `call` returns, whatever is known of those that come in."""
        query, key, value = _ordered(query, key, value)
        _, sizes, _ = self._checked(query, key, value, *masks, **restrictions)
        return spec_of(sizes, self.num_heads, self.size_out(value.shape), value.dtype, return_weights)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """The query's mask, of one or of Keras's list of them: that of the output."""
        return mask[0] if isinstance(mask, list | tuple) else mask

    def compute_output_shape(
        self, query_shape: Any = None, key_shape: Any = None, value_shape: Any = None, *, input_shape: Any = None
    ) -> Shape:
        """(..., n, features), of three shapes, or of a list of them in Keras's order."""
        query_shape, key_shape, value_shape = shapes_in_order(input_shape or query_shape, key_shape, value_shape)
        lead = leading({"query": query_shape, "key": key_shape, "value": value_shape})
        return (*lead, query_shape[-2], self.size_out(value_shape))


def spec_of(sizes: Sizes, num_heads: int | None, features: int | None, dtype: str, return_weights: bool) -> Any:
    """The symbolic tensors that a layer returns: the output, and with `return_weights` the weights."""
    lead = sizes.lead if num_heads is None else sizes.lead[:-1]
    output = keras.KerasTensor((*lead, sizes.queries, features), dtype)
    return (output, keras.KerasTensor((*sizes.lead, *sizes[1:]), dtype)) if return_weights else output


def restrictions_of(
    tensors: tuple[Any, Any, Any],
    num_heads: int | None,
    valid_lens: Any = None,
    query_mask: Any = None,
    key_mask: Any = None,
    value_mask: Any = None,
    *,
    attention_mask: Any = None,
    not_ahead: Any = None,
    causal: bool = False,
    key_bias: Any = None,
    exclude: Any = None,
) -> tuple[Sizes, dict[str, Any]]:
    """The sizes of a call and its restrictions, checked; those of a batch element hold for all its heads."""
    shapes = [shape_of(tensor) for tensor in tensors]
    if num_heads is not None and (len(shapes[0]) < 3 or len({len(shape) for shape in shapes}) > 1):
        got = ", ".join(map(str, shapes))
        raise ValueError(f"query, key, value: got shapes {got}; expected each (B, length, features)")
    own = check_call(*tensors)
    sizes = own if num_heads is None else own._replace(lead=(*own.lead, num_heads))

    def for_heads(tensor: Any, axes: int) -> Any:
        tensor = as_tensor(tensor)
        shared = num_heads is not None and tensor is not None and len(shape_of(tensor)) == len(own.lead) + axes
        return ops.expand_dims(tensor, -1 - axes) if shared else tensor

    padding = (
        ("query_mask", query_mask, own.queries, -1),
        ("key_mask", key_mask, own.keys, -2),
        ("value_mask", value_mask, own.keys, -2),
    )
    pairs = [
        for_heads(ops.expand_dims(_mask(name, mask, (*own.lead, length)), axis), 2)
        for name, mask, length, axis in padding
        if mask is not None
    ]
    if not_ahead is not None:
        pairs.append(not_ahead)
    if attention_mask is not None:
        pairs.append(_mask("attention_mask", for_heads(attention_mask, 2), (*sizes.lead, *sizes[1:])))
    restrictions = {
        "valid_lens": as_tensor(valid_lens),
        "mask": reduce(ops.logical_and, pairs) if pairs else None,
        "causal": causal,
        "key_bias": for_heads(key_bias, 1),
        "exclude": for_heads(exclude, 1),
    }
    check_restrictions(*sizes, **restrictions)
    return sizes, restrictions


def _mask(name: str, mask: Any, shape: Shape) -> Any:
    """A mask as booleans; of integers, as Keras takes them, those that are not 0."""
    mask = as_tensor(mask)
    mask = ops.not_equal(mask, 0) if keras.backend.is_int_dtype(kind(mask)) else mask
    check_mask(name, mask, shape)
    return mask


def _ordered(query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
    """Query, key and value, of which the last two may be one; from a list in Keras's order, query, value and key."""
    if isinstance(query, list | tuple):
        if key is not None or value is not None or len(query) not in (2, 3):
            got = f"a list of {len(query)}" + ("" if key is None and value is None else ", and key or value beside it")
            raise TypeError(f"query: got {got}; expected a tensor, or the list [query, value] or [query, value, key]")
        query, value, key = (*query, None)[:3]
    if key is None and value is None:
        raise TypeError("value: got None; expected (..., m, d_v), which is the key too where no other comes")
    return query, value if key is None else key, key if value is None else value


def shapes_in_order(query: Any, key: Any, value: Any) -> tuple[Shape, Shape, Shape]:
    """The shapes of query, key and value; from a list of them as from one of tensors."""
    return _ordered([*map(tuple, query)], key, value) if isinstance(query[0], list | tuple) else (query, key, value)


def _named_masks(mask: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Keras's list of masks, by their names here."""
    if mask is None:
        return {}
    if not isinstance(mask, list | tuple) or len(mask) not in (2, 3):
        got = f"a list of {len(mask)}" if isinstance(mask, list | tuple) else type(mask).__name__
        raise TypeError(
            f"mask: got {got}; expected Keras's list [query_mask, value_mask] or [query_mask, value_mask, key_mask]; "
            "a mask of pairs is attention_mask"
        )
    named = dict(zip(("query_mask", "value_mask", "key_mask"), mask, strict=False))
    for name in named:
        if name in options:
            raise TypeError(f"{name}: got one by its name and one in the list mask; expected one of the two")
    return named


def renamed(options: dict[str, Any], **further: str) -> dict[str, Any]:
    """Arguments that Keras names otherwise, by their names here."""
    own = {"return_attention_scores": "return_weights"} | further
    for alias, name in own.items():
        if alias in options and name in options:
            raise TypeError(f"{alias}: got beside {name}, which is the same; expected one of the two")
    return {own.get(name, name): value for name, value in options.items()}


def _not_ahead(requested: bool, query: Any, key: Any) -> Any:
    """Pairs (n, m) as Keras's `use_causal_mask` shows them, aligned at the top left; None: all."""
    if not isinstance(requested, bool):
        raise TypeError(f"use_causal_mask: got {type(requested).__name__}; expected True or False")
    if not requested or keras.utils.is_keras_tensor(query):
        return None
    queries, keys = (ops.arange(ops.shape(each)[-2]) for each in (query, key))
    return keys <= ops.expand_dims(queries, -1)
