"""Computes the numbers of Muon's rational function (src/optim/muon.cc).

Zolotarev's best approximation of 1 on [l, 1] by x times a rational function of x^2 with two poles, after Nakatsukasa and
Freund, SIAM Review 58 (2016), section 3; here as a sum of partial fractions: x (w0 + w1 / (x^2 + p1) + w2 / (x^2 + p2)).
"""

import math


def elliptic_k(modulus):
    a, b = 1.0, math.sqrt(1 - modulus * modulus)
    while abs(a - b) > 1e-15 * a:
        a, b = (a + b) / 2, math.sqrt(a * b)
    return math.pi / (a + b)


def sn_cn(u, modulus):
    """Jacobi's elliptic functions, by the arithmetic-geometric mean."""
    means, gaps = [1.0], [modulus]
    b = math.sqrt(1 - modulus * modulus)
    while gaps[-1] > 1e-15:
        a = means[-1]
        means.append((a + b) / 2)
        gaps.append((a - b) / 2)
        b = math.sqrt(a * b)
    angle = 2 ** (len(means) - 1) * means[-1] * u
    for a, gap in zip(means[:0:-1], gaps[:0:-1]):
        angle = (math.asin(gap * math.sin(angle) / a) + angle) / 2
    return math.sin(angle), math.cos(angle)


def zolotarev(lowest, poles):
    """Returns the constant, [(p, w)] and the least and largest value on [lowest, 1]."""
    modulus = math.sqrt(1 - lowest * lowest)
    k = elliptic_k(modulus)
    c = []
    for i in range(1, 2 * poles + 1):
        sn, cn = sn_cn(i * k / (2 * poles + 1), modulus)
        c.append((lowest * sn / cn) ** 2)
    odd, even = c[0::2], c[1::2]

    def at(x):
        return x * math.prod((x * x + e) / (x * x + o) for e, o in zip(even, odd))

    values = [at(lowest ** (i / 20000)) for i in range(20001)]
    scale = 2 / (min(values) + max(values))
    weights = [scale * math.prod(e - o for e in even) / math.prod(q - o for q in odd if q != o) for o in odd]
    return scale, list(zip(odd, weights)), scale * min(values), scale * max(values)


constant, fractions, least, largest = zolotarev(1 / 500, 2)
print(f"constant {constant:.9g}, values from {least:.3f} to {largest:.3f}")
for p, w in fractions:
    print(f"pole {p:.9g}, weight {w:.9g}")
print(f"slope at 0: {constant + sum(w / p for p, w in fractions):.0f}")
