import torch
from dikkat import attention_weights, scores
from dikkat.show import heatmaps, save

angle = torch.linspace(0, 12, 40)
points = torch.stack([angle.cos(), angle.sin()], -1)[None] * angle[:, None] / 6  # a spiral of forty points
choices = {"Dot": scores.Dot(), "Cosine": scores.Cosine(), "Gaussian": scores.Gaussian(0.3)}
maps = [attention_weights(points, points, score=score)[0] for score in choices.values()]
save(heatmaps(maps, titles=list(choices), xlabel="Keys: points of a spiral"), "scores.png")
