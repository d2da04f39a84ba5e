"""Bounds on |q| and |k| within which the shortcuts of Triton's additive kernels are exact enough.

With p = e^{2q} e^{2k} and r = 1/(1 + p), tanh(q + k) = 1 − 2r, and its derivative is 4 p r². The exponentials are
computed once for each query and key, so a pair and feature costs multiplications and a share of a reciprocal. On a GPU,
reciprocals are several times slower than multiplications.

A tile's shortcut follows from `peaks`, the largest |q| or |k| of a block of rows (∞ beyond `REACH`, and for NaN). With
s = `SCALE`, each denominator is s + (s e^{2q}) e^{2k}:

- The scaled exponentials are normal numbers while |q| and |k| are at most 38: s e^{-76} > 2^-126.
- Four reciprocals fold into one while a = max|q| + max|k| ≤ 19. The product of four denominators is at least
  s⁴ = 2^-64. It overflows only if the product of the four 1 + p exceeds 2^192. The smallest 1 + p is then above
  2^192 / e^{6a} ≥ 2^27, so the lost reciprocals are below 2^-27. Numerators stay below 4 s³ e^{6a} < 2^120.
- Two fold while a ≤ 46: a lost reciprocal is below e^{2a} / 2^160 ≤ 2^-27, and numerators stay below 2^119.

Beyond these bounds tanh is computed directly, which is right for any number.
"""

SCALE = 2.0**-16
REACH = 38.0
FOURS, TWOS = 19.0, 46.0
# Gradients: p and 1/p are normal numbers up to SAFE; below SMALL, 1 − 2r loses the digits of a small tanh.
SAFE, SMALL = 43.0, 1.0
