"""The steps of sequences: a loop that every backend can differentiate and compile, and which of them are real."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from dikkat.frameworks.contract.checks import same
from dikkat.frameworks.contract.recurrent import check_lengths
from dikkat.frameworks.keras.backend import is_array, kind, readable, shape_of

Tensors = tuple[Any, ...]


def scan(
    step: Callable[[Tensors, Tensors], Tensors], carry: Tensors, inputs: Tensors, emitted: int
) -> tuple[Tensors, Tensors]:
    """Take a step for each row of the inputs.

    Args:
        step: From what is carried and a row of each input to what is carried on, in the same shapes and dtypes.
        carry: What the first step begins with.
        inputs: One or more tensors (T, ...).
        emitted: How many of the carried tensors, the first ones, are wanted of every step.

    Returns:
        What is carried out of the last step; and of each emitted one, all steps', (T, ...).
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        return _tensorflow(step, carry, inputs, emitted)
    if backend == "jax" and len(inputs[0]) and all(is_array(each) for each in (*carry, *inputs)):
        return _one_by_one(step, carry, inputs, emitted)

    def both(carry: Tensors, row: Tensors) -> tuple[Tensors, Tensors]:
        after = step(carry, row)
        return after, after[:emitted]

    last, steps = ops.scan(both, carry, inputs)
    return last, steps


def _one_by_one(
    step: Callable[[Tensors, Tensors], Tensors], carry: Tensors, inputs: Tensors, emitted: int
) -> tuple[Tensors, Tensors]:
    """Outside a program, JAX would compile the loop anew at every call, for longer than its steps take."""
    found = []
    for row in zip(*(ops.unstack(each) for each in inputs), strict=True):
        carry = step(carry, row)
        found.append(carry[:emitted])
    return carry, tuple(ops.stack(steps) for steps in zip(*found, strict=True))


def _tensorflow(
    step: Callable[[Tensors, Tensors], Tensors], carry: Tensors, inputs: Tensors, emitted: int
) -> tuple[Tensors, Tensors]:
    """`keras.ops.scan` there gives its loop no bound, without which XLA cannot compile the loop's gradient."""
    import tensorflow as tf

    count = tf.shape(inputs[0])[0]

    def rows(like: Any, shape: Sequence[Any]) -> Any:
        return tf.TensorArray(like.dtype, size=count, element_shape=shape)

    read = tuple(rows(each, each.shape[1:]).unstack(each) for each in inputs)
    written = tuple(rows(each, each.shape) for each in carry[:emitted])

    def body(index: Any, carry: Tensors, written: Tensors) -> tuple[Any, Tensors, Tensors]:
        after = step(carry, tuple(each.read(index) for each in read))
        emitting = zip(written, after[:emitted], strict=True)
        return index + 1, after, tuple(steps.write(index, row) for steps, row in emitting)

    def goes_on(index: Any, *_: Any) -> Any:
        return index < count

    _, last, written = tf.while_loop(goes_on, body, (0, carry, written), maximum_iterations=count)
    steps = tuple(each.stack() for each in written)
    for each in steps:
        each.set_shape([inputs[0].shape[0], *each.shape[1:]])
    return last, steps


def carried_on(condition: Any, new: Sequence[Any], old: Sequence[Any]) -> Tensors:
    """What is carried on from a step: the new tensors where the condition holds, and else the old ones."""
    return tuple(ops.where(condition, after, before) for after, before in zip(new, old, strict=True))


def real_positions(tensor: Any, lengths: Any, mask: Any, name: str) -> Any:
    """Where a batch of sequences has its real positions, which come before all others.

    Args:
        tensor: (B, S, ...).
        lengths: (B,) integers from 1 to S, or None.
        mask: (B, S) booleans, or None.
        name: Of the tensor, for messages.

    Returns:
        (B, S) booleans, True where both say so; None where neither says anything.

    Raises:
        TypeError: Lengths that are not integers, or a mask that is not of booleans.
        ValueError: A wrong shape; where values can be read, a length out of range, or padding before a real position.
    """
    seen = None
    if lengths is not None:
        lengths = checked_lengths(lengths, tensor, "lengths", f"positions of {name}", least=1)
        seen = ops.expand_dims(ops.arange(ops.shape(tensor)[1]), 0) < ops.expand_dims(lengths, 1)
    if mask is not None:
        mask = ops.convert_to_tensor(mask)
        if kind(mask) != "bool":
            raise TypeError(f"mask of {name}: got dtype {kind(mask)}; expected booleans")
        if not same(mask.shape, tensor.shape[:2]):
            expected = f"(batch, positions) = {shape_of(tensor)[:2]}"
            raise ValueError(f"mask of {name}: got shape {shape_of(mask)}; expected {expected}")
        if readable(mask) and bool(ops.any(ops.logical_and(mask[:, 1:], ops.logical_not(mask[:, :-1])))):
            raise ValueError(
                f"mask of {name}: got padding before a real position; expected real positions first: pad behind the "
                "sequences"
            )
        seen = mask if seen is None else ops.logical_and(seen, mask)
    return seen


def checked_lengths(lengths: Any, tensor: Any, name: str, of: str, least: int) -> Any:
    """Lengths of a batch of sequences, (B,) int32.

    Args:
        lengths: Those that were given, or None.
        tensor: (B, S, ...).
        name: Of the lengths, for messages.
        of: What they count, for messages.
        least: The smallest that is allowed.

    Raises:
        TypeError: They are not integers.
        ValueError: Their shape does not fit, or, where values can be read, a length.
    """
    lengths = ops.convert_to_tensor(lengths)
    if "int" not in kind(lengths):
        raise TypeError(f"{name}: got dtype {kind(lengths)}; expected integers")
    values = ops.convert_to_numpy(lengths) if readable(lengths) else None
    check_lengths(name, shape_of(lengths), values, shape_of(tensor), of, least)
    return ops.cast(lengths, "int32")
