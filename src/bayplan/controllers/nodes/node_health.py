"""Taints and conditions that follow from a node's heartbeats and conditions, as upstream has them. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from bayplan.controllers.core.api_types import Tree
from bayplan.objects.core import Node, Taint
from bayplan.objects.meta import format_time

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
NO_SCHEDULE, NO_EXECUTE = "NoSchedule", "NoExecute"
_PRESSURES = {
    "MemoryPressure": "node.kubernetes.io/memory-pressure",
    "DiskPressure": "node.kubernetes.io/disk-pressure",
    "NetworkUnavailable": "node.kubernetes.io/network-unavailable",
    "PIDPressure": "node.kubernetes.io/pid-pressure",
}
_REPORTED = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
MANAGED = {
    *((key, NO_SCHEDULE) for key in (NOT_READY, UNREACHABLE, UNSCHEDULABLE, *_PRESSURES.values())),
    (NOT_READY, NO_EXECUTE),
    (UNREACHABLE, NO_EXECUTE),
}
"""Taints that the controller adds and removes."""


def readiness(node: Node) -> str:
    """Status of the Ready condition: `True`, `False` or `Unknown`; empty for a node that has not reported yet."""
    return next((each.status for each in node.status.conditions if each.type == "Ready"), "")


def is_not_ready(node: Node) -> bool:
    """Whether the node is not ready or unreachable."""
    return readiness(node) in ("False", "Unknown")


def unknown_conditions(node: Node, now: datetime) -> list[Tree]:
    """Unknown conditions of a node without recent heartbeats, as a strategic merge patch."""
    known = {each.type: each for each in node.status.conditions}
    patch = []
    for kind in _REPORTED:
        before = known.get(kind)
        if before is not None and before.status == "Unknown":
            continue
        never = before is None
        patch.append(
            {
                "type": kind,
                "status": "Unknown",
                "reason": "NodeStatusNeverUpdated" if never else "NodeStatusUnknown",
                "message": f"Kubelet {'never posted' if never else 'stopped posting'} node status.",
                "lastTransitionTime": format_time(now),
            }
        )
    return patch


def wanted_taints(node: Node, *, evicting: bool, may_evict: bool = True) -> set[tuple[str, str]]:
    """Managed taints that the node should have.

    `evicting`: add NoExecute taints now. `at_all`: keep NoExecute taints that the node has."""
    ready = readiness(node)
    wanted = {
        (_PRESSURES[each.type], NO_SCHEDULE)
        for each in node.status.conditions
        if each.type in _PRESSURES and each.status == "True"
    }
    if is_not_ready(node):
        key = NOT_READY if ready == "False" else UNREACHABLE
        wanted.add((key, NO_SCHEDULE))
        if may_evict and (evicting or (key, NO_EXECUTE) in _managed_taints(node.spec.taints)):
            wanted.add((key, NO_EXECUTE))
    if node.spec.unschedulable:
        wanted.add((UNSCHEDULABLE, NO_SCHEDULE))
    return wanted


def _managed_taints(taints: Iterable[Taint]) -> set[tuple[str, str]]:
    return {(each.key, each.effect) for each in taints} & MANAGED


def with_taints(node: Node, wanted: set[tuple[str, str]], now: datetime) -> list[Tree] | None:
    """Return the node's taints with the managed ones updated; None when nothing changes."""
    if _managed_taints(node.spec.taints) == wanted:
        return None
    others_kept = [_tree(each) for each in node.spec.taints if (each.key, each.effect) not in MANAGED - wanted]
    present = _managed_taints(node.spec.taints)
    added = [
        {"key": key, "effect": effect, "timeAdded": format_time(now)}
        for key, effect in sorted(wanted)
        if (key, effect) not in present
    ]
    return [*others_kept, *added]


def _tree(taint: Taint) -> Tree:
    found: Tree = {"key": taint.key, "effect": taint.effect}
    if taint.value:
        found["value"] = taint.value
    if taint.time_added is not None:
        found["timeAdded"] = format_time(taint.time_added)
    return found
