import platform

import pytest
import torch

import dikkat
from command import command_line, made


@pytest.fixture
def report(monkeypatch, capsys, tmp_path):
    """What `dikkat report` prints, as {title: lines}, with both caches in the test's folder."""
    monkeypatch.setenv("DIKKAT_CACHE", str(tmp_path / "corpora"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))
    run = command_line(monkeypatch, capsys, "report")

    def call():
        found = {}
        for line in made(run())[0].splitlines():
            if not line.startswith("  "):
                title = line
            found.setdefault(title, []).extend([line.strip()] if line.startswith("  ") else [])
        return found

    return call


def test_versions_threads_and_the_environment(report, monkeypatch, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = report()
    assert f"torch {torch.__version__}" in found["versions"]
    assert platform.python_version() in found["system"][0]
    assert f"{torch.get_num_threads()} threads" in found["system"][1]
    assert {"OMP_NUM_THREADS=3", f"NUMBA_CACHE_DIR={tmp_path / 'kernels'}"} <= set(found["environment"])


def test_what_is_not_installed_is_said(report, monkeypatch):
    monkeypatch.setattr("dikkat.cli.report._PACKAGES", ("torch", "no-such-package"))
    assert report()["versions"] == [
        f"dikkat {dikkat.__version__}",
        f"torch {torch.__version__}",
        "no-such-package: not installed",
    ]


def test_implementations_that_run_and_why_others_do_not(report):
    found = report()["implementations of an additive call"]
    assert {line.partition(":")[0] for line in found} == {
        "reference", "chunked", "products", "sdpa", "numba-few", "numba", "triton",
    }  # fmt: skip
    assert "reference: runs" in found
    assert any(line.startswith("sdpa: ") and "'additive'" in line for line in found)


def test_caches_are_counted(report, tmp_path):
    folder = tmp_path / "kernels" / "some"
    folder.mkdir(parents=True)
    (folder / "kernel.nbi").write_bytes(bytes(2**20))
    (folder / "kernel.1.nbc").write_bytes(bytes(2**19))
    (folder / "kernel.py").write_bytes(bytes(2**19))
    kernels, corpora = report()["caches"]
    assert kernels == f"compiled kernels: {tmp_path / 'kernels'}, 2 files, 1.5 MiB"
    assert corpora == f"corpora: {tmp_path / 'corpora'}, 0 files, 0.0 MiB"
