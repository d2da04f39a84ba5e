"""Whether a way computes what it should: its loss and gradients against float64, in the error budget of the design.

Error ≤ 2 × the textbook's loop's error in the same precision + 4·eps·S. A gradient is a sum over sentences, and S is
the sum of their shares' absolute values; for the weight of a linear layer, a sum over all rows that it is given; for
the loss, √N times the sentences' sum, with N tokens.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from benchmarks.translation.corpora import Sizes, sentence, tokens
from benchmarks.translation.networks import LOOP, LOOP_HALF, OURS_HALF, REFERENCE, Way, our_name, way
from dikkat.translation.network.model import Batch

HALVES = (LOOP_HALF, OURS_HALF)
# Two programs in float64, both rounding: far from any mistake, and far above what they differ by.
EXACT = 1e-9


@dataclass
class Truth:
    """The loss and the gradients of a batch in float64, by our names, and how far off an answer may be."""

    exact: dict[str, Tensor]
    scales: dict[str, Tensor]
    plain: dict[bool, dict[str, Tensor]]

    def off(self, answer: dict[str, Tensor], half: bool) -> list[str]:
        """What is wrong in an answer."""
        return [name for name in self.exact if not self.worst(answer, half)[name] <= 1]

    def worst(self, answer: dict[str, Tensor], half: bool) -> dict[str, float]:
        """Each part's error over what is allowed."""
        eps = torch.finfo(torch.bfloat16 if half else torch.float32).eps
        found = {}
        for name, right in self.exact.items():
            allowed = 2 * _error(self.plain[half][name], right)
            # Of a sum over everything, in bfloat16, the second term alone would let anything pass.
            allowed += min(4 * eps * self.scales[name].max().item(), right.abs().max().item() / 8)
            found[name] = _error(answer[name], right) / allowed
        return found


def truth(sizes: Sizes, batch: Batch) -> Truth:
    """From the loop, one sentence at a time.

    Raises:
        ArithmeticError: The loop and this library's plain path differ in float64, so that nothing is known to be right.
    """
    loop = way(LOOP, sizes, torch.float64)
    exact = _kept(loop.gradients(batch))
    scales = {name: torch.zeros_like(tensor) for name, tensor in exact.items()}
    for row in range(len(batch.source)):
        one = sentence(batch, row)
        for name, share in loop.gradients(one).items():
            scales[name] += share.abs() * (tokens(one) / tokens(batch))
    for name, scale in _linear_scales(loop, batch).items():
        scales[name] = torch.maximum(scales[name], scale)
    # What adds up N losses one by one, as compiled loops do, errs by some √N roundings; PyTorch's own sum by log N.
    scales["loss"] *= math.sqrt(tokens(batch))
    other = way(REFERENCE, sizes, torch.float64).gradients(batch)
    wrong = [name for name, tensor in exact.items() if _error(other[name], tensor) > EXACT * scales[name].max().item()]
    if wrong:
        raise ArithmeticError("the loop and the reference differ in float64: " + ", ".join(wrong))
    plain = {name in HALVES: _kept(way(name, sizes).gradients(batch)) for name in (LOOP, LOOP_HALF)}
    return Truth(exact, scales, plain)


def _linear_scales(loop: Way, batch: Batch) -> dict[str, Tensor]:
    """Of the loop's linear layers' weights: the sum over all rows of |gradient of the output| |input|."""
    scales: dict[str, Tensor] = {}

    def watch(name: str, layer: nn.Linear) -> RemovableHandle:
        def forward(_: nn.Module, given: tuple[Tensor], output: Tensor) -> None:
            rows = given[0].detach().flatten(0, -2).abs()

            def backward(gradient: Tensor) -> None:
                share = gradient.flatten(0, -2).abs().T @ rows
                scales[name] = scales[name] + share if name in scales else share

            output.register_hook(backward)

        return layer.register_forward_hook(forward)

    layers = [(name, layer) for name, layer in loop.model.named_modules() if isinstance(layer, nn.Linear)]
    handles = [watch(our_name(f"{name}.weight"), layer) for name, layer in layers]
    loop.gradients(batch)
    for handle in handles:
        handle.remove()
    return scales


def objection(right: Truth, entrant: Way, batch: Batch) -> str | None:
    """What is wrong with a way, if anything is."""
    try:
        answer = entrant.gradients(batch)
    except Exception as error:  # whatever a compiler or a kernel raises: the others go on
        return f"failed: {type(error).__name__}: {error}".partition("\n")[0][:200]
    off = right.off(answer, entrant.name in HALVES)
    return "disagrees with float64: " + ", ".join(off) if off else None


def _error(came: Tensor, right: Tensor) -> float:
    return (came.double() - right).abs().max().item()


def _kept(answer: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in answer.items()}
