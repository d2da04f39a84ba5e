"""Pages of sentences and of calls in a real browser, without a network: `web/test/pages.mjs` is what a reader does."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import torch
from chromium import names, needs_chromium, outcomes_of

from dikkat import Trace, show
from dikkat.inspection import Token
from dikkat.inspection.calls import Call
from dikkat.inspection.generation import Generation
from dikkat.inspection.request import Inspection
from dikkat.show import save_page
from dikkat.show.comparison import Side, comparison_page


def sentence(source_tokens, target_tokens, weights, reference=None, **texts):
    texts = {"source": " ".join(source_tokens), "target": " ".join(target_tokens), **texts}
    given = {"source_tokens": source_tokens, "target_tokens": target_tokens, "weights": weights}
    return SimpleNamespace(**texts, **given, reference=reference)


def sentences():
    """Forty, of which the first has numbers that can be told apart, the third hostile words, the fourth very many."""
    cat = sentence(
        ["le", "chat", "noir"], ["the", "black", "cat"], [[1, 0, 0], [0.0021, 0.62496, 0.3729], [0.25, 0.75, 0]],
        source="le chat noir, l’été", reference="the dark cat",
    )  # fmt: skip
    hostile = ["<script>alert(1)</script>", "a\u200bb", "\u202eevil", "\ud800"]
    nasty = sentence(["שלום", "עולם"], hostile, torch.full((4, 2), 0.5))
    large = sentence([f"v{k}" for k in range(100)], [f"w{k}" for k in range(70)], torch.full((70, 100), 0.01))
    plain = [sentence(["a", "b"], [f"t{k}", "end"], [[1, 0], [0.25, 0.5]]) for k in range(41)]
    return [cat, plain[2], nasty, large, *plain[5:]]


def trace():
    """Three calls: two of a module whose name is no markup, and one of very many keys."""
    made, half = Trace(), math.log(2)
    map_ = torch.rand(1, 2, 5, 7, generator=torch.Generator().manual_seed(5))
    many = torch.rand(1, 17, 100_000, generator=torch.Generator().manual_seed(6))
    made.add(Inspection(rows=map_, entropy=torch.tensor([[[half], [0.0]]])), Call("<b>bold</b>"))
    made.add(Inspection(overview=map_, entropy=torch.tensor([[[half]]])), Call("<b>bold</b>"))
    made.add(Inspection(sums=many), Call("long"))
    return made


def looks():
    """What a model of two layers and three heads looks at, over five tokens: one more key ahead in each head."""
    made, weights = Trace(), torch.tensor([0.5, 0.25, 0.125, 0.125, 0.0])
    for layer in range(2):
        rows = [[weights.roll(query + head + layer) for query in range(5)] for head in range(3)]
        map_ = torch.stack([torch.stack(each) for each in rows])[None]
        top = map_.topk(4, -1)
        made.add(Inspection(top_weights=top.values, top_keys=top.indices, overview=map_), Call(f"layers.{layer}"))
    made.tokens = {
        "self": [Token("<s>", special=True), Token("a"), Token("long"), Token("est", continues=True), Token("day")]
    }
    return made


WORDS = ["the", "quick", "brown", "fox", "runs", "by", "moon", "light"]  # the last two are parts of one word


def long_text(folder):
    """Four hundred tokens, of which each looks at the one before, and at all others at random; and all weights."""
    torch.manual_seed(7)
    logits = torch.randn(2, 2, 400, 400) + 8 * torch.eye(400).roll(-1, 1)
    weights = (logits + torch.full((400, 400), -math.inf).triu(1)).softmax(-1)
    tokens = [Token(WORDS[k % 8], continues=k % 8 == 7) for k in range(400)]
    show.weights(weights, tokens=tokens, path=folder / "long.html")
    (folder / "long.json").write_text(json.dumps(weights[0, 0].tolist()), encoding="utf-8")


def mixed_text(folder):
    """Tokens of both directions, and some that cannot be seen."""
    tokens = ["שלום", "עולם", "مرحبا", "text", " ", "\n\t", "", "\u202eevil"]
    weights = torch.full((8, 8), 0.05) + 0.6 * torch.eye(8).roll(1, 1)
    show.weights(weights, tokens=tokens, path=folder / "mixed.html")


def batch(folder):
    """Two elements of a batch whose heads look at all tokens alike."""
    layer = torch.nn.TransformerEncoderLayer(6, 3, 8, batch_first=True)
    torch.nn.init.zeros_(layer.self_attn.in_proj_weight)
    model = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    tokens = [list("abcde"), list("fghij")]
    show.attention(model, torch.randn(2, 5, 6), tokens=tokens, element=[0, 1], path=folder / "batch.html")


def changed(folder):
    """The difference of two runs of two layers and three heads; and effects of heads, of which one is not known."""
    first, second = torch.full((2, 3, 4, 4), 0.25), torch.full((2, 3, 4, 4), 0.25)
    first[1, 2] = torch.tensor([0.75, 0.25, 0, 0])  # 50 % more for the first token, 25 % less for the last two
    words = ["a", "red", "rose", "falls"]
    difference = show.weights(list(first), tokens=words) - show.weights(list(second), tokens=words)
    difference.to_html(folder / "difference.html")
    names = ("layer", "module", "head", "effect", "estimate")
    rows = [(1, "layers.1", 0, -9.25, 1.0), (0, "layers.0", 2, 0.5, 1.0), (0, "layers.0", 1, 0.0, 1.0),
            (1, "layers.1", 1, 4.0, 1.0), (1, "layers.1", 2, -0.015, 1.0)]  # fmt: skip
    table = pandas.DataFrame(rows, columns=names)
    recorded = looks()
    recorded._calls = [(call._replace(layer=layer), seen) for layer, (call, seen) in enumerate(recorded.calls())]
    recorded.to_html(folder / "effects.html", effects=table)
    recorded.to_html(folder / "estimates.html", effects=table.assign(effect=math.nan))


def passages():
    """Two written tokens, and the masses of two passages in two heads of each of layers 2 and 3."""
    first = [[0.5, 0.1, 0.4, 0], [0.1, 0.5, 0.4, 0], [0.3, 0.3, 0.4, 0], [0.1, 0.1, 0.8, 0]]
    second = [[0.1, 0.3, 0.4, 0.2]] * 3 + [[0.4, 0, 0.5, 0.1]]
    return Generation(
        text="the <b>", tokens=["the", "<b>"], spans=["1: le chat", "<i>2</i>", "first token", "answer so far"],
        masses=np.array([first, second]), even=np.array([0.3, 0.2, 0.1, 0]),
        layers=np.array([2, 2, 3, 3]), heads=np.array([0, 2, 0, 1]),
        prompt=[("le chat", 0), ("\n", -1), ("<i>a</i>", 1), (" b", -1)], title="Passages",
    )  # fmt: skip


@pytest.fixture(scope="session")
def outcomes(translator, tmp_path_factory):
    def prepare(folder):
        shown = sentences()
        languages = {"source_language": "fr", "target_language": "en"}
        save_page(folder / "sentences.html", shown, scores=[64.25] * len(shown), score_name="chrF", **languages)
        lines = ["The man is calm.", "I lost.", "Go."]
        save_page(folder / "alive.html", translator.translate(lines), translator=translator)
        texts = [text.split() for text in ("un homme", "un chat est parti", "un homme est parti")]
        versions = [[sentence(["a", "man", "left"], words, np.full((len(words), 3), 1 / 3))] for words in texts]
        sides = Side("model", [1, 2, 5], versions), Side("model", [], versions[2:])
        page = comparison_page(sides, title="Epochs", source_language="en", target_language="fr")
        (folder / "compared.html").write_text(page, encoding="utf-8")
        sides = Side("model", [1, 2], [versions[0] * 47, versions[1] * 47]), Side("other", [], [versions[2] * 47])
        (folder / "epochs.html").write_text(comparison_page(sides, title="Epochs"), encoding="utf-8")
        trace().to_html(folder / "calls.html", title="Calls of <i>a</i> model")
        looks().to_html(folder / "looks.html", title="Where the model looks")
        long_text(folder)
        mixed_text(folder)
        batch(folder)
        changed(folder)
        (folder / "read.html").write_text(passages()._page(), encoding="utf-8")
        return [folder]

    return outcomes_of("pages.mjs", tmp_path_factory, prepare)


@needs_chromium
@pytest.mark.parametrize("name", names("pages.mjs"))
def test_in_a_browser(outcomes, name):
    assert outcomes[name] is None, outcomes[name]
