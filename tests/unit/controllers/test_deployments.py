"""Deployments: rollouts within their bounds, history, undo, pause, scaling in the middle, deadlines."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bayplan.clock import ManualClock
from bayplan.controllers import EXIT_CODE, RUNS_FOR
from bayplan.controllers import deployment_sums as sums
from bayplan.controllers.seen import DEPLOYMENTS, REPLICA_SETS, Tree, Whole
from bayplan.controllers.template_hash import short_hash
from bayplan.objects.meta import ObjectMeta
from controlled import Controlled, controlled, passing
from wire_server import on_loop

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


async def sets(world: Controlled) -> dict[str, int]:
    """The revisions, each with its size."""
    return {
        each["metadata"]["annotations"][sums.REVISION]: each["spec"]["replicas"]
        for each in await world.list(REPLICA_SETS)
    }


def conditions(found: Tree) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in found["status"]["conditions"]}


@on_loop
async def test_a_rollout_its_history_and_the_way_back(tmp_path: Path) -> None:
    async with controlled(tmp_path, only=ONLY) as world:
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


@on_loop
async def test_what_recreates_has_no_old_pod_when_the_new_ones_come(tmp_path: Path) -> None:
    async with controlled(tmp_path, only=ONLY) as world:
        await world.make(DEPLOYMENTS, deployment("web", 2, strategy={"type": "Recreate"}))
        await world.when(DEPLOYMENTS, "web", rolled_out)
        old = {each["metadata"]["name"] for each in await world.pods()}
        await world.patch(DEPLOYMENTS, "web", image("two"))
        await world.when(DEPLOYMENTS, "web", lambda found: rolled_out(found) and found["status"].get("replicas") == 2)
        assert not old & {each["metadata"]["name"] for each in await world.pods()}

        async def told() -> bool:
            events = await world.served.ask("GET", "/api/v1/namespaces/default/events")
            notes = [each["message"] for each in events.json["items"] if each["reason"] == "ScalingReplicaSet"]
            return [note.split(" ")[1] for note in notes] == ["up", "down", "up"]

        await world.until(told, "the way of the rollout is told")


@on_loop
async def test_a_pause_holds_the_template_and_lets_the_size_change(tmp_path: Path) -> None:
    async with controlled(tmp_path, only=ONLY) as world:
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


@on_loop
async def test_a_rollout_that_cannot_go_on_is_late_and_stays_within_its_bounds(tmp_path: Path) -> None:
    async with controlled(tmp_path, nodes=1, only=ONLY) as world:
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
@on_loop
async def test_a_version_that_crashes_is_not_rolled_out(tmp_path: Path, said: dict[str, str]) -> None:
    clock = ManualClock(datetime.now(UTC))
    async with controlled(tmp_path, only=ONLY, scheduling=False, clock=clock) as world:
        made = deployment("web", 1, progressDeadlineSeconds=5)
        made["spec"]["template"]["spec"]["nodeName"] = "node-0"
        await world.make(DEPLOYMENTS, made)

        async def whole() -> bool:
            found = await world.get(DEPLOYMENTS, "web")
            return "conditions" in found.get("status", {}) and rolled_out(found)

        await passing(clock, whole, step_s=0.1)
        await world.patch(DEPLOYMENTS, "web", {"spec": {"template": {"metadata": {"annotations": said}}}})

        async def late() -> bool:
            found = await world.get(DEPLOYMENTS, "web")
            assert not (rolled_out(found) and found["metadata"]["generation"] > 1)
            return conditions(found)["Progressing"] == ("False", "ProgressDeadlineExceeded")

        await passing(clock, late, step_s=0.1)
        assert await sets(world) == {"1": 1, "2": 1}
        pods = {each["metadata"].get("annotations") == said: each["status"] for each in await world.pods()}
        assert {broken: status["phase"] for broken, status in pods.items()} == {False: "Running", True: "Running"}
        assert pods[True]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == int(EXIT_CODE in said)


def whole(replicas: int, *, made: int = 0, annotations: dict[str, str] | None = None, **more: Any) -> Whole:
    meta = ObjectMeta(name=f"s{made}", uid=f"u{made}", annotations=annotations or {})
    return Whole(metadata=meta, spec={"replicas": replicas, **more})


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


def test_the_hash_depends_on_the_template_and_the_collisions() -> None:
    assert short_hash({"a": 1, "b": 2}) == short_hash({"b": 2, "a": 1})
    assert len({short_hash({"a": 1}), short_hash({"a": 2}), short_hash({"a": 1}, 1)}) == 3
    assert set(short_hash({"a": 1})) <= set("bcdfghjklmnpqrstvwxz2456789")
