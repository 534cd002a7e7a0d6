"""What does a pod ask of the GPUs of a node, and which of them was it given?

Devices are shared in thousandths, as Alibaba's open traces and their simulator have it: a pod says how many devices it
wants (`gpu-count`), how much of each (`gpu-milli`, out of 1000) and which models will do (`gpu-card-model`, joined by
`|`); a node says how many devices it has and, by a label, of which model. A pod that was placed carries the numbers of
its devices (`gpu-index`, joined by `-`): whoever starts its containers reads them there, and so does a scheduler that
starts anew. A part of a device is a part of one device; who wants several gets whole ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from bayplan.codec.quantity import QuantityError, parse_quantity
from bayplan.objects.core import Node, Pod

GPU_COUNT = "alibabacloud.com/gpu-count"
GPU_MILLI = "alibabacloud.com/gpu-milli"
GPU_MODEL = "alibabacloud.com/gpu-card-model"
GPU_INDEX = "alibabacloud.com/gpu-index"

DEVICE_MILLI = 1000
"""Thousandths of a device."""

_MAX_DEVICES = 64


@dataclass(frozen=True, slots=True)
class GpuMilliRequest:
    """`milli` of each of `count` devices of one of the `models` (none: of any). No device: a pod that only computes."""

    milli: int = 0
    count: int = 0
    models: str = ""

    @property
    def total(self) -> int:
        return self.milli * self.count

    @property
    def shares(self) -> bool:
        """Whether it wants a part of a device."""
        return self.count > 0 and self.milli < DEVICE_MILLI

    @property
    def accepted(self) -> frozenset[str]:
        return _accepted(self.models)


@lru_cache(maxsize=1024)
def _accepted(models: str) -> frozenset[str]:
    return frozenset(filter(None, models.split("|")))


NO_GPU_REQUEST = GpuMilliRequest()

DeviceIndexes = tuple[int, ...]


class InvalidGpuRequest(ValueError):
    """Annotations that ask for what no node can have. The text says what was expected."""


def gpu_request(pod: Pod) -> GpuMilliRequest:
    """What the pod asks for; `InvalidGpuRequest` where its annotations make no sense."""
    annotations = pod.metadata.annotations
    if GPU_COUNT not in annotations and GPU_MILLI not in annotations:
        return NO_GPU_REQUEST
    milli = _number(annotations, GPU_MILLI, DEVICE_MILLI)
    count = _number(annotations, GPU_COUNT, 1)
    if count == 0 or milli == 0:
        return NO_GPU_REQUEST
    if milli > DEVICE_MILLI:
        raise InvalidGpuRequest(f"{GPU_MILLI} is a share of one device, from 0 to {DEVICE_MILLI}; got {milli}")
    if count > 1 and milli < DEVICE_MILLI:
        raise InvalidGpuRequest(f"{GPU_COUNT} is {count}, so {GPU_MILLI} must be {DEVICE_MILLI}; got {milli}")
    return GpuMilliRequest(milli, count, annotations.get(GPU_MODEL, ""))


def gpu_request_or_none(pod: Pod) -> GpuMilliRequest:
    """The same of a pod that is on a node already, where nonsense holds nothing."""
    try:
        return gpu_request(pod)
    except InvalidGpuRequest:
        return NO_GPU_REQUEST


def assigned_devices(pod: Pod) -> DeviceIndexes:
    """The devices that the pod says it was given."""
    numbers = pod.metadata.annotations.get(GPU_INDEX, "").split("-")
    return tuple(sorted({int(number) for number in numbers if number.isdecimal() and len(number) < 4}))


def device_count(node: Node) -> int:
    """How many devices a node has."""
    try:
        count = parse_quantity(node.status.allocatable.get(GPU_COUNT, 0)).value()
    except QuantityError:
        return 0
    return max(0, min(count, _MAX_DEVICES))


def device_model(node: Node) -> str:
    return node.metadata.labels.get(GPU_MODEL, "")


def request_annotations(ask: GpuMilliRequest) -> dict[str, str]:
    """How a pod says what it asks for."""
    if not ask.count:
        return {}
    said = {GPU_MILLI: str(ask.milli), GPU_COUNT: str(ask.count)}
    return said | ({GPU_MODEL: ask.models} if ask.models else {})


def index_text(devices: DeviceIndexes) -> str:
    return "-".join(map(str, devices))


def _number(annotations: dict[str, str], key: str, absent: int) -> int:
    text = annotations.get(key)
    if text is None:
        return absent
    if not text.isascii() or not text.isdecimal() or len(text) > 6:
        raise InvalidGpuRequest(f"{key} must be a whole number; got {text!r}")
    return int(text)
