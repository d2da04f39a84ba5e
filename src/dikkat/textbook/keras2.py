"""TensorFlow with the Keras that the textbook's code is of, and dikkat's own Keras functions beside it.

Keras 3 runs that code no more: it does not train a `tf.Variable` that is a layer's attribute, and hands the states of
stacked cells over in another shape. tf-keras is Keras 2 for today's TensorFlow, and `tf.keras` is it where
TF_USE_LEGACY_KERAS says so before it is first used. Keras 3 lives beside it, for this library's functions, which take
TensorFlow's tensors where its backend is TensorFlow.
"""

import importlib.util
import os
import sys

if importlib.util.find_spec("tensorflow") is None or importlib.util.find_spec("tf_keras") is None:
    raise ImportError("dikkat.textbook.tensorflow needs TensorFlow and tf-keras: pip install '.[textbook-tensorflow]'")
if "keras" in sys.modules and sys.modules["keras"].backend.backend() != "tensorflow":
    raise ImportError(
        f"Keras was imported before dikkat.textbook.tensorflow, on backend {sys.modules['keras'].backend.backend()!r}; "
        "allowed: 'tensorflow'. Import this first, or set KERAS_BACKEND=tensorflow"
    )
os.environ |= {"TF_USE_LEGACY_KERAS": "1", "KERAS_BACKEND": "tensorflow"}

import tensorflow as tf
import tf_keras

if tf.keras.layers.Layer is not tf_keras.layers.Layer:
    raise ImportError(
        "tf.keras was used before dikkat.textbook.tensorflow was imported, and is Keras 3 since. Import this before "
        "tf.keras is used (TensorFlow itself may come earlier), or set TF_USE_LEGACY_KERAS=1"
    )

__all__ = ["tf"]
