from importlib import import_module
from importlib.util import find_spec

if find_spec("mxnet"):  # where there is none, the conftest.py above all leaves these tests out
    import_module("dikkat.frameworks.mxnet")  # first: it knows what to ignore while MXNet is imported
    import_module("mxnet").npx.set_np()
