import errno
import io
import os
import sys
import warnings
import xml.etree.ElementTree as ElementTree

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.ft2font import FT2Font

import kit
from dikkat import Grid, Times
from dikkat.show import fonts, heatmaps, save
from processes import python

SVG = "{http://www.w3.org/2000/svg}"


def random_weights(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)).softmax(-1)


def panels_of(figure):
    return [axes for axes in figure.axes if axes.images]


def labels_of(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def svg_texts(path):
    return ["".join(text.itertext()) for text in ElementTree.parse(path).iter(f"{SVG}text")]


def test_panels_show_the_weights_in_reading_order():
    weights = random_weights(2, 3, 5, 7)
    panels = panels_of(heatmaps(weights))
    assert len(panels) == 6
    for index, axes in enumerate(panels):
        np.testing.assert_array_equal(axes.images[0].get_array(), weights[index // 3, index % 3].double().numpy())
        assert axes.images[0].origin == "upper"


def test_one_scale_and_one_colour_bar_for_all_panels():
    weights = torch.full((1, 2, 3, 5), 0.1)
    weights[0, 1, 0, 0] = 0.75
    figure = heatmaps(weights)
    assert [axes.images[0].get_clim() for axes in panels_of(figure)] == [(0.0, 0.75)] * 2
    assert len(figure.axes) == 3


@pytest.mark.parametrize(
    ("weights", "limits"),
    [([[0.0, 0.0]], (0, 1)), ([[-0.5, 0.25]], (-0.5, 0.25)), ([[float("nan"), float("-inf"), 0.5]], (0, 0.5))],
)
def test_the_scale_of_unusual_weights(weights, limits):
    figure = heatmaps(weights)
    assert figure.axes[0].images[0].get_clim() == limits
    figure.draw_without_rendering()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.bool, torch.int64])
def test_any_number_type_and_a_graph(dtype):
    weights = torch.tensor([[0, 1, 0], [1, 0, 0]]).to(dtype)
    if dtype.is_floating_point:
        weights.requires_grad_()
    shown = heatmaps(weights).axes[0].images[0].get_array()
    assert shown.tolist() == [[0, 1, 0], [1, 0, 0]]


def test_the_figure_keeps_its_own_copy():
    weights = np.array([[0.25, 0.75]])
    figure = heatmaps(weights)
    weights[:] = 0
    assert figure.axes[0].images[0].get_array().tolist() == [[0.25, 0.75]]


def test_one_list_of_tokens_labels_the_outer_panels():
    figure = heatmaps(random_weights(2, 2, 2, 3), queries=["a", "b"], keys=["x", "y", "z"])
    for index, axes in enumerate(panels_of(figure)):
        assert labels_of(axes.xaxis) == (["x", "y", "z"] if index >= 2 else [])
        assert labels_of(axes.yaxis) == (["a", "b"] if index % 2 == 0 else [])
        assert axes.get_xlabel() == ("Keys" if index >= 2 else "")
        assert axes.get_ylabel() == ("Queries" if index % 2 == 0 else "")


def test_a_list_for_each_panel_labels_each():
    figure = heatmaps(random_weights(1, 2, 2, 1), queries=[["a", "b"], ["c", "d"]], keys=[["x"], ["y"]])
    assert [labels_of(axes.yaxis) for axes in panels_of(figure)] == [["a", "b"], ["c", "d"]]
    assert [labels_of(axes.xaxis) for axes in panels_of(figure)] == [["x"], ["y"]]


def test_matrices_of_different_shapes_are_a_row_of_panels_with_cells_of_one_size():
    shapes = [(2, 2), (9, 14), (5, 3), (20, 4)]
    weights = [random_weights(*shape) for shape in shapes]
    queries = [[f"q{row}" for row in range(shape[0])] for shape in shapes]
    keys = [[f"key{column}" for column in range(shape[1])] for shape in shapes]
    figure = heatmaps(weights, queries=queries, keys=keys)
    figure.draw_without_rendering()
    panels = panels_of(figure)
    inches = figure.get_size_inches()
    for axes, matrix, rows, columns in zip(panels, weights, queries, keys, strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), matrix.double().numpy())
        assert (labels_of(axes.yaxis), labels_of(axes.xaxis)) == (rows, columns)
        assert axes.images[0].get_clim() == (0.0, max(panel.max().item() for panel in weights))
        box = axes.get_position()
        assert box.width * inches[0] / len(columns) == pytest.approx(0.3, rel=0.03)
        assert box.height * inches[1] / len(rows) == pytest.approx(0.3, rel=0.03)
        assert box.y1 == pytest.approx(panels[0].get_position().y1, abs=0.01)


