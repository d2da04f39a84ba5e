"""The names of the textbook's library that are shared by the modules of all frameworks."""

import importlib
from collections.abc import Callable, Iterable
from typing import Any

from dikkat.textbook.pictures import (
    Animator,
    ProgressBoard,
    plot,
    plt,
    set_axes,
    set_figsize,
    show_heatmaps,
    use_svg_display,
)
from dikkat.textbook.text import Vocab, bleu, preprocess_nmt, read_data_nmt, tokenize_nmt, truncate_pad
from dikkat.textbook.tools import Accumulator, HyperParameters, Timer, add_to_class, check_len, check_shape

__all__ = [  # noqa: RUF022 - by kind
    "Accumulator", "Animator", "HyperParameters", "ProgressBoard", "Timer", "add_to_class", "check_len", "check_shape",
    "plot", "plt", "set_axes", "set_figsize", "show_heatmaps", "use_svg_display",
    "Vocab", "bleu", "preprocess_nmt", "read_data_nmt", "tokenize_nmt", "truncate_pad",
]  # fmt: skip

# Modules that the book's readers use through its library, by their names there.
_MODULES = {name: name for name in ("collections", "hashlib", "inspect", "math", "os", "random", "re", "sys", "time")}
_MODULES |= {"np": "numpy", "pd": "pandas"}
_PYTORCH_ONLY = ("DataModule", "GRU", "MTFraEng", "Module", "Seq2Seq", "Trainer")
_IN_CHAPTER_CELLS = ("NWKernelRegression", "Seq2SeqAttentionDecoder")


def absent(module: str, name: str) -> Any:
    """Return a module that the book's library imports, or raise; the `__getattr__` of the frameworks' modules."""
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    reason = "it is not in the attention chapters; the book's library d2l may have it"
    if name in _PYTORCH_ONLY:
        reason = "it is from the book's edition 1.0, whose training runs only in dikkat.textbook.torch"
    elif name in _IN_CHAPTER_CELLS:
        reason = "a cell of the chapter defines it; the book's library does not have it either"
    raise AttributeError(f"module {module!r} has no attribute {name!r}: {reason}")


def devices(
    cpu: Callable[[], Any], gpu: Callable[[int], Any], num_gpus: Callable[[], int]
) -> tuple[Callable[..., Any], Callable[[], list[Any]]]:
    """Return the functions `try_gpu` and `try_all_gpus` of a framework."""

    def try_gpu(i: int = 0) -> Any:
        """Return the i-th GPU, or the CPU if there is none."""
        return gpu(i) if num_gpus() > i else cpu()

    def try_all_gpus() -> list[Any]:
        """Return all GPUs, or [CPU] without a GPU."""
        return [gpu(i) for i in range(num_gpus())] or [cpu()]

    return try_gpu, try_all_gpus


def run_epochs(
    step: Callable[[Any], tuple[float, float]], batches: Iterable[Any], num_epochs: int, device: Any
) -> None:
    """Train with `step` on each batch; draw the loss of every tenth epoch, and print that of the last."""
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
