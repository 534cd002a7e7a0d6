"""Which pods belong to a pod group, waiting or placed?

Asked by plugins that look at placements of a group, several of them about several placements. Cost: one walk over all
pods for as long as a cycle lasts; after that the answer is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bayplan.framework.api.cycle import Cycle, StateKey
from bayplan.framework.api.handle import Handle
from bayplan.objects.core import Pod

_MEMBERS: StateKey[tuple[str, str, Sequence[Pod]]] = StateKey("PodGroupMembers")


class PodGroupName(Protocol):
    """A pod group, by name."""

    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...


def pod_group_members(handle: Handle, cycle: Cycle, group: PodGroupName) -> Sequence[Pod]:
    known = cycle.find(_MEMBERS)
    if known is None or known[:2] != (group.namespace, group.name):
        known = group.namespace, group.name, handle.group_pods(group.namespace, group.name)
        cycle.put(_MEMBERS, known)
    return known[2]
