from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from bayplan.batch.devices.vgpus import (
    ContainerVgpu,
    ContainerVgpuRequest,
    GpuCard,
    PodGpuUsage,
    format_assigned_vgpus,
    parse_assigned_vgpus,
    read_registered_cards,
    vgpu_request,
)
from bayplan.batch.engine import BatchEngine
from bayplan.batch.plugins.deviceshare import DeviceSharePlugin
from bayplan.batch.session.outcome import SessionResult
from bayplan.batch.session.session import Session
from bayplan.batch.session.simulation import Simulation
from bayplan.objects.core import Container, Node, Pod, ResourceRequirements
from bayplan.objects.meta import ResourceList
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, open_session, tasks_of
from support.builders.batch_engines import build_engine

BY_MEMORY = {"deviceshare.GPUSharingEnable": True}
BY_NUMBER = {"deviceshare.GPUNumberEnable": True}
VGPU = {"deviceshare.VGPUEnable": True}
IDS = "volcano.sh/vgpu-ids-new"


def configuration(arguments: Mapping[str, Any], actions: str = "allocate") -> str:
    """A configuration with the plugin and these arguments."""
    lines = "".join(f"      {key}: {str(value).lower()}\n" for key, value in arguments.items())
    return (
        f'actions: "{actions}"\ntiers:\n- plugins:\n  - name: priority\n  - name: gang\n- plugins:\n'
        f"  - name: predicates\n  - name: deviceshare\n    arguments:\n{lines}  - name: binpack\n"
    )


def with_limits(pod: Pod, *limits_by_container: ResourceList) -> Pod:
    containers = tuple(
        Container(name=f"c{number}", resources=ResourceRequirements(requests={"cpu": "1", **limits}, limits=limits))
        for number, limits in enumerate(limits_by_container)
    )
    return replace(pod, spec=replace(pod.spec, containers=containers))


def annotated(node: Node, **notes: str) -> Node:
    found = {key.replace("_", "-"): value for key, value in notes.items()}
    prefixed = {f"volcano.sh/{key}": value for key, value in found.items()}
    return replace(node, metadata=replace(node.metadata, annotations=prefixed))


def gpu_node(name: str = "n", cards: int = 2, memory: int = 8000, **notes: str) -> Node:
    room: ResourceList = {"cpu": "64", "memory": "64Gi", "pods": "50"}
    gpus: ResourceList = {"volcano.sh/gpu-number": str(cards), "volcano.sh/gpu-memory": str(cards * memory)}
    return annotated(make_node(name, allocatable={**room, **gpus}), **notes)


def vgpu_node(name: str = "n", cards: int = 2, memory: int = 8000, split: int = 4, kind: str = "NVIDIA-T4") -> Node:
    room: ResourceList = {"cpu": "64", "memory": "64Gi", "pods": "50"}
    parts: ResourceList = {
        "volcano.sh/vgpu-number": str(cards * split),
        "volcano.sh/vgpu-memory": str(cards * memory),
        "volcano.sh/vgpu-cores": str(cards * 100),
    }
    registered = "".join(f"{name}-{card},{split},{memory},{kind},true,hami-core:" for card in range(cards))
    return annotated(make_node(name, allocatable={**room, **parts}), node_vgpu_register=registered)


def gpus(name: str, group: str = "job", *, memory: int = 0, number: int = 0, **pod: Any) -> Pod:
    limits: ResourceList = {}
    if memory:
        limits["volcano.sh/gpu-memory"] = str(memory)
    if number:
        limits["volcano.sh/gpu-number"] = str(number)
    return with_limits(make_member(name, group, **pod), limits)


def part(memory: int = 0, cores: int = 0, number: int = 1) -> ResourceList:
    limits: ResourceList = {"volcano.sh/vgpu-number": str(number)}
    if memory:
        limits["volcano.sh/vgpu-memory"] = str(memory)
    if cores:
        limits["volcano.sh/vgpu-cores"] = str(cores)
    return limits


