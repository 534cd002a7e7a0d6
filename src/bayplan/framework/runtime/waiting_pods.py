"""Pods that Permit holds back, and who may let them go. Time is told to it; nothing here waits by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from bayplan.codec.go_duration import SECOND, GoDuration
from bayplan.framework.api.status import SUCCESS, Code, Status
from bayplan.objects.core import Pod

OutcomeCallback = Callable[[Status], None]


@dataclass(slots=True)
class PermitWaitingPod:
    """One pod and the plugins it waits for. The first outcome wins; later ones change nothing."""

    pod: Pod
    deadlines_s: dict[str, float]  # plugin -> when its patience ends, on the clock of whoever calls `expire`
    timeouts_s: dict[str, float] = field(default_factory=dict)
    outcome: Status | None = None
    on_outcome: OutcomeCallback | None = None

    def pending_plugins(self) -> Sequence[str]:
        return sorted(self.deadlines_s)

    def allow(self, plugin: str) -> None:
        """One plugin agrees; the pod goes on when all have."""
        self.deadlines_s.pop(plugin, None)
        if not self.deadlines_s:
            self._set_outcome(SUCCESS)

    def reject(self, plugin: str, message: str) -> bool:
        """Whether that settles it: somebody may have been quicker."""
        return self._set_outcome(Status(Code.UNSCHEDULABLE, (message,), plugin=plugin))

    def preempt(self, plugin: str, message: str) -> bool:
        """The same for a pod that is to be tried again, since nothing is wrong with it."""
        return self._set_outcome(Status(Code.ERROR, (message,), plugin=plugin))

    def expire(self, now_s: float) -> None:
        """Reject for the plugin whose patience ended first, if any has."""
        late = min(((deadline, name) for name, deadline in self.deadlines_s.items() if deadline <= now_s), default=None)
        if late is not None:
            name = late[1]
            waited = GoDuration(round(self.timeouts_s[name] * SECOND))
            self.reject(name, f"rejected due to timeout after waiting {waited} at plugin {name}")

    def _set_outcome(self, status: Status) -> bool:
        if self.outcome is not None:
            return False
        self.outcome = status
        if self.on_outcome is not None:
            self.on_outcome(status)
        return True


class WaitingPodsMap:
    """Every waiting pod of all profiles, by uid."""

    def __init__(self) -> None:
        self._pods: dict[str, PermitWaitingPod] = {}

    def add(self, pod: Pod, waits_s: dict[str, float], now_s: float) -> PermitWaitingPod:
        waiting = PermitWaitingPod(pod, {name: now_s + wait for name, wait in waits_s.items()}, dict(waits_s))
        self._pods[pod.uid] = waiting
        return waiting

    def remove(self, uid: str) -> None:
        self._pods.pop(uid, None)

    def get(self, uid: str) -> PermitWaitingPod | None:
        return self._pods.get(uid)

    def all(self) -> Iterable[PermitWaitingPod]:
        return list(self._pods.values())

    def next_deadline_s(self) -> float | None:
        """When `expire` is worth calling next."""
        waiting = (pod for pod in self._pods.values() if pod.outcome is None)
        return min((deadline for pod in waiting for deadline in pod.deadlines_s.values()), default=None)
