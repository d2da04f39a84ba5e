"""Kernel regression: attention pooling over training rows, with a learned bandwidth."""

from dikkat.extras import require_extra

with require_extra("regression"):
    from dikkat.regression.classifier import KernelClassifier
    from dikkat.regression.curves import Smooth, lowess, smooth
    from dikkat.regression.density import KernelDensity
    from dikkat.regression.estimator import KernelRegressor, NadarayaWatson
    from dikkat.regression.shapes import Band, Estimate

__all__ = [
    "Band",
    "Estimate",
    "KernelClassifier",
    "KernelDensity",
    "KernelRegressor",
    "NadarayaWatson",
    "Smooth",
    "lowess",
    "smooth",
]
