"""No module of the textbook's names: importing it says where they, and the layers for JAX, are."""

raise ImportError(
    "dikkat.textbook: got jax, of which there is no module; expected torch, tensorflow or mxnet. On JAX, the layers "
    "are in dikkat.frameworks.keras, with KERAS_BACKEND=jax"
)
