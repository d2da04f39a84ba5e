"""Checks of the arguments of encoders and decoders, and the choice of an implementation."""

from torch import Tensor

from dikkat._engine.addresses import check_dense
from dikkat._engine.pytorch_state import can_read_values


def check_stack(num_layers: int, dropout: float, **sizes: int) -> None:
    """Raise `ValueError` for a size below 1, or a dropout outside 0…1 or without a second layer."""
    for name, size in {**sizes, "num_layers": num_layers}.items():
        if size < 1:
            raise ValueError(f"{name}: got {size}; expected at least 1")
    check_probability("dropout", dropout)
    if dropout and num_layers == 1:
        raise ValueError(f"dropout: got {dropout} with num_layers=1; expected 0, as dropout acts between layers")


def check_probability(name: str, value: float) -> None:
    """Raise `ValueError` for a number outside 0…1."""
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name}: got {value}; expected a probability, from 0 to 1")


def check_lengths(lengths: Tensor, batch: int, positions: int, unit: str) -> Tensor:
    """Check lengths (B,) from 1 to `positions` (in errors: `unit`); return them on the CPU if they can be read."""
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
        raise ValueError(f"lengths: got {lengths.tolist()}; expected each from 1 to the {positions} {unit}")
    return lengths


def has_values(lengths: Tensor) -> bool:
    """Whether Python can read lengths, also from another device: they are not meta, and nothing is being traced."""
    return lengths.device.type != "meta" and can_read_values(lengths.new_empty(0, device="cpu"))


def choose_implementation(impl: str, obstacles: list[str]) -> str:
    """Return `"numba"` or `"reference"`. `"auto"` is `"numba"` unless there are obstacles."""
    if impl not in ("auto", "numba", "reference"):
        raise ValueError(f"impl: got {impl!r}; expected 'auto', 'numba' or 'reference'")
    if impl == "numba" and obstacles:
        raise ValueError(
            f"impl: got 'numba', which cannot run here: {'; '.join(obstacles)}; expected 'auto' or 'reference'"
        )
    if impl == "auto":
        return "reference" if obstacles else "numba"
    return impl
