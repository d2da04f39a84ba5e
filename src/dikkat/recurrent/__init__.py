"""Recurrent networks with attention: a GRU encoder that never reads padding, and a GRU decoder that attends."""

from dikkat.recurrent.attentional_gru import AttentionalGRU
from dikkat.recurrent.encoder import GRUEncoder

__all__ = ["AttentionalGRU", "GRUEncoder"]
