"""Resource requests and limits of all pods: `/metrics/resources`, as kube-scheduler has it.

Rendered from the pods at each scrape, in chunks. It costs some 10 µs a pod and line, so even 150,000 pods hold the loop
for a few milliseconds at a time only. Pods come in the order in which they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from bayplan.codec.quantity import Quantity
from bayplan.objects.core import Pod
from bayplan.objects.resources import (
    CPU,
    EPHEMERAL_STORAGE,
    MEMORY,
    is_attachable_volumes,
    is_hugepages,
    pod_limits,
    pod_requests,
)
from bayplan.telemetry.metrics import Gauge, Stability, in_chunks, label_text, sample_line

_LABELS = ("namespace", "node", "pod", "priority", "resource", "scheduler", "unit")
_HELP_SUFFIX = (
    "broken down by pod. This shows the resource usage the scheduler and kubelet expect per pod for resources along "
)
_HELP_SUFFIX += "with the unit for the resource if any."
_LIMIT = Gauge(
    "kube_pod_resource_limit",
    f"Resources limit for workloads on the cluster, {_HELP_SUFFIX}",
    _LABELS,
    stability=Stability.STABLE,
)
_REQUEST = Gauge(
    "kube_pod_resource_request",
    f"Resources requested by workloads on the cluster, {_HELP_SUFFIX}",
    _LABELS,
    stability=Stability.STABLE,
)
_BYTES = (MEMORY, EPHEMERAL_STORAGE, "storage")
_TERMINAL_PHASES = ("Succeeded", "Failed")

Amounts = Callable[[Pod], Mapping[str, Quantity]]


def render_pod_resources(pods: Collection[Pod]) -> Iterator[bytes]:
    """Text chunks for the pods that exist now. The collection may change while the text is written."""
    return in_chunks(_lines(tuple(pods)))


def _lines(pods: tuple[Pod, ...]) -> Iterator[str]:
    yield from _family(_LIMIT, pods, pod_limits)
    yield from _family(_REQUEST, pods, pod_requests)


def _family(family: Gauge, pods: tuple[Pod, ...], amounts: Amounts) -> Iterator[str]:
    """The lines of one metric. A metric without values has no header lines."""
    head = family.head()
    for pod in pods:
        if pod.spec.node_name and pod.status.phase in _TERMINAL_PHASES:
            continue
        for line in _pod_lines(family.name, pod, amounts(pod)):
            yield from head
            head = []
            yield line


def _pod_lines(name: str, pod: Pod, amounts: Mapping[str, Quantity]) -> Iterator[str]:
    priority = "" if pod.spec.priority is None else str(pod.spec.priority)
    for resource in sorted(amounts):
        if amounts[resource].is_zero():
            continue
        labels = (
            pod.namespace,
            pod.spec.node_name,
            pod.name,
            priority,
            resource,
            pod.scheduler_name,
            unit_of(resource),
        )
        yield sample_line(name, label_text(_LABELS, labels), amounts[resource].as_float())


def unit_of(resource: str) -> str:
    """The unit of a resource, where its name implies one."""
    if resource == CPU:
        return "cores"
    if resource in _BYTES or is_hugepages(resource):
        return "bytes"
    return "integer" if is_attachable_volumes(resource) else ""
