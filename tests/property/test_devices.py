"""Devices: the search agrees with its naive twin, and incremental allocation state with recomputed state."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayplan.devices.allocator import Allocator, NotAllocatable
from bayplan.devices.assumptions import AllocatedDevices, DeviceAssumptions
from bayplan.devices.device_requests import RequestAlternative
from bayplan.devices.errors import AllocationError
from bayplan.devices.identity import PoolId
from bayplan.devices.pools import PoolIndex
from bayplan.devices.search import AllocationSearch
from bayplan.objects.resource import AllocationResult, Device, DeviceRequest, ResourceClaim, ResourceSlice
from naive.device_search import NaiveSearch, TooManyError
from support.builders.devices import (
    DRIVER,
    SELECTORS,
    device,
    exactly,
    first_of,
    make_allocation,
    make_claim,
    make_class,
    make_slice,
    subrequest,
)
from support.builders.framework import make_node, replace_fields

relaxed = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])

EXPRESSIONS = [
    f'device.attributes["{DRIVER}"].?model.orValue("") == "x"',
    f'device.attributes["{DRIVER}"].model == "x"',
    "device.allowMultipleAllocations",
    "true",
]
AMOUNTS = st.sampled_from(["1", "2", "3", "1Gi"])


@st.composite
def devices(draw: Any, name: str, *, counters: bool) -> Device:
    attributes = draw(
        st.fixed_dictionaries({}, optional={"model": st.sampled_from("xy"), "root": st.sampled_from([1, 2, True])})
    )
    fields: dict[str, Any] = {"allowMultipleAllocations": draw(st.sampled_from([False, False, True]))}
    if draw(st.booleans()):
        fields["capacity"] = {"memory": {"value": draw(AMOUNTS)}}
    if draw(st.integers(0, 5)) == 0:
        fields["taints"] = [{"key": "k", "effect": "NoSchedule"}]
    consumes = {"memory": draw(st.sampled_from("0123"))} if counters and draw(st.booleans()) else None
    return device(name, consumes=consumes, api=fields, **attributes)


@st.composite
def published(draw: Any) -> list[ResourceSlice]:
    slices = []
    for pool in range(draw(st.integers(1, 2))):
        counters = draw(st.booleans())
        names = [f"p{pool}-{number}" for number in range(draw(st.integers(1, 5)))]
        made = [draw(devices(name, counters=counters)) for name in names]
        of = 2 if counters else 1
        slices.append(make_slice(*made, node="n", pool=f"p{pool}", name=f"s{pool}", of=of))
        if counters:
            supply = {"memory": draw(st.sampled_from("0246"))}
            slices.append(make_slice(node="n", pool=f"p{pool}", name=f"c{pool}", of=of, counters=supply))
    return slices


@st.composite
def wishes(draw: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if draw(st.integers(0, 3)) == 0:
        fields["capacity"] = {"requests": {"memory": draw(AMOUNTS)}}
    if draw(st.booleans()):
        fields["tolerations"] = [{"operator": "Exists"}]
    count = draw(st.sampled_from([1, 1, 2, 2, 3, 20, "all"]))
    return subrequest(count, *draw(st.lists(st.sampled_from(EXPRESSIONS), max_size=1)), **fields)


@st.composite
def requests(draw: Any) -> DeviceRequest:
    if draw(st.integers(0, 2)) == 0:
        return first_of(*draw(st.lists(wishes(), min_size=1, max_size=3)))
    wish = draw(wishes())
    count = wish.pop("count", "all")
    wish.pop("allocationMode")
    expressions = [item["cel"]["expression"] for item in wish.pop("selectors")]
    wish.pop("deviceClassName")
    return exactly(count, *expressions, adminAccess=draw(st.sampled_from([None, None, None, True])), **wish)


@st.composite
def claims(draw: Any, number: int) -> ResourceClaim:
    constraint = st.fixed_dictionaries(
        {}, optional={"requests": st.lists(st.sampled_from(["r0", "r1", "r0/s0"]), max_size=2)}
    )
    listed = []
    for found in draw(st.lists(constraint, max_size=2)):
        kind = draw(st.sampled_from(["matchAttribute", "distinctAttribute"]))
        listed.append({**found, kind: f"{DRIVER}/{draw(st.sampled_from(['model', 'root']))}"})
    wanted = draw(st.lists(requests(), min_size=1, max_size=2))
    return make_claim(*wanted, name=f"c{number}", constraints=listed)


@st.composite
def allocations(draw: Any) -> AllocationResult:
    result: dict[str, Any] = {"pool": draw(st.sampled_from(["p0", "p1"]))}
    result["device"] = f"{result['pool']}-{draw(st.integers(0, 4))}"
    if draw(st.booleans()):
        result["shareID"] = str(draw(st.integers(0, 9)))
        if draw(st.booleans()):
            result["consumedCapacity"] = {"memory": draw(AMOUNTS)}
    return make_allocation(result)


def twin(node: Any, index: PoolIndex, in_use: AllocatedDevices, wanted: list[ResourceClaim]) -> Any:
    """The result of the naive search: picks, None, or the text of an error.

    Claims are read as the allocator reads them.
    """
    allocator = Allocator(index, {"gpu": make_class()}, in_use, SELECTORS)
    search = AllocationSearch(node, index.pools_for(node), in_use, SELECTORS, lambda: False)
    try:
        asked: list[list[RequestAlternative]] = []
        for position, claim in enumerate(wanted):
            asked += allocator._requests(search, position, claim)
        return NaiveSearch(node, index.pools_for(node), in_use, SELECTORS, wanted).run(asked)
    except AllocationError as fault:
        return str(fault)
    except TooManyError:
        return None


def said(node: Any, index: PoolIndex, in_use: AllocatedDevices, wanted: list[ResourceClaim]) -> Any:
    """The allocator's result in the same form."""
    try:
        outcome = Allocator(index, {"gpu": make_class()}, in_use, SELECTORS).allocate(node, wanted)
    except AllocationError as fault:
        return str(fault)
    if isinstance(outcome, NotAllocatable):
        return None
    return [(pick.alternative.name, str(pick.device.id)) for picks in outcome.picks for pick in picks]


