"""Drop-in modules for the helper library of *Dive into Deep Learning*: the code of its attention chapters, unchanged.

In the place of `from d2l import torch as d2l` stands `from dikkat.textbook import torch as d2l`, likewise `tensorflow`
and `mxnet`. Both generations of the book's names are there, with its signatures and its shapes; the work is done by
this library. What differs from the book is what it gets wrong, and is said where it differs.

`skeleton`, `layers` and `learning` hold what the three have in common; `text`, `pictures` and `tools` what needs no
framework.
"""

from typing import NoReturn


def __getattr__(name: str) -> NoReturn:
    if name == "jax":
        raise ImportError(
            "dikkat.textbook: got jax, of which there is no module; expected torch, tensorflow or mxnet. On JAX, the "
            "layers are in dikkat.frameworks.keras, with KERAS_BACKEND=jax"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
