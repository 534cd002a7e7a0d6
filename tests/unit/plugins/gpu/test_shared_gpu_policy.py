"""Policies for shared GPUs: filter, published scores, and assigned devices."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.errors import ConfigError, Conflict
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.plugin import MAX_SCORE, PreBindPreFlightResult
from bayplan.framework.api.status import Code, Status
from bayplan.intents.pod_intents import AnnotatePod
from bayplan.objects.core import Node, Pod
from bayplan.plugins.gpu import gpu_policies
from bayplan.plugins.gpu.best_fit_policy import GpuBestFit
from bayplan.plugins.gpu.clustering_policy import GpuClustering
from bayplan.plugins.gpu.dot_product_policy import GpuDotProduct
from bayplan.plugins.gpu.fragmentation_args import GpuFragmentationArgs, TypicalPod
from bayplan.plugins.gpu.fragmentation_policy import GpuFragmentation
from bayplan.plugins.gpu.gpu_columns import tightest_devices
from bayplan.plugins.gpu.gpu_requests import (
    GPU_COUNT,
    GPU_INDEX,
    GPU_MILLI,
    GPU_MODEL,
    GpuMilliRequest,
    InvalidGpuRequest,
    assigned_devices,
    gpu_request,
    request_annotations,
)
from bayplan.plugins.gpu.packing_policy import GpuPacking
from bayplan.plugins.gpu.random_policy import GpuRandom
from bayplan.plugins.gpu.typical_pods import GpuPodShape, TypicalPods
from bayplan.sim.virtual_time.policies import pod_shape
from bayplan.snapshot import Snapshot
from naive import shared_gpus as naive
from support.builders.framework import (
    FEASIBLE,
    FakeHandle,
    RecordedWrites,
    make_cycle,
    make_node,
    make_plugin,
    make_pod,
    make_snapshot,
    rejected,
    run_filter,
    unresolvable,
)
from support.builders.openb_workloads import load_openb_workload
from support.harness.async_tests import async_test


def gpu_node(name: str, devices: int, cpu: int = 96_000, model: str = "") -> Node:
    allocatable = {"cpu": f"{cpu}m", "memory": "1Ti", "pods": 1000, GPU_COUNT: devices}
    return make_node(name, labels={GPU_MODEL: model} if model else {}, allocatable=allocatable)


def gpu_pod(milli: int, count: int = 1, *, cpu: int = 0, models: str = "", devices: str = "", **fields: object) -> Pod:
    annotations = request_annotations(GpuMilliRequest(milli, count, models)) | ({GPU_INDEX: devices} if devices else {})
    return make_pod(annotations=annotations, cpu=f"{cpu}m", **fields)


def holding(node: str, left: Sequence[int]) -> list[Pod]:
    """Return pods that leave these amounts of each device of a node. A fully used device belongs to one pod."""
    return [
        gpu_pod(1000 - amount, devices=str(number), node=node, name=f"{node}-{number}")
        for number, amount in enumerate(left)
        if amount < 1000
    ]


def args_for(typical: TypicalPods) -> GpuFragmentationArgs:
    return GpuFragmentationArgs(
        typical_pods=tuple(
            TypicalPod(
                cpu_milli=shape.cpu_milli,
                gpu_milli=shape.gpu_milli,
                gpu_count=shape.gpu_count,
                gpu_models=shape.models,
                pods=count,
            )
            for shape, count in typical.counts
        )
    )


USUAL = TypicalPods(((GpuPodShape(4000, 500, 1), 6), (GpuPodShape(8000, 1000, 1), 3), (GpuPodShape(2000, 0, 0), 1)))


def policy(kind: type, typical: TypicalPods = USUAL, handle: FakeHandle | None = None) -> object:
    return make_plugin(kind, args=args_for(typical) if kind is GpuFragmentation else None, handle=handle)


# requests


@pytest.mark.parametrize(
    ("annotations", "ask"),
    [
        ({}, GpuMilliRequest()),
        ({GPU_MILLI: "460"}, GpuMilliRequest(460, 1)),
        ({GPU_COUNT: "2"}, GpuMilliRequest(1000, 2)),
        ({GPU_MILLI: "1000", GPU_COUNT: "4", GPU_MODEL: "T4|P100"}, GpuMilliRequest(1000, 4, "T4|P100")),
        ({GPU_MILLI: "0", GPU_COUNT: "0"}, GpuMilliRequest()),
    ],
)
def test_requests_of_pods(annotations: dict[str, str], ask: GpuMilliRequest) -> None:
    assert gpu_request(make_pod(annotations=annotations)) == ask


@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        ({GPU_MILLI: "half"}, "must be a whole number; got 'half'"),
        ({GPU_MILLI: "-1"}, "must be a whole number"),
        ({GPU_MILLI: "1001"}, "from 0 to 1000; got 1001"),
        ({GPU_MILLI: "500", GPU_COUNT: "2"}, "must be 1000; got 500"),
    ],
)
@pytest.mark.parametrize("kind", gpu_policies())
def test_an_invalid_request_is_rejected_at_prefilter(kind: type, annotations: dict[str, str], text: str) -> None:
    pod = make_pod(annotations=annotations)
    with pytest.raises(InvalidGpuRequest, match=text):
        gpu_request(pod)
    plugin = policy(kind)
    answer = plugin.pre_filter(make_cycle(pod))  # type: ignore[attr-defined]
    assert answer.code is Code.UNRESOLVABLE
    assert text in answer.message
    assert plugin.signature(pod) is None  # type: ignore[attr-defined]


# filter


@pytest.mark.parametrize("kind", gpu_policies())
@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(gpu_pod(300), (FEASIBLE, FEASIBLE, unresolvable("node(s) had fewer GPUs")), id="a part"),
        pytest.param(
            gpu_pod(600),
            (rejected("node(s) had no GPU with enough left"), FEASIBLE, unresolvable("node(s) had fewer GPUs")),
            id="a larger part",
        ),
        pytest.param(
            gpu_pod(1000, 2),
            (rejected("node(s) had too few free GPUs"), FEASIBLE, unresolvable("node(s) had fewer GPUs")),
            id="two whole ones",
        ),
        pytest.param(gpu_pod(0, 0), (FEASIBLE, FEASIBLE, FEASIBLE), id="none at all"),
        pytest.param(
            gpu_pod(300, models="V100|T4"),
            (
                FEASIBLE,
                unresolvable("node(s) had GPUs of other models"),
                unresolvable("node(s) had GPUs of other models", "node(s) had fewer GPUs"),
            ),
            id="of some models",
        ),
    ],
)
def test_nodes_with_room(kind: type, pod: Pod, expected: tuple[object, ...]) -> None:
    nodes = [gpu_node("used", 2, model="T4"), gpu_node("free", 8, model="P100"), gpu_node("none", 0)]
    found = run_filter(policy(kind), pod, *nodes, pods=holding("used", [0, 500]))
    assert tuple(found.values()) == expected


# scores

NODES = {"A": (96_000, [1000] * 8), "B": (40_000, [0, 300, 540, 1000, 1000, 1000, 0, 0]), "D": (60_000, [460, 1000])}

PUBLISHED = {
    (6000, 460, 1): {"A": "95 25 25 17 42", "B": "97 63 95 65 58", "D": "98 95 96 72 60"},
    (12_000, 1000, 1): {"A": "90 25 25 23 53", "B": "95 63 49 71 53", "D": "96 20 49 78 53"},
    (16_000, 1000, 2): {"A": "82 25 25 31 56", "B": "92 13 48 79 56"},
    (8000, 0, 0): {"A": "97 0 0 15 50", "B": "99 0 0 63 50", "D": "98 0 0 70 50"},
}
"""By CPU, share and number of devices: the score of each node by DotProd, GpuClustering, GpuPacking, BestFit, FGD."""

GAINS = {
    (6000, 460, 1): {"A": (-304.172, 0), "B": (360.149, 2), "D": (419.248, 0)},
    (12_000, 1000, 1): {"A": (135.977, 0), "B": (135.977, 3), "D": (135.977, 1)},
    (16_000, 1000, 2): {"A": (271.955, 0), "B": (261.138, 3)},
    (8000, 0, 0): {"A": (0.0, None), "B": (0.0, None), "D": (0.0, None)},
}


def published_nodes() -> Snapshot:
    nodes = [gpu_node(name, len(left), cpu) for name, (cpu, left) in NODES.items()]
    return make_snapshot(nodes, [pod for name, (_, left) in NODES.items() for pod in holding(name, left)])


def default_typical() -> TypicalPods:
    return TypicalPods.of(map(pod_shape, load_openb_workload("default").pods))


def test_the_most_typical_pods_of_the_default_workload() -> None:
    typical = default_typical()
    shape, count = typical.counts[0]
    assert (shape, round(count / typical.covered, 6)) == (GpuPodShape(3152, 810, 1), 0.134818)
    without = sum(count for shape, count in typical.counts if not shape.gpu_count)
    assert round(without / typical.covered, 6) == 0.135977


@pytest.mark.parametrize(("cpu", "devices", "fragment"), [(96, 8, 1087.819), (16, 2, 359.258), (8, 1, 605.202)])
def test_fragments_of_free_nodes(cpu: int, devices: int, fragment: float) -> None:
    plugin = policy(GpuFragmentation, default_typical())
    plugin.gpus.follow(make_snapshot([gpu_node("free", devices, cpu * 1000)]))  # type: ignore[attr-defined]
    assert round(plugin.gpus.fragment(0), 3) == fragment  # type: ignore[attr-defined]


def test_fragments_of_the_published_nodes() -> None:
    plugin = policy(GpuFragmentation, default_typical())
    plugin.gpus.follow(published_nodes())  # type: ignore[attr-defined]
    assert [round(plugin.gpus.fragment(row), 3) for row in range(3)] == [1087.819, 1139.621, 555.225]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kind", "place"), [(GpuDotProduct, 0), (GpuClustering, 1), (GpuPacking, 2), (GpuBestFit, 3), (GpuFragmentation, 4)]
)
@pytest.mark.parametrize("requested", list(PUBLISHED))
def test_scores_are_the_published_ones(kind: type, place: int, requested: tuple[int, int, int]) -> None:
    cpu, milli, count = requested
    snapshot = published_nodes()
    plugin = policy(kind, default_typical())
    cycle = make_cycle(gpu_pod(milli, count, cpu=cpu), snapshot)
    found = dict(zip(NODES, plugin.score_nodes(cycle, snapshot.table).tolist(), strict=True))  # type: ignore[attr-defined]
    expected = {name: int(scores.split()[place]) for name, scores in PUBLISHED[requested].items()}
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("requested", list(GAINS))
def test_gains_and_devices_are_the_published_ones(requested: tuple[int, int, int]) -> None:
    cpu, milli, count = requested
    snapshot, typical = published_nodes(), default_typical()
    for row, (name, (gain, device)) in enumerate(GAINS[requested].items()):
        plugin = policy(GpuFragmentation, typical)
        cycle = make_cycle(gpu_pod(milli, count, cpu=cpu), snapshot)
        left = np.array([NODES[name][0] - cpu])
        plugin.gpus.follow(snapshot)  # type: ignore[attr-defined]
        gains = plugin.gpus.gains(np.array([row]), left, GpuMilliRequest(milli, count)).max()  # type: ignore[attr-defined]
        assert round(gains / typical.covered, 3) == gain
        assert plugin.reserve(cycle, name) is None  # type: ignore[attr-defined]
        assert next(iter(cycle.info.cached(assigned_devices)), None) == device


AMOUNTS = st.sampled_from([0, 100, 250, 300, 460, 500, 700, 810, 1000])
MODELS = st.sampled_from(["", "T4", "P100", "T4|P100", "V100"])
ASKS = st.one_of(
    st.builds(GpuMilliRequest, st.sampled_from([100, 250, 460, 500, 810]), st.just(1), MODELS),
    st.builds(GpuMilliRequest, st.just(1000), st.integers(1, 4), MODELS),
    st.just(GpuMilliRequest()),
)
SHAPES = st.builds(
    lambda cpu, ask: GpuPodShape(cpu, ask.milli, ask.count, ask.models),
    st.integers(0, 16).map(lambda each: each * 1000),
    ASKS,
)


@given(
    states=st.lists(
        st.builds(
            naive.State,
            st.integers(0, 20_000),
            st.lists(AMOUNTS, min_size=1, max_size=4),
            st.sampled_from(["", "T4", "P100"]),
        ),
        min_size=1,
        max_size=5,
    ),
    typical=st.lists(st.tuples(SHAPES, st.integers(1, 50)), min_size=1, max_size=8, unique_by=lambda each: each[0]),
    ask=ASKS,
    cpu=st.integers(0, 8000),
)
@settings(max_examples=60, deadline=None)
def test_whole_columns_agree_with_one_node_at_a_time(
    states: list[naive.State], typical: list[tuple[GpuPodShape, int]], ask: GpuMilliRequest, cpu: int
) -> None:
    names = [f"n{number}" for number in range(len(states))]
    nodes = [gpu_node(name, len(each.left), each.cpu, each.model) for name, each in zip(names, states, strict=True)]
    pods = [pod for name, each in zip(names, states, strict=True) for pod in holding(name, each.left)]
    snapshot = make_snapshot(nodes, pods)
    plugin = policy(GpuFragmentation, TypicalPods(tuple(typical)))
    scores = plugin.score_nodes(make_cycle(gpu_pod(ask.milli, ask.count, cpu=cpu), snapshot), snapshot.table)  # type: ignore[attr-defined]
    for row, each in enumerate(states):
        assert plugin.gpus.fragment(row) == pytest.approx(naive.fragment(each, typical))  # type: ignore[attr-defined]
        if each.cpu >= cpu and (not ask.count or tightest_devices(each.left, ask) != ()):
            score, device, gain = naive.fgd(each, cpu, ask, typical)
            exact = abs(100 / (1 + np.exp(-gain / 1000)) - round(100 / (1 + np.exp(-gain / 1000)))) > 1e-6
            if exact or gain == 0:
                assert scores[row] == score
            if ask.shares and exact:
                cycle = make_cycle(gpu_pod(ask.milli, ask.count, cpu=cpu), snapshot)
                assert plugin.devices_for(cycle, ask, row) == (device,)  # type: ignore[attr-defined]


def test_scores_stay_scores_on_nodes_larger_than_any_that_was_published() -> None:
    snapshot = make_snapshot([gpu_node("huge", 64, 2_000_000)])
    pod = gpu_pod(1000, 32, cpu=900_000)
    for kind in gpu_policies():
        (score,) = policy(kind).score_nodes(make_cycle(pod, snapshot), snapshot.table)  # type: ignore[attr-defined]
        assert 0 <= score <= MAX_SCORE


# devices


@pytest.mark.parametrize(
    ("left", "ask", "devices"),
    [
        ([1000, 500, 460, 460], GpuMilliRequest(460, 1), (2,)),
        ([1000, 300], GpuMilliRequest(460, 1), (0,)),
        ([400, 300], GpuMilliRequest(460, 1), ()),
        ([0, 1000, 500, 1000, 1000], GpuMilliRequest(1000, 2), (1, 3)),
        ([0, 1000], GpuMilliRequest(1000, 2), ()),
    ],
)
def test_the_tightest_device(left: list[int], ask: GpuMilliRequest, devices: tuple[int, ...]) -> None:
    assert tightest_devices(left, ask) == devices


def reserved(plugin: object, cycle: Cycle, node: str) -> Status | None:
    answer: Status | None = plugin.reserve(cycle, node)  # type: ignore[attr-defined]
    return answer


@pytest.mark.parametrize("kind", gpu_policies())
def test_the_pod_stores_its_devices_until_unreserve(kind: type) -> None:
    snapshot = make_snapshot([gpu_node("a", 4)], holding("a", [1000, 0, 1000, 1000]))
    plugin = policy(kind)
    cycle = make_cycle(gpu_pod(1000, 2), snapshot)
    bound = cycle.info.bound_to("a")
    assert reserved(plugin, cycle, "a") is None
    assert bound.cached(assigned_devices) == (0, 2)
    plugin.unreserve(cycle, "a")  # type: ignore[attr-defined]
    assert bound.cached(assigned_devices) == ()


def test_a_node_that_filled_up_meanwhile_is_rejected_at_reserve() -> None:
    snapshot = make_snapshot([gpu_node("a", 1)], holding("a", [200]))
    for pod, reason in (
        (gpu_pod(500), "node(s) had no GPU with enough left"),
        (gpu_pod(1000), "node(s) had too few free GPUs"),
    ):
        answer = reserved(policy(GpuBestFit), make_cycle(pod, snapshot), "a")
        assert answer == Status(Code.UNSCHEDULABLE, (reason,))


def test_random_takes_any_device_that_has_room() -> None:
    snapshot = make_snapshot([gpu_node("a", 4)], holding("a", [1000, 200, 1000, 600]))
    handle = FakeHandle()
    handle.random = random.Random(1)
    plugin = policy(GpuRandom, handle=handle)
    seen = set()
    for _ in range(60):
        cycle = make_cycle(gpu_pod(500), snapshot)
        assert reserved(plugin, cycle, "a") is None
        seen.add(cycle.info.cached(assigned_devices))
    assert seen == {(0,), (2,), (3,)}


def test_pods_of_another_scheduler_hold_their_requests() -> None:
    strangers = [gpu_pod(700, node="a", name="share"), gpu_pod(1000, node="a", name="whole")]
    plugin = policy(GpuBestFit)
    plugin.gpus.follow(make_snapshot([gpu_node("a", 3)], strangers))  # type: ignore[attr-defined]
    assert sorted(plugin.gpus.free_of_row(0)) == [0, 300, 1000]  # type: ignore[attr-defined]


@async_test
async def test_devices_are_written_before_the_binding() -> None:
    snapshot, handle = make_snapshot([gpu_node("a", 4)]), FakeHandle()
    writes = handle.writes
    assert isinstance(writes, RecordedWrites)
    plugin = policy(GpuBestFit, handle=handle)
    cycle = make_cycle(gpu_pod(1000, 2), snapshot)
    assert reserved(plugin, cycle, "a") is None
    assert plugin.pre_bind_preflight(cycle, "a") == PreBindPreFlightResult()  # type: ignore[attr-defined]
    assert await plugin.pre_bind(cycle, "a") is None  # type: ignore[attr-defined]
    assert writes.performed == [AnnotatePod(cycle.pod, {GPU_INDEX: "0-1"})]
    writes.failure = Conflict("it has changed", code=409)
    refused = await plugin.pre_bind(cycle, "a")  # type: ignore[attr-defined]
    assert refused.code is Code.ERROR
    assert "cannot write alibabacloud.com/gpu-index: it has changed" in refused.message


def test_pods_without_gpus_have_nothing_to_write() -> None:
    plugin = policy(GpuBestFit)
    cycle = make_cycle(make_pod(), make_snapshot([gpu_node("a", 4)]))
    assert plugin.pre_filter(cycle).code is Code.SKIP  # type: ignore[attr-defined]
    assert plugin.pre_bind_preflight(cycle, "a").code is Code.SKIP  # type: ignore[attr-defined]
    assert reserved(plugin, cycle, "a") is None


# arguments


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (GpuFragmentationArgs(), "typicalPods: Required value: list at least one typical pod"),
        (GpuFragmentationArgs((TypicalPod(cpu_milli=-1),)), "typicalPods[0].cpuMilli: Invalid value: -1"),
        (
            GpuFragmentationArgs((TypicalPod(gpu_milli=1001),)),
            "gpuMilli: Invalid value: 1001: must be between 0 and 1000",
        ),
        (GpuFragmentationArgs((TypicalPod(gpu_count=-2),)), "gpuCount: Invalid value: -2: must be 0 or more"),
        (GpuFragmentationArgs((TypicalPod(gpu_milli=500, gpu_count=2),)), "must be 1000 where gpuCount is above 1"),
        (GpuFragmentationArgs((TypicalPod(pods=0),)), "pods: Invalid value: 0: must be 1 or more"),
    ],
)
def test_invalid_arguments(args: GpuFragmentationArgs, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_plugin(GpuFragmentation, args=args)
    assert text in str(caught.value)
