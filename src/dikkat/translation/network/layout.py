"""The weights of a translator, as a compiled search reads them."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from dikkat.scores import Pair


class Affine(NamedTuple):
    """A matrix (out, in), and a bias (out,), if any."""

    weight: Tensor
    bias: Tensor | None = None


class Cells(NamedTuple):
    """The weights of a recurrent layer, as `torch.nn.GRU` and `torch.nn.LSTM` have them."""

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor
    bias_hh: Tensor


class Compared(NamedTuple):
    """The comparison of states with what was read."""

    pair: Pair  # the pair function
    query: Affine  # makes queries of states
    key: Affine  # makes keys of what was read
    weight: Tensor | None  # of each feature, of an additive score


class Network(NamedTuple):
    """A translator's weights, of one dtype, float32 or float64, on the CPU."""

    source_table: Tensor  # (V, e)
    target_table: Tensor  # (W, e)
    scale: float  # the factor of embeddings
    encoder: Sequence[Sequence[Cells]]  # its layers, each of one direction or two
    bridge: Affine | None  # makes the decoder's first states of the encoder's last ones; None for these themselves
    cell_bridge: Affine | None  # the bridge of an LSTM's cells
    decoder: Sequence[Cells]  # its layers; the first reads embedding and context
    compared: Compared  # the attention
    attends: bool  # whether it looks at all positions, and not at the last state of the encoder alone
    readout: Affine | None  # of state, context and embedding, before its tanh; None for the state itself
    output: Affine  # (W, …), with a bias
    # (e, e), which is multiplied with the mean of the source's embeddings by the weights of attention and added to the
    # readout; that mean is a part of the context then, its last. None where there is none.
    lexical: Tensor | None = None

    @property
    def hidden(self) -> int:
        """Features of a decoder's state."""
        return self.decoder[0].weight_hh.shape[1]

    @property
    def lstm(self) -> bool:
        """True for an LSTM's cells, False for a GRU's."""
        return self.decoder[0].weight_hh.shape[0] == 4 * self.hidden
