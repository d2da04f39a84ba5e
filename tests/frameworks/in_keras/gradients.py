"""Outputs and gradients of a function of tensors and of a layer's variables, on whatever backend Keras runs."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from dikkat.frameworks.keras.weights import parameters

Array = np.ndarray[Any, Any]
Tensors = dict[str, Any]


def differentiate(
    function: Callable[[Tensors], Tensors],
    inputs: Mapping[str, Array],
    probes: Mapping[str, Array],
    layer: Any = None,
    dtype: str = "float32",
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Run a function, and differentiate the sum of its outputs times `probes`.

    Args:
        function: takes tensors by name and returns tensors by name; it may call `layer`, which is built.
        inputs: floating-point arrays by name.
        probes: what each output is multiplied with, by name; an output without one is not differentiated.
        layer: whose trainable variables are differentiated for too, under their names in PyTorch.
        dtype: of the inputs.

    Returns:
        Outputs by name; and gradients by name, of inputs and variables, 0 where nothing depends on one.
    """
    tensors = {name: ops.cast(array, dtype) for name, array in inputs.items()}
    found = {} if layer is None else parameters(layer)
    variables = {name: each for name, each in found.items() if each.trainable}

    def total(outputs: Tensors) -> Any:
        return sum(ops.sum(outputs[name] * ops.cast(probe, outputs[name].dtype)) for name, probe in probes.items())

    run = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[keras.backend.backend()]
    outputs, gradients = run(function, total, tensors, variables)
    return {name: numpy(each) for name, each in outputs.items()}, {
        name: numpy(each) for name, each in gradients.items()
    }


def numpy(tensor: Any) -> Array:
    """A tensor of any dtype in float64, as it is of booleans and integers."""
    if keras.backend.is_float_dtype(keras.backend.standardize_dtype(tensor.dtype)):
        halved = keras.backend.standardize_dtype(tensor.dtype) in ("float16", "bfloat16")
        return ops.convert_to_numpy(ops.cast(tensor, "float32") if halved else tensor).astype(np.float64)
    return ops.convert_to_numpy(tensor)


def _tensorflow(function: Any, total: Any, tensors: Tensors, variables: Tensors) -> tuple[Tensors, Tensors]:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(list(tensors.values()))
        outputs = function(tensors)
        loss = total(outputs)
    of = tensors | {name: variable.value for name, variable in variables.items()}
    gradients = tape.gradient(loss, list(of.values()), unconnected_gradients="zero")
    return outputs, dict(zip(of, gradients, strict=True))


def _jax(function: Any, total: Any, tensors: Tensors, variables: Tensors) -> tuple[Tensors, Tensors]:
    import jax

    def run(tensors: Tensors, values: Tensors) -> tuple[Any, Tensors]:
        with keras.StatelessScope(state_mapping=[(variables[name], value) for name, value in values.items()]):
            outputs = function({name: tensors[name] for name in order})
        return total(outputs), outputs

    order = list(tensors)  # JAX sorts dictionaries
    values = {name: variable.value for name, variable in variables.items()}
    # Compiled as one: operation by operation, each would be compiled for each shape.
    (_, outputs), gradients = jax.jit(jax.value_and_grad(run, argnums=(0, 1), has_aux=True))(tensors, values)
    return outputs, gradients[0] | gradients[1]


def _torch(function: Any, total: Any, tensors: Tensors, variables: Tensors) -> tuple[Tensors, Tensors]:
    import torch

    tensors = {name: tensor.requires_grad_() for name, tensor in tensors.items()}
    outputs = function(tensors)
    of = tensors | {name: variable.value for name, variable in variables.items()}
    gradients = torch.autograd.grad(total(outputs), list(of.values()), allow_unused=True)
    zeroed = [
        torch.zeros_like(each) if gradient is None else gradient
        for each, gradient in zip(of.values(), gradients, strict=True)
    ]
    return outputs, dict(zip(of, zeroed, strict=True))