def vgpus(name: str, group: str = "job", *, has: str = "", **pod: Any) -> Pod:
    """A pod that requests a vGPU; `has` is the assignment in its annotations."""
    request = {key: pod.pop(key) for key in ("memory", "cores", "number") if key in pod}
    notes = {**pod.pop("annotations", {}), **({IDS: has, "volcano.sh/bind-phase": "success"} if has else {})}
    return with_limits(make_member(name, group, annotations=notes, **pod), part(**request))


def run(arguments: Mapping[str, Any], nodes: list[Node], pods: list[Pod], *groups: Any) -> SessionResult:
    objects = groups or (make_group(phase="Inqueue"),)
    outcome = build_engine(conf=configuration(arguments), nodes=nodes, pods=pods, objects=objects).run_session()
    assert outcome.faults == []
    return outcome


def cards_of(outcome: SessionResult, key: str) -> dict[str, str]:
    return {pod.partition("/")[2]: notes[key] for pod, notes in outcome.annotations.items()}


# Cards by memory and by number


def test_sharing_by_memory_uses_the_first_card_with_enough() -> None:
    pods = [gpus("a", memory=5000), gpus("b", memory=5000), gpus("c", memory=3000), gpus("d", memory=4000)]
    outcome = run(BY_MEMORY, [gpu_node()], pods)
    assert cards_of(outcome, "volcano.sh/gpu-index") == {"a": "0", "b": "1", "c": "0"}
    assert outcome.annotations["default/a"]["volcano.sh/predicate-time"] == "1717243200000000000"
    assert outcome.messages["default/d"].message == ("0/1 nodes are unavailable: 1 Insufficient volcano.sh/gpu-memory.")


@pytest.mark.parametrize(
    ("arguments", "pod", "refused"),
    [
        pytest.param(BY_MEMORY, gpus("p", memory=7000), "GpuShare no enough gpu memory on node n", id="memory"),
        pytest.param(BY_MEMORY, gpus("p", memory=6000), "", id="just-enough"),
        pytest.param(BY_NUMBER, gpus("p", number=2), "GpuNumber no enough gpu number on node n", id="number"),
        pytest.param(BY_NUMBER, gpus("p", number=1), "", id="one-is-unused"),
        pytest.param(BY_NUMBER, gpus("p", memory=7000), "", id="no-request-by-number"),
    ],
)
def test_rejections(arguments: dict[str, Any], pod: Pod, refused: str) -> None:
    here = gpus("here", "", memory=2000, node="n", annotations={"volcano.sh/gpu-index": "1"})
    unhealthy = gpu_node(cards=3, gpu_unhealthy_ids="0,x")
    also = gpus("also", "", memory=8000, node="n", annotations={"volcano.sh/gpu-index": "1,nonsense"})
    full = gpus("full", "", memory=8000, node="n", annotations={"volcano.sh/gpu-index": "2"})
    pods = [pod, here, also, *([full] if "gpu-memory" in str(pod.spec) else [])]
    with open_session(
        DeviceSharePlugin, arguments=arguments, nodes=[unhealthy], pods=pods, objects=[make_group()]
    ) as session:
        (task,) = tasks_of(session, "p")
        assert [status.message for status in session.predicate(task, session.nodes.at_row(0))] == [refused] * bool(
            refused
        )
        rows = session.evaluate_class(task).rows_to_preempt(task)
        assert rows.tolist() == [True]  # evicting may help


def test_a_node_without_cards_is_not_checked() -> None:
    cluster = {"nodes": [make_node("n")], "pods": [gpus("p", memory=1)], "objects": [make_group()]}
    with open_session(DeviceSharePlugin, arguments=BY_MEMORY, **cluster) as session:
        assert not refused(session, "p")


def test_a_gang_that_does_not_start_keeps_its_cards_for_the_session() -> None:
    """As upstream: the cards of discarded placements are not released by memory sharing."""
    pods = [gpus("a-0", "a", memory=8000), gpus("a-1", "a", memory=8000), gpus("a-2", "a", memory=8000)]
    later = make_group("b", created=datetime(2025, 1, 1, tzinfo=UTC), phase="Inqueue")
    nodes = [gpu_node(cards=2, memory=8000)]
    outcome = run(
        BY_MEMORY, nodes, [*pods, gpus("b-0", "b", memory=100)], make_group("a", min_member=3, phase="Inqueue"), later
    )
    assert not outcome.binds
    assert not outcome.annotations
    assert outcome.messages["default/b-0"].message == (
        "0/1 nodes are unavailable: 1 GpuShare no enough gpu memory on node n."
    )


