"""Sizes at which one way to compute a call becomes quicker than another, as measured.

`python -m benchmarks.attention.crossovers` times both ways of many shapes and finds `inner`, `inner_back`,
`inner_masked_back` and `kernel_back` on a machine; the defaults are between those for one thread and for two of an
EPYC. `rows`, `few_back` and `few_whole` are from some forty shapes of `benchmarks.attention.small`, timed both ways.
"""

import math
from typing import NamedTuple

from dikkat.cpu.attention import few
from dikkat.problem import Problem


class Crossovers(NamedTuple):
    """Sizes up to which the plain products of the reference are chosen, where nothing else is said.

    A pair is a query and a key of one batch element. Softmax takes its share of the time where features are few; a
    fused kernel saves some of that, and more where there are lengths, which are one more pass over the pairs: there it
    is the quicker one at any size. Its backward computes all products once more.

    Attributes:
        inner: Pairs a feature, before PyTorch's fused kernel.
        inner_back: Pairs a feature, with the backward.
        inner_masked_back: Pairs a feature squared, with lengths and the backward.
        rows: Fewer queries than these are left to plain products at any size.
        few_back: Pairs times features, from which on the compiled kernel for few queries is quicker for inner products
            with lengths and the backward. Without the backward it always is: it is one call, and reads no hidden key.
        few_whole: The same for a single query that sees all keys, forward too.
        kernel_back: Pairs times features, before the compiled kernels of the other pair functions with the backward.
            Without it they are quicker at any size.
    """

    inner: int = 2**12
    inner_back: int = 2**15
    inner_masked_back: int = 2**8
    rows: int = 16
    few_back: int = 2**20
    few_whole: int = 2**20
    kernel_back: int = 2**16

    def by_products(self, problem: Problem) -> bool:
        """Whether inner products are quicker by two plain products than by PyTorch's fused kernel."""
        restrictions, features = problem.restrictions, max(problem.query.shape[-1], problem.value.shape[-1])
        pairs, masked = pairs_of(problem), restrictions.lens is not None
        if problem.records:
            return pairs <= (self.inner_masked_back * features**2 if masked else self.inner_back * features)
        few = not masked and pairs <= self.inner * features
        return few or restrictions.queries < self.rows or restrictions.keys < (1 if masked else 4) * features

    def by_few(self, problem: Problem) -> bool:
        """Whether inner products are quicker by the compiled kernel for few queries."""
        restrictions, size = problem.restrictions, pairs_of(problem) * problem.query.shape[-1]
        if restrictions.lens is None:
            enough = restrictions.queries == 1 and size >= self.few_whole
        else:
            enough = not problem.records or size >= self.few_back
        return enough and few.is_quicker(problem)

    def by_reference(self, problem: Problem) -> bool:
        """Whether additive and distance scores are quicker by the reference than by the compiled kernels."""
        return problem.records and pairs_of(problem) * problem.query.shape[-1] <= self.kernel_back


def pairs_of(problem: Problem) -> int:
    """How many pairs of a query and a key there are."""
    return math.prod(problem.lead) * problem.restrictions.queries * problem.restrictions.keys


CROSSOVERS = Crossovers()
