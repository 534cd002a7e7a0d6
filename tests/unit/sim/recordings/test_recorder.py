"""A cluster is followed while its scheduler works, and all that was decided is decided again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan import Cluster
from bayplan.client import PODS
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import Condition, KubeObject
from bayplan.sim.offline.decision_replay import replay_recording
from bayplan.sim.offline.offline_cluster import EngineSetup
from bayplan.sim.recordings.recorder import ClusterRecorder, without_irrelevant_fields
from bayplan.sim.recordings.recording_file import (
    OBSERVED,
    RecordedChange,
    RecordedDecision,
    Recording,
    RecordingHeader,
    encode_lines,
    write_recording,
)
from bayplan.sim.traces.recorded_trace import read_recorded_trace
from bayplan.testing import make_node, make_pod
from bayplan.testing.batch_builders import make_gang, make_pod_group
from support.builders.packing_profile import PACKING_CONFIG
from support.harness.async_tests import async_test, wait_until
from support.harness.deadlines import DEADLINE_S

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def pod(name: str, cpu: str = "1") -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}


@asynccontextmanager
async def followed(cluster: Cluster) -> AsyncIterator[Callable[[], Recording]]:
    """Follows a cluster; what is given makes a recording of what happened so far."""
    mine = ClusterRecorder(
        cluster.client, is_batch=lambda _: False, serves=lambda each: each.scheduler_name == "default-scheduler"
    )
    began = asyncio.Event()
    watching = asyncio.create_task(mine.run(None, began.set))

    def recording() -> Recording:
        assert mine.started_at is not None
        header = RecordingHeader(recording=1, at=mine.started_at, decisions=OBSERVED, until=cluster.client.clock.now())
        verdicts, changes = mine.result()
        return Recording(header, mine.objects, tuple(verdicts), tuple(changes))

    try:
        await began.wait()
        yield recording
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


@async_test
async def test_pods_that_came_and_went_are_replayed_to_the_same_nodes() -> None:
    async with Cluster(nodes="node=3:cpu=4", controllers=False) as cluster:
        await cluster.apply(pod("before"))
        await cluster.wait_placed("before", timeout_s=DEADLINE_S)
        async with followed(cluster) as recording:
            placed = {}
            for name, cpu in (("first", "3"), ("second", "2"), ("third", "3")):
                await cluster.apply(pod(name, cpu))
                placed[f"default/{name}"] = await cluster.wait_placed(name, timeout_s=DEADLINE_S)
            await cluster.client.delete(PODS, name="first", namespace="default", grace_s=0)
            await wait_until(lambda: any(each.deleted and each.item.name == "first" for each in recording().changes))
            await cluster.apply(pod("again", "3"))
            placed["default/again"] = await cluster.wait_placed("again", timeout_s=DEADLINE_S)
            await cluster.apply(pod("giant", "64"))
            await cluster.wait_unschedulable("giant", timeout_s=DEADLINE_S)
            await wait_until(lambda: any(each.pod == "default/giant" for each in recording().decisions))
            story = recording()
    # One was there already: nobody saw it decided.
    assert {verdict.pod: verdict.node for verdict in story.decisions} == placed | {"default/giant": ""}
    assert placed["default/again"] == placed["default/first"]  # where alone there was room again
    found = replay_recording(story)
    assert found.differences == []
    assert {each.pod: each.node for each in found.decisions} == placed | {"default/giant": ""}


def story_of(objects: list[KubeObject], *steps: RecordedDecision | RecordedChange) -> Recording:
    """A cluster that was followed, from what happened in it."""
    verdicts = [step for step in steps if isinstance(step, RecordedDecision)]
    changes, seen = [], 0
    for step in steps:
        if isinstance(step, RecordedChange):
            changes.append(RecordedChange(step.item, step.deleted, step.at, seen))
        else:
            seen += 1
    header = RecordingHeader(recording=1, at=NOON, decisions=OBSERVED, until=NOON + timedelta(hours=1))
    return Recording(header, tuple(objects), tuple(verdicts), tuple(changes))


def at(second: float) -> datetime:
    return NOON + timedelta(seconds=second)


def told(recording: Recording, setup: EngineSetup | None = None) -> list[str]:
    return [each.describe() for each in replay_recording(recording, setup).differences]


SMALL, LARGE = make_node("small", cpu=2), make_node("large", cpu=8)


def test_a_name_that_is_used_again_is_another_pod() -> None:
    first, second = make_pod("db-0", cpu=2), replace(make_pod("db-0", cpu=7), metadata=make_pod("db-0").metadata)
    second = replace(second, metadata=replace(second.metadata, uid="another"))
    story = story_of(
        [SMALL, LARGE, make_pod("other", cpu=7, node="large"), first],
        RecordedDecision(pod="default/db-0", node="small", at=at(10)),
        RecordedChange(first.bound_to("small"), deleted=True, at=at(20)),
        RecordedChange(make_pod("other", cpu=7, node="large"), deleted=True, at=at(21)),
        RecordedChange(second, at=at(30)),
        RecordedDecision(pod="default/db-0", node="large", at=at(40)),
    )
    assert told(story) == []
    assert [each.node for each in replay_recording(story).decisions] == ["small", "large"]


def test_a_decision_that_was_made_before_a_change_was_seen_explains_itself() -> None:
    """The pod was on its way when the node came that it would have preferred."""
    story = story_of(
        [SMALL, make_pod("web", cpu=1)],
        RecordedChange(LARGE, at=at(1)),
        RecordedDecision(pod="default/web", node="small", at=at(2)),
    )
    assert told(story) == []
    late = story_of(
        [SMALL, make_pod("web", cpu=1)],
        RecordedChange(LARGE, at=at(1)),
        RecordedDecision(pod="default/web", node="small", at=at(60)),
    )
    assert told(late) == ["decision 1, default/web: recorded small; now large"]


def test_a_change_that_was_told_too_late_explains_a_decision() -> None:
    """Nodes and pods are watched apart, and of two watches either may be behind."""
    pods = [make_pod("web", cpu=5)]
    assert (
        told(
            story_of(
                [SMALL, *pods],
                RecordedDecision(pod="default/web", node="large", at=at(1)),
                RecordedChange(LARGE, at=at(2)),
            )
        )
        == []
    )
    assert (
        told(
            story_of(
                [SMALL, *pods],
                RecordedDecision(pod="default/web", node="large", at=at(1)),
                RecordedChange(LARGE, at=at(60)),
            )
        )
        != []
    )


def test_the_first_difference_is_told_with_both_nodes() -> None:
    story = story_of(
        [make_node("a", cpu=4), make_pod("full", cpu=2, node="a"), make_pod("web", cpu=1), make_pod("next", cpu=1)],
        RecordedChange(make_node("b", cpu=4), at=at(1)),
        RecordedDecision(pod="default/web", node="b", at=at(10)),
        RecordedDecision(pod="default/next", node="b", at=at(20)),
    )
    assert told(story) == []
    found = replay_recording(story, EngineSetup(configuration=PACKING_CONFIG))
    assert found.first is not None
    assert found.first.describe() == "decision 1, default/web: recorded b; now a"
    assert [line.partition(":")[0] for line in found.first.because] == ["b", "a"]


def test_pods_that_have_ended_make_room_and_nodes_that_went_have_none() -> None:
    done = make_pod("done", cpu=2, node="small")
    over = replace(done, status=replace(done.status, phase="Succeeded"))
    story = story_of(
        [SMALL, LARGE, done, make_pod("web", cpu=2)],
        RecordedChange(LARGE, deleted=True, at=at(1)),
        RecordedChange(over, at=at(10)),
        RecordedDecision(pod="default/web", node="small", at=at(20)),
    )
    assert told(story) == []


def test_a_pod_that_was_gone_before_its_decision_is_a_difference() -> None:
    web = make_pod("web")
    story = story_of(
        [LARGE, web],
        RecordedChange(web, deleted=True, at=at(1)),
        RecordedDecision(pod="default/web", node="large", at=at(60)),
    )
    (found,) = replay_recording(story).differences
    assert found.because == ("the pod was deleted before",)


def test_sessions_of_gangs_that_came_are_retraced() -> None:
    gang = make_gang("train", 2, cpu=1)
    story = story_of(
        [LARGE],
        *(RecordedChange(each, at=at(1)) for each in gang.objects),
        *(
            RecordedDecision(pod=f"default/train-{n}", engine="batch", node="large", session=1, at=at(5))
            for n in range(2)
        ),
    )
    assert told(story) == []
    assert [each.node for each in replay_recording(story).decisions] == ["large", "large"]


def test_a_story_is_a_trace_with_durations(tmp_path: Path) -> None:
    waiting, late = (stamped(make_pod(name, cpu=1), second) for name, second in (("waiting", 0), ("late", 30)))
    stays = stamped(make_pod("stays", cpu=1, node="large"), 5)
    story = story_of(
        [LARGE, waiting, stays],
        RecordedDecision(pod="default/waiting", node="large", at=at(10)),
        RecordedChange(late, at=at(30)),
        RecordedDecision(pod="default/late", node="small", at=at(40)),
        RecordedChange(SMALL, at=at(45)),
        RecordedChange(Pod(metadata=waiting.metadata), deleted=True, at=at(70)),
    )
    write_recording(tmp_path / "story.jsonl", story)
    nodes, pods = read_recorded_trace(tmp_path / "story.jsonl")
    assert [node.name for node in nodes] == ["large", "small"]
    assert [(each.name, each.arrival_s, each.duration_s) for each in pods] == [
        ("default/waiting", 0.0, 60.0),
        ("default/stays", 5.0, None),
        ("default/late", 30.0, None),
    ]


def stamped(pod: Pod, second: float) -> Pod:
    return replace(pod, metadata=replace(pod.metadata, creation_timestamp=at(second)))


@pytest.mark.parametrize(
    ("old", "new", "is_noted"),
    [
        pytest.param(LARGE, replace(LARGE, metadata=replace(LARGE.metadata, resource_version="9")), False, id="again"),
        pytest.param(
            LARGE,
            replace(LARGE, status=replace(LARGE.status, conditions=(Condition(type="Ready", status="True"),))),
            False,
            id="a heartbeat",
        ),
        pytest.param(LARGE, make_node("large", cpu=9), True, id="a larger node"),
        pytest.param(
            make_pod("p", node="n"),
            replace(make_pod("p", node="n"), status=replace(make_pod("p").status, phase="Running")),
            False,
            id="a pod that runs",
        ),
        pytest.param(
            make_pod("p", node="n"),
            replace(make_pod("p", node="n"), status=replace(make_pod("p").status, phase="Failed")),
            True,
            id="a pod that failed",
        ),
        pytest.param(
            make_pod_group("g"),
            replace(make_pod_group("g"), status=replace(make_pod_group("g").status, phase="Running")),
            False,
            id="a group that runs",
        ),
    ],
)
def test_what_no_decision_looks_at_is_passed_over(old: KubeObject, new: KubeObject, is_noted: bool) -> None:
    assert (without_irrelevant_fields(old) != without_irrelevant_fields(new)) is is_noted


def test_the_same_story_is_the_same_lines() -> None:
    story = story_of(
        [SMALL], RecordedChange(LARGE, at=at(1)), RecordedChange(Node(metadata=SMALL.metadata), deleted=True, at=at(2))
    )
    lines = list(encode_lines(story))
    assert lines == list(encode_lines(story))
    assert '"goes": {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "small"' in lines[3]
