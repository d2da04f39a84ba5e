"""The implementations of dikkat and their peers, one framework per worker.

A peer takes the leaves of a case and returns the output, or the output with the gradients of the leaves, after all work
is complete. Its setup (arrays on the device, compiled functions) is not timed.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np

from benchmarks.kit.cases import Arrays, Case

EAGER, SDPA = "eager PyTorch", "SDPA, padded features"
OURS = ("reference", "chunked", "numba", "products", "triton", "auto")
PEERS = (EAGER, "torch.compile", "torch.compile, sum", "JAX", "JAX, query by query", "KeOps", SDPA)
# These may store tensors of all pairs and features; a smaller run measures how many.
MATERIALISING = ("reference", *PEERS[:4])


class Peer(Protocol):
    """One way to compute a case."""

    def forward(self) -> Any: ...
    def both(self, upstream: Any) -> Sequence[Any]:
        """Output and gradients."""
        ...

    def array(self, array: np.ndarray) -> Any:
        """Convert to the framework's array."""
        ...

    def numpy(self, array: Any) -> np.ndarray: ...


Ways = dict[str, Callable[[], Peer]]


# PyTorch: ours, and what textbooks write -----------------------------------------------------------------------------


class TorchPeer:
    def __init__(self, pool: Callable[..., Any], case: Case, inputs: Arrays, device: str) -> None:
        import torch

        self.torch, self.pool, self.device, self.dtype = torch, pool, device, getattr(torch, case.dtype)
        self.leaves = [self.array(inputs[name]).requires_grad_() for name in case.leaves]

    def forward(self) -> Any:
        with self.torch.no_grad():
            return self.pool(*self.leaves)

    def both(self, upstream: Any) -> Sequence[Any]:
        out = self.pool(*self.leaves)
        return out, *self.torch.autograd.grad(out, self.leaves, upstream)

    def array(self, array: np.ndarray) -> Any:
        return self.torch.from_numpy(array).to(self.device, self.dtype)

    def numpy(self, array: Any) -> np.ndarray:
        return array.detach().float().cpu().numpy()


def torch_ways(case: Case, inputs: Arrays, device: str) -> Ways:
    pools = distance_pools() if case.task == "distance" else _additive_pools(case)
    if "valid_lens" in inputs:  # the textbook's masks are no peer: they cost, and save nothing
        pools = {}
    pools |= _our_pools(case, inputs, device)
    return {name: lambda pool=pool: TorchPeer(pool, case, inputs, device) for name, pool in pools.items()}  # type: ignore[misc]


def _additive_pools(case: Case) -> dict[str, Callable[..., Any]]:
    import torch
    from torch import nn

    def textbook(query: Any, key: Any, value: Any, weight: Any) -> Any:
        features = torch.tanh(query.unsqueeze(2) + key.unsqueeze(1))
        scores = nn.functional.linear(features, weight[None]).squeeze(-1)
        return torch.bmm(torch.softmax(scores, -1), value)

    def fusible(query: Any, key: Any, value: Any, weight: Any) -> Any:
        """A sum over the features, which the compiler fuses, unlike nn.Linear(h, 1)."""
        scores = (torch.tanh(query.unsqueeze(2) + key.unsqueeze(1)) * weight).sum(-1)
        return torch.bmm(torch.softmax(scores, -1), value)

    return {EAGER: textbook, "torch.compile": _compiled(textbook), "torch.compile, sum": _compiled(fusible)}


def _compiled(pool: Callable[..., Any]) -> Callable[..., Any]:
    """Compile the function at its first call, because importing the compiler takes seconds."""

    @cache
    def compile() -> Callable[..., Any]:
        import torch

        return torch.compile(pool, dynamic=False)

    return lambda *leaves: compile()(*leaves)


