from dikkat.show import heatmaps, save
from dikkat.translation import Translator

translator = Translator.load("demo/model")
(found,) = translator.translate(["These serious boys are going to help my father next week."])
words = {"queries": found.target_tokens, "keys": found.source_tokens}
save(heatmaps(found.weights, **words, xlabel="source", ylabel="translation"), "alignment.png")
