"""Sums of sines that follow tanh: makes src/dikkat/_core/implementations/products/sines.py.

    python tools/sines.py

For each reach A it looks for b_1 … b_R and a period T such that Σ_r b_r sin(ω_r x), ω_r = (2r − 1) π / 2T, and its
derivative come as near to tanh and its derivative as they can on |x| ≤ A: least squares whose weights grow where the
error is large (Lawson), over the value and `SLOPE` times the derivative, in double precision.

Such a sum is the same at T + x and T − x, and so is tanh where it is 1 to the digits that count: T is less than A, and
a shorter period is followed more closely by as many terms.
"""

import textwrap
from pathlib import Path

import numpy as np

TERMS = 16
REACHES = (2, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 18)
PERIODS = np.arange(0.56, 1.5, 0.02)  # times the reach
SLOPE, POINTS, ROUNDS = 0.3, 600, 25
PLACE = Path(__file__).parents[1] / "src/dikkat/_core/implementations/products/sines.py"
HEAD = '''"""Sums of sines that follow tanh, as tools/sines.py made them: edit that, and run it again."""

# (A, T, b): tanh x ≈ Σ_r b_r sin(ω_r x) on |x| ≤ A, with ω_r = (2r − 1) π / 2T.
SERIES: tuple[tuple[float, float, tuple[float, ...]], ...] = (
'''


def fitted(reach: float, period: float) -> tuple[float, np.ndarray]:
    """The largest error, and the coefficients."""
    x = np.linspace(0, reach, POINTS)
    w = (2 * np.arange(TERMS) + 1) * np.pi / (2 * period)
    angles = np.outer(x, w)
    matrix = np.concatenate([np.sin(angles), SLOPE * np.cos(angles) * w])
    wanted = np.concatenate([np.tanh(x), SLOPE / np.cosh(x) ** 2])
    weights = np.ones(len(wanted))
    best: tuple[float, np.ndarray] = np.inf, np.zeros(TERMS)
    for _ in range(ROUNDS):
        b = np.linalg.lstsq(matrix * weights[:, None], wanted * weights, rcond=1e-12)[0]
        errors = np.abs(matrix @ b - wanted)
        best = min(best, (errors.max(), b), key=lambda found: found[0])
        weights *= np.sqrt(errors / errors.mean() + 1e-3)
        weights /= weights.mean()
    return best


def main() -> None:
    """Fit all series, and write them."""
    lines = []
    for reach in REACHES:
        tried = ((t * reach, fitted(reach, t * reach)) for t in PERIODS)
        period, (error, b) = min(tried, key=lambda found: found[1][0])
        print(f"{reach}: T = {period:.2f}, error {error:.1e}")
        rows = textwrap.fill(", ".join(f"{each:.8g}" for each in b) + ",", 112)
        lines.append(f"    ({reach}.0, {period:.6g}, (\n{textwrap.indent(rows, ' ' * 8)}\n    )),\n")
    PLACE.write_text(HEAD + "".join(lines) + ")  # fmt: skip\n")


if __name__ == "__main__":
    main()
