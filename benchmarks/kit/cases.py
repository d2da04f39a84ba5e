"""The cases to measure: a task, a shape and a variant, which determine the inputs."""

import math
import zlib
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

Arrays = dict[str, np.ndarray]

PLAIN, TIMES_4, OUTLIER, HALF = "plain", "inputs × 4", "one outlier of 10⁴", "half valid"


@dataclass(frozen=True)
class Case:
    """One problem: `batch` times `queries` × `keys` pairs of `features` each.

    Additive: from projected queries and keys to pooled values. Distance: Gaussian, of bandwidth 1.
    """

    batch: int
    queries: int
    keys: int
    features: int
    d_v: int = 64
    task: Literal["additive", "distance"] = "additive"
    variant: str = PLAIN
    dtype: str = "float32"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.queries, self.keys, self.features

    @property
    def pair_features(self) -> int:
        return math.prod(self.shape)

    @property
    def pair_bytes(self) -> int:
        """Bytes of the tensor of all pairs and features, which unfused implementations store."""
        return self.pair_features * {"float32": 4, "bfloat16": 2}[self.dtype]

    @property
    def name(self) -> str:
        return f"{self.task} {self.shape} {self.variant} {self.dtype}"

    @property
    def leaves(self) -> list[str]:
        """The inputs with gradients, in the order of arguments and gradients of all peers."""
        return ["query", "key", "value"] + ["weight"] * (self.task == "additive")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def inputs(self) -> Arrays:
        """Return the input arrays, which depend only on the shape and the variant."""
        batch, n, m, h = self.shape
        rng = np.random.default_rng(zlib.crc32(f"{self.task} {self.shape}".encode()))
        sizes = {"query": (batch, n, h), "key": (batch, m, h), "value": (batch, m, self.d_v)}
        arrays = {name: rng.standard_normal(size, dtype=np.float32) for name, size in sizes.items()}
        arrays["upstream"] = rng.standard_normal((batch, n, self.d_v), dtype=np.float32)
        # As nn.Linear(h, 1) begins.
        arrays["weight"] = (rng.uniform(-1, 1, h) / math.sqrt(h)).astype(np.float32)
        if self.variant == TIMES_4:
            arrays["query"] *= 4
            arrays["key"] *= 4
        elif self.variant == OUTLIER:
            arrays["key"][0, m // 2, h // 3] = 1e4
        elif self.variant == HALF:
            arrays["valid_lens"] = np.full(batch, m // 2)
        return arrays
