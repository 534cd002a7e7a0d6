"""How is one pod bound? Devices reserved, plugins asked, the binding written, plugins told; or all of it taken back.

Called by `reconcile` for one request at a time. Each step may have been done before by a process that is no more, so
each is written to be done again. Nothing is taken back once the API server has the binding.
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
from bayplan.objects.kai.bind_request import (
    NUMA_ZONES,
    RECEIVED_TYPE,
    REGULAR,
    BindRequest,
)
from bayplan.telemetry.await_timing import TimedAwait

log = logging.getLogger(__name__)

PLUGIN_TIMEOUT_S = 900.0
"""How long one call of a plugin may take: longer than anybody waits for volumes or devices on purpose."""


class GpuReservationService(Protocol):
    """Who keeps shared devices from being given out twice."""

    async def reserve(self, pod: Pod, node: Node, group: str, *, several: bool) -> str:
        """The id of the device that stands behind the group; `several`: the pod gets more than this one."""
        ...

    async def remove_other_groups(self, pod: Pod, groups: Sequence[str]) -> None:
        """The pod gets devices of these groups, and of no others that it may still be labelled with."""
        ...

    async def release(self, pod: Pod, groups: Sequence[str]) -> None:
        """The pod does not come: what was reserved for it alone goes."""
        ...

    async def sync_node(self, node_name: str) -> None:
        """Repair what crashes have left behind on a node."""
        ...


class BinderPluginError(BayplanError):
    """A plugin failed the attempt."""


class Binder:
    """Binds pods with the help of plugins."""

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
        reached: CrashPointCallback = crash_points.ignore_crash_point,
    ) -> None:
        self._handle = handle
        self._plugins = plugins
        self._reservations = reservations
        self._observer = observer
        self._waits = waits
        self._is_wanted = is_wanted
        self._limit_s = limit_s
        self._reached = reached

    async def bind(self, pod: Pod, node: Node, request: BindRequest, state: BindingState) -> None:
        """Bind the pod; raises where that was not done."""
        self._reached(crash_points.ATTEMPT_STARTED)
        start_s = self._handle.clock.monotonic_s()
        with self._waits.for_request(request):
            if request.is_fraction:
                await self._reserve(pod, node, request, state)
            for plugin in self._plugins:
                await self._pre_bind(plugin, pod, node, request, state)
        self._reached(crash_points.PRE_BIND_DONE)
        if not await self._is_wanted(request, self._handle.clock.monotonic_s() - start_s):
            raise BindingCancelled(request)
        await self._handle.writes.perform(BindPod(pod, node.name, pod_annotations_of(request)))
        self._reached(crash_points.BINDING_WRITTEN)
        await self.run_post_bind(pod, node, request, state)

    async def run_post_bind(self, pod: Pod, node: Node, request: BindRequest, state: BindingState) -> None:
        """Tell every plugin that the pod is bound. Whatever one does, the others are told, and the pod stays bound."""
        for plugin in self._plugins:
            if (method := getattr(plugin, POST_BIND, None)) is not None:
                try:
                    await self._call_with_timeout(plugin, POST_BIND, method(self._handle, pod, node, request, state))
                except LeaseLost:
                    raise
                except (Exception, SystemExit) as fault:
                    text = "binder plugin %s failed at post_bind of pod %s: %s"
                    log.error(text, plugin.name, pod.key, fault, exc_info=not isinstance(fault, BayplanError))
        self._reached(crash_points.POST_BIND_DONE)

    async def roll_back(self, pod: Pod, node: Node, request: BindRequest, state: BindingState) -> None:
        """Take back what an attempt may have done; what cannot be is told, and found by the next attempt."""
        self._reached(crash_points.ATTEMPT_FAILED)
        for plugin in reversed(self._plugins):
            if (method := getattr(plugin, ROLLBACK, None)) is not None:
                try:
                    await self._call_with_timeout(plugin, ROLLBACK, method(self._handle, pod, node, request, state))
                except LeaseLost:
                    raise
                except (Exception, SystemExit) as fault:
                    self._observer.observe_rollback_failure(plugin.name)
                    text = "binder plugin %s could not take back its part of pod %s: %s"
                    is_bug = not isinstance(fault, BayplanError)  # a failed request needs no stack trace
                    log.error(text, plugin.name, pod.key, fault, exc_info=is_bug)
        if request.is_fraction:
            try:
                await self._reservations.release(pod, request.spec.selected_gpu_groups)
            except LeaseLost:
                raise
            except BayplanError as fault:
                self._observer.observe_rollback_failure("reservations")
                log.warning("the devices of pod %s are still reserved: %s", pod.key, fault)
        self._reached(crash_points.ROLLED_BACK)

    # inside -----------------------------------------------------------------------------------------------------

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
            self._waits.require_current(request)  # whatever a plugin makes of it that nobody wants it any more
            if not isinstance(fault, BayplanError):
                log.exception("binder plugin %s failed at pre_bind of pod %s", plugin.name, pod.key)
            words = str(fault) if isinstance(fault, BayplanError) else f"{type(fault).__name__}: {fault}"
            raise BinderPluginError(f'plugin "{plugin.name}" at pre_bind: {words}') from fault

    async def _call_with_timeout(self, plugin: Any, stage: str, work: Awaitable[None]) -> None:
        """Wait for a plugin, up to the limit: a worker that it holds binds no other pod. A write that is under way then
        is finished first."""
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
                raise  # one of the plugin's own
            raise BinderPluginError(
                f"it has not come to an end within {self._limit_s:g} s, the limit that binderPluginSeconds sets"
            ) from None
        except asyncio.CancelledError as fault:
            if is_cancelled_task():
                raise
            # Nobody has cancelled us: what the plugin awaited was. Unchanged it would end the worker without a word.
            raise BinderPluginError("what it waited for was cancelled") from fault
        finally:
            took_s = self._handle.clock.monotonic_s() - start_s
            self._observer.observe_plugin(plugin.name, stage, took_s, failed=failed)


def pod_annotations_of(request: BindRequest) -> dict[str, str]:
    """What the pod says of its devices from the moment on at which it is bound: one write for both."""
    noted = {RECEIVED_TYPE: request.spec.received_resource_type or REGULAR}
    zones = request.spec.predicted_numa_zones
    if zones:
        noted[NUMA_ZONES] = json.dumps(msgspec.to_builtins(zones), separators=(",", ":"))
    return noted
