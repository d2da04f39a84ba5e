"""The names of the textbook's library that are the same objects in every framework's module."""

import importlib
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
    """The `__getattr__` of the frameworks' modules: a module that the book's library has imported, or an error.

    Raises:
        AttributeError: The name is not of the attention chapters, or not of the edition that the module is of.
    """
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    reason = "it is not of the attention chapters; the book's own library, d2l, may have it"
    if name in _ON_PYTORCH:
        reason = "it is of the book's edition 1.0, whose training runs in dikkat.textbook.torch alone"
    elif name in _OF_A_CELL:
        reason = "the chapter's own cell defines it, and the book's library does not have it either"
    raise AttributeError(f"module {module!r} has no attribute {name!r}: {reason}")
