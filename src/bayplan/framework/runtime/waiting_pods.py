"""Pods that wait at Permit. The caller passes the time; this module starts no timers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from bayplan.codec.go_duration import SECOND, GoDuration
from bayplan.framework.api.status import SUCCESS, Code, Status
from bayplan.objects.core import Pod

OutcomeCallback = Callable[[Status], None]


@dataclass(slots=True)
class PermitWaitingPod:
    """One pod and the plugins it waits for. The first outcome is final."""

    pod: Pod
    deadlines_s: dict[str, float]  # plugin -> deadline, on the clock of the caller of `expire`
    timeouts_s: dict[str, float] = field(default_factory=dict)
    outcome: Status | None = None
    on_outcome: OutcomeCallback | None = None

    def pending_plugins(self) -> Sequence[str]:
        return sorted(self.deadlines_s)

    def allow(self, plugin: str) -> None:
        """Allow the pod for one plugin. It proceeds when all plugins have allowed it."""
        self.deadlines_s.pop(plugin, None)
        if not self.deadlines_s:
            self._set_outcome(SUCCESS)

    def reject(self, plugin: str, message: str) -> bool:
        """Reject the pod. Returns False if it has an outcome already."""
        return self._set_outcome(Status(Code.UNSCHEDULABLE, (message,), plugin=plugin))

    def preempt(self, plugin: str, message: str) -> bool:
        """Reject the pod with an error because of preemption, so that it is retried."""
        return self._set_outcome(Status(Code.ERROR, (message,), plugin=plugin))

    def expire(self, now_s: float) -> None:
        """Reject the pod for the plugin with the earliest expired deadline, if there is one."""
        expired = min(
            ((deadline, name) for name, deadline in self.deadlines_s.items() if deadline <= now_s), default=None
        )
        if expired is not None:
            name = expired[1]
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
        """Return the time at which `expire` must be called next."""
        waiting = (pod for pod in self._pods.values() if pod.outcome is None)
        return min((deadline for pod in waiting for deadline in pod.deadlines_s.values()), default=None)