# vGPUs


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        pytest.param("", "n-2,NVIDIA,1000,0:", id="the-last-first"),
        pytest.param("binpack", "n-1,NVIDIA,1000,0:", id="the-fullest"),
        pytest.param("spread", "n-0,NVIDIA,1000,0:", id="the-least-shared"),
    ],
)
def test_which_card_a_pod_gets(policy: str, expected: str) -> None:
    here = [
        vgpus("x", "", node="n", has="n-1,NVIDIA,3000,10:", memory=3000),
        vgpus("y", "", node="n", has="n-2,NVIDIA,2000,10:", memory=2000),
    ]
    arguments = {**VGPU, "deviceshare.SchedulePolicy": policy}
    outcome = run(arguments, [vgpu_node(cards=3)], [*here, vgpus("p", memory=1000)])
    assert outcome.annotations["default/p"] == {
        "volcano.sh/vgpu-node": "n",
        "volcano.sh/vgpu-time": "1717243200",
        IDS: expected,
        "volcano.sh/devices-to-allocate": expected,
        "volcano.sh/bind-phase": "allocating",
        "volcano.sh/bind-time": "1717243200",
    }


@pytest.mark.parametrize(
    ("here", "pod", "fits"),
    [
        pytest.param("n-0,NVIDIA,5000,0:", vgpus("p", memory=4000), False, id="memory"),
        pytest.param("n-0,NVIDIA,4000,0:", vgpus("p", memory=4000), True, id="just-enough"),
        pytest.param("n-0,NVIDIA,1,0:", vgpus("p"), False, id="no-memory-requests-the-whole-card"),
        pytest.param("n-0,NVIDIA,1,60:", vgpus("p", memory=1, cores=50), False, id="cores"),
        pytest.param("n-0,NVIDIA,1,0:", vgpus("p", memory=1, cores=100), False, id="all-cores-need-an-unused-card"),
        pytest.param("n-0,NVIDIA,1,100:", vgpus("p", memory=1), False, id="no-cores-left"),
        pytest.param("n-0,NVIDIA,1,0:", vgpus("p", memory=1, number=2), False, id="more-cards-than-there-are"),
        pytest.param(
            "n-0,NVIDIA,1,0:", vgpus("p", memory=1, annotations={"nvidia.com/use-gputype": "A100"}), False, id="type"
        ),
        pytest.param(
            "", vgpus("p", memory=1, annotations={"nvidia.com/use-gputype": "a100,t4"}), True, id="one-of-the-types"
        ),
        pytest.param(
            "", vgpus("p", memory=1, annotations={"nvidia.com/nouse-gputype": "t4"}), False, id="not-this-type"
        ),
        pytest.param("", vgpus("p", memory=1, annotations={"volcano.sh/vgpu-mode": "mig"}), False, id="mode"),
        pytest.param("elsewhere,NVIDIA,8000,0:", vgpus("p"), True, id="an-unknown-card"),
        pytest.param("n-0,NVIDIA:", vgpus("p"), True, id="invalid-annotation"),
    ],
)
def test_vgpu_predicate(here: str, pod: Pod, fits: bool) -> None:
    pods = [pod, vgpus("here", "", node="n", has=here, memory=1)]
    cluster = {"nodes": [vgpu_node(cards=1)], "pods": pods, "objects": [make_group()]}
    with open_session(DeviceSharePlugin, arguments=VGPU, **cluster) as session:
        (task,) = tasks_of(session, "p")
        refused = [status.message for status in session.predicate(task, session.nodes.at_row(0))]
        assert refused == ([] if fits else ["hami-vgpuDeviceSharing error"])


def test_a_card_is_shared_by_at_most_its_split_count() -> None:
    outcome = run(VGPU, [vgpu_node(cards=1, split=2)], [vgpus(f"p{i}", memory=10) for i in range(3)])
    assert len(outcome.binds) == 2


