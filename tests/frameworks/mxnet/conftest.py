import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

if find_spec("mxnet"):  # where there is none, the conftest.py above all leaves these tests out
    sys.path.insert(0, str(Path(__file__).parents[1]))  # the table of cases
    import_module("dikkat.frameworks.mxnet")  # first: it knows what to ignore while MXNet is imported
    import_module("mxnet").npx.set_np()
