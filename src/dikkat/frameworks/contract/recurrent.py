"""What encoders and decoders of every framework check, and the state with coverage."""

from typing import Any, NamedTuple

from dikkat.frameworks.contract.checks import Shape, same
from dikkat.frameworks.contract.operations import Tensor

GATES = {"gru": 3, "lstm": 4}
"""The gates of a cell: r, z, n of a GRU; i, f, g, o of an LSTM."""


class Covered(NamedTuple):
    """A decoder's state with what the steps so far looked at: `begin` makes the first one.

    Attributes:
        state: Of the cells, (layers, B, h), of an LSTM two of them.
        coverage: (B, m), the sum of the weights that each position has had.
    """

    state: Any
    coverage: Tensor


def check_inputs(shape: Shape, features: int | None, steps: str, least: int = 1) -> None:
    """Whether inputs are (batch, steps, features).

    Args:
        shape: That of the inputs.
        features: How many there must be; None: any number that is known.
        steps: What to call them.
        least: How many steps there must be.

    Raises:
        ValueError: They are not.
    """
    fits = len(shape) == 3 and shape[2] is not None and features in (None, shape[2])
    if not fits or (shape[1] is not None and shape[1] < least):
        expected = f"(batch, {steps}, {'features' if features is None else features})"
        raise ValueError(f"inputs: got shape {shape}; expected {expected}, with at least one step")


def check_lengths(name: str, shape: Shape, values: Any, sequences: Shape, of: str, least: int) -> None:
    """Whether lengths are one a sequence, within it.

    Args:
        name: Of the lengths.
        shape: Theirs.
        values: NumPy's; None where they cannot be read.
        sequences: The shape (batch, positions, ...) of what they are lengths of.
        of: What they count.
        least: The smallest that is allowed.

    Raises:
        ValueError: They are not.
    """
    batch, positions = sequences[:2]
    if not same(shape, (batch,)):
        raise ValueError(f"{name}: got shape {shape}; expected (batch,) = ({batch},)")
    if values is not None and positions is not None and ((values < least) | (values > positions)).any():
        raise ValueError(f"{name}: got {values.tolist()}; expected each from {least} to the {positions} {of}")


def check_sequences(memory: Shape, inputs: Shape) -> None:
    """Whether a memory and the inputs are of as many sequences.

    Raises:
        ValueError: They are not.
    """
    if not same(memory[:1], inputs[:1]):
        raise ValueError(f"memory: got {memory[0]} sequences; expected {inputs[0]}, as many as the inputs have")


def parted(state: Any, mode: str, coverage: bool) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """The parts of a decoder's state.

    Args:
        state: One tensor of a GRU, a pair of an LSTM; with coverage in a `Covered`.
        mode: The cells, "gru" or "lstm".
        coverage: Whether there is coverage.

    Returns:
        States and, of an LSTM, cells; the coverage, if any.

    Raises:
        ValueError: Another state.
    """
    if isinstance(state, Covered) != coverage:
        expected = "what begin makes of it" if coverage else "one without coverage"
        raise ValueError(f"state: got {type(state).__name__}; expected {expected}")
    covered = None
    if coverage:
        state, covered = state
    nested = isinstance(state, tuple | list)
    if nested != (mode == "lstm") or (nested and len(state) != 2):
        one, pair = "one tensor (layers, batch, hidden)", "a pair of tensors (layers, batch, hidden): states and cells"
        raise ValueError(f"state: got {type(state).__name__}; expected {pair if mode == 'lstm' else one}")
    return tuple(state) if nested else (state,), covered


def check_state(shapes: list[Shape], layers: int, batch: int | None, hidden: int) -> None:
    """Whether the parts of a state have the right shape.

    Raises:
        ValueError: They have not.
    """
    for shape in shapes:
        if not same(shape, (layers, batch, hidden)):
            raise ValueError(f"state: got shape {shape}; expected (layers, batch, hidden) = {(layers, batch, hidden)}")
