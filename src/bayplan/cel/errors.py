"""Answers one question: in which ways can an expression go wrong?

`CompileError` and `EvaluationError` are what callers catch. `CelError` and `EvaluationAborted` stay inside this room: a
fault is CEL's error *value*, which `&&`, `||` and the quantifiers may swallow; an abort ends the evaluation no matter
what."""

from __future__ import annotations

from bayplan.errors import ExpressionError

COST_EXCEEDED = "operation cancelled: actual cost limit exceeded"


class CompileError(ExpressionError):
    """The expression is refused before it runs; the text is the one that cel-go gives."""


class EvaluationError(ExpressionError):
    """The expression ran and came to no answer for this device."""


class CelError(Exception):
    """A CEL error value on its way to whoever may swallow it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class EvaluationAborted(Exception):
    """The evaluation is over: too dear, or something that cel-go reports as an internal error."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


NO_SUCH_OVERLOAD = "no such overload"


def no_such_overload() -> CelError:
    return CelError(NO_SUCH_OVERLOAD)
