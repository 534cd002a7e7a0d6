"""Go's integer division on whole columns: it truncates towards zero.

NumPy's `//` rounds down, which differs for negative numbers. They are rare (a product that overflowed, as in Go), so
the correction costs time only where they occur.
"""

from __future__ import annotations

import numpy as np

from bayplan.snapshot import IntVector


def one_quotient(dividend: int, divisor: int) -> int:
    return dividend // divisor if (dividend < 0) == (divisor < 0) else -(-dividend // divisor)


def quotient(dividend: IntVector, divisor: IntVector | int) -> IntVector:
    """Return `dividend / divisor` as Go computes it for int64."""
    down: IntVector = dividend // divisor
    if (dividend >= 0).all() and np.all(np.asarray(divisor) > 0):
        return down
    inexact = down * divisor != dividend
    corrected: IntVector = down + (inexact & ((dividend < 0) != (np.asarray(divisor) < 0)))
    return corrected
