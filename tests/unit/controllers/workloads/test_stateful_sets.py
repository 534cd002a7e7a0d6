"""StatefulSets: order, parallel, partitions, OnDelete, claims, revisions; and the plan as a pure function."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bayplan.controllers.core.api_types import (
    CONTROLLER_REVISIONS,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    STATEFUL_SETS,
    PodFields,
    PodStatusFields,
    Tree,
    UntypedObject,
)
from bayplan.controllers.workloads.controller_revisions import HASH_LABEL
from bayplan.controllers.workloads.stateful_plan import CreateSetPod, DeleteSetPod, plan
from bayplan.objects.meta import Condition, ObjectMeta
from support.harness.async_tests import async_test
from support.harness.controllers import run_controllers

ONLY = ("statefulset-controller",)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def stateful_set(name: str, replicas: int, **spec: Any) -> Tree:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "one"}]}}
    return {
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "serviceName": name,
            "selector": {"matchLabels": labels},
            "template": template,
            **spec,
        },
    }


def is_settled(found: Tree) -> bool:
    status, wanted = found["status"], found["spec"]["replicas"]
    numbers = [status.get(key, 0) for key in ("replicas", "readyReplicas", "availableReplicas", "updatedReplicas")]
    current = status["currentRevision"] == status["updateRevision"]
    return numbers == [wanted] * 4 and current and status["observedGeneration"] == found["metadata"]["generation"]


@async_test
async def test_pods_are_created_in_order_with_their_claims(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, only=ONLY) as harness:
        claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        templates = [{"metadata": {"name": "data"}, "spec": {**claim, "storageClassName": ""}}]
        body = stateful_set("db", 3, volumeClaimTemplates=templates)
        # No controller binds the claims here: the first pod waits for its volume, and the second for the first.
        await harness.make(STATEFUL_SETS, body)
        first = await harness.when(PODS, "db-0", lambda found: found["status"].get("phase") == "Pending")
        assert first["spec"]["volumes"][0] == {"name": "data", "persistentVolumeClaim": {"claimName": "data-db-0"}}
        assert (first["spec"]["hostname"], first["spec"]["subdomain"]) == ("db-0", "db")
        assert [each["metadata"]["name"] for each in await harness.list(PERSISTENT_VOLUME_CLAIMS)] == ["data-db-0"]
        assert [each["metadata"]["name"] for each in await harness.pods()] == ["db-0"]


@async_test
async def test_an_update_starts_at_the_highest_ordinal_and_can_be_reverted(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, only=ONLY) as harness:
        await harness.make(STATEFUL_SETS, stateful_set("db", 3))
        before = await harness.when(STATEFUL_SETS, "db", is_settled)
        assert [each["metadata"]["name"] for each in await harness.pods()] == ["db-0", "db-1", "db-2"]
        starts = [each["metadata"]["creationTimestamp"] for each in await harness.pods()]
        assert starts == sorted(starts)
        container = {"template": {"spec": {"containers": [{"name": "c", "image": "two"}]}}}
        partition = {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}}
        await harness.patch(STATEFUL_SETS, "db", {"spec": {**container, **partition}})

        async def images() -> list[str]:
            return [each["spec"]["containers"][0]["image"] for each in await harness.pods()]

        async def last_is_new() -> bool:
            return await images() == ["one", "one", "two"]

        await harness.until(last_is_new)
        await harness.patch(STATEFUL_SETS, "db", {"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}})
        after = await harness.when(STATEFUL_SETS, "db", is_settled)
        assert await images() == ["two"] * 3
        assert after["status"]["currentRevision"] != before["status"]["currentRevision"]
        assert sorted(each["revision"] for each in await harness.list(CONTROLLER_REVISIONS)) == [1, 2]
        old = {"template": {"spec": {"containers": [{"name": "c", "image": "one"}]}}}
        await harness.patch(STATEFUL_SETS, "db", {"spec": old})
        again = await harness.when(
            STATEFUL_SETS,
            "db",
            lambda it: is_settled(it) and it["status"]["currentRevision"] != after["status"]["currentRevision"],
        )
        assert again["status"]["currentRevision"] == before["status"]["currentRevision"]
        assert sorted(each["revision"] for each in await harness.list(CONTROLLER_REVISIONS)) == [2, 3]
        await harness.patch(STATEFUL_SETS, "db", {"spec": {"replicas": 1}})
        await harness.when(STATEFUL_SETS, "db", is_settled)
        assert [each["metadata"]["name"] for each in await harness.pods()] == ["db-0"]


# Steps.


def make_set(replicas: int, *, current: int = 0, **spec: Any) -> UntypedObject:
    return UntypedObject(
        metadata=ObjectMeta(name="db", uid="u"),
        spec={"replicas": replicas, **spec},
        status={"currentReplicas": current},
    )


def pod(
    number: int, revision: str = "a", *, ready: bool = True, phase: str = "Running", terminating: bool = False
) -> PodFields:
    meta = ObjectMeta(
        name=f"db-{number}",
        uid=f"{number}",
        labels={HASH_LABEL: revision},
        deletion_timestamp=NOW if terminating else None,
    )
    conditions = (Condition(type="Ready", status="True" if ready else "False", last_transition_time=NOW),)
    return PodFields(metadata=meta, status=PodStatusFields(phase=phase, conditions=conditions))


def step_texts(found: UntypedObject, *pods: PodFields, current: str = "a", update: str = "a") -> list[str]:
    steps = plan(found, pods, current, update, NOW).steps
    return [
        f"+{step.ordinal}{step.revision}" if isinstance(step, CreateSetPod) else f"-{step.pod.name[3:]}"
        for step in steps
    ]


PARALLEL = {"podManagementPolicy": "Parallel"}


def rolling(**options: Any) -> Tree:
    return {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": options}}


@pytest.mark.parametrize(
    ("found", "pods", "update", "steps"),
    [
        pytest.param(make_set(3), [], "a", ["+0a"], id="the first alone"),
        pytest.param(make_set(3), [pod(0, ready=False)], "a", [], id="the second waits for the first"),
        pytest.param(make_set(3), [pod(0)], "a", ["+1a"], id="then the second"),
        pytest.param(make_set(3, **PARALLEL), [pod(1)], "a", ["+0a", "+2a"], id="all at once where that is wanted"),
        pytest.param(make_set(3, ordinals={"start": 5}), [], "a", ["+5a"], id="numbers may begin elsewhere"),
        pytest.param(make_set(1), [pod(0), pod(1), pod(2)], "a", ["-2"], id="the highest goes first"),
        pytest.param(make_set(1), [pod(0), pod(1), pod(2, terminating=True)], "a", [], id="and the next waits for it"),
        pytest.param(make_set(1), [pod(0, ready=False), pod(1)], "a", [], id="not while a pod is unhealthy"),
        pytest.param(make_set(1, **PARALLEL), [pod(0), pod(1), pod(2)], "a", ["-2", "-1"], id="parallel ones together"),
        pytest.param(make_set(2), [pod(0, phase="Failed"), pod(1)], "a", ["-0"], id="what has failed is replaced"),
        pytest.param(make_set(2, current=2), [pod(0), pod(1)], "b", ["-1"], id="an update begins at the top"),
        pytest.param(make_set(2, current=1), [pod(0)], "b", ["+1b"], id="and makes it anew"),
        pytest.param(make_set(2, current=1), [pod(0), pod(1, "b", ready=False)], "b", [], id="waits for it"),
        pytest.param(make_set(2, current=1), [pod(0), pod(1, "b")], "b", ["-0"], id="and goes on"),
        pytest.param(make_set(2, **rolling(partition=2)), [pod(0), pod(1)], "b", [], id="a partition holds it"),
        pytest.param(make_set(2, **rolling(partition=1)), [pod(1, "b")], "b", ["+0a"], id="below it all stays old"),
        pytest.param(make_set(2, updateStrategy={"type": "OnDelete"}), [pod(0), pod(1)], "b", [], id="OnDelete waits"),
        pytest.param(
            make_set(2, updateStrategy={"type": "OnDelete"}), [pod(0)], "b", ["+1b"], id="OnDelete makes new ones"
        ),
        pytest.param(
            make_set(4, current=4, **rolling(maxUnavailable=2)),
            [pod(n) for n in range(4)],
            "b",
            ["-3", "-2"],
            id="two at a time",
        ),
    ],
)
def test_next_steps(found: UntypedObject, pods: list[PodFields], update: str, steps: list[str]) -> None:
    assert step_texts(found, *pods, update=update) == steps


def test_the_status_counts_the_steps_as_done() -> None:
    status = plan(make_set(3, current=2), [pod(0), pod(1)], "a", "b", NOW).status
    assert (status["replicas"], status["readyReplicas"], status["currentReplicas"]) == (3, 2, 2)
    assert status["updatedReplicas"] == 1
    done = plan(make_set(1, current=0), [pod(0, "b")], "a", "b", NOW).status
    assert (done["currentRevision"], done["currentReplicas"]) == ("b", 1)


def test_the_next_pod_waits_for_availability() -> None:
    found = plan(make_set(2, minReadySeconds=10), [pod(0)], "a", "a", NOW)
    assert (found.steps, found.requeue_after_s) == ([], 10.0)
    assert all(not isinstance(step, DeleteSetPod) for step in found.steps)
