"""The events that may make a pod schedulable that a plugin rejected: the plugin's declaration and kube-scheduler's
addition.

Computed once for each profile. A plugin that can reject and declares no events gets all events, because its
dependencies are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bayplan.errors import PluginError
from bayplan.framework.api.events import ActionType, ClusterEventWithHint, EventResource
from bayplan.framework.api.extension_points import FILTER, PERMIT, PRE_ENQUEUE, PRE_FILTER, RESERVE

_CAN_REJECT = (PRE_ENQUEUE, PRE_FILTER, FILTER, RESERVE, PERMIT)

EXTENDER_REJECTOR = "Extender"
"""The rejector of a pod that an extender rejected. Its dependencies are unknown, so every event counts."""

ALL_EVENTS: tuple[ClusterEventWithHint, ...] = tuple(
    ClusterEventWithHint(resource, ActionType.ALL)
    for resource in (
        EventResource.POD,
        EventResource.NODE,
        EventResource.PERSISTENT_VOLUME,
        EventResource.PERSISTENT_VOLUME_CLAIM,
        EventResource.CSI_NODE,
        EventResource.CSI_DRIVER,
        EventResource.CSI_STORAGE_CAPACITY,
        EventResource.STORAGE_CLASS,
        EventResource.RESOURCE_CLAIM,
        EventResource.DEVICE_CLASS,
    )
)


def registered_events(plugin: Any) -> tuple[ClusterEventWithHint, ...]:
    """Return the events that may help a pod rejected by this plugin. Empty for a plugin that cannot reject."""
    if not any(point.extended_by(plugin) for point in _CAN_REJECT):
        return ()
    declared = getattr(plugin, "events_to_register", None)
    if declared is None:
        return ALL_EVENTS
    registrations = tuple(declared) if isinstance(declared, Iterable) else (declared,)
    for registration in registrations:
        if not isinstance(registration, ClusterEventWithHint):
            raise PluginError(
                f'plugin "{plugin.name}": events_to_register holds {registration!r}; '
                "it takes ClusterEventWithHint(resource, action, hint)"
            )
    return registrations + _node_taint_events(registrations)


def _node_taint_events(registrations: tuple[ClusterEventWithHint, ...]) -> tuple[ClusterEventWithHint, ...]:
    """Add a registration for taint changes to a plugin that waits for new nodes.

    A node often joins with a taint and becomes usable when the taint is removed. kube-scheduler adds this registration
    for plugins that register Node/Add and not taint changes.
    """
    added = any(
        registration.resource == EventResource.NODE and registration.action & ActionType.ADD
        for registration in registrations
    )
    taints = any(
        registration.resource == EventResource.NODE and registration.action & ActionType.UPDATE_NODE_TAINT
        for registration in registrations
    )
    return (ClusterEventWithHint(EventResource.NODE, ActionType.UPDATE_NODE_TAINT),) if added and not taints else ()
