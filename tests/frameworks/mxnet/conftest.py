import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

collect_ignore_glob = [] if find_spec("mxnet") else ["test_*.py"]

if find_spec("mxnet"):
    sys.path.insert(0, str(Path(__file__).parents[1]))  # the table of cases
    import_module("dikkat.frameworks.mxnet")  # first: it knows what to ignore while MXNet is imported
    import_module("mxnet").npx.set_np()
