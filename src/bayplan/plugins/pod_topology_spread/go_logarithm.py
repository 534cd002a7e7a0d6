"""The natural logarithm as Go computes it, to the last bit.

Spread weighs a topology by the logarithm of its size and rounds afterwards, so a last bit that differs can become a
point of score. C libraries differ from Go (and from one another) for some arguments; these dozen operations, in this
order, do not. The method is the classic one of FreeBSD's libm: reduce to [sqrt(2)/2, sqrt(2)], then a polynomial.
"""

from __future__ import annotations

import math

_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
_ODD = (6.666666666666735130e-01, 2.857142874366239149e-01, 1.818357216161805012e-01, 1.479819860511658591e-01)
_EVEN = (3.999999999940941908e-01, 2.222219843214978396e-01, 1.531383769920937332e-01)
_HALF_SQRT2 = math.sqrt(2) / 2


def natural_log(value: float) -> float:
    """ln(value) for a positive, finite value."""
    mantissa, exponent = math.frexp(value)
    if mantissa < _HALF_SQRT2:
        mantissa *= 2
        exponent -= 1
    excess = mantissa - 1
    ratio = excess / (2 + excess)
    square = ratio * ratio
    fourth = square * square
    odd = square * (_ODD[0] + fourth * (_ODD[1] + fourth * (_ODD[2] + fourth * _ODD[3])))
    even = fourth * (_EVEN[0] + fourth * (_EVEN[1] + fourth * _EVEN[2]))
    half = 0.5 * excess * excess
    return exponent * _LN2_HIGH - ((half - (ratio * (half + (odd + even)) + exponent * _LN2_LOW)) - excess)
