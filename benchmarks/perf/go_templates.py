"""Renders Go template marks in a text for the index-th of `count` objects.

Called for every object of a benchmark file. Only the functions that those files use are supported: `{{.Index}}`,
`{{.Count}}` and the arithmetic functions that scheduler_perf adds, with numbers or those two as arguments. Anything
else is an error with its name, because a silently different benchmark would be worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import fmod, prod, trunc

from bayplan.errors import BayplanError

MARK = re.compile(r"\{\{-?\s*(.*?)\s*-?\}\}", re.DOTALL)


class TemplateError(BayplanError):
    """A template uses an unsupported function or variable."""


def render(text: str, *, index: int, count: int) -> str:
    """The text with every mark replaced."""
    values = {".Index": float(index), ".Count": float(count)}
    return MARK.sub(lambda found: _evaluate(found[1], values), text)


def has_marks(text: str) -> bool:
    """Whether the text differs between objects."""
    return MARK.search(text) is not None


def _evaluate(expression: str, values: Mapping[str, float]) -> str:
    words = expression.split()
    if len(words) == 1 and words[0] in values:
        return str(int(values[words[0]]))
    function = _FUNCTIONS.get(words[0]) if words else None
    if function is None:
        known = ", ".join([*values, *_FUNCTIONS])
        raise TemplateError(f"{{{{{expression}}}}} is not supported; templates may use {known}")
    arguments = [_number(word, values, expression) for word in words[1:]]
    try:
        return function(*arguments)
    except (TypeError, ZeroDivisionError, ValueError):
        raise TemplateError(f"{{{{{expression}}}}} cannot be computed") from None


def _number(word: str, values: Mapping[str, float], expression: str) -> float:
    if word in values:
        return values[word]
    try:
        return float(word.strip('"'))
    except ValueError:
        raise TemplateError(
            f"{{{{{expression}}}}}: {word} is neither a number nor one of {', '.join(values)}"
        ) from None


def _subtract(one: float, other: float) -> float:
    return one - other


def _divide(one: float, other: float) -> float:
    return one / other


def _add(*numbers: float) -> float:
    return sum(numbers)


def _multiply(*numbers: float) -> float:
    return prod(numbers)


def _mod(one: float, other: float) -> str:
    """The remainder of whole numbers, with the sign of the first, as in Go."""
    return str(int(fmod(trunc(one), trunc(other))))


def _whole(function: Callable[..., float]) -> Callable[..., str]:
    return lambda *numbers: str(trunc(function(*numbers)))


def _float(function: Callable[..., float]) -> Callable[..., str]:
    return lambda *numbers: f"{function(*numbers):g}"


_FUNCTIONS: Mapping[str, Callable[..., str]] = {
    "AddFloat": _float(_add),
    "AddInt": _whole(_add),
    "DivideFloat": _float(_divide),
    "DivideInt": _whole(_divide),
    "Mod": _mod,
    "MultiplyFloat": _float(_multiply),
    "MultiplyInt": _whole(_multiply),
    "SubtractFloat": _float(_subtract),
    "SubtractInt": _whole(_subtract),
}
