"""Recorder: a live cluster is followed, and a replay reproduces its decisions."""

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
async def followed_cluster(cluster: Cluster) -> AsyncIterator[Callable[[], Recording]]:
    """Follow a cluster; yields a function that builds the recording so far."""
    recorder = ClusterRecorder(
        cluster.client, is_batch=lambda _: False, serves=lambda each: each.scheduler_name == "default-scheduler"
    )
    started = asyncio.Event()
    task = asyncio.create_task(recorder.run(None, started.set))

    def recording() -> Recording:
        assert recorder.started_at is not None
        header = RecordingHeader(
            recording=1, at=recorder.started_at, decisions=OBSERVED, until=cluster.client.clock.now()
        )
        decisions, changes = recorder.result()
        return Recording(header, recorder.objects, tuple(decisions), tuple(changes))

    try:
        await started.wait()
        yield recording
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@async_test
async def test_a_replay_of_a_followed_cluster_reproduces_all_nodes() -> None:
    async with Cluster(nodes="node=3:cpu=4", controllers=False) as cluster:
        await cluster.apply(pod("before"))
        await cluster.wait_placed("before", timeout_s=DEADLINE_S)
        async with followed_cluster(cluster) as recording:
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
            followed = recording()
    # The pod `before` was bound before the recording started.
    assert {decision.pod: decision.node for decision in followed.decisions} == placed | {"default/giant": ""}
    assert placed["default/again"] == placed["default/first"]  # the only node with enough free resources
    found = replay_recording(followed)
    assert found.differences == []
    assert {each.pod: each.node for each in found.decisions} == placed | {"default/giant": ""}


def followed_recording(objects: list[KubeObject], *steps: RecordedDecision | RecordedChange) -> Recording:
    """The recording of a followed cluster, from its decisions and changes."""
    decisions = [step for step in steps if isinstance(step, RecordedDecision)]
    changes, decided = [], 0
    for step in steps:
        if isinstance(step, RecordedChange):
            changes.append(RecordedChange(step.item, step.deleted, step.at, decided))
        else:
            decided += 1
    header = RecordingHeader(recording=1, at=NOON, decisions=OBSERVED, until=NOON + timedelta(hours=1))
    return Recording(header, tuple(objects), tuple(decisions), tuple(changes))


def at(second: float) -> datetime:
    return NOON + timedelta(seconds=second)


def differences(recording: Recording, setup: EngineSetup | None = None) -> list[str]:
    return [each.describe() for each in replay_recording(recording, setup).differences]


SMALL, LARGE = make_node("small", cpu=2), make_node("large", cpu=8)


def test_a_reused_name_is_another_pod() -> None:
    first, second = make_pod("db-0", cpu=2), replace(make_pod("db-0", cpu=7), metadata=make_pod("db-0").metadata)
    second = replace(second, metadata=replace(second.metadata, uid="another"))
    followed = followed_recording(
        [SMALL, LARGE, make_pod("other", cpu=7, node="large"), first],
        RecordedDecision(pod="default/db-0", node="small", at=at(10)),
        RecordedChange(first.bound_to("small"), deleted=True, at=at(20)),
        RecordedChange(make_pod("other", cpu=7, node="large"), deleted=True, at=at(21)),
        RecordedChange(second, at=at(30)),
        RecordedDecision(pod="default/db-0", node="large", at=at(40)),
    )
    assert differences(followed) == []
    assert [each.node for each in replay_recording(followed).decisions] == ["small", "large"]


def test_a_decision_may_precede_a_change_that_was_recorded_before_it() -> None:
    """The pod was being bound when a node was added that it would have preferred."""
    followed = followed_recording(
        [SMALL, make_pod("web", cpu=1)],
        RecordedChange(LARGE, at=at(1)),
        RecordedDecision(pod="default/web", node="small", at=at(2)),
    )
    assert differences(followed) == []
    late = followed_recording(
        [SMALL, make_pod("web", cpu=1)],
        RecordedChange(LARGE, at=at(1)),
        RecordedDecision(pod="default/web", node="small", at=at(60)),
    )
    assert differences(late) == ["decision 1, default/web: recorded small; now large"]


def test_a_change_may_precede_a_decision_that_was_recorded_before_it() -> None:
    """Nodes and pods have separate watches, and each of them may be late."""
    pods = [make_pod("web", cpu=5)]
    assert (
        differences(
            followed_recording(
                [SMALL, *pods],
                RecordedDecision(pod="default/web", node="large", at=at(1)),
                RecordedChange(LARGE, at=at(2)),
            )
        )
        == []
    )
    assert (
        differences(
            followed_recording(
                [SMALL, *pods],
                RecordedDecision(pod="default/web", node="large", at=at(1)),
                RecordedChange(LARGE, at=at(60)),
            )
        )
        != []
    )


