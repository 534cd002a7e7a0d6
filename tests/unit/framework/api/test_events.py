"""Matches between events and registrations, and the default registrations of a plugin."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.errors import PluginError
from bayplan.framework.api.events import (
    ActionType,
    ClusterEvent,
    ClusterEventWithHint,
    EventResource,
    QueueingHint,
    queue_hint_if,
)
from bayplan.framework.api.extension_points import (
    ATTEMPT_ORDER,
    BIND,
    BUILD_ORDER,
    FILTER,
    PRE_FILTER,
    SCORE,
    ExtensionPoint,
)
from bayplan.framework.runtime.event_registrations import ALL_EVENTS, registered_events

LABEL, TAINT = ActionType.UPDATE_NODE_LABEL, ActionType.UPDATE_NODE_TAINT


@pytest.mark.parametrize(
    ("resource", "action", "event_resource", "event_action", "reached"),
    [
        pytest.param("*", ActionType.ALL, "Node", ActionType.ADD, True, id="wildcard"),
        pytest.param("*", ActionType.ADD, "Node", ActionType.ADD, True, id="any-resource"),
        pytest.param("*", ActionType.ADD, "Node", ActionType.DELETE, False, id="any-resource-other-action"),
        pytest.param("Node", ActionType.ADD, "Node", ActionType.ADD, True, id="same"),
        pytest.param("Node", ActionType.ADD, "Pod", ActionType.ADD, False, id="other-resource"),
        pytest.param("Node", ActionType.ADD | LABEL, "Node", LABEL, True, id="one-of-two"),
        pytest.param("Node", ActionType.ADD | LABEL, "Node", TAINT, False, id="another-update"),
        pytest.param("Node", ActionType.ADD | TAINT, "Node", LABEL | TAINT, False, id="two-at-once-is-a-larger-number"),
        pytest.param("Node", TAINT | LABEL, "Node", LABEL | TAINT, True, id="both-at-once"),
        pytest.param(
            "Node", ActionType.ADD | TAINT, "Node", ActionType.ADD | LABEL, True, id="smaller-number-and-shared-bit"
        ),
        pytest.param("Node", LABEL, "Node", ActionType.UPDATE, False, id="generic-update-wants-the-full-mask"),
        pytest.param("Node", ActionType.UPDATE, "Node", ActionType.UPDATE, True, id="full-mask"),
        pytest.param("Node", ActionType.ALL, "Node", ActionType.UPDATE, True, id="everything-about-nodes"),
        pytest.param("Node", ActionType.UPDATE, "Node", LABEL, True, id="mask-takes-each-update"),
        pytest.param("Pod", ActionType.DELETE, "AssignedPod", ActionType.DELETE, True, id="pod-means-assigned"),
        pytest.param(
            "Pod", ActionType.UPDATE, "UnschedulablePod", ActionType.UPDATE_POD_LABEL, True, id="pod-means-waiting"
        ),
        pytest.param(
            "AssignedPod", ActionType.DELETE, "Pod", ActionType.DELETE, False, id="assigned-does-not-mean-pod"
        ),
        pytest.param("widgets.v1.x.io", ActionType.ADD, "widgets.v1.x.io", ActionType.ADD, True, id="custom"),
    ],
)
def test_matching_registrations(
    resource: str, action: ActionType, event_resource: str, event_action: ActionType, reached: bool
) -> None:
    assert ClusterEventWithHint(resource, action).matches(ClusterEvent(event_resource, event_action)) is reached


def test_bits_are_kube_schedulers() -> None:
    assert [int(action) for action in ActionType.__members__.values()] == [
        *(1 << bit for bit in range(13)),
        0b1111111111100,
        0b1111111111111,
    ]


def test_wildcard_events() -> None:
    assert ClusterEvent(EventResource.ANY, ActionType.ALL).is_wildcard
    assert not ClusterEvent(EventResource.ANY, ActionType.ADD).is_wildcard
    assert not ClusterEvent(EventResource.NODE, ActionType.ALL).is_wildcard


def test_booleans_as_hints() -> None:
    assert (queue_hint_if(True), queue_hint_if(False)) == (QueueingHint.QUEUE, QueueingHint.SKIP)


# registrations


class Quiet:
    name = "Quiet"

    def filter(self, *_: Any) -> None: ...


class Scorer:
    name = "Scorer"
    events_to_register = (ClusterEventWithHint(EventResource.NODE, ActionType.ADD),)

    def score(self, *_: Any) -> int:
        return 0


def filtering(*registrations: Any) -> Any:
    return type("Stated", (Quiet,), {"events_to_register": registrations})()


def test_a_plugin_without_registrations_gets_all_events() -> None:
    assert registered_events(Quiet()) == ALL_EVENTS
    woken_by = {registration.resource for registration in ALL_EVENTS}
    assert EventResource.RESOURCE_SLICE not in woken_by
    assert EventResource.VOLUME_ATTACHMENT not in woken_by
    assert {registration.action for registration in ALL_EVENTS} == {ActionType.ALL}


def test_a_plugin_with_empty_registrations_gets_no_event() -> None:
    assert registered_events(filtering()) == ()


def test_a_plugin_that_cannot_reject_registers_nothing() -> None:
    assert registered_events(Scorer()) == ()


@pytest.mark.parametrize(
    ("declared", "added"),
    [
        pytest.param(ClusterEventWithHint(EventResource.NODE, ActionType.ADD), True, id="node-add"),
        pytest.param(ClusterEventWithHint(EventResource.NODE, ActionType.ADD | LABEL), True, id="node-add-and-label"),
        pytest.param(ClusterEventWithHint(EventResource.NODE, ActionType.ADD | TAINT), False, id="taints-are-stated"),
        pytest.param(ClusterEventWithHint(EventResource.NODE, LABEL), False, id="no-new-nodes"),
        pytest.param(ClusterEventWithHint(EventResource.POD, ActionType.ADD), False, id="no-nodes"),
    ],
)
def test_a_registration_for_new_nodes_adds_one_for_taints(declared: ClusterEventWithHint, added: bool) -> None:
    extra = (ClusterEventWithHint(EventResource.NODE, TAINT),) if added else ()
    assert registered_events(filtering(declared)) == (declared, *extra)


def test_an_invalid_registration_is_refused() -> None:
    with pytest.raises(
        PluginError, match="plugin \"Quiet\": events_to_register holds 'Node'; it takes ClusterEventWithHint"
    ):
        registered_events(filtering("Node"))


# points


@pytest.mark.parametrize(
    ("point", "interface"),
    [(FILTER, "FilterPlugin"), (PRE_FILTER, "PreFilterPlugin"), (BIND, "BindPlugin")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_points_have_the_interface_names_of_kube_scheduler(point: ExtensionPoint, interface: str) -> None:
    assert point.interface == interface


def test_methods_make_a_plugin_part_of_a_point() -> None:
    assert [point.key for point in ATTEMPT_ORDER if point.extended_by(Quiet())] == ["filter"]
    assert SCORE.extended_by(Scorer)
    assert not FILTER.extended_by(type("NotCallable", (), {"filter": "no"}))


def test_both_orders_have_every_point_once() -> None:
    assert len(set(BUILD_ORDER)) == len(BUILD_ORDER) == 14
    assert set(BUILD_ORDER) == set(ATTEMPT_ORDER)
