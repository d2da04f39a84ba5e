"""TensorFlow with the Keras that the textbook's code is of: `tf.keras` is tf-keras, Keras 2 for today's TensorFlow.

Keras 3 runs that code no more: it does not train a `tf.Variable` that is a layer's attribute, and hands the states of
stacked cells over in another shape. TensorFlow decides which Keras `tf.keras` is when it is first used. Importing this
module before that puts tf-keras there, as TF_USE_LEGACY_KERAS=1 does, and sets nothing else of the process. dikkat's
own Keras functions are of Keras 3, and take TensorFlow's tensors where its backend is TensorFlow.
"""

import importlib.util

if importlib.util.find_spec("tensorflow") is None or importlib.util.find_spec("tf_keras") is None:
    raise ImportError("dikkat.textbook.tensorflow needs TensorFlow and tf-keras: pip install '.[textbook-tensorflow]'")

import keras
import tensorflow as tf
import tf_keras

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        f"Keras: got backend {keras.backend.backend()!r}; expected 'tensorflow', for dikkat.textbook.tensorflow. Set "
        "KERAS_BACKEND=tensorflow before Keras is imported"
    )

# Where `tf.keras` has not been used, TensorFlow keeps a loader there, and others for the four that come from it.
if "Loader" in type(vars(tf)["keras"]).__name__:
    for name in ("initializers", "losses", "metrics", "optimizers"):
        setattr(tf, name, getattr(tf_keras, name))
    tf.keras = tf_keras
elif tf.keras.layers.Layer is not tf_keras.layers.Layer:
    raise ImportError(
        "tf.keras: got Keras 3, which it has been since it was used; expected tf-keras. Import "
        "dikkat.textbook.tensorflow before tf.keras is used (TensorFlow itself may come earlier), or set "
        "TF_USE_LEGACY_KERAS=1"
    )

__all__ = ["tf"]
