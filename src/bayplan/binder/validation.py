"""What is wrong with a request as it stands? Whoever wrote it may have been anybody, and no server has looked closely.

Asked by `reconcile` before anything is done for a request. What is found here is said once, in a sentence, and nothing
is tried: neither time nor the cluster mends it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from bayplan.binder.binder import pod_annotations_of
from bayplan.objects.kai.bind_request import (
    FRACTION,
    RESOURCE_TYPES,
    BindRequest,
    BindRequestSpec,
    ReceivedGpu,
)
from bayplan.objects.kai.gpu_sharing import (
    MAX_GROUPS,
    MIN_PORTION,
    gpu_group_error,
    parse_portion,
)
from bayplan.objects.name_validation import dns_subdomain_problems

MAX_ANNOTATION_BYTES = 256 * 1024
MAX_QUOTE = 80


def request_error(request: BindRequest) -> str:
    """What is wrong with a request as it stands, whatever the cluster says; nothing where it may be carried out."""
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
    """Of a pod that gets a part of each of some devices."""
    groups, given = spec.selected_gpu_groups, spec.received_gpu or ReceivedGpu()
    if not groups:
        return "it asks for a fraction of a device and names no GPU group in selectedGPUGroups"
    if given.count and given.count != len(groups):
        return f"its receivedGPU.count is {given.count}, and selectedGPUGroups are {len(groups)}; each device has one"
    if given.portion and parse_portion(given.portion) is None:
        return (
            f'its receivedGPU.portion is "{given.portion[:MAX_QUOTE]}"; '
            f"it takes a decimal such as 0.50, from {MIN_PORTION} to 1"
        )
    return ""


def annotations_error(request: BindRequest, there: Mapping[str, str]) -> str:
    """What is wrong with it for a pod that has these annotations. A binding brings more of them and nobody counts: such
    a pod starts, and from then on the server refuses every change of it, its kubelet's and its controller's."""
    size = _bytes({**there, **pod_annotations_of(request)})
    if size <= MAX_ANNOTATION_BYTES:
        return ""
    return (
        f"the pod's annotations would take {size} bytes with predictedNUMAZones, "
        f"which is more than the {MAX_ANNOTATION_BYTES} that are allowed"
    )


def _bytes(annotations: Mapping[str, str]) -> int:
    """As the server counts them."""
    return sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
