"""Which events may cure a pod that a plugin rejected: what the plugin says, completed as kube-scheduler completes it.

Asked once a profile, when it is built. A plugin that can reject and says nothing is woken by everything, because
nobody can know what it looks at.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bayplan.errors import PluginError
from bayplan.framework.api.events import ActionType, ClusterEventWithHint, EventResource
from bayplan.framework.api.extension_points import (
    FILTER,
    PERMIT,
    PRE_ENQUEUE,
    PRE_FILTER,
    RESERVE,
)

_CAN_REJECT = (PRE_ENQUEUE, PRE_FILTER, FILTER, RESERVE, PERMIT)

EXTENDER_REJECTOR = "Extender"
"""Who rejected a pod that an extender refused. Nobody knows what it looks at, so everything may cure that."""

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
    """The events that may help a pod rejected by this plugin; none for one that cannot reject."""
    if not any(point.extended_by(plugin) for point in _CAN_REJECT):
        return ()
    stated = getattr(plugin, "cured_by", None)
    if stated is None:
        return ALL_EVENTS
    cures = tuple(stated) if isinstance(stated, Iterable) else (stated,)
    for cure in cures:
        if not isinstance(cure, ClusterEventWithHint):
            raise PluginError(f'plugin "{plugin.name}": cured_by holds {cure!r}; it takes Cure(resource, action, hint)')
    return cures + _node_taint_events(cures)


def _node_taint_events(cures: tuple[ClusterEventWithHint, ...]) -> tuple[ClusterEventWithHint, ...]:
    """Whoever waits for new nodes is also woken when taints change.

    A node often enters with a taint and becomes usable when that goes; kube-scheduler adds the registration for
    plugins that ask for Node/Add and not for taint changes themselves.
    """
    added = any(cure.resource == EventResource.NODE and cure.action & ActionType.ADD for cure in cures)
    taints = any(cure.resource == EventResource.NODE and cure.action & ActionType.UPDATE_NODE_TAINT for cure in cures)
    return (ClusterEventWithHint(EventResource.NODE, ActionType.UPDATE_NODE_TAINT),) if added and not taints else ()
