"""Each chapter runs, writes figures that are pictures, and finds what it says; expected values by NumPy or PyTorch."""

import math
import re
import runpy
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from dikkat.translation import Tokenizer

FOLDER = Path(__file__).parents[2] / "examples" / "textbook"


def functions(chapter):
    """What is defined in a chapter, which does not run."""
    return runpy.run_path(str(FOLDER / f"{chapter}.py"))


@pytest.fixture(autouse=True)
def as_before():
    """Random numbers and threads stay as they were; two threads would wait for each other at every small product."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run a chapter as from a shell; returns what it printed."""

    def call(chapter, *options):
        monkeypatch.setattr(sys, "argv", [f"{chapter}.py", "--output", str(tmp_path / "figures"), *options])
        runpy.run_path(str(FOLDER / f"{chapter}.py"), run_name="__main__")
        return capsys.readouterr().out

    return call


def check_figures(folder, *names):
    """These, no more, each with something on it other than paper."""
    assert sorted(path.stem for path in folder.iterdir()) == sorted(names)
    for path in folder.iterdir():
        pixels = imread(path)[..., :3]
        assert min(pixels.shape[:2]) > 300, path
        assert 0.01 < (pixels < 0.9).any(-1).mean() < 0.9, path


def after(text, label):
    """The number behind a label."""
    found = re.search(re.escape(label) + r"\s*(-?[\d.,]*\d(?:e[-+]\d+)?)", text)
    assert found, (label, text)
    return float(found[1].replace(",", ""))


def estimates(at, x, y, kernel):
    """Nadaraya and Watson's, by their formula."""
    weights = kernel(at[:, None] - x)
    return (weights * y).sum(1) / weights.sum(1)


def test_attention_pooling(run, tmp_path):
    text = run("attention_pooling")
    check_figures(tmp_path / "figures", "pooling-kernels", "pooling-learned", "pooling-widths")

    x, y, at, truth = (column[:, 0].numpy() for column in functions("attention_pooling")["draw_data"]())
    kernels = {
        "average": np.ones_like,
        "Gaussian": lambda r: np.exp(-(r**2) / 2),
        "boxcar": lambda r: (abs(r) <= 1).astype(float),
        "Epanechnikov": lambda r: np.maximum(0, 1 - r**2),
        "triangular": lambda r: np.maximum(0, 1 - abs(r)),
    }
    for name, kernel in kernels.items():
        expected = ((estimates(at, x, y, kernel) - truth) ** 2).mean()
        assert after(text, name) == pytest.approx(expected, abs=6e-4)

    def left_out(sigma):
        weights = np.exp(-(((x[:, None] - x) / sigma) ** 2) / 2)
        np.fill_diagonal(weights, 0)
        return (((weights @ y) / weights.sum(1) - y) ** 2).mean()

    widths = np.arange(0.05, 1.5, 0.001)
    best = widths[np.argmin([left_out(width) for width in widths])]
    assert after(text, "learned width: σ =") == pytest.approx(best, abs=2e-3)
    assert after(text, "w = 1/σ =") == pytest.approx(1 / best, rel=1e-2)
    assert after(text, "NadarayaWatson finds: σ =") == pytest.approx(best, abs=2e-3)
    assert after(text, "where a point may see itself: σ =") < best / 10


def test_scoring_functions(run, tmp_path):
    text = run("scoring_functions")
    figures = ("same-keys", "other-keys", "sharpness", "vector-sum")
    check_figures(tmp_path / "figures", *(f"scoring-{name}" for name in figures))

    alike, own = text[text.index("same keys") : text.index("other keys")], text[text.index("other keys") :]
    # Means of the first 2 and of the first 6 rows of 0 ... 39 in fours.
    rows = np.arange(40.0).reshape(10, 4)
    means = ["[" + " ".join(f"{mean:.2f}" for mean in rows[:count].mean(0)) + "]" for count in (2, 6)]
    assert alike.count("  ".join(means)) == 2
    assert after(alike, "differ by at most") == 0
    assert after(own, "differ by at most") > 0.1
    assert "[0.50 0.50 0.00]" in text
    assert "[0.00 0.00 1.00], all of it on padding" in text
    assert "2 features after projection" in text
    assert after(text, "additive: between two queries, a weight changes by up to") > 0.1
    assert after(text, "vector sum: between two queries, a weight changes by up to") == 0


