"""Layers whose parameters are attributes with PyTorch's names, so that one file of weights loads everywhere."""

import os
from inspect import signature
from typing import Any, ClassVar, Self

import keras
from keras import ops

from dikkat.frameworks.keras.backend import Array, Shape, product, shape_of, wide
from dikkat.storage.tensors import Tensors, check, read, write

_OPTIONS = ("name", "dtype", "trainable", "autocast", "activity_regularizer")  # of every Keras layer
registered = keras.saving.register_keras_serializable(package="dikkat")


class Block(keras.layers.Layer):
    """A Keras layer that keeps its constructor's arguments as attributes of the same names.

    Attributes:
        arguments: Their names; `get_config` writes them, layers among them with their own configuration.
    """

    arguments: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **options: Any) -> None:
        if unknown := sorted(options.keys() - _OPTIONS):
            got = "an argument" if len(unknown) == 1 else "arguments"
            own = [name for name in signature(type(self).__init__).parameters if name not in ("self", "options")]
            expected = ", ".join([*own, *(name for name in _OPTIONS if name not in own)])
            raise TypeError(f"{', '.join(unknown)}: got {got} that {type(self).__name__} has not; expected {expected}")
        super().__init__(**options)
        self.supports_masking = True

    def get_config(self) -> dict[str, Any]:
        """The arguments with which the constructor makes this layer again."""
        own = {name: getattr(self, name) for name in self.arguments}
        return super().get_config() | {
            name: keras.saving.serialize_keras_object(value) if isinstance(value, keras.layers.Layer) else value
            for name, value in own.items()
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The reverse of `get_config`."""
        made = {
            name: keras.saving.deserialize_keras_object(value)
            if name in cls.arguments and isinstance(value, dict) and "class_name" in value
            else value
            for name, value in config.items()
        }
        layer: Self = super().from_config(made)
        return layer


@registered
class Linear(Block):
    r"""W x + b, with PyTorch's layout and initial values.

    Args:
        features: Features that come out.
        use_bias: Whether there is a b.
        bias_initializer: The name of a Keras initializer for b; as W if None.
        **options: Keras's `name`, `dtype` and `trainable`.

    Attributes:
        weight: W, (features, features in), uniform in ±1/√(features in) at first.
        bias: b, (features,), uniform in the same bounds by default; None without.

    Example:
        >>> from keras import ops
        >>> layer = Linear(3)
        >>> tuple(layer(ops.zeros((2, 5))).shape), tuple(layer.weight.shape)
        ((2, 3), (3, 5))
    """

    arguments = ("features", "use_bias", "bias_initializer")

    def __init__(
        self, features: int, use_bias: bool = True, bias_initializer: str | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.features, self.use_bias, self.bias_initializer = features, use_bias, bias_initializer

    def build(self, input_shape: Shape) -> None:
        """Make W and b for inputs (..., features in)."""
        size = input_shape[-1]
        bound = max(1, size or 0) ** -0.5
        uniform = keras.initializers.RandomUniform
        self.weight = self.add_weight(name="weight", shape=(self.features, size), initializer=uniform(-bound, bound))
        initial = self.bias_initializer or uniform(-bound, bound)
        self.bias = self.add_weight(name="bias", shape=(self.features,), initializer=initial) if self.use_bias else None

    def call(self, x: Any) -> Any:
        """(..., features in) -> (..., features)."""
        out = product(x, ops.transpose(self.weight))
        return out if self.bias is None else out + ops.convert_to_tensor(self.bias)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """(..., features)."""
        return (*input_shape[:-1], self.features)


def linear(layer: Linear, x: Any, name: str) -> Any:
    """A linear layer's output, after a check of the features that come in, which names them."""
    check_features(name, shape_of(x), layer.weight.shape[-1])
    return layer(x)


def check_features(name: str, shape: Shape, expected: int) -> None:
    """A check of a tensor's number of features against the parameters that it meets."""
    if shape[-1] != expected:
        raise ValueError(f"{name}: got {shape[-1]} features (shape {shape}); expected {expected}, as this was made")


def parameters(layer: Any, prefix: str = "") -> dict[str, Any]:
    """A layer's variables by PyTorch's names, such as `score.W_q.weight`: those that public attributes lead to."""
    # On PyTorch a Keras layer is a torch module too, which keeps the layers in it apart.
    attributes = vars(layer) | vars(layer).get("_modules", {})
    variables: dict[str, Any] = {}
    for name, value in attributes.items():
        if isinstance(value, keras.Variable) and not name.startswith("_"):
            variables[prefix + name] = value
        elif isinstance(value, keras.layers.Layer) and not name.startswith("_"):
            variables |= parameters(value, f"{prefix}{name}.")
    return variables


def tensors(layer: Any) -> dict[str, Array]:
    """A layer's weights as NumPy arrays, under the names, layouts and shapes that they have in PyTorch.

    Args:
        layer: A layer or model that is built: called once, or `build` with its input shapes.

    Returns:
        Arrays by name; those in half precision as float32, since NumPy has no bfloat16.

    Raises:
        ValueError: The layer is not built, or has a weight to which no attribute leads.

    Example:
        >>> layer = Linear(3)
        >>> layer.build((None, 5))
        >>> {name: array.shape for name, array in tensors(layer).items()}
        {'weight': (3, 5), 'bias': (3,)}
    """
    return {name: ops.convert_to_numpy(ops.cast(variable, wide(variable))) for name, variable in _built(layer).items()}


def load_tensors(layer: Any, source: Tensors | str | os.PathLike[str]) -> None:
    """Give a layer the weights of another one, of whatever framework.

    Args:
        layer: A layer or model that is built.
        source: Arrays by name, or the name of a safetensors file.

    Raises:
        FileNotFoundError: No such file.
        ValueError: The layer is not built, or has a weight to which no attribute leads; or a weight is missing, or too
            many, or of another shape: the message names it and both shapes, and the layer is as it was.

    Example:
        >>> layer, other = Linear(3), Linear(3)
        >>> layer.build((None, 5)), other.build((None, 5))
        (None, None)
        >>> load_tensors(layer, tensors(other))
    """
    variables = _built(layer)
    arrays = read(source)
    check({name: tuple(variable.shape) for name, variable in variables.items()}, arrays)
    for name, variable in variables.items():
        variable.assign(ops.cast(arrays[name], variable.dtype))


def save_tensors(layer: Any, path: str | os.PathLike[str]) -> None:
    """Write a layer's weights as a safetensors file, which every framework loads.

    Args:
        layer: A layer or model that is built.
        path: Of the file, which appears whole or not at all.

    Raises:
        OSError: The system could not write.
        ValueError: The layer is not built.
    """
    write(tensors(layer), path)


def _built(layer: Any) -> dict[str, Any]:
    """The variables of a layer that is built, each of which has a name."""
    if not isinstance(layer, keras.layers.Layer):
        raise TypeError(f"layer: got {type(layer).__name__}; expected a Keras layer or model")
    name = type(layer).__name__
    if not layer.built:
        raise ValueError(
            f"layer: got {name} that is not built, whose weights have no shapes yet; expected one that is: call it "
            "once, or call its `build` with the shapes of its inputs"
        )
    variables = parameters(layer)
    reached = {id(variable) for variable in variables.values()}
    if lost := [weight.path for weight in layer.weights if id(weight) not in reached]:
        raise ValueError(
            f"layer: got {name}, of which no public attribute leads to its weight {lost[0]}, which so has no name; "
            "expected layers that keep their weights and layers as attributes of their own (not in lists, as "
            "keras.Sequential does): take these one by one"
        )
    return variables