def test_matrices_of_different_shapes_without_labels_or_with_a_size():
    weights = [np.eye(2), torch.eye(5)]
    assert len(panels_of(heatmaps(weights))) == 2
    assert heatmaps(weights, figsize=(8, 3)).get_size_inches().tolist() == [8, 3]
    with pytest.raises(ValueError, match=r"keys: got one list of tokens; expected one for each panel, of \[2, 5\]"):
        heatmaps(weights, keys=["a", "b"])
    with pytest.raises(ValueError, match=r"queries\[1\]: got 1 tokens; expected 5"):
        heatmaps(weights, queries=[["a", "b"], ["c"]])
    with pytest.raises(ValueError, match=r"weights\[1\]: got shape \(0, 3\)"):
        heatmaps([np.eye(2), np.ones((0, 3))])


def test_titles_of_columns_or_of_panels():
    by_column = heatmaps(random_weights(2, 2, 2, 3), titles=["a", "b"])
    assert [axes.get_title() for axes in panels_of(by_column)] == ["a", "b", "", ""]
    by_panel = heatmaps(random_weights(2, 2, 2, 3), titles=["a", "b", "c", "d"])
    assert [axes.get_title() for axes in panels_of(by_panel)] == ["a", "b", "c", "d"]


def test_short_labels_stand_long_ones_turn_and_many_shrink():
    def label(keys):
        figure = heatmaps(random_weights(1, len(keys)), keys=keys)
        return figure.axes[0].get_xticklabels()

    assert label(["a", "b"])[0].get_rotation() == 0
    assert label(["international", "agreements"])[0].get_rotation() == 45
    many = label([f"token{index}" for index in range(397)])
    assert many[0].get_rotation() == 90
    assert many[0].get_fontsize() == 5
    assert [text.get_text() for text in many[:2]] == ["token0", "token3"]


def test_tokens_are_shown_as_they_are_on_one_line(tmp_path):
    tokens = ["$5", "x_$1^$", "\n", "\x00\ud800", "<b>&", "e\u0301té", "w" * 80]
    save(heatmaps(np.eye(7), keys=tokens), tmp_path / "figure.svg")
    shown = svg_texts(tmp_path / "figure.svg")
    for expected in ["$5", "x_$1^$", "↵", "��", "<b>&", "e\u0301té", "w" * 12 + "…" + "w" * 11]:
        assert expected in shown


def test_a_font_that_has_the_glyphs_fills_in():
    math = matplotlib.get_data_path() + "/fonts/ttf/STIXGeneral.ttf"
    plain = matplotlib.get_data_path() + "/fonts/ttf/DejaVuSans.ttf"
    charmap = FT2Font(math).get_charmap()
    only_there = next(chr(code) for code in charmap if code > 0x1000 and not FT2Font(plain).get_char_index(code))
    with matplotlib.rc_context({"font.family": "DejaVu Sans"}):
        families = heatmaps(np.eye(2), keys=["é", only_there]).axes[0].get_xticklabels()[0].get_fontfamily()
    assert families[0] == "DejaVu Sans"
    assert len(families) == 2


def test_glyphs_that_no_font_has_are_named(monkeypatch):
    monkeypatch.setattr(fonts, "_FALLBACKS", ())
    with (
        matplotlib.rc_context({"font.family": "DejaVu Sans"}),
        pytest.warns(UserWarning, match=r"glyphs 猫 \(cjk unified ideograph\).*fonts-noto-cjk") as caught,
    ):
        heatmaps(np.eye(2), keys=["猫", "cat"])
    assert caught[0].filename == __file__


def test_saving_does_not_repeat_the_warning_for_each_glyph(monkeypatch, tmp_path):
    monkeypatch.setattr(fonts, "_FALLBACKS", ())
    with matplotlib.rc_context({"font.family": "DejaVu Sans"}):
        with pytest.warns(UserWarning, match="glyphs 猫"):
            figure = heatmaps(np.eye(2), keys=["猫", "cat"])
        save(figure, tmp_path / "figure.png")  # a warning would be an error here


def test_marks_and_joiners_need_no_font(monkeypatch):
    monkeypatch.setattr(fonts, "_FALLBACKS", ())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = heatmaps(np.eye(2), keys=["e\u0301\u200d", "\u202eab\u1ab0"])
    assert figure.axes


