"""Validates a BindRequest. Any client may have written it, and the API server checks only its schema.

Called by `reconcile` before anything is done for a request. An error is final and nothing is attempted: neither time
nor changes in the cluster can correct the request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from bayplan.binder.binder import pod_annotations_of
from bayplan.objects.kai.bind_request import FRACTION, RESOURCE_TYPES, BindRequest, BindRequestSpec, ReceivedGpu
from bayplan.objects.kai.gpu_sharing import MAX_GROUPS, MIN_PORTION, gpu_group_error, parse_portion
from bayplan.objects.name_validation import dns_subdomain_problems

MAX_ANNOTATION_BYTES = 256 * 1024
MAX_QUOTE = 80


def request_error(request: BindRequest) -> str:
    """The error in a request, whatever the state of the cluster; empty if it is valid."""
    spec = request.spec
    if not spec.pod_name:
        return "it names no pod; spec.podName must say which one"
    if not spec.selected_node:
        return "it names no node; spec.selectedNode must say which one"
    for field, name in (("podName", spec.pod_name), ("selectedNode", spec.selected_node)):
        if problem := next(iter(dns_subdomain_problems(name)), ""):
            return f'its {field} is "{name[:MAX_QUOTE]}", a name that nothing can have: {problem}'
    kind = spec.received_resource_type
    if kind not in RESOURCE_TYPES:
        return f'its receivedResourceType is "{kind}"; it is one of {", ".join(filter(None, RESOURCE_TYPES))}'
    if fault := _gpu_groups_error(spec) or (_portion_error(spec) if kind == FRACTION else ""):
        return fault
    size = _bytes(request.metadata.annotations)
    if size > MAX_ANNOTATION_BYTES:
        return f"its annotations take {size} bytes, which is more than the {MAX_ANNOTATION_BYTES} that are allowed"
    return annotations_error(request, {})


def _gpu_groups_error(spec: BindRequestSpec) -> str:
    groups = spec.selected_gpu_groups
    if len(groups) > MAX_GROUPS:
        return f"its selectedGPUGroups are {len(groups)}, which is more than the {MAX_GROUPS} that are allowed"
    for group in groups:
        if problem := gpu_group_error(group):
            return f'its selectedGPUGroups have "{group[:MAX_QUOTE]}", which no pod can have as a label: {problem}'
    twice = next((group for group, times in Counter(groups).items() if times > 1), "")
    return f'its selectedGPUGroups have "{twice}" twice; each stands for a device of its own' if twice else ""


def _portion_error(spec: BindRequestSpec) -> str:
    groups, received = spec.selected_gpu_groups, spec.received_gpu or ReceivedGpu()
    if not groups:
        return "it asks for a fraction of a device and names no GPU group in selectedGPUGroups"
    if received.count and received.count != len(groups):
        return (
            f"its receivedGPU.count is {received.count}, and selectedGPUGroups are {len(groups)}; each device has one"
        )
    if received.portion and parse_portion(received.portion) is None:
        return (
            f'its receivedGPU.portion is "{received.portion[:MAX_QUOTE]}"; '
            f"it takes a decimal such as 0.50, from {MIN_PORTION} to 1"
        )
    return ""


def annotations_error(request: BindRequest, existing: Mapping[str, str]) -> str:
    """The error for a pod that has these annotations. A binding adds annotations without a check of their size: such a
    pod would start, and the API server would refuse every later change of it, also by its kubelet and controller."""
    size = _bytes({**existing, **pod_annotations_of(request)})
    if size <= MAX_ANNOTATION_BYTES:
        return ""
    return (
        f"the pod's annotations would take {size} bytes with predictedNUMAZones, "
        f"which is more than the {MAX_ANNOTATION_BYTES} that are allowed"
    )


def _bytes(annotations: Mapping[str, str]) -> int:
    """The size as the API server counts it."""
    return sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
