"""Naive twin of ImageLocality, one node at a time."""

from __future__ import annotations

from collections.abc import Sequence

from bayplan.objects.core import Node
from bayplan.plugins.image_locality import ImageLocality
from naive.twin import Case, Twin, cases

MIB = 1024 * 1024


def sizes(node: Node) -> dict[str, int]:
    return {name: image.size_bytes for image in node.status.images for name in image.names}


def tagged(name: str) -> str:
    return name if ":" in name.rsplit("/", 1)[-1] else f"{name}:latest"


def score(case: Case, node: Node) -> int:
    everybody = [sizes(each) for each in case.cluster.nodes]
    containers = (*case.pod.spec.init_containers, *case.pod.spec.containers)
    total = 0
    for container in containers:
        name = tagged(container.image)
        if name in sizes(node):
            holders = [each[name] for each in everybody if name in each]
            total += int(holders[0] * (len(holders) / len(everybody)))
    low, high = 23 * MIB, 1000 * MIB * len(containers)
    if total < low:
        return 0
    return 100 * (min(total, high) - low) // (high - low)


def scores(case: Case, feasible: Sequence[Node]) -> dict[str, int]:
    return {node.name: score(case, node) for node in feasible}


TWIN = Twin(ImageLocality, cases("images image"), scores=scores)
