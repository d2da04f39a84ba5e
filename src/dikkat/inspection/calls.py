"""A call of attention, and the weights of a model's calls as transformers returns them."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Tensor

OWN_SOFTMAX = "by its own softmax"


class Attentions(tuple[Any, ...]):
    """Weights as transformers returns them: a tuple of (B, H, n, m) for each layer.

    If the model ran several times, as in `generate`, the tuple has such a tuple for each run. The model's configuration
    lists the layers in the tuple. `by_name` has the weights of all modules.

    Attributes:
        encoder_attentions: The weights of an encoder's layers if the model has a decoder too; else ().
        cross_attentions: The weights of a decoder's cross attention, in the form of the tuple itself; or ().
        by_name: The weights of each call of every module, including poolings, towers and predictors.
        source: "returned by the model" if the weights were not recorded; "by its own softmax" if some are from the
            model's own softmax; else "".
    """

    encoder_attentions: tuple[Tensor, ...]
    cross_attentions: tuple[Any, ...]
    by_name: dict[str, tuple[Tensor, ...]]
    source: str

    def __new__(
        cls, layers: Iterable[Any], encoder: Iterable[Tensor], cross: Iterable[Any],
        by_name: dict[str, tuple[Tensor, ...]], source: str,
    ) -> "Attentions":  # fmt: skip
        """Create the tuple of `layers` with its attributes."""
        attentions = super().__new__(cls, layers)
        attentions.encoder_attentions, attentions.cross_attentions = tuple(encoder), tuple(cross)
        attentions.by_name, attentions.source = by_name, source
        return attentions

    def __repr__(self) -> str:
        groups = {"": self, "encoder_attentions": self.encoder_attentions, "cross_attentions": self.cross_attentions}
        counts = [f"{len(weights)} {name}".rstrip() for name, weights in groups.items() if weights or not name]
        calls = [f"  {name!r}: {len(weights)} × {tuple(weights[0].shape)}" for name, weights in self.by_name.items()]
        summary = ", ".join([*counts, self.source] if self.source else counts)
        return "\n".join([f"Attentions of {summary}; by_name:", *calls])


class Call(NamedTuple):
    """A call of attention.

    Attributes:
        name: The name of the module.
        run: The number of the model's run.
        layer: The number of the layer, in the order in which layers run; −1 for none.
        kind: "self", "encoder" or "cross", as in `Attentions`; "" for another kind.
        source: "by its own softmax" for a model's own softmax; "" for attention functions.
        reads: The number of the sequence that self-attention reads; −1 if its positions are rearranged.
        writes: The number of the sequence that the call returns.
    """

    name: str
    run: int = 0
    layer: int = -1
    kind: str = "self"
    source: str = ""
    reads: int = 0
    writes: int = 0
