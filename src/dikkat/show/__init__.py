"""Pictures of attention: heat maps of weights, and an interactive page of translations."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dikkat.show.heatmaps import heatmaps, save
from dikkat.show.page import Aligned, page, save_page
from dikkat.show.summaries import entropies, key_sums

__all__ = ["Aligned", "attention", "entropies", "heatmaps", "key_sums", "page", "save", "save_page"]

if TYPE_CHECKING:
    from collections.abc import Callable

    attention: Callable[..., Any]


def __getattr__(name: str) -> Any:
    """`attention`, which runs a model: it belongs to the recordings, a room above."""
    if name == "attention":
        return import_module("dikkat.inspection.page").attention
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
