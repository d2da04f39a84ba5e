"""Attention in which every scoring function is exact, masked, inspectable and mergeable."""

from dikkat import scores
from dikkat.adapters import as_torch_attention
from dikkat.attention import (
    Implementation,
    Memory,
    State,
    attend,
    attend_memory,
    attention_state,
    attention_weights,
    implementations,
    merge,
    prepare,
)
from dikkat.layers import (
    AdditiveAttention,
    BilinearAttention,
    DotProductAttention,
    KernelAttention,
    MultiHeadAttention,
    SelfAttention,
    self_attention,
)
from dikkat.masking import check_values, masked_softmax

__version__ = "0.1.0"

__all__ = [
    "AdditiveAttention",
    "BilinearAttention",
    "DotProductAttention",
    "Implementation",
    "KernelAttention",
    "Memory",
    "MultiHeadAttention",
    "SelfAttention",
    "State",
    "as_torch_attention",
    "attend",
    "attend_memory",
    "attention_state",
    "attention_weights",
    "check_values",
    "implementations",
    "masked_softmax",
    "merge",
    "prepare",
    "scores",
    "self_attention",
]
