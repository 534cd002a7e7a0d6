"""Naive twin of NodeUnschedulable, one node at a time."""

from __future__ import annotations

from bayplan.objects.core import Node
from bayplan.objects.taints import UNSCHEDULABLE, tolerates
from bayplan.plugins.node_unschedulable import NodeUnschedulable
from naive.twin import Case, Twin, cases, fits_unless
from support.builders.framework import FilterResult, unresolvable


def judge(case: Case, node: Node) -> FilterResult:
    tolerated = any(tolerates(toleration, UNSCHEDULABLE) for toleration in case.pod.spec.tolerations)
    return fits_unless((node.spec.unschedulable and not tolerated, unresolvable("node(s) were unschedulable")))


TWIN = Twin(NodeUnschedulable, cases("unschedulable tolerations"), judge)
