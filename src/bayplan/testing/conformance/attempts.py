"""One attempt for each pending pod, told in full: every node's status, every score, the sentence, the victims.

A live attempt stops early (one feasible node is not scored, an error ends it); here every node is asked and every
feasible node is scored, because that is what the recorded answers hold.
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
    """What the engine says of each pending pod on its own."""
    one = build_scenario_engine(scenario, registry)
    verdicts = [attempt_answer(one, pod, scenario) for pod in decode_objects(scenario, "pending", Pod)]
    return {"name": scenario.get("name", ""), "verdicts": verdicts}


def attempt_answer(one: PodEngine, pod: Pod, scenario: dict[str, Any]) -> dict[str, Any]:
    framework = one.framework(pod.scheduler_name)
    cycle = one.begin(pod)
    told: dict[str, Any] = {"pod": pod.key}
    outcome = framework.filter_points.pre_filter(cycle)
    if not outcome.status.ok:
        told["preFilter"] = status_json(outcome.status)
    elif outcome.names is not None:
        told["onlyNodes"] = sorted(outcome.names)
    diagnosis = _diagnosis(framework, cycle, outcome)
    filtered = {name: status_json(status) for name, status in diagnosis.by_node()}
    if filtered:
        told["filter"] = filtered
    rows = np.flatnonzero(diagnosis.rows_with(Code.SUCCESS))
    if len(rows):
        told |= _scores(framework, cycle, NodeTable(cycle.snapshot.nodes, rows))
        if scenario.get("allocations"):
            devices = _devices(cycle, diagnosis)
            if devices:
                told["devices"] = devices
        return told
    told["message"] = diagnosis.sentence() if outcome.status.code is not Code.ERROR else outcome.status.message
    if scenario.get("preempt") and outcome.status.code is not Code.ERROR:
        told["preemption"] = _preemption(framework, cycle, diagnosis)
    return told


def status_json(status: Status) -> dict[str, Any]:
    told: dict[str, Any] = {"code": status.code.label}
    if status.plugin:
        told["plugin"] = status.plugin
    if status.reasons:
        told["reasons"] = sorted(status.reasons)
    return told


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
    """What each claim would get on each feasible node; nothing for pods with extended resources."""
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
    """An allocation as the answers hold it: without the random share ids, quantities in canonical form."""
    told: dict[str, Any] = json.loads(msgspec.json.encode(result))
    for device in told.get("devices", {}).get("results", ()):
        device.pop("shareID", None)
        for name, amount in device.get("consumedCapacity", {}).items():
            device["consumedCapacity"][name] = str(parse_quantity(amount))
    return told


def _preemption(framework: Framework, cycle: Cycle, diagnosis: Diagnosis) -> dict[str, Any]:
    found = framework.post_filter(cycle, diagnosis)
    told: dict[str, Any] = {"code": found.status.code.label}
    if found.nominated_node_name:
        told["node"] = found.nominated_node_name
    evicted = sorted(pod.key for pod in found.victims if not pod.terminating)
    if evicted:  # recorded answers hold the deletions that were seen, by name; who was going already is not deleted
        told["victims"] = evicted
    if found.status.message:
        told["message"] = found.status.message
    return told
