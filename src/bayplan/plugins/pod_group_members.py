"""The pods of a pod group, waiting or placed.

Used by several plugins that evaluate placements of a group. Cost: one loop over all pods for each cycle; the result is
cached in the cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bayplan.framework.api.cycle import Cycle, StateKey
from bayplan.framework.api.handle import Handle
from bayplan.objects.core import Pod

_MEMBERS: StateKey[tuple[str, str, Sequence[Pod]]] = StateKey("PodGroupMembers")


class PodGroupName(Protocol):
    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...


def pod_group_members(handle: Handle, cycle: Cycle, group: PodGroupName) -> Sequence[Pod]:
    cached = cycle.find(_MEMBERS)
    if cached is None or cached[:2] != (group.namespace, group.name):
        cached = group.namespace, group.name, handle.group_pods(group.namespace, group.name)
        cycle.put(_MEMBERS, cached)
    return cached[2]
