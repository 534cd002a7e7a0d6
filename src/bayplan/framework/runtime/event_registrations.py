"""Which events may cure a pod that a plugin rejected: what the plugin says, completed as kube-scheduler completes it.

Asked once a profile, when it is built. A plugin that can reject and says nothing is woken by everything, because
nobody can know what it looks at.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bayplan.errors import PluginError
from bayplan.framework.api.events import Action, Cure, Resource
from bayplan.framework.api.extension_points import (
    FILTER,
    PERMIT,
    PRE_ENQUEUE,
    PRE_FILTER,
    RESERVE,
)

_CAN_REJECT = (PRE_ENQUEUE, PRE_FILTER, FILTER, RESERVE, PERMIT)

EXTENDER = "Extender"
"""Who rejected a pod that an extender refused. Nobody knows what it looks at, so everything may cure that."""

EVERYTHING: tuple[Cure, ...] = tuple(
    Cure(resource, Action.ALL)
    for resource in (
        Resource.POD,
        Resource.NODE,
        Resource.PERSISTENT_VOLUME,
        Resource.PERSISTENT_VOLUME_CLAIM,
        Resource.CSI_NODE,
        Resource.CSI_DRIVER,
        Resource.CSI_STORAGE_CAPACITY,
        Resource.STORAGE_CLASS,
        Resource.RESOURCE_CLAIM,
        Resource.DEVICE_CLASS,
    )
)


def cures_of(plugin: Any) -> tuple[Cure, ...]:
    """The events that may help a pod rejected by this plugin; none for one that cannot reject."""
    if not any(point.extended_by(plugin) for point in _CAN_REJECT):
        return ()
    stated = getattr(plugin, "cured_by", None)
    if stated is None:
        return EVERYTHING
    cures = tuple(stated) if isinstance(stated, Iterable) else (stated,)
    for cure in cures:
        if not isinstance(cure, Cure):
            raise PluginError(f'plugin "{plugin.name}": cured_by holds {cure!r}; it takes Cure(resource, action, hint)')
    return cures + _taint_changes(cures)


def _taint_changes(cures: tuple[Cure, ...]) -> tuple[Cure, ...]:
    """Whoever waits for new nodes is also woken when taints change.

    A node often enters with a taint and becomes usable when that goes; kube-scheduler adds the registration for
    plugins that ask for Node/Add and not for taint changes themselves.
    """
    added = any(cure.resource == Resource.NODE and cure.action & Action.ADD for cure in cures)
    taints = any(cure.resource == Resource.NODE and cure.action & Action.UPDATE_NODE_TAINT for cure in cures)
    return (Cure(Resource.NODE, Action.UPDATE_NODE_TAINT),) if added and not taints else ()
