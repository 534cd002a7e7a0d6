"""Errors of CEL expressions.

Callers catch `CompileError` and `EvaluationError`. `CelError` and `EvaluationAborted` are internal to this package: a
`CelError` is CEL's error *value*, which `&&`, `

` and the quantifiers may absorb; an `EvaluationAborted` ends the evaluation in any case.
"""

from __future__ import annotations

from bayplan.errors import ExpressionError

COST_EXCEEDED = "operation cancelled: actual cost limit exceeded"


class CompileError(ExpressionError):
    """The expression is refused before it runs. The text is cel-go's."""


class EvaluationError(ExpressionError):
    """The evaluation has no result for this device."""


class CelError(Exception):
    """A CEL error value, propagated to an operator that may absorb it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class EvaluationAborted(Exception):
    """The evaluation ends: it is too expensive, or cel-go reports an internal error."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


NO_SUCH_OVERLOAD = "no such overload"


def no_such_overload() -> CelError:
    return CelError(NO_SUCH_OVERLOAD)
