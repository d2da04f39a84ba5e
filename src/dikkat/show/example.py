"""A small trained transformer to look into."""

import zlib
from collections.abc import Sequence
from importlib.resources import files

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["ExampleModel", "example_model"]

VOCABULARY, MAX_WORDS = 512, 64
WEIGHTS = files("dikkat.show") / "example_model.npz"


class _CausalAttention(nn.Module):
    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.projections = nn.Linear(features, 3 * features, bias=False)
        self.output = nn.Linear(features, features, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        normed = F.layer_norm(states, states.shape[-1:])
        query, key, value = self.projections(normed).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return result


class ExampleModel(nn.Module):
    """Attention-only transformer with two layers of four heads, for texts that repeat themselves.

    It has causal attention with 16 features per head, a residual stream of 64 features and no feed-forward layers. The
    token of a word is its CRC-32 modulo 512, so that every text has tokens.

    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", on attention-only transformers and
        induction heads.
    """

    def __init__(self, features: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, features)
        self.positions = nn.Embedding(MAX_WORDS, features)
        self.layers = nn.ModuleList(_CausalAttention(features, heads) for _ in range(layers))
        self.unembedding = nn.Linear(features, VOCABULARY, bias=False)

    def forward(self, words: Sequence[str] | Tensor) -> Tensor:
        """Return the logits (B, n, 512) of the next tokens.

        Args:
            words: At most 64 words of one text, or (B, n) int64 tokens.

        Raises:
            ValueError: If there are more than 64 words.
        """
        tokens = words if isinstance(words, Tensor) else torch.tensor([[zlib.crc32(w.encode()) for w in words]])
        if tokens.shape[-1] > MAX_WORDS:
            raise ValueError(f"words: got {tokens.shape[-1]}; expected at most {MAX_WORDS}")
        states = self.embedding(tokens % VOCABULARY) + self.positions.weight[: tokens.shape[-1]]
        for layer in self.layers:
            states = states + layer(states)
        logits: Tensor = self.unembedding(states)
        return logits


def example_model() -> ExampleModel:
    """Return a trained transformer that continues texts with repetitions.

    Heads of its first layer attend to the previous word. Heads of its second layer attend to the word after an earlier
    copy of the current word (induction heads). tools/example_model.py trained it.

    Example:
        >>> import dikkat
        >>> words = "when life gives you lemons make lemonade when life gives you".split()
        >>> trace = dikkat.show.attention(dikkat.show.example_model(), words, tokens=words)
        >>> len(trace), trace[1].shape
        (2, (1, 4, 11, 11))
    """
    model = ExampleModel()
    with WEIGHTS.open("rb") as file, np.load(file) as arrays:
        model.load_state_dict({name: torch.from_numpy(arrays[name]).float() for name in arrays})
    return model.eval()
