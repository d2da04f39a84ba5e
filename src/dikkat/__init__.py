"""Attention in which every scoring function is exact, masked, inspectable and mergeable."""

__version__ = "0.1.0"
