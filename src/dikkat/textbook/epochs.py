"""The epochs of the first edition's training, which are the same in every framework."""

from collections.abc import Callable, Iterable
from typing import Any

from dikkat.textbook.pictures import Animator
from dikkat.textbook.tools import Accumulator, Timer

__all__ = ["run_epochs"]


def run_epochs(
    step: Callable[[Any], tuple[float, float]], batches: Iterable[Any], num_epochs: int, device: Any
) -> None:
    """Take a step of each batch, epoch by epoch; draw the loss of every tenth, and print the last one's.

    Args:
        step: Learns from a batch; returns the sum of its loss, and how many target tokens it has.
        batches: One epoch's.
        num_epochs: How often.
        device: Where it happens, for what is printed.
    """
    animator, timer = Animator(xlabel="epoch", ylabel="loss", xlim=[1, num_epochs]), Timer()
    for epoch in range(1, num_epochs + 1):
        timer.start()
        metric = Accumulator(2)
        for batch in batches:
            metric.add(*step(batch))
        timer.stop()
        if epoch % 10 == 0:
            animator.add(epoch, metric[0] / metric[1])
    print(f"loss {metric[0] / metric[1]:.3f}, {metric[1] / timer.times[-1]:.1f} tokens/sec on {device}")
