import torch

from dikkat import attention_weights, scores
from dikkat.show import heatmaps, save

angle = torch.linspace(0, 12, 40)
points = torch.stack([angle.cos(), angle.sin()], -1)[None] * angle[:, None] / 6  # a spiral of forty points
choices = {"Dot": scores.Dot(), "Cosine": scores.Cosine(), "Gaussian": scores.Gaussian(1.0)}
maps = [attention_weights(3 * points, 3 * points, score=score)[0] for score in choices.values()]
rows = [each / each.amax(-1, keepdim=True) for each in maps]  # each row by its largest weight
save(heatmaps(rows, titles=list(choices), xlabel="Keys: points of a spiral"), "scores.png")
