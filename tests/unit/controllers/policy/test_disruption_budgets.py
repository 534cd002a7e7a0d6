"""PodDisruptionBudgets: allowed disruptions by numbers and percentages, and the effect of pending evictions."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bayplan.controllers.core.api_types import (
    DEPLOYMENTS,
    POD_DISRUPTION_BUDGETS,
    PODS,
    PodFields,
    PodStatusFields,
    Tree,
    UntypedObject,
)
from bayplan.controllers.policy.disruption_budgets import disrupted_pods, status_of
from bayplan.errors import TooManyRequests
from bayplan.objects.meta import Condition, ObjectMeta
from support.harness.async_tests import async_test
from support.harness.controllers import run_controllers

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ONLY = ("disruption-controller", "deployment-controller", "replicaset-controller")


def budget(**spec: Any) -> Tree:
    return {"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec}}


def deployment(replicas: int) -> Tree:
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "one"}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": "web"}, "spec": spec}


def numbers(found: Tree) -> tuple[int, ...]:
    status = found["status"]
    return tuple(status[key] for key in ("expectedPods", "currentHealthy", "desiredHealthy", "disruptionsAllowed"))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({"minAvailable": 2}, (4, 4, 2, 2), id="a number that must stay"),
        pytest.param({"minAvailable": "60%"}, (4, 4, 3, 1), id="a share, rounded up"),
        pytest.param({"maxUnavailable": 1}, (4, 4, 3, 1), id="a number that may go"),
        pytest.param({"maxUnavailable": "30%"}, (4, 4, 2, 2), id="a share that may go"),
        pytest.param({"minAvailable": 4}, (4, 4, 4, 0), id="none may go"),
    ],
)
@async_test
async def test_allowed_disruptions(tmp_path: Path, spec: Tree, expected: tuple[int, ...]) -> None:
    async with run_controllers(tmp_path, only=ONLY) as harness:
        await harness.make(POD_DISRUPTION_BUDGETS, budget(**spec))
        await harness.make(DEPLOYMENTS, deployment(4))
        found = await harness.when(POD_DISRUPTION_BUDGETS, "web", lambda it: numbers(it) == expected)
        (conditions,) = found["status"]["conditions"]
        assert (conditions["type"], conditions["status"]) == ("DisruptionAllowed", "True" if expected[3] else "False")
        victim = (await harness.pods())[0]["metadata"]["name"]
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": victim, "namespace": "default"}}
        evict = harness.client.create(PODS, body, namespace="default", name=victim, subresource="eviction")
        if expected[3]:
            await evict
            await harness.gone(PODS, victim)
            await harness.when(POD_DISRUPTION_BUDGETS, "web", lambda it: numbers(it) == expected)
        else:
            with pytest.raises(TooManyRequests):
                await evict


def make_pod(name: str, *, ready: bool = True, terminating: bool = False) -> PodFields:
    conditions = (Condition(type="Ready", status="True" if ready else "False"),)
    meta = ObjectMeta(name=name, deletion_timestamp=NOW if terminating else None)
    return PodFields(metadata=meta, status=PodStatusFields(phase="Running", conditions=conditions))


def test_granted_evictions_count_until_they_are_observed_or_expire() -> None:
    eviction_times = {
        "fresh": "2025-12-31T23:59:00Z",
        "stale": "2025-12-31T23:57:00Z",
        "going": "2025-12-31T23:59:30Z",
        "gone": "2025-12-31T23:59:30Z",
    }
    found = UntypedObject(status={"disruptedPods": eviction_times})
    pods = [
        make_pod("fresh"),
        make_pod("stale"),
        make_pod("going", terminating=True),
        make_pod("other"),
        make_pod("unready", ready=False),
    ]
    pending, requeue_after_s = disrupted_pods(found, pods, NOW)
    assert (pending, requeue_after_s) == ({"fresh": eviction_times["fresh"]}, 60.0)
    status = status_of(found, pods, 5, 1, pending, NOW)
    assert (status["currentHealthy"], status["disruptionsAllowed"]) == (2, 1)
