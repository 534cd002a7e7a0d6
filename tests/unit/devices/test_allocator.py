"""Allocation of claims on a node: devices, and reasons for rejection."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.devices.allocator import CANNOT_ALLOCATE, INVALID_POOLS, AllocationMemo, Allocator
from bayplan.devices.assumptions import AllocatedDevices
from bayplan.devices.errors import AllocationError, AllocationTimeout
from bayplan.devices.pools import PoolIndex
from bayplan.objects.core import NodeSelectorTerm
from bayplan.objects.resource import Device, DeviceConfiguration, DeviceRequest, OpaqueConfiguration, ResourceSlice
from support.builders.devices import (
    DRIVER,
    SELECTORS,
    allocate,
    allocated_devices,
    device,
    exactly,
    first_of,
    make_allocation,
    make_claim,
    make_class,
    make_slice,
    subrequest,
)
from support.builders.framework import make_node

MODEL = f"{DRIVER}/model"
IS_X = f'device.attributes["{DRIVER}"].model == "x"'
IS_Y = f'device.attributes["{DRIVER}"].model == "y"'


def here(*devices: Device, **fields: Any) -> list[ResourceSlice]:
    return [make_slice(*devices, node="n", **fields)]


ABC = here(device("a"), device("b"), device("c"))


# Counts.


@pytest.mark.parametrize(
    ("requests", "given"),
    [
        pytest.param([exactly()], ["r0=a"], id="one"),
        pytest.param([exactly(2)], ["r0=a", "r0=b"], id="two"),
        pytest.param([exactly(4)], CANNOT_ALLOCATE, id="more-than-there-are"),
        pytest.param([exactly("all")], ["r0=a", "r0=b", "r0=c"], id="all"),
        pytest.param([exactly(2), exactly(1)], ["r0=a", "r0=b", "r1=c"], id="two-requests"),
        pytest.param([exactly(2), exactly(2)], CANNOT_ALLOCATE, id="two-requests-for-too-many"),
        pytest.param([exactly("all"), exactly()], CANNOT_ALLOCATE, id="all-and-one-more"),
        pytest.param([exactly("all", "false")], CANNOT_ALLOCATE, id="all-of-nothing"),
        pytest.param([], [], id="nothing"),
    ],
)
def test_counts(requests: list[DeviceRequest], given: list[str] | str) -> None:
    assert allocated_devices(allocate(ABC, make_claim(*requests))) == given


def test_claims_use_different_devices_of_a_node() -> None:
    one, two = make_claim(exactly(2), name="one"), make_claim(exactly(1), name="two")
    assert allocated_devices(allocate(ABC, one, two)) == ["r0=a", "r0=b", "r0=c"]
    assert allocated_devices(allocate(ABC, one, make_claim(exactly(2), name="two"))) == CANNOT_ALLOCATE


def test_a_claim_named_twice_is_allocated_twice() -> None:
    claim = make_claim(exactly())
    assert allocated_devices(allocate(ABC, claim, claim)) == ["r0=a", "r0=b"]


def test_the_search_backtracks_to_leave_a_device_for_the_next_request() -> None:
    slices = here(device("a", model="x"), device("b", model="y"))
    assert allocated_devices(allocate(slices, make_claim(exactly(), exactly(1, IS_X)))) == ["r0=b", "r1=a"]


@pytest.mark.parametrize("count", [33, 40])
def test_a_claim_that_must_hold_too_many_devices_is_an_error(count: int) -> None:
    many = here(*(device(f"d{number}") for number in range(40)))
    with pytest.raises(AllocationError, match=f"number of requested devices {count} exceeds the claim limit of 32"):
        allocate(many, make_claim(exactly(count)))


def test_a_claim_that_would_hold_too_many_devices_takes_another_alternative() -> None:
    many = here(*(device(f"d{number:02}") for number in range(40)))
    claim = make_claim(first_of(subrequest(30), subrequest(1)), exactly(3))
    assert allocated_devices(allocate(many, claim)) == ["r0/s1=d00", "r1=d01", "r1=d02", "r1=d03"]


def test_the_limit_is_that_of_each_claim() -> None:
    many = here(*(device(f"d{number:02}") for number in range(64)))
    outcome = allocated_devices(
        allocate(many, make_claim(exactly(32), name="one"), make_claim(exactly(32), name="two"))
    )
    assert len(outcome) == 64


# Selectors.


def test_class_and_request_selectors_both_apply() -> None:
    slices = here(device("a", model="x"), device("b", model="y", big=True), device("c", model="x", big=True))
    classes = [make_class("gpu", f'has(device.attributes["{DRIVER}"].big)')]
    assert allocated_devices(allocate(slices, make_claim(exactly(1, IS_X)), classes=classes)) == ["r0=c"]


@pytest.mark.parametrize(
    ("slices", "given"),
    [
        pytest.param(here(device("a", model="x"), device("b")), ["r0=a"], id="behind-the-one-taken"),
        pytest.param(here(device("b"), device("a", model="x")), AllocationError, id="before-the-one-taken"),
    ],
)
def test_errors_come_only_from_visited_devices(slices: list[ResourceSlice], given: Any) -> None:
    claim = make_claim(exactly(1, IS_X))
    if given is AllocationError:
        with pytest.raises(
            AllocationError, match="claim default/claim: selector #0: CEL runtime error: no such key: mo"
        ):
            allocate(slices, claim)
    else:
        assert allocated_devices(allocate(slices, claim)) == given


def test_an_error_of_a_class_names_the_class() -> None:
    with pytest.raises(AllocationError, match="class gpu: selector #1: CEL compile error: "):
        allocate(ABC, make_claim(exactly()), classes=[make_class("gpu", "true", "device.nonsense")])


SOME = first_of({**subrequest(1), "allocationMode": "Some"})


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        pytest.param(exactly(of="none"), 'could not retrieve device class none: .* "none" not found', id="no-class"),
        pytest.param(exactly(of=""), "missing device class name", id="no-class-name"),
        pytest.param(DeviceRequest(), "unknown request type", id="empty"),
        pytest.param(SOME, "claim default/claim, request s0: unsupported count mode Some", id="unknown-mode"),
    ],
)
def test_invalid_requests_are_errors(request_: DeviceRequest, text: str) -> None:
    with pytest.raises(AllocationError, match=text):
        allocate(ABC, make_claim(request_))


def test_an_unknown_constraint_is_an_error() -> None:
    with pytest.raises(AllocationError, match="claim default/claim, constraint #0: empty constraint"):
        allocate(ABC, make_claim(exactly(), constraints=[{}]))


# Alternatives.


def test_the_first_feasible_alternative_is_used() -> None:
    slices = here(device("a", model="x"), device("b", model="x"))
    claim = make_claim(first_of(subrequest(1, IS_Y), subrequest(2, IS_X), subrequest(1)))
    assert allocated_devices(allocate(slices, claim)) == ["r0/s1=a", "r0/s1=b"]


def test_a_later_alternative_is_used_in_favour_of_the_next_request() -> None:
    claim = make_claim(first_of(subrequest(3), subrequest(1)), exactly(2))
    assert allocated_devices(allocate(ABC, claim)) == ["r0/s1=a", "r1=b", "r1=c"]


def test_a_later_alternative_is_used_in_favour_of_the_next_claim() -> None:
    one, two = make_claim(first_of(subrequest(3), subrequest(2)), name="one"), make_claim(exactly(), name="two")
    assert allocated_devices(allocate(ABC, one, two)) == ["r0/s1=a", "r0/s1=b", "r0=c"]


def test_alternatives_are_validated_before_the_search() -> None:
    broken = [*here(device("a")), make_slice(device("z"), node="n", pool="half", of=2)]
    with pytest.raises(AllocationError, match=f"request s1: asks for all .* pool {DRIVER}/half is currently being upd"):
        allocate(broken, make_claim(first_of(subrequest(1), subrequest("all"))))


# Pools.


def test_devices_come_from_other_pools_while_one_is_incomplete() -> None:
    half = make_slice(device("z"), node="n", pool="a-half", of=2)
    assert allocated_devices(allocate([half, *ABC], make_claim(exactly()))) == ["r0=a"]


@pytest.mark.parametrize(
    ("count", "expected"), [pytest.param(1, ["r0=a"], id="enough"), pytest.param(9, INVALID_POOLS, id="too-few")]
)
def test_invalid_pools_are_reported_only_if_devices_are_missing(count: int, expected: list[str] | str) -> None:
    invalid = make_slice(device("z"), device("z"), node="n", pool="broken")
    assert allocated_devices(allocate([invalid, *ABC], make_claim(exactly(count)))) == expected


def test_all_devices_are_an_error_while_a_pool_is_invalid() -> None:
    invalid = make_slice(device("z"), device("z"), node="n", pool="broken")
    with pytest.raises(AllocationError, match=f"pool {DRIVER}/broken is currently invalid"):
        allocate([invalid, *ABC], make_claim(exactly("all")))


# Devices in use.


def using(*results: dict[str, Any]) -> AllocatedDevices:
    return AllocatedDevices([make_allocation({"pool": "n", **result}) for result in results])


def test_devices_in_use_are_skipped() -> None:
    assert allocated_devices(allocate(ABC, make_claim(exactly()), in_use=using({"device": "a"}))) == ["r0=b"]
    assert (
        allocated_devices(allocate(ABC, make_claim(exactly("all")), in_use=using({"device": "b"}))) == CANNOT_ALLOCATE
    )


def test_admin_access_uses_devices_in_use() -> None:
    claim = make_claim(exactly(3, adminAccess=True))
    outcome = allocate(ABC, claim, in_use=using({"device": "a"}))
    assert allocated_devices(outcome) == ["r0=a", "r0=b", "r0=c"]


def test_admin_access_uses_a_device_once_per_claim_and_keeps_it_from_other_claims() -> None:
    watching = make_claim(exactly(2, adminAccess=True), exactly(1, adminAccess=True), name="one")
    assert allocated_devices(allocate(ABC, watching)) == ["r0=a", "r0=b", "r1=c"]
    also = make_claim(exactly(1, adminAccess=True), name="two")
    assert allocated_devices(allocate(ABC, watching, also)) == ["r0=a", "r0=b", "r1=c", "r0=a"]
    assert allocated_devices(allocate(ABC, watching, make_claim(exactly(), name="two"))) == CANNOT_ALLOCATE


# Shares and capacity.

SHARED = device("s", api={"allowMultipleAllocations": True, "capacity": {"memory": {"value": "8Gi"}}})


def taking(amount: str) -> DeviceRequest:
    return exactly(capacity={"requests": {"memory": amount}})


@pytest.mark.parametrize(
    ("amounts", "given"),
    [
        pytest.param(["3Gi", "5Gi"], ["r0=s", "r1=s"], id="fits"),
        pytest.param(["3Gi", "6Gi"], CANNOT_ALLOCATE, id="too-much"),
    ],
)
def test_requests_share_a_device(amounts: list[str], given: list[str] | str) -> None:
    assert allocated_devices(allocate(here(SHARED), make_claim(*map(taking, amounts)))) == given


@pytest.mark.parametrize(("held", "fit"), [("5Gi", True), ("6Gi", False)])
def test_shares_in_use_count(held: str, fit: bool) -> None:
    in_use = using({"device": "s", "shareID": "1", "consumedCapacity": {"memory": held}})
    outcome = allocated_devices(allocate(here(SHARED), make_claim(taking("3Gi")), in_use=in_use))
    assert outcome == (["r0=s"] if fit else CANNOT_ALLOCATE)


def test_a_shareable_device_in_whole_use_is_not_shared() -> None:
    assert (
        allocated_devices(allocate(here(SHARED), make_claim(taking("1")), in_use=using({"device": "s"})))
        == CANNOT_ALLOCATE
    )


def test_all_devices_are_those_with_enough_capacity() -> None:
    small = device("small", api={"capacity": {"memory": {"value": "1Gi"}}})
    large = device("large", api={"capacity": {"memory": {"value": "9Gi"}}})
    claim = make_claim(exactly("all", capacity={"requests": {"memory": "2Gi"}}))
    assert allocated_devices(allocate(here(small, large), claim)) == ["r0=large"]


# Counters.


def partitions(*devices: Device, **counters: str) -> list[ResourceSlice]:
    shared = make_slice(node="n", name="counters", of=2, counters=counters)
    return [shared, make_slice(*devices, node="n", name="devices", of=2)]


WHOLE, HALF, QUARTER = (device(name, consumes={"memory": size}) for name, size in zip("whq", "421", strict=True))


@pytest.mark.parametrize(
    ("count", "memory", "given"),
    [
        pytest.param(1, "4", ["r0=w"], id="the-whole"),
        pytest.param(2, "4", ["r0=h", "r0=q"], id="parts"),
        pytest.param(3, "7", ["r0=w", "r0=h", "r0=q"], id="everything"),
        pytest.param(3, "6", CANNOT_ALLOCATE, id="one-too-many"),
    ],
)
def test_partitions_of_a_device_share_its_counters(count: int, memory: str, given: list[str] | str) -> None:
    outcome = allocate(partitions(WHOLE, HALF, QUARTER, memory=memory), make_claim(exactly(count)))
    assert allocated_devices(outcome) == given


def test_allocated_partitions_have_consumed_their_part() -> None:
    slices = partitions(WHOLE, HALF, QUARTER, memory="4")
    assert allocated_devices(allocate(slices, make_claim(exactly()), in_use=using({"device": "h"}))) == ["r0=q"]


def test_a_counter_that_is_overdrawn_stops_every_device_that_consumes_any() -> None:
    slices = partitions(WHOLE, device("x", consumes={"cores": "0"}), device("y"), memory="3", cores="1")
    assert allocated_devices(allocate(slices, make_claim(exactly()), in_use=using({"device": "w"}))) == ["r0=y"]


def test_counters_of_a_shared_device_are_consumed_once() -> None:
    shared = device("s", consumes={"memory": "4"}, api={"allowMultipleAllocations": True})
    slices = partitions(shared, memory="4")
    assert allocated_devices(allocate(slices, make_claim(exactly(), exactly()))) == ["r0=s", "r1=s"]
    one_share = using({"device": "s", "shareID": "1", "consumedCapacity": {"x": "1"}})
    assert allocated_devices(allocate(slices, make_claim(exactly()), in_use=one_share)) == ["r0=s"]


def test_devices_for_other_nodes_consume_the_same_counters() -> None:
    zone = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]}
    slices = [
        make_slice(pool="p", name="counters", of=3, counters={"memory": "4"}, allNodes=True),
        make_slice(WHOLE, pool="p", name="far", of=3, nodeSelector=zone),
        make_slice(HALF, pool="p", name="near", of=3, allNodes=True),
    ]
    assert allocated_devices(allocate(slices, make_claim(exactly()))) == ["r0=h"]
    held = AllocatedDevices([make_allocation({"pool": "p", "device": "w"})])
    assert allocated_devices(allocate(slices, make_claim(exactly()), in_use=held)) == CANNOT_ALLOCATE


# Taints.


@pytest.mark.parametrize(
    ("effect", "tolerations", "taken"),
    [
        pytest.param("NoSchedule", [], False, id="tainted"),
        pytest.param("NoExecute", [], False, id="tainted-strongly"),
        pytest.param("None", [], True, id="for-information"),
        pytest.param("NoSchedule", [{"operator": "Exists"}], True, id="all-tolerated"),
        pytest.param("NoSchedule", [{"key": "k", "value": "v"}], True, id="tolerated"),
        pytest.param("NoSchedule", [{"key": "k", "value": "w"}], False, id="another-value"),
        pytest.param("NoSchedule", [{"operator": "Exists", "effect": "NoExecute"}], False, id="another-effect"),
    ],
)
@pytest.mark.parametrize("count", [1, "all"])
def test_taints(effect: str, tolerations: list[dict[str, str]], taken: bool, count: int | str) -> None:
    slices = here(device("t", api={"taints": [{"key": "k", "value": "v", "effect": effect}]}))
    outcome = allocate(slices, make_claim(exactly(count, tolerations=tolerations)))
    assert allocated_devices(outcome) == (["r0=t"] if taken else CANNOT_ALLOCATE)


# Constraints.


def test_devices_of_a_claim_match() -> None:
    slices = here(device("a", model="x"), device("b", model="y"), device("c", model="y"))
    claim = make_claim(exactly(2), constraints=[{"matchAttribute": MODEL}])
    assert allocated_devices(allocate(slices, claim)) == ["r0=b", "r0=c"]


def test_all_devices_that_do_not_match_are_an_error() -> None:
    slices = here(device("a", model="x"), device("b", model="y"))
    claim = make_claim(exactly("all"), constraints=[{"matchAttribute": MODEL}])
    with pytest.raises(AllocationError, match=f"request r0: cannot add device {DRIVER}/n/b because a claim constraint"):
        allocate(slices, claim)


def test_a_violated_constraint_resets_the_previous_constraint() -> None:
    # "distinct" stores one device per request and drops it when any device of the request is refused: so the second
    # "x" is allocated although the first is still in the claim.
    slices = here(device("a", model="x", root="1"), device("b", model="y"), device("c", model="x", root="1"))
    constraints = [{"distinctAttribute": MODEL}, {"matchAttribute": f"{DRIVER}/root"}]
    assert allocated_devices(allocate(slices, make_claim(exactly(2), constraints=constraints))) == ["r0=a", "r0=c"]


# Results.


def result_of(slices: list[ResourceSlice], claim: Any, **options: Any) -> Any:
    outcome = allocate(slices, claim, **options)
    return outcome.results([claim])[0]  # type: ignore[union-attr]


def test_a_result_has_the_fields_for_the_driver() -> None:
    fields = {"bindingConditions": ["Ready"], "bindingFailureConditions": ["Broken"]}
    claim = make_claim(first_of(subrequest(1, tolerations=[{"operator": "Exists"}])))
    (result,) = result_of(here(device("a", api=fields)), claim).devices.results
    assert (result.request, result.driver, result.pool, result.device) == ("r0/s0", DRIVER, "n", "a")
    assert result.tolerations[0].operator == "Exists"
    assert (result.binding_conditions, result.binding_failure_conditions) == (("Ready",), ("Broken",))
    assert (result.admin_access, result.share_id, result.consumed_capacity) == (None, None, {})


def test_a_share_has_an_id_and_its_consumed_capacity() -> None:
    claim = make_claim(taking("3Gi"), taking("1Gi"))
    first, second = result_of(here(SHARED), claim).devices.results
    assert first.share_id != second.share_id
    assert [first.consumed_capacity, second.consumed_capacity] == [{"memory": "3Gi"}, {"memory": "1Gi"}]
    assert (
        result_of(here(SHARED), make_claim(taking("3Gi"), name="other")).devices.results[0].share_id != first.share_id
    )


def test_a_result_has_admin_access() -> None:
    assert result_of(ABC, make_claim(exactly(adminAccess=True))).devices.results[0].admin_access is True


ZONE_A = {"key": "zone", "operator": "In", "values": ["a", "b"]}
ZONE_A_AGAIN = {"key": "zone", "operator": "In", "values": ["b", "a"]}
RACK = {"key": "rack", "operator": "Exists"}


def term(*expressions: dict[str, object]) -> dict[str, object]:
    return {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}


def network(selector: dict[str, object] | None, name: str, **fields: Any) -> ResourceSlice:
    where = {"allNodes": True} if selector is None else {"nodeSelector": selector}
    return make_slice(device(name, api=fields), pool=name, **where)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("slices", "keys"),
    [
        pytest.param([make_slice(device("a"), device("b"), node="n")], ["metadata.name"], id="local"),
        pytest.param([network(None, "a"), network(None, "b")], None, id="everywhere"),
        pytest.param([network(term(ZONE_A), "a"), network(term(ZONE_A_AGAIN, RACK), "b")], ["zone", "rack"], id="both"),
        pytest.param([network(None, "a"), network(term(RACK), "b", bindsToNode=True)], ["metadata.name"], id="binds"),
        pytest.param([network(term(RACK), "a"), make_slice(device("b"), node="n")], ["metadata.name"], id="mixed"),
    ],
)
def test_an_allocation_has_a_node_selector(slices: list[ResourceSlice], keys: list[str] | None) -> None:
    node = make_node("n", labels={"zone": "a", "rack": "1"})
    selector = result_of(slices, make_claim(exactly(2)), node=node).node_selector
    if keys is None:
        assert selector is None
        return
    (found,) = selector.node_selector_terms
    assert isinstance(found, NodeSelectorTerm)
    assert [item.key for item in (*found.match_fields, *found.match_expressions)] == keys


def test_a_node_selector_with_several_terms_is_an_error() -> None:
    either = {"nodeSelectorTerms": [{"matchExpressions": [RACK]}, {"matchExpressions": [ZONE_A]}]}
    with pytest.raises(AllocationError, match=r"create NodeSelector for claim claim: unsupported .* with 2 terms"):
        allocate([network(either, "a")], make_claim(exactly()), node=make_node("n", labels={"rack": "1"}))


def test_configurations_of_classes_are_listed_once_and_those_of_the_claim_per_request() -> None:
    def config(text: str, *requests: str) -> dict[str, Any]:
        return {"requests": list(requests), "opaque": {"driver": DRIVER, "parameters": text}}

    slices = here(device("a"), device("b"), device("c"))
    classes = [make_class("gpu", config=_configs("gpu-1", "gpu-2")), make_class("nic", config=_configs("nic"))]
    claim = make_claim(
        exactly(),
        first_of(subrequest(9), subrequest(1, of="nic")),
        exactly(),
        config=[config("all"), config("two", "r0", "r1"), config("alt", "r1/s1"), config("unmet", "r1/s0")],
    )
    found = result_of(slices, claim, classes=classes).devices.config
    assert [(item.source, item.requests, item.opaque.parameters) for item in found] == [
        ("FromClass", ("r0", "r2"), "gpu-1"),
        ("FromClass", ("r0", "r2"), "gpu-2"),
        ("FromClass", ("r1/s1",), "nic"),
        ("FromClaim", (), "all"),
        ("FromClaim", ("r0", "r1"), "two"),
        ("FromClaim", ("r0", "r1"), "two"),
        ("FromClaim", ("r1/s1",), "alt"),
    ]


def _configs(*texts: str) -> Any:
    return tuple(DeviceConfiguration(opaque=OpaqueConfiguration(driver=DRIVER, parameters=text)) for text in texts)


# Limits.


def test_a_search_ends_at_its_timeout() -> None:
    with pytest.raises(AllocationTimeout, match="node n: timed out trying to allocate devices"):
        allocate(ABC, make_claim(exactly()), timer=lambda: lambda: True)


def test_a_deep_search_does_not_exhaust_the_interpreter() -> None:
    many = here(*(device(f"d{number:04}") for number in range(1600)))
    claims = [make_claim(exactly(32), name=f"c{number}") for number in range(50)]
    assert len(allocated_devices(allocate(many, *claims))) == 1600


@pytest.mark.parametrize(
    "claims",
    [
        pytest.param([make_claim(exactly(31))], id="one-too-many-of-thirty"),
        pytest.param([make_claim(exactly(20)), make_claim(exactly(20))], id="two-claims-for-the-same-devices"),
        pytest.param([make_claim(exactly(15)), make_claim(exactly(1, "false"))], id="a-claim-that-nothing-can-meet"),
        pytest.param(
            [make_claim(exactly(15)), make_claim(exactly(2), constraints=[{"matchAttribute": MODEL}])],
            id="a-claim-whose-constraint-nothing-can-meet",
        ),
    ],
)
def test_hopeless_searches_end_early(claims: list[Any]) -> None:
    # Each of these has more than ten million ways to fail.
    steps = 0

    def expired() -> bool:
        nonlocal steps
        steps += 1
        return steps > 10_000

    thirty = here(*(device(f"d{number:02}") for number in range(30)))
    assert allocated_devices(allocate(thirty, *claims, timer=lambda: expired)) == CANNOT_ALLOCATE


def test_pruning_does_not_hide_an_error_of_the_full_search() -> None:
    slices = here(device("a", model="x"), device("b"))
    with pytest.raises(AllocationError, match="no such key: model"):
        allocate(slices, make_claim(exactly(1, IS_X), exactly(1, "false")))


def test_pruning_does_not_hide_a_constraint_violated_by_one_of_all_devices() -> None:
    slices = here(device("a", model="x"), device("b", model="y"), device("c", model="y"))
    claim = make_claim(exactly(), exactly("all"), constraints=[{"matchAttribute": MODEL}])
    with pytest.raises(AllocationError, match=f"request r1: cannot add device {DRIVER}/n/a"):
        allocate(slices, claim)


def test_requests_for_one_shared_device_are_not_pruned() -> None:
    claims = [make_claim(exactly(2), name="one"), make_claim(exactly(1), name="two")]
    shared = device("t", api={"allowMultipleAllocations": True})
    assert allocated_devices(allocate(here(device("a"), shared), *claims)) == ["r0=a", "r0=t", "r0=t"]


# Cached results.


class Counting:
    """Counts the started searches."""

    def __init__(self) -> None:
        self.searches = 0

    def __call__(self) -> Any:
        self.searches += 1
        return lambda: False


def test_a_result_is_cached_for_claims_with_an_equal_spec() -> None:
    in_use, memo, searches = AllocatedDevices(), AllocationMemo(), Counting()
    index, classes, node = PoolIndex(ABC), {"gpu": make_class()}, make_node("n")

    def ask(name: str) -> list[str] | str:
        allocator = Allocator(index, classes, in_use, SELECTORS, memo)
        return allocated_devices(allocator.allocate(node, [make_claim(exactly(), name=name)], timer=searches))

    assert [ask("one"), ask("two")] == [["r0=a"], ["r0=a"]]
    assert searches.searches == 1
    in_use.add(make_allocation({"pool": "elsewhere", "device": "a"}))
    assert (ask("three"), searches.searches) == (["r0=a"], 1)
    in_use.add(make_allocation({"pool": "n", "device": "a"}))
    assert (ask("four"), searches.searches) == (["r0=b"], 2)
    memo.begin(1)
    assert (ask("five"), searches.searches) == (["r0=b"], 3)
    index = PoolIndex(here(device("z")))
    assert (ask("six"), searches.searches) == (["r0=z"], 4)


def test_a_cached_result_has_this_claims_own_share_id() -> None:
    memo, node, index = AllocationMemo(), make_node("n"), PoolIndex(here(SHARED))
    ids = set()
    for name in ("one", "two"):
        claim = make_claim(taking("1Gi"), name=name)
        allocator = Allocator(index, {"gpu": make_class()}, AllocatedDevices(), SELECTORS, memo)
        outcome = allocator.allocate(node, [claim])
        ids.add(outcome.results([claim])[0].devices.results[0].share_id)  # type: ignore[union-attr]
    assert len(ids) == 2


def test_the_memo_is_bounded() -> None:
    memo, searches = AllocationMemo(limit=2), Counting()
    allocator = Allocator(
        PoolIndex([make_slice(device("a"), allNodes=True)]), {"gpu": make_class()}, AllocatedDevices(), SELECTORS, memo
    )
    claims = [make_claim(exactly())]
    for name in ("n1", "n2", "n1", "n3", "n1"):
        assert allocated_devices(allocator.allocate(make_node(name), claims, timer=searches)) == ["r0=a"]
    assert searches.searches == 4
