"""Random slices, claims and pods that request devices."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from bayplan.objects.core import (
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Pod,
    PodResourceClaim,
    PodResourceClaimStatus,
    PodStatus,
)
from bayplan.objects.meta import Condition, OwnerReference
from bayplan.objects.resource import (
    AllocatedDeviceStatus,
    AllocationResult,
    DeviceRequest,
    ResourceClaim,
    ResourceSlice,
)
from naive.twin import GPU, Case, Cluster
from support.builders.devices import (
    DRIVER,
    device,
    exactly,
    first_of,
    make_allocation,
    make_claim,
    make_class,
    make_slice,
    subrequest,
)
from support.builders.framework import make_container, make_node, make_pod, replace_fields

NOW, WAIT = datetime(2026, 1, 1, tzinfo=UTC), timedelta(seconds=600)
IMPLICIT = "deviceclass.resource.kubernetes.io/"
SPECIAL = "resource.kubernetes.io/extended-resource-claim"
ZONES = st.sampled_from(("a", "b"))
IN_ZONE = {zone: NodeSelector((NodeSelectorTerm((NodeSelectorRequirement("zone", "In", (zone,)),)),)) for zone in "ab"}
EXPRESSIONS = (
    f'device.attributes["{DRIVER}"].?model.orValue("") == "x"',
    f'device.attributes["{DRIVER}"].model == "x"',
    f'device.attributes["{DRIVER}"].model == "y"',
)


def rarely(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from((usual,) * 12 + others)


@st.composite
def devices(draw: st.DrawFn, prefix: str, *, consuming: bool = False, **api: Any) -> list[Any]:
    made = []
    for number in range(draw(st.integers(1, 3))):
        attributes = draw(rarely({"model": draw(st.sampled_from("xy")), "root": draw(st.integers(1, 2))}, {}))
        fields = {**api, "taints": [{"key": "k", "effect": draw(st.sampled_from(("NoSchedule", "None")))}]}
        if draw(rarely(True, *(False,) * 8)):
            del fields["taints"]
        consumes = {draw(rarely("memory", "nothing")): draw(st.sampled_from("123"))} if consuming else None
        name = f"{prefix}-{draw(rarely(number, 0))}"
        made.append(device(name, consumes=consumes, api=fields, **attributes))
    return made


@st.composite
def slices(draw: st.DrawFn, names: Sequence[str]) -> list[ResourceSlice]:
    found = []
    for name in names:
        if draw(rarely(True, *(False,) * 4)):
            found.append(make_slice(*draw(devices(name)), node=name, name=f"{name}-1", of=draw(rarely(1, 2))))
        if draw(rarely(False, True)):
            found.append(make_slice(*draw(devices(f"{name}-late")), node=name, name=f"{name}-2", generation=2))
    if draw(st.booleans()):
        where = draw(st.sampled_from(({"allNodes": True}, {"nodeSelector": NEAR_A}, {"perDeviceNodeSelection": True})))
        own = draw(st.sampled_from(({"nodeName": names[0]}, {"nodeSelector": NEAR_A})))
        per_device = own if "perDeviceNodeSelection" in where else {}
        found.append(make_slice(*draw(devices("net", **per_device)), pool="net", **where))
    if draw(st.booleans()):
        of = len(names) + 1
        supply = {"memory": draw(st.sampled_from("0135"))}
        found.append(make_slice(pool="cut", name="cut", of=of, counters=supply, allNodes=True))
        for name in names:
            parts = draw(devices(f"cut-{name}", consuming=True))
            found.append(make_slice(*parts, node=name, pool="cut", name=f"cut-{name}", of=of))
    return found


NEAR_A = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}


@st.composite
def wishes(draw: st.DrawFn) -> dict[str, Any]:
    expressions = draw(st.lists(st.sampled_from(EXPRESSIONS), max_size=1))
    tolerations = draw(st.sampled_from(((), ({"operator": "Exists"},))))
    count = draw(rarely(1, *(2, 3) * 3, "all", 33))
    return subrequest(count, *expressions, of=draw(rarely("gpu", "plain", "gone")), tolerations=list(tolerations))


@st.composite
def requests(draw: st.DrawFn) -> DeviceRequest:
    if draw(st.booleans()):
        preferred = subrequest(1, EXPRESSIONS[0])  # alternatives that only some nodes have score better
        others = draw(st.lists(wishes(), min_size=1, max_size=2))
        return first_of(
            *draw(st.sampled_from(((preferred, subrequest(1)), (preferred, *others), (*others, preferred))))
        )
    expressions = draw(st.lists(st.sampled_from(EXPRESSIONS), max_size=1))
    return exactly(draw(st.sampled_from((1, 1, 2, "all"))), *expressions, of=draw(rarely("gpu", "gone")))


@st.composite
def allocations(draw: st.DrawFn, names: Sequence[str]) -> AllocationResult:
    pool = draw(st.sampled_from((*names, "net")))
    result: dict[str, Any] = {"pool": pool, "device": f"{pool}-{draw(st.integers(0, 2))}"}
    result["request"] = draw(st.sampled_from(("r0", "r0/s0", "r0/s1")))
    if draw(st.booleans()):
        result.update(bindingConditions=["ready"], bindingFailureConditions=["broken"])
    since = draw(st.sampled_from((NOW - 2 * WAIT, NOW - WAIT / 2, None)))
    selector = draw(st.sampled_from((None, None, IN_ZONE["a"], IN_ZONE["b"])))
    return replace_fields(make_allocation(result), node_selector=selector, allocation_timestamp=since)


@st.composite
def claims(draw: st.DrawFn, name: str, names: Sequence[str], pod: Pod, *, busy: bool = False) -> ResourceClaim:
    constraints = draw(rarely((), *({kind: f"{DRIVER}/root"} for kind in ("matchAttribute", "distinctAttribute"))))
    allocation = draw(allocations(names)) if busy or draw(st.sampled_from((False, False, True))) else None
    claim = make_claim(
        *draw(st.lists(requests(), min_size=1, max_size=draw(st.integers(1, 2)))),
        name=name,
        constraints=[constraints] if constraints else (),
        allocation=allocation,
    )
    if allocation is not None and draw(st.booleans()):
        (result,) = allocation.devices.results
        conditions = [{"type": draw(st.sampled_from(("ready", "broken"))), "status": draw(rarely("True", "False"))}]
        claim = replace_fields(claim, status={"devices": (status_of(result, conditions),)})
    owner = OwnerReference(kind="Pod", name=pod.name, uid=pod.uid, controller=True)
    deleted = draw(rarely(None, None, None, NOW))
    return replace_fields(claim, metadata={"owner_references": (owner,), "deletion_timestamp": deleted})


def status_of(result: Any, conditions: list[dict[str, str]]) -> AllocatedDeviceStatus:
    listed = tuple(Condition(type=each["type"], status=each["status"]) for each in conditions)
    return AllocatedDeviceStatus(driver=result.driver, pool=result.pool, device=result.device, conditions=listed)


CLASSES = st.tuples(
    st.sampled_from((GPU, GPU, None)).map(
        lambda name: make_class("gpu", created="2025-01-02T00:00:00Z", extended_resource_name=name)
    ),
    st.sampled_from((GPU, None, None)).map(
        lambda name: make_class("rival", "false", created="2025-01-03T00:00:00Z", extended_resource_name=name)
    ),
    st.just(make_class("plain", EXPRESSIONS[0], created="2025-01-01T00:00:00Z")),
)
AMOUNTS = st.fixed_dictionaries(
    {}, optional={GPU: st.sampled_from("1120"), IMPLICIT + "plain": st.sampled_from("12"), "cpu": st.just("1")}
)
CONTAINERS = st.lists(AMOUNTS.map(lambda amounts: make_container(requests=amounts)), min_size=1, max_size=2)
INIT = st.lists(
    st.builds(
        lambda amounts, policy: make_container(requests=amounts, restart_policy=policy),
        AMOUNTS,
        st.sampled_from((None, "Always")),
    ),
    max_size=2,
)


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    """A pod with claims, or with extended resources, or both."""
    kind = draw(st.sampled_from(("claims", "claims", "resources", "both")))
    fields: dict[str, Any] = {}
    if kind != "resources":
        named = [PodResourceClaim(name, resource_claim_name=name) for name in ("c0", "c1")]
        gone = PodResourceClaim("c9", resource_claim_name="c9")
        made = PodResourceClaim("made", resource_claim_template_name="template")
        listed = st.lists(st.sampled_from((*named * 5, made, made, gone)), min_size=1, max_size=2, unique=True)
        fields["resource_claims"] = tuple(draw(listed))
        statuses = draw(rarely((PodResourceClaimStatus("made", "c1"),), (), (PodResourceClaimStatus("made", None),)))
        fields["status"] = PodStatus(resource_claim_statuses=statuses)
    if kind != "claims":
        fields.update(containers=tuple(draw(CONTAINERS)), init_containers=tuple(draw(INIT)))
    return make_pod("incoming", **fields)


@st.composite
def specials(draw: st.DrawFn, pod: Pod) -> list[ResourceClaim]:
    """State that an earlier attempt may have left."""
    wanted = draw(rarely(None, (), (exactly(1),)))
    if wanted is None:
        return []
    claim = make_claim(*wanted, name="special")
    owner = OwnerReference(kind="Pod", name=pod.name, uid=pod.uid, controller=True)
    return [replace_fields(claim, metadata={"owner_references": (owner,), "annotations": {SPECIAL: "true"}})]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    names = [f"n{number}" for number in range(draw(st.integers(2, 3)))]
    room = st.sampled_from(({}, {}, {GPU: "0"}, {GPU: "4"}, {IMPLICIT + "plain": "2"}))
    nodes = tuple(make_node(name, labels={"zone": draw(ZONES)}, allocatable=draw(room)) for name in names)
    pod = draw(pods())
    stranger = make_pod("stranger")
    objects = (
        *draw(slices(names)),
        *draw(CLASSES),
        draw(claims("c0", names, pod)),
        draw(claims("c1", names, draw(rarely(pod, stranger)))),
        *(draw(claims(f"b{number}", names, stranger, busy=True)) for number in range(draw(st.integers(0, 2)))),
        *draw(specials(pod)),
    )
    return Case(pod, Cluster(nodes, (), objects))