def test_the_bound_of_an_additive_score_holds():
    additive, dot, bound = functions("scoring_functions")["sharpness"](torch.logspace(-1, 3, 5)).values()
    assert (additive < bound).all()
    assert dot[-1] > bound[-1]
    assert additive[-1] == pytest.approx(additive[-2].item(), rel=0.05)  # longer keys no longer matter


def test_multi_head(run, tmp_path):
    text = run("multi_head")
    check_figures(tmp_path / "figures", *(f"multi-head-{name}" for name in ("untrained", "masks", "trained")))
    assert "output (2, 4, 100), weights (2, 5, 4, 6)" in text
    for label in ("head after head by hand: differs by", "output and weights differ by"):
        assert float(re.search(label + r" (\S+)", text)[1]) < 1e-5
    assert "torch says nan" in text
    assert after(text, "off the bias by") < 1e-6
    assert after(text, "nobody looks ahead:") < 1e-6
    assert 40 < after(text, "one head leaves") < 60  # one number in place of two
    assert after(text, "two heads") <= 1


def test_two_heads_share_the_work():
    heads = functions("multi_head")["train"](2).weights.numpy()
    first = np.eye(8)[[0] * 8]
    before = np.eye(8)[[0, *range(7)]]
    ways = sorted((np.abs(heads[0] - first).max(), np.abs(heads[0] - before).max()))
    assert ways[0] < 0.1 < ways[1]
    together = np.sort(heads.sum(0)[2:], axis=1)[:, -2:]
    np.testing.assert_allclose(together, 1, atol=0.1)  # two places, one each


def test_self_attention_in_pictures(run, tmp_path):
    text = run("self_attention_in_pictures")
    figures = ("projections", "products", "weights", "mixture", "query-key-value", "scaling", "shuffled")
    check_figures(tmp_path / "figures", *(f"self-{name}" for name in figures))

    x = np.array([[1.8, 0.3], [1.3, 1.0], [0.2, 1.5]])
    weights = np.exp(x @ x.T)
    weights /= weights.sum(1, keepdims=True)
    for character, row, mixed in zip("早上好", weights, weights @ x, strict=True):
        line = next(line for line in text.splitlines() if line.startswith(character))
        numbers = [float(number) for number in re.findall(r"\d+\.\d+", line)][2:]
        np.testing.assert_allclose(numbers, [*mixed, *row], atol=6e-3)
    assert after(text, "⟨q, k⟩ of 1024 features: variance") == pytest.approx(1024, rel=0.05)
    assert after(text, "⟨q, k⟩ / √d of 1024 features: variance") == pytest.approx(1, rel=0.05)
    mistakes = {
        name: [float(number) for number in re.findall(r"\d+\.\d+|\d+(?= of 4)", line)]
        for name, _, line in (each.partition(": ") for each in text.splitlines()[-3:])
    }
    # Each token's weights sum to 1/√4, and of four tokens one half lies in each half of the memory.
    assert mistakes["scaled after the softmax"][:2] == [0.5, 4]
    assert mistakes["heads by reshape only"][:2] == [1, 2]
    assert mistakes["right"] == [1, 4, 0]
    for name, numbers in mistakes.items():
        assert name == "right" or numbers[2] > 0.1
        page = (Path(__file__).parents[2] / "docs" / "textbook.md").read_text(encoding="utf-8")
        assert f"| {name} | {numbers[0]:.2f} | {numbers[1]:.0f} of 4 | {numbers[2]:.2f} |" in page
    assert after(text, "without places: a character's output changes by up to") == 0
    assert after(text, "with places: a character's output changes by up to") > 0.1


@pytest.mark.parametrize(("font", "labels"), [(True, ["早", "上", "好"]), (False, ["zǎo", "shàng", "hǎo"])])
def test_labels_can_be_read_with_any_fonts(monkeypatch, font, labels):
    monkeypatch.setattr("dikkat.show.fonts._FALLBACKS", ("STIXGeneral",))  # it is there wherever matplotlib is
    lacking = {"STIXGeneral": set()} if font else {}
    monkeypatch.setattr("dikkat.show.fonts._missing_glyphs", lambda family, characters: lacking.get(family, characters))
    assert functions("self_attention_in_pictures")["labels"]() == labels


