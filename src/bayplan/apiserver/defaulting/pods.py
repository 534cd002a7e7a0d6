"""Defaults of pods and of the pod templates of workloads.

`kind_defaults` calls them. They work in place on objects that were decoded for this request, and keep fields that are
set. Some defaults are set on pods but not on templates: in templates they would change all workloads of an upgraded
cluster. Cost: some five microseconds a container.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayplan.apiserver.defaulting.image_pull_policy import default_pull_policy
from bayplan.apiserver.defaulting.volumes import fill_volume
from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.resources.pod_resources import effective_resources, init_and_app_containers, round_quantities
from bayplan.objects.resources import is_hugepages, is_native, is_pod_level

_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_PROBE_NUMBERS = (("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3))


def fill_pod(pod: Tree) -> None:
    spec = pod.setdefault("spec", {})
    fill_pod_spec(spec)
    for container in init_and_app_containers(spec):
        resources = container["resources"]
        limits = resources.get("limits")
        if limits:
            resources["requests"] = {**limits, **resources.get("requests", {})}
    if spec.get("resources"):
        _fill_pod_level(spec, spec["resources"])
    spec.setdefault("enableServiceLinks", True)
    if spec["terminationGracePeriodSeconds"] < 0:
        spec["terminationGracePeriodSeconds"] = 1
    if status := pod.get("status"):
        _fill_pod_ips(status)
    if spec.get("hostNetwork"):
        _fill_host_ports(spec)


def _fill_pod_ips(status: Tree) -> None:
    first, several = status.get("podIP"), status.get("podIPs") or []
    if first and (not several or several[0].get("ip") != first):
        status["podIPs"] = [{"ip": first}]
    elif several and several[0].get("ip"):
        status["podIP"] = several[0]["ip"]


def fill_template(template: Tree) -> None:
    template.setdefault("metadata", {})
    fill_pod_spec(template.setdefault("spec", {}))


def fill_pod_spec(spec: Tree) -> None:
    spec.setdefault("containers", None)
    for container in init_and_app_containers(spec):
        fill_container(container)
    for container in spec.get("ephemeralContainers", ()):
        fill_container(container)
    for volume in spec.get("volumes", ()):
        fill_volume(volume)
    if not spec.get("dnsPolicy"):
        spec["dnsPolicy"] = "ClusterFirst"
    if not spec.get("restartPolicy"):
        spec["restartPolicy"] = "Always"
    if not spec.get("schedulerName"):
        spec["schedulerName"] = "default-scheduler"
    if account := spec.get("serviceAccountName") or spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"] = account  # `serviceAccount` is a deprecated alias
    spec.setdefault("securityContext", {})
    spec.setdefault("terminationGracePeriodSeconds", 30)
    if overhead := spec.get("overhead"):
        round_quantities(overhead)
    if resources := spec.get("resources"):
        _round_quantities(resources)


def fill_container(container: Tree) -> None:
    if not container.get("imagePullPolicy"):
        container["imagePullPolicy"] = default_pull_policy(container.get("image", ""))
    if not container.get("terminationMessagePath"):
        container["terminationMessagePath"] = "/dev/termination-log"
    if not container.get("terminationMessagePolicy"):
        container["terminationMessagePolicy"] = "File"
    resources = container.setdefault("resources", {})
    if resources:
        _round_quantities(resources)
    for port in container.get("ports", ()):
        if not port.get("protocol"):
            port["protocol"] = "TCP"
        port.setdefault("containerPort", 0)
    for variable in container.get("env", ()):
        source = variable.get("valueFrom")
        if source:
            _fill_env_source(source)
    for name in _PROBES:
        probe = container.get(name)
        if probe is not None:
            _fill_probe(probe)
    if lifecycle := container.get("lifecycle"):
        for handler in lifecycle.values():
            if isinstance(handler, dict):
                _fill_http(handler)


def _fill_env_source(source: Tree) -> None:
    if (reference := source.get("fieldRef")) is not None and not reference.get("apiVersion"):
        reference["apiVersion"] = "v1"
    if (resource := source.get("resourceFieldRef")) is not None:
        resource.setdefault("divisor", "0")
    if (file := source.get("fileKeyRef")) is not None:
        file.setdefault("optional", False)


def _fill_probe(probe: Tree) -> None:
    for name, value in _PROBE_NUMBERS:
        if not probe.get(name):
            probe[name] = value
    _fill_http(probe)
    if (grpc := probe.get("grpc")) is not None:
        grpc["service"] = grpc.get("service") or ""


def _fill_http(handler: Tree) -> None:
    get = handler.get("httpGet")
    if get is not None:
        if not get.get("path"):
            get["path"] = "/"
        if not get.get("scheme"):
            get["scheme"] = "HTTP"


def _round_quantities(resources: Mapping[str, Any]) -> None:
    for name in ("requests", "limits"):
        if amounts := resources.get(name):
            round_quantities(amounts)


def _fill_host_ports(spec: Tree) -> None:
    """With the host network, the port of a container is the port of the host."""
    for container in init_and_app_containers(spec):
        for port in container.get("ports", ()):
            if not port.get("hostPort") and port.get("containerPort"):
                port["hostPort"] = port["containerPort"]


def _fill_pod_level(spec: Tree, resources: Tree) -> None:
    """Complete the pod-level resources from those of the containers."""
    requests, limits = resources.get("requests", {}), resources.get("limits", {})
    if requests or limits:
        for name, amount in effective_resources(spec, "limits").items():
            if is_pod_level(name) and is_hugepages(name) and name not in requests:
                limits.setdefault(name, str(amount))
    if limits:
        for name, amount in effective_resources(spec, "requests").items():
            if is_pod_level(name) and is_native(name) and not is_hugepages(name):
                requests.setdefault(name, str(amount))
        for name, text in limits.items():
            if is_pod_level(name):
                requests.setdefault(name, text)
        resources["limits"] = limits
    if requests:
        resources["requests"] = requests
