"""For which |q| and |k| the tricks of the additive kernels are exact enough: the one place for Triton.

With p = e^{2q} e^{2k} and r = 1/(1 + p), tanh(q + k) = 1 − 2r, and its derivative is 4 p r². The exponentials are made
once a query and once a key, so that a pair and feature costs multiplications and its share of a reciprocal: on a GPU
the unit that makes reciprocals is several times slower than the one that multiplies.

What is safe for a tile follows from `peaks`, the largest |q| or |k| of a block of rows (∞ beyond `REACH`, and where
something is NaN). With s = `SCALE`, each denominator is s + (s e^{2q}) e^{2k}:

- The scaled exponentials are normal numbers while |q| and |k| are at most 38: s e^{-76} > 2^-126.
- Four reciprocals fold into one while a = max|q| + max|k| ≤ 19. The product of four denominators is at least
  s⁴ = 2^-64. It overflows only where that of the four 1 + p exceeds 2^192; the smallest of them is then above
  2^192 / e^{6a} ≥ 2^27, so the reciprocals that are lost are below 2^-27. Numerators stay below 4 s³ e^{6a} < 2^120.
- Two fold while a ≤ 46, likewise: a lost reciprocal is below e^{2a} / 2^160 ≤ 2^-27, numerators stay below 2^119.

Beyond, tanh is computed plainly, which is right for any number.
"""

SCALE = 2.0**-16
REACH = 38.0
FOURS, TWOS = 19.0, 46.0
# Gradients: up to where p and 1/p are normal numbers, and from where below 1 − 2r loses the digits of a small tanh.
SAFE, SMALL = 43.0, 1.0
