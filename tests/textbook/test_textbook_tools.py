import tomllib
from pathlib import Path

import numpy as np
import pytest

from dikkat.textbook import pictures, tools
from processes import python


def test_a_timer_counts_its_runs():
    timer = tools.Timer()
    timer.times = [1.0, 2.0, 6.0]
    assert (timer.sum(), timer.avg(), timer.cumsum()) == (9, 3, [1, 3, 9])
    timer.start()
    assert timer.stop() == timer.times[-1] >= 0


def test_sums_of_figures():
    metric = tools.Accumulator(2)
    metric.add(1, np.array(2.5))
    metric.add(3, 4)
    assert (metric[0], metric[1]) == (4, 6.5)
    metric.reset()
    assert metric.data == [0, 0]
    with pytest.raises(ValueError):
        metric.add(1)


def test_arguments_become_attributes():
    class Base(tools.HyperParameters):
        def __init__(self, width, depth=2, _secret=0):
            self.save_hyperparameters(ignore=["depth"])

    one = Base(3)
    assert one.hparams == {"width": 3}
    assert one.width == 3
    assert not hasattr(one, "depth")


def test_a_class_grows():
    class Model:
        pass

    @tools.add_to_class(Model)
    def twice(self, x):
        return 2 * x

    assert Model().twice(3) == 6


def test_checks():
    tools.check_len([1, 2], 2)
    tools.check_shape(np.zeros((2, 3)), (2, 3))
    with pytest.raises(ValueError, match=r"2.*3"):
        tools.check_len([1, 2], 3)
    with pytest.raises(ValueError, match=r"\(2, 3\).*\(3, 2\)"):
        tools.check_shape(np.zeros((2, 3)), (3, 2))


def test_nothing_of_matplotlib_before_something_is_drawn():
    code = """
import sys, warnings
from dikkat.textbook import torch as d2l
assert not [name for name in sys.modules if name.split(".")[0] in ("matplotlib", "keras", "tensorflow", "mxnet")]
d2l.use_svg_display()
"""
    python(code)


def test_curves_are_drawn_and_style_stays(figures):
    before = dict(figures.rcParams)
    x = np.linspace(0, 1, 7)
    pictures.plot(x, [x, x**2], "x", "y", legend=["one", "two"], xlim=[0, 2], ylim=[-1, 1], figsize=(3, 2))
    axes = figures.gca()
    figures.plot(x, -x, "o")  # goes on the same axes
    assert [line.get_ydata().tolist() for line in axes.lines] == [x.tolist(), (x**2).tolist(), (-x).tolist()]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_xlim(), axes.get_ylim()) == ("x", "y", (0, 2), (-1, 1))
    assert [each.get_text() for each in axes.get_legend().get_texts()] == ["one", "two"]
    assert axes.figure.get_size_inches().tolist() == [3, 2]
    pictures.plot([1.0, 4.0])  # heights alone, on a figure of its own
    assert len(figures.get_fignums()) == 2
    assert figures.gca().lines[0].get_xydata().tolist() == [[0, 1], [1, 4]]
    assert dict(figures.rcParams) == before


def test_a_curve_each_and_axes_that_are_given(figures):
    _, (left, right) = figures.subplots(1, 2)
    pictures.plot([[0, 1], [2, 3]], [[4, 5], [6, 7]], axes=left)
    assert [line.get_xydata().tolist() for line in left.lines] == [[[0, 4], [1, 5]], [[2, 6], [3, 7]]]
    pictures.plot(np.arange(3), np.arange(6).reshape(2, 3), axes=left)  # a matrix is its rows
    assert [line.get_ydata().tolist() for line in left.lines] == [[0, 1, 2], [3, 4, 5]]
    assert not right.lines
    with pytest.raises(ValueError, match="X: got 2"):
        pictures.plot([[0, 1], [2, 3]], [[4, 5], [6, 7], [8, 9]], axes=left)


