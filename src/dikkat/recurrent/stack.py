"""Checks of encoders and decoders: sizes, probabilities, lengths, and the implementation that runs."""

from torch import Tensor

from dikkat._engine.addresses import check_dense
from dikkat._engine.pytorch_state import can_read_values


def check_stack(num_layers: int, dropout: float, **sizes: int) -> None:
    """Check the sizes and the dropout of an encoder or a decoder."""
    for name, size in {**sizes, "num_layers": num_layers}.items():
        if size < 1:
            raise ValueError(f"{name}: got {size}; expected at least 1")
    check_probability("dropout", dropout)
    if dropout and num_layers == 1:
        raise ValueError(f"dropout: got {dropout} with one layer; expected 0, or more layers, between which it acts")


def check_probability(name: str, value: float) -> None:
    """Check that a number is from 0 to 1."""
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name}: got {value}; expected a probability, from 0 to 1")


def check_lengths(lengths: Tensor, batch: int, positions: int, of: str) -> Tensor:
    """Check lengths of sequences, from 1 to their positions; return them on the CPU where their values can be read."""
    if not isinstance(lengths, Tensor):
        raise TypeError(f"lengths: got {type(lengths).__name__}; expected a torch.Tensor of integers")
    check_dense("lengths", lengths)
    if lengths.is_floating_point() or lengths.is_complex():
        raise TypeError(f"lengths: got dtype {lengths.dtype}; expected integers")
    if tuple(lengths.shape) != (batch,):
        raise ValueError(f"lengths: got shape {tuple(lengths.shape)}; expected (batch,) = ({batch},)")
    if not has_values(lengths):
        return lengths
    lengths = lengths.cpu()
    if batch and (int(lengths.min()) < 1 or int(lengths.max()) > positions):
        raise ValueError(f"lengths: got {lengths.tolist()}; expected each from 1 to the {positions} {of}")
    return lengths


def has_values(lengths: Tensor) -> bool:
    """True for lengths that can be read here and now, if need be from another device."""
    return lengths.device.type != "meta" and can_read_values(lengths.new_empty(0, device="cpu"))


def chosen_implementation(impl: str, obstacles: list[str]) -> str:
    """The implementation of a recurrence: `"numba"` where it runs, `"reference"` otherwise; a named one or an error."""
    if impl not in ("auto", "numba", "reference"):
        raise ValueError(f"impl: got {impl!r}; expected 'auto', 'numba' or 'reference'")
    if impl == "numba" and obstacles:
        raise ValueError(
            f"impl: got 'numba', which cannot run here: {'; '.join(obstacles)}; expected 'auto' or 'reference'"
        )
    if impl == "auto":
        return "reference" if obstacles else "numba"
    return impl
