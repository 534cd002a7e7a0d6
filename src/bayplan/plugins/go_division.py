"""Go's integer division on whole columns: the fraction is cut off, towards zero.

NumPy's `//` rounds down, which differs for negative numbers. Those are rare (a product that overflowed, as it does in
Go), so the correction costs only where they occur.
"""

from __future__ import annotations

import numpy as np

from bayplan.snapshot import IntVector

_SIGN = 1 << 63
_WORD = 1 << 64


def int64(value: int) -> int:
    """A whole number as an int64 holds it: what does not fit wraps around."""
    return value if -_SIGN <= value < _SIGN else (value + _SIGN) % _WORD - _SIGN


def one_quotient(dividend: int, divisor: int) -> int:
    """The same as `quotient` for one number."""
    return dividend // divisor if (dividend < 0) == (divisor < 0) else -(-dividend // divisor)


def quotient(dividend: IntVector, divisor: IntVector | int) -> IntVector:
    """`dividend / divisor` as Go computes it for int64."""
    down: IntVector = dividend // divisor
    if (dividend >= 0).all() and np.all(np.asarray(divisor) > 0):
        return down
    inexact = down * divisor != dividend
    corrected: IntVector = down + (inexact & ((dividend < 0) != (np.asarray(divisor) < 0)))
    return corrected
