"""The `cdp` (cooldown protection) plugin: protects pods that started a short time ago from eviction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import ClassVar

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.session import Session
from bayplan.batch.session.victim_hints import VictimDependence, VictimHints
from bayplan.codec.go_duration import DurationError, parse_duration
from bayplan.objects.core import Pod

COOLDOWN_TIME = "volcano.sh/cooldown-time"


class CdpPlugin:
    """Protects running pods for the cooldown time that they request, counted from when they were scheduled."""

    name = "cdp"
    takes: ClassVar[tuple[Argument, ...]] = ()

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments

    def on_session_open(self, session: Session) -> None:
        self._session = session
        self._now = session.clock.now()
        session.add_preemptable_fn(self.name, self._drop_protected, VictimHints(VictimDependence.JOBS))
        session.add_reclaimable_fn(self.name, self._drop_protected, VictimHints(VictimDependence.JOBS))

    def _drop_protected(self, evictor: Task, candidates: Sequence[Task]) -> list[Task]:  # noqa: ARG002
        return [task for task in candidates if not self._protected(task)]

    def _protected(self, task: Task) -> bool:
        pod = task.pod
        text = pod.metadata.labels.get(COOLDOWN_TIME, pod.metadata.annotations.get(COOLDOWN_TIME))
        if text is None or pod.status.phase != "Running":
            return False
        try:
            cooldown_s = parse_duration(text).seconds
        except DurationError as fault:
            self._session.log_plugin_message(self.name, f"pod {task.key}: {COOLDOWN_TIME}: {fault}; write it like 10m")
            return False
        placed = _scheduled_time(pod)
        return placed is not None and placed + timedelta(seconds=cooldown_s) > self._now


def _scheduled_time(pod: Pod) -> datetime | None:
    """Transition time of the first condition PodScheduled=True."""
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "True":
            return condition.last_transition_time
    return None