def test_bahdanau(run, tmp_path):
    text = run("bahdanau", "--quick")
    check_figures(tmp_path / "figures", "bahdanau-heatmaps", "bahdanau-comparison")
    for english, french in [("Go.", "Va !"), ("I lost.", "J'ai perdu."), ("I'm home.", "Je suis chez moi.")]:
        assert re.search(rf"{re.escape(english)} => .*should be: {re.escape(french)}", text)
    lines = text.splitlines()[-4:]
    assert [line.split("  ")[0] for line in lines] == [
        "GRU, additive", "GRU, scaled dot", "LSTM, additive", "LSTM, scaled dot",
    ]  # fmt: skip
    numbers = np.array([line.replace(",", "").replace("%", "").split()[-6:] for line in lines], dtype=float)
    parameters, seconds, rates, losses, right, bleu = numbers.T
    assert (
        parameters[2] > parameters[0] > parameters[1]
    )  # an LSTM has four gates for three; a product has no parameters
    assert (seconds > 0).all()
    assert (rates > 0).all()
    assert (losses < 3).all()  # of 600 words or so, all alike, it is above 6
    assert (right >= 0).all()
    assert (right <= 100).all()
    assert (bleu >= 0).all()
    assert (bleu <= 1).all()


def test_every_way_has_its_turn_and_its_cost_is_the_processors(monkeypatch):
    """A way that is slow once is slow by the clock, and not by the median; a wait costs the processor nothing."""
    chapter = functions("bahdanau")
    clock, trained = [0.0], []
    costs = dict(zip(chapter["WAYS"], (3.0, 1.0, 8.0, 5.0), strict=True))

    def train(settings, pairs, progress):
        trained.append((settings.cell, settings.score))
        clock[0] += settings.epochs * costs[trained[-1]] + (100 if len(trained) == 6 else 0)

    chapter["measure"].__globals__["train"] = train
    monkeypatch.setattr(chapter["time"], "process_time", lambda: clock[0])
    recipe = chapter["Recipe"].load("book").with_values({"corpus": {"name": "phrasebook", "first": 600}})
    assert chapter["measure"](recipe, turns=3, rounds=2) == list(costs.values())
    assert trained == list(costs) * 3


def test_tick_labels_do_not_touch():
    chapter = functions("bahdanau")
    training = SimpleNamespace(epochs=[SimpleNamespace(training_loss=loss) for loss in (5.0, 0.02)])
    ways = [SimpleNamespace(name=f"LSTM, scaled dot {i}", training=training, tokens=17_133) for i in range(4)]
    figure = chapter["draw_comparison"](ways, [1.0, 1.3, 1.7, 1.9])
    figure.draw_without_rendering()
    for axes in figure.axes:
        shown = [each.get_window_extent() for each in axes.get_xticklabels() if each.get_text()]
        shown = sorted((box.x0, box.x1) for box in shown if axes.bbox.x0 <= (box.x0 + box.x1) / 2 <= axes.bbox.x1)
        for (_, end), (start, _) in pairwise(shown):
            assert start - end > 4, shown


def test_what_is_right_is_counted():
    """Both measures, of a translator that makes one mistake in 600."""
    chapter = functions("bahdanau")
    recipe = chapter["Recipe"].load("book").with_values({"corpus": {"name": "phrasebook", "first": 600}})
    answers = dict(recipe.data()[0])
    answers["I'm home."] = "Je suis calme."

    class Translator:
        target_tokenizer = Tokenizer.train(list(answers.values()), "word", min_freq=1, vocabulary_size=9_999)

        def translate(self, sentences, search):
            return [SimpleNamespace(target=answers[sentence]) for sentence in sentences]

    training = SimpleNamespace(translator=Translator())
    chapter["try_way"].__globals__["train"] = lambda settings, pairs, progress: training
    way = chapter["try_way"](recipe, "lstm", "dot")
    assert way.name == "LSTM, dot"
    assert way.right == 599 / 600
    # One word less; 3 of 4 words and 1 of 3 pairs of words are there.
    assert way.bleu == pytest.approx([1, 1, 1, math.exp(1 - 5 / 4) * (3 / 4) ** 0.5 * (1 / 3) ** 0.25])