def test_png_and_svg_can_be_read_and_are_the_same_every_time(tmp_path):
    figure = heatmaps(random_weights(1, 2, 3, 5), keys=list("déjàv"), titles=["one", "two"])
    for name in ("a.png", "b.PNG", "a.svg", "b.svg"):
        save(figure, tmp_path / name)
    again = heatmaps(random_weights(1, 2, 3, 5), keys=list("déjàv"), titles=["one", "two"])
    save(again, tmp_path / "c.svg")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.PNG").read_bytes()
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes() == (tmp_path / "c.svg").read_bytes()
    assert {"d", "é", "à", "one", "two", "Keys"} <= set(svg_texts(tmp_path / "a.svg"))
    assert b"date" not in (tmp_path / "a.svg").read_bytes().lower()
    image = matplotlib.image.imread(io.BytesIO((tmp_path / "a.png").read_bytes()))
    assert image.shape[:2] == tuple(int(inches * 200) for inches in reversed(figure.get_size_inches()))
    assert image[..., :3].min() < 0.9


def test_no_global_state_changes(tmp_path):
    from matplotlib import pyplot

    before = dict(matplotlib.rcParams)
    figures = pyplot.get_fignums()
    save(heatmaps(np.eye(3), keys=["a", "b", "c"]), tmp_path / "figure.svg")
    assert dict(matplotlib.rcParams) == before
    assert pyplot.get_fignums() == figures


def test_a_failed_save_leaves_the_old_image(tmp_path, monkeypatch):
    def full_disk(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "figure.png").write_text("old")
    figure = heatmaps(np.eye(3))
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save(figure, tmp_path / "figure.png")
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("figure.png", "old")]


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"figure.gif'; expected an ending of .png, .svg or .pdf"):
        save(heatmaps(np.eye(3)), tmp_path / "figure.gif")
    assert list(tmp_path.iterdir()) == []


@kit.each(
    ("weights", "options", "error", "message"),
    [
        (np.ones((2, 3, 5)), {}, ValueError, r"got shape \(2, 3, 5\); expected \(rows, columns, queries, keys\)"),
        (np.ones((0, 3)), {}, ValueError, r"got shape \(0, 3\)"),
        ([["a"]], {}, TypeError, "weights: got list of dtype <U1"),
        ([[1, 2], [3]], {}, TypeError, "unequal lengths"),
        (np.ones((1, 3, 5)), {}, ValueError, r"for a batch of matrices use weights\[None\]"),
        (None, {}, TypeError, r"got None; expected .*dikkat\.record\(model, weights=True"),
        (torch.ones(2, 2, dtype=torch.complex64), {}, TypeError, "complex64; expected real numbers"),
        (np.eye(3), {"keys": "abc"}, TypeError, "keys: got one string, 'abc'"),
        (np.eye(4), {"keys": Grid(2, 2)}, TypeError, "keys: got Grid; expected strings.*on_image"),
        (np.eye(5), {"queries": ["[CLS]", Grid(2, 2)]}, TypeError, "queries: got Grid; .*on_image"),
        (np.eye(2), {"keys": Times([0, 1])}, TypeError, "keys: got Times; .*on_image"),
        (np.eye(3), {"keys": ["a", "b"]}, ValueError, "keys: got 2 tokens; expected 3"),
        (np.eye(3), {"queries": [["a", "b"]]}, ValueError, r"queries\[0\]: got 2 tokens"),
        (np.eye(3), {"queries": [["a", "b", "c"]] * 2}, ValueError, "got 2 lists; expected one list of tokens, or 1"),
        (np.eye(3), {"queries": ["a", "b", 3]}, ValueError, "got 3 lists"),
        (np.eye(3), {"queries": [["a", "b", 3]]}, TypeError, r"queries\[0\]\[2\]: got int"),
        (np.eye(3), {"titles": ["a", "b"]}, ValueError, "titles: got 2; expected 1"),
        (np.eye(3), {"titles": "a"}, TypeError, "titles: got one string"),
    ],
)
def test_refusals_say_what_came(weights, options, error, message):
    with pytest.raises(error, match=message):
        heatmaps(weights, **options)


def test_matplotlib_is_for_pictures_alone_and_pyplot_for_none(tmp_path):
    code = f"""
import sys
import torch, dikkat
import dikkat.show
layer = dikkat.MultiHeadAttention(6, 3)
with dikkat.record(layer, entropy=True, overview=4) as trace:
    layer(*[torch.randn(2, 13, 6)] * 3)
trace.to_html({str(tmp_path / "page.html")!r})
dikkat.show.page([])
assert not [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]
dikkat.show.save(dikkat.show.heatmaps([[1.0]]), {str(tmp_path / "figure.png")!r})
assert "matplotlib.pyplot" not in sys.modules
"""
    python(code)


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install .*\[show\]"):
        heatmaps([[1.0]])