def test_containers_get_their_cards_one_after_another() -> None:
    pod = with_limits(make_member("p"), part(5000), {}, part(4000, 20, number=2))
    outcome = run(VGPU, [vgpu_node(cards=3)], [pod])
    assert cards_of(outcome, IDS) == {"p": "n-2,NVIDIA,5000,0:;n-1,NVIDIA,4000,20:n-0,NVIDIA,4000,20:"}


def test_spread_policy_of_a_pod_group() -> None:
    apart = {"volcano.sh/vgpu-podgroup-policy": "spread"}
    pods = [vgpus(f"p{number}", memory=10, annotations=apart) for number in range(3)]
    outcome = run(VGPU, [vgpu_node(cards=2)], pods)
    assert cards_of(outcome, IDS) == {"p0": "n-1,NVIDIA,10,0:", "p1": "n-0,NVIDIA,10,0:"}


def test_discarded_placements_release_their_cards() -> None:
    pods = [vgpus("a", memory=8000), vgpus("b", memory=8000), vgpus("c", memory=8000)]
    later = make_group("late", created=datetime(2025, 1, 1, tzinfo=UTC), phase="Inqueue")
    groups = (make_group(min_member=3, phase="Inqueue"), later)
    outcome = run(VGPU, [vgpu_node(cards=2)], [*pods, vgpus("d", "late", memory=8000)], *groups)
    assert cards_of(outcome, IDS) == {"d": "n-1,NVIDIA,8000,0:"}


def test_queue_usage_counts_the_annotations_of_running_pods() -> None:
    running = vgpus("r", node="n", has="n-0,NVIDIA,4000,30:n-1,NVIDIA,4000,30:", memory=4000, cores=30, number=2)
    outcome = run(VGPU, [vgpu_node()], [running, vgpus("p", memory=1000)], make_group(phase="Running"))
    held = {name: str(amount) for name, amount in outcome.queues["q"].items() if "vgpu" in name}
    assert held == {
        "volcano.sh/vgpu-number": "3",
        "volcano.sh/vgpu-memory": "9k",  # twice 4000, plus the request of the new pod
        "volcano.sh/vgpu-cores": "60",
    }


@pytest.mark.parametrize(("policy", "scores"), [("binpack", [500.0, 130.0]), ("spread", [0.0, 0.0]), ("", [0.0, 0.0])])
def test_scores(policy: str, scores: list[float]) -> None:
    arguments = {**VGPU, "deviceshare.SchedulePolicy": policy, "deviceshare.ScheduleWeight": 10}
    nodes = [vgpu_node("a", cards=1, memory=8000), vgpu_node("b", cards=1, memory=16000)]
    pods = [vgpus("p", memory=2000), vgpus("here", "", node="a", has="a-0,NVIDIA,2000,0:", memory=2000)]
    with open_session(
        DeviceSharePlugin, arguments=arguments, nodes=nodes, pods=pods, objects=[make_group()]
    ) as session:
        (task,) = tasks_of(session, "p")
        found = session.scores(task, np.ones(2, dtype=np.bool_))
        assert found is not None
        assert found.tolist() == scores  # rounded before the weight is applied


# Eviction and binding


def victim_cluster(**pod: Any) -> dict[str, Any]:
    pods = [vgpus("p", memory=8000), vgpus("old", node="n", has="n-0,NVIDIA,8000,0:", memory=8000, **pod)]
    return {"nodes": [vgpu_node(cards=1)], "pods": pods, "objects": [make_group()]}


def refused(session: Session, name: str) -> bool:
    (task,) = tasks_of(session, name)
    return bool(session.predicate(task, session.nodes.at_row(0)))


def test_an_eviction_frees_the_cards_and_its_undoing_takes_them_back() -> None:
    with open_session(DeviceSharePlugin, arguments=VGPU, **victim_cluster()) as session:
        (old,) = tasks_of(session, "old")
        assert refused(session, "p")
        statement = session.statement()
        statement.evict(old, "test")
        assert not refused(session, "p")
        statement.discard()
        assert refused(session, "p")


