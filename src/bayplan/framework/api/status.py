"""Result of a plugin: the node fits, it does not fit, or an error.

"Does not fit" is a value, never an exception. The code decides what the queue and preemption do next. The reasons
appear in the pod's events. A plugin may return `None` for success.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class Code(IntEnum):
    """Meaning of a result for the pod. The numbers are kube-scheduler's."""

    SUCCESS = 0
    ERROR = 1  # error: the attempt ends, the pod is retried after the error backoff
    UNSCHEDULABLE = 2  # not now; removing pods may help
    UNRESOLVABLE = 3  # removing pods does not help
    WAIT = 4  # only from Permit
    SKIP = 5  # the plugin is not relevant for this pod
    PENDING = 6  # rejected until an external event

    @property
    def label(self) -> str:
        """The name of the code in kube-scheduler."""
        return _LABELS[self]

    @property
    def rejects(self) -> bool:
        return _REJECTS[self]


_LABELS = ("Success", "Error", "Unschedulable", "UnschedulableAndUnresolvable", "Wait", "Skip", "Pending")
_REJECTS = tuple(code in (Code.UNSCHEDULABLE, Code.UNRESOLVABLE, Code.PENDING) for code in Code)
"""Indexed by number: hashing an enum member runs Python code, and every decision reads this."""


class Status:
    """Immutable result with its reasons. The framework adds the plugin that returned it."""

    __slots__ = ("code", "plugin", "reasons")

    def __init__(self, code: Code, reasons: Iterable[str] = (), *, plugin: str = "") -> None:
        self.code = code
        self.reasons = (reasons,) if isinstance(reasons, str) else tuple(reasons)
        self.plugin = plugin
        if not isinstance(code, Code):
            raise TypeError(f"the code of a Status must be a Code, not {code!r}")
        for reason in self.reasons:
            if not isinstance(reason, str):
                raise TypeError(f"the reasons of a Status must be strings, not {reason!r}")

    @property
    def ok(self) -> bool:
        return self.code is Code.SUCCESS

    @property
    def rejected(self) -> bool:
        return self.code.rejects

    @property
    def message(self) -> str:
        return ", ".join(self.reasons)

    def by(self, plugin: str) -> Status:
        """Return the same result with the plugin's name. An existing name stays."""
        return self if self.plugin else Status(self.code, self.reasons, plugin=plugin)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Status):
            return NotImplemented
        return (self.code, self.reasons, self.plugin) == (other.code, other.reasons, other.plugin)

    def __hash__(self) -> int:
        return hash((self.code, self.reasons, self.plugin))

    def __repr__(self) -> str:
        code = self.code.label if isinstance(self.code, Code) else self.code  # a plugin may have assigned any value
        return f"Status({code}, {list(self.reasons)}, plugin={self.plugin!r})"


SUCCESS = Status(Code.SUCCESS)
SKIP = Status(Code.SKIP)


def unschedulable(*reasons: str) -> Status:
    """The pod does not fit now; preemption may help."""
    return Status(Code.UNSCHEDULABLE, reasons)


def unresolvable(*reasons: str) -> Status:
    """The pod does not fit, and removing pods does not help."""
    return Status(Code.UNRESOLVABLE, reasons)


def pending(*reasons: str) -> Status:
    """The pod is rejected until an external event."""
    return Status(Code.PENDING, reasons)


def error(text: str) -> Status:
    """An error; the pod is retried."""
    return Status(Code.ERROR, (text,))
