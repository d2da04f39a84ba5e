import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dikkat
import kit
from dikkat import scores


@kit.each("case", kit.CASES)
def test_projections_and_the_pair_function_make_the_dense_score(case: str) -> None:
    made = kit.call(case, "none")
    q, k = made.query[0, 0], made.key[0, 0]
    lse_of_one_key = torch.stack(
        [dikkat.attention_state(q, k[j : j + 1], k[j : j + 1], score=made.score).lse for j in range(kit.KEYS)], -1
    )
    dense = made.case.dense(made.parameters(), q, k)
    torch.testing.assert_close(lse_of_one_key, dense, rtol=1e-10, atol=1e-12)


def test_parameters_have_the_names_that_are_on_disk() -> None:
    made = [
        scores.Additive(2, 3, 5), scores.Bilinear(2, 3), scores.VectorSum(3), scores.Gaussian(2.0, learnable=True),
        scores.Boxcar(2.0),
    ]  # fmt: skip
    assert {type(score).__name__: sorted(score.state_dict()) for score in made} == {
        "Additive": ["W_k.weight", "W_q.weight", "w_v.weight"],
        "Bilinear": ["W_q.weight"],
        "VectorSum": ["w_v.weight"],
        "Gaussian": ["log_bandwidth"],
        "Boxcar": ["fixed_bandwidth"],
    }


def test_a_constant_that_a_module_in_the_place_of_w_v_adds_is_in_no_weight() -> None:
    plain, other = scores.Additive(4, 6, 13).double(), scores.Additive(4, 6, 13).double()
    other.load_state_dict(plain.state_dict())
    adds = torch.nn.Linear(13, 1).double()
    with torch.no_grad():
        adds.weight.copy_(plain.w_v.weight)
        adds.bias.fill_(3.0)
    other.w_v = torch.nn.Sequential(adds)  # type: ignore[assignment]
    torch.testing.assert_close(other.pair_weight(), plain.w_v.weight[0], rtol=0, atol=1e-14)
    query, key = torch.randn(5, 6, dtype=torch.float64), torch.randn(7, 4, dtype=torch.float64)
    came, expected = (dikkat.attention_weights(query, key, score=score) for score in (other, plain))
    torch.testing.assert_close(came, expected, rtol=0, atol=1e-14)


def test_a_fixed_bandwidth_is_exact_and_a_learned_one_positive() -> None:
    assert scores.Gaussian(0.3).bandwidth.item() == 0.3
    assert scores.Gaussian(torch.tensor(0.3)).bandwidth.dtype == torch.float32
    learned = scores.Gaussian(0.3, learnable=True)
    with torch.no_grad():
        learned.log_bandwidth -= 50
    assert learned.bandwidth.item() > 0


@given(st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=3, max_size=3))
@settings(max_examples=15, deadline=None)
def test_cosine_of_any_vector(entries: list[float]) -> None:
    vector = torch.tensor([entries], dtype=torch.float32, requires_grad=True)
    unit = scores.Cosine().project_query(vector)
    size = math.hypot(*vector[0].tolist())
    if size > 0:
        expected = [x / size for x in vector[0].tolist()]
        torch.testing.assert_close(unit[0].tolist(), expected, rtol=1e-5, atol=1e-6)
    else:
        assert bool((unit == 0).all())
    (grad,) = torch.autograd.grad(unit.sum(), vector)
    assert not bool(grad.isnan().any())


def test_the_compact_kernels_at_their_edges() -> None:
    """At the edge itself the boxcar still counts; the other two have come down to 0. At the tip nothing is NaN."""
    at, x = torch.tensor([[0.0]]), torch.tensor([[0.0], [1.0], [1.5]], requires_grad=True)
    expected = {"Boxcar": [0.5, 0.5, 0.0], "Epanechnikov": [1.0, 0.0, 0.0], "Triangular": [1.0, 0.0, 0.0]}
    for kind, weights in expected.items():
        for impl in ("reference", "chunked"):
            came = dikkat.attention_weights(at, x, score=getattr(scores, kind)(1.0), impl=impl)
            assert came[0].tolist() == weights
            if came.requires_grad:
                (grad,) = torch.autograd.grad((came * torch.arange(3.0)).sum(), x, allow_unused=True)
                assert grad is None or not bool(grad.isnan().any())


def test_half_inputs_keep_their_distances() -> None:
    """Two halves near 100 that differ by one step: rounding q/σ to half would lose the difference."""
    q, k = torch.tensor([[100.0]]).half(), torch.tensor([[100.0], [100.0625]]).half()
    weights = dikkat.attention_weights(q, k, score=scores.Gaussian(0.03))
    ratio = math.exp(-0.5 * (0.0625 / 0.03) ** 2)
    torch.testing.assert_close(weights[0].tolist(), [1 / (1 + ratio), ratio / (1 + ratio)], rtol=2e-3, atol=1e-4)


@kit.each("case", [name for name, case in kit.CASES.items() if case.make().projection != "any"])
def test_projections_are_what_their_score_declares(case: str) -> None:
    score = kit.CASES[case].make().double()
    x, y = (torch.randn(3, kit.CASES[case].query_features, dtype=torch.float64) for _ in range(2))
    if score.projection == "none":
        assert score.project_query(x) is x
    between = score.project_query(0.3 * x + 0.7 * y)
    torch.testing.assert_close(between, 0.3 * score.project_query(x) + 0.7 * score.project_query(y))
    assert not score.reads_values


def test_a_subclass_that_projects_in_its_own_way_declares_how() -> None:
    class Squashed(scores.Bilinear):
        def project_query(self, query: torch.Tensor) -> torch.Tensor:
            return super().project_query(query).tanh()

    class Doubled(scores.Dot):
        projection, reads_values = "affine", False

        def project_key(self, key: torch.Tensor) -> torch.Tensor:
            return 2 * key

    class Named(scores.Additive):
        """Projects as its base does."""

    class Squashing:
        def project_key(self, key: torch.Tensor) -> torch.Tensor:
            return key.tanh()

    class Mixed(Squashing, scores.Bilinear):
        """Projects as its mixin does."""

    class Below(Mixed):
        """Declares nothing either."""

    class Declared(Squashing, scores.Bilinear):
        projection, reads_values = "any", False

    class Bare(Squashing, scores.Score):
        pair = "inner"

    expected = {
        Squashed: ("any", True), Doubled: ("affine", False), Named: ("affine", False), Mixed: ("any", True),
        Below: ("any", True), Declared: ("any", False), Bare: ("any", True),
    }  # fmt: skip
    assert {kind: (kind.projection, kind.reads_values) for kind in expected} == expected
    query, key = torch.randn(3, 2, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    score = Mixed(4, 2).double()
    for _ in range(3):  # later calls of a kept program too
        weights = (score.W_q(query) @ key.tanh().T).softmax(-1)
        torch.testing.assert_close(dikkat.attention_weights(query, key, score=score), weights)
