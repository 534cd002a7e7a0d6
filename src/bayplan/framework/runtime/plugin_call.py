"""Where plugin code is called: what it raises or returns wrongly becomes an answer that names it.

A plugin of somebody else must never take the process down, and never be a riddle: the status says which plugin, at
which point, what it did and where. Calls are timed; a slow one is counted and logged after it returned, by name.
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
_NO_ANSWER = object()  # the answer of a call that raised

PLUGIN_EXCEPTIONS = (Exception, SystemExit, asyncio.CancelledError)
"""What a plugin may raise in plain code without ending anything else: to leave is nobody's right but the process's own,
and whoever is cancelled there is something that the plugin has looked at, not we."""


def plugin_traceback(fault: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """The traceback for a log, from the first line on that is not ours: how we came to ask is no matter."""
    trace = fault.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(PACKAGE_FOLDER):
        trace = trace.tb_next
    return type(fault), fault, trace or fault.__traceback__


class PluginCaller:
    """Calls plugins and keeps count.

    Times are a plugin's own: what it spends in other plugins' filters (preemption does) is theirs. Every call is
    watched for being slow, save `call_for_status_untimed`; only those of sampled attempts enter the statistics.
    """

    __slots__ = ("_elsewhere_s", "_now", "logged_faults", "now_s", "points", "sampling", "timings")

    def __init__(self, clock: Clock, timings: PluginTimings, profile: str = "") -> None:
        self._now = self.now_s = clock.monotonic_s
        self.points: PointTimings = timings.points(profile)
        self._elsewhere_s = 0.0  # spent in calls within the call under way
        self.timings = timings
        self.sampling = True
        self.logged_faults: set[str] = set()  # the faults of this attempt that are in the log

    def call(self, plugin: Any, point: ExtensionPoint, method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The plugin's answer; `PluginCallError` if it raises, SystemExit too: no plugin ends the process."""
        try:
            return self.call_timed(plugin, point, method, *args, **kwargs)
        except PLUGIN_EXCEPTIONS as fault:
            raise self.record_failure(plugin, point, fault) from fault

    def call_timed(
        self, plugin: Any, point: ExtensionPoint, method: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """The plugin's answer, timed and no more: for callers that ask again, by `call`, when it raises."""
        start, outside = self._now(), self._elsewhere_s
        self._elsewhere_s = 0.0
        answer: object = _NO_ANSWER
        try:
            answer = result = method(*args, **kwargs)
            return result
        finally:
            took = self._now() - start
            self._record_call(plugin.name, point, took - self._elsewhere_s, answer)
            self._elsewhere_s = outside + took

    def call_for_status(self, plugin: Any, point: ExtensionPoint, method: Callable[..., Any], *args: Any) -> Status:
        """The plugin's answer as a signed status; one that is nonsense counts as the plugin's failure."""
        return self.call(plugin, point, _checked_status, plugin, point, method, *args)

    def call_for_status_untimed(
        self, plugin: Any, point: ExtensionPoint, method: Callable[..., Any], *args: Any
    ) -> Status:
        """The same where thousands are asked at once and most have nothing to say: nobody looks at a clock."""
        try:
            answer = method(*args)
            return SUCCESS if answer is None else to_status(answer, plugin.name, point)
        except PLUGIN_EXCEPTIONS as fault:
            raise self.record_failure(plugin, point, fault) from fault

    async def await_call(self, plugin: Any, point: ExtensionPoint, method: Callable[..., Any], *args: Any) -> Any:
        """The same for the points that talk to the outside, where waiting is no fault."""
        start = self._now()
        answer: object = _NO_ANSWER
        try:
            answer = await method(*args)
            return answer
        except PLUGIN_EXCEPTIONS as fault:
            if isinstance(fault, asyncio.CancelledError) and _is_cancelled():
                raise
            raise self.record_failure(plugin, point, fault) from fault
        finally:
            self.timings.observe(plugin.name, point.metric_key, self._now() - start, _status_label(answer))

    def record_failure(self, plugin: Any, point: ExtensionPoint, fault: BaseException) -> PluginFault:
        """What a plugin raised, as its fault: counted, and logged unless it did the same in this attempt before."""
        known = PluginFault.from_exception(plugin, point.key, fault)
        if known is not fault and str(known) not in self.logged_faults:
            self.logged_faults.add(str(known))
            log.warning("plugin %s failed at %s", plugin.name, point.key, exc_info=plugin_traceback(fault))
        self.timings.count_failed(plugin.name, point.metric_key)
        return known

    def _record_call(self, plugin: str, point: ExtensionPoint, seconds: float, answer: object) -> None:
        if self.sampling:
            self.timings.observe(plugin, point.metric_key, seconds, _status_label(answer))
        if seconds > SLOW_CALL_S:
            self.timings.count_slow(plugin, point.metric_key)
            log.warning(
                "plugin %s took %.0f ms at %s; nothing else is scheduled meanwhile", plugin, 1e3 * seconds, point.key
            )


def _is_cancelled() -> bool:
    """Whether it is us who are cancelled, and not something that the plugin has waited for."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # there is no loop, so nobody could have been cancelled
        return False
    return task is not None and task.cancelling() > 0


def _status_label(answer: object) -> str:
    """What the statistics file a call under; an answer that is more than a status begins with one, or is a success."""
    if isinstance(answer, tuple):
        answer = next((part for part in answer if isinstance(part, Status)), None)
    if isinstance(answer, Status):
        return answer.code.label
    return Code.ERROR.label if answer is _NO_ANSWER else Code.SUCCESS.label


def plugin_call_of_frame(frame: FrameType | None) -> str:
    """Which plugin the code of a frame was called by, or for, at which point; empty where none is.

    Read off the stack, from the inside: calls leave no trace of their own, so that they cost nothing.
    """
    while frame is not None:
        if frame.f_code in _CALL_CODE_OBJECTS:
            plugin, point = frame.f_locals.get("plugin"), frame.f_locals.get("point")
            if plugin is not None and point is not None:
                return f"plugin {plugin.name} at {point.key}"
        if frame.f_code is TimedAwait.__await__.__code__:
            return str(frame.f_locals["self"].who)
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


def to_status(answer: object, plugin: str, point: ExtensionPoint) -> Status:
    """A plugin's answer as a signed status; None means success."""
    if answer is None:
        return SUCCESS
    if not isinstance(answer, Status) or not isinstance(answer.code, Code):
        raise invalid_status_error(answer, plugin, point)
    return answer if answer.ok else answer.by(plugin)


def status_text(status: Status) -> str:
    """What a status that ends an attempt says; one that is no answer where it was given says at least that."""
    if status.message or status.code is Code.ERROR:
        return status.message
    return f"answered {status.code.label}, which is no answer here"


def invalid_status_error(answer: object, plugin: str, point: ExtensionPoint) -> PluginFault:
    return PluginFault(plugin, point.key, f"returned {answer!r}, which is no Status")


def _checked_status(plugin: Any, point: ExtensionPoint, method: Callable[..., Any], *args: Any) -> Status:
    """Call and check in one go, so that a nonsensical answer counts as the plugin's failure."""
    return to_status(method(*args), plugin.name, point)
