"""KAI-Scheduler's annotations and labels for pods that request a part of a GPU.

Pods that share one device are a GPU group. A reservation pod holds the device for the group, so that no kubelet gives
it to other pods. It and the group's pods have the group's name as a label.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from bayplan.errors import ObjectError
from bayplan.objects.core import Node, Pod
from bayplan.objects.kai.bind_request import MIG_INSTANCE, ReceivedGpu
from bayplan.objects.name_validation import label_value_problems
from bayplan.objects.resources import accounted_requests

GPU = "nvidia.com/gpu"
MIG_PREFIX = "nvidia.com/mig-"
GPU_MEMORY_LABEL = "nvidia.com/gpu.memory"
FRACTION_ANNOTATION = "gpu-fraction"
MEMORY_ANNOTATION = "gpu-memory"
DEVICE_COUNT_ANNOTATION = "gpu-fraction-num-devices"
CONTAINER_ANNOTATION = "gpu-fraction-container-name"
"""The annotation with the name of the container that uses the device; by default the first one."""
CONFIG_MAP_NAME = "runai/shared-gpu-configmap"
"""The annotation with the prefix of the names of a pod's ConfigMaps."""
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
PORTION_VARIABLE = "GPU_PORTION"
LEGACY_PORTION_VARIABLE = "RUNAI_NUM_OF_GPUS"
"""The older name of the portion; despite the name it is not a number of devices."""
GROUP_LABEL = "runai-gpu-group"
RESERVATION_NAMESPACE = "kai-resource-reservation"
"""The namespace of reservation pods, and the name of their service account."""
RESERVATION_PREFIX = "gpu-reservation-"
"""The prefix of the names of reservation pods."""
DEVICE_INDEX_ANNOTATION = "run.ai/reserve_for_gpu_index"
"""The annotation in which a reservation pod reports its device."""
MAX_GROUPS = 64
"""More devices than any node has. Each is a label of the pod and a reservation to wait for."""
MIN_PORTION = 0.01
"""Containers get the share with two digits, and a share of 0.00 means none."""
_STEP_MIB = 100
_DECIMAL = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+")
_NUMBER = re.compile(rf"\+?({_DECIMAL.pattern})([eE][+-]?[0-9]+)?")
"""A positive number as Go parses it; Python would accept blanks and underscores, too."""


@dataclass(frozen=True, slots=True)
class GpuShare:
    """A part of each of several devices: a fraction, or an amount of memory."""

    devices: int = 1
    fraction: float = 0.0
    memory_mib: int = 0

    def memory_on(self, device_mib: int) -> int:
        """The memory that it takes of a device of this size, in MiB."""
        return self.memory_mib or round(self.fraction * device_mib)

    def portion_of(self, device_mib: int) -> float:
        """The share of the device in whole hundredths, at least one: a share of 0 means none."""
        if self.fraction:
            return max(round(self.fraction, 2), MIN_PORTION)
        return math.ceil(100 * self.memory_mib / device_mib) / 100


def requested_share(pod: Pod) -> GpuShare | None:
    """The share of GPUs that a pod requests; None if it requests none. Raises `ObjectError` for invalid annotations."""
    annotations = pod.metadata.annotations
    fraction, memory, number = (
        annotations.get(FRACTION_ANNOTATION),
        annotations.get(MEMORY_ANNOTATION),
        annotations.get(DEVICE_COUNT_ANNOTATION),
    )
    if fraction is None and memory is None:
        if number is not None:
            raise ObjectError(
                f"pod {pod.key} has the annotation {DEVICE_COUNT_ANNOTATION} and neither {FRACTION_ANNOTATION} "
                f"nor {MEMORY_ANNOTATION}; add one of these"
            )
        return None
    if fraction is not None and memory is not None:
        raise ObjectError(
            f"pod {pod.key} has both annotations, {FRACTION_ANNOTATION} and {MEMORY_ANNOTATION}; remove one of them"
        )
    if whole_device_spec(pod):
        raise ObjectError(
            f"pod {pod.key} requests whole GPUs or MIG instances, and a part of a GPU; remove one request"
        )
    sharing_container(pod)
    devices = _positive_integer(pod, DEVICE_COUNT_ANNOTATION, number) if number is not None else 1
    if memory is not None:
        return GpuShare(devices, memory_mib=_positive_integer(pod, MEMORY_ANNOTATION, memory))
    assert fraction is not None
    share = float(fraction) if _NUMBER.fullmatch(fraction) else math.nan
    if not 0 < share < 1:
        raise ObjectError(
            f'pod {pod.key}: the annotation {FRACTION_ANNOTATION} is "{fraction}"; it must be between 0 and 1'
        )
    return GpuShare(devices, fraction=share)


