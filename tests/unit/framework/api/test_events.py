"""Which registrations an event reaches, and what a plugin that says nothing is woken by."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.errors import PluginError
from bayplan.framework.api.events import (
    Action,
    ClusterEvent,
    Cure,
    Hint,
    Resource,
    queue_if,
)
from bayplan.framework.api.extension_points import (
    ATTEMPT_ORDER,
    BIND,
    BUILD_ORDER,
    FILTER,
    PRE_FILTER,
    SCORE,
    Point,
)
from bayplan.framework.runtime.event_registrations import EVERYTHING, cures_of

LABEL, TAINT = Action.UPDATE_NODE_LABEL, Action.UPDATE_NODE_TAINT


@pytest.mark.parametrize(
    ("resource", "action", "event_resource", "event_action", "reached"),
    [
        pytest.param("*", Action.ALL, "Node", Action.ADD, True, id="wildcard"),
        pytest.param("*", Action.ADD, "Node", Action.ADD, True, id="any-resource"),
        pytest.param("*", Action.ADD, "Node", Action.DELETE, False, id="any-resource-other-action"),
        pytest.param("Node", Action.ADD, "Node", Action.ADD, True, id="same"),
        pytest.param("Node", Action.ADD, "Pod", Action.ADD, False, id="other-resource"),
        pytest.param("Node", Action.ADD | LABEL, "Node", LABEL, True, id="one-of-two"),
        pytest.param("Node", Action.ADD | LABEL, "Node", TAINT, False, id="another-update"),
        pytest.param("Node", Action.ADD | TAINT, "Node", LABEL | TAINT, False, id="two-at-once-is-a-larger-number"),
        pytest.param("Node", TAINT | LABEL, "Node", LABEL | TAINT, True, id="both-at-once"),
        pytest.param("Node", Action.ADD | TAINT, "Node", Action.ADD | LABEL, True, id="smaller-number-and-shared-bit"),
        pytest.param("Node", LABEL, "Node", Action.UPDATE, False, id="generic-update-wants-the-full-mask"),
        pytest.param("Node", Action.UPDATE, "Node", Action.UPDATE, True, id="full-mask"),
        pytest.param("Node", Action.ALL, "Node", Action.UPDATE, True, id="everything-about-nodes"),
        pytest.param("Node", Action.UPDATE, "Node", LABEL, True, id="mask-takes-each-update"),
        pytest.param("Pod", Action.DELETE, "AssignedPod", Action.DELETE, True, id="pod-means-assigned"),
        pytest.param("Pod", Action.UPDATE, "UnschedulablePod", Action.UPDATE_POD_LABEL, True, id="pod-means-waiting"),
        pytest.param("AssignedPod", Action.DELETE, "Pod", Action.DELETE, False, id="assigned-does-not-mean-pod"),
        pytest.param("widgets.v1.x.io", Action.ADD, "widgets.v1.x.io", Action.ADD, True, id="custom"),
    ],
)
def test_who_is_meant(resource: str, action: Action, event_resource: str, event_action: Action, reached: bool) -> None:
    assert Cure(resource, action).matches(ClusterEvent(event_resource, event_action)) is reached


def test_bits_are_kube_schedulers() -> None:
    assert [int(action) for action in Action.__members__.values()] == [
        *(1 << bit for bit in range(13)),
        0b1111111111100,
        0b1111111111111,
    ]


def test_wildcard_events() -> None:
    assert ClusterEvent(Resource.ANY, Action.ALL).is_wildcard
    assert not ClusterEvent(Resource.ANY, Action.ADD).is_wildcard
    assert not ClusterEvent(Resource.NODE, Action.ALL).is_wildcard


def test_yes_and_no() -> None:
    assert (queue_if(True), queue_if(False)) == (Hint.QUEUE, Hint.SKIP)


# what a profile registers


class Quiet:
    name = "Quiet"

    def filter(self, *_: Any) -> None: ...


class Scorer:
    name = "Scorer"
    cured_by = (Cure(Resource.NODE, Action.ADD),)

    def score(self, *_: Any) -> int:
        return 0


def filtering(*cures: Any) -> Any:
    return type("Stated", (Quiet,), {"cured_by": cures})()


def test_a_plugin_that_says_nothing_is_woken_by_everything() -> None:
    assert cures_of(Quiet()) == EVERYTHING
    woken_by = {cure.resource for cure in EVERYTHING}
    assert Resource.RESOURCE_SLICE not in woken_by
    assert Resource.VOLUME_ATTACHMENT not in woken_by
    assert {cure.action for cure in EVERYTHING} == {Action.ALL}


def test_a_plugin_that_says_never_is_woken_by_nothing() -> None:
    assert cures_of(filtering()) == ()


def test_a_plugin_that_cannot_reject_registers_nothing() -> None:
    assert cures_of(Scorer()) == ()


@pytest.mark.parametrize(
    ("stated", "added"),
    [
        pytest.param(Cure(Resource.NODE, Action.ADD), True, id="node-add"),
        pytest.param(Cure(Resource.NODE, Action.ADD | LABEL), True, id="node-add-and-label"),
        pytest.param(Cure(Resource.NODE, Action.ADD | TAINT), False, id="taints-are-stated"),
        pytest.param(Cure(Resource.NODE, LABEL), False, id="no-new-nodes"),
        pytest.param(Cure(Resource.POD, Action.ADD), False, id="no-nodes"),
    ],
)
def test_whoever_waits_for_nodes_is_woken_by_taints(stated: Cure, added: bool) -> None:
    extra = (Cure(Resource.NODE, TAINT),) if added else ()
    assert cures_of(filtering(stated)) == (stated, *extra)


def test_a_cure_that_is_none_is_refused() -> None:
    with pytest.raises(PluginError, match="plugin \"Quiet\": cured_by holds 'Node'; it takes Cure"):
        cures_of(filtering("Node"))


# points


@pytest.mark.parametrize(
    ("point", "interface"),
    [(FILTER, "FilterPlugin"), (PRE_FILTER, "PreFilterPlugin"), (BIND, "BindPlugin")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_points_are_called_as_messages_call_them(point: Point, interface: str) -> None:
    assert point.interface == interface


def test_methods_make_a_plugin_part_of_a_point() -> None:
    assert [point.key for point in ATTEMPT_ORDER if point.extended_by(Quiet())] == ["filter"]
    assert SCORE.extended_by(Scorer)
    assert not FILTER.extended_by(type("NotCallable", (), {"filter": "no"}))


def test_both_orders_have_every_point_once() -> None:
    assert len(set(BUILD_ORDER)) == len(BUILD_ORDER) == 14
    assert set(BUILD_ORDER) == set(ATTEMPT_ORDER)
