"""MXNet as it can still be had, or a message that says what is in its way.

As a script it looks at the machine alone, before anything is installed.
"""

import ctypes
import sys
import warnings
from importlib.util import find_spec

_HOW = "it has its last release, 1.9.1, on Python 3.11 or older with numpy==1.23.5, best in an environment of its own"


def check_python(version: tuple[int, int]) -> None:
    """Whether MXNet can run on this Python.

    Raises:
        ImportError: It cannot; the message says which it needs.
    """
    if version > (3, 11):
        raise ImportError(
            f"dikkat.frameworks.mxnet: Python is {version[0]}.{version[1]}, and MXNet needs 3.11 or older: {_HOW}. "
            "Make one with python3.11 -m venv, and pip install '.[mxnet]' there"
        )


def check_numpy(version: str) -> None:
    """Whether MXNet can run with this NumPy.

    Raises:
        ImportError: It cannot; the message says what to pin.
    """
    if tuple(int(part) for part in version.split(".")[:2]) >= (1, 24):
        raise ImportError(
            f"dikkat.frameworks.mxnet: numpy is {version}, and MXNet uses names that numpy 1.24 took away: {_HOW}. "
            "pip install numpy==1.23.5, or pip install '.[mxnet]'"
        )


def explain(error: OSError) -> ImportError:
    """What to say where the system cannot load MXNet's library."""
    missing = next((name for name in ("libgomp", "libquadmath") if name in str(error)), None)
    if missing is None:
        return ImportError(f"dikkat.frameworks.mxnet: MXNet's library does not load ({error})")
    return ImportError(
        f"dikkat.frameworks.mxnet: the system's {missing} is missing ({error}). Install it with the system's package "
        "manager: libgomp1 and libquadmath0 on Debian and Ubuntu, libgomp and libquadmath on Fedora"
    )


def check_machine() -> None:
    """Whether MXNet can run on this Python and system.

    Raises:
        ImportError: It cannot; the message says what is missing.
    """
    check_python(sys.version_info[:2])
    for library in ("libgomp.so.1", "libquadmath.so.0") if sys.platform == "linux" else ():
        try:
            ctypes.CDLL(library)
        except OSError as error:
            raise explain(error) from error


def import_mxnet() -> None:
    """Import MXNet.

    Raises:
        ImportError: It cannot be had here; the message says why, and what to do.
    """
    check_python(sys.version_info[:2])
    import numpy

    check_numpy(numpy.__version__)
    if find_spec("mxnet") is None:
        raise ImportError(f"dikkat.frameworks.mxnet: there is no MXNet here: pip install '.[mxnet]'; {_HOW}")
    try:
        with warnings.catch_warnings():  # of 2022, it imports what Python and NumPy have since advised against
            warnings.simplefilter("ignore", DeprecationWarning)
            import mxnet  # noqa: F401
    except OSError as error:
        raise explain(error) from error


if __name__ == "__main__":
    try:
        check_machine()
    except ImportError as missing:
        sys.exit(str(missing))
