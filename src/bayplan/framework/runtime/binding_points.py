"""From a chosen node to a bound pod: Reserve, Permit, PreBind, Bind, PostBind.

Reserve and Permit belong to the scheduling cycle and are plain calls. The later points talk to the outside and are
awaited by the binding cycle; how plugins of one group run side by side is the caller's business (`together`), because
this room starts nothing by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.extension_points import (
    BIND,
    PERMIT,
    POST_BIND,
    PRE_BIND,
    PREFLIGHT,
    RESERVE,
    UNRESERVE,
    ExtensionPoint,
)
from bayplan.framework.api.plugin import PermitWait, PreBindPreFlightResult
from bayplan.framework.api.plugin_error import PluginFault
from bayplan.framework.api.status import (
    SUCCESS,
    Code,
    Status,
    error,
)
from bayplan.framework.runtime.plugin_call import PluginCaller, status_text, to_status

MAX_PERMIT_WAIT_S = 15 * 60.0

RunConcurrently = Callable[[Sequence[Coroutine[Any, Any, Status]]], Awaitable[Sequence[Status]]]
"""Runs coroutines side by side and returns their results in order; or, once one has failed, that one alone."""


@dataclass(slots=True)
class PermitResult:
    """Success, a rejection, or the plugins to wait for with how long each may take."""

    status: Status = SUCCESS
    waits: dict[str, float] = field(default_factory=dict)
    reason: str = ""  # of the last that waits


_PERMITTED = PermitResult()


@dataclass(slots=True)
class PreBindPlan:
    """Which PreBind plugins have work, in groups that may run side by side."""

    groups: list[list[Any]] = field(default_factory=list)
    status: Status = SUCCESS

    @property
    def has_work(self) -> bool:
        return any(self.groups)


class BindingPoints:
    """The points after a node was chosen, of one profile."""

    def __init__(self, plugins: dict[ExtensionPoint, Sequence[Any]], boundary: PluginCaller) -> None:
        self._plugins = {point: tuple(plugins.get(point, ())) for point in (RESERVE, PERMIT, PRE_BIND, BIND, POST_BIND)}
        self._idle_after_skip = {
            plugin.name for plugin in self._plugins[RESERVE] if getattr(plugin, "reserves_what_it_filters", False)
        }
        self._reserving, self._permitting = self._plugins[RESERVE], self._plugins[PERMIT]
        self._boundary = boundary
        self._now_s, self._took, self._passed = boundary.now_s, boundary.points.observe, boundary.points.observe_skipped

    def reserve(self, cycle: Cycle, node_name: str) -> Status:
        """Ask every Reserve plugin; on failure all of them are undone, also those that were not asked."""
        start_s = self._now_s()
        status = self._run_reserve(cycle, node_name)
        self._took(RESERVE.metric_label, self._now_s() - start_s, status.code.label)
        if not status.ok:
            self.unreserve(cycle, node_name)
        return status

    def _run_reserve(self, cycle: Cycle, node_name: str) -> Status:
        for plugin in self._reserving:
            if plugin.name in self._idle_after_skip and plugin.name in cycle.skip_filter:
                continue
            status = self._call(plugin, RESERVE, plugin.reserve, cycle, node_name)
            if not status.ok:
                return _failure(status, f'running Reserve plugin "{plugin.name}"')
        return SUCCESS

    def unreserve(self, cycle: Cycle, node_name: str) -> None:
        """Undo Reserve, newest first. A plugin that fails here is logged and the others still run."""
        start_s = self._now_s()
        for plugin in reversed(self._plugins[RESERVE]):
            try:
                self._boundary.call(plugin, UNRESERVE, plugin.unreserve, cycle, node_name)
            except PluginFault:
                continue
        self._took(UNRESERVE.metric_label, self._now_s() - start_s)

    def permit(self, cycle: Cycle, node_name: str) -> PermitResult:
        """Ask every Permit plugin; a rejection ends it, waits are collected."""
        if not self._permitting:
            self._passed(PERMIT.metric_label)
            return _PERMITTED
        start_s = self._now_s()
        outcome = self._run_permit(cycle, node_name)
        self._took(PERMIT.metric_label, self._now_s() - start_s, "Wait" if outcome.waits else outcome.status.code.label)
        return outcome

    def _run_permit(self, cycle: Cycle, node_name: str) -> PermitResult:
        outcome = PermitResult()
        for plugin in self._permitting:
            try:
                answer = self._boundary.call(plugin, PERMIT, _permit_answer, plugin, cycle, node_name)
                if isinstance(answer, PermitWait):
                    outcome.waits[plugin.name] = min(answer.timeout_s, MAX_PERMIT_WAIT_S)
                    outcome.reason = answer.reason
                    continue
                status = answer
            except PluginFault as fault:
                status = error(fault.text).by(plugin.name)
            if not status.ok:
                return PermitResult(_failure(status, f'running Permit plugin "{plugin.name}"'))
        return outcome

    def plan_pre_bind(self, cycle: Cycle, node_name: str) -> PreBindPlan:
        """Ask each PreBind plugin whether it has work. Neighbours that allow it share a group.

        A plugin that does not allow company closes the group before it, even when it has nothing to do.
        """
        start_s = self._now_s()
        plan = self._plan_pre_bind_plugins(cycle, node_name)
        status = plan.status.code.label if plan.has_work or not plan.status.ok else Code.SKIP.label
        self._took(PREFLIGHT.metric_label, self._now_s() - start_s, status)
        if plan.status.ok and not plan.has_work:
            self._passed(PRE_BIND.metric_label)  # what has nothing to do is done
        return plan

    def _plan_pre_bind_plugins(self, cycle: Cycle, node_name: str) -> PreBindPlan:
        plan = PreBindPlan(groups=[[]])
        for plugin in self._plugins[PRE_BIND]:
            try:
                answer = self._preflight(plugin, cycle, node_name)
            except PluginFault as fault:
                plan.status = error(f'running PreBindPreFlight "{plugin.name}": {fault.text}').by(plugin.name)
                return plan
            if isinstance(answer, PreBindPreFlightResult) and answer.allow_parallel:
                plan.groups[-1].append(plugin)
            elif isinstance(answer, PreBindPreFlightResult):
                plan.groups += [[plugin], []]
            else:
                cycle.skip_pre_bind.add(plugin.name)
                plan.groups.append([])
        plan.groups = [group for group in plan.groups if group]
        return plan

    async def pre_bind(self, cycle: Cycle, node_name: str, plan: PreBindPlan, together: RunConcurrently) -> Status:
        """Run the plan group by group; the first failure ends it."""
        start_s = self._now_s()
        status = await self._run_pre_bind(cycle, node_name, plan, together)
        self._took(PRE_BIND.metric_label, self._now_s() - start_s, status.code.label)
        return status

    async def _run_pre_bind(self, cycle: Cycle, node_name: str, plan: PreBindPlan, together: RunConcurrently) -> Status:
        for group in plan.groups:
            statuses = await together([self._pre_bind_one(plugin, cycle, node_name) for plugin in group])
            for status in statuses:
                if not status.ok:
                    return status
        return SUCCESS

    async def bind(self, cycle: Cycle, node_name: str) -> Status:
        """The first plugin that does not skip decides."""
        start_s = self._now_s()
        status = await self._run_bind(cycle, node_name)
        self._took(BIND.metric_label, self._now_s() - start_s, status.code.label)
        return status

    async def _run_bind(self, cycle: Cycle, node_name: str) -> Status:
        status = Status(Code.SKIP)
        for plugin in self._plugins[BIND]:
            status = await self._call_async(plugin, BIND, plugin.bind, cycle, node_name)
            if status.code is not Code.SKIP:
                return status if status.ok else _failure(status, f'running Bind plugin "{plugin.name}"')
        return status

    def has_no_post_bind_plugins(self) -> bool:
        """Whether there is no PostBind plugin: then the point is passed by this, and `post_bind` need not be run."""
        if self._plugins[POST_BIND]:
            return False
        self._passed(POST_BIND.metric_label)
        return True

    async def post_bind(self, cycle: Cycle, node_name: str) -> None:
        if self.has_no_post_bind_plugins():
            return
        start_s = self._now_s()
        for plugin in self._plugins[POST_BIND]:
            try:
                await self._boundary.await_call(plugin, POST_BIND, plugin.post_bind, cycle, node_name)
            except PluginFault:
                continue
        self._took(POST_BIND.metric_label, self._now_s() - start_s)

    async def _pre_bind_one(self, plugin: Any, cycle: Cycle, node_name: str) -> Status:
        status = await self._call_async(plugin, PRE_BIND, plugin.pre_bind, cycle, node_name)
        return status if status.ok else _failure(status, f'running PreBind plugin "{plugin.name}"')

    def _preflight(self, plugin: Any, cycle: Cycle, node_name: str) -> PreBindPreFlightResult | None:
        """What the plugin expects to do; None: nothing. A plugin without the method always has work."""
        method = getattr(plugin, "pre_bind_preflight", None)
        if method is None:
            return PreBindPreFlightResult()
        answer = self._boundary.call(plugin, PREFLIGHT, method, cycle, node_name)
        if isinstance(answer, PreBindPreFlightResult):
            return answer
        status = to_status(answer, plugin.name, PRE_BIND)
        if status.ok:
            return PreBindPreFlightResult()
        if status.code is Code.SKIP:
            return None
        raise PluginFault(plugin.name, PRE_BIND.key, status.message)

    def _call(
        self, plugin: Any, point: ExtensionPoint, method: Callable[..., Any], cycle: Cycle, node_name: str
    ) -> Status:
        try:
            return self._boundary.call_for_status(plugin, point, method, cycle, node_name)
        except PluginFault as fault:
            return error(fault.text).by(plugin.name)

    async def _call_async(
        self, plugin: Any, point: ExtensionPoint, method: Callable[..., Any], cycle: Cycle, node_name: str
    ) -> Status:
        try:
            answer = await self._boundary.await_call(plugin, point, method, cycle, node_name)
            return to_status(answer, plugin.name, point)
        except PluginFault as fault:
            return error(fault.text).by(plugin.name)


def _permit_answer(plugin: Any, cycle: Cycle, node_name: str) -> PermitWait | Status:
    answer = plugin.permit(cycle, node_name)
    return answer if isinstance(answer, PermitWait) else to_status(answer, plugin.name, PERMIT)


def _failure(status: Status, doing: str) -> Status:
    """A rejection stays what it is; anything else is an error that says what was being done."""
    return status if status.rejected else error(f"{doing}: {status_text(status)}").by(status.plugin)
