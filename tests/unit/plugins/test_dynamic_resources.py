"""DynamicResources: claims before, during and after an attempt."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from bayplan.config.duration import parse_duration
from bayplan.devices import extended, intents
from bayplan.devices.faults import ClaimChanged
from bayplan.framework.cycle import Cycle
from bayplan.framework.diagnosis import Diagnosis
from bayplan.framework.plugin import PostFilterAnswer, Preflight
from bayplan.framework.status import Code, Status
from bayplan.objects.core import Node, Pod, PodResourceClaim, PodResourceClaimStatus, PodStatus
from bayplan.objects.meta import KubeObject, OwnerReference
from bayplan.objects.resource import ResourceClaim, ResourceClaimConsumer
from bayplan.plugins.dynamic_resources import DynamicResources
from bayplan.plugins.dynamic_resources_args import DynamicResourcesArgs
from bayplan.plugins.dynamic_resources_state import STATE
from bayplan.snapshot import Catalog
from builders import (
    FITS,
    Answer,
    FakeHandle,
    answer,
    changed,
    failed,
    hints,
    make_container,
    make_cycle,
    make_filtering,
    make_node,
    make_plugin,
    make_pod,
    make_scoring,
    make_snapshot,
    unresolvable,
)
from device_builders import device, exactly, first_of, make_allocation, make_claim, make_class, make_slice, wanting

GPU = "example.com/gpu"
NODES = [make_node("n1", labels={"zone": "a"}), make_node("n2", labels={"zone": "b"})]
SLICES = [make_slice(device("a"), device("b"), node=node.name) for node in NODES]
CLASS = make_class()
EXTENDED = make_class("gpu", extended_resource_name=GPU)


def using(*names: str, **fields: Any) -> Pod:
    """A pod that uses claims by name."""
    references = tuple(PodResourceClaim(name=name, resource_claim_name=name) for name in names)
    return make_pod(fields.pop("pod", "p"), resource_claims=references, **fields)


@dataclass
class Stage:
    """A plugin with a cluster around it."""

    handle: FakeHandle
    plugin: DynamicResources
    nodes: list[Node]

    def cycle(self, pod: Pod) -> Cycle:
        snapshot = make_snapshot(self.nodes)
        snapshot.catalog = self.handle.catalog
        return make_cycle(pod, snapshot)

    def filter(self, pod: Pod) -> tuple[Cycle, dict[str, Answer]]:
        cycle, filtering = self.cycle(pod), make_filtering(self.plugin)
        diagnosis = filtering.diagnose(cycle, filtering.pre_filter(cycle))
        return cycle, {name: answer(diagnosis.status(row)) for row, name in enumerate(diagnosis.names)}

    def answers(self, pod: Pod) -> dict[str, Answer]:
        return self.filter(pod)[1]

    def reserve(self, pod: Pod, node: str = "n1") -> Cycle:
        cycle, answers = self.filter(pod)
        assert answers[node] == FITS
        assert self.plugin.reserve(cycle, node) is None
        return cycle


def stage(*objects: KubeObject, nodes: list[Node] = NODES, args: DynamicResourcesArgs | None = None) -> Stage:
    handle = FakeHandle(Catalog(objects))
    return Stage(handle, make_plugin(DynamicResources, handle=handle, args=args), nodes)


def usual(*objects: KubeObject, **options: Any) -> Stage:
    return stage(CLASS, *SLICES, *objects, **options)


# before an attempt


def test_a_pod_waits_for_its_claims_before_it_is_queued() -> None:
    pod = using("claim")
    missing = usual().plugin.pre_enqueue(pod)
    assert missing == Status(Code.UNRESOLVABLE, ['could not find ResourceClaim "default/claim"'])
    assert usual(make_claim()).plugin.pre_enqueue(pod) is None
    assert usual().plugin.pre_enqueue(make_pod()) is None


def test_pods_that_want_devices_do_not_share_answers() -> None:
    plugin = stage(EXTENDED).plugin
    assert plugin.signature(make_pod()) == ()
    assert plugin.signature(using("claim")) is None
    assert plugin.signature(make_pod(requests={GPU: "1"})) is None
    assert plugin.signature(make_pod(requests={"example.com/other": "1"})) == ()


# PreFilter


def test_pods_without_claims_are_not_looked_at() -> None:
    found = usual()
    cycle = found.cycle(make_pod(requests={"cpu": "1", GPU: "1"}))
    status = found.plugin.pre_filter(cycle)
    assert status is not None
    assert status.code is Code.SKIP
    assert found.plugin.post_filter(cycle, Diagnosis([])) == Status(Code.UNSCHEDULABLE, ["no new claims to deallocate"])


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        pytest.param(make_claim(name="other"), 'could not find ResourceClaim "default/claim"', id="missing"),
        pytest.param(make_claim(exactly(of="x")), "request r0: device class x does not exist", id="no-class"),
        pytest.param(
            make_claim(exactly(), first_of(wanting(1), wanting(1, of="x"))),
            "request r1/s1: device class x does not exist",
            id="no-class-of-an-alternative",
        ),
        pytest.param(
            make_claim(first_of()),
            "resource claim default/claim, request r0: unknown request type",
            id="asks-for-nothing",
        ),
    ],
)
def test_a_pod_is_refused_before_any_node_is_looked_at(claim: ResourceClaim, reason: str) -> None:
    found = usual(claim)
    cycle = found.cycle(using("claim"))
    assert found.plugin.pre_filter(cycle) == Status(Code.UNRESOLVABLE, [reason])
    assert found.plugin.post_filter(cycle, Diagnosis([])) == Status(Code.UNSCHEDULABLE, ["no new claims to deallocate"])


def test_a_selector_that_cannot_be_read_is_an_error() -> None:
    broken = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In"}]}]}
    claim = make_claim(exactly(), allocation=make_allocation(nodeSelector=broken))
    found = usual(claim)
    refused = found.plugin.pre_filter(found.cycle(using("claim")))
    assert refused is not None
    assert refused.code is Code.ERROR


# Filter


def test_a_node_with_devices_is_chosen() -> None:
    found = usual(make_claim(exactly(2)), nodes=[*NODES, make_node("n3")])
    assert found.answers(using("claim")) == {
        "n1": FITS,
        "n2": FITS,
        "n3": unresolvable("cannot allocate all claims"),
    }


def test_an_error_of_the_search_ends_the_attempt() -> None:
    claim = make_claim(exactly(1, 'device.attributes["gpu.example.com"].model == "x"'))
    fault = "claim default/claim: selector #0: CEL runtime error: no such key: model"
    text = f'running "DynamicResources" filter plugin: {fault}'
    assert usual(claim).answers(using("claim")) == {"n1": failed(text), "n2": failed(text)}


ZONE_A = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}


def in_zone_a(name: str = "claim", **status: Any) -> ResourceClaim:
    allocation = make_allocation({"pool": "net", "device": "x"}, nodeSelector=ZONE_A)
    return make_claim(exactly(), name=name, allocation=allocation, **status)


def test_an_allocated_claim_can_be_used_where_its_allocation_says() -> None:
    found = usual(in_zone_a())
    cycle, answers = found.filter(using("claim"))
    assert answers == {"n1": FITS, "n2": unresolvable("resourceclaim not available on the node")}
    assert cycle.get(STATE).unavailable == {0}


def test_a_failed_search_is_told_before_a_claim_that_cannot_be_used() -> None:
    found = usual(in_zone_a("one"), make_claim(exactly(3), name="two"))
    assert set(found.answers(using("one", "two")).values()) == {unresolvable("cannot allocate all claims")}


@pytest.mark.parametrize(
    ("minutes", "expected"),
    [
        pytest.param(5, FITS, id="in-time"),
        pytest.param(11, unresolvable("resourceclaim not available on the node"), id="too-late"),
    ],
)
def test_a_device_that_does_not_become_ready_makes_its_claim_unavailable(minutes: int, expected: Answer) -> None:
    found = usual()
    since = (found.handle.clock.now() - timedelta(minutes=minutes)).isoformat()
    result = {"pool": "n1", "device": "a", "bindingConditions": ["Ready"]}
    found.handle.catalog.put(make_claim(exactly(), allocation=make_allocation(result, allocationTimestamp=since)))
    assert set(found.answers(using("claim")).values()) == {expected}


class Hurried:
    """A clock on which every look takes six seconds."""

    def __init__(self, handle: FakeHandle) -> None:
        self.now = handle.clock.now
        self.seconds = 0.0

    def monotonic_s(self) -> float:
        self.seconds += 6.0
        return self.seconds


@pytest.mark.parametrize(("filter_timeout", "timed_out"), [("10s", True), ("1h", False), ("0s", False)])
def test_a_search_has_its_time(filter_timeout: str, timed_out: bool) -> None:
    args = DynamicResourcesArgs(filter_timeout=parse_duration(filter_timeout))
    found = usual(make_claim(exactly()), args=args)
    found.handle.clock = Hurried(found.handle)  # type: ignore[assignment]
    text = 'running "DynamicResources" filter plugin: node n1: timed out trying to allocate devices'
    assert found.answers(using("claim"))["n1"] == (failed(text) if timed_out else FITS)


def test_without_its_prefilter_the_filter_finds_no_state() -> None:
    found = usual(make_claim(exactly()))
    cycle = found.cycle(using("claim"))
    (rejection,) = found.plugin.filter_nodes(cycle, cycle.snapshot.table)
    assert (rejection.reason, rejection.status_code, rejection.mask.all()) == ("not found", Code.ERROR, True)


# extended resources


def asking(count: str = "1", **fields: Any) -> Pod:
    return make_pod("p", requests={GPU: count}, **fields)


def test_an_extended_resource_is_had_from_devices() -> None:
    found = stage(EXTENDED, *SLICES, nodes=[*NODES, make_node("n3")])
    cycle, answers = found.filter(asking("2"))
    assert answers == {"n1": FITS, "n2": FITS, "n3": unresolvable("cannot allocate all claims")}
    assert found.plugin.reserve(cycle, "n1") is None
    assert found.handle.devices.in_use.is_held(("gpu.example.com", "n1", "a"))  # type: ignore[arg-type]


def test_a_node_that_has_the_resource_itself_needs_no_devices() -> None:
    plugin_node = make_node("n3", allocatable={GPU: "4"})
    zero = make_node("n4", allocatable={GPU: "0"})
    found = stage(EXTENDED, *SLICES, nodes=[plugin_node, zero])
    cycle, answers = found.filter(asking())
    assert answers == {"n3": FITS, "n4": unresolvable("cannot allocate all claims")}
    assert found.plugin.reserve(cycle, "n3") is None
    assert asyncio.run(found.plugin.pre_bind(cycle, "n3")) is None
    assert found.handle.writes.performed == []


def test_a_resource_without_a_class_must_be_on_the_node() -> None:
    other = "example.com/other"
    found = stage(EXTENDED, *SLICES, nodes=[make_node("n1"), make_node("n2", allocatable={other: "0"})])
    answers = found.answers(make_pod(requests={GPU: "1", other: "1"}))
    assert answers == {"n1": unresolvable("cannot fit resource"), "n2": FITS}


def left_over(pod: Pod, **status: Any) -> ResourceClaim:
    """The special claim of an earlier attempt."""
    owner = OwnerReference(name=pod.name, uid=pod.uid, controller=True)
    marked = {"annotations": {extended.ANNOTATION: "true"}, "owner_references": (owner,)}
    return changed(make_claim(exactly(), name="special", **status), metadata=marked)


def test_the_claim_of_an_earlier_attempt_is_removed_first() -> None:
    found = stage(EXTENDED, *SLICES, left_over(asking()))
    cycle, answers = found.filter(asking())
    assert set(answers.values()) == {unresolvable("cannot schedule extended resource claim")}
    done = found.plugin.post_filter(cycle, Diagnosis([]))
    assert isinstance(done, PostFilterAnswer)
    assert done.status == Status(Code.UNSCHEDULABLE, ["deletion of ResourceClaim completed"])
    assert done.writes == (intents.DeleteClaim(found.handle.catalog.resource_claims["default/special"]),)


def test_special_and_own_claims_do_not_get_the_same_devices() -> None:
    found = stage(EXTENDED, *SLICES, make_claim(exactly(2)))
    pod = using("claim", containers=(make_container(requests={GPU: "1"}),))
    assert set(found.answers(pod).values()) == {unresolvable("cannot allocate all claims")}


def test_own_claims_are_allocated_where_the_node_has_the_resource_itself() -> None:
    nodes = [make_node("n1", allocatable={GPU: "4"})]
    found = stage(EXTENDED, *SLICES, make_claim(exactly(2)), nodes=nodes)
    cycle = found.reserve(using("claim", containers=(make_container(requests={GPU: "1"}),)))
    assert list(cycle.get(STATE).granted) == [0]


# Score


def scores(found: Stage, pod: Pod) -> dict[str, int]:
    cycle, _ = found.filter(pod)
    table = cycle.snapshot.table
    vector = make_scoring(found.plugin).score(cycle, table).by_plugin["DynamicResources"]
    return dict(zip(table.names, vector.tolist(), strict=True))


def test_nodes_where_earlier_alternatives_are_met_score_higher() -> None:
    three = make_slice(device("a"), device("b"), device("c"), node="n2")
    claim = make_claim(first_of(wanting(3), wanting(2)))
    assert scores(stage(CLASS, SLICES[0], three, claim), using("claim")) == {"n1": 87, "n2": 100}


def test_claims_without_alternatives_score_nothing() -> None:
    assert scores(usual(make_claim(exactly())), using("claim")) == {"n1": 0, "n2": 0}
    assert scores(usual(), make_pod()) == {"n1": 0, "n2": 0}


def test_an_allocated_claim_counts_only_beside_one_that_is_allocated_now() -> None:
    done = make_claim(
        first_of(wanting(1), wanting(1)),
        name="done",
        allocation=make_allocation({"request": "r0/s1", "pool": "net", "device": "x"}, nodeSelector=ZONE_A),
    )
    assert scores(usual(done), using("done")) == {"n1": 0, "n2": 0}
    found = usual(done, make_claim(exactly()))
    assert scores(found, using("done", "claim")) == {"n1": 100, "n2": 0}


# PostFilter


def test_without_its_prefilter_postfilter_ends_in_an_error() -> None:
    found = usual()
    assert found.plugin.post_filter(found.cycle(make_pod()), Diagnosis([])) == Status(Code.ERROR, ["not found"])


ME = ResourceClaimConsumer(resource="pods", name="p", uid=make_pod("p").uid)
OTHER = ResourceClaimConsumer(resource="pods", name="q", uid="other")


@pytest.mark.parametrize(
    ("users", "given_up"),
    [
        pytest.param((), True, id="nobody"),
        pytest.param((ME,), True, id="only-us"),
        pytest.param((OTHER,), False, id="somebody-else"),
        pytest.param((ME, OTHER), False, id="us-and-somebody-else"),
    ],
)
def test_an_allocation_that_cannot_be_used_is_given_up_if_nobody_else_uses_it(
    users: tuple[ResourceClaimConsumer, ...], given_up: bool
) -> None:
    claim = in_zone_a(reserved_for=users)
    found = usual(claim, nodes=NODES[1:])
    cycle, _ = found.filter(using("claim"))
    done = found.plugin.post_filter(cycle, Diagnosis([]))
    if given_up:
        assert done == PostFilterAnswer(
            Status(Code.UNSCHEDULABLE, ["deallocation of ResourceClaim completed"]),
            writes=(intents.DeallocateClaim(claim),),
        )
    else:
        assert done == Status(Code.UNSCHEDULABLE, ["still not schedulable"])


# Reserve


def test_reserved_devices_are_taken_for_the_next_pod() -> None:
    found = usual(make_claim(exactly(2)), make_claim(exactly(), name="next"))
    cycle = found.reserve(using("claim"))
    assert found.answers(using("next", pod="q")) == {"n1": unresolvable("cannot allocate all claims"), "n2": FITS}
    found.plugin.unreserve(cycle, "n1")
    assert found.answers(using("next", pod="q")) == {"n1": FITS, "n2": FITS}
    assert found.handle.writes.submitted == []


def test_a_claim_that_is_being_allocated_for_another_pod_is_waited_for() -> None:
    found = usual(make_claim(exactly()))
    found.reserve(using("claim"))
    status = found.plugin.pre_filter(found.cycle(using("claim", pod="q")))
    assert status == Status(Code.UNRESOLVABLE, ["resource claim default/claim is in the process of being allocated"])


def test_a_node_that_was_never_looked_at_cannot_be_reserved() -> None:
    found = usual(make_claim(exactly()))
    cycle = found.cycle(using("claim"))
    assert found.plugin.reserve(cycle, "n1") == Status(Code.ERROR, ["not found"])
    found.plugin.pre_filter(cycle)
    assert found.plugin.reserve(cycle, "n1") == Status(Code.ERROR, ["claim allocation not found for node"])


@pytest.mark.parametrize("ending", ["unreserve", "pre_bind"])
def test_devices_of_an_allocated_claim_are_held_until_it_is_reserved_for_the_pod(ending: str) -> None:
    """A deallocation may come between Reserve and the write, and a BindRequest names the devices."""
    claim = in_zone_a(version="1")
    allocation = claim.status.allocation
    assert allocation is not None
    found = usual(claim)
    serve(found, failing=intents.ReserveClaim)
    cycle = found.reserve(using("claim"))
    devices = found.handle.devices
    devices.observe(changed(make_claim(exactly()), metadata={"resource_version": "2", "uid": claim.metadata.uid}))
    assert devices.holder(allocation) is not None
    if ending == "unreserve":
        found.plugin.unreserve(cycle, "n1")
    else:
        assert asyncio.run(found.plugin.pre_bind(cycle, "n1")) is not None
    assert devices.holder(allocation) is None


def test_unreserving_takes_the_pod_off_claims_that_were_allocated_before() -> None:
    claim = in_zone_a(reserved_for=(ME,))
    found = usual(claim)
    cycle = found.reserve(using("claim"))
    found.plugin.unreserve(cycle, "n1")
    assert found.handle.writes.submitted == [intents.UnreserveClaim(claim, cycle.pod)]
    found.plugin.unreserve(found.cycle(make_pod()), "n1")


# PreBind


@dataclass
class Server:
    """Performs intents on claims as an API server would."""

    performed: list[object] = field(default_factory=list)
    failing: type[object] | None = None
    version: int = 100

    async def perform(self, intent: object) -> Any:
        self.performed.append(intent)
        if self.failing is not None and isinstance(intent, self.failing):
            raise ClaimChanged("somebody was faster")
        match intent:
            case intents.ReserveClaim(claim=claim):
                self.version += 1
                status = intent.status_patch(claim)["status"]
                raw = {**msgspec.to_builtins(claim), "status": status}
                return changed(msgspec.convert(raw, ResourceClaim), metadata={"resource_version": str(self.version)})
            case intents.CreateSpecialClaim(claim=claim):
                made = {"name": "made", "uid": "uid-made", "resource_version": "1"}
                return changed(claim, metadata=made)
            case intents.AwaitDevices(done=done):
                if not done():
                    raise TimeoutError
        return None

    def submit(self, intent: object) -> None:
        self.performed.append(intent)


def serve(found: Stage, **options: Any) -> Server:
    found.handle.writes = Server(**options)  # type: ignore[assignment]
    return found.handle.writes  # type: ignore[return-value]


def kinds(server: Server) -> list[str]:
    return [type(intent).__name__ for intent in server.performed]


def test_an_allocation_is_written_and_known_at_once() -> None:
    found = usual(make_claim(exactly(2), version="1"))
    server, cycle = serve(found), found.reserve(using("claim"))
    assert found.plugin.pre_bind_preflight(cycle, "n1") == Preflight(allow_parallel=True)
    assert asyncio.run(found.plugin.pre_bind(cycle, "n1")) is None
    assert kinds(server) == ["ReserveClaim"]
    written = found.handle.devices.claims["default/claim"]
    assert written.status.reserved_for == (ME,)
    assert found.handle.devices.pending(written.metadata.uid) is None
    assert found.answers(using("claim", pod="q")) == {
        "n1": FITS,
        "n2": unresolvable("resourceclaim not available on the node"),
    }


def test_a_claim_that_is_reserved_for_the_pod_already_is_not_written() -> None:
    found = usual(in_zone_a(reserved_for=(ME,)))
    server, cycle = serve(found), found.reserve(using("claim"))
    assert asyncio.run(found.plugin.pre_bind(cycle, "n1")) is None
    assert server.performed == []


def test_an_allocated_claim_is_only_reserved() -> None:
    found = usual(in_zone_a(version="1"))
    server, cycle = serve(found), found.reserve(using("claim"))
    assert asyncio.run(found.plugin.pre_bind(cycle, "n1")) is None
    (write,) = server.performed
    assert isinstance(write, intents.ReserveClaim)
    assert write.allocation is None


def test_a_write_that_fails_gives_the_devices_back() -> None:
    found = usual(make_claim(exactly(2), version="1"))
    serve(found, failing=intents.ReserveClaim)
    cycle = found.reserve(using("claim"))
    assert asyncio.run(found.plugin.pre_bind(cycle, "n1")) == Status(Code.ERROR, ["somebody was faster"])
    found.plugin.unreserve(cycle, "n1")
    assert found.answers(using("claim")) == {"n1": FITS, "n2": FITS}


def test_a_claim_that_was_written_before_another_failed_is_unreserved() -> None:
    found = usual(make_claim(exactly(), name="one", version="1"), in_zone_a("two", version="1"))
    server, cycle = serve(found), found.reserve(using("one", "two"))
    assert asyncio.run(found.plugin.pre_bind(cycle, "n1")) is None
    found.plugin.unreserve(cycle, "n1")
    assert kinds(server) == ["ReserveClaim", "ReserveClaim", "UnreserveClaim", "UnreserveClaim"]


def test_a_pod_without_claims_has_nothing_to_bind() -> None:
    found = usual()
    cycle = found.cycle(make_pod())
    found.plugin.pre_filter(cycle)
    skipped = found.plugin.pre_bind_preflight(cycle, "n1")
    assert isinstance(skipped, Status)
    assert skipped.code is Code.SKIP
    assert found.plugin.pre_bind_preflight(found.cycle(make_pod()), "n1") == Status(Code.ERROR, ["not found"])


def test_the_special_claim_is_created_reserved_and_recorded() -> None:
    found = stage(EXTENDED, *SLICES)
    server, cycle = serve(found), found.reserve(asking("2"))
    assert asyncio.run(found.plugin.pre_bind(cycle, "n1")) is None
    assert kinds(server) == ["CreateSpecialClaim", "ReserveClaim", "RecordSpecialClaim"]
    recorded = server.performed[-1]
    assert isinstance(recorded, intents.RecordSpecialClaim)
    assert (recorded.claim_name, recorded.mappings[0].request_name) == ("made", "container-0-request-0")
    assert found.handle.devices.in_use.is_held(("gpu.example.com", "n1", "a"))  # type: ignore[arg-type]
    found.plugin.unreserve(cycle, "n1")
    assert isinstance(server.performed[-1], intents.DeleteClaim)
    assert not found.handle.devices.in_use.is_held(("gpu.example.com", "n1", "a"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("conditions", "status"),
    [
        pytest.param([("Ready", "True")], None, id="ready"),
        pytest.param([], "device binding timeout: context deadline exceeded", id="never"),
        pytest.param([("Broken", "True")], 'device binding failed: claim=claim, reason=, message=""', id="failed"),
    ],
)
def test_devices_are_waited_for(conditions: list[tuple[str, str]], status: str | None) -> None:
    fields = {"bindingConditions": ["Ready"], "bindingFailureConditions": ["Broken"]}
    slice_ = make_slice(device("a", api=fields), node="n1")
    listed = [{"type": name, "status": value} for name, value in conditions]
    raw = {"driver": "gpu.example.com", "pool": "n1", "device": "a", "conditions": listed}
    found = stage(CLASS, slice_, make_claim(exactly(), version="1"))
    server, cycle = serve(found), found.reserve(using("claim"))
    state = cycle.get(STATE)

    class Driver(Server):
        """A server on which the driver has set its conditions by the time the pod waits."""

        async def perform(self, intent: object) -> Any:
            if isinstance(intent, intents.AwaitDevices):
                written = state.claims[0]
                merged = {**msgspec.to_builtins(written.status), "devices": [raw]}
                later = changed(written, metadata={"resource_version": "200"})
                found.handle.catalog.put(
                    msgspec.structs.replace(later, status=msgspec.convert(merged, type(written.status)))
                )
            return await super().perform(intent)

    driver = found.handle.writes = Driver()  # type: ignore[assignment]
    ended = asyncio.run(found.plugin.pre_bind(cycle, "n1"))
    assert (ended.message if ended is not None else None) == status
    assert server.performed == []
    waited = driver.performed[-1]
    assert isinstance(waited, intents.AwaitDevices)
    assert (waited.reason, waited.action, waited.every_s, waited.timeout_s) == (
        "BindingConditionsPending",
        "Scheduling",
        5.0,
        600.0,
    )
    assert waited.note == "waiting for binding conditions for device on node n1"


# hints

CLAIM_KIND, POD_KIND = "resource.k8s.io/ResourceClaim", "Pod"
FREE = make_claim(exactly())
BUSY = make_claim(exactly(), allocation=make_allocation({"pool": "n1", "device": "a"}))
FOREIGN = changed(BUSY, metadata={"name": "foreign", "uid": "foreign"})
FOREIGN_FREE = changed(FREE, metadata={"name": "foreign", "uid": "foreign"})


@pytest.mark.parametrize(
    ("old", "new", "known", "hint"),
    [
        pytest.param(None, FREE, FREE, "Queue", id="own-claim-created"),
        pytest.param(None, FOREIGN, FREE, "Skip", id="another-claim-created"),
        pytest.param(None, FOREIGN, None, "Skip", id="own-claim-still-missing"),
        pytest.param(FREE, BUSY, BUSY, "Queue", id="own-claim-allocated"),
        pytest.param(FREE, FREE, FREE, "Skip", id="nothing-new-in-the-status"),
        pytest.param(FOREIGN_FREE, FOREIGN, FREE, "Skip", id="another-claim-allocated"),
        pytest.param(FOREIGN, FOREIGN_FREE, FREE, "Queue", id="another-claim-deallocated"),
        pytest.param(FOREIGN, FOREIGN_FREE, None, "Skip", id="deallocated-but-own-claim-missing"),
    ],
)
def test_claims_that_change(
    old: ResourceClaim | None, new: ResourceClaim, known: ResourceClaim | None, hint: str
) -> None:
    plugin = usual(*([known] if known is not None else [])).plugin
    assert hints(plugin, CLAIM_KIND, using("claim"), old, new) == [hint]


TEMPLATED = make_pod("p", resource_claims=(PodResourceClaim(name="gpu", resource_claim_template_name="t"),))
NAMED = changed(
    TEMPLATED,
    status=PodStatus(resource_claim_statuses=(PodResourceClaimStatus(name="gpu", resource_claim_name="claim"),)),
)
OWNED = changed(FREE, metadata={"owner_references": (OwnerReference(uid=TEMPLATED.uid, controller=True),)})


@pytest.mark.parametrize(
    ("new", "objects", "hint"),
    [
        pytest.param(NAMED, [OWNED], "Queue", id="named-and-there"),
        pytest.param(NAMED, [], "Skip", id="named-and-not-there"),
        pytest.param(changed(NAMED, metadata={"uid": "other"}), [OWNED], "Skip", id="another-pod"),
    ],
)
def test_pods_that_are_told_of_their_claims(new: Pod, objects: list[KubeObject], hint: str) -> None:
    assert hints(usual(*objects).plugin, POD_KIND, TEMPLATED, TEMPLATED, new) == [hint]


@pytest.mark.parametrize(
    ("kind", "item"),
    [
        pytest.param("resource.k8s.io/DeviceClass", CLASS, id="class"),
        pytest.param("resource.k8s.io/ResourceSlice", SLICES[0], id="slice"),
        pytest.param("Node", NODES[0], id="node"),
    ],
)
def test_events_that_always_count(kind: str, item: KubeObject) -> None:
    assert hints(usual().plugin, kind, using("claim"), None, item) == ["Queue"]


# what is kept between attempts


def test_new_slices_and_classes_are_seen_by_the_next_attempt() -> None:
    found = usual(make_claim(exactly(3)), make_claim(exactly(1, of="big"), name="big"))
    assert set(found.answers(using("claim")).values()) == {unresolvable("cannot allocate all claims")}
    found.handle.catalog.put(make_slice(device("a"), device("b"), device("c"), node="n1"))
    assert found.answers(using("claim"))["n1"] == FITS
    found.handle.catalog.put(make_class("gpu", "false"))
    assert found.answers(using("claim"))["n1"] == unresolvable("cannot allocate all claims")
    found.handle.catalog.put(make_class("big"))
    assert found.answers(using("big"))["n1"] == FITS
