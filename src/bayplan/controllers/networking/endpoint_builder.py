"""Which pods stand behind a Service, and under which ports? Pure: endpoints and their slices as trees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bayplan.controllers.core.api_types import SeenPod, Tree, Whole
from bayplan.objects.core import Node

SERVICE_NAME = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
MANAGER = "endpointslice-controller.k8s.io"
HEADLESS = "service.kubernetes.io/headless"
MOST = 100
"""How many endpoints a slice holds."""
_ZONE = "topology.kubernetes.io/zone"


def served(service: Whole, pods: Iterable[SeenPod]) -> list[SeenPod]:
    """The pods that belong behind a service and have an address."""
    selector: dict[str, str] = service.spec.get("selector") or {}
    return [pod for pod in pods if pod.status.pod_ip and not pod.finished and selector.items() <= pod.labels.items()]


def endpoint(service: Whole, pod: SeenPod, node: Node | None) -> Tree:
    """One pod as an endpoint."""
    going = pod.terminating
    published = bool(service.spec.get("publishNotReadyAddresses"))
    told: Tree = {
        "addresses": [pod.status.pod_ip],
        "conditions": {"ready": published or (pod.ready and not going), "serving": pod.ready, "terminating": going},
        "targetRef": {"kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid},
    }
    if pod.spec.node_name:
        told["nodeName"] = pod.spec.node_name
    if node is not None and _ZONE in node.labels:
        told["zone"] = node.labels[_ZONE]
    if pod.spec.hostname and pod.spec.subdomain == service.name:
        told["hostname"] = pod.spec.hostname
    return told


def ports_for(service: Whole, pod: SeenPod) -> tuple[tuple[str, int, str, str], ...]:
    """Name, number, protocol and application protocol of the ports under which this pod serves."""
    found = []
    for port in service.spec.get("ports") or ():
        target, protocol = port.get("targetPort", port.get("port")), port.get("protocol", "TCP")
        number = target if isinstance(target, int) else _named(pod, str(target), protocol)
        if number:
            found.append((port.get("name", ""), int(number), protocol, port.get("appProtocol") or ""))
    return tuple(found)


def _named(pod: SeenPod, name: str, protocol: str) -> int | None:
    for container in pod.spec.containers:
        for port in container.ports:
            if port.name == name and (port.protocol or "TCP") == protocol:
                return port.container_port
    return None


def slice_bodies(service: Whole, pods: Sequence[SeenPod], nodes: Any) -> list[Tree]:
    """What the slices of a service say, without names: pods with the same ports together, a hundred at a time.

    `nodes`: gives a node by its name."""
    groups: dict[tuple[tuple[str, int, str, str], ...], list[SeenPod]] = {}
    for pod in sorted(pods, key=lambda each: each.name):
        groups.setdefault(ports_for(service, pod), []).append(pod)
    bodies = []
    for ports, members in sorted(groups.items()) or [((), [])]:
        for start in range(0, max(1, len(members)), MOST):
            chosen = members[start : start + MOST]
            bodies.append(
                {
                    "addressType": "IPv4",
                    "endpoints": [endpoint(service, pod, nodes(pod.spec.node_name)) for pod in chosen],
                    "ports": [_port(*each) for each in ports] if members else [],
                }
            )
    return bodies


def _port(name: str, number: int, protocol: str, app: str) -> Tree:
    told: Tree = {"name": name, "port": number, "protocol": protocol}
    return {**told, "appProtocol": app} if app else told


def slice_labels(service: Whole) -> dict[str, str]:
    labels = {key: value for key, value in service.metadata.labels.items() if key != HEADLESS}
    labels |= {SERVICE_NAME: service.name, MANAGED_BY: MANAGER}
    return {**labels, HEADLESS: ""} if service.spec.get("clusterIP") == "None" else labels
