"""What does a pod say that wants a part of a GPU, and how is it told which one? KAI-Scheduler's annotations and labels.

Pods that share one device are a GPU group. A reservation pod holds the device for the group, so that no kubelet hands
it to others; it and the group's pods carry the group's name as a label.
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
"""The annotation that says which container shares the device; the first one where it is missing."""
CONFIG_MAP_NAME = "runai/shared-gpu-configmap"
"""The annotation with the beginning of the names of a pod's ConfigMaps."""
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
PORTION_VARIABLE = "GPU_PORTION"
LEGACY_PORTION_VARIABLE = "RUNAI_NUM_OF_GPUS"
"""What the portion was called before: despite its name no number of devices."""
GROUP_LABEL = "runai-gpu-group"
RESERVATION_NAMESPACE = "kai-resource-reservation"
"""The namespace of reservation pods, and the account that they run as."""
RESERVATION_PREFIX = "gpu-reservation-"
"""How the names of reservation pods begin, whoever makes them."""
DEVICE_INDEX_ANNOTATION = "run.ai/reserve_for_gpu_index"
"""The annotation in which a reservation pod says which device it holds."""
MAX_GROUPS = 64
"""More devices than any node has; each is a label of the pod and a reservation to wait for."""
MIN_PORTION = 0.01
"""What containers are told has two digits, and a share of 0.00 is none."""
_STEP_MIB = 100
_DECIMAL = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+")
_NUMBER = re.compile(rf"\+?({_DECIMAL.pattern})([eE][+-]?[0-9]+)?")
"""What Go reads as a number above 0, as users write it on pods: Python would take blanks and underscores, too."""


@dataclass(frozen=True, slots=True)
class GpuShare:
    """A part of each of so many devices: a fraction, or an amount of memory."""

    devices: int = 1
    fraction: float = 0.0
    memory_mib: int = 0

    def memory_on(self, device_mib: int) -> int:
        """How much of a device of this size it takes."""
        return self.memory_mib or round(self.fraction * device_mib)

    def portion_of(self, device_mib: int) -> float:
        """The same as a share, in whole hundredths, and one at least: none is no share."""
        if self.fraction:
            return max(round(self.fraction, 2), MIN_PORTION)
        return math.ceil(100 * self.memory_mib / device_mib) / 100


def requested_share(pod: Pod) -> GpuShare | None:
    """What part of GPUs a pod asks for; None where it asks for none. `ObjectError` says what makes no sense."""
    said = pod.metadata.annotations
    fraction, memory, number = (
        said.get(FRACTION_ANNOTATION),
        said.get(MEMORY_ANNOTATION),
        said.get(DEVICE_COUNT_ANNOTATION),
    )
    if fraction is None and memory is None:
        if number is not None:
            raise ObjectError(
                f"pod {pod.key} has the annotation {DEVICE_COUNT_ANNOTATION} and neither {FRACTION_ANNOTATION} "
                f"nor {MEMORY_ANNOTATION}"
            )
        return None
    if fraction is not None and memory is not None:
        raise ObjectError(
            f"pod {pod.key} has both annotations, {FRACTION_ANNOTATION} and {MEMORY_ANNOTATION}; one of them says it"
        )
    if whole_device_spec(pod):
        raise ObjectError(f"pod {pod.key} wants whole GPUs, or instances of MIG, and a part of one; it gets either")
    sharing_container(pod)
    devices = _positive_integer(pod, DEVICE_COUNT_ANNOTATION, number) if number is not None else 1
    if memory is not None:
        return GpuShare(devices, memory_mib=_positive_integer(pod, MEMORY_ANNOTATION, memory))
    assert fraction is not None
    share = float(fraction) if _NUMBER.fullmatch(fraction) else math.nan
    if not 0 < share < 1:
        raise ObjectError(f'pod {pod.key}: the annotation {FRACTION_ANNOTATION} is "{fraction}"; it is between 0 and 1')
    return GpuShare(devices, fraction=share)


def share_annotation(pod: Pod) -> str:
    """The annotation by which a pod asks for a part of a GPU, be it sense or not; empty where it asks for none."""
    return next((key for key in (FRACTION_ANNOTATION, MEMORY_ANNOTATION) if key in pod.metadata.annotations), "")


def sharing_container(pod: Pod) -> str:
    """Which container shares the device, as the names of its ConfigMaps have it: `0`, or `i0` for one that only
    initialises. `ObjectError` where the pod names one that it has not."""
    wanted = pod.metadata.annotations.get(CONTAINER_ANNOTATION)
    if wanted is None:
        return "0"
    for letter, containers in (("", pod.spec.containers), ("i", pod.spec.init_containers)):
        for index, container in enumerate(containers):
            if container.name == wanted:
                return f"{letter}{index}"
    raise ObjectError(f'pod {pod.key} has no container "{wanted}", which its annotation {CONTAINER_ANNOTATION} names')


def config_map_names(beginning: str, container: str) -> tuple[str, str]:
    """What the device of a container can do, and the variables of its environment."""
    return f"{beginning}-{container}", f"{beginning}-{container}-evar"


def _positive_integer(pod: Pod, key: str, text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ObjectError(f'pod {pod.key}: the annotation {key} is "{text}"; it takes a whole number above 0')
    return int(text)


def gpu_memory_of_node(node: Node) -> int:
    """What each GPU of a node has, in MiB; 0 where the node does not say."""
    text = node.labels.get(GPU_MEMORY_LABEL, "")
    return int(text) // _STEP_MIB * _STEP_MIB if text.isdecimal() else 0


def gpu_groups_of(pod: Pod) -> set[str]:
    """The groups whose devices a pod holds or uses."""
    found = {value for key, value in pod.labels.items() if key == GROUP_LABEL or key.startswith(f"{GROUP_LABEL}/")}
    return {group for group in found if group}


def is_reservation(pod: Pod, namespace: str) -> bool:
    """Whether a pod holds a device for its group. In the namespace of such pods all do that are of a group. One that
    was made when they lived in another still holds its device: by its name, and by asking for a whole one, which no pod
    does that uses a part."""
    if pod.namespace == namespace:
        return bool(gpu_groups_of(pod))
    return GROUP_LABEL in pod.labels and pod.name.startswith(RESERVATION_PREFIX) and bool(whole_gpus(pod))


def gpu_group_error(name: str) -> str:
    """What keeps a text from being the name of a group, which pods have as a label; nothing where it may be one."""
    return next(iter(label_value_problems(name)), "") if name else "a name must not be empty"


def parse_portion(text: str) -> float | None:
    """The share of each device that a BindRequest tells: a plain decimal from 0.01 to 1; None for what is none."""
    portion = float(text) if _DECIMAL.fullmatch(text) else 0.0
    return portion if MIN_PORTION <= portion <= 1 else None


def whole_gpus(pod: Pod) -> int:
    """How many whole GPUs a pod asks for."""
    return accounted_requests(pod).get(GPU, 0)


def whole_device_spec(pod: Pod) -> dict[str, Any]:
    """What its BindRequest says of the devices that a pod gets by asking for whole ones, or for instances of MIG: which
    they are is the kubelet's affair. Fields of the spec by their Python names; both engines write them so."""
    count = whole_gpus(pod)
    if count:
        return {"received_gpu": ReceivedGpu(count, "1.00")}
    if any(name.startswith(MIG_PREFIX) for name in accounted_requests(pod)):
        return {"received_resource_type": MIG_INSTANCE}
    return {}
