"""What do a node's silence and its conditions mean for its taints? Pure, as upstream has it."""

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
"""Taints that are ours to set and to take away."""


def readiness(node: Node) -> str:
    """`True`, `False` or `Unknown`; nothing of a node that has never said: it may be about to, and has a while to."""
    return next((each.status for each in node.status.conditions if each.type == "Ready"), "")


def is_not_ready(node: Node) -> bool:
    """Whether the node said that it is not ready, or others say that nobody hears of it."""
    return readiness(node) in ("False", "Unknown")


def unknown_conditions(node: Node, now: datetime) -> list[Tree]:
    """The conditions of a node that nobody has heard of for too long, as a strategic patch."""
    known = {each.type: each for each in node.status.conditions}
    told = []
    for kind in _REPORTED:
        before = known.get(kind)
        if before is not None and before.status == "Unknown":
            continue
        never = before is None
        told.append(
            {
                "type": kind,
                "status": "Unknown",
                "reason": "NodeStatusNeverUpdated" if never else "NodeStatusUnknown",
                "message": f"Kubelet {'never posted' if never else 'stopped posting'} node status.",
                "lastTransitionTime": format_time(now),
            }
        )
    return told


def wanted_taints(node: Node, *, evicting: bool, at_all: bool = True) -> set[tuple[str, str]]:
    """Which of our taints the node should have.

    `evicting`: whether pods may be driven off it now; `at_all`: whether they may where that has begun."""
    ready = readiness(node)
    wanted = {
        (_PRESSURES[each.type], NO_SCHEDULE)
        for each in node.status.conditions
        if each.type in _PRESSURES and each.status == "True"
    }
    if is_not_ready(node):
        key = NOT_READY if ready == "False" else UNREACHABLE
        wanted.add((key, NO_SCHEDULE))
        if at_all and (evicting or (key, NO_EXECUTE) in _managed_taints(node.spec.taints)):
            wanted.add((key, NO_EXECUTE))
    if node.spec.unschedulable:
        wanted.add((UNSCHEDULABLE, NO_SCHEDULE))
    return wanted


def _managed_taints(taints: Iterable[Taint]) -> set[tuple[str, str]]:
    return {(each.key, each.effect) for each in taints} & MANAGED


def with_taints(node: Node, wanted: set[tuple[str, str]], now: datetime) -> list[Tree] | None:
    """The node's taints with ours as they should be; None where nothing is to change."""
    if _managed_taints(node.spec.taints) == wanted:
        return None
    kept = [_tree(each) for each in node.spec.taints if (each.key, each.effect) not in MANAGED - wanted]
    have = _managed_taints(node.spec.taints)
    added = [
        {"key": key, "effect": effect, "timeAdded": format_time(now)}
        for key, effect in sorted(wanted)
        if (key, effect) not in have
    ]
    return [*kept, *added]


def _tree(taint: Taint) -> Tree:
    found: Tree = {"key": taint.key, "effect": taint.effect}
    if taint.value:
        found["value"] = taint.value
    if taint.time_added is not None:
        found["timeAdded"] = format_time(taint.time_added)
    return found
