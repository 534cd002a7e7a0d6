"""Binds one pod: reserves GPUs, runs PreBind plugins, writes the binding and runs PostBind plugins, or rolls back.

Called by `reconcile` for one request at a time. An earlier process may have done a step before it died, so each step
can be repeated. Nothing is rolled back once the API server has the binding.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from bayplan.api_writes import crash_points
from bayplan.api_writes.crash_points import CrashPointCallback
from bayplan.binder.cancellable_waits import BindingCancelled, CancellableWaits
from bayplan.binder.observer import BinderObserver
from bayplan.binder.plugin import POST_BIND, PRE_BIND, ROLLBACK, BinderHandle, BindingState, InvalidRequest, RejectBind
from bayplan.client.cancellation import Cancellation
from bayplan.client.work_queue import is_cancelled_task
from bayplan.errors import BayplanError, LeaseLost
from bayplan.intents.pod_intents import BindPod
from bayplan.objects.core import Node, Pod
from bayplan.objects.kai.bind_request import NUMA_ZONES, RECEIVED_TYPE, REGULAR, BindRequest
from bayplan.telemetry.await_timing import TimedAwait

log = logging.getLogger(__name__)

PLUGIN_TIMEOUT_S = 900.0
"""Limit of one plugin call: longer than any intended wait for volumes or devices."""


class GpuReservationService(Protocol):
    """Reserves shared GPUs, so that no device is given out twice."""

    async def reserve(self, pod: Pod, node: Node, group: str, *, several: bool) -> str:
        """Reserve the group's device and return its id. `several`: the pod gets more than one device."""
        ...

    async def remove_other_groups(self, pod: Pod, groups: Sequence[str]) -> None:
        """Remove the pod's labels of all groups but these."""
        ...

    async def release(self, pod: Pod, groups: Sequence[str]) -> None:
        """Release what was reserved for this pod only: it will not be bound."""
        ...

    async def sync_node(self, node_name: str) -> None:
        """Repair what crashes have left on a node."""
        ...


class BinderPluginError(BayplanError):
    """A plugin failed the attempt."""


