"""What can be run here: MXNet has an environment of its own, of `make test-mxnet`."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("mxnet") else ["src/dikkat/frameworks/mxnet", "tests/frameworks/mxnet"]
