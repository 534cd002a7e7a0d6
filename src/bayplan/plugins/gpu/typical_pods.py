"""Which pods usually come, and how many of them a node with so much CPU left would do for.

Counted in whole pods, so that what is computed from it is exact and the same on every machine. Typical pods that want
the same of the same number of devices are one group; how many of a group a node has the model and the CPU for is looked
up in a table a model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, localcontext

import numpy as np

from bayplan.framework.api.plugin import MAX_SCORE
from bayplan.plugins.gpu.gpu_columns import IntMatrix
from bayplan.plugins.gpu.gpu_requests import DEVICE_MILLI, GpuMilliRequest
from bayplan.snapshot import IntVector

_COVERED_PERCENT = 95

DEVICE = 1 << 32
AMOUNT = DEVICE - 1
"""Offers count devices above this bit and what is left on them, in thousandths, below: both are added up at once."""


@dataclass(frozen=True, slots=True, order=True)
class GpuPodShape:
    """What of a pod matters for fragments."""

    cpu_milli: int
    gpu_milli: int
    gpu_count: int
    models: str = ""

    @property
    def request(self) -> GpuMilliRequest:
        return GpuMilliRequest(self.gpu_milli, self.gpu_count, self.models)


@dataclass(frozen=True, slots=True)
class TypicalPods:
    """Shapes with how many pods have them, the most frequent first."""

    counts: tuple[tuple[GpuPodShape, int], ...]

    @classmethod
    def of(cls, shapes: Iterable[GpuPodShape]) -> TypicalPods:
        """The most frequent shapes that together cover 95 % of the pods; of equally frequent ones the larger first."""
        return cls.most_of(Counter(shapes))

    @classmethod
    def most_of(cls, counted: Mapping[GpuPodShape, int]) -> TypicalPods:
        """The same of shapes that were counted already."""
        ordered = sorted(counted.items(), key=lambda each: (each[1], each[0]), reverse=True)
        pods, covered, kept = sum(counted.values()), 0, []
        for shape, count in ordered:
            if covered * 100 >= pods * _COVERED_PERCENT:
                break
            kept.append((shape, count))
            covered += count
        return cls(tuple(kept))

    @property
    def covered(self) -> int:
        return sum(count for _, count in self.counts)


class TypicalGroups:
    """Typical pods with GPUs, in groups by what they ask of devices.

    `offers[left, group]` is what a device with so much left offers to a group; `needed[group]` is what must be offered.
    """

    def __init__(self, typical: TypicalPods) -> None:
        self.covered = typical.covered  # all typical pods, those without GPUs too
        with_gpu = [(shape, count) for shape, count in typical.counts if shape.request.total]
        asks = sorted({(shape.gpu_milli, shape.gpu_count) for shape, _ in with_gpu})
        self.offers = _usable_amounts([milli for milli, _ in asks])
        self.needed: IntVector = np.array([devices * DEVICE for _, devices in asks], dtype=np.int64)
        self.cpus: IntVector = np.array(sorted({shape.cpu_milli for shape, _ in with_gpu}), dtype=np.int64)
        self.thresholds = _thresholds(self.covered)
        groups = {ask: number for number, ask in enumerate(asks)}
        ranks = {cpu: number for number, cpu in enumerate(self.cpus.tolist(), 1)}
        self._counts = [
            (ranks[shape.cpu_milli], groups[shape.gpu_milli, shape.gpu_count], shape.request, count)
            for shape, count in with_gpu
        ]

    def __len__(self) -> int:
        return len(self.needed)

    def table(self, model: str) -> IntMatrix:
        """How many typical pods of each group this model will do for: row n counts those with the n lowest CPUs."""
        table: IntMatrix = np.zeros((len(self.cpus) + 1, len(self)), dtype=np.int64)
        for rank, group, ask, count in self._counts:
            if not ask.models or model in ask.accepted:
                table[rank, group] += count
        return table.cumsum(axis=0)


def _usable_amounts(asked: list[int]) -> IntMatrix:
    """By what is left of a device, and by group: the device and what is left of it where that will do, else nothing."""
    left = np.arange(DEVICE_MILLI + 1, dtype=np.int64)[:, None]
    offers: IntMatrix = (left + DEVICE) * (left >= np.array(asked, dtype=np.int64))
    return offers


def _thresholds(covered: int) -> IntVector:
    """From which gain on each score is given. Logarithms are Decimal's: they are the same on every machine."""
    with localcontext() as context:
        context.prec = 40
        points = [(Decimal(score) / (MAX_SCORE - score)).ln() * DEVICE_MILLI * covered for score in range(1, MAX_SCORE)]
        return np.array([int(point.to_integral_value(rounding="ROUND_CEILING")) for point in points], dtype=np.int64)
