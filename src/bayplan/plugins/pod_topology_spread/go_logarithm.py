"""Natural logarithm with the same bits as Go's `math.Log`.

Topology spread weighs a topology by the logarithm of its size and rounds later, so a different last bit can change a
score. C libraries differ from Go for some arguments; this sequence of operations does not. The method is that of
FreeBSD's libm: reduction to [sqrt(2)/2, sqrt(2)], then a polynomial.
"""

from __future__ import annotations

import math

_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
_ODD = (6.666666666666735130e-01, 2.857142874366239149e-01, 1.818357216161805012e-01, 1.479819860511658591e-01)
_EVEN = (3.999999999940941908e-01, 2.222219843214978396e-01, 1.531383769920937332e-01)
_HALF_SQRT2 = math.sqrt(2) / 2


def natural_log(value: float) -> float:
    """Return ln(value) for a positive, finite value."""
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
