"""Naive twin of the scheduling queue: lists, with every hint function called for every pod.

No heaps, no index, no sharing, no slices. Every rule is written out where it applies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from bayplan.clock import Clock
from bayplan.framework.api.events import ActionType, ClusterEvent, ClusterEventWithHint, EventResource, QueueingHint
from bayplan.framework.api.status import Status
from bayplan.framework.runtime.object_changes import pod_update_events
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject

TIMEOUT = ClusterEvent(EventResource.ANY, ActionType.ALL, "UnschedulableTimeout")
FORCED = ClusterEvent(EventResource.ANY, ActionType.ALL, "ForceActivate")


@dataclass(eq=False)
class Entry:
    pod: Pod
    timestamp: datetime
    where: str = ""
    attempts: int = 0
    failures: int = 0
    errors: int = 0
    unschedulable: set[str] = field(default_factory=set)
    pending: set[str] = field(default_factory=set)
    gated_by: str = ""
    flushed_at: datetime | None = None
    missed: list[tuple[ClusterEvent, Any, Any]] = field(default_factory=list)


class NaiveQueue:
    def __init__(
        self,
        registrations: Mapping[str, Sequence[ClusterEventWithHint]],
        gate: Any,
        clock: Clock,
        *,
        early: bool = True,
    ) -> None:
        self.registrations, self.gate, self.clock, self.early = registrations, gate, clock, early
        self.entries: list[Entry] = []
        self.flying: list[Entry] = []
        self.lister: dict[str, Pod] = {}

    # events

    def add(self, pod: Pod) -> None:
        self.lister[pod.uid] = pod
        entry = Entry(pod, self.clock.now())
        self.entries.append(entry)
        self.ready(entry)

    def update(self, pod: Pod) -> None:
        old = self.lister[pod.uid]
        self.lister[pod.uid] = pod
        events = pod_update_events(old, pod)
        flying = [each for each in self.flying if each.pod.uid == pod.uid]
        if flying:
            for each in self.flying:
                each.missed += [(event, old, pod) for event in events]
            return
        entry = next(each for each in self.entries if each.pod.uid == pod.uid)
        entry.pod = pod
        if entry.where == "parked":
            for event in events:
                self.place(entry, self.judge(entry, event, old, pod))
                if entry.where != "parked":
                    return

    def delete(self, pod: Pod) -> None:
        del self.lister[pod.uid]
        self.entries = [each for each in self.entries if each.pod.uid != pod.uid]

    def pop(self) -> Entry | None:
        line = self.line("active") or (self.line("backoff") if self.early else [])
        if not line:
            return None
        entry = line[0]
        self.entries.remove(entry)
        entry.where, entry.attempts, entry.missed = "flying", entry.attempts + 1, []
        self.flying.append(entry)
        return entry

    def fail(self, entry: Entry, unschedulable: set[str], pending: set[str]) -> None:
        self.flying.remove(entry)
        if entry.pod.uid not in self.lister:
            return
        entry.pod = self.lister[entry.pod.uid]
        entry.unschedulable, entry.pending, entry.gated_by = set(unschedulable), set(pending), ""
        entry.errors, entry.failures = (
            (0, entry.failures + 1) if unschedulable | pending else (entry.errors + 1, entry.failures)
        )
        entry.timestamp, entry.flushed_at = self.clock.now(), None
        words = ["backoff"] if not unschedulable | pending else [self.judge(entry, *missed) for missed in entry.missed]
        self.entries.append(entry)
        self.place(entry, "now" if "now" in words else "backoff" if "backoff" in words else "")

    def done(self, entry: Entry) -> None:
        self.flying.remove(entry)
        self.lister.pop(entry.pod.uid, None)

    def event(self, event: ClusterEvent, old: KubeObject | None, new: KubeObject | None, at_most: int | None) -> None:
        if not event.is_wildcard and not any(
            registration.matches(event)
            for registrations in self.registrations.values()
            for registration in registrations
        ):
            return
        for entry in self.parked():
            if at_most is None or entry.pod.priority <= at_most:
                self.wake(entry, event, old, new)
        for flying in self.flying:
            flying.missed.append((event, old, new))

    def activate(self, pod: Pod) -> None:
        for entry in self.entries:
            if entry.pod.uid == pod.uid and entry.where != "active":
                if entry.where == "parked" or not self.early:
                    self.ready(entry)
                else:
                    entry.where = "active"
                if entry.where == "active":
                    return
        if any(each.pod.uid == pod.uid for each in self.flying):
            for each in self.flying:
                each.missed.append((FORCED, None, pod))

    def flush_backoff(self) -> None:
        for entry in [*self.line("backoff"), *self.line("error")]:
            if not self.holds(entry):
                if self.early:
                    entry.where = "active"
                else:
                    self.ready(entry)

    def flush_parked(self) -> None:
        now = self.clock.now()
        late = [
            each
            for each in self.parked()
            if now - max(each.timestamp, each.flushed_at or each.timestamp) > timedelta(minutes=5)
        ]
        for entry in late:
            entry.flushed_at = now
            self.wake(entry, TIMEOUT, None, None)
        if late:
            for flying in self.flying:
                flying.missed.append((TIMEOUT, None, None))

    # rules

    def wake(self, entry: Entry, event: ClusterEvent, old: KubeObject | None, new: KubeObject | None) -> None:
        heard = any(registration.matches(event) for registration in self.registrations.get(entry.gated_by, ()))
        if not entry.gated_by or event.is_wildcard or heard:
            self.place(entry, self.judge(entry, event, old, new))

    def judge(self, entry: Entry, event: ClusterEvent, old: KubeObject | None, new: KubeObject | None) -> str:
        """`now`, `backoff` or ""."""
        if event.is_wildcard:
            meant = new is None or (isinstance(new, Pod) and new.uid == entry.pod.uid)
            return "backoff" if meant else ""
        found = ""
        for plugin in sorted(entry.unschedulable | entry.pending):
            for registration in self.registrations.get(plugin, ()):
                if registration.matches(event) and self.says_queue(registration, entry.pod, old, new):
                    if plugin in entry.pending:
                        return "now"
                    found = "backoff"
        return found

    @staticmethod
    def says_queue(
        registration: ClusterEventWithHint, pod: Pod, old: KubeObject | None, new: KubeObject | None
    ) -> bool:
        try:
            return registration.hint is None or registration.hint(pod, old, new) is QueueingHint.QUEUE
        except ValueError:
            return True

    def place(self, entry: Entry, strategy: str) -> None:
        if not strategy:
            entry.where = "parked"
        elif strategy == "backoff" and self.holds(entry):
            if not self.early or self.passes(entry):
                entry.where = "backoff" if entry.unschedulable | entry.pending else "error"
        else:
            self.ready(entry)

    def ready(self, entry: Entry) -> None:
        if self.passes(entry):
            entry.where = "active"

    def passes(self, entry: Entry) -> bool:
        refusal: Status = self.gate(entry.pod, entry.gated_by)
        if refusal.ok:
            entry.gated_by = ""
            return True
        entry.where, entry.gated_by = "parked", refusal.plugin
        if refusal.plugin not in entry.pending:
            entry.unschedulable.add(refusal.plugin)
        return False

    def until(self, entry: Entry) -> datetime | None:
        count = entry.errors or entry.failures
        if not count:
            return None
        end = entry.timestamp + timedelta(seconds=min(2 ** (count - 1), 10))
        return end.replace(microsecond=0) if self.early else end

    def holds(self, entry: Entry) -> bool:
        until, now = self.until(entry), self.clock.now()
        return until is not None and until >= (now.replace(microsecond=0) if self.early else now)

    # state

    def line(self, where: str) -> list[Entry]:
        def order(entry: Entry) -> tuple[Any, ...]:
            place = (-entry.pod.priority, entry.timestamp)
            return place if where == "active" else (self.until(entry), *(place if self.early else ()))

        return sorted((each for each in self.entries if each.where == where), key=order)

    def parked(self) -> list[Entry]:
        return [each for each in self.entries if each.where == "parked"]

    def state(self) -> dict[str, Any]:
        return {
            "active": [each.pod.name for each in self.line("active")],
            "backoff": sorted((each.pod.name, self.until(each)) for each in self.line("backoff")),
            "first to be popped early": [each.pod.name for each in self.line("backoff")[:1]] if self.early else [],
            "error": sorted((each.pod.name, self.until(each)) for each in self.line("error")),
            "parked": sorted(
                (each.pod.name, each.gated_by, *sorted(each.unschedulable | each.pending)) for each in self.parked()
            ),
            "flying": [each.pod.name for each in self.flying],
        }
