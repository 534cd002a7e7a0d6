"""Answers one session of the batch engine on a recorded cluster, in the recorded format.

Answers are reduced like the recorded ones: where Volcano itself differs between runs, a line holds counts only (`exact`
is false) or names paths that are left out (`varying`).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cmp_to_key
from typing import Any, TypeVar

import numpy as np

from bayplan.app.batch import build_batch_engine
from bayplan.batch.config.scheduler_conf import BatchConfiguration, conf_to_dict, load_conf, load_default_conf
from bayplan.batch.engine import BatchEngine
from bayplan.batch.model.fit_errors import REJECTING_ALLOCATE, rejects
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.nodes import NodeUsage
from bayplan.batch.model.queues import Queue
from bayplan.batch.model.tasks import EARLIEST_TIME, Task
from bayplan.batch.plugins.rescheduling.plugin import ReschedulingPlugin, ReschedulingState
from bayplan.batch.session.outcome import GroupOutcome, SessionResult
from bayplan.batch.session.session import Session
from bayplan.cache import Cache
from bayplan.clock import ManualClock
from bayplan.errors import ConfigError
from bayplan.framework.runtime.registry import Registry
from bayplan.objects.core import Namespace, Node, Pod, ResourceQuota
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano import types as volcano
from bayplan.objects.workloads import PodDisruptionBudget, PriorityClass
from bayplan.testing.conformance.scenario_cluster import decode_objects

T = TypeVar("T", Queue, Job, Task)

_SORTED_BY_INSERTION = 20
_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_ORIGIN_PREFIX = ". Origin reason is"
_QUOTA_MESSAGE = "resource quota insufficient"
_LISTS: dict[str, type[KubeObject]] = {
    "podGroups": volcano.PodGroup,
    "queues": volcano.Queue,
    "priorityClasses": PriorityClass,
    "resourceQuotas": ResourceQuota,
    "hyperNodes": volcano.HyperNode,
    "podDisruptionBudgets": PodDisruptionBudget,
    "namespaces": Namespace,
    "numatopologies": volcano.Numatopology,
}


def answer_session(
    scenario: dict[str, Any], registry: Registry, *, exact: bool, varying: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """Run one session on the scenario's cluster and return its results."""
    answer: dict[str, Any] = {"name": scenario.get("name", "")}
    text = scenario.get("config")
    try:
        configuration = load_default_conf() if text is None else load_conf(text)
    except ConfigError as fault:
        return {**answer, "error": str(fault)}
    if scenario.get("loadOnly"):
        return {**answer, "loaded": conf_to_dict(configuration)}
    outcome = _engine(scenario, configuration, registry).run_session()
    answer |= _session_answer(outcome) if exact else _counts_answer(outcome, scenario)
    if scenario.get("scores"):
        answer["atOpen"] = _at_open(_engine(scenario, configuration, registry))
    for path in varying:
        _remove_varying(answer, path)
    return answer


def _engine(scenario: dict[str, Any], configuration: BatchConfiguration, registry: Registry) -> BatchEngine:
    cache = Cache()
    for node in decode_objects(scenario, "nodes", Node):
        cache.add_node(node)
    for key, struct in _LISTS.items():
        for item in decode_objects(scenario, key, struct):
            cache.upsert(item)
    engine = build_batch_engine(
        configuration, cache, framework_plugins=registry, clock=ManualClock(_NOW), chance=random.Random(0)
    )
    for pod in decode_objects(scenario, "pods", Pod):
        if pod.spec.node_name and pod.status.phase not in ("Succeeded", "Failed"):
            cache.add_pod(pod)
        engine.handle_update(pod)
    engine.handle.memory[ReschedulingPlugin.name] = ReschedulingState(EARLIEST_TIME)  # the first interval is over
    engine.set_usage({name: _usage(raw) for name, raw in (scenario.get("nodeUsage") or {}).items()})
    return engine


def _usage(raw: dict[str, Any]) -> NodeUsage:
    return NodeUsage(float(raw.get("ageSeconds") or 0.0), raw.get("cpu") or {}, raw.get("memory") or {})


# Results of the session


def _session_answer(outcome: SessionResult) -> dict[str, Any]:
    found: dict[str, Any] = {
        "binds": outcome.binds,
        "evicts": outcome.evicts,
        "pipelined": outcome.pipelined,
        "allocated": outcome.allocated,
        "podGroups": {uid: _group(uid, group, outcome) for uid, group in outcome.groups.items()},
        "messages": {key: _message(each) for key, each in outcome.messages.items()},
        "queues": {
            name: {resource: str(amount) for resource, amount in usage.items()}
            for name, usage in outcome.queues.items()
        },
        "queueGauges": _gauges(outcome),
        "annotations": {key: _without_times(annotations) for key, annotations in outcome.annotations.items()},
    }
    return {key: value for key, value in found.items() if value}


def _without_times(annotations: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in annotations.items() if not key.endswith("-time")}


def _message(message: Any) -> dict[str, str]:
    answer = {"reason": message.reason, "message": message.message}
    return {**answer, "nominatedNode": message.nominated_node} if message.nominated_node else answer


