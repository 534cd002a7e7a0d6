"""Naive twin of NodeName, one node at a time."""

from __future__ import annotations

from bayplan.objects.core import Node
from bayplan.plugins.node_name import NodeName
from naive.twin import Case, Twin, cases, fits_unless
from support.builders.framework import FilterResult, unresolvable


def judge(case: Case, node: Node) -> FilterResult:
    wanted = case.pod.spec.node_name
    return fits_unless((wanted not in ("", node.name), unresolvable("node(s) didn't match the requested node name")))


TWIN = Twin(NodeName, cases("node"), judge)
