"""Typical pods, and how many of them a node with a given amount of free CPU could run.

Counts are whole pods, so all results are exact and equal on every machine. Typical pods with equal device requests form
one group. A table for each GPU model contains how many pods of a group fit the model and the CPU of a node.
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
"""An offer holds the number of devices above this bit and their free thousandths below it, so one sum adds both."""


@dataclass(frozen=True, slots=True, order=True)
class GpuPodShape:
    """The properties of a pod that matter for fragmentation."""

    cpu_milli: int
    gpu_milli: int
    gpu_count: int
    models: str = ""

    @property
    def request(self) -> GpuMilliRequest:
        return GpuMilliRequest(self.gpu_milli, self.gpu_count, self.models)


@dataclass(frozen=True, slots=True)
class TypicalPods:
    """Pod shapes with their numbers of pods, the most frequent first."""

    counts: tuple[tuple[GpuPodShape, int], ...]

    @classmethod
    def of(cls, shapes: Iterable[GpuPodShape]) -> TypicalPods:
        """Build from shapes: the most frequent ones that cover 95 % of the pods.

        Of equally frequent ones the larger first.
        """
        return cls.most_of(Counter(shapes))

    @classmethod
    def most_of(cls, counted: Mapping[GpuPodShape, int]) -> TypicalPods:
        """Build from counted shapes."""
        ordered = sorted(counted.items(), key=lambda each: (each[1], each[0]), reverse=True)
        pods, covered, selected = sum(counted.values()), 0, []
        for shape, count in ordered:
            if covered * 100 >= pods * _COVERED_PERCENT:
                break
            selected.append((shape, count))
            covered += count
        return cls(tuple(selected))

    @property
    def covered(self) -> int:
        return sum(count for _, count in self.counts)


class TypicalGroups:
    """Typical pods with GPUs, grouped by their device requests.

    `offers[remaining, group]`: what a device with this free amount offers a group. `needed[group]`: what a pod needs.
    """

    def __init__(self, typical: TypicalPods) -> None:
        self.covered = typical.covered  # all typical pods, also without GPUs
        with_gpu = [(shape, count) for shape, count in typical.counts if shape.request.total]
        device_requests = sorted({(shape.gpu_milli, shape.gpu_count) for shape, _ in with_gpu})
        self.offers = _usable_amounts([milli for milli, _ in device_requests])
        self.needed: IntVector = np.array([devices * DEVICE for _, devices in device_requests], dtype=np.int64)
        self.cpus: IntVector = np.array(sorted({shape.cpu_milli for shape, _ in with_gpu}), dtype=np.int64)
        self.thresholds = _thresholds(self.covered)
        groups = {device_request: number for number, device_request in enumerate(device_requests)}
        ranks = {cpu: number for number, cpu in enumerate(self.cpus.tolist(), 1)}
        self._counts = [
            (ranks[shape.cpu_milli], groups[shape.gpu_milli, shape.gpu_count], shape.request, count)
            for shape, count in with_gpu
        ]

    def __len__(self) -> int:
        return len(self.needed)

    def table(self, model: str) -> IntMatrix:
        """Count the typical pods of each group that accept this model.

        Row n counts those with the n lowest CPU requests.
        """
        table: IntMatrix = np.zeros((len(self.cpus) + 1, len(self)), dtype=np.int64)
        for rank, group, device_request, count in self._counts:
            if not device_request.models or model in device_request.accepted:
                table[rank, group] += count
        return table.cumsum(axis=0)


def _usable_amounts(milli_requests: list[int]) -> IntMatrix:
    """For each free amount and group: the device and its free amount if it is sufficient, otherwise nothing."""
    remaining = np.arange(DEVICE_MILLI + 1, dtype=np.int64)[:, None]
    offers: IntMatrix = (remaining + DEVICE) * (remaining >= np.array(milli_requests, dtype=np.int64))
    return offers


def _thresholds(covered: int) -> IntVector:
    """Return the lowest gain of each score. Decimal logarithms are equal on every machine."""
    with localcontext() as context:
        context.prec = 40
        points = [(Decimal(score) / (MAX_SCORE - score)).ln() * DEVICE_MILLI * covered for score in range(1, MAX_SCORE)]
        return np.array([int(point.to_integral_value(rounding="ROUND_CEILING")) for point in points], dtype=np.int64)
