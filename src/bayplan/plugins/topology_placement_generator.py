"""Generates the placements of a pod group: the sets of nodes on which the group may be placed as a whole.

Called once for each group, before its pods are scheduled. There is one placement for each value of the group's topology
key, or only the one where pods of the group run already. Cost: one pass over a column of label ids.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bayplan.codec.go_text import quote
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.plugin import Placement
from bayplan.framework.api.status import Status, error
from bayplan.objects.core import Pod
from bayplan.objects.workloads import PodGroup
from bayplan.plugins.pod_group_members import PodGroupName, pod_group_members
from bayplan.snapshot import LabelColumn, Snapshot

ALL_NODES = ""


class TopologyPlacementGenerator:
    """Keeps the pods of a group in one domain of the group's topology key."""

    name = "TopologyPlacementGenerator"

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    @classmethod
    def factory(cls, args: object, handle: Handle) -> TopologyPlacementGenerator:  # noqa: ARG003
        return cls(handle)

    def generate_placements(self, cycle: Cycle, group: PodGroupName) -> Sequence[Placement] | Status:
        group_object = self._handle.catalog.pod_groups.get(f"{group.namespace}/{group.name}")
        if group_object is None:
            return error(f"podgroup.scheduling.k8s.io {quote(group.name)} not found")
        snapshot = cycle.snapshot
        key = _topology_key(group_object)
        if key is None:
            return (Placement(ALL_NODES, frozenset(snapshot.nodes.names)),)
        column = snapshot.table.label(key)
        placed = [pod for pod in pod_group_members(self._handle, cycle, group) if pod.spec.node_name]
        if not placed:
            return _placements(snapshot, column, column.values)
        domain = _common_domain(snapshot, column, placed)
        return domain if isinstance(domain, Status) else _placements(snapshot, column, (domain,))


def _topology_key(group: PodGroup) -> str | None:
    """Return the topology key of the group. The API allows at most one constraint."""
    constraints = group.spec.scheduling_constraints
    return constraints.topology[0].key if constraints is not None and constraints.topology else None


def _placements(snapshot: Snapshot, column: LabelColumn, domains: Sequence[str]) -> tuple[Placement, ...]:
    ids = column.ids[: snapshot.nodes.count]
    names = snapshot.nodes.names
    found = ((domain, np.flatnonzero(ids == column.find(domain)).tolist()) for domain in domains)
    return tuple(Placement(domain, frozenset(names[row] for row in rows)) for domain, rows in found if rows)


def _common_domain(snapshot: Snapshot, column: LabelColumn, placed: Sequence[Pod]) -> str | Status:
    """Return the domain of the group's placed pods. An error if it is not exactly one."""
    found = ""
    for pod in placed:
        row = snapshot.nodes.index.get(pod.spec.node_name)
        if row is None:
            fault = f"nodeinfo not found for node name {quote(pod.spec.node_name)}"
            return _placement_error(f"getting node for pod {pod.key}: {fault}")
        domain = column.value_of(row)
        if domain is None:
            return _placement_error(f"no topology domain found for pod {pod.key}")
        if found and found != domain:
            return _placement_error(f"more than 1 domain found for pod group: {found}, {domain}")
        found = domain
    return found


def _placement_error(reason: str) -> Status:
    return error(f"cannot determine domain for already scheduled pods: {reason}")
