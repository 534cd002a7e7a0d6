"""GPU requests of pods and the devices assigned to them, read from annotations.

Devices are shared in thousandths, as in Alibaba's open traces and their simulator. A pod requests a number of devices
(`gpu-count`), an amount of each (`gpu-milli`, out of 1000) and the accepted models (`gpu-card-model`, joined by `|`). A
node has a number of devices and a label with their model. A placed pod has the numbers of its devices (`gpu-index`,
joined by `-`), which the container runtime and a restarted scheduler read. A share belongs to a single device; a pod
with several devices gets whole ones.
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
    """`milli` of each of `count` devices of one of the `models` (empty: any). A count of 0: no GPU request."""

    milli: int = 0
    count: int = 0
    models: str = ""

    @property
    def total(self) -> int:
        return self.milli * self.count

    @property
    def shares(self) -> bool:
        """Whether the pod requests a share of a device."""
        return self.count > 0 and self.milli < DEVICE_MILLI

    @property
    def accepted(self) -> frozenset[str]:
        return _accepted_models(self.models)


@lru_cache(maxsize=1024)
def _accepted_models(models: str) -> frozenset[str]:
    return frozenset(filter(None, models.split("|")))


NO_GPU_REQUEST = GpuMilliRequest()

DeviceIndexes = tuple[int, ...]


class InvalidGpuRequest(ValueError):
    """Invalid GPU annotations of a pod. The text says what is expected."""


def gpu_request(pod: Pod) -> GpuMilliRequest:
    """Return the pod's request. Raises `InvalidGpuRequest` for invalid annotations."""
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
    """Return the request of a pod on a node; invalid annotations count as no request."""
    try:
        return gpu_request(pod)
    except InvalidGpuRequest:
        return NO_GPU_REQUEST


def assigned_devices(pod: Pod) -> DeviceIndexes:
    """Return the devices in the pod's annotation."""
    numbers = pod.metadata.annotations.get(GPU_INDEX, "").split("-")
    return tuple(sorted({int(number) for number in numbers if number.isdecimal() and len(number) < 4}))


def device_count(node: Node) -> int:
    try:
        count = parse_quantity(node.status.allocatable.get(GPU_COUNT, 0)).value()
    except QuantityError:
        return 0
    return max(0, min(count, _MAX_DEVICES))


def device_model(node: Node) -> str:
    return node.metadata.labels.get(GPU_MODEL, "")


def request_annotations(request: GpuMilliRequest) -> dict[str, str]:
    if not request.count:
        return {}
    annotations = {GPU_MILLI: str(request.milli), GPU_COUNT: str(request.count)}
    return annotations | ({GPU_MODEL: request.models} if request.models else {})


def index_text(devices: DeviceIndexes) -> str:
    return "-".join(map(str, devices))


def _number(annotations: dict[str, str], key: str, absent: int) -> int:
    text = annotations.get(key)
    if text is None:
        return absent
    if not text.isascii() or not text.isdecimal() or len(text) > 6:
        raise InvalidGpuRequest(f"{key} must be a whole number; got {text!r}")
    return int(text)
