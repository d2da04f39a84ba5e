"""The notebooks of examples/notebooks, run again: they show what they have stored."""

import re
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted((EXAMPLES / "notebooks").glob("*.ipynb"))


def shown(cell):
    """What a reader sees of a cell: texts, and the kinds of its pictures. Where numbers vary by machine, no text."""
    varies = "varies" in cell.metadata.get("tags", [])
    found, printed = [], ""
    for output in cell.get("outputs", []):
        if output.output_type == "stream":  # which comes in parts, as time has it
            printed += re.sub(r"^\[IPKernelApp\].*\n", "", output.text, flags=re.MULTILINE)  # of how Jupyter is started
        else:
            text = "".join(output.get("data", {}).get("text/plain", output.get("evalue", "")))
            found.append(
                (output.output_type, sorted(output.get("data", {})), not varies and re.sub(" object at .*", "", text))
            )
    return bool(printed) if varies else printed, found


@pytest.mark.filterwarnings("default")  # Jupyter's own, of how it talks to its kernel
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_has_stored(path, monkeypatch):
    if path.stem == "reactions" and not any((EXAMPLES.parent / ".rxnmapper").glob("*.whl")):
        pytest.skip("needs rxnmapper's weights: pip download --no-deps rxnmapper==0.4.3 -d .rxnmapper")
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    stored, again = (nbformat.read(path, as_version=4) for _ in range(2))
    nbclient.NotebookClient(
        again, timeout=300, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    ).execute()
    assert any(cell.get("outputs") for cell in stored.cells)
    for before, after in zip(stored.cells, again.cells, strict=True):
        assert shown(after) == shown(before), before.source
