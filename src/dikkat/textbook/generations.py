"""TensorFlow's decoders of both generations: each gets the encoder's outputs in the layout that it expects."""

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any, NamedTuple

from dikkat.textbook.keras2 import tf
from dikkat.textbook.skeleton import Tensor

__all__ = ["Encoded", "of_either_generation"]


class Encoded(NamedTuple):
    """What an encoder puts out.

    Attributes:
        outputs: (batch, steps, hiddens).
        state: After the last step, one tensor (batch, hiddens) a layer.
    """

    outputs: Tensor
    state: list[Tensor]


def of_either_generation(init_state: Callable[..., Any]) -> Callable[..., Any]:
    """An `init_state` that turns the encoder's outputs gets them turned: what comes out is (batch, steps, hiddens)."""

    @wraps(init_state)
    def init(self: Any, enc_outputs: Any, *args: Any) -> Any:
        if not isinstance(enc_outputs, Encoded):
            return init_state(self, enc_outputs, *args)
        outputs, other = enc_outputs.outputs, tf.transpose(enc_outputs.outputs, (1, 0, 2))
        try:
            straight = init_state(self, enc_outputs, *args)
        except Exception:
            # One that checks shapes may refuse what is not turned yet. It is believed if it then turns it.
            with suppress(Exception):
                turned = init_state(self, (other, enc_outputs.state), *args)
                if bool(_holds(turned, outputs)):
                    return turned
            raise
        kept = any(part is outputs for part in tf.nest.flatten(straight))
        does_turn = False if kept else _holds(straight, other)
        if tf.is_tensor(does_turn) and not tf.executing_eagerly():  # in a graph, of sizes that do not say it
            turned = init_state(self, (other, enc_outputs.state), *args)
            return tf.nest.map_structure(
                lambda one, two: tf.cond(does_turn, lambda: two, lambda: one) if tf.is_tensor(one) else one,
                straight,
                turned,
            )
        return init_state(self, (other, enc_outputs.state), *args) if does_turn else straight

    return init


def _holds(state: Any, outputs: Tensor) -> Any:
    """Whether a decoder's state holds an encoder's outputs in this layout: by sizes if these say it, else by values.

    Returns:
        A bool; a boolean tensor where a graph has only sizes or values to come.
    """
    found: Any = False
    steps, batch = outputs.shape[:2]
    for part in tf.nest.flatten(state):
        if not tf.is_tensor(part) or part.shape.rank != 3 or not part.shape[:2].is_compatible_with(outputs.shape[:2]):
            continue
        if None not in (steps, batch) and steps != batch:
            return True
        if part.shape.is_compatible_with(outputs.shape):
            alike = tf.cond(
                tf.reduce_all(tf.shape(part) == tf.shape(outputs)),
                lambda part=part: tf.reduce_all((part == outputs) | (tf.math.is_nan(part) & tf.math.is_nan(outputs))),
                lambda: False,
            )
            found = alike if found is False else found | alike
    return found
