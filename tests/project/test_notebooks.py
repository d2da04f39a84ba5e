"""The notebooks of examples/notebooks, run again: they show what they have stored."""

import re
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
jupyter_client = pytest.importorskip("jupyter_client")
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


@pytest.fixture(scope="module")
def kernel():
    """One for all notebooks: to start it and to import PyTorch takes as long as most of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_WAIT_POLICY", "passive")
        manager = jupyter_client.AsyncKernelManager(kernel_name="python3")
        yield manager
        nbclient.util.run_sync(manager.shutdown_kernel)(now=True)


@pytest.mark.filterwarnings("default")  # Jupyter's own, of how it talks to its kernel
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_has_stored(path, kernel):
    if path.stem == "reactions" and not any((EXAMPLES.parent / ".rxnmapper").glob("*.whl")):
        pytest.skip("needs rxnmapper's weights: pip download --no-deps rxnmapper==0.4.3 -d .rxnmapper")
    stored, again = (nbformat.read(path, as_version=4) for _ in range(2))
    again.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))  # of all names of the one before
    client = nbclient.NotebookClient(again, kernel, timeout=600, resources={"metadata": {"path": path.parent}})
    client.execute(cleanup_kc=False)
    client.kc.stop_channels()
    assert any(cell.get("outputs") for cell in stored.cells)
    for before, after in zip(stored.cells, again.cells[1:], strict=True):
        assert shown(after) == shown(before), before.source
