"""Naive twin of `plugins.gpu`: policies for shared GPUs in plain Python, one node at a time, with floats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from bayplan.plugins.gpu.gpu_requests import GpuMilliRequest
from bayplan.plugins.gpu.typical_pods import GpuPodShape


@dataclass
class State:
    """One node: CPU, the free part of each device, its model, and the kinds of pods on it (0: a part of a device)."""

    cpu: int
    left: list[int]
    model: str = ""
    kinds: set[int] = field(default_factory=set)

    @property
    def total(self) -> int:
        return sum(self.left)


def accepts(models: str, model: str) -> bool:
    return not models or model in models.split("|")


def fragment(state: State, typical: Sequence[tuple[GpuPodShape, int]]) -> float:
    covered = sum(count for _, count in typical)
    expected = 0.0
    for shape, count in typical:
        fitting = [left for left in state.left if left >= shape.gpu_milli]
        fits = shape.cpu_milli <= state.cpu and len(fitting) >= shape.gpu_count and accepts(shape.models, state.model)
        unusable = state.total - sum(fitting) if shape.gpu_count and fits else state.total
        expected += unusable * count / covered
    return expected


def fgd(
    state: State, cpu: int, ask: GpuMilliRequest, typical: Sequence[tuple[GpuPodShape, int]]
) -> tuple[int, int, float]:
    """The score, the device that gave it and the gain."""
    best = (-1, -1, 0.0)
    for device, left in enumerate(state.left) if ask.shares else [(-1, 0)]:
        after = list(state.left)
        if ask.shares:
            if left < ask.milli:
                continue
            after[device] -= ask.milli
        else:
            for free in [number for number, amount in enumerate(after) if amount == 1000][: ask.count]:
                after[free] = 0
        gain = fragment(state, typical) - fragment(State(state.cpu - cpu, after, state.model), typical)
        gain = 0.0 if abs(gain) < 1e-6 else gain
        score = int(100 / (1 + math.exp(-gain / 1000)))
        if score > best[0]:
            best = (score, device, gain)
    return best
