"""VolumeBinding: filter, assumptions, writes and waits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from bayplan.app import configured, filled_cache, known_plugins
from bayplan.clock import ManualClock
from bayplan.errors import BayplanError
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.plugin import PreBindPreFlightResult
from bayplan.framework.api.status import SKIP, Code, Status
from bayplan.objects.core import Pod
from bayplan.objects.meta import LabelSelector, LabelSelectorRequirement
from bayplan.objects.volumes import AwsElasticBlockStore, AzureDisk, InlineCsiVolume, Volume
from bayplan.plugins.volume_binding.plugin import STATE, UNBOUND_IMMEDIATE, VolumeBinding
from bayplan.scheduler.engine import PodEngine
from bayplan.volumes.assumptions import VolumeBindingStage
from bayplan.volumes.binding import AFFINITY_CONFLICT, BIND_CONFLICT, NOT_ENOUGH_SPACE, VOLUME_MISSING
from bayplan.volumes.claims import SELECTED_NODE
from bayplan.volumes.volume_intents import SetSelectedNode, SetVolumeClaimRef, WaitForVolumes
from support.builders.framework import (
    FEASIBLE,
    FakeHandle,
    errored,
    evaluate_hints,
    filter_result,
    make_cycle,
    make_filtering,
    make_node,
    make_plugin,
    make_snapshot,
    run_filter,
    run_score,
    unresolvable,
)
from support.builders.volumes import (
    HOST,
    ZONE,
    at_version,
    claim_volume,
    ephemeral,
    make_claim,
    make_class,
    make_csi_node,
    make_driver,
    make_storage_capacity,
    make_volume,
    volume_pod,
)

POD = volume_pod(claim_volume("claim"))
N1 = make_node("n1", labels={HOST: "n1", ZONE: "a"})
N2 = make_node("n2", labels={HOST: "n2", ZONE: "b"})
N3 = make_node("n3")
STATIC = make_class(provisioner="kubernetes.io/no-provisioner")
BOUND = make_claim(volume="pv")


def ask(pod: Pod, *objects: Any) -> list[Any]:
    return list(run_filter(VolumeBinding, pod, N1, N2, N3, objects=objects).values())


# PreFilter


@pytest.mark.parametrize(
    ("pod", "objects", "expected"),
    [
        pytest.param(volume_pod(Volume(name="token")), [], ("Skip", ()), id="no claims"),
        pytest.param(POD, [], unresolvable('persistentvolumeclaim "claim" not found'), id="missing"),
        pytest.param(
            POD, [make_claim(), make_class(mode="Immediate")], unresolvable(UNBOUND_IMMEDIATE), id="immediate"
        ),
        pytest.param(
            POD,
            [make_claim(), make_class(mode=None)],
            errored('VolumeBindingMode not set for StorageClass "slow"'),
            id="no mode",
        ),
        pytest.param(POD, [make_claim(), make_class()], None, id="waits"),
        pytest.param(POD, [BOUND], None, id="bound"),
    ],
)
def test_pre_filter(pod: Pod, objects: list[Any], expected: Any) -> None:
    snapshot = make_snapshot([N1], objects=objects)
    plugin = make_plugin(VolumeBinding, handle=FakeHandle(snapshot.catalog))
    status = plugin.pre_filter(make_cycle(pod, snapshot))
    assert (None if status is None else filter_result(status)) == expected


# Filter


@pytest.mark.parametrize(
    ("objects", "n1", "n2", "n3"),
    [
        pytest.param([make_volume("pv")], None, None, None, id="reachable from everywhere"),
        pytest.param([make_volume("pv", near={ZONE: ["a"]})], None, AFFINITY_CONFLICT, AFFINITY_CONFLICT, id="zone a"),
        pytest.param([], VOLUME_MISSING, VOLUME_MISSING, VOLUME_MISSING, id="volume missing"),
    ],
)
def test_bound_claims(objects: list[Any], n1: str | None, n2: str | None, n3: str | None) -> None:
    expected = [FEASIBLE if reason is None else unresolvable(reason) for reason in (n1, n2, n3)]
    assert ask(POD, BOUND, *objects) == expected


def test_the_first_bound_claim_that_fails_gives_the_reason() -> None:
    pod = volume_pod(claim_volume("far"), claim_volume("gone"))
    objects = [make_claim("far", volume="pv"), make_claim("gone", volume="none"), make_volume("pv", near={ZONE: ["a"]})]
    assert ask(pod, *objects) == [unresolvable(reason) for reason in (VOLUME_MISSING, *[AFFINITY_CONFLICT] * 2)]


def test_migrated_in_tree_volumes_use_the_drivers_topology() -> None:
    disk = make_volume("pv", near={ZONE: ["a", "b"]}, aws_elastic_block_store=AwsElasticBlockStore("vol-1"))
    migrated = make_csi_node("n1", migrated="kubernetes.io/aws-ebs")
    assert ask(POD, BOUND, disk, migrated) == [
        unresolvable(AFFINITY_CONFLICT),
        FEASIBLE,
        unresolvable(AFFINITY_CONFLICT),
    ]


def test_a_volume_without_translation_fails_migrated_nodes_only() -> None:
    disk = make_volume("pv", azure_disk=AzureDisk("d", "u", "Shared"))
    migrated = make_csi_node("n2", migrated="kubernetes.io/azure-disk")
    fault = (
        'running "VolumeBinding" filter plugin: could not translate pv: kind(Shared) is not supported in csi migration'
    )
    assert ask(POD, BOUND, disk, migrated) == [FEASIBLE, errored(fault), FEASIBLE]


@pytest.mark.parametrize(
    ("objects", "n1", "n2", "n3"),
    [
        pytest.param([STATIC, make_volume()], None, None, None, id="a volume for all"),
        pytest.param([STATIC], BIND_CONFLICT, BIND_CONFLICT, BIND_CONFLICT, id="no volume"),
        pytest.param([STATIC, make_volume(near={HOST: ["n2"]})], BIND_CONFLICT, None, BIND_CONFLICT, id="local volume"),
        pytest.param(
            [STATIC, make_volume("x", near={HOST: ["n2"]}), make_volume("y", near={ZONE: ["a"]})],
            None,
            None,
            BIND_CONFLICT,
            id="volumes by different labels",
        ),
        pytest.param([make_class()], None, None, None, id="made anywhere"),
        pytest.param([make_class(topologies=[{ZONE: ["b"]}])], BIND_CONFLICT, None, BIND_CONFLICT, id="made in b"),
        pytest.param([make_class(topologies=[{}])], BIND_CONFLICT, BIND_CONFLICT, BIND_CONFLICT, id="made nowhere"),
        pytest.param(
            [make_class(), make_driver(), make_storage_capacity(capacity="1Gi", near={ZONE: "a"})],
            None,
            NOT_ENOUGH_SPACE,
            NOT_ENOUGH_SPACE,
            id="room in a",
        ),
        pytest.param(
            [make_class(), make_driver(), make_volume(near={ZONE: ["b"]})],
            NOT_ENOUGH_SPACE,
            None,
            NOT_ENOUGH_SPACE,
            id="a volume where there is no room",
        ),
    ],
)
@pytest.mark.parametrize("claims", [pytest.param(1, id="one claim"), pytest.param(2, id="two claims")])
def test_claims_with_wait_for_first_consumer(
    objects: list[Any], n1: str | None, n2: str | None, n3: str | None, claims: int
) -> None:
    """A second claim that is available everywhere forces `VolumeFinder` and must change nothing."""
    extra = [make_claim("extra", storage_class="easy"), make_class("easy", provisioner="other")][: 2 * (claims - 1)]
    pod = volume_pod(*(claim_volume(name, name) for name in ("claim", "extra")[:claims]))
    expected = [FEASIBLE if reason is None else unresolvable(reason) for reason in (n1, n2, n3)]
    assert ask(pod, make_claim(), *objects, *extra) == expected


def test_both_kinds_of_claims_are_always_evaluated() -> None:
    pod = volume_pod(claim_volume("claim"), claim_volume("wait"))
    objects = [BOUND, make_volume("pv", near={ZONE: ["a"]}, phase="Bound"), make_claim("wait"), STATIC]
    both = unresolvable(AFFINITY_CONFLICT, BIND_CONFLICT)
    assert ask(pod, *objects) == [unresolvable(BIND_CONFLICT), both, both]


def test_missing_volumes_are_reported_last() -> None:
    pod = volume_pod(claim_volume("claim"), claim_volume("wait"))
    assert ask(pod, BOUND, make_claim("wait"), STATIC)[0] == unresolvable(BIND_CONFLICT, VOLUME_MISSING)


@pytest.mark.parametrize("claims", [pytest.param(1, id="one claim"), pytest.param(2, id="two claims")])
def test_a_selected_node_is_the_only_one(claims: int) -> None:
    chosen = [make_claim(f"c{number}", annotations={SELECTED_NODE: "n2"}) for number in range(claims)]
    pod = volume_pod(*(claim_volume(claim.name, claim.name) for claim in chosen))
    expected = [unresolvable(BIND_CONFLICT), FEASIBLE, unresolvable(BIND_CONFLICT)]
    assert ask(pod, *chosen, make_class()) == expected


@pytest.mark.parametrize("claims", [pytest.param(1, id="one claim"), pytest.param(2, id="two claims")])
def test_a_malformed_selector_fails_every_node_that_was_not_rejected_before(claims: int) -> None:
    selector = LabelSelector(match_expressions=(LabelSelectorRequirement("tier", "Like"),))
    objects = [make_claim(f"c{number}", selector=selector) for number in range(claims)]
    pod = volume_pod(*(claim_volume(claim.name, claim.name) for claim in objects))
    fault = (
        'running "VolumeBinding" filter plugin: error creating internal label selector for claim: default/c0: '
        '"Like" is not a valid label selector operator'
    )
    assert ask(pod, *objects, STATIC) == [errored(fault)] * 3


def test_claims_compete_for_volumes() -> None:
    pod = volume_pod(claim_volume("a"), claim_volume("b"))
    objects = [make_claim("a"), make_claim("b"), STATIC]
    objects += [make_volume("x", near={HOST: ["n1"]}), make_volume("y", near={HOST: ["n1", "n2"]})]
    assert ask(pod, *objects) == [FEASIBLE, unresolvable(BIND_CONFLICT), unresolvable(BIND_CONFLICT)]


def test_filter_without_pre_filter_is_an_error() -> None:
    snapshot = make_snapshot([N1], objects=[BOUND, make_volume("pv")])
    plugin = make_plugin(VolumeBinding, handle=FakeHandle(snapshot.catalog))
    cycle = make_cycle(POD, snapshot)
    status = make_filtering(plugin).filter_table(cycle, snapshot.table).status(0)
    assert filter_result(status) == errored('running "VolumeBinding" filter plugin: not found')
    assert filter_result(plugin.reserve(cycle, "n1")) == errored("not found")
    assert filter_result(plugin.pre_bind_preflight(cycle, "n1")) == errored("not found")
    plugin.unreserve(cycle, "n1")


def test_storage_capacity_is_not_scored() -> None:
    assert run_score(VolumeBinding, POD, N1, N2, objects=[BOUND, make_volume("pv")]) == {}
    snapshot = make_snapshot([N1, N2])
    assert make_plugin(VolumeBinding).score_nodes(make_cycle(POD, snapshot), snapshot.table).tolist() == [0, 0]


def test_only_pods_without_claims_share_answers() -> None:
    plugin = make_plugin(VolumeBinding)
    assert plugin.signature(volume_pod(Volume(name="token"))) == ()
    assert plugin.signature(POD) is None
    assert plugin.signature(volume_pod(ephemeral())) is None


# Reserve and PreBind


class Writes:
    """Stores what is written and returns it with a new version, as an API server does."""

    def __init__(self, catalog: Any) -> None:
        self.catalog = catalog
        self.performed: list[Any] = []
        self.fail_at: type[Any] | None = None
        self.controller: Callable[[], None] = lambda: None
        self.attempts = 1

    async def perform(self, intent: Any) -> Any:
        self.performed.append(intent)
        if self.fail_at is not None and isinstance(intent, self.fail_at):
            raise BayplanError("the object has been modified")
        if isinstance(intent, WaitForVolumes):
            return self.wait(intent)
        written = at_version(intent.volume if isinstance(intent, SetVolumeClaimRef) else intent.claim, "50")
        self.catalog.upsert(written)
        return written

    def wait(self, intent: WaitForVolumes) -> None:
        for _ in range(self.attempts):
            self.controller()
            if intent.done():
                return
        raise TimeoutError


class Attempt:
    """A pod with a claim to bind and a claim to provision, which will be placed on n1."""

    def __init__(self, *objects: Any, pod: Pod | None = None) -> None:
        objects = objects or (make_claim("bind"), make_claim("make"), make_class(), make_volume(near={ZONE: ["a"]}))
        self.snapshot = make_snapshot([N1, N2], objects=objects)
        self.catalog = self.snapshot.catalog
        self.handle = FakeHandle(self.catalog)
        self.failures: list[VolumeBindingStage] = []
        self.handle.volumes.on_failure = self.failures.append
        self.writes = Writes(self.catalog)
        self.handle.writes = self.writes  # type: ignore[assignment]
        self.plugin = make_plugin(VolumeBinding, handle=self.handle)
        self.cycle: Cycle = make_cycle(pod or volume_pod(claim_volume("bind"), claim_volume("make")), self.snapshot)
        filtering = make_filtering(self.plugin)
        self.diagnosis = filtering.run_filters(self.cycle, filtering.pre_filter(self.cycle))

    @property
    def assumed(self) -> tuple[int, int]:
        return len(self.handle.volumes.volumes), len(self.handle.volumes.claims)

    def pre_bind(self) -> Status | None:
        status: Status | None = asyncio.run(self.plugin.pre_bind(self.cycle, "n1"))
        return status


def test_reserve_assumes_and_unreserve_reverts() -> None:
    attempt = Attempt()
    assert attempt.plugin.reserve(attempt.cycle, "n1") is None
    assert attempt.assumed == (1, 1)
    volume = attempt.handle.volumes.volumes.get("volume")
    claim = attempt.handle.volumes.claims.get("default/make")
    assert volume is not None
    assert volume.spec.claim_ref is not None
    assert volume.spec.claim_ref.name == "bind"
    assert claim is not None
    assert claim.metadata.annotations[SELECTED_NODE] == "n1"
    assert attempt.plugin.pre_bind_preflight(attempt.cycle, "n1") == PreBindPreFlightResult(allow_parallel=True)
    attempt.plugin.unreserve(attempt.cycle, "n2")
    assert attempt.assumed == (1, 1)
    attempt.plugin.unreserve(attempt.cycle, "n1")
    attempt.plugin.unreserve(attempt.cycle, "n1")
    assert attempt.assumed == (0, 0)


def test_the_next_pod_does_not_get_an_assumed_volume() -> None:
    attempt = Attempt(
        make_claim("bind"), make_claim("next"), STATIC, make_volume(), pod=volume_pod(claim_volume("bind"))
    )
    attempt.plugin.reserve(attempt.cycle, "n1")
    filtering = make_filtering(attempt.plugin)
    cycle = make_cycle(volume_pod(claim_volume("next"), name="next"), attempt.snapshot)
    diagnosis = filtering.run_filters(cycle, filtering.pre_filter(cycle))
    assert filter_result(diagnosis.status(0)) == unresolvable(BIND_CONFLICT)


def test_reserve_fails_if_an_object_has_changed() -> None:
    attempt = Attempt()
    attempt.catalog.upsert(at_version(make_volume(near={ZONE: ["a"]}), "9"))
    status = attempt.plugin.reserve(attempt.cycle, "n1")
    assert filter_result(status) == errored('"volume" is out of sync (stored: 9, assume: 1)')
    assert attempt.assumed == (0, 0)


@pytest.mark.parametrize(
    ("pod", "objects"),
    [
        pytest.param(POD, [BOUND, make_volume("pv")], id="all bound"),
        pytest.param(volume_pod(), [make_claim()], id="no claims"),
    ],
)
def test_nothing_to_do(pod: Pod, objects: list[Any]) -> None:
    attempt = Attempt(*objects, pod=pod)
    assert attempt.plugin.reserve(attempt.cycle, "n1") is None
    assert attempt.plugin.pre_bind_preflight(attempt.cycle, "n1") is SKIP
    assert attempt.pre_bind() is None
    assert attempt.writes.performed == []


def test_another_node_than_the_reserved_one_has_no_volumes() -> None:
    attempt = Attempt()
    attempt.plugin.reserve(attempt.cycle, "n1")
    assert filter_result(attempt.plugin.pre_bind_preflight(attempt.cycle, "n2")) == errored(
        'no pod volume found for node "n2"'
    )


def test_without_filter_there_is_nothing_to_reserve() -> None:
    attempt = Attempt()
    attempt.cycle.get(STATE).filtered = False
    assert attempt.plugin.reserve(attempt.cycle, "n1") is None
    assert attempt.plugin.pre_bind_preflight(attempt.cycle, "n1") is SKIP


def test_pre_bind_writes_volumes_then_claims_then_waits() -> None:
    attempt = Attempt()
    attempt.plugin.reserve(attempt.cycle, "n1")

    def controller() -> None:
        made = make_claim("make", volume="made", version="51", annotations={SELECTED_NODE: "n1"})
        for item in (make_claim("bind", volume="volume", version="51"), made, make_volume("made")):
            attempt.catalog.upsert(item)

    attempt.writes.controller = controller
    assert attempt.pre_bind() is None
    assert [type(intent) for intent in attempt.writes.performed] == [SetVolumeClaimRef, SetSelectedNode, WaitForVolumes]
    assert (attempt.writes.performed[2].every_s, attempt.writes.performed[2].timeout_s) == (1.0, 600.0)


def test_a_volume_that_cannot_be_written_is_no_longer_assumed() -> None:
    attempt = Attempt()
    attempt.plugin.reserve(attempt.cycle, "n1")
    attempt.writes.fail_at = SetVolumeClaimRef
    status = attempt.pre_bind()
    assert status is not None
    assert filter_result(status) == errored("the object has been modified")
    assert attempt.assumed == (0, 0)


def test_a_written_volume_stays_assumed_until_the_watch_confirms_it() -> None:
    attempt = Attempt()
    attempt.plugin.reserve(attempt.cycle, "n1")
    attempt.writes.catalog = make_snapshot().catalog  # the watch is late and does not show the write yet
    attempt.writes.fail_at = SetSelectedNode
    status = attempt.pre_bind()
    assert status is not None
    assert status.code is Code.ERROR
    assert attempt.assumed == (1, 0)
    attempt.plugin.unreserve(attempt.cycle, "n1")
    assert attempt.assumed == (1, 0)


def test_waiting_ends_in_a_timeout_or_in_a_fault() -> None:
    attempt = Attempt()
    attempt.plugin.reserve(attempt.cycle, "n1")
    late = attempt.pre_bind()
    assert late is not None
    assert filter_result(late) == errored("binding volumes: context deadline exceeded")
    attempt = Attempt()
    attempt.plugin.reserve(attempt.cycle, "n1")
    attempt.writes.controller = lambda: attempt.catalog.upsert(make_claim("make", version="99", annotations={"x": "y"}))
    attempt.catalog.upsert(make_claim("bind", volume="volume"))
    given_up = attempt.pre_bind()
    assert given_up is not None
    assert filter_result(given_up) == errored('binding volumes: provisioning failed for PVC "make"')


# failure counters


def test_without_failures_nothing_is_counted() -> None:
    attempt = Attempt(make_claim("bind", volume="gone"), pod=volume_pod(claim_volume("bind")))
    assert attempt.failures == []
    attempt.plugin.reserve(attempt.cycle, "n1")
    assert attempt.pre_bind() is None
    assert attempt.failures == []


def test_a_failing_search_counts_once_for_all_nodes() -> None:
    disk = make_volume("pv", azure_disk=AzureDisk("d", "u", "Shared"))
    migrated = [make_csi_node(name, migrated="kubernetes.io/azure-disk") for name in ("n1", "n2")]
    attempt = Attempt(BOUND, disk, *migrated, pod=POD)
    assert attempt.failures == [VolumeBindingStage.FIND]


def test_a_failing_search_counts_once_with_shared_answers() -> None:
    disk = make_volume("pv", azure_disk=AzureDisk("d", "u", "Shared"))
    cache = filled_cache([N1, N2, BOUND, disk, make_csi_node("n1", migrated="kubernetes.io/azure-disk")])
    failures: list[str] = []
    cache.volumes.on_failure = failures.append
    registry = known_plugins()
    engine = PodEngine(configured(None, registry), registry, cache, clock=ManualClock(), chance=random.Random(0))
    for turn in range(1, 4):
        assert engine.place(POD).status.code is Code.ERROR
        assert failures == ["predicate"] * turn


def test_reserve_that_fails_is_counted() -> None:
    attempt = Attempt()
    attempt.catalog.upsert(at_version(make_volume(near={ZONE: ["a"]}), "9"))
    attempt.plugin.reserve(attempt.cycle, "n1")
    assert attempt.failures == [VolumeBindingStage.ASSUME]


@pytest.mark.parametrize("fail_at", [SetVolumeClaimRef, SetSelectedNode, None], ids=["volume", "claim", "waiting"])
def test_pre_bind_that_fails_is_counted(fail_at: type[Any] | None) -> None:
    attempt = Attempt()
    attempt.plugin.reserve(attempt.cycle, "n1")
    attempt.writes.fail_at = fail_at
    assert attempt.pre_bind() is not None
    assert attempt.failures == [VolumeBindingStage.BIND]


# hints

INLINE = volume_pod(Volume(csi=InlineCsiVolume("csi.example.com")))


@pytest.mark.parametrize(
    ("resource", "pod", "old", "new", "expected"),
    [
        pytest.param("storage.k8s.io/StorageClass", POD, None, make_class(), "Queue", id="new class"),
        pytest.param(
            "storage.k8s.io/StorageClass",
            POD,
            make_class(),
            make_class(topologies=[{ZONE: ["a"]}]),
            "Queue",
            id="other topologies",
        ),
        pytest.param(
            "storage.k8s.io/StorageClass", POD, make_class(), make_class(provisioner="x"), "Skip", id="same topologies"
        ),
        pytest.param("PersistentVolumeClaim", POD, make_claim(), BOUND, "Queue", id="own claim"),
        pytest.param("PersistentVolumeClaim", POD, None, make_claim("other"), "Skip", id="another claim"),
        pytest.param(
            "PersistentVolumeClaim", volume_pod(ephemeral("t")), None, make_claim("pod-t"), "Queue", id="own ephemeral"
        ),
        pytest.param("PersistentVolume", POD, make_volume(), make_volume(), "Queue", id="any volume"),
        pytest.param("Node", POD, None, N1, "Queue", id="any node"),
        pytest.param("storage.k8s.io/CSINode", POD, None, make_csi_node("n"), "Queue", id="new CSINode"),
        pytest.param(
            "storage.k8s.io/CSINode",
            POD,
            make_csi_node("n"),
            make_csi_node("n", migrated="kubernetes.io/aws-ebs"),
            "Queue",
            id="migrated",
        ),
        pytest.param(
            "storage.k8s.io/CSINode", POD, make_csi_node("n", d=1), make_csi_node("n", d=2), "Skip", id="other limits"
        ),
        pytest.param(
            "storage.k8s.io/CSIDriver", INLINE, make_driver(), make_driver(capacity=False), "Queue", id="not tracked"
        ),
        pytest.param(
            "storage.k8s.io/CSIDriver", INLINE, make_driver(), make_driver(capacity=None), "Queue", id="unset"
        ),
        pytest.param(
            "storage.k8s.io/CSIDriver", INLINE, make_driver(capacity=False), make_driver(), "Skip", id="now tracked"
        ),
        pytest.param(
            "storage.k8s.io/CSIDriver", POD, make_driver(), make_driver(capacity=False), "Skip", id="not inline"
        ),
        pytest.param("storage.k8s.io/CSIStorageCapacity", POD, None, make_storage_capacity(), "Queue", id="new pool"),
        pytest.param(
            "storage.k8s.io/CSIStorageCapacity",
            POD,
            make_storage_capacity(capacity="1Gi"),
            make_storage_capacity(capacity="2Gi"),
            "Queue",
            id="pool grew",
        ),
        pytest.param(
            "storage.k8s.io/CSIStorageCapacity",
            POD,
            make_storage_capacity(capacity="1Gi", largest="1Gi"),
            make_storage_capacity(capacity="2Gi", largest="1Gi"),
            "Skip",
            id="largest volume as before",
        ),
        pytest.param(
            "storage.k8s.io/CSIStorageCapacity",
            POD,
            make_storage_capacity(),
            make_storage_capacity(capacity="1"),
            "Queue",
            id="pool speaks",
        ),
        pytest.param(
            "storage.k8s.io/CSIStorageCapacity",
            POD,
            make_storage_capacity(capacity="1"),
            make_storage_capacity(),
            "Skip",
            id="pool is silent",
        ),
    ],
)
def test_hints(resource: str, pod: Pod, old: Any, new: Any, expected: str) -> None:
    assert evaluate_hints(VolumeBinding, resource, pod, old, new) == [expected]
