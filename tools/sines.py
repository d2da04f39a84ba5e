"""Fit sums of sines to tanh, and write src/dikkat/_core/implementations/products/sines.py.

    python tools/sines.py

For each range |x| ≤ A, find b_1 … b_R and a period T such that Σ_r b_r sin(ω_r x), ω_r = (2r − 1) π / 2T, and its
derivative are close to tanh and its derivative. Fitted by least squares with weights that grow with the error (Lawson),
over the value and `SLOPE` times the derivative, in double precision.

The sum is symmetric about T, and tanh is nearly constant there, so T may be less than A. A shorter period gives a
smaller error with the same number of terms.
"""

import textwrap
from pathlib import Path

import numpy as np

TERMS = 16
REACHES = (2, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 18)
PERIODS = np.arange(0.56, 1.5, 0.02)  # times the reach
SLOPE, POINTS, ROUNDS = 0.3, 600, 25
OUTPUT = Path(__file__).parents[1] / "src/dikkat/_core/implementations/products/sines.py"
HEAD = '''"""Sums of sines that follow tanh, as tools/sines.py made them: edit that, and run it again."""

# (A, T, b): tanh x ≈ Σ_r b_r sin(ω_r x) on |x| ≤ A, with ω_r = (2r − 1) π / 2T.
SERIES: tuple[tuple[float, float, tuple[float, ...]], ...] = (
'''


def fit(reach: float, period: float) -> tuple[float, np.ndarray]:
    """Return the largest error and the coefficients."""
    x = np.linspace(0, reach, POINTS)
    w = (2 * np.arange(TERMS) + 1) * np.pi / (2 * period)
    angles = np.outer(x, w)
    matrix = np.concatenate([np.sin(angles), SLOPE * np.cos(angles) * w])
    target = np.concatenate([np.tanh(x), SLOPE / np.cosh(x) ** 2])
    weights = np.ones(len(target))
    best: tuple[float, np.ndarray] = np.inf, np.zeros(TERMS)
    for _ in range(ROUNDS):
        b = np.linalg.lstsq(matrix * weights[:, None], target * weights, rcond=1e-12)[0]
        errors = np.abs(matrix @ b - target)
        best = min(best, (errors.max(), b), key=lambda candidate: candidate[0])
        weights *= np.sqrt(errors / errors.mean() + 1e-3)
        weights /= weights.mean()
    return best


def main() -> None:
    """Fit all series and write them."""
    lines = []
    for reach in REACHES:
        fits = ((t * reach, fit(reach, t * reach)) for t in PERIODS)
        period, (error, b) = min(fits, key=lambda candidate: candidate[1][0])
        print(f"{reach}: T = {period:.2f}, error {error:.1e}")
        rows = textwrap.fill(", ".join(f"{coefficient:.8g}" for coefficient in b) + ",", 112)
        lines.append(f"    ({reach}.0, {period:.6g}, (\n{textwrap.indent(rows, ' ' * 8)}\n    )),\n")
    OUTPUT.write_text(HEAD + "".join(lines) + ")  # fmt: skip\n")


if __name__ == "__main__":
    main()
