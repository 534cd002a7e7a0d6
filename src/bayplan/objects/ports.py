"""Host ports of pods, and their conflicts.

Used by the cache when a pod arrives, and by NodePorts when it filters and when a pod is deleted. Cost: a walk over the
containers' ports; most pods have no host port and get the empty tuple.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bayplan.objects.core import Container, Pod

ANY_ADDRESS = "0.0.0.0"
"""The address that stands for all addresses of the host. The IPv6 form `::` has no special meaning here."""

DEFAULT_PROTOCOL = "TCP"


class HostPort(NamedTuple):
    """One port of the host, with default address and protocol."""

    address: str
    protocol: str
    port: int

    def conflicts(self, other: HostPort) -> bool:
        """Whether both ports exclude each other: same protocol and port on overlapping addresses."""
        if self.port != other.port or self.protocol != other.protocol:
            return False
        return self.address == other.address or ANY_ADDRESS in (self.address, other.address)


def host_ports(pod: Pod) -> tuple[HostPort, ...]:
    """Host ports of the containers that run for the pod's whole life: sidecars first, then regular containers."""
    return tuple(
        HostPort(port.host_ip or ANY_ADDRESS, port.protocol or DEFAULT_PROTOCOL, port.host_port)
        for container in _long_running_containers(pod)
        for port in container.ports
        if port.host_port > 0
    )


def ports_conflict(wanted: Iterable[HostPort], used: Iterable[HostPort]) -> bool:
    """Whether any wanted port is in use. Ports within `wanted` are not compared with one another."""
    taken = tuple(used)
    return any(want.conflicts(have) for want in wanted for have in taken)


def _long_running_containers(pod: Pod) -> Iterator[Container]:
    yield from (container for container in pod.spec.init_containers if container.is_sidecar)
    yield from pod.spec.containers
