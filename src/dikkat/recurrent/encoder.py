from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from dikkat.recurrent.stack import check_stack


class GRUEncoder(nn.Module):
    """A GRU over batches of sequences of different lengths, in one or both directions, that never reads padding.

    The sequences are packed, so that a sequence's outputs and final states depend on its own `length` positions
    alone: the backward direction starts at the last real position, and whatever stands behind it, even NaN, has no
    effect.
    Bahdanau, Cho, Bengio (2015), section 3.2; the parameters are those of `torch.nn.GRU`, under `gru.`.

    Args:
        input_size: features of an input, e.
        hidden_size: features of a direction's state.
        num_layers: GRU layers on top of each other.
        bidirectional: whether a second GRU reads backwards; its features follow those of the first.
        dropout: probability with which a feature is dropped between layers, in training only; it needs two layers.

    Attributes:
        output_size: features of an output, c: `hidden_size`, or twice that in both directions.

    Raises:
        ValueError: a size below 1, a dropout outside 0…1, or a dropout where there is no second layer to act on.

    Example:
        >>> import torch
        >>> from dikkat.recurrent import GRUEncoder
        >>> encoder = GRUEncoder(3, 5, num_layers=2)
        >>> outputs, state = encoder(torch.randn(2, 7, 3), torch.tensor([7, 4]))
        >>> outputs.shape, state.shape
        (torch.Size([2, 7, 10]), torch.Size([2, 2, 10]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bidirectional: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_stack(num_layers, dropout, input_size=input_size, hidden_size=hidden_size)
        self.directions = 2 if bidirectional else 1
        self.output_size = self.directions * hidden_size
        self.gru = nn.GRU(
            input_size, hidden_size, num_layers, batch_first=True, dropout=dropout, bidirectional=bidirectional
        )

    def forward(self, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Encode a batch.

        Args:
            inputs: (B, S, e), padded to S positions.
            lengths: (B,) integers from 1 to S.

        Returns:
            The outputs (B, S, c), 0 behind each length; and each layer's final state (layers, B, c), that of the
            backward direction after that of the forward one, from which a decoder can start.

        Raises:
            ValueError: inputs that are not (B, S, e), or a length outside 1…S.
        """
        if inputs.ndim != 3 or inputs.shape[2] != self.gru.input_size:
            raise ValueError(
                f"inputs have shape {tuple(inputs.shape)}; they must be (batch, positions, {self.gru.input_size})"
            )
        batch, positions = inputs.shape[:2]
        lengths = lengths.cpu()  # where packing reads them
        if tuple(lengths.shape) != (batch,):
            raise ValueError(f"lengths have shape {tuple(lengths.shape)}; they must be (batch,) = ({batch},)")
        if batch and (int(lengths.min()) < 1 or int(lengths.max()) > positions):
            raise ValueError(
                f"lengths are {lengths.tolist()}; each must be from 1 to the {positions} positions of inputs"
            )
        packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
        packed_outputs, final = self.gru(packed)
        outputs, _ = pad_packed_sequence(packed_outputs, batch_first=True, total_length=positions)
        by_layer = final.unflatten(0, (self.gru.num_layers, self.directions))
        return outputs, by_layer.transpose(1, 2).flatten(2)
