"""Node pools from text such as `gpu=20:cpu=96,memory=1Ti,nvidia.com/gpu=8`.

Commands that start a cluster parse them. A pool has a name, a number of nodes and the capacity of each node. Nodes of
all pools are spread over the zones in turn. `NodeTemplate` fills in what a pool does not set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from bayplan.codec.quantity import parse_quantity
from bayplan.controllers.kubelet.node_template import CAPACITY, NodeTemplate
from bayplan.errors import ObjectError, UsageError
from bayplan.objects.name_validation import dns_subdomain_problems, label_key_problems

POOL_LABEL = "bayplan.dev/pool"
ZONE_LABEL = "topology.kubernetes.io/zone"
REGION_LABEL = "topology.kubernetes.io/region"
MAX_NODES = 100_000
_EXAMPLE = "write it as gpu=20:cpu=96,memory=1Ti,nvidia.com/gpu=8"


@dataclass(frozen=True, slots=True)
class NodePool:
    """Nodes with equal capacity."""

    name: str
    count: int
    amounts: tuple[tuple[str, str], ...] = ()
    """Capacity of each node by resource name."""

    @classmethod
    def parse(cls, text: str) -> NodePool:
        """Parse `NAME=COUNT[:RESOURCE=AMOUNT,...]`, or a bare number of nodes, which are named `node`."""
        head, colon, tail = text.strip().partition(":")
        name, equals, count = head.partition("=")
        if not equals:
            name, count = "node", head
        if not count.isascii() or not count.isdigit() or int(count) > MAX_NODES:
            raise UsageError(f"--nodes {text}: {count!r} is no number of nodes; {_EXAMPLE}")
        if dns_subdomain_problems(f"{name}-0"):
            raise UsageError(f"--nodes {text}: {name!r} is no name for nodes; {_EXAMPLE}")
        if colon and not tail.strip():
            raise UsageError(f"--nodes {text}: nothing follows the colon; {_EXAMPLE}")
        return cls(name, int(count), tuple(_amounts(tail, text)) if colon else ())

    def template(self) -> NodeTemplate:
        """Template of the pool's nodes, without zones."""
        labels = {POOL_LABEL: self.name}
        manifest: dict[str, Any] = {"metadata": {"name": f"{self.name}-{{index}}", "labels": labels}}
        if self.amounts:
            manifest["status"] = {"capacity": {**CAPACITY, **dict(self.amounts)}}
        return NodeTemplate(manifest)

    def nodes(self, zones: int = 0, *, first: int = 0) -> Iterator[dict[str, Any]]:
        """Yield the node manifests. `first`: position of the first node in the cluster, for its zone."""
        template = self.template()
        for index in range(self.count):
            node = template.node(index)
            if zones:
                zone = {ZONE_LABEL: f"zone-{(first + index) % zones}", REGION_LABEL: "region-0"}
                node["metadata"]["labels"] |= zone
            yield node


def nodes_of(pools: Iterable[NodePool], zones: int = 0) -> list[dict[str, Any]]:
    """Manifests of the nodes of all pools. Zones continue from one pool to the next, so that they are balanced."""
    found: list[dict[str, Any]] = []
    names: set[str] = set()
    for pool in pools:
        if pool.name in names:
            raise UsageError(f"--nodes: there are two pools of the name {pool.name}; give each pool its own name")
        names.add(pool.name)
        found.extend(pool.nodes(zones, first=len(found)))
    return found


def _amounts(text: str, whole: str) -> Iterator[tuple[str, str]]:
    for part in text.split(","):
        name, equals, amount = part.strip().partition("=")
        if not equals or label_key_problems(name):
            raise UsageError(f"--nodes {whole}: {part.strip()!r} is no amount of a resource; {_EXAMPLE}")
        try:
            negative = parse_quantity(amount).sign() < 0
        except ObjectError:
            negative = True
        if negative:
            raise UsageError(f"--nodes {whole}: {amount!r} is no amount of {name}; {_EXAMPLE}")
        yield name, amount
