"""What a model looks at: heat maps of attention weights, and a page of translations that answers the pointer."""

from dikkat.show.heatmaps import heatmaps, save

__all__ = ["heatmaps", "save"]
