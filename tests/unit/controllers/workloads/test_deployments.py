"""Deployments: rollouts within their bounds, history, undo, pause, scaling in the middle, deadlines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bayplan.clock import ManualClock
from bayplan.controllers import EXIT_CODE, RUNS_FOR
from bayplan.controllers.core.api_types import (
    DEPLOYMENTS,
    REPLICA_SETS,
    Tree,
    UntypedObject,
)
from bayplan.controllers.workloads import deployment_status as sums
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


async def sets(world: ControllersHarness) -> dict[str, int]:
    """The revisions, each with its size."""
    return {
        each["metadata"]["annotations"][sums.REVISION]: each["spec"]["replicas"]
        for each in await world.list(REPLICA_SETS)
    }


def conditions(found: Tree) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in found["status"]["conditions"]}


@async_test
async def test_a_rollout_its_history_and_the_way_back(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, only=ONLY) as world:
        await world.make(DEPLOYMENTS, deployment("web", 3, revisionHistoryLimit=1))
        found = await world.when(DEPLOYMENTS, "web", rolled_out)
        assert found["metadata"]["annotations"][sums.REVISION] == "1"
        await world.patch(DEPLOYMENTS, "web", image("two"))
        found = await world.when(DEPLOYMENTS, "web", rolled_out)
        assert conditions(found)["Progressing"] == ("True", "NewReplicaSetAvailable")
        assert conditions(found)["Available"] == ("True", "MinimumReplicasAvailable")
        assert await sets(world) == {"1": 0, "2": 3}
        await world.patch(DEPLOYMENTS, "web", image("one"))
        await world.when(DEPLOYMENTS, "web", rolled_out)
        assert await sets(world) == {"2": 0, "3": 3}
        back = next(each for each in await world.list(REPLICA_SETS) if each["spec"]["replicas"])
        assert back["metadata"]["annotations"][sums.REVISION_HISTORY] == "1"
        await world.patch(DEPLOYMENTS, "web", image("three"))
        await world.when(DEPLOYMENTS, "web", rolled_out)

        async def only_one_is_kept() -> bool:
            return await sets(world) == {"3": 0, "4": 3}

        await world.until(only_one_is_kept)


@async_test
async def test_what_recreates_has_no_old_pod_when_the_new_ones_come(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, only=ONLY) as world:
        await world.make(DEPLOYMENTS, deployment("web", 2, strategy={"type": "Recreate"}))
        await world.when(DEPLOYMENTS, "web", rolled_out)
        old = {each["metadata"]["name"] for each in await world.pods()}
        await world.patch(DEPLOYMENTS, "web", image("two"))
        await world.when(DEPLOYMENTS, "web", lambda found: rolled_out(found) and found["status"].get("replicas") == 2)
        assert not old & {each["metadata"]["name"] for each in await world.pods()}

        async def told() -> bool:
            events = await world.served.request("GET", "/api/v1/namespaces/default/events")
            notes = [each["message"] for each in events.json["items"] if each["reason"] == "ScalingReplicaSet"]
            return [note.split(" ")[1] for note in notes] == ["up", "down", "up"]

        await world.until(told, "the way of the rollout is told")


@async_test
async def test_a_pause_holds_the_template_and_lets_the_size_change(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, only=ONLY) as world:
        await world.make(DEPLOYMENTS, deployment("web", 2))
        await world.when(DEPLOYMENTS, "web", rolled_out)
        await world.patch(DEPLOYMENTS, "web", {"spec": {"paused": True}})
        await world.when(
            DEPLOYMENTS, "web", lambda found: conditions(found)["Progressing"] == ("Unknown", "DeploymentPaused")
        )
        await world.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 4, **image("two")["spec"]}})
        await world.when(DEPLOYMENTS, "web", lambda found: found["status"].get("availableReplicas") == 4)
        assert await sets(world) == {"1": 4}
        await world.patch(DEPLOYMENTS, "web", {"spec": {"paused": False}})
        await world.when(DEPLOYMENTS, "web", rolled_out)
        assert await sets(world) == {"1": 0, "2": 4}


@async_test
async def test_a_rollout_that_cannot_go_on_is_late_and_stays_within_its_bounds(tmp_path: Path) -> None:
    async with run_controllers(tmp_path, nodes=1, only=ONLY) as world:
        bounds = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}
        made = deployment("web", 4, progressDeadlineSeconds=1, strategy=bounds)
        await world.make(DEPLOYMENTS, made)
        await world.when(DEPLOYMENTS, "web", rolled_out)
        selects = {"spec": {"template": {"spec": {"nodeSelector": {"none": "such"}}}}}
        await world.patch(DEPLOYMENTS, "web", selects)
        await world.when(
            DEPLOYMENTS, "web", lambda it: conditions(it)["Progressing"] == ("False", "ProgressDeadlineExceeded")
        )

        async def sized(wanted: dict[str, int]) -> bool:
            return await sets(world) == wanted

        await world.until(lambda: sized({"1": 3, "2": 2}), "one too many, and one too few")
        await world.when(DEPLOYMENTS, "web", lambda it: it["status"]["availableReplicas"] == 3)
        # Scaled in the middle: both sets grow in proportion, and the whole is as large as its bounds let it be.
        await world.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 9}})
        await world.until(lambda: sized({"1": 6, "2": 4}), "both grow")
        told = await world.when(DEPLOYMENTS, "web", lambda it: it["status"]["replicas"] == 10)
        assert told["status"]["updatedReplicas"] == 4


# The arithmetic


@pytest.mark.parametrize("said", [{EXIT_CODE: "1"}, {EXIT_CODE: "1", RUNS_FOR: "1s"}, {RUNS_FOR: "1s"}])
@async_test
async def test_a_version_that_crashes_is_not_rolled_out(tmp_path: Path, said: dict[str, str]) -> None:
    clock = ManualClock(datetime.now(UTC))
    async with run_controllers(tmp_path, only=ONLY, scheduling=False, clock=clock) as world:
        made = deployment("web", 1, progressDeadlineSeconds=5)
        made["spec"]["template"]["spec"]["nodeName"] = "node-0"
        await world.make(DEPLOYMENTS, made)

        async def whole() -> bool:
            found = await world.get(DEPLOYMENTS, "web")
            return "conditions" in found.get("status", {}) and rolled_out(found)

        await advance_until(clock, whole, step_s=0.1)
        await world.patch(DEPLOYMENTS, "web", {"spec": {"template": {"metadata": {"annotations": said}}}})

        async def late() -> bool:
            found = await world.get(DEPLOYMENTS, "web")
            assert not (rolled_out(found) and found["metadata"]["generation"] > 1)
            return conditions(found)["Progressing"] == ("False", "ProgressDeadlineExceeded")

        await advance_until(clock, late, step_s=0.1)
        assert await sets(world) == {"1": 1, "2": 1}
        pods = {each["metadata"].get("annotations") == said: each["status"] for each in await world.pods()}
        assert {broken: status["phase"] for broken, status in pods.items()} == {False: "Running", True: "Running"}
        assert pods[True]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == int(EXIT_CODE in said)


def whole(replicas: int, *, made: int = 0, annotations: dict[str, str] | None = None, **more: Any) -> UntypedObject:
    meta = ObjectMeta(name=f"s{made}", uid=f"u{made}", annotations=annotations or {})
    return UntypedObject(metadata=meta, spec={"replicas": replicas, **more})


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
def test_bounds(replicas: int, surge: Any, unavailable: Any, expected: tuple[int, int]) -> None:
    found = whole(replicas, strategy=rolling(surge, unavailable))
    assert (sums.max_surge(found), sums.max_unavailable(found)) == expected


def test_without_a_rolling_update_or_pods_there_are_no_bounds() -> None:
    recreated = whole(4, strategy={"type": "Recreate", "rollingUpdate": {"maxSurge": 3, "maxUnavailable": 3}})
    assert (sums.max_surge(recreated), sums.max_unavailable(recreated)) == (0, 0)
    assert sums.max_unavailable(whole(0, strategy=rolling(0, 3))) == 0
    assert (sums.max_surge(whole(4)), sums.max_unavailable(whole(4))) == (1, 1)


def test_the_hash_depends_on_the_template_and_the_collisions() -> None:
    assert short_hash({"a": 1, "b": 2}) == short_hash({"b": 2, "a": 1})
    assert len({short_hash({"a": 1}), short_hash({"a": 2}), short_hash({"a": 1}, 1)}) == 3
    assert set(short_hash({"a": 1})) <= set("bcdfghjklmnpqrstvwxz2456789")


NOW = datetime(2026, 1, 1, tzinfo=UTC)
EARLIER = NOW - timedelta(minutes=5)


def sized(name: str, size: int, *, minute: int = 0, before: int | None = None, **status: Any) -> UntypedObject:
    """A set of a deployment; `before`: the most pods that the deployment allowed when it was last resized."""
    meta = ObjectMeta(
        name=name,
        uid=f"uid-{name}",
        creation_timestamp=NOW + timedelta(minutes=minute),
        annotations={} if before is None else {sums.MAX: str(before)},
    )
    return UntypedObject(metadata=meta, spec={"replicas": size}, status=status)


def of_size(replicas: int, surge: int = 1, unavailable: int = 1, **more: Any) -> UntypedObject:
    status = more.pop("status", {})
    meta = ObjectMeta(name="web", uid="uid-web", generation=3, annotations=more.pop("annotations", {}))
    spec = {"replicas": replicas, "strategy": rolling(surge, unavailable), **more}
    return UntypedObject(metadata=meta, spec=spec, status=status)


@pytest.mark.parametrize(
    ("deployment", "sets", "expected"),
    [
        pytest.param(of_size(9), [sized("a", 3, before=5), sized("b", 2, before=5)], {"a": 6, "b": 4}, id="grows"),
        pytest.param(of_size(4), [sized("a", 6, before=10), sized("b", 4, before=10)], {"a": 3, "b": 2}, id="shrinks"),
        pytest.param(of_size(0), [sized("a", 6, before=10), sized("b", 4, before=10)], {"a": 0, "b": 0}, id="to-none"),
        pytest.param(of_size(4), [sized("a", 3, before=5), sized("b", 2, before=5)], {"a": 3, "b": 2}, id="stays"),
        pytest.param(
            of_size(3, 0),
            [sized("old", 1, minute=1, before=2), sized("new", 1, minute=2, before=2)],
            {"old": 1, "new": 2},
            id="of-equals-the-newer-grows",
        ),
        pytest.param(
            of_size(7, 0),
            [sized("old", 2, minute=1, before=4), sized("new", 2, minute=2, before=4)],
            {"old": 3, "new": 4},
            id="no-more-than-is-left",
        ),
        pytest.param(
            of_size(3, 0),
            [sized("new", 2, minute=2, before=4), sized("old", 2, minute=1, before=4)],
            {"old": 1, "new": 2},
            id="of-equals-the-older-shrinks",
        ),
        pytest.param(
            of_size(9, status={"replicas": 5}),
            [sized("a", 3), sized("b", 2)],
            {"a": 6, "b": 4},
            id="without-annotations-the-status-counts",
        ),
        pytest.param(of_size(9), [sized("b", 2), sized("a", 3)], {"a": 8, "b": 2}, id="the-rest-goes-to-the-largest"),
        pytest.param(
            of_size(9),
            [sized("a", 5, before=5), sized("none", 0, before=5)],
            {"a": 10, "none": 0},
            id="an-empty-set-stays-empty",
        ),
        pytest.param(of_size(9), [], {}, id="no-set"),
    ],
)
def test_sets_keep_their_proportions(
    deployment: UntypedObject, sets: list[UntypedObject], expected: dict[str, int]
) -> None:
    assert sums.proportional_sizes(deployment, sets) == expected


@pytest.mark.parametrize(
    ("deployment", "sizes", "current", "expected"),
    [
        pytest.param(of_size(4), [4, 0], 0, 1, id="as-many-as-the-surge"),
        pytest.param(of_size(4), [5, 0], 0, 0, id="no-room"),
        pytest.param(of_size(4), [6, 0], 0, 0, id="too-many-already"),
        pytest.param(of_size(4), [3], 3, 4, id="no-more-than-wanted"),
        pytest.param(of_size(4, strategy={"type": "Recreate"}), [9], 0, 4, id="recreated-at-once"),
    ],
)
def test_how_large_the_new_set_may_be(deployment: UntypedObject, sizes: list[int], current: int, expected: int) -> None:
    assert sums.new_set_size(deployment, [sized(f"s{n}", size) for n, size in enumerate(sizes)], current) == expected


@pytest.mark.parametrize(
    ("have", "exists", "expected"),
    [
        pytest.param({}, False, {sums.REVISION: "3", sums.DESIRED: "4", sums.MAX: "5"}, id="made"),
        pytest.param({}, True, {sums.REVISION: "3"}, id="without-a-revision"),
        pytest.param(
            {sums.REVISION: "1"}, True, {sums.REVISION: "3", sums.REVISION_HISTORY: "1"}, id="newest-once-more"
        ),
        pytest.param(
            {sums.REVISION: "2", sums.REVISION_HISTORY: "1"},
            True,
            {sums.REVISION: "3", sums.REVISION_HISTORY: "1,2"},
            id="newest-for-the-third-time",
        ),
        pytest.param({sums.REVISION: "3"}, True, {sums.REVISION: "3"}, id="newest-already"),
        pytest.param({sums.REVISION: "9", "b": "2"}, True, {sums.REVISION: "9", "b": "2"}, id="ahead"),
    ],
)
def test_annotations_of_the_new_set(have: dict[str, str], exists: bool, expected: dict[str, str]) -> None:
    own = {"a": "1", sums.REVISION: "7", sums.DESIRED: "8", "kubectl.kubernetes.io/last-applied-configuration": "{}"}
    found = sums.set_annotations(of_size(4, annotations=own), have, 3, exists=exists)
    assert found == {"a": "1", **expected}


def said(kind: str, status: str, reason: str, at: datetime = EARLIER, since: datetime | None = None) -> Tree:
    times = {"lastUpdateTime": format_time(at), "lastTransitionTime": format_time(since or at)}
    return {"type": kind, "status": status, "reason": reason, "message": "m", **times}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param([], [said("A", "True", "R", NOW)], id="new"),
        pytest.param([said("A", "True", "R")], [said("A", "True", "R")], id="the-same"),
        pytest.param([said("A", "True", "Q")], [said("A", "True", "R", NOW, EARLIER)], id="for-another-reason"),
        pytest.param([said("A", "False", "R")], [said("A", "True", "R", NOW)], id="another-status"),
        pytest.param(
            [said("A", "False", "R"), said("B", "True", "R")],
            [said("B", "True", "R"), said("A", "True", "R", NOW)],
            id="others-stay",
        ),
    ],
)
def test_conditions_say_since_when(before: list[Tree], after: list[Tree]) -> None:
    assert sums.with_condition(before, "A", "True", "R", "m", NOW) == after


@pytest.mark.parametrize(
    ("available", "enough"), [(2, "False"), (3, "True"), (4, "True")], ids=["too-few", "just-enough", "all"]
)
def test_the_numbers_of_a_status(available: int, enough: str) -> None:
    new = sized("new", 3, replicas=3, readyReplicas=2, availableReplicas=available - 1)
    old = sized("old", 2, replicas=2, readyReplicas=1, availableReplicas=1, terminatingReplicas=1)
    found = sums.status_of(of_size(4), [new, old], new, NOW)
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
    empty = sums.status_of(of_size(4, status={"terminatingReplicas": 2, "collisionCount": 1}), [], None, NOW)
    del empty["conditions"]
    assert empty == {"observedGeneration": 3, "collisionCount": 1, "terminatingReplicas": 0}


PROGRESSED = said("Progressing", "True", "ReplicaSetUpdated")
DONE = said("Progressing", "True", "NewReplicaSetAvailable")
LATE = said("Progressing", "False", "ProgressDeadlineExceeded")
FULL = {"replicas": 4, "updatedReplicas": 4, "availableReplicas": 4, "readyReplicas": 4, "observedGeneration": 3}
HALF = {"replicas": 5, "updatedReplicas": 2, "availableReplicas": 4, "readyReplicas": 4, "observedGeneration": 3}


@pytest.mark.parametrize(
    ("seconds", "before", "status", "known", "expected"),
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
def test_the_progress_of_a_rollout(
    seconds: int | None,
    before: Tree,
    status: Tree,
    known: list[Tree],
    expected: list[tuple[str, str, datetime, datetime]],
) -> None:
    """The last progress was five minutes ago."""
    deadline = {} if seconds is None else {"progressDeadlineSeconds": seconds}
    other = said("Available", "True", "R")
    after = {**status, "conditions": [other, *known]}
    found = sums.with_progress(of_size(4, status=before, **deadline), after, None, NOW)
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
def test_the_failure_of_a_set_is_that_of_its_deployment(failing: tuple[str, ...], expected: str | None) -> None:
    sets = [
        sized(name, 1, **({"conditions": [said("ReplicaFailure", "True", f"by-{name}")]} if name in failing else {}))
        for name in ("old", "new")
    ]
    known = [said("Available", "True", "R"), said("ReplicaFailure", "True", "before")]
    found = {each["type"]: each["reason"] for each in sums.with_failures(known, sets, sets[1], NOW)}
    assert found == {"Available": "R", **({"ReplicaFailure": f"by-{expected}"} if expected else {})}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        pytest.param({"metadata": {"labels": {"a": "b", sums.HASH: "x"}}}, {"metadata": {"labels": {"a": "b"}}}, True),
        pytest.param(
            {"metadata": {"labels": {"a": "b"}, "annotations": {}}}, {"metadata": {"labels": {"a": "b"}}}, True
        ),
        pytest.param({"metadata": {"labels": {"a": "b"}}}, {"metadata": {"labels": {"a": "c"}}}, False),
        pytest.param({"metadata": {"annotations": {"a": "b"}}}, {"metadata": {}}, False),
        pytest.param({"spec": {"a": 1}}, {"spec": {"a": 2}}, False),
        pytest.param({}, {"metadata": {"labels": {sums.HASH: "x"}}}, True),
    ],
    ids=["hash", "empty-map", "label", "annotation", "spec", "no-metadata"],
)
def test_templates_are_compared_without_what_controllers_add(one: Tree, other: Tree, same: bool) -> None:
    assert sums.same_template(one, other) is same
