"""Calls of plugin code. An exception or invalid result becomes a fault that names the plugin.

An external plugin must never stop the process. The status names the plugin, the point, the error and its location.
Calls are timed. A slow call is counted and logged after it returned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

from bayplan.clock import Clock
from bayplan.framework.api.extension_points import ExtensionPoint
from bayplan.framework.api.plugin_error import PACKAGE_FOLDER, PluginFault
from bayplan.framework.api.status import SUCCESS, Code, Status
from bayplan.telemetry.await_timing import TimedAwait
from bayplan.telemetry.plugin_timings import PluginTimings, PointTimings

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger(__name__)

SLOW_CALL_S = 0.1
_NO_ANSWER = object()  # the result of a call that raised

PLUGIN_EXCEPTIONS = (Exception, SystemExit, asyncio.CancelledError)
"""Exceptions that plain plugin code may raise without any other effect.

Only the process itself may exit. A CancelledError here comes from something that the plugin awaited, not from our task.
"""


def plugin_traceback(fault: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """Return the traceback for a log, without the leading frames of this package."""
    trace = fault.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(PACKAGE_FOLDER):
        trace = trace.tb_next
    return type(fault), fault, trace or fault.__traceback__


class PluginCaller:
    """Calls plugins and records durations and failures.

    The duration of a call excludes nested calls of other plugins, for example the filters that preemption runs. Every
    call is checked for slowness, except `call_for_status_untimed`. Only sampled attempts enter the statistics.
    """

    __slots__ = ("_nested_s", "_now", "logged_faults", "now_s", "points", "sampling", "timings")

    def __init__(self, clock: Clock, timings: PluginTimings, profile: str = "") -> None:
        self._now = self.now_s = clock.monotonic_s
        self.points: PointTimings = timings.points(profile)
        self._nested_s = 0.0  # duration of nested calls within the current call
        self.timings = timings
        self.sampling = True
        self.logged_faults: set[str] = set()  # faults of this attempt that were logged

    def call(self, plugin: Any, point: ExtensionPoint, method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the plugin's result. Raises `PluginFault` if it raises, also for SystemExit."""
        try:
            return self.call_timed(plugin, point, method, *args, **kwargs)
        except PLUGIN_EXCEPTIONS as fault:
            raise self.record_failure(plugin, point, fault) from fault

    def call_timed(
        self, plugin: Any, point: ExtensionPoint, method: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Return the plugin's result, timed. For callers that repeat the call with `call` when it raises."""
        start, before_s = self._now(), self._nested_s
        self._nested_s = 0.0
        outcome: object = _NO_ANSWER
        try:
            outcome = result = method(*args, **kwargs)
            return result
        finally:
            took = self._now() - start
            self._record_call(plugin.name, point, took - self._nested_s, outcome)
            self._nested_s = before_s + took

    def call_for_status(self, plugin: Any, point: ExtensionPoint, method: Callable[..., Any], *args: Any) -> Status:
        """Return the plugin's result as a status with its name. An invalid result is a failure of the plugin."""
        return self.call(plugin, point, _call_and_check, plugin, point, method, *args)

    def call_for_status_untimed(
        self, plugin: Any, point: ExtensionPoint, method: Callable[..., Any], *args: Any
    ) -> Status:
        """Like `call_for_status`, without timing: for thousands of calls that mostly return nothing."""
        try:
            outcome = method(*args)
            return SUCCESS if outcome is None else to_status(outcome, plugin.name, point)
        except PLUGIN_EXCEPTIONS as fault:
            raise self.record_failure(plugin, point, fault) from fault

    async def await_call(self, plugin: Any, point: ExtensionPoint, method: Callable[..., Any], *args: Any) -> Any:
        """Await the points that call external services, where a long duration is not a fault."""
        start = self._now()
        outcome: object = _NO_ANSWER
        try:
            outcome = await method(*args)
            return outcome
        except PLUGIN_EXCEPTIONS as fault:
            if isinstance(fault, asyncio.CancelledError) and _is_cancelled():
                raise
            raise self.record_failure(plugin, point, fault) from fault
        finally:
            self.timings.observe(plugin.name, point.metric_key, self._now() - start, _status_label(outcome))

    def record_failure(self, plugin: Any, point: ExtensionPoint, fault: BaseException) -> PluginFault:
        """Convert an exception of a plugin to a fault. Counted, and logged once for each attempt."""
        plugin_fault = PluginFault.from_exception(plugin, point.key, fault)
        if plugin_fault is not fault and str(plugin_fault) not in self.logged_faults:
            self.logged_faults.add(str(plugin_fault))
            log.warning("plugin %s failed at %s", plugin.name, point.key, exc_info=plugin_traceback(fault))
        self.timings.count_failed(plugin.name, point.metric_key)
        return plugin_fault

    def _record_call(self, plugin: str, point: ExtensionPoint, seconds: float, outcome: object) -> None:
        if self.sampling:
            self.timings.observe(plugin, point.metric_key, seconds, _status_label(outcome))
        if seconds > SLOW_CALL_S:
            self.timings.count_slow(plugin, point.metric_key)
            log.warning(
                "plugin %s took %.0f ms at %s; no other pod is scheduled meanwhile", plugin, 1e3 * seconds, point.key
            )


def _is_cancelled() -> bool:
    """Whether the current task is cancelled, and not something that the plugin awaited."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # without an event loop there is no task
        return False
    return task is not None and task.cancelling() > 0


def _status_label(outcome: object) -> str:
    """Return the status label of a call for the statistics.

    A tuple counts with its first status, anything else as success.
    """
    if isinstance(outcome, tuple):
        outcome = next((item for item in outcome if isinstance(item, Status)), None)
    if isinstance(outcome, Status):
        return outcome.code.label
    return Code.ERROR.label if outcome is _NO_ANSWER else Code.SUCCESS.label


def plugin_call_of_frame(frame: FrameType | None) -> str:
    """Return the plugin and the point of the call that a frame belongs to; empty without one.

    The stack is searched from the inside. Calls leave no record of their own, so this costs nothing for a call.
    """
    while frame is not None:
        if frame.f_code in _CALL_CODE_OBJECTS:
            plugin, point = frame.f_locals.get("plugin"), frame.f_locals.get("point")
            if plugin is not None and point is not None:
                return f"plugin {plugin.name} at {point.key}"
        if frame.f_code is TimedAwait.__await__.__code__:
            return str(frame.f_locals["self"].caller_name)
        frame = frame.f_back
    return ""


_CALL_CODE_OBJECTS = frozenset(
    method.__code__
    for method in (
        PluginCaller.call,
        PluginCaller.call_timed,
        PluginCaller.call_for_status_untimed,
        PluginCaller.await_call,
    )
)


def to_status(outcome: object, plugin: str, point: ExtensionPoint) -> Status:
    """Convert a plugin's result to a status with its name. None means success."""
    if outcome is None:
        return SUCCESS
    if not isinstance(outcome, Status) or not isinstance(outcome.code, Code):
        raise invalid_status_error(outcome, plugin, point)
    return outcome if outcome.ok else outcome.by(plugin)


def status_text(status: Status) -> str:
    """Return the message of a status that ends an attempt, or an explanation if its code is invalid here."""
    if status.message or status.code is Code.ERROR:
        return status.message
    return f"returned {status.code.label}, which is not allowed here"


def invalid_status_error(outcome: object, plugin: str, point: ExtensionPoint) -> PluginFault:
    return PluginFault(plugin, point.key, f"returned {outcome!r}, which is not a Status")


def _call_and_check(plugin: Any, point: ExtensionPoint, method: Callable[..., Any], *args: Any) -> Status:
    """Call and check in one step, so that an invalid result counts as a failure of the plugin."""
    return to_status(method(*args), plugin.name, point)