class Binder:
    def __init__(
        self,
        handle: BinderHandle,
        plugins: Sequence[Any],
        reservations: GpuReservationService,
        *,
        observer: BinderObserver,
        waits: CancellableWaits,
        is_wanted: Callable[[BindRequest, float], Awaitable[bool]],
        limit_s: float = PLUGIN_TIMEOUT_S,
        on_crash_point: CrashPointCallback = crash_points.ignore_crash_point,
    ) -> None:
        self._handle = handle
        self._plugins = plugins
        self._reservations = reservations
        self._observer = observer
        self._waits = waits
        self._is_wanted = is_wanted
        self._limit_s = limit_s
        self._on_crash_point = on_crash_point

    async def bind(self, pod: Pod, node: Node, request: BindRequest, state: BindingState) -> None:
        """Bind the pod. Raises if it is not bound."""
        self._on_crash_point(crash_points.ATTEMPT_STARTED)
        start_s = self._handle.clock.monotonic_s()
        with self._waits.for_request(request):
            if request.is_fraction:
                await self._reserve(pod, node, request, state)
            for plugin in self._plugins:
                await self._pre_bind(plugin, pod, node, request, state)
        self._on_crash_point(crash_points.PRE_BIND_DONE)
        if not await self._is_wanted(request, self._handle.clock.monotonic_s() - start_s):
            raise BindingCancelled(request)
        await self._handle.writes.perform(BindPod(pod, node.name, pod_annotations_of(request)))
        self._on_crash_point(crash_points.BINDING_WRITTEN)
        await self.run_post_bind(pod, node, request, state)

    async def run_post_bind(self, pod: Pod, node: Node, request: BindRequest, state: BindingState) -> None:
        """Run PostBind of every plugin. A failure stops no other plugin, and the pod stays bound."""
        text = "binder plugin %s failed at post_bind of pod %s: %s"
        await self._call_all(self._plugins, POST_BIND, text, pod, node, request, state)
        self._on_crash_point(crash_points.POST_BIND_DONE)

    async def roll_back(self, pod: Pod, node: Node, request: BindRequest, state: BindingState) -> None:
        """Undo what an attempt may have done. Failures are logged, and the next attempt repeats the rollback."""
        self._on_crash_point(crash_points.ATTEMPT_FAILED)
        text = "binder plugin %s could not roll back pod %s: %s"
        await self._call_all(self._plugins[::-1], ROLLBACK, text, pod, node, request, state)
        if request.is_fraction:
            try:
                await self._reservations.release(pod, request.spec.selected_gpu_groups)
            except LeaseLost:
                raise
            except BayplanError as fault:
                self._observer.observe_rollback_failure("reservations")
                log.warning("the devices of pod %s are still reserved: %s", pod.key, fault)
        self._on_crash_point(crash_points.ROLLED_BACK)

    # internal

    async def _call_all(
        self,
        plugins: Sequence[Any],
        stage: str,
        text: str,
        pod: Pod,
        node: Node,
        request: BindRequest,
        state: BindingState,
    ) -> None:
        """Call a stage of every plugin. A failure is logged with the text, and stops no other plugin."""
        for plugin in plugins:
            if (method := getattr(plugin, stage, None)) is not None:
                try:
                    await self._call_with_timeout(plugin, stage, method(self._handle, pod, node, request, state))
                except LeaseLost:
                    raise
                except (Exception, SystemExit) as fault:
                    if stage == ROLLBACK:
                        self._observer.observe_rollback_failure(plugin.name)
                    is_bug = not isinstance(fault, BayplanError)  # a failed request needs no stack trace
                    log.error(text, plugin.name, pod.key, fault, exc_info=is_bug)

    async def _reserve(self, pod: Pod, node: Node, request: BindRequest, state: BindingState) -> None:
        groups = request.spec.selected_gpu_groups
        if not groups:
            raise InvalidRequest("it asks for a fraction of a device and names no GPU group in selectedGPUGroups")
        await self._reservations.remove_other_groups(pod, groups)
        await self._reservations.sync_node(node.name)
        state.reserved_gpu_ids = [
            await self._reservations.reserve(pod, node, group, several=len(groups) > 1) for group in groups
        ]

    async def _pre_bind(self, plugin: Any, pod: Pod, node: Node, request: BindRequest, state: BindingState) -> None:
        method = getattr(plugin, PRE_BIND, None)
        if method is None:
            return
        try:
            await self._call_with_timeout(plugin, PRE_BIND, method(self._handle, pod, node, request, state))
        except (RejectBind, InvalidRequest) as fault:
            raise type(fault)(f'plugin "{plugin.name}" at pre_bind: {fault}') from fault
        except LeaseLost:
            raise
        except (Exception, SystemExit) as fault:
            # A request that was deleted ends the attempt, whatever the plugin raises.
            self._waits.require_current(request)
            if not isinstance(fault, BayplanError):
                log.exception("binder plugin %s failed at pre_bind of pod %s", plugin.name, pod.key)
            text = str(fault) if isinstance(fault, BayplanError) else f"{type(fault).__name__}: {fault}"
            raise BinderPluginError(f'plugin "{plugin.name}" at pre_bind: {text}') from fault

    async def _call_with_timeout(self, plugin: Any, stage: str, work: Awaitable[None]) -> None:
        """Await a plugin, up to the limit: meanwhile its worker binds no other pod. A write in progress is finished
        first."""
        start_s, failed = self._handle.clock.monotonic_s(), True
        try:
            async with asyncio.timeout(None) as limit:
                with Cancellation(partial(limit.reschedule, 0.0)) as cancellation:
                    alarm = asyncio.get_running_loop().call_later(self._limit_s, cancellation.cancel)
                    try:
                        await TimedAwait(
                            work, f"binder plugin {plugin.name} at {stage}", self._handle.clock.monotonic_s
                        )
                    finally:
                        alarm.cancel()
            failed = False
        except TimeoutError:
            if not limit.expired():
                raise  # the plugin's own timeout
            raise BinderPluginError(
                f"it has not come to an end within {self._limit_s:g} s, the limit that binderPluginSeconds sets"
            ) from None
        except asyncio.CancelledError as fault:
            if is_cancelled_task():
                raise
            # What the plugin awaited was cancelled, not this task. Unchanged, the error would end the worker silently.
            raise BinderPluginError("what it waited for was cancelled") from fault
        finally:
            took_s = self._handle.clock.monotonic_s() - start_s
            self._observer.observe_plugin(plugin.name, stage, took_s, failed=failed)


def pod_annotations_of(request: BindRequest) -> dict[str, str]:
    """Annotations that the pod gets with its binding, in the same write."""
    annotations = {RECEIVED_TYPE: request.spec.received_resource_type or REGULAR}
    zones = request.spec.predicted_numa_zones
    if zones:
        annotations[NUMA_ZONES] = json.dumps(msgspec.to_builtins(zones), separators=(",", ":"))
    return annotations
