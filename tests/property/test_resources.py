"""The integer computation of a pod's requests against the exact one, for any pod."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.codec.quantity import QuantityText
from bayplan.objects.core import Container, ContainerStatus, Pod, PodSpec, PodStatus, ResourceRequirements
from bayplan.objects.meta import Condition, ObjectMeta
from bayplan.objects.resources import (
    NONZERO_DEFAULTS,
    accounted_nonzero,
    accounted_requests,
    amount_of,
    balanced_requests,
    filter_requests,
    fit_score_requests,
    has_same_request_inputs,
    has_same_status_requests,
    has_same_usage,
    is_accounted,
    pod_requests,
    request_inputs,
)
from bayplan.snapshot.intern_tables import InternTables
from bayplan.snapshot.pod_info import PodInfo

NAMES = ["cpu", "memory", "ephemeral-storage", "x.io/gpu", "hugepages-2Mi", "pods"]
TEXTS: list[QuantityText] = [
    "0",
    "1",
    "100m",
    "1n",
    "0.1m",
    "1.5",
    "1.5Gi",
    "128Mi",
    "1Pi",
    "1e3",
    "-1",
    "-1.5Gi",
    "10E",
    "8E",
    2,
    0.5,
]

resource_lists = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(TEXTS), max_size=4)
requirements = st.builds(ResourceRequirements, requests=resource_lists)
statuses = st.builds(
    ContainerStatus,
    name=st.sampled_from("abcd"),
    resources=st.none() | requirements,
    allocated_resources=st.none() | resource_lists,
)


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    simple = draw(st.booleans())
    containers = tuple(Container(name=name, resources=draw(requirements)) for name in "ab"[: draw(st.integers(0, 2))])
    if simple:
        return Pod(spec=PodSpec(containers=containers))
    init = tuple(
        Container(name=name, resources=draw(requirements), restart_policy=draw(st.sampled_from([None, "Always"])))
        for name in "cd"[: draw(st.integers(0, 2))]
    )
    level, overhead = draw(st.none() | requirements), draw(resource_lists)
    condition = Condition(type="PodResizePending", reason=draw(st.sampled_from(["Infeasible", "Deferred"])))
    status = PodStatus(
        container_statuses=tuple(draw(st.lists(statuses, max_size=2))),
        init_container_statuses=tuple(draw(st.lists(statuses, max_size=2))),
        conditions=(condition,) if draw(st.booleans()) else (),
        resources=draw(st.none() | requirements),
        allocated_resources=draw(st.none() | resource_lists),
    )
    spec = PodSpec(containers=containers, init_containers=init, resources=level, overhead=overhead)
    return Pod(spec=spec, status=status)


def exactly(pod: Pod, *, use_status: bool = False, scoring: bool = False) -> dict[str, int]:
    defaults = NONZERO_DEFAULTS if scoring else None
    requests = pod_requests(pod, use_status=use_status, skip_pod_level=scoring, non_missing=defaults)
    return {name: amount_of(name, quantity) for name, quantity in requests.items()}


@given(pods())
def test_both_ways_agree(pod: Pod) -> None:
    with_status = exactly(pod, use_status=True)
    assert balanced_requests(pod) == with_status
    assert accounted_requests(pod) == {name: with_status[name] for name in with_status if is_accounted(name)}
    assert filter_requests(pod) == {name: max(0, n) for name, n in exactly(pod).items() if is_accounted(name)}
    assert fit_score_requests(pod) == exactly(pod, scoring=True)


PARTS = ("containers", "init_containers", "overhead", "resources")
RUNNING = ("container_statuses", "init_container_statuses", "allocated_resources", "resources", "conditions")


@given(pods(), pods(), st.sets(st.sampled_from(PARTS)), st.sets(st.sampled_from(RUNNING)), st.booleans())
def test_versions_are_compared_without_computing_requests(
    pod: Pod, other: Pod, parts: set[str], running: set[str], bound: bool
) -> None:
    """The other version has some fields of another pod, and a condition without effect on requests."""
    spec = replace(pod.spec, **{name: getattr(other.spec, name) for name in parts})
    status = replace(pod.status, **{name: getattr(other.status, name) for name in running})
    if bound:
        status = replace(status, conditions=(*status.conditions, Condition(type="PodBound", reason="Bound")))
    later = Pod(spec=spec, status=status)
    assert has_same_request_inputs(pod, later) == (request_inputs(pod) == request_inputs(later))
    assert has_same_status_requests(pod.status, status) == has_same_request_inputs(
        pod, Pod(spec=pod.spec, status=status)
    )


def statuses_of(containers: tuple[Container, ...], told: str) -> tuple[ContainerStatus, ...]:
    """The container statuses of a kubelet for pods that run with their spec's resources: none, or equal ones."""
    if told == "nothing":
        return tuple(ContainerStatus(name=each.name) for each in containers)
    allocated = {each.name: each.resources.requests if told == "everything" else None for each in containers}
    return tuple(
        ContainerStatus(name=each.name, resources=each.resources, allocated_resources=allocated[each.name])
        for each in containers
    )


