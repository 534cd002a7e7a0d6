"""Replay of recordings: decisions are made again, and differences are reported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.objects.core import Pod
from bayplan.objects.defaults import with_all_defaults
from bayplan.objects.kai.bind_request import BindRequest, BindRequestSpec, annotation_key
from bayplan.objects.meta import Condition, KubeObject, ObjectMeta
from bayplan.sim.offline.decision_replay import replay_recording
from bayplan.sim.offline.offline_cluster import EngineSetup, OfflineCluster, pending_pods
from bayplan.sim.recordings.anonymiser import Anonymiser
from bayplan.sim.recordings.observed_decisions import read_observed_decisions
from bayplan.sim.recordings.recording_file import (
    BATCH_ENGINE,
    DECIDED,
    OBSERVED,
    RecordedDecision,
    Recording,
    RecordingHeader,
    read_recording,
    write_recording,
)
from bayplan.testing import make_node, make_pod
from bayplan.testing.batch_builders import make_gang
from support.builders.packing_profile import PACKING_CONFIG
from support.fakes.cpu_environments import LOCAL_ENVIRONMENT, OTHER_CPU_ENVIRONMENT

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def decided_recording(objects: Iterable[KubeObject], setup: EngineSetup | None = None, seed: int = 0) -> Recording:
    known, setup = tuple(with_all_defaults(objects)), setup or EngineSetup()
    with OfflineCluster(known, setup, now=NOON, seed=seed) as offline:
        decisions = offline.run_until_stable(pending_pods(known, offline)).decisions
    header = RecordingHeader(recording=1, at=NOON, seed=seed, decisions=DECIDED, configuration=setup.configuration)
    return Recording(header, known, tuple(decisions))


def observed_recording(objects: Iterable[KubeObject]) -> Recording:
    """The recording of a live cluster with these objects."""
    known = tuple(with_all_defaults(objects))
    decisions = read_observed_decisions(
        known,
        {},
        is_batch=lambda pod: pod.scheduler_name == "volcano",
        serves=lambda pod: pod.scheduler_name in ("volcano", "default-scheduler"),
    )
    return Recording(RecordingHeader(recording=1, at=NOON, decisions=OBSERVED), known, tuple(decisions))


def bound(pod: Pod, node: str, second: int = 0) -> Pod:
    """A running pod that was bound at a given second."""
    since = Condition(type="PodScheduled", status="True", last_transition_time=NOON + timedelta(seconds=second))
    on_node = pod.bound_to(node)
    return replace(on_node, status=replace(on_node.status, phase="Running", conditions=(since,)))


def unschedulable(pod: Pod) -> Pod:
    condition = Condition(type="PodScheduled", status="False", reason="Unschedulable")
    return replace(pod, status=replace(pod.status, conditions=(condition,)))


def cluster() -> list[KubeObject]:
    nodes = [make_node(f"node-{number}", cpu=4) for number in range(3)]
    pods = [make_pod(f"web-{number}", cpu="1") for number in range(5)]
    gangs = [make_gang("train", 3, cpu=1), make_gang("giant", 2, cpu=9)]
    return [*nodes, *pods, make_pod("large", cpu=9), *(each for gang in gangs for each in gang.objects)]


def in_phase(pod: Pod, phase: str) -> Pod:
    return replace(pod, status=replace(pod.status, phase=phase))


def with_metadata(pod: Pod, **fields: Any) -> Pod:
    return replace(pod, metadata=replace(pod.metadata, **fields))


WEB = bound(make_pod("web"), "node-0")


@pytest.mark.parametrize(
    ("pod", "known"),
    [
        pytest.param(WEB, True, id="on-a-node"),
        pytest.param(unschedulable(make_pod("web")), True, id="unschedulable"),
        pytest.param(make_pod("web"), False, id="not-tried-yet"),
        pytest.param(in_phase(WEB, "Succeeded"), False, id="succeeded"),
        pytest.param(in_phase(WEB, "Failed"), False, id="failed"),
        pytest.param(in_phase(unschedulable(make_pod("web")), "Failed"), False, id="failed-without-a-node"),
        pytest.param(with_metadata(WEB, deletion_timestamp=NOON), False, id="terminating"),
        pytest.param(with_metadata(WEB, annotations={"kubernetes.io/config.mirror": "x"}), False, id="of-a-kubelet"),
        pytest.param(with_metadata(WEB, annotations={"made-by": "x"}), True, id="with-another-annotation"),
        pytest.param(bound(make_pod("web", scheduler_name="theirs"), "node-0"), False, id="of-another-scheduler"),
    ],
)
def test_pods_of_a_live_cluster_that_are_decisions(pod: Pod, known: bool) -> None:
    (decision,) = observed_recording([make_node("node-0"), pod]).decisions or (None,)
    assert (decision is not None) is known
    assert decision is None or (decision.pod, decision.node) == (pod.key, pod.spec.node_name)


@pytest.mark.parametrize(
    ("node", "uid", "has_annotations"),
    [
        pytest.param("node-0", WEB.uid, True, id="of-this-pod"),
        pytest.param("node-0", "", True, id="of-any-pod-of-its-name"),
        pytest.param("node-0", "another", False, id="of-an-earlier-pod"),
        pytest.param("node-1", WEB.uid, False, id="for-another-node"),
    ],
)
def test_annotations_of_a_bind_request_belong_to_its_decision(node: str, uid: str, has_annotations: bool) -> None:
    meta = ObjectMeta(name="r", namespace="default", annotations={"devices": "0,1"})
    request = BindRequest(metadata=meta, spec=BindRequestSpec(pod_name="web", pod_uid=uid, selected_node=node))
    (decision,) = read_observed_decisions([request, WEB], {}, is_batch=lambda _: False, serves=lambda _: True)
    assert decision.annotations == ({"devices": "0,1"} if has_annotations else {})


def test_waiting_pods_come_last_and_waiting_gangs_share_a_session() -> None:
    gang = [unschedulable(make_pod(f"g{number}", scheduler_name="volcano")) for number in range(2)]
    placed = bound(make_pod("first", scheduler_name="volcano"), "node-0")
    decisions = observed_recording([*gang, unschedulable(make_pod("web")), placed]).decisions
    assert [(each.pod, each.engine, each.session) for each in decisions] == [
        ("default/first", "batch", 1),
        ("default/web", "pods", 0),
        ("default/g0", "batch", 2),
        ("default/g1", "batch", 2),
    ]


def bound_pod(pod: Pod, second: int | None = None, *, created: int | None = None) -> Pod:
    """A bound pod, optionally with the times of its binding and of its creation."""
    on_node = bound(pod, "node-0", second) if second is not None else pod.bound_to("node-0")
    return with_metadata(on_node, creation_timestamp=None if created is None else NOON + timedelta(seconds=created))


@pytest.mark.parametrize(
    ("pods", "events", "order"),
    [
        pytest.param([bound_pod(make_pod("a"), 9), bound_pod(make_pod("b"), 3)], {}, "ba", id="by-their-conditions"),
        pytest.param([bound_pod(make_pod("a"), 3), bound_pod(make_pod("b"), 3)], {"a": 9}, "ba", id="by-events-first"),
        pytest.param(
            [bound_pod(make_pod("a"), created=9), bound_pod(make_pod("b"), 3)],
            {},
            "ba",
            id="by-creation-without-a-condition",
        ),
        pytest.param([bound_pod(make_pod("a"), 3), bound_pod(make_pod("b"))], {}, "ba", id="unknown-times-first"),
        pytest.param(
            [bound_pod(make_pod("a"), 3), bound_pod(make_pod("b", priority=5), 3)], {}, "ba", id="then-by-priority"
        ),
        pytest.param(
            [bound_pod(make_pod("a"), 3, created=2), bound_pod(make_pod("b"), 3, created=1)], {}, "ba", id="then-by-age"
        ),
        pytest.param([bound_pod(make_pod("b"), 3), bound_pod(make_pod("a"), 3)], {}, "ab", id="then-by-name"),
    ],
)
def test_order_of_the_decisions_of_a_live_cluster(pods: list[Pod], events: dict[str, int], order: str) -> None:
    uids = {pod.name: pod.uid for pod in pods}
    bound_at = {uids[name]: NOON + timedelta(seconds=second) for name, second in events.items()}
    decisions = read_observed_decisions(pods, bound_at, is_batch=lambda _: False, serves=lambda _: True)
    assert [each.pod for each in decisions] == [f"default/{name}" for name in order]


def test_both_engines_reproduce_their_decisions() -> None:
    recording = decided_recording(cluster())
    assert {decision.engine for decision in recording.decisions} == {"pods", "batch"}
    placed = {decision.pod for decision in recording.decisions if decision.node}
    web, train = ([f"default/{name}-{number}" for number in range(size)] for name, size in (("web", 5), ("train", 3)))
    assert placed == {*web, *train}
    again = replay_recording(recording)
    assert again.differences == []
    assert again.decisions == list(recording.decisions)


def test_the_seed_breaks_ties_and_a_replay_follows_the_recording() -> None:
    first, second = decided_recording(cluster(), seed=1), decided_recording(cluster(), seed=4)
    assert [each.node for each in first.decisions] != [each.node for each in second.decisions]
    assert replay_recording(first, seed=4).differences == []


def test_an_eviction_is_reproduced() -> None:
    node = make_node("node", cpu=4)
    weak, strong = make_pod("weak", cpu=3, node="node", priority=1), make_pod("strong", cpu=3, priority=9)
    recording = decided_recording([node, weak, strong])
    assert recording.decisions[0].evicted == ("default/weak",)
    assert recording.decisions[0].node == "node"
    assert replay_recording(recording).differences == []
    without_eviction = replace(recording.decisions[0], evicted=())
    changed = Recording(recording.header, recording.objects, (without_eviction, *recording.decisions[1:]))
    assert replay_recording(changed).differences[0].describe() == (
        "decision 1, default/strong: recorded node; now node, after eviction of default/weak"
    )


def test_the_first_difference_has_both_reasons() -> None:
    full = make_pod("full", cpu=2, node="a")
    recording = decided_recording([make_node("a", cpu=4), make_node("b", cpu=4), full, make_pod("web", cpu=1)])
    assert [decision.node for decision in recording.decisions] == ["b"]
    found = replay_recording(recording, EngineSetup(configuration=PACKING_CONFIG))
    assert [each.pod for each in found.differences] == ["default/web"]
    first = found.first
    assert first is not None
    assert first.describe() == "decision 1, default/web: recorded b; now a"
    assert [line.partition(":")[0] for line in first.because] == ["recorded", "now"]


def test_missing_and_new_decisions_are_differences() -> None:
    recording = decided_recording(cluster())
    shorter = Recording(recording.header, recording.objects, recording.decisions[:-1])
    (new,) = replay_recording(shorter).differences
    assert (new.recorded, new.pod) == (None, recording.decisions[-1].pod)
    missing = RecordedDecision(pod="default/missing", node="node-0")
    longer = Recording(recording.header, recording.objects, (*recording.decisions, missing))
    assert [(each.recorded, each.now) for each in replay_recording(longer).differences] == [(missing, None)]


def test_a_live_cluster_is_retraced_in_the_order_of_its_bindings() -> None:
    nodes = [make_node("a", cpu=4), make_node("b", cpu=8)]
    pods = [bound(make_pod("first", cpu=2), "b", 0), bound(make_pod("second", cpu=2), "b", 5)]
    pods += [bound(make_pod("third", cpu=2), "a", 10), unschedulable(make_pod("giant", cpu=20))]
    found = replay_recording(observed_recording([*nodes, *reversed(pods)]))
    assert [decision.pod for decision in found.decisions] == [f"default/{pod.name}" for pod in pods]
    assert found.differences == []


def bind_request(pod: Pod, node: str, **annotations: str) -> BindRequest:
    encoded = {annotation_key("rack", key): text for key, text in annotations.items()}
    meta = ObjectMeta(name=f"{pod.name}-request", namespace=pod.namespace, annotations=encoded)
    return BindRequest(metadata=meta, spec=BindRequestSpec(pod_name=pod.name, selected_node=node))


def test_snapshot_replay_shows_annotations_of_bind_requests(tmp_path: Path) -> None:
    """Annotations of BindRequests are part of the decision, in the file and in its replay."""
    nodes = [make_node(f"node-{number}", cpu=2) for number in range(2)]
    racked, plain, stale = (make_pod(name, cpu="1") for name in ("racked", "plain", "stale"))
    found = observed_recording(
        [
            *nodes,
            *(bound(each, "node-0", second) for second, each in enumerate((racked, plain))),
            bound(stale, "node-1", 2),
            bind_request(racked, "node-0", position="7"),
            bind_request(stale, "node-0", position="8"),  # of an earlier attempt: the pod is on another node
        ]
    )
    file = tmp_path / "cluster.jsonl"
    write_recording(file, found)
    again = replay_recording(read_recording(file)).as_data()
    expected = {"default/racked": {"rack.kai.scheduler/position": "7"}}
    assert {each["pod"]: each["annotations"] for each in again["replayed"] if "annotations" in each} == expected
    assert {each.pod: each.annotations for each in read_recording(file).decisions if each.annotations} == expected
    names = Anonymiser(found.objects)
    assert [each.annotations for each in map(names.rename_decision, found.decisions)] == [{}, {}, {}]


def test_an_explaining_order_of_concurrent_decisions_is_found() -> None:
    """Both pods are bound in one second; if the first by name was decided first, it would use another node."""
    nodes = [make_node("a", cpu=4), make_node("b", cpu=8)]
    late, early = bound(make_pod("aaa", cpu=1), "a", 0), bound(make_pod("zzz", cpu=6), "b", 0)
    recording = observed_recording([*nodes, late, early])
    assert [decision.pod for decision in recording.decisions] == ["default/aaa", "default/zzz"]
    found = replay_recording(recording)
    assert found.differences == []
    assert [decision.pod for decision in found.decisions] == ["default/zzz", "default/aaa"]


def test_an_unexplained_node_is_a_difference_and_the_replay_continues_from_it() -> None:
    nodes = [make_node("a", cpu=4), make_node("b", cpu=8)]
    pods = [bound(make_pod("odd", cpu=1), "a", 0), bound(make_pod("even", cpu=1), "b", 10)]
    found = replay_recording(observed_recording([*nodes, *pods]))
    assert [each.pod for each in found.differences] == ["default/odd"]
    first = found.first
    assert first is not None
    assert first.describe() == "decision 1, default/odd: recorded a; now b"
    assert [line.partition(":")[0] for line in first.because] == ["a", "b"]
    assert "NodeResourcesFit=" in first.because[0]


def test_an_infeasible_recorded_node_has_a_reason() -> None:
    found = replay_recording(
        observed_recording([make_node("a", cpu=1), make_node("b", cpu=8), bound(make_pod("web", cpu=2), "a")])
    )
    assert found.first is not None
    assert found.first.because[0] == "a: Insufficient cpu"


def test_a_gang_of_a_live_cluster_is_retraced_by_a_session() -> None:
    gang = make_gang("train", 3, cpu=2)
    nodes = [make_node(f"node-{number}", cpu=3) for number in range(4)]
    placed = [bound(pod, f"node-{3 - number}") for number, pod in enumerate(gang.pods)]
    group_objects = [each for each in gang.objects if not isinstance(each, Pod)]
    recording = observed_recording([*nodes, *group_objects, *placed])
    assert {(decision.engine, decision.session) for decision in recording.decisions} == {(BATCH_ENGINE, 1)}
    assert replay_recording(recording).differences == []


def test_competing_gangs_are_retraced_one_after_the_other() -> None:
    nodes = [make_node(f"node-{number}", cpu=4) for number in range(2)]
    first, second, third = (make_gang(name, 2, cpu=2) for name in ("one", "two", "three"))
    objects: list[KubeObject] = [*nodes]
    for number, gang in enumerate((first, second)):
        objects += [each for each in gang.objects if not isinstance(each, Pod)]
        objects += [bound(pod, f"node-{number}", 10 * number) for pod in gang.pods]
    objects += [unschedulable(each) if isinstance(each, Pod) else each for each in third.objects]
    packing = "actions: allocate\ntiers: [{plugins: [{name: gang}, {name: predicates}, {name: binpack}]}]"
    recording = observed_recording(objects)
    assert replay_recording(recording, EngineSetup(batch_configuration=packing)).differences == []
    spreading = "actions: allocate\ntiers: [{plugins: [{name: gang}, {name: predicates}, {name: nodeorder}]}]"
    different = replay_recording(recording, EngineSetup(batch_configuration=spreading)).differences
    assert [each.pod for each in different] == ["default/one-1"]


def test_waiting_pods_that_are_placed_now_are_differences() -> None:
    found = replay_recording(observed_recording([make_node("a", cpu=4), unschedulable(make_pod("web", cpu=1))]))
    assert [each.describe() for each in found.differences] == ["decision 1, default/web: recorded waits; now a"]


@pytest.mark.parametrize("verb", ["replay", "retrace", "whatif"])
def test_the_same_bytes_are_printed_on_another_machine(tmp_path: Path, verb: str) -> None:
    path, change = tmp_path / "cluster.jsonl.gz", tmp_path / "change.yaml"
    change.write_text(
        "apiVersion: bayplan.dev/v1alpha1\nkind: WhatIf\nnodes: {add: ['big=2:cpu=16'], remove: [node-0]}\n"
    )
    live = [bound(each, "node-1") if isinstance(each, Pod) and each.spec.containers else each for each in cluster()]
    write_recording(path, observed_recording(live) if verb == "retrace" else decided_recording(cluster(), seed=7))
    arguments = ["whatif", "-f", str(change), "--from", str(path)] if verb == "whatif" else ["replay", str(path)]
    printed = []
    for environment in (LOCAL_ENVIRONMENT, OTHER_CPU_ENVIRONMENT):
        command = [sys.executable, "-m", "bayplan", *arguments, "--seed", "7", "-o", "json"]
        done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=120)
        assert done.returncode == (1 if verb == "retrace" else 0), done.stderr
        printed.append(done.stdout)
    assert printed[0] == printed[1]
    output = json.loads(printed[0])
    assert len(output["lands"] if verb == "whatif" else output["replayed"]) > 5
