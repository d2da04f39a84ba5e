"""Pictures of attention: heat maps of weights, and an interactive page of translations."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dikkat.show.heatmaps import heatmaps, save
from dikkat.show.overlays import on_image
from dikkat.show.page import Aligned, page, save_page
from dikkat.show.summaries import entropies, key_sums

__all__ = [
    "Aligned", "attention", "entropies", "example_model", "generation", "heatmaps", "key_sums", "on_image", "page",
    "save", "save_page", "weights",
]  # fmt: skip

# Names that are imported on first use: dikkat.inspection imports this package, and the example needs PyTorch.
_MODULES = {
    "attention": "inspection.page", "weights": "inspection.page", "generation": "inspection.generation",
    "example_model": "show.example",
}  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Callable

    from dikkat.show.example import example_model

    attention: Callable[..., Any]
    generation: Callable[..., Any]
    weights: Callable[..., Any]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"dikkat.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
