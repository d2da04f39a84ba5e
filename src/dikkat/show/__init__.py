"""What a model looks at: heat maps of attention weights, and a page of translations that answers the pointer."""

from dikkat.show.heatmaps import heatmaps, save
from dikkat.show.page import Aligned, page, save_page

__all__ = ["Aligned", "heatmaps", "page", "save", "save_page"]