@relaxed
@given(st.data())
def test_the_search_agrees_with_its_naive_twin(data: st.DataObject) -> None:
    node, index = make_node("n"), PoolIndex(data.draw(published()))
    in_use = AllocatedDevices(data.draw(st.lists(allocations(), max_size=3)))
    wanted = [data.draw(claims(number)) for number in range(data.draw(st.integers(1, 3)))]
    assert said(node, index, in_use, wanted) == twin(node, index, in_use, wanted)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["observe", "withdraw", "begin", "finish", "assume", "restore"]),
        st.integers(0, 2),
        st.one_of(st.none(), allocations()),
        st.integers(1, 4),
    ),
    max_size=25,
)


@relaxed
@given(STEPS)
def test_the_allocation_state_equals_the_claims(steps: list[tuple[str, int, AllocationResult | None, int]]) -> None:
    devices = DeviceAssumptions()
    for step, number, allocation, version in steps:
        claim = replace_fields(make_claim(name=f"c{number}", version=str(version)), status={"allocation": allocation})
        match step:
            case "observe":
                devices.observe(claim)
            case "withdraw":
                devices.delete(claim.key)
            case "begin" if allocation is not None:
                devices.begin(claim, allocation)
            case "finish":
                devices.finish(claim.metadata.uid)
            case "assume":
                devices.assume(claim)
            case "restore":
                devices.restore(claim.key)
        held = {claim.metadata.uid: claim.status.allocation for claim in devices.claims.values()}
        for uid in (f"uid-c{other}" for other in range(3)):
            held[uid] = held.get(uid) or devices.pending(uid)
        assert devices.in_use == AllocatedDevices(found for found in held.values() if found is not None)


@relaxed
@given(st.lists(allocations(), max_size=8), st.data())
def test_touched_reports_every_change_of_a_pool(held: list[AllocationResult], data: st.DataObject) -> None:
    in_use, pools = AllocatedDevices(held), [PoolId(DRIVER, "p0")]
    before = in_use.latest_change_of(pools)
    change = data.draw(allocations())
    in_use.add(change)
    concerned = change.devices.results[0].pool == "p0"
    assert (in_use.latest_change_of(pools) != before) is concerned
