"""A plugin's answer: fits, does not fit, or something broke.

"Does not fit" is a value, never an exception. The code says what the queue and preemption may do about it; the
reasons are the words that end up in the pod's events. `None` is accepted everywhere for success.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class Code(IntEnum):
    """What an answer means for the pod. The numbers are kube-scheduler's."""

    SUCCESS = 0
    ERROR = 1  # something broke: the attempt ends, the pod is tried again after an error backoff
    UNSCHEDULABLE = 2  # not now; removing pods might help
    UNRESOLVABLE = 3  # not here, whoever is removed
    WAIT = 4  # only from Permit
    SKIP = 5  # "this pod does not concern me"
    PENDING = 6  # rejected until something outside happens

    @property
    def label(self) -> str:
        """The name that users of kube-scheduler know."""
        return _LABELS[self]

    @property
    def rejects(self) -> bool:
        return _REJECTS[self]


_LABELS = ("Success", "Error", "Unschedulable", "UnschedulableAndUnresolvable", "Wait", "Skip", "Pending")
_REJECTS = tuple(code in (Code.UNSCHEDULABLE, Code.UNRESOLVABLE, Code.PENDING) for code in Code)
"""By number, since a code is hashed by its name, in Python; every decision asks."""


class Status:
    """An immutable answer with its reasons and, once the framework has seen it, the plugin that gave it."""

    __slots__ = ("code", "plugin", "reasons")

    def __init__(self, code: Code, reasons: Iterable[str] = (), *, plugin: str = "") -> None:
        self.code = code
        self.reasons = (reasons,) if isinstance(reasons, str) else tuple(reasons)
        self.plugin = plugin
        if not isinstance(code, Code):
            raise TypeError(f"the code of a Status is a Code, not {code!r}")
        for reason in self.reasons:
            if not isinstance(reason, str):
                raise TypeError(f"the reasons of a Status are texts, not {reason!r}")

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
        """The same answer, signed; an answer that is signed already keeps its name."""
        return self if self.plugin else Status(self.code, self.reasons, plugin=plugin)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Status):
            return NotImplemented
        return (self.code, self.reasons, self.plugin) == (other.code, other.reasons, other.plugin)

    def __hash__(self) -> int:
        return hash((self.code, self.reasons, self.plugin))

    def __repr__(self) -> str:
        code = self.code.label if isinstance(self.code, Code) else self.code  # a plugin may have put anything there
        return f"Status({code}, {list(self.reasons)}, plugin={self.plugin!r})"


SUCCESS = Status(Code.SUCCESS)
SKIP = Status(Code.SKIP)


def unschedulable(*reasons: str) -> Status:
    """Does not fit now; preemption may help."""
    return Status(Code.UNSCHEDULABLE, reasons)


def unresolvable(*reasons: str) -> Status:
    """Does not fit, whoever is removed."""
    return Status(Code.UNRESOLVABLE, reasons)


def pending(*reasons: str) -> Status:
    """Rejected until something outside happens."""
    return Status(Code.PENDING, reasons)


def error(text: str) -> Status:
    """Something broke; the pod is retried."""
    return Status(Code.ERROR, (text,))
