"""Endpoints of a Service and their EndpointSlices, as trees. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bayplan.controllers.core.api_types import PodFields, Tree, UntypedObject
from bayplan.objects.core import Node

SERVICE_NAME = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
MANAGER = "endpointslice-controller.k8s.io"
HEADLESS = "service.kubernetes.io/headless"
MAX_ENDPOINTS_PER_SLICE = 100
"""Maximum number of endpoints in a slice."""
_ZONE = "topology.kubernetes.io/zone"


def backing_pods(service: UntypedObject, pods: Iterable[PodFields]) -> list[PodFields]:
    """Pods that match the service's selector and have an address."""
    selector: dict[str, str] = service.spec.get("selector") or {}
    return [pod for pod in pods if pod.status.pod_ip and not pod.finished and selector.items() <= pod.labels.items()]


def endpoint(service: UntypedObject, pod: PodFields, node: Node | None) -> Tree:
    terminating = pod.terminating
    published = bool(service.spec.get("publishNotReadyAddresses"))
    tree: Tree = {
        "addresses": [pod.status.pod_ip],
        "conditions": {
            "ready": published or (pod.ready and not terminating),
            "serving": pod.ready,
            "terminating": terminating,
        },
        "targetRef": {"kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid},
    }
    if pod.spec.node_name:
        tree["nodeName"] = pod.spec.node_name
    if node is not None and _ZONE in node.labels:
        tree["zone"] = node.labels[_ZONE]
    if pod.spec.hostname and pod.spec.subdomain == service.name:
        tree["hostname"] = pod.spec.hostname
    return tree


def ports_for(service: UntypedObject, pod: PodFields) -> tuple[tuple[str, int, str, str], ...]:
    """Name, number, protocol and application protocol of the service's ports on this pod."""
    found = []
    for port in service.spec.get("ports") or ():
        target, protocol = port.get("targetPort", port.get("port")), port.get("protocol", "TCP")
        number = target if isinstance(target, int) else _find_named_port(pod, str(target), protocol)
        if number:
            found.append((port.get("name", ""), int(number), protocol, port.get("appProtocol") or ""))
    return tuple(found)


def _find_named_port(pod: PodFields, name: str, protocol: str) -> int | None:
    for container in pod.spec.containers:
        for port in container.ports:
            if port.name == name and (port.protocol or "TCP") == protocol:
                return port.container_port
    return None


def slice_bodies(service: UntypedObject, pods: Sequence[PodFields], nodes: Any) -> list[Tree]:
    """Contents of a service's slices without names: pods with the same ports share slices of a hundred endpoints.

    `nodes`: returns a node by its name."""
    groups: dict[tuple[tuple[str, int, str, str], ...], list[PodFields]] = {}
    for pod in sorted(pods, key=lambda each: each.name):
        groups.setdefault(ports_for(service, pod), []).append(pod)
    bodies = []
    for ports, members in sorted(groups.items()) or [((), [])]:
        for start in range(0, max(1, len(members)), MAX_ENDPOINTS_PER_SLICE):
            members_of_slice = members[start : start + MAX_ENDPOINTS_PER_SLICE]
            bodies.append(
                {
                    "addressType": "IPv4",
                    "endpoints": [endpoint(service, pod, nodes(pod.spec.node_name)) for pod in members_of_slice],
                    "ports": [_port(*each) for each in ports] if members else [],
                }
            )
    return bodies


def _port(name: str, number: int, protocol: str, app: str) -> Tree:
    tree: Tree = {"name": name, "port": number, "protocol": protocol}
    return {**tree, "appProtocol": app} if app else tree


def slice_labels(service: UntypedObject) -> dict[str, str]:
    labels = {key: value for key, value in service.metadata.labels.items() if key != HEADLESS}
    labels |= {SERVICE_NAME: service.name, MANAGED_BY: MANAGER}
    return {**labels, HEADLESS: ""} if service.spec.get("clusterIP") == "None" else labels
