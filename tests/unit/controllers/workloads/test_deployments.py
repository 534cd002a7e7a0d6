"""Deployments: rollouts within their limits, history, undo, pause, scaling during a rollout, deadlines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bayplan.clock import ManualClock
from bayplan.controllers import EXIT_CODE, RUNS_FOR
from bayplan.controllers.core.api_types import DEPLOYMENTS, REPLICA_SETS, Tree, UntypedObject
from bayplan.controllers.workloads import deployment_status as deployment_status
from bayplan.controllers.workloads.template_hash import short_hash
from bayplan.objects.meta import ObjectMeta, format_time
from support.harness.async_tests import async_test
from support.harness.controllers import ControllersHarness, advance_until, run_controllers

ONLY = ("deployment-controller", "replicaset-controller")


def deployment(name: str, replicas: int, *, image: str = "one", **spec: Any) -> Tree:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": image}]}}
    return {
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template, **spec},
    }


def image(name: str) -> Tree:
    return {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": name}]}}}}


def rolled_out(found: Tree) -> bool:
    status, wanted = found["status"], found["spec"]["replicas"]
    numbers = [status.get(key, 0) for key in ("replicas", "updatedReplicas", "availableReplicas", "readyReplicas")]
    return numbers == [wanted] * 4 and status["observedGeneration"] == found["metadata"]["generation"]


async def replica_set_sizes(harness: ControllersHarness) -> dict[str, int]:
    """Sizes of the ReplicaSets by revision."""
    return {
        each["metadata"]["annotations"][deployment_status.REVISION]: each["spec"]["replicas"]
        for each in await harness.list(REPLICA_SETS)
    }


def conditions(found: Tree) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in found["status"]["conditions"]}


@async_test
async def test_rollout_history_and_rollback(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, only=ONLY) as harness:
        await harness.make(DEPLOYMENTS, deployment("web", 3, revisionHistoryLimit=1))
        found = await harness.when(DEPLOYMENTS, "web", rolled_out)
        assert found["metadata"]["annotations"][deployment_status.REVISION] == "1"
        await harness.patch(DEPLOYMENTS, "web", image("two"))
        found = await harness.when(DEPLOYMENTS, "web", rolled_out)
        assert conditions(found)["Progressing"] == ("True", "NewReplicaSetAvailable")
        assert conditions(found)["Available"] == ("True", "MinimumReplicasAvailable")
        assert await replica_set_sizes(harness) == {"1": 0, "2": 3}
        await harness.patch(DEPLOYMENTS, "web", image("one"))
        await harness.when(DEPLOYMENTS, "web", rolled_out)
        assert await replica_set_sizes(harness) == {"2": 0, "3": 3}
        reused = next(each for each in await harness.list(REPLICA_SETS) if each["spec"]["replicas"])
        assert reused["metadata"]["annotations"][deployment_status.REVISION_HISTORY] == "1"
        await harness.patch(DEPLOYMENTS, "web", image("three"))
        await harness.when(DEPLOYMENTS, "web", rolled_out)

        async def only_one_is_kept() -> bool:
            return await replica_set_sizes(harness) == {"3": 0, "4": 3}

        await harness.until(only_one_is_kept)


@async_test
async def test_recreate_deletes_old_pods_before_it_creates_new_ones(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, only=ONLY) as harness:
        await harness.make(DEPLOYMENTS, deployment("web", 2, strategy={"type": "Recreate"}))
        await harness.when(DEPLOYMENTS, "web", rolled_out)
        old = {each["metadata"]["name"] for each in await harness.pods()}
        await harness.patch(DEPLOYMENTS, "web", image("two"))
        await harness.when(DEPLOYMENTS, "web", lambda found: rolled_out(found) and found["status"].get("replicas") == 2)
        assert not old & {each["metadata"]["name"] for each in await harness.pods()}

        async def is_recorded() -> bool:
            events = await harness.served.request("GET", "/api/v1/namespaces/default/events")
            notes = [each["message"] for each in events.json["items"] if each["reason"] == "ScalingReplicaSet"]
            return [note.split(" ")[1] for note in notes] == ["up", "down", "up"]

        await harness.until(is_recorded, "the events of the rollout are recorded")


@async_test
async def test_a_paused_deployment_can_be_scaled(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, only=ONLY) as harness:
        await harness.make(DEPLOYMENTS, deployment("web", 2))
        await harness.when(DEPLOYMENTS, "web", rolled_out)
        await harness.patch(DEPLOYMENTS, "web", {"spec": {"paused": True}})
        await harness.when(
            DEPLOYMENTS, "web", lambda found: conditions(found)["Progressing"] == ("Unknown", "DeploymentPaused")
        )
        await harness.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 4, **image("two")["spec"]}})
        await harness.when(DEPLOYMENTS, "web", lambda found: found["status"].get("availableReplicas") == 4)
        assert await replica_set_sizes(harness) == {"1": 4}
        await harness.patch(DEPLOYMENTS, "web", {"spec": {"paused": False}})
        await harness.when(DEPLOYMENTS, "web", rolled_out)
        assert await replica_set_sizes(harness) == {"1": 0, "2": 4}


@async_test
async def test_a_stuck_rollout_exceeds_its_deadline_within_its_limits(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, nodes=1, only=ONLY) as harness:
        bounds = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}
        manifest = deployment("web", 4, progressDeadlineSeconds=1, strategy=bounds)
        await harness.make(DEPLOYMENTS, manifest)
        await harness.when(DEPLOYMENTS, "web", rolled_out)
        node_selector = {"spec": {"template": {"spec": {"nodeSelector": {"none": "such"}}}}}
        await harness.patch(DEPLOYMENTS, "web", node_selector)
        await harness.when(
            DEPLOYMENTS, "web", lambda it: conditions(it)["Progressing"] == ("False", "ProgressDeadlineExceeded")
        )

        async def sized(wanted: dict[str, int]) -> bool:
            return await replica_set_sizes(harness) == wanted

        await harness.until(lambda: sized({"1": 3, "2": 2}), "one too many, and one too few")
        await harness.when(DEPLOYMENTS, "web", lambda it: it["status"]["availableReplicas"] == 3)
        # Scaled during the rollout: both ReplicaSets grow in proportion, up to the maximum size.
        await harness.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 9}})
        await harness.until(lambda: sized({"1": 6, "2": 4}), "both grow")
        grown = await harness.when(DEPLOYMENTS, "web", lambda it: it["status"]["replicas"] == 10)
        assert grown["status"]["updatedReplicas"] == 4


# Pure functions.


@pytest.mark.parametrize("annotations", [{EXIT_CODE: "1"}, {EXIT_CODE: "1", RUNS_FOR: "1s"}, {RUNS_FOR: "1s"}])
@async_test
async def test_a_crashing_version_does_not_replace_the_old_one(tmp_path: Path, annotations: dict[str, str]) -> None:
    clock = ManualClock(datetime.now(UTC))
    async with run_controllers(tmp_path, only=ONLY, scheduling=False, clock=clock) as harness:
        manifest = deployment("web", 1, progressDeadlineSeconds=5)
        manifest["spec"]["template"]["spec"]["nodeName"] = "node-0"
        await harness.make(DEPLOYMENTS, manifest)

        async def is_complete() -> bool:
            found = await harness.get(DEPLOYMENTS, "web")
            return "conditions" in found.get("status", {}) and rolled_out(found)

        await advance_until(clock, is_complete, step_s=0.1)
        await harness.patch(DEPLOYMENTS, "web", {"spec": {"template": {"metadata": {"annotations": annotations}}}})

        async def is_late() -> bool:
            found = await harness.get(DEPLOYMENTS, "web")
            assert not (rolled_out(found) and found["metadata"]["generation"] > 1)
            return conditions(found)["Progressing"] == ("False", "ProgressDeadlineExceeded")

        await advance_until(clock, is_late, step_s=0.1)
        assert await replica_set_sizes(harness) == {"1": 1, "2": 1}
        pods = {each["metadata"].get("annotations") == annotations: each["status"] for each in await harness.pods()}
        assert {broken: status["phase"] for broken, status in pods.items()} == {False: "Running", True: "Running"}
        assert pods[True]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == int(
            EXIT_CODE in annotations
        )


def make_deployment(
    replicas: int, *, manifest: int = 0, annotations: dict[str, str] | None = None, **spec_fields: Any
) -> UntypedObject:
    meta = ObjectMeta(name=f"s{manifest}", uid=f"u{manifest}", annotations=annotations or {})
    return UntypedObject(metadata=meta, spec={"replicas": replicas, **spec_fields})


def rolling(surge: Any, unavailable: Any) -> Tree:
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}


@pytest.mark.parametrize(
    ("replicas", "surge", "unavailable", "expected"),
    [
        pytest.param(10, "25%", "25%", (3, 2), id="more is rounded up and less down"),
        pytest.param(1, "25%", "25%", (1, 0), id="one pod is never taken first"),
        pytest.param(4, 0, "10%", (0, 1), id="with neither nothing would move"),
        pytest.param(2, 0, 5, (0, 2), id="no more than there are"),
    ],
)
def test_max_surge_and_max_unavailable(replicas: int, surge: Any, unavailable: Any, expected: tuple[int, int]) -> None:
    found = make_deployment(replicas, strategy=rolling(surge, unavailable))
    assert (deployment_status.max_surge(found), deployment_status.max_unavailable(found)) == expected


def test_limits_without_a_rolling_update() -> None:
    recreated = make_deployment(4, strategy={"type": "Recreate", "rollingUpdate": {"maxSurge": 3, "maxUnavailable": 3}})
    assert (deployment_status.max_surge(recreated), deployment_status.max_unavailable(recreated)) == (0, 0)
    assert deployment_status.max_unavailable(make_deployment(0, strategy=rolling(0, 3))) == 0
    assert (deployment_status.max_surge(make_deployment(4)), deployment_status.max_unavailable(make_deployment(4))) == (
        1,
        1,
    )


def test_the_hash_depends_on_the_template_and_the_collisions() -> None:
    assert short_hash({"a": 1, "b": 2}) == short_hash({"b": 2, "a": 1})
    assert len({short_hash({"a": 1}), short_hash({"a": 2}), short_hash({"a": 1}, 1)}) == 3
    assert set(short_hash({"a": 1})) <= set("bcdfghjklmnpqrstvwxz2456789")


NOW = datetime(2026, 1, 1, tzinfo=UTC)
EARLIER = NOW - timedelta(minutes=5)


def sized(name: str, size: int, *, minute: int = 0, before: int | None = None, **status: Any) -> UntypedObject:
    """A ReplicaSet; `before`: maximum number of pods of the deployment at its last resize."""
    meta = ObjectMeta(
        name=name,
        uid=f"uid-{name}",
        creation_timestamp=NOW + timedelta(minutes=minute),
        annotations={} if before is None else {deployment_status.MAX: str(before)},
    )
    return UntypedObject(metadata=meta, spec={"replicas": size}, status=status)


def deployment_of_size(replicas: int, surge: int = 1, unavailable: int = 1, **spec_fields: Any) -> UntypedObject:
    status = spec_fields.pop("status", {})
    meta = ObjectMeta(name="web", uid="uid-web", generation=3, annotations=spec_fields.pop("annotations", {}))
    spec = {"replicas": replicas, "strategy": rolling(surge, unavailable), **spec_fields}
    return UntypedObject(metadata=meta, spec=spec, status=status)


@pytest.mark.parametrize(
    ("deployment", "replica_sets", "expected"),
    [
        pytest.param(
            deployment_of_size(9), [sized("a", 3, before=5), sized("b", 2, before=5)], {"a": 6, "b": 4}, id="grows"
        ),
        pytest.param(
            deployment_of_size(4), [sized("a", 6, before=10), sized("b", 4, before=10)], {"a": 3, "b": 2}, id="shrinks"
        ),
        pytest.param(
            deployment_of_size(0), [sized("a", 6, before=10), sized("b", 4, before=10)], {"a": 0, "b": 0}, id="to-none"
        ),
        pytest.param(
            deployment_of_size(4), [sized("a", 3, before=5), sized("b", 2, before=5)], {"a": 3, "b": 2}, id="stays"
        ),
        pytest.param(
            deployment_of_size(3, 0),
            [sized("old", 1, minute=1, before=2), sized("new", 1, minute=2, before=2)],
            {"old": 1, "new": 2},
            id="of-equals-the-newer-grows",
        ),
        pytest.param(
            deployment_of_size(7, 0),
            [sized("old", 2, minute=1, before=4), sized("new", 2, minute=2, before=4)],
            {"old": 3, "new": 4},
            id="no-more-than-is-left",
        ),
        pytest.param(
            deployment_of_size(3, 0),
            [sized("new", 2, minute=2, before=4), sized("old", 2, minute=1, before=4)],
            {"old": 1, "new": 2},
            id="of-equals-the-older-shrinks",
        ),
        pytest.param(
            deployment_of_size(9, status={"replicas": 5}),
            [sized("a", 3), sized("b", 2)],
            {"a": 6, "b": 4},
            id="without-annotations-the-status-counts",
        ),
        pytest.param(
            deployment_of_size(9), [sized("b", 2), sized("a", 3)], {"a": 8, "b": 2}, id="the-rest-goes-to-the-largest"
        ),
        pytest.param(
            deployment_of_size(9),
            [sized("a", 5, before=5), sized("none", 0, before=5)],
            {"a": 10, "none": 0},
            id="an-empty-set-stays-empty",
        ),
        pytest.param(deployment_of_size(9), [], {}, id="no-set"),
    ],
)
def test_proportional_sizes(
    deployment: UntypedObject, replica_sets: list[UntypedObject], expected: dict[str, int]
) -> None:
    assert deployment_status.proportional_sizes(deployment, replica_sets) == expected


@pytest.mark.parametrize(
    ("deployment", "sizes", "current", "expected"),
    [
        pytest.param(deployment_of_size(4), [4, 0], 0, 1, id="as-many-as-the-surge"),
        pytest.param(deployment_of_size(4), [5, 0], 0, 0, id="no-room"),
        pytest.param(deployment_of_size(4), [6, 0], 0, 0, id="too-many-already"),
        pytest.param(deployment_of_size(4), [3], 3, 4, id="no-more-than-wanted"),
        pytest.param(deployment_of_size(4, strategy={"type": "Recreate"}), [9], 0, 4, id="recreated-at-once"),
    ],
)
def test_new_set_size(deployment: UntypedObject, sizes: list[int], current: int, expected: int) -> None:
    assert (
        deployment_status.new_set_size(deployment, [sized(f"s{n}", size) for n, size in enumerate(sizes)], current)
        == expected
    )


@pytest.mark.parametrize(
    ("current", "exists", "expected"),
    [
        pytest.param(
            {},
            False,
            {deployment_status.REVISION: "3", deployment_status.DESIRED: "4", deployment_status.MAX: "5"},
            id="made",
        ),
        pytest.param({}, True, {deployment_status.REVISION: "3"}, id="without-a-revision"),
        pytest.param(
            {deployment_status.REVISION: "1"},
            True,
            {deployment_status.REVISION: "3", deployment_status.REVISION_HISTORY: "1"},
            id="newest-once-more",
        ),
        pytest.param(
            {deployment_status.REVISION: "2", deployment_status.REVISION_HISTORY: "1"},
            True,
            {deployment_status.REVISION: "3", deployment_status.REVISION_HISTORY: "1,2"},
            id="newest-for-the-third-time",
        ),
        pytest.param({deployment_status.REVISION: "3"}, True, {deployment_status.REVISION: "3"}, id="newest-already"),
        pytest.param(
            {deployment_status.REVISION: "9", "b": "2"}, True, {deployment_status.REVISION: "9", "b": "2"}, id="ahead"
        ),
    ],
)
def test_annotations_of_the_new_replica_set(current: dict[str, str], exists: bool, expected: dict[str, str]) -> None:
    deployment_annotations = {
        "a": "1",
        deployment_status.REVISION: "7",
        deployment_status.DESIRED: "8",
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
    }
    found = deployment_status.set_annotations(
        deployment_of_size(4, annotations=deployment_annotations), current, 3, exists=exists
    )
    assert found == {"a": "1", **expected}


def make_condition(kind: str, status: str, reason: str, at: datetime = EARLIER, since: datetime | None = None) -> Tree:
    times = {"lastUpdateTime": format_time(at), "lastTransitionTime": format_time(since or at)}
    return {"type": kind, "status": status, "reason": reason, "message": "m", **times}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param([], [make_condition("A", "True", "R", NOW)], id="new"),
        pytest.param([make_condition("A", "True", "R")], [make_condition("A", "True", "R")], id="the-same"),
        pytest.param(
            [make_condition("A", "True", "Q")],
            [make_condition("A", "True", "R", NOW, EARLIER)],
            id="for-another-reason",
        ),
        pytest.param([make_condition("A", "False", "R")], [make_condition("A", "True", "R", NOW)], id="another-status"),
        pytest.param(
            [make_condition("A", "False", "R"), make_condition("B", "True", "R")],
            [make_condition("B", "True", "R"), make_condition("A", "True", "R", NOW)],
            id="others-stay",
        ),
    ],
)
def test_times_of_a_condition(before: list[Tree], after: list[Tree]) -> None:
    assert deployment_status.with_condition(before, "A", "True", "R", "m", NOW) == after


@pytest.mark.parametrize(
    ("available", "enough"), [(2, "False"), (3, "True"), (4, "True")], ids=["too-few", "just-enough", "all"]
)
def test_counters_of_a_status(available: int, enough: str) -> None:
    new = sized("new", 3, replicas=3, readyReplicas=2, availableReplicas=available - 1)
    old = sized("old", 2, replicas=2, readyReplicas=1, availableReplicas=1, terminatingReplicas=1)
    found = deployment_status.status_of(deployment_of_size(4), [new, old], new, NOW)
    (condition,) = found.pop("conditions")
    assert found == {
        "observedGeneration": 3,
        "replicas": 5,
        "updatedReplicas": 3,
        "readyReplicas": 3,
        "availableReplicas": available,
        "unavailableReplicas": 5 - available,
        "terminatingReplicas": 1,
    }
    assert (condition["type"], condition["status"]) == ("Available", enough)
    empty = deployment_status.status_of(
        deployment_of_size(4, status={"terminatingReplicas": 2, "collisionCount": 1}), [], None, NOW
    )
    del empty["conditions"]
    assert empty == {"observedGeneration": 3, "collisionCount": 1, "terminatingReplicas": 0}


PROGRESSED = make_condition("Progressing", "True", "ReplicaSetUpdated")
DONE = make_condition("Progressing", "True", "NewReplicaSetAvailable")
LATE = make_condition("Progressing", "False", "ProgressDeadlineExceeded")
FULL = {"replicas": 4, "updatedReplicas": 4, "availableReplicas": 4, "readyReplicas": 4, "observedGeneration": 3}
HALF = {"replicas": 5, "updatedReplicas": 2, "availableReplicas": 4, "readyReplicas": 4, "observedGeneration": 3}


@pytest.mark.parametrize(
    ("seconds", "before", "status", "old_conditions", "expected"),
    [
        pytest.param(None, HALF, FULL, [PROGRESSED], [], id="without-a-deadline"),
        pytest.param(2**31 - 1, HALF, FULL, [PROGRESSED], [], id="with-the-number-that-means-none"),
        pytest.param(600, HALF, FULL, [PROGRESSED], [("True", "NewReplicaSetAvailable", NOW, EARLIER)], id="complete"),
        pytest.param(600, HALF, FULL, [LATE], [("True", "NewReplicaSetAvailable", NOW, NOW)], id="complete-but-late"),
        pytest.param(600, FULL, FULL, [DONE], [("True", "NewReplicaSetAvailable", EARLIER, EARLIER)], id="rests"),
        pytest.param(600, {}, {**FULL, "availableReplicas": 3}, [], [("True", "ReplicaSetUpdated", NOW, NOW)], id="on"),
        pytest.param(
            600,
            {**HALF, "updatedReplicas": 1},
            HALF,
            [PROGRESSED],
            [("True", "ReplicaSetUpdated", NOW, EARLIER)],
            id="one-more-is-updated",
        ),
        pytest.param(
            600,
            {**HALF, "replicas": 6},
            HALF,
            [LATE],
            [("True", "ReplicaSetUpdated", NOW, NOW)],
            id="an-old-one-is-gone",
        ),
        pytest.param(600, HALF, HALF, [PROGRESSED], [("True", "ReplicaSetUpdated", EARLIER, EARLIER)], id="in-time"),
        pytest.param(
            300, HALF, HALF, [PROGRESSED], [("True", "ReplicaSetUpdated", EARLIER, EARLIER)], id="just-in-time"
        ),
        pytest.param(299, HALF, HALF, [PROGRESSED], [("False", "ProgressDeadlineExceeded", NOW, NOW)], id="late"),
        pytest.param(
            600, HALF, HALF, [LATE], [("False", "ProgressDeadlineExceeded", EARLIER, EARLIER)], id="late-for-long"
        ),
        pytest.param(
            1, HALF, HALF, [DONE], [("True", "NewReplicaSetAvailable", EARLIER, EARLIER)], id="done-is-never-late"
        ),
        pytest.param(1, HALF, HALF, [], [], id="nothing-is-known-of-its-start"),
    ],
)
def test_progressing_condition(
    seconds: int | None,
    before: Tree,
    status: Tree,
    old_conditions: list[Tree],
    expected: list[tuple[str, str, datetime, datetime]],
) -> None:
    """The last progress was five minutes ago."""
    deadline = {} if seconds is None else {"progressDeadlineSeconds": seconds}
    other = make_condition("Available", "True", "R")
    after = {**status, "conditions": [other, *old_conditions]}
    found = deployment_status.with_progress(deployment_of_size(4, status=before, **deadline), after, None, NOW)
    assert other in found
    assert [
        (each["status"], each["reason"], each["lastUpdateTime"], each["lastTransitionTime"])
        for each in found
        if each["type"] == "Progressing"
    ] == [(value, reason, format_time(at), format_time(since)) for value, reason, at, since in expected]


@pytest.mark.parametrize(
    ("failing", "expected"),
    [
        pytest.param(("old", "new"), "new", id="the-new-one-first"),
        pytest.param(("old",), "old", id="an-old-one"),
        pytest.param((), None, id="none"),
    ],
)
def test_replica_failure_is_copied_from_a_replica_set(failing: tuple[str, ...], expected: str | None) -> None:
    replica_sets = [
        sized(
            name,
            1,
            **({"conditions": [make_condition("ReplicaFailure", "True", f"by-{name}")]} if name in failing else {}),
        )
        for name in ("old", "new")
    ]
    old_conditions = [make_condition("Available", "True", "R"), make_condition("ReplicaFailure", "True", "before")]
    found = {
        each["type"]: each["reason"]
        for each in deployment_status.with_failures(old_conditions, replica_sets, replica_sets[1], NOW)
    }
    assert found == {"Available": "R", **({"ReplicaFailure": f"by-{expected}"} if expected else {})}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        pytest.param(
            {"metadata": {"labels": {"a": "b", deployment_status.HASH: "x"}}},
            {"metadata": {"labels": {"a": "b"}}},
            True,
        ),
        pytest.param(
            {"metadata": {"labels": {"a": "b"}, "annotations": {}}}, {"metadata": {"labels": {"a": "b"}}}, True
        ),
        pytest.param({"metadata": {"labels": {"a": "b"}}}, {"metadata": {"labels": {"a": "c"}}}, False),
        pytest.param({"metadata": {"annotations": {"a": "b"}}}, {"metadata": {}}, False),
        pytest.param({"spec": {"a": 1}}, {"spec": {"a": 2}}, False),
        pytest.param({}, {"metadata": {"labels": {deployment_status.HASH: "x"}}}, True),
    ],
    ids=["hash", "empty-map", "label", "annotation", "spec", "no-metadata"],
)
def test_templates_are_compared_without_the_hash_label(one: Tree, other: Tree, same: bool) -> None:
    assert deployment_status.same_template(one, other) is same
