"""The `deviceshare` plugin: GPU sharing. Filters nodes by free GPU cards and chooses the cards of a pod.

It does nothing unless a mode is enabled: sharing by memory, by number of cards, or vGPU. The cards are chosen when the
event handler of `predicates` allocates the task. Annotations on the pod describe the chosen cards.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.devices.card_pools import CardPool, CardPredicateResults
from bayplan.batch.devices.shared_gpus import SharedGpuPool
from bayplan.batch.devices.vgpu_pool import ExclusiveRule, PendingVgpuAssignments, VgpuPool
from bayplan.batch.evaluation.node_points import ROW_LOCAL
from bayplan.batch.handle import BatchHandle
from bayplan.batch.model.nodes import FloatVector, Nodes
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.session import Session
from bayplan.errors import BayplanError

GPU_SHARING_ENABLE = "deviceshare.GPUSharingEnable"
GPU_NUMBER_ENABLE = "deviceshare.GPUNumberEnable"
VGPU_ENABLE = "deviceshare.VGPUEnable"
POLICY = "deviceshare.SchedulePolicy"
WEIGHT = "deviceshare.ScheduleWeight"
EXCLUSIVE_RULES = "deviceshare.GPUExclusiveRules"
_CONFIG_MAP = ("deviceshare.KnownGeometriesCMName", "deviceshare.KnownGeometriesCMNamespace")
_UNSUPPORTED = (
    "deviceshare.AscendMindClusterVNPUEnable",
    "deviceshare.AscendHAMiVNPUEnable",
    "deviceshare.NodeLockEnable",
)


class GpuModesConflict(BayplanError):
    """Two enabled GPU modes exclude each other."""


@dataclass(slots=True)
class _DeviceShareState:
    """State that outlives sessions: the last value of each mode switch, and cards of pods that are being bound."""

    switches: dict[str, bool] = field(default_factory=dict)
    assignments: PendingVgpuAssignments = field(default_factory=PendingVgpuAssignments)


class DeviceSharePlugin:
    name = "deviceshare"
    also_at: ClassVar[tuple[str, ...]] = ("predicate", "node_order")
    takes: ClassVar[tuple[Argument, ...]] = (
        Argument(GPU_SHARING_ENABLE, bool, False),
        Argument(GPU_NUMBER_ENABLE, bool, False),
        Argument(VGPU_ENABLE, bool, False),
        Argument(POLICY, str, ""),
        Argument(WEIGHT, int, 0),
        Argument(EXCLUSIVE_RULES, list[dict[str, Any]]),
        *(Argument(key, object, no_effect_reason="it is not supported") for key in _UNSUPPORTED),
        *(Argument(key, object, no_effect_reason="the config map is not read") for key in _CONFIG_MAP),
    )

    def __init__(self, arguments: Arguments, state: _DeviceShareState) -> None:
        self._state = state
        for key in (GPU_SHARING_ENABLE, GPU_NUMBER_ENABLE, VGPU_ENABLE):
            state.switches[key] = arguments.get_bool(key, state.switches.get(key, False))
        for key in _UNSUPPORTED:
            if arguments.get_bool(key):
                arguments.warn(f"{key} is not supported and has no effect")
        for key in _CONFIG_MAP:
            if key in arguments:
                arguments.warn(f"{key}: the config map is not read; resources of vGPUs have their default names")
        self._policy = arguments.get_str(POLICY)
        self._weight = arguments.get_int(WEIGHT)
        self._rules = _exclusive_rules(arguments)

    @classmethod
    def factory(cls, arguments: Arguments, handle: BatchHandle) -> DeviceSharePlugin:
        return cls(arguments, handle.keep(cls.name, _DeviceShareState))

    def on_session_open(self, session: Session) -> None:
        pool = self._pool(session)
        if pool is None:
            return
        session.device_pools.append(pool)

        def signature(task: Task) -> Hashable:
            return pool.request(task) or ()

        count = len(session.nodes)
        session.add_predicate_factory(self.name, lambda task: CardPredicateResults(pool, count), signature)  # noqa: ARG005
        if self._weight > 0:
            session.add_node_order_nodes_fn(
                self.name, lambda task, nodes: self._score(pool, task, nodes), signature=signature, depends_on=ROW_LOCAL
            )

    def on_session_close(self, session: Session) -> None:
        self._state.assignments.end_session(session)

    def _pool(self, session: Session) -> CardPool[Any, Any] | None:
        by_memory, by_number, vgpu = (
            self._state.switches[key] for key in (GPU_SHARING_ENABLE, GPU_NUMBER_ENABLE, VGPU_ENABLE)
        )
        if by_memory and by_number:
            raise GpuModesConflict(
                f"can not define true in both gpu sharing and gpu number: set {GPU_SHARING_ENABLE} or "
                f"{GPU_NUMBER_ENABLE} to false"
            )
        if vgpu and (by_memory or by_number):
            raise GpuModesConflict(
                f"gpu-share and vgpu can't be used together: set {VGPU_ENABLE} to false, or the other one"
            )
        if vgpu:
            return VgpuPool(session, self._policy, self._rules, self._state.assignments)
        if by_memory or by_number:
            return SharedGpuPool(session, by_memory=by_memory, by_number=by_number)
        return None

    def _score(self, pool: CardPool[Any, Any], task: Task, nodes: Nodes) -> FloatVector:
        scores = np.floor(pool.scores(task, nodes) + 0.5)
        scores[np.isnan(scores)] = -math.ldexp(1.0, 63)  # what upstream's conversion makes of a card without memory
        weighted: FloatVector = scores * float(self._weight)
        return weighted


def _exclusive_rules(arguments: Arguments) -> list[ExclusiveRule]:
    if EXCLUSIVE_RULES not in arguments:
        return []
    raw = arguments[EXCLUSIVE_RULES]
    found: list[ExclusiveRule] = []
    for item in raw if isinstance(raw, list) else ():
        pairs = item.items() if isinstance(item, dict) else ()
        rule = {key: value for key, value in pairs if isinstance(key, str) and isinstance(value, str)}
        if rule:
            found.append(rule)
    return found
