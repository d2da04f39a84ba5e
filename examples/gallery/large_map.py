import torch

from dikkat import inspect, scores
from dikkat.show import heatmaps, save

torch.manual_seed(0)
walk = torch.randn(10_000, 2).cumsum(0)[None]  # a walk of ten thousand steps
seen = inspect(walk, walk, score=scores.Gaussian(20.0), overview=300, entropy=True)  # and never all weights at once
picture = heatmaps(seen.overview[None], extent=(10_000, 10_000), xlabel="Steps looked at", ylabel="Steps")
save(picture, "large_map.png")
