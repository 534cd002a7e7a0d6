"""The `conformance` plugin: critical system pods are never victims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.registration import EvictionContext
from bayplan.batch.session.session import Session
from bayplan.batch.session.victim_hints import VictimDependence, VictimHints

_CRITICAL = frozenset({"system-cluster-critical", "system-node-critical"})
_SYSTEM_NAMESPACE = "kube-system"


class ConformancePlugin:
    """Protects pods with a system priority class and pods in the namespace kube-system."""

    name = "conformance"
    takes: ClassVar[tuple[Argument, ...]] = ()

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments

    def on_session_open(self, session: Session) -> None:
        session.add_preemptable_fn(self.name, _non_critical_tasks, VictimHints(VictimDependence.JOBS))
        session.add_reclaimable_fn(self.name, _non_critical_tasks, VictimHints(VictimDependence.JOBS))
        session.add_unified_evictable_fn(self.name, _non_critical_tasks)


def _non_critical_tasks(evictor: Task | EvictionContext, candidates: Sequence[Task]) -> list[Task]:  # noqa: ARG001
    return [
        task
        for task in candidates
        if task.pod.spec.priority_class_name not in _CRITICAL and task.namespace != _SYSTEM_NAMESPACE
    ]
