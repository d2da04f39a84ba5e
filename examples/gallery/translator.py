from dikkat.translation import Translator

translator = Translator.load("demo/model")
examples = ["I am tired because I worked.", "Where is your sister?", "She is going to sing with us."]
translator.export_html("translator.html", title="English → French", examples=examples)
