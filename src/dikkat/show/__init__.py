"""Pictures of attention: heat maps of weights, and an interactive page of translations."""

from dikkat.show.heatmaps import heatmaps, save
from dikkat.show.page import Aligned, page, save_page
from dikkat.show.summaries import entropies, key_sums
from dikkat.show.views import attention

__all__ = ["Aligned", "attention", "entropies", "heatmaps", "key_sums", "page", "save", "save_page"]
