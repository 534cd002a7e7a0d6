"""One session of the batch engine on a recorded cluster, told as the recorded answers tell it.

Answers get the cuts that the recorded ones have: where Volcano itself differs from run to run, a line holds counts only
(`exact` is false) or names places that are left out (`varying`).
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
from bayplan.batch.config.scheduler_conf import (
    BatchConfiguration,
    conf_to_dict,
    load_conf,
    load_default_conf,
)
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
    """What the engine does with the scenario's cluster."""
    told: dict[str, Any] = {"name": scenario.get("name", "")}
    text = scenario.get("config")
    try:
        configuration = load_default_conf() if text is None else load_conf(text)
    except ConfigError as fault:
        return {**told, "error": str(fault)}
    if scenario.get("loadOnly"):
        return {**told, "loaded": conf_to_dict(configuration)}
    outcome = _engine(scenario, configuration, registry).run_session()
    told |= _session_answer(outcome) if exact else _counts_answer(outcome, scenario)
    if scenario.get("scores"):
        told["atOpen"] = _at_open(_engine(scenario, configuration, registry))
    for path in varying:
        _remove_varying(told, path)
    return told


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
    engine.handle.memory[ReschedulingPlugin.name] = ReschedulingState(EARLIEST_TIME)  # its first interval has passed
    engine.set_usage({name: _usage(raw) for name, raw in (scenario.get("nodeUsage") or {}).items()})
    return engine


def _usage(raw: dict[str, Any]) -> NodeUsage:
    return NodeUsage(float(raw.get("ageSeconds") or 0.0), raw.get("cpu") or {}, raw.get("memory") or {})


# after the session


def _session_answer(outcome: SessionResult) -> dict[str, Any]:
    found: dict[str, Any] = {
        "binds": outcome.binds,
        "evicts": outcome.evicts,
        "pipelined": outcome.pipelined,
        "allocated": outcome.allocated,
        "podGroups": {uid: _group(uid, group, outcome) for uid, group in outcome.groups.items()},
        "messages": {key: _message(each) for key, each in outcome.messages.items()},
        "queues": {
            name: {resource: str(amount) for resource, amount in held.items()} for name, held in outcome.queues.items()
        },
        "queueGauges": _gauges(outcome),
        "annotations": {key: _without_times(notes) for key, notes in outcome.annotations.items()},
    }
    return {key: value for key, value in found.items() if value}


def _without_times(notes: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in notes.items() if not key.endswith("-time")}


def _message(message: Any) -> dict[str, str]:
    told = {"reason": message.reason, "message": message.message}
    return {**told, "nominatedNode": message.nominated_node} if message.nominated_node else told


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
    told = {
        "phase": status.phase,
        "conditions": conditions,
        "running": status.running,
        "succeeded": status.succeeded,
        "failed": status.failed,
        "events": sorted(events),
        "allocatedHyperNode": group.allocated_hyper_node,
        "subJobHyperNodes": group.sub_job_hyper_nodes,
    }
    return {key: value for key, value in told.items() if value}


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
    """The counts that do not depend on chance."""
    group_of = {pod.key: Task(pod).job for pod in decode_objects(scenario, "pods", Pod)}
    found: dict[str, Any] = {
        "binds": dict(Counter(group_of[key] for key in outcome.binds)),
        "pipelined": dict(Counter(group_of[key] for key in outcome.pipelined)),
        "podGroups": {uid: group.status.phase for uid, group in outcome.groups.items()},
        "queueGauges": _gauges(outcome),
    }
    return {key: value for key, value in found.items() if value} | {"evicts": len(outcome.evicts)}


# at open


def _at_open(engine: BatchEngine) -> dict[str, Any]:
    with engine.session() as session:
        queues = [session.queues[name] for name in {job.queue: None for job in session.jobs.values()}]
        ordered = _sorted(queues, session.queue_order)
        told: dict[str, Any] = {
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
        waiting = {job.uid: list(job.pending.values()) for job in session.jobs.values() if job.pending}
        if waiting:
            told["taskOrder"] = {
                uid: [task.name for task in _sorted(tasks, session.task_order)] for uid, tasks in waiting.items()
            }
            told["tasks"] = {task.key: _task(session, task) for tasks in waiting.values() for task in tasks}
        return told


def _sorted(items: list[T], less: Callable[[T, T], bool]) -> list[T]:
    """By name, and then as Go's stable sort does it: few by insertion. Orders of queues in a tree may go in circles,
    and then it matters who is compared with whom."""
    found = sorted(items, key=lambda item: item.uid if isinstance(item, Job) else item.name)

    def compare(left: T, right: T) -> int:
        return -1 if less(left, right) else int(less(right, left))

    if len(found) > _SORTED_BY_INSERTION:
        return sorted(found, key=cmp_to_key(compare))
    for end in range(1, len(found)):
        place = end
        while place and less(found[place], found[place - 1]):
            found[place - 1 : place + 1] = found[place], found[place - 1]
            place -= 1
    return found


def _task(session: Session, task: Task) -> dict[str, Any]:
    refused = session.pre_predicate(task)
    if refused is not None:
        return {"prePredicate": refused.message}
    told: dict[str, Any] = {}
    names = session.snapshot.nodes.names
    prospect = session.evaluate_class(task)
    found = {name: prospect.statuses(task, row) for row, name in enumerate(names)}
    failed = {name: statuses for name, statuses in found.items() if rejects(statuses, REJECTING_ALLOCATE)}
    if failed:
        told["filter"] = {
            name: [{"code": status.code.label, "reason": status.message} for status in statuses]
            for name, statuses in failed.items()
        }
    candidates = np.array([name not in failed for name in names], dtype=np.bool_)
    totals = session.scores(task, candidates) if candidates.any() else None
    if totals is not None:
        told["scores"] = {
            name: "NaN" if math.isnan(totals[row]) else float(totals[row])
            for row, name in enumerate(names)
            if candidates[row]
        }
    return told


# cuts


def _remove_varying(told: dict[str, Any], path: Sequence[str]) -> None:
    """Leave out what differs from run to run."""
    *above, last = path
    place: Any = told
    for key in above:
        place = place.get(key) if isinstance(place, dict) else None
    if not isinstance(place, dict):
        return
    if last == "origin" and above[:1] == ["podGroups"]:
        for condition in place.get("conditions", ()):
            condition["message"] = condition["message"].split(_ORIGIN_PREFIX)[0]
        if "events" in place:
            place["events"] = sorted({text.split(_ORIGIN_PREFIX)[0] for text in place["events"]})
        return
    place.pop(last, None)
    if not place and len(above) == 1:
        told.pop(above[0], None)
