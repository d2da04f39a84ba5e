"""See what attention looks at: attention layers, scores and weights, inspection of models, translators, regression."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dikkat._version import __version__ as __version__

if TYPE_CHECKING:
    from dikkat import distributed, scores, show
    from dikkat._core.restricting import Restricting
    from dikkat._core.softmax import masked_softmax
    from dikkat._engine.pytorch_state import check_values
    from dikkat.adapters import as_torch_attention
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
    from dikkat.bags import AttentionPooling, LengthBatchSampler, PooledBags, collate_bags
    from dikkat.huggingface import register_transformers
    from dikkat.inspection import (
        Attentions,
        Changed,
        Grid,
        Inspection,
        Requesting,
        Times,
        Trace,
        Words,
        change,
        compare,
        effects,
        inspect,
        record,
        relevance,
        watch,
    )
    from dikkat.inspection.output_attentions import attentions
    from dikkat.layers import (
        AdditiveAttention,
        BilinearAttention,
        DotProductAttention,
        KernelAttention,
        MultiHeadAttention,
        SelfAttention,
        self_attention,
    )
    from dikkat.ragged import attend_ragged, ragged_state
    from dikkat.state import State, merge

__all__ = [
    "AdditiveAttention", "AttentionPooling", "Attentions", "BilinearAttention", "Changed", "DotProductAttention",
    "Grid", "Implementation", "Inspection", "KernelAttention", "LengthBatchSampler", "Memory", "MultiHeadAttention",
    "PooledBags", "Requesting", "Restricting", "SelfAttention", "State", "Times", "Trace", "Words",
    "as_torch_attention", "attend", "attend_memory", "attend_ragged", "attention_state", "attention_weights",
    "attentions", "change", "check_values", "collate_bags", "compare", "distributed", "effects", "implementations",
    "inspect", "masked_softmax", "merge", "prepare", "ragged_state", "record", "register_transformers", "relevance",
    "scores", "self_attention", "show", "watch",
]  # fmt: skip

_SUBMODULES = (
    "attention", "bags", "distributed", "inspection", "layers", "recurrent", "regression",
    "scores", "show", "state", "textbook", "translation",
)  # fmt: skip

# The modules that define the public names.
_DEFINING_MODULES = (
    "attention", "ragged", "state", "layers", "_core.softmax", "_core.restricting", "_engine.pytorch_state",
    "adapters", "inspection", "huggingface", "bags",
)  # fmt: skip

# Public names of subpackages that users may expect here, by their lower-case form.
_SUGGESTIONS = {
    name.rpartition(".")[2].lower(): name
    for name in (
        "recurrent.AttentionalGRU", "recurrent.AttentionalLSTM", "regression.KernelClassifier",
        "regression.KernelDensity", "regression.KernelRegressor", "regression.NadarayaWatson", "regression.lowess",
        "regression.smooth", "show.heatmaps", "translation.Translator", "translation.train",
    )
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name on first use.

    So the command line shows help and messages without PyTorch, and handles Ctrl-C before PyTorch's slow import starts.
    """
    if name in _SUBMODULES:
        return import_module(f"dikkat.{name}")
    if name in __all__:
        for home in _DEFINING_MODULES:
            if hasattr(module := import_module(f"dikkat.{home}"), name):
                return globals().setdefault(name, getattr(module, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_suggest(name)}", name=name)


def _suggest(name: str) -> str:
    if name.startswith("_"):
        return ""
    from difflib import get_close_matches

    scores = import_module("dikkat.scores")
    classes = {key: value for key, value in vars(scores).items() if isinstance(value, type) and key[0] != "_"}
    known = {key.lower(): f"scores.{key}" for key, value in classes.items() if issubclass(value, scores.Score)}
    known |= {public.lower(): public for public in (*__all__, *_SUBMODULES)} | _SUGGESTIONS
    near = get_close_matches(name.lower(), known, n=1, cutoff=0.7)
    return f"; did you mean dikkat.{known[near[0]]}?" if near else ". See help(dikkat) or dir(dikkat)"


def __dir__() -> list[str]:
    """List the public names, whether imported or not."""
    return sorted({*globals(), *__all__, *_SUBMODULES})