def started(pod: Pod, told: str) -> Pod:
    running = {
        "container_statuses": statuses_of(pod.spec.containers, told),
        "init_container_statuses": statuses_of(pod.spec.init_containers, told),
    }
    return replace(pod, status=replace(pod.status, **running))


WORDS = st.sampled_from(["nothing", "what runs", "everything"])


@given(pods(), pods(), st.sets(st.sampled_from(RUNNING)), st.none() | WORDS, st.none() | WORDS)
def test_versions_with_equal_requests_have_equal_effects(
    pod: Pod, other: Pod, running: set[str], first: str | None, then: str | None
) -> None:
    """Two versions with one spec, pending or running with their spec's resources."""
    later = replace(pod, status=replace(pod.status, **{name: getattr(other.status, name) for name in running}))
    before, after = started(pod, first) if first else pod, started(later, then) if then else later
    if has_same_usage(before, after):
        assert exactly(before, use_status=True) == exactly(after, use_status=True)
        assert accounted_requests(before) == accounted_requests(after)
        assert accounted_nonzero(before) == accounted_nonzero(after)
    else:
        assert not has_same_status_requests(before.status, after.status)


@given(pods(), WORDS)
def test_a_starting_pod_keeps_its_requests(pod: Pod, told: str) -> None:
    bare = replace(pod, status=replace(pod.status, container_statuses=(), init_container_statuses=(), resources=None))
    assert has_same_usage(bare, started(bare, told))


def test_statuses_of_duplicate_container_names_are_ambiguous() -> None:
    small, large = (
        Container(name="a", resources=ResourceRequirements(requests={"cpu": amount})) for amount in ("1", "4")
    )
    pod = Pod(spec=PodSpec(containers=(large,), init_containers=(small,)))
    assert not has_same_usage(pod, started(pod, "what runs"))


def amounts(info: PodInfo, vocabulary: InternTables) -> tuple[object, ...]:
    """All values computed from requests and ports, for columns and plugins."""
    weight = info.row_amounts(vocabulary)
    incoming = [info.cached(compute) for compute in (filter_requests, fit_score_requests, balanced_requests)]
    return (
        info.requests,
        info.nonzero,
        weight.amount_tuple,
        weight.amounts.tolist(),
        weight.upper_bound,
        info.host_ports,
        incoming,
    )


@given(pods(), st.sampled_from(["", "other"]), st.booleans())
def test_values_copied_from_an_equal_pod_equal_computed_ones(pod: Pod, namespace: str, complete: bool) -> None:
    vocabulary = InternTables()
    known = PodInfo(pod)
    if complete:
        known.precompute(vocabulary)
    other = replace(pod, metadata=ObjectMeta(name="other", uid="2", namespace=namespace, labels={"app": "b"}))
    assert has_same_request_inputs(pod, other)
    taken = known.from_same_template(other)
    assert amounts(taken, vocabulary) == amounts(PodInfo(other), vocabulary)
    assert (taken.pod, taken.uid, taken.namespaced_labels) == (other, "2", PodInfo(other).namespaced_labels)
    taken.requests["x.io/mine"] = 1
    taken.cached(filter_requests)["x.io/mine"] = 1
    assert "x.io/mine" not in {*known.requests, *known.cached(filter_requests)}
