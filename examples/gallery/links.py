from dikkat.show import save_page
from dikkat.translation import Translator

translator = Translator.load("demo/model")
sentences = ["I am tired because I worked.", "Where is your sister?", "He is going to eat with us.", "She lost the book."]
save_page("links.html", translator.translate(sentences), title="Where each word looks")
