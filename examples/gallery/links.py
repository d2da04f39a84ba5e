from dikkat.show import save_page
from dikkat.translation import Translator

translator = Translator.load("demo/model")
sentences = ["I am tired because I worked.", "Where is your sister?", "She is going to sing with us."]
save_page("links.html", translator.translate(sentences), title="Where each word looks")