def _group(uid: str, group: GroupOutcome, outcome: SessionResult) -> dict[str, Any]:
    status = group.status
    conditions = [
        {"type": each.type, "status": each.status, "reason": each.reason, "message": each.message}
        for each in status.conditions
    ]
    events = {
        f"{event.type} {event.reason}: {_QUOTA_MESSAGE if event.text.startswith(_QUOTA_MESSAGE) else event.text}"
        for event in outcome.events
        if event.group == uid
    }
    answer = {
        "phase": status.phase,
        "conditions": conditions,
        "running": status.running,
        "succeeded": status.succeeded,
        "failed": status.failed,
        "events": sorted(events),
        "allocatedHyperNode": group.allocated_hyper_node,
        "subJobHyperNodes": group.sub_job_hyper_nodes,
    }
    return {key: value for key, value in answer.items() if value}


def _gauges(outcome: SessionResult) -> dict[str, Any]:
    return {
        queue: {
            name: "max" if value >= 1e308 else value
            for name, value in gauges.items()
            if value or "_scalar_resources/" not in name
        }
        for queue, gauges in outcome.queue_gauges.items()
    }


def _counts_answer(outcome: SessionResult, scenario: dict[str, Any]) -> dict[str, Any]:
    """The counts that do not depend on randomness."""
    group_of = {pod.key: Task(pod).job for pod in decode_objects(scenario, "pods", Pod)}
    found: dict[str, Any] = {
        "binds": dict(Counter(group_of[key] for key in outcome.binds)),
        "pipelined": dict(Counter(group_of[key] for key in outcome.pipelined)),
        "podGroups": {uid: group.status.phase for uid, group in outcome.groups.items()},
        "queueGauges": _gauges(outcome),
    }
    return {key: value for key, value in found.items() if value} | {"evicts": len(outcome.evicts)}


# State at open


def _at_open(engine: BatchEngine) -> dict[str, Any]:
    with engine.session() as session:
        queues = [session.queues[name] for name in {job.queue: None for job in session.jobs.values()}]
        ordered = _sorted(queues, session.queue_order)
        answer: dict[str, Any] = {
            "queueOrder": [queue.name for queue in ordered],
            "jobOrder": {
                queue.name: [
                    job.uid
                    for job in _sorted(
                        [job for job in session.jobs.values() if job.queue == queue.name], session.job_order
                    )
                ]
                for queue in ordered
            },
        }
        pending = {job.uid: list(job.pending.values()) for job in session.jobs.values() if job.pending}
        if pending:
            answer["taskOrder"] = {
                uid: [task.name for task in _sorted(tasks, session.task_order)] for uid, tasks in pending.items()
            }
            answer["tasks"] = {task.key: _task(session, task) for tasks in pending.values() for task in tasks}
        return answer


def _sorted(items: list[T], less: Callable[[T, T], bool]) -> list[T]:
    """Sort by name, and then as Go's stable sort does: few items by insertion.

    Orders of queues in a tree can have cycles, and then the result depends on the compared pairs.
    """
    found = sorted(items, key=lambda item: item.uid if isinstance(item, Job) else item.name)

    def compare(left: T, right: T) -> int:
        return -1 if less(left, right) else int(less(right, left))

    if len(found) > _SORTED_BY_INSERTION:
        return sorted(found, key=cmp_to_key(compare))
    for end in range(1, len(found)):
        position = end
        while position and less(found[position], found[position - 1]):
            found[position - 1 : position + 1] = found[position], found[position - 1]
            position -= 1
    return found


def _task(session: Session, task: Task) -> dict[str, Any]:
    failure = session.pre_predicate(task)
    if failure is not None:
        return {"prePredicate": failure.message}
    answer: dict[str, Any] = {}
    names = session.snapshot.nodes.names
    evaluation = session.evaluate_class(task)
    found = {name: evaluation.statuses(task, row) for row, name in enumerate(names)}
    failed = {name: statuses for name, statuses in found.items() if rejects(statuses, REJECTING_ALLOCATE)}
    if failed:
        answer["filter"] = {
            name: [{"code": status.code.label, "reason": status.message} for status in statuses]
            for name, statuses in failed.items()
        }
    candidates = np.array([name not in failed for name in names], dtype=np.bool_)
    totals = session.scores(task, candidates) if candidates.any() else None
    if totals is not None:
        answer["scores"] = {
            name: "NaN" if math.isnan(totals[row]) else float(totals[row])
            for row, name in enumerate(names)
            if candidates[row]
        }
    return answer


# Reduction


def _remove_varying(answer: dict[str, Any], path: Sequence[str]) -> None:
    *parents, last = path
    target: Any = answer
    for key in parents:
        target = target.get(key) if isinstance(target, dict) else None
    if not isinstance(target, dict):
        return
    if last == "origin" and parents[:1] == ["podGroups"]:
        for condition in target.get("conditions", ()):
            condition["message"] = condition["message"].split(_ORIGIN_PREFIX)[0]
        if "events" in target:
            target["events"] = sorted({text.split(_ORIGIN_PREFIX)[0] for text in target["events"]})
        return
    target.pop(last, None)
    if not target and len(parents) == 1:
        answer.pop(parents[0], None)
