"""The names of the textbook's library that are the same objects in every framework's module."""

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

# Modules that the book's library imports, and its readers use through it, by their names there.
_MODULES = {name: name for name in ("collections", "hashlib", "inspect", "math", "os", "random", "re", "sys", "time")}
_MODULES |= {"np": "numpy", "pd": "pandas"}
_ON_PYTORCH = ("DataModule", "GRU", "MTFraEng", "Module", "Seq2Seq", "Trainer")
_OF_A_CELL = ("NWKernelRegression", "Seq2SeqAttentionDecoder")


def absent(module: str, name: str) -> Any:
    """The `__getattr__` of the frameworks' modules: a module that the book's library has imported, or an error."""
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    reason = "it is not of the attention chapters; the book's own library, d2l, may have it"
    if name in _ON_PYTORCH:
        reason = "it is of the book's edition 1.0, whose training runs in dikkat.textbook.torch alone"
    elif name in _OF_A_CELL:
        reason = "the chapter's own cell defines it, and the book's library does not have it either"
    raise AttributeError(f"module {module!r} has no attribute {name!r}: {reason}")


def devices(
    cpu: Callable[[], Any], gpu: Callable[[int], Any], num_gpus: Callable[[], int]
) -> tuple[Callable[..., Any], Callable[[], list[Any]]]:
    """The functions `try_gpu` and `try_all_gpus` of a framework, made of three that it has."""

    def try_gpu(i: int = 0) -> Any:
        """The i-th GPU if it is there, otherwise the CPU."""
        return gpu(i) if num_gpus() > i else cpu()

    def try_all_gpus() -> list[Any]:
        """All GPUs, or a list of the CPU where there are none."""
        return [gpu(i) for i in range(num_gpus())] or [cpu()]

    return try_gpu, try_all_gpus


def run_epochs(
    step: Callable[[Any], tuple[float, float]], batches: Iterable[Any], num_epochs: int, device: Any
) -> None:
    """Take a step of each batch, epoch by epoch; draw the loss of every tenth, and print the last one's."""
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