def test_a_simulation_without_the_victim() -> None:
    with open_session(DeviceSharePlugin, arguments=VGPU, **victim_cluster()) as session:
        task, old = tasks_of(session, "p", "old")
        (pool,) = session.device_pools
        trial = Simulation(task, session.nodes.at_row(0))
        assert pool.simulate(trial) is not None
        trial.remove(old)
        assert pool.simulate(trial) is None
        trial.add(old)
        assert pool.simulate(trial) is not None
        assert refused(session, "p")  # simulations do not change the cards


def engine_with(pods: list[Pod], arguments: Mapping[str, Any] = VGPU) -> BatchEngine:
    objects = [make_group(phase="Inqueue")]
    return build_engine(conf=configuration(arguments), nodes=[vgpu_node(cards=1)], pods=pods, objects=objects)


def test_cards_of_a_pod_that_is_being_bound_stay_assigned() -> None:
    """The annotations arrive only with the next version of the pod."""
    engine = engine_with([vgpus("p", memory=8000)])
    assert engine.run_session().binds == {"default/p": "n"}
    engine.handle_update(with_limits(make_member("late"), part(0)))
    with engine.session() as session:
        (late,) = tasks_of(session, "late")
        assert [status.message for status in session.predicate(late, session.nodes.at_row(0))] == [
            "hami-vgpuDeviceSharing error"
        ]


# Exclusive rules


def rules_cluster(*pods: Pod) -> dict[str, Any]:
    arguments = {
        **VGPU,
        "deviceshare.GPUExclusiveRules": [{"app": "a"}, {"app": "b", "n": 1}, "invalid-annotation", {}],
    }
    return {"arguments": arguments, "nodes": [vgpu_node(cards=2)], "pods": pods, "objects": [make_group()]}


def exclusive(name: str, app: str = "a", **pod: Any) -> Pod:
    return vgpus(name, memory=10, labels={"app": app}, **pod)


def test_pods_under_one_rule_do_not_share_a_card() -> None:
    pods = [
        exclusive("p"),
        exclusive("q"),
        exclusive("r"),
        exclusive("s", "c"),
        exclusive("here", node="n", has="n-1,NVIDIA,10,0:"),
    ]
    with open_session(DeviceSharePlugin, **rules_cluster(*pods)) as session:
        (pool,) = session.device_pools
        p, q, s = tasks_of(session, "p", "q", "s")
        node = session.nodes.at_row(0)
        assert pool.allocate(p, node) is None
        assert session.annotations["default/p"][IDS] == "n-0,NVIDIA,10,0:"
        assert refused(session, "q")
        assert pool.allocate(q, node) is not None
        assert pool.allocate(s, node) is None  # a pod without a matching rule shares with all pods
        assert pool.release(p, node)
        assert not refused(session, "q")


def test_a_terminating_pod_still_blocks_its_card_for_its_rule() -> None:
    here = exclusive("here", node="n", has="n-1,NVIDIA,10,0:")
    going = replace(here, metadata=replace(here.metadata, deletion_timestamp=datetime(2024, 1, 1, tzinfo=UTC)))
    with open_session(DeviceSharePlugin, **rules_cluster(exclusive("p"), exclusive("q"), going)) as session:
        (pool,) = session.device_pools
        assert pool.allocate(tasks_of(session, "p")[0], session.nodes.at_row(0)) is None
        assert session.annotations["default/p"][IDS] == "n-0,NVIDIA,10,0:"
        assert refused(session, "q")


def test_non_text_labels_of_a_rule_are_ignored() -> None:
    with open_session(
        DeviceSharePlugin, **rules_cluster(exclusive("p", "b"), exclusive("q", "b"), exclusive("r", "b"))
    ) as session:
        (pool,) = session.device_pools
        node = session.nodes.at_row(0)
        assert [pool.allocate(task, node) for task in tasks_of(session, "p", "q")] == [None, None]
        assert refused(session, "r")


