"""Naive twin of NodePorts, one node at a time."""

from __future__ import annotations

from collections.abc import Iterator

from bayplan.objects.core import ContainerPort, Node, Pod
from bayplan.plugins.node_ports import NodePorts
from naive.twin import Case, Twin, cases, fits_unless
from support.builders.framework import FilterResult, rejected


def ports(pod: Pod) -> Iterator[ContainerPort]:
    sidecars = [each for each in pod.spec.init_containers if each.restart_policy == "Always"]
    for container in (*pod.spec.containers, *sidecars):
        yield from (port for port in container.ports if port.host_port > 0)


def clash(one: ContainerPort, other: ContainerPort) -> bool:
    everywhere = "0.0.0.0"
    addresses = {one.host_ip or everywhere, other.host_ip or everywhere}
    same_port = (one.protocol or "TCP", one.host_port) == (other.protocol or "TCP", other.host_port)
    return same_port and (len(addresses) == 1 or everywhere in addresses)


def judge(case: Case, node: Node) -> FilterResult:
    held = [port for pod in case.cluster.pods_on(node) for port in ports(pod)]
    taken = any(clash(mine, theirs) for mine in ports(case.pod) for theirs in held)
    return fits_unless((taken, rejected("node(s) didn't have free ports for the requested pod ports")))


TWIN = Twin(NodePorts, cases("ports"), judge)