def share_annotation(pod: Pod) -> str:
    """The annotation with which a pod requests a part of a GPU, valid or not; empty if it requests none."""
    return next((key for key in (FRACTION_ANNOTATION, MEMORY_ANNOTATION) if key in pod.metadata.annotations), "")


def sharing_container(pod: Pod) -> str:
    """The container that uses the device, as in the names of its ConfigMaps: `0`, or `i0` for an init container.

    Raises `ObjectError` if the pod names a container that does not exist.
    """
    wanted = pod.metadata.annotations.get(CONTAINER_ANNOTATION)
    if wanted is None:
        return "0"
    for letter, containers in (("", pod.spec.containers), ("i", pod.spec.init_containers)):
        for index, container in enumerate(containers):
            if container.name == wanted:
                return f"{letter}{index}"
    raise ObjectError(f'pod {pod.key} has no container "{wanted}" of its annotation {CONTAINER_ANNOTATION}')


def config_map_names(beginning: str, container: str) -> tuple[str, str]:
    """The names of the ConfigMaps with the device's capabilities and with the environment variables."""
    return f"{beginning}-{container}", f"{beginning}-{container}-evar"


def _positive_integer(pod: Pod, key: str, text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ObjectError(f'pod {pod.key}: the annotation {key} is "{text}"; it must be a whole number above 0')
    return int(text)


def gpu_memory_of_node(node: Node) -> int:
    """The memory of each GPU of a node, in MiB; 0 if the node does not report it."""
    text = node.labels.get(GPU_MEMORY_LABEL, "")
    return int(text) // _STEP_MIB * _STEP_MIB if text.isdecimal() else 0


def gpu_groups_of(pod: Pod) -> set[str]:
    """The groups whose devices a pod holds or uses."""
    found = {value for key, value in pod.labels.items() if key == GROUP_LABEL or key.startswith(f"{GROUP_LABEL}/")}
    return {group for group in found if group}


def is_reservation(pod: Pod, namespace: str) -> bool:
    """Whether a pod holds a device for its group.

    In the reservation namespace every pod with a group does. A pod from an earlier reservation namespace still does: it
    has the name prefix and requests a whole GPU, which no sharing pod does.
    """
    if pod.namespace == namespace:
        return bool(gpu_groups_of(pod))
    return GROUP_LABEL in pod.labels and pod.name.startswith(RESERVATION_PREFIX) and bool(whole_gpus(pod))


def gpu_group_error(name: str) -> str:
    """Why a text is not a valid group name, which must be a label value; empty if it is valid."""
    return next(iter(label_value_problems(name)), "") if name else "a name must not be empty"


def parse_portion(text: str) -> float | None:
    """The share of each device in a BindRequest: a plain decimal from 0.01 to 1; None for any other text."""
    portion = float(text) if _DECIMAL.fullmatch(text) else 0.0
    return portion if MIN_PORTION <= portion <= 1 else None


def whole_gpus(pod: Pod) -> int:
    return accounted_requests(pod).get(GPU, 0)


def whole_device_spec(pod: Pod) -> dict[str, Any]:
    """The devices fields of a BindRequest for a pod that requests whole GPUs or MIG instances.

    The kubelet chooses the devices. The keys are Python names of spec fields; both engines write them.
    """
    count = whole_gpus(pod)
    if count:
        return {"received_gpu": ReceivedGpu(count, "1.00")}
    if any(name.startswith(MIG_PREFIX) for name in accounted_requests(pod)):
        return {"received_resource_type": MIG_INSTANCE}
    return {}
