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

WHOLE = 1000
"""Thousandths of a device."""

_MOST_DEVICES = 64


@dataclass(frozen=True, slots=True)
class GpuAsk:
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
        return self.count > 0 and self.milli < WHOLE

    @property
    def accepted(self) -> frozenset[str]:
        return _accepted(self.models)


@lru_cache(maxsize=1024)
def _accepted(models: str) -> frozenset[str]:
    return frozenset(filter(None, models.split("|")))


NOTHING = GpuAsk()

Devices = tuple[int, ...]


class UnreadableAsk(ValueError):
    """Annotations that ask for what no node can have. The text says what was expected."""


def gpu_ask(pod: Pod) -> GpuAsk:
    """What the pod asks for; `UnreadableAsk` where its annotations make no sense."""
    annotations = pod.metadata.annotations
    if GPU_COUNT not in annotations and GPU_MILLI not in annotations:
        return NOTHING
    milli = _number(annotations, GPU_MILLI, WHOLE)
    count = _number(annotations, GPU_COUNT, 1)
    if count == 0 or milli == 0:
        return NOTHING
    if milli > WHOLE:
        raise UnreadableAsk(f"{GPU_MILLI} is a share of one device, from 0 to {WHOLE}; got {milli}")
    if count > 1 and milli < WHOLE:
        raise UnreadableAsk(f"{GPU_COUNT} is {count}, so {GPU_MILLI} must be {WHOLE}; got {milli}")
    return GpuAsk(milli, count, annotations.get(GPU_MODEL, ""))


def readable_ask(pod: Pod) -> GpuAsk:
    """The same of a pod that is on a node already, where nonsense holds nothing."""
    try:
        return gpu_ask(pod)
    except UnreadableAsk:
        return NOTHING


def given_devices(pod: Pod) -> Devices:
    """The devices that the pod says it was given."""
    numbers = pod.metadata.annotations.get(GPU_INDEX, "").split("-")
    return tuple(sorted({int(number) for number in numbers if number.isdecimal() and len(number) < 4}))


def device_count(node: Node) -> int:
    """How many devices a node has."""
    try:
        count = parse_quantity(node.status.allocatable.get(GPU_COUNT, 0)).value()
    except QuantityError:
        return 0
    return max(0, min(count, _MOST_DEVICES))


def device_model(node: Node) -> str:
    return node.metadata.labels.get(GPU_MODEL, "")


def annotations_for(ask: GpuAsk) -> dict[str, str]:
    """How a pod says what it asks for."""
    if not ask.count:
        return {}
    said = {GPU_MILLI: str(ask.milli), GPU_COUNT: str(ask.count)}
    return said | ({GPU_MODEL: ask.models} if ask.models else {})


def index_text(devices: Devices) -> str:
    return "-".join(map(str, devices))


def _number(annotations: dict[str, str], key: str, absent: int) -> int:
    text = annotations.get(key)
    if text is None:
        return absent
    if not text.isascii() or not text.isdecimal() or len(text) > 6:
        raise UnreadableAsk(f"{key} must be a whole number; got {text!r}")
    return int(text)
