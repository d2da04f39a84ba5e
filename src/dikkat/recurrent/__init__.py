"""Recurrent networks with attention: encoders that never read padding, and decoders that attend."""

from dikkat.recurrent.attentional import AttentionalGRU, AttentionalLSTM
from dikkat.recurrent.encoder import GRUEncoder, LSTMEncoder

__all__ = ["AttentionalGRU", "AttentionalLSTM", "GRUEncoder", "LSTMEncoder"]
