"""Which nodes does `gpu=20:cpu=96,memory=1Ti,nvidia.com/gpu=8` mean? Pools of like nodes, written on one line.

Asked once, by whoever starts a cluster. A pool has a name, a number of nodes and what each node has; several pools and
a number of zones make a whole cluster, whose zones are filled in turn across the pools. What a pool does not say is
what a node of `node_template` has.
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
    """Nodes that are alike."""

    name: str
    count: int
    amounts: tuple[tuple[str, str], ...] = ()
    """What each node has, by the name of the resource."""

    @classmethod
    def parse(cls, text: str) -> NodePool:
        """A pool from one line: `NAME=COUNT[:RESOURCE=AMOUNT,...]`, or a bare number of nodes named `node`."""
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
        """What makes its nodes, zones apart."""
        labels = {POOL_LABEL: self.name}
        manifest: dict[str, Any] = {"metadata": {"name": f"{self.name}-{{index}}", "labels": labels}}
        if self.amounts:
            manifest["status"] = {"capacity": {**CAPACITY, **dict(self.amounts)}}
        return NodeTemplate(manifest)

    def nodes(self, zones: int = 0, *, first: int = 0) -> Iterator[dict[str, Any]]:
        """Its nodes as manifests; the zone of the first is the one of number `first`."""
        template = self.template()
        for index in range(self.count):
            node = template.node(index)
            if zones:
                zone = {ZONE_LABEL: f"zone-{(first + index) % zones}", REGION_LABEL: "region-0"}
                node["metadata"]["labels"] |= zone
            yield node


def nodes_of(pools: Iterable[NodePool], zones: int = 0) -> list[dict[str, Any]]:
    """The nodes of all pools; zones go on from one pool to the next, so that they are of one size altogether."""
    found: list[dict[str, Any]] = []
    names: set[str] = set()
    for pool in pools:
        if pool.name in names:
            raise UsageError(f"--nodes: there are two pools of the name {pool.name}; give each a name of its own")
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
