"""Pending pods of the benchmarks: a queue without time, so that there is neither backoff nor a flush.

`next` is called once per attempt, `woken` once per event. Unschedulable pods are grouped by the plugins that rejected
them, so that an event is compared with a few sets of plugins, and with single pods only if a plugin has a hint
function.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from itertools import count

from bayplan.framework.api.events import ClusterEvent, ClusterEventWithHint, QueueingHint
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.snapshot import PodInfo

Plugins = frozenset[str]


class PendingPods:
    """Pods to try, in order of priority; and unschedulable pods."""

    def __init__(self, registrations: Mapping[str, tuple[ClusterEventWithHint, ...]]) -> None:
        self._registrations = registrations
        self._order = count()
        self._heap: list[tuple[int, int, str]] = []
        self._ready: dict[str, PodInfo] = {}
        self._parked: dict[Plugins, dict[str, PodInfo]] = {}
        self._refused_by: dict[str, Plugins] = {}

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def parked(self) -> int:
        return len(self._refused_by)

    def enter(self, info: PodInfo) -> None:
        """Add a pod to the active pods."""
        self._ready[info.uid] = info
        heapq.heappush(self._heap, (-info.priority, next(self._order), info.uid))

    def next(self) -> PodInfo | None:
        while self._heap:
            _, _, uid = heapq.heappop(self._heap)
            info = self._ready.pop(uid, None)
            if info is not None:  # else the pod is deleted, or was added again at another position
                return info
        return None

    def park(self, info: PodInfo, refused_by: Plugins) -> None:
        """Keep the pod until an event concerns one of the plugins that rejected it."""
        self._parked.setdefault(refused_by, {})[info.uid] = info
        self._refused_by[info.uid] = refused_by

    def drop(self, uid: str) -> None:
        """Remove a deleted pod."""
        self._ready.pop(uid, None)
        refused_by = self._refused_by.pop(uid, None)
        if refused_by is not None:
            del self._parked[refused_by][uid]

    def is_parked(self, uid: str) -> bool:
        return uid in self._refused_by

    def woken(self, event: ClusterEvent, old: KubeObject | None, new: KubeObject | None) -> list[PodInfo]:
        """Remove and return the pods that the event may make schedulable."""
        found = [info for plugins in list(self._parked) for info in self._helped(plugins, event, old, new)]
        for info in found:
            self.drop(info.uid)
        return found

    def _helped(
        self, plugins: Plugins, event: ClusterEvent, old: KubeObject | None, new: KubeObject | None
    ) -> Iterator[PodInfo]:
        matching = [
            registration
            for name in plugins
            for registration in self._registrations.get(name, ())
            if registration.matches(event)
        ]
        if not matching and plugins:
            return
        for info in self._parked[plugins].values():
            if not plugins or any(_helps(registration, info.pod, old, new) for registration in matching):
                yield info

    def helps(self, uid: str, event: ClusterEvent, old: Pod, new: Pod) -> bool:
        """Whether a change of the pod itself may make it schedulable."""
        plugins = self._refused_by.get(uid, frozenset())
        registrations = [
            registration
            for name in plugins
            for registration in self._registrations.get(name, ())
            if registration.matches(event)
        ]
        return any(_helps(registration, new, old, new) for registration in registrations)


def _helps(registration: ClusterEventWithHint, pod: Pod, old: KubeObject | None, new: KubeObject | None) -> bool:
    return registration.hint is None or registration.hint(pod, old, new) is QueueingHint.QUEUE
