"""Pods with lower requests: the total is reduced by the given amount, whatever the containers."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.objects.core import Container, Pod, ResourceRequirements
from bayplan.objects.pod_relaxations import (
    KINDS,
    REQUESTS,
    SuggestedChange,
    apply_change,
    lowest_requests,
    quantity,
    with_lower_requests,
)
from bayplan.objects.resources import filter_requests
from bayplan.testing import make_pod

amounts = st.fixed_dictionaries(
    {}, optional={"cpu": st.sampled_from(["250m", "1", "2500m"]), "memory": st.sampled_from(["100Mi", "1Gi"])}
)
requests = st.builds(ResourceRequirements, requests=amounts)
running = st.builds(Container, name=st.just("main"), resources=requests)
first = st.builds(
    Container, name=st.just("init"), resources=requests, restart_policy=st.sampled_from([None, None, "Always"])
)


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    return make_pod(
        containers=tuple(draw(st.lists(running, min_size=1, max_size=3))),
        init_containers=tuple(draw(st.lists(first, max_size=3))),
        overhead=draw(st.sampled_from([{}, {"cpu": "100m"}])),
        resources=draw(st.none() | st.just(ResourceRequirements(requests={"cpu": "8"}))),
    )


@settings(max_examples=60, deadline=None)
@given(pod=pods(), share=st.floats(0.01, 1.0))
def test_requests_are_reduced_by_the_given_amount(pod: Pod, share: float) -> None:
    before, lowest = filter_requests(pod), lowest_requests(pod)
    less = {name: max(1, int((amount - lowest.get(name, 0)) * share)) for name, amount in before.items() if amount}
    less = {name: by for name, by in less.items() if before[name] - by >= lowest.get(name, 0)}
    after = filter_requests(apply_change(pod, SuggestedChange(kind=REQUESTS, less=less)))
    assert {name: after.get(name, 0) for name in before} == {name: before[name] - less.get(name, 0) for name in before}


def test_the_largest_container_is_reduced_first() -> None:
    resources = [ResourceRequirements(requests={"cpu": cpu}) for cpu in ("1", "3")]
    pod = make_pod(containers=tuple(Container(name="c", resources=each) for each in resources))
    after = with_lower_requests(pod, {"cpu": 500})
    assert [each.resources.requests["cpu"] for each in after.spec.containers] == ["1", "2500m"]


def test_amounts_have_the_usual_notation() -> None:
    assert str(quantity("cpu", 1500)) == "1500m"
    assert str(quantity("memory", 3 << 30)) == "3Gi"
    assert str(quantity("nvidia.com/gpu", 2)) == "2"


def test_the_list_of_kinds_is_closed() -> None:
    assert set(KINDS) == {
        *("requests", "toleration", "selector", "spread"),
        *("hostPort", "gate", "eviction", "missingObject"),
    }