def test_the_first_difference_has_both_nodes() -> None:
    followed = followed_recording(
        [make_node("a", cpu=4), make_pod("full", cpu=2, node="a"), make_pod("web", cpu=1), make_pod("next", cpu=1)],
        RecordedChange(make_node("b", cpu=4), at=at(1)),
        RecordedDecision(pod="default/web", node="b", at=at(10)),
        RecordedDecision(pod="default/next", node="b", at=at(20)),
    )
    assert differences(followed) == []
    found = replay_recording(followed, EngineSetup(configuration=PACKING_CONFIG))
    assert found.first is not None
    assert found.first.describe() == "decision 1, default/web: recorded b; now a"
    assert [line.partition(":")[0] for line in found.first.because] == ["b", "a"]


def test_ended_pods_release_resources_and_deleted_nodes_are_not_used() -> None:
    done = make_pod("done", cpu=2, node="small")
    over = replace(done, status=replace(done.status, phase="Succeeded"))
    followed = followed_recording(
        [SMALL, LARGE, done, make_pod("web", cpu=2)],
        RecordedChange(LARGE, deleted=True, at=at(1)),
        RecordedChange(over, at=at(10)),
        RecordedDecision(pod="default/web", node="small", at=at(20)),
    )
    assert differences(followed) == []


def test_a_pod_deleted_before_its_decision_is_a_difference() -> None:
    web = make_pod("web")
    followed = followed_recording(
        [LARGE, web],
        RecordedChange(web, deleted=True, at=at(1)),
        RecordedDecision(pod="default/web", node="large", at=at(60)),
    )
    (found,) = replay_recording(followed).differences
    assert found.because == ("the pod was deleted before",)


def test_sessions_of_added_gangs_are_retraced() -> None:
    gang = make_gang("train", 2, cpu=1)
    followed = followed_recording(
        [LARGE],
        *(RecordedChange(each, at=at(1)) for each in gang.objects),
        *(
            RecordedDecision(pod=f"default/train-{n}", engine="batch", node="large", session=1, at=at(5))
            for n in range(2)
        ),
    )
    assert differences(followed) == []
    assert [each.node for each in replay_recording(followed).decisions] == ["large", "large"]


def test_a_followed_recording_is_a_trace_with_durations(tmp_path: Path) -> None:
    waiting, late = (stamped(make_pod(name, cpu=1), second) for name, second in (("waiting", 0), ("late", 30)))
    stays = stamped(make_pod("stays", cpu=1, node="large"), 5)
    followed = followed_recording(
        [LARGE, waiting, stays],
        RecordedDecision(pod="default/waiting", node="large", at=at(10)),
        RecordedChange(late, at=at(30)),
        RecordedDecision(pod="default/late", node="small", at=at(40)),
        RecordedChange(SMALL, at=at(45)),
        RecordedChange(Pod(metadata=waiting.metadata), deleted=True, at=at(70)),
    )
    write_recording(tmp_path / "followed.jsonl", followed)
    nodes, pods = read_recorded_trace(tmp_path / "followed.jsonl")
    assert [node.name for node in nodes] == ["large", "small"]
    assert [(each.name, each.arrival_s, each.duration_s) for each in pods] == [
        ("default/waiting", 0.0, 60.0),
        ("default/stays", 5.0, None),
        ("default/late", 30.0, None),
    ]


def stamped(pod: Pod, second: float) -> Pod:
    return replace(pod, metadata=replace(pod.metadata, creation_timestamp=at(second)))


@pytest.mark.parametrize(
    ("old", "new", "is_recorded"),
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
def test_irrelevant_updates_are_ignored(old: KubeObject, new: KubeObject, is_recorded: bool) -> None:
    assert (without_irrelevant_fields(old) != without_irrelevant_fields(new)) is is_recorded


def test_equal_recordings_have_equal_lines() -> None:
    followed = followed_recording(
        [SMALL], RecordedChange(LARGE, at=at(1)), RecordedChange(Node(metadata=SMALL.metadata), deleted=True, at=at(2))
    )
    lines = list(encode_lines(followed))
    assert lines == list(encode_lines(followed))
    assert '"goes": {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "small"' in lines[3]