def test_heat_maps_share_one_scale(figures):
    matrices = np.arange(2 * 3 * 5 * 7).reshape(2, 3, 5, 7) / 100
    pictures.show_heatmaps(matrices, "Keys", "Queries", titles=["a", "b", "c"], figsize=(6, 4), cmap="Blues")
    axes = figures.gcf().axes[:6]
    for panel, matrix in zip(axes, matrices.reshape(6, 5, 7), strict=True):
        assert np.array_equal(panel.images[0].get_array(), matrix)
        assert panel.images[0].get_clim() == (0, 2.09)
    assert [panel.get_xlabel() for panel in axes] == [""] * 3 + ["Keys"] * 3
    assert [panel.get_ylabel() for panel in axes] == ["Queries", "", ""] * 2
    assert [panel.get_title() for panel in axes[:3]] == ["a", "b", "c"]
    with pytest.raises(ValueError, match="rows, columns, queries, keys"):
        pictures.show_heatmaps(matrices[0], "", "")


def test_a_size_of_figures_is_set_when_asked_for(figures):
    with figures.rc_context():
        pictures.set_figsize((1.5, 2.5))
        assert figures.rcParams["figure.figsize"] == [1.5, 2.5]


def test_curves_grow(figures):
    animator = pictures.Animator(xlabel="epoch", legend=["train", "test"], xlim=[1, 3])
    animator.add(1, (5, None))
    animator.add(2, (np.float32(4), 6))
    assert (animator.X, animator.Y) == ([[1, 2], [2]], [[5, 4], [6]])
    assert [line.get_xydata().tolist() for line in animator.axes[0].lines] == [[[1, 5], [2, 4]], [[2, 6]]]
    single = pictures.Animator()
    single.add(1, 2.0)
    assert single.Y == [[2.0]]


def test_a_board_draws_means(figures):
    board = pictures.ProgressBoard("epoch", xlim=[0, 9])
    for x, y in enumerate([1, 3, 5, 7, 100]):
        board.draw(x, y, "train", every_n=2)
    board.draw(9, 8, "val")
    assert board.data == {"train": [(0.5, 2), (2.5, 6)], "val": [(9, 8)]}
    assert board.axes.lines[0].get_xydata().tolist() == [[0.5, 2], [2.5, 6]]
    assert board.axes.get_xlim() == (0, 9)
    quiet = pictures.ProgressBoard(display=False)
    quiet.draw(1, 2, "train")
    assert quiet.fig is None


def test_a_notebook_shows_one_figure_and_lets_it_grow(figures, monkeypatch):
    shown = []

    class Handle:
        def update(self, figure):
            shown.append(("update", figure))

    class Modules:
        @staticmethod
        def import_module(name):
            assert name in ("IPython.display", "matplotlib.pyplot", "matplotlib_inline.backend_inline")
            if name == "matplotlib.pyplot":
                return figures
            return type("Module", (), {"display": staticmethod(display), "set_matplotlib_formats": formats.append})

    def display(figure, display_id):
        shown.append(("display", figure))
        return Handle()

    formats = []
    monkeypatch.setattr(pictures, "importlib", Modules)
    monkeypatch.setattr(pictures, "_in_notebook", lambda: True)
    animator = pictures.Animator()
    for epoch in range(3):
        animator.add(epoch, epoch)
    assert shown == [("display", animator.fig), ("update", animator.fig), ("update", animator.fig)]
    assert figures.get_fignums() == []  # else the notebook would show it once more
    assert set(formats) == {"svg"}


def test_a_curve_of_one_point_can_be_seen(figures):
    """A line has two ends: after ten epochs of training, which are one point, a plot would be empty."""
    animator, board = pictures.Animator(xlim=[1, 10], fmts=("-", "bo")), pictures.ProgressBoard()
    animator.add(10, [0.2, 0.3])
    board.draw(1, 0.5, "loss")
    (line, dots), (curve,) = animator.axes[0].lines, board.axes.lines
    assert [each.get_marker() for each in (line, dots, curve)] == ["o", "o", "o"]
    animator.add(20, [0.1, 0.2])
    board.draw(2, 0.4, "loss")
    assert [each.get_marker() for each in (line, dots, curve)] == ["None", "o", "None"]
    assert list(line.get_xdata()) == [10, 20]


def test_the_extra_brings_what_the_chapters_import():
    """The Transformer section begins by importing pandas."""
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = settings["project"]["optional-dependencies"]["textbook"]
    assert any(each.startswith("pandas") for each in wanted)
