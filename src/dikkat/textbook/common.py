"""The names of the textbook's library that are the same objects in every framework's module."""

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
