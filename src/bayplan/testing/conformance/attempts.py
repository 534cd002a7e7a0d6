"""Answers one scheduling attempt for each pending pod: status and scores of every node, message, victims.

A live attempt stops early: a single feasible node is not scored, and an error ends it. Here every node is filtered and
every feasible node is scored, as in the recorded answers.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np

from bayplan.codec.quantity import parse_quantity
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.diagnosis import Diagnosis
from bayplan.framework.api.status import Code, Status
from bayplan.framework.runtime.filtering import PreFilterSummary
from bayplan.framework.runtime.framework import Framework
from bayplan.framework.runtime.registry import Registry
from bayplan.objects.core import Pod
from bayplan.objects.resource import AllocationResult
from bayplan.plugins.dynamic_resources.claim_state import STATE
from bayplan.scheduler.engine import PodEngine
from bayplan.snapshot import NodeTable
from bayplan.testing.conformance.scenario_cluster import build_scenario_engine, decode_objects


def answer_attempts(scenario: dict[str, Any], registry: Registry) -> dict[str, Any]:
    """The result for each pending pod, independently of the other pods."""
    engine = build_scenario_engine(scenario, registry)
    verdicts = [attempt_answer(engine, pod, scenario) for pod in decode_objects(scenario, "pending", Pod)]
    return {"name": scenario.get("name", ""), "verdicts": verdicts}


def attempt_answer(engine: PodEngine, pod: Pod, scenario: dict[str, Any]) -> dict[str, Any]:
    framework = engine.framework(pod.scheduler_name)
    cycle = engine.begin(pod)
    answer: dict[str, Any] = {"pod": pod.key}
    outcome = framework.filter_points.pre_filter(cycle)
    if not outcome.status.ok:
        answer["preFilter"] = status_json(outcome.status)
    elif outcome.names is not None:
        answer["onlyNodes"] = sorted(outcome.names)
    diagnosis = _diagnosis(framework, cycle, outcome)
    filtered = {name: status_json(status) for name, status in diagnosis.by_node()}
    if filtered:
        answer["filter"] = filtered
    rows = np.flatnonzero(diagnosis.rows_with(Code.SUCCESS))
    if len(rows):
        answer |= _scores(framework, cycle, NodeTable(cycle.snapshot.nodes, rows))
        if scenario.get("allocations"):
            devices = _devices(cycle, diagnosis)
            if devices:
                answer["devices"] = devices
        return answer
    answer["message"] = diagnosis.sentence() if outcome.status.code is not Code.ERROR else outcome.status.message
    if scenario.get("preempt") and outcome.status.code is not Code.ERROR:
        answer["preemption"] = _preemption(framework, cycle, diagnosis)
    return answer


def status_json(status: Status) -> dict[str, Any]:
    answer: dict[str, Any] = {"code": status.code.label}
    if status.plugin:
        answer["plugin"] = status.plugin
    if status.reasons:
        answer["reasons"] = sorted(status.reasons)
    return answer


def _diagnosis(framework: Framework, cycle: Cycle, outcome: PreFilterSummary) -> Diagnosis:
    if outcome.status.ok or outcome.status.rejected:
        return framework.filter_points.run_filters(cycle, outcome)
    diagnosis = Diagnosis(cycle.snapshot.nodes.names)
    diagnosis.absent = outcome.status
    return diagnosis


def _scores(framework: Framework, cycle: Cycle, nodes: NodeTable) -> dict[str, Any]:
    scores = framework.score_points.score(cycle, nodes)
    if not scores.status.ok:
        return {"scoreError": scores.status.message}
    names = nodes.names
    return {
        "scores": {
            name: {plugin: int(vector[position]) for plugin, vector in scores.by_plugin.items()}
            for position, name in enumerate(names)
        },
        "total": {name: int(scores.total[position]) for position, name in enumerate(names)},
    }


def _devices(cycle: Cycle, diagnosis: Diagnosis) -> dict[str, Any]:
    """Allocation of each claim on each feasible node; empty for pods with extended resources."""
    state = cycle.find(STATE)
    if state is None or state.has_special:
        return {}
    fits = {name for name, status in diagnosis.by_node() if status.ok}
    unallocated = [state.claims[number] for number in state.unallocated]
    return {
        node: {
            claim.name: allocation_answer(result)
            for claim, result in zip(unallocated, found.allocation.results(unallocated), strict=True)
        }
        for node, found in state.node_allocations.items()
        if node in fits and found.allocation is not None
    }


def allocation_answer(result: AllocationResult) -> dict[str, Any]:
    """An allocation in the recorded format: without the random share ids, quantities in canonical form."""
    answer: dict[str, Any] = json.loads(msgspec.json.encode(result))
    for device in answer.get("devices", {}).get("results", ()):
        device.pop("shareID", None)
        for name, amount in device.get("consumedCapacity", {}).items():
            device["consumedCapacity"][name] = str(parse_quantity(amount))
    return answer


def _preemption(framework: Framework, cycle: Cycle, diagnosis: Diagnosis) -> dict[str, Any]:
    found = framework.post_filter(cycle, diagnosis)
    answer: dict[str, Any] = {"code": found.status.code.label}
    if found.nominated_node_name:
        answer["node"] = found.nominated_node_name
    evicted = sorted(pod.key for pod in found.victims if not pod.terminating)
    if evicted:  # recorded answers hold deletions by name; a pod that was terminating before is not deleted
        answer["victims"] = evicted
    if found.status.message:
        answer["message"] = found.status.message
    return answer
