"""Pictures of attention: heat maps of weights, and an interactive page of translations."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dikkat.show.heatmaps import heatmaps, save
from dikkat.show.page import Aligned, page, save_page
from dikkat.show.summaries import entropies, key_sums

__all__ = ["Aligned", "attention", "entropies", "heatmaps", "key_sums", "page", "save", "save_page", "weights"]

if TYPE_CHECKING:
    from collections.abc import Callable

    attention: Callable[..., Any]
    weights: Callable[..., Any]


def __getattr__(name: str) -> Any:
    """Import `attention` and `weights` on first use, as `dikkat.inspection` imports this package."""
    if name in ("attention", "weights"):
        return getattr(import_module("dikkat.inspection.page"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
