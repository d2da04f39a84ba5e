"""A loop over the steps of a sequence that every backend can differentiate, and compile."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

Tensors = tuple[Any, ...]


def scan(
    step: Callable[[Tensors, Tensors], Tensors], carry: Tensors, inputs: Tensors, emitted: int
) -> tuple[Tensors, Tensors]:
    """Take a step for each row of the inputs.

    Args:
        step: from what is carried and a row of each input to what is carried on, in the same shapes and dtypes.
        carry: what the first step begins with.
        inputs: one or more tensors (T, ...).
        emitted: how many of the carried tensors, the first ones, are wanted of every step.

    Returns:
        What is carried out of the last step; and of each emitted one, all steps', (T, ...).
    """
    if keras.backend.backend() == "tensorflow":
        return _tensorflow(step, carry, inputs, emitted)

    def both(carry: Tensors, row: Tensors) -> tuple[Tensors, Tensors]:
        after = step(carry, row)
        return after, after[:emitted]

    last, steps = keras.ops.scan(both, carry, inputs)
    return last, steps


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