def distance_pools() -> dict[str, Callable[..., Any]]:
    import torch
    from torch.nn.functional import pad, scaled_dot_product_attention

    def eager(query: Any, key: Any, value: Any) -> Any:
        distance = torch.cdist(query, key, compute_mode="donot_use_mm_for_euclid_dist")
        return torch.softmax(distance.square() / -2, -1) @ value

    def dots(query: Any, key: Any, value: Any) -> Any:
        """−½‖q − k‖² = ⟨q, k⟩ − ½‖k‖² − ½‖q‖², whose last term is the same for all keys."""
        d, d_v = query.shape[-1], value.shape[-1]
        size = -(-max(d + 1, d_v) // 8) * 8  # the fused kernels want one size for all, a multiple of 8
        query = pad(torch.cat([query, torch.ones_like(query[..., :1])], -1), (0, size - d - 1))
        key = pad(torch.cat([key, key.square().sum(-1, keepdim=True) / -2], -1), (0, size - d - 1))
        value = pad(value, (0, size - d_v))
        return scaled_dot_product_attention(query[:, None], key[:, None], value[:, None], scale=1.0)[:, 0, :, :d_v]

    return {EAGER: eager, SDPA: dots}


def _score(case: Case) -> Any:
    """Return the score for projected queries and keys, with v as an input."""
    from dikkat import scores

    class Given(scores.Additive):
        weight: Any = None

        def project_query(self, query: Any) -> Any:
            return query

        def project_key(self, key: Any) -> Any:
            return key

        def pair_weight(self) -> Any:
            return self.weight

    return Given(1, 1, 1) if case.task == "additive" else scores.Gaussian()


def _our_pools(case: Case, inputs: Arrays, device: str) -> dict[str, Callable[..., Any]]:
    import torch

    import dikkat

    score = _score(case)
    lens = torch.from_numpy(inputs["valid_lens"]).to(device) if "valid_lens" in inputs else None

    def ours(impl: str) -> Callable[..., Any]:
        def pool(query: Any, key: Any, value: Any, weight: Any = None) -> Any:
            score.weight = weight
            return dikkat.attend(query, key, value, score=score, valid_lens=lens, impl=impl)

        return pool

    return {name: ours(name) for name in [*running(case, inputs, device), "auto"]}


def running(case: Case, inputs: Arrays, device: str) -> list[str]:
    """Return the implementations of dikkat that can run a case; the first is the choice of "auto"."""
    import torch

    import dikkat

    dtype = getattr(torch, case.dtype)
    leaves = [torch.from_numpy(inputs[name]).to(device, dtype).requires_grad_() for name in case.leaves]
    score = _score(case)
    score.weight = leaves[3] if len(leaves) > 3 else None
    lens = torch.from_numpy(inputs["valid_lens"]).to(device) if "valid_lens" in inputs else None
    implementations = dikkat.implementations(*leaves[:3], score=score, valid_lens=lens)
    return [implementation.name for implementation in implementations if implementation.runs]


# JAX -----------------------------------------------------------------------------------------------------------------


class JaxPeer:
    """A function of the leaves, compiled by XLA."""

    def __init__(self, pool: Callable[..., Any], leaves: Sequence[np.ndarray]) -> None:
        import jax

        def both(upstream: Any, *leaves: Any) -> Any:
            out, back = jax.vjp(pool, *leaves)
            return out, *back(upstream)

        self.array = jax.numpy.asarray
        self.leaves = [self.array(leaf) for leaf in leaves]
        self._forward, self._both, self._wait = jax.jit(pool), jax.jit(both), jax.block_until_ready

    def forward(self) -> Any:
        return self._wait(self._forward(*self.leaves))

    def both(self, upstream: Any) -> Sequence[Any]:
        return self._wait(self._both(upstream, *self.leaves))

    def numpy(self, array: Any) -> np.ndarray:
        return np.asarray(array)


def jax_ways(case: Case, inputs: Arrays, device: str) -> Ways:
    import jax
    from jax import numpy as jnp

    def attend(query: Any, key: Any, value: Any, weight: Any) -> Any:
        """A sum, which XLA fuses; it would store the factors of a matrix product."""
        scores = (jnp.tanh(query[..., :, None, :] + key[..., None, :, :]) * weight).sum(-1)
        return jax.nn.softmax(scores) @ value

    def one_by_one(query: Any, key: Any, value: Any, weight: Any) -> Any:
        """A loop over the queries with recomputed scores in the backward pass, as a JAX expert writes it."""
        attend_one = jax.checkpoint(lambda query: attend(query[:, None], key, value, weight)[:, 0])
        return jax.lax.map(attend_one, query.swapaxes(0, 1)).swapaxes(0, 1)

    def way(pool: Callable[..., Any]) -> Callable[[], Peer]:
        return lambda: JaxPeer(pool, [inputs[name] for name in case.leaves])

    plain = case.task == "additive" and "valid_lens" not in inputs
    return {"JAX": way(attend), "JAX, query by query": way(one_by_one)} if plain else {}


# KeOps: formulas over pairs that are never stored --------------------------------------------------------------------


def keops_ways(case: Case, inputs: Arrays, device: str) -> Ways:
    import pykeops
    from pykeops.torch import LazyTensor

    pykeops.set_verbose(False)

    def additive(query: Any, key: Any, value: Any, weight: Any) -> Any:
        """KeOps has no tanh: 1 − 2/(1 + e^2x)."""
        pairs = LazyTensor(query[:, :, None]) + LazyTensor(key[:, None])
        scores = (LazyTensor(weight[None, None, None]) * (1 - 2 / (1 + (2 * pairs).exp()))).sum(-1)
        return scores.sumsoftmaxweight(LazyTensor(value[:, None]), dim=2)

    def distance(query: Any, key: Any, value: Any) -> Any:
        scores = ((LazyTensor(query[:, :, None]) - LazyTensor(key[:, None])) ** 2).sum(-1) / -2
        return scores.sumsoftmaxweight(LazyTensor(value[:, None]), dim=2)

    pool = distance if case.task == "distance" else additive
    return {} if "valid_lens" in inputs else {"KeOps": lambda: TorchPeer(pool, case, inputs, device)}


# One process each, since a process selects one backend and thread pools compete: functions, packages, variables.
WORKERS: dict[str, tuple[Callable[[Case, Arrays, str], Ways], tuple[str, ...], dict[str, str]]] = {
    "torch": (torch_ways, (), {}),
    "jax": (jax_ways, ("jax",), {}),
    "keops": (keops_ways, ("pykeops",), {}),
}
