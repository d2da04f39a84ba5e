"""Attention in which every scoring function is exact, masked, inspectable and mergeable."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dikkat import distributed, scores, show
    from dikkat.adapters import as_torch_attention
    from dikkat.addresses import check_values
    from dikkat.attention import (
        Implementation,
        Memory,
        attend,
        attend_memory,
        attention_state,
        attention_weights,
        implementations,
        prepare,
    )
    from dikkat.huggingface import register_transformers
    from dikkat.inspection import (
        Attentions,
        Inspection,
        Requesting,
        Timestamps,
        Trace,
        inspect,
        record,
        token_timestamps,
    )
    from dikkat.inspection.returned import attentions
    from dikkat.layers import (
        AdditiveAttention,
        BilinearAttention,
        DotProductAttention,
        KernelAttention,
        MultiHeadAttention,
        SelfAttention,
        self_attention,
    )
    from dikkat.masking import Restricting, masked_softmax
    from dikkat.state import State, merge

__version__ = "0.1.0"

__all__ = [
    "AdditiveAttention",
    "Attentions",
    "BilinearAttention",
    "DotProductAttention",
    "Implementation",
    "Inspection",
    "KernelAttention",
    "Memory",
    "MultiHeadAttention",
    "Requesting",
    "Restricting",
    "SelfAttention",
    "State",
    "Timestamps",
    "Trace",
    "as_torch_attention",
    "attend",
    "attend_memory",
    "attention_state",
    "attention_weights",
    "attentions",
    "check_values",
    "distributed",
    "implementations",
    "inspect",
    "masked_softmax",
    "merge",
    "prepare",
    "record",
    "register_transformers",
    "scores",
    "self_attention",
    "show",
    "token_timestamps",
]


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first asked for.

    Nobody needs PyTorch to read a page of help or a message, and whoever stops the command line while PyTorch is being
    imported is to see no traceback: so nothing is imported before there is somebody who would catch the interrupt.
    """
    if name in ("distributed", "scores", "show"):
        return import_module(f"dikkat.{name}")
    if name in __all__:
        for home in ("attention", "state", "layers", "masking", "addresses", "adapters", "inspection", "huggingface"):
            if hasattr(module := import_module(f"dikkat.{home}"), name):
                return globals().setdefault(name, getattr(module, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, whether imported or not."""
    return sorted({*globals(), *__all__})
