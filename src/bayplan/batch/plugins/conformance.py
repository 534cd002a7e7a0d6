"""Pods that the cluster itself needs are nobody's victims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from bayplan.batch.arguments import Arguments
from bayplan.batch.declared import Argument
from bayplan.batch.foresight import Foresight, Ground
from bayplan.batch.registration import EvictionContext
from bayplan.batch.session import Session
from bayplan.batch.tasks import Task

_CRITICAL = frozenset({"system-cluster-critical", "system-node-critical"})
_SYSTEM_NAMESPACE = "kube-system"


class Conformance:
    """Spares critical pods and the system's namespace."""

    name = "conformance"
    takes: ClassVar[tuple[Argument, ...]] = ()

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments

    def on_session_open(self, session: Session) -> None:
        session.add_preemptable_fn(self.name, _spared, Foresight(Ground.JOBS))
        session.add_reclaimable_fn(self.name, _spared, Foresight(Ground.JOBS))
        session.add_unified_evictable_fn(self.name, _spared)


def _spared(evictor: Task | EvictionContext, candidates: Sequence[Task]) -> list[Task]:  # noqa: ARG001
    return [
        task
        for task in candidates
        if task.pod.spec.priority_class_name not in _CRITICAL and task.namespace != _SYSTEM_NAMESPACE
    ]