# Modes


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        pytest.param({**BY_MEMORY, **BY_NUMBER}, "can not define true in both gpu sharing and gpu number", id="both"),
        pytest.param({**BY_NUMBER, **VGPU}, "gpu-share and vgpu can't be used together", id="parts-too"),
    ],
)
def test_modes_that_exclude_each_other(arguments: dict[str, Any], sentence: str) -> None:
    engine = engine_with([vgpus("p", memory=1)], arguments)
    outcome = engine.run_session()
    assert any(sentence in fault for fault in outcome.faults)
    assert outcome.binds  # the session continues without the plugin


def test_modes_are_off_by_default_and_a_removed_mode_keeps_its_last_value() -> None:
    engine = engine_with([vgpus("p", memory=1)], {})
    with engine.session() as session:
        assert session.device_pools == []
    engine = engine_with([vgpus("p", memory=1)])
    bare = engine_with([], {}).configuration
    for expected in (1, 1):
        with engine.session() as session:
            assert len(session.device_pools) == expected
        engine.configuration = bare


def test_unsupported_arguments_are_reported() -> None:
    outcome = engine_with([], {"deviceshare.NodeLockEnable": True}).run_session()
    assert outcome.faults == ["deviceshare: deviceshare.NodeLockEnable is not supported and has no effect"]


# Formats


@pytest.mark.parametrize(
    ("text", "cards"),
    [
        pytest.param("a,2,100,NVIDIA,true,mig:", [("a", 2, 100)], id="one"),
        pytest.param("a,x,100,NVIDIA,false,hami-core,more:b,1,2,T,t,m", [("a", 0, 100), ("b", 1, 2)], id="lenient"),
        pytest.param("a,2,100,NVIDIA,true,mig", [], id="no-colon"),
        pytest.param("a,2,100,NVIDIA,true,mig:b,2,100", [], id="too-few-fields-spoil-all"),
        pytest.param("", [], id="nothing"),
    ],
)
def test_registered_cards(text: str, cards: list[tuple[str, int, int]]) -> None:
    node = vgpu_node()
    node = annotated(node, node_vgpu_register=text)
    assert [(card.uuid, card.max_pods, card.memory) for card in read_registered_cards(node)] == cards


@pytest.mark.parametrize("missing", ["volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores"])
def test_cards_need_all_vgpu_resources_on_the_node(missing: str) -> None:
    node = vgpu_node()
    offered = {**node.status.allocatable, missing: "0"}
    assert read_registered_cards(replace(node, status=replace(node.status, allocatable=offered))) == []


def test_assigned_vgpus_round_trip() -> None:
    parts = [[ContainerVgpu("a", 1, 2), ContainerVgpu("b", 3, 4)], [], [ContainerVgpu("c", 5, 6)]]
    text = format_assigned_vgpus(parts)
    assert text == "a,NVIDIA,1,2:b,NVIDIA,3,4:;;c,NVIDIA,5,6:"
    assert list(parse_assigned_vgpus(text)) == [each for container in parts for each in container]
    assert parse_assigned_vgpus("") == ()


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param(part(100, 10, 3), ContainerVgpuRequest(3, 100, 10), id="plain"),
        pytest.param({"volcano.sh/vgpu-memory": "100"}, ContainerVgpuRequest(1, 100, 0), id="memory-means-one-card"),
        pytest.param({"volcano.sh/vgpu-cores": "100"}, None, id="cores-alone-mean-nothing"),
        pytest.param({**part(), "volcano.sh/vgpu-memory": "4Gi"}, ContainerVgpuRequest(1, 0, 0), id="32-bits"),
        pytest.param({**part(), "volcano.sh/vgpu-memory": "500m"}, ContainerVgpuRequest(1, 0, 0), id="no-whole-number"),
    ],
)
def test_vgpu_requests(limits: ResourceList, expected: ContainerVgpuRequest | None) -> None:
    found = vgpu_request(with_limits(make_member("p"), limits), ())
    assert (None if found is None else found.containers[0]) == expected


def test_cards_are_copied_with_their_users() -> None:
    card = GpuCard("a", 2, 100, "NVIDIA")
    twin = card.copy()
    twin.add(10, 5)
    twin.pods["x"] = PodGpuUsage(10, 5, "")
    assert (card.users, card.used_memory, card.used_cores, card.pods) == (0, 0, 0, {})
