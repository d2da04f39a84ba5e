from dikkat.show import heatmaps, save
from dikkat.translation import Translator

translator = Translator.load("demo/model")
(found,) = translator.translate(["If you want to eat with us , we are going to wait for you at the station tomorrow ."])
words = {"queries": found.target_tokens, "keys": found.source_tokens}
save(heatmaps(found.weights, **words, xlabel="source", ylabel="translation"), "alignment.png")
