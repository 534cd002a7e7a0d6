"""Gangs: enough pods at PreEnqueue, enough placed pods at Permit."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.framework.api.plugin import PermitWait
from bayplan.framework.api.status import Status
from bayplan.objects.core import Pod, PodSchedulingGroup
from bayplan.objects.workloads import PodGroup
from bayplan.plugins.gang_scheduling import WAITING_FOR_PLACEMENTS, WAITING_FOR_PODS, GangScheduling
from bayplan.snapshot import Catalog
from support.builders.framework import (
    FakeHandle,
    FilterResult,
    errored,
    evaluate_hints,
    filter_result,
    from_api,
    make_cycle,
    make_pod,
    unresolvable,
)


def member(name: str, *, group: str | None = "gang", **fields: Any) -> Pod:
    return make_pod(name, scheduling_group=PodSchedulingGroup(pod_group_name=group), **fields)


def gang(least: int | None = 2, name: str = "gang", namespace: str = "default") -> PodGroup:
    policy = {"basic": {}} if least is None else {"gang": {"minCount": least}}
    return from_api(
        PodGroup, {"metadata": {"name": name, "namespace": namespace}, "spec": {"schedulingPolicy": policy}}
    )


def handle(*groups: PodGroup, pods: tuple[Pod, ...] = ()) -> FakeHandle:
    return FakeHandle(Catalog(groups), group_pods=pods)


@pytest.mark.parametrize(
    ("pod", "groups", "known", "expected"),
    [
        pytest.param(make_pod(), [], [], None, id="no member of any group"),
        pytest.param(member("a", group=None), [], [], None, id="a group without a name"),
        pytest.param(
            member("a"),
            [],
            [member("a")],
            unresolvable('waiting for pods\'s pod group "gang" to appear in scheduling queue'),
            id="the group is not there",
        ),
        pytest.param(
            member("a"),
            [gang(namespace="other")],
            [member("a")],
            unresolvable('waiting for pods\'s pod group "gang" to appear in scheduling queue'),
            id="a namesake elsewhere",
        ),
        pytest.param(member("a"), [gang(None)], [], None, id="a group that is no gang"),
        pytest.param(member("a"), [gang(2)], [member("a")], unresolvable(WAITING_FOR_PODS), id="too few pods"),
        pytest.param(
            member("a"),
            [gang(2)],
            [member("a"), member("b", group="x")],
            unresolvable(WAITING_FOR_PODS),
            id="other pods do not count",
        ),
        pytest.param(member("a"), [gang(2)], [member("a"), member("b", node="n")], None, id="placed ones do"),
    ],
)
def test_pre_enqueue(pod: Pod, groups: list[PodGroup], known: list[Pod], expected: FilterResult | None) -> None:
    status = GangScheduling(handle(*groups, pods=tuple(known))).pre_enqueue(pod)
    assert (None if status is None else filter_result(status)) == expected


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(make_pod(), id="no member"),
        pytest.param(member("a", group="basic"), id="of a group that is no gang"),
    ],
)
def test_pods_that_permit_does_not_hold(pod: Pod) -> None:
    assert GangScheduling(handle(gang(None, name="basic"))).permit(make_cycle(pod), "n") is None


def test_a_deleted_group_is_an_error() -> None:
    status = GangScheduling(handle()).permit(make_cycle(member("a")), "n")
    assert isinstance(status, Status)
    assert filter_result(status) == errored(
        'failed to get podGroup default/gang: podgroup.scheduling.k8s.io "gang" not found'
    )


def test_the_first_pod_waits_and_activates_the_rest() -> None:
    world = handle(gang(2), pods=(member("a", node="n"), member("b"), member("c", group="x")))
    assert GangScheduling(world).permit(make_cycle(member("a")), "n") == PermitWait(300.0, WAITING_FOR_PLACEMENTS)
    assert set(world.activated) == {"b"}


def test_the_last_pod_allows_all_pods() -> None:
    first, last = member("a", node="n"), member("b", node="m")
    world = handle(gang(2), pods=(first, last))
    waiting = world.waiting_pods.add(first, {"GangScheduling": 300.0, "Other": 10.0}, 0.0)
    stranger = world.waiting_pods.add(member("c", group="x", node="n"), {"GangScheduling": 300.0}, 0.0)
    assert GangScheduling(world).permit(make_cycle(member("b")), "m") is None
    assert waiting.pending_plugins() == ["Other"]
    assert stranger.pending_plugins() == ["GangScheduling"]


@pytest.mark.parametrize(
    ("pod", "added", "hint"),
    [
        pytest.param(member("a"), member("b"), "Queue", id="a mate"),
        pytest.param(member("a"), member("b", group="x"), "Skip", id="of another group"),
        pytest.param(member("a"), member("b", namespace="other"), "Skip", id="of another namespace"),
        pytest.param(member("a"), make_pod("b"), "Skip", id="of no group"),
        pytest.param(make_pod("a"), make_pod("b"), "Skip", id="neither of any group"),
    ],
)
def test_pod_hints(pod: Pod, added: Pod, hint: str) -> None:
    assert evaluate_hints(GangScheduling(handle()), "Pod", pod, None, added) == [hint]


@pytest.mark.parametrize(
    ("pod", "added", "hint"),
    [
        pytest.param(member("a"), gang(), "Queue", id="its group"),
        pytest.param(member("a"), gang(name="x"), "Skip", id="another"),
        pytest.param(member("a"), gang(namespace="x"), "Skip", id="a namesake elsewhere"),
        pytest.param(make_pod(), gang(), "Skip", id="it has none"),
    ],
)
def test_group_hints(pod: Pod, added: PodGroup, hint: str) -> None:
    assert evaluate_hints(GangScheduling(handle()), "scheduling.k8s.io/PodGroup", pod, None, added) == [hint]
