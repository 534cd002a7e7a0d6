"""The argument `bindTimeoutSeconds`: how long a plugin waits for volumes or devices."""

from __future__ import annotations

from typing import Self

from bayplan.binder.plugin import Arguments, BinderHandle
from bayplan.errors import PluginError

_KEY = "bindTimeoutSeconds"
_DEFAULT_S = 120.0


class BindTimeoutPlugin:
    """Base class of plugins that wait."""

    argument_names = (_KEY,)

    def __init__(self, timeout_s: float = _DEFAULT_S) -> None:
        self.timeout_s = timeout_s

    @classmethod
    def factory(cls, arguments: Arguments, handle: BinderHandle) -> Self:  # noqa: ARG003
        value = arguments.get(_KEY, _DEFAULT_S)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise PluginError(f"{_KEY} is {value!r}; it takes a number of seconds above 0")
        return cls(float(value))
