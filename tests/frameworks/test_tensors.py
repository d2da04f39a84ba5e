"""Weights under their names, as arrays and as files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from dikkat.storage.tensors import check, read, write


def test_arrays_come_as_they_are() -> None:
    arrays = {"weight": np.ones((3, 5))}
    assert read(arrays) is arrays


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64])
def test_a_file_of_pytorch(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {"W_q.weight": torch.arange(15).reshape(3, 5).to(dtype) / 7, "b": torch.tensor(2)}
    tensors = {name: each.to(dtype) for name, each in tensors.items()}
    save_file(tensors, tmp_path / "weights")
    found = read(str(tmp_path / "weights"))
    assert found.keys() == tensors.keys()
    for name, each in tensors.items():
        assert found[name].dtype == (each.float() if dtype == torch.bfloat16 else each).numpy().dtype
        np.testing.assert_array_equal(found[name], each.double().numpy())


def test_a_file_for_pytorch(tmp_path: Path) -> None:
    """Of an array that lies otherwise in memory, and a number."""
    arrays = {"turned": np.arange(15.0, dtype=np.float32).reshape(5, 3).T, "one": np.array(0.25)}
    write(arrays, tmp_path / "weights")
    found = load_file(tmp_path / "weights")
    assert found.keys() == arrays.keys()
    for name, each in arrays.items():
        assert tuple(found[name].shape) == each.shape
        assert found[name].numpy().dtype == each.dtype
        np.testing.assert_array_equal(found[name].numpy(), each)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "nothing")
    write({"weight": np.ones((3, 5))}, tmp_path / "weights")
    whole = (tmp_path / "weights").read_bytes()
    for content in (b"", b"weights", whole[:-1], whole[:20]):
        (tmp_path / "damaged").write_bytes(content)
        with pytest.raises(ValueError, match="damaged: truncated, damaged or no safetensors file"):
            read(tmp_path / "damaged")


def test_an_older_file_stays_where_writing_fails(tmp_path: Path) -> None:
    write({"weight": np.ones(3)}, tmp_path / "weights")
    with pytest.raises(SafetensorError):
        write({"weight": np.array([object()])}, tmp_path / "weights")
    np.testing.assert_array_equal(load_file(tmp_path / "weights")["weight"].numpy(), np.ones(3))
    with pytest.raises(OSError, match="nowhere"):
        write({"weight": np.ones(3)}, tmp_path / "nowhere" / "weights")


def test_what_does_not_fit_is_named() -> None:
    check({"a": (3, 5), "b": ()}, {"a": np.ones((3, 5)), "b": np.ones(())})
    found = {"a": np.ones((3, 7)), "d": np.ones(2)}
    with pytest.raises(ValueError, match="of another layer, or of one of other sizes") as raised:
        check({"a": (3, 5), "c": (11,)}, found, "weights")
    for fault in (
        "weights: ",
        "a: got (3, 7); expected (3, 5)",
        "c: got nothing; expected (11,)",
        "d: got (2,); expected nothing",
    ):
        assert fault in str(raised.value)
    with pytest.raises(ValueError, match="…"):
        check({str(number): () for number in range(7)}, {})
