"""Prefers nodes with fast disks for pods that request them, and keeps other pods off the last free ones."""

from bayplan.framework import Cycle, NodeInfo, Status, unschedulable


class FastDisks:
    """Pods with the label `disk: fast` require nodes labelled `disk: ssd`. Other pods leave two CPUs free there."""

    name = "FastDisks"

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
        if cycle.pod.labels.get("disk") == "fast" or node.labels.get("disk") != "ssd":
            return None
        if node.free("cpu") <= 2000:
            return unschedulable("node(s) keep their last fast disks for pods that need them")
        return None

    def score(self, cycle: Cycle, node: NodeInfo) -> int:
        wants_fast = cycle.pod.labels.get("disk") == "fast"
        return 100 if wants_fast == (node.labels.get("disk") == "ssd") else 0
