"""Extension points from a chosen node to a bound pod: Reserve, Permit, PreBind, Bind, PostBind.

Reserve and Permit belong to the scheduling cycle and are plain calls. The binding cycle awaits the later points, which
call the API server. The caller runs the plugins of one group concurrently (`run_concurrently`); this module starts no
tasks.
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
from bayplan.framework.api.plugin_traits import traits_of
from bayplan.framework.api.status import SUCCESS, Code, Status, error
from bayplan.framework.runtime.plugin_call import PluginCaller, status_text, to_status

MAX_PERMIT_WAIT_S = 15 * 60.0

RunConcurrently = Callable[[Sequence[Coroutine[Any, Any, Status]]], Awaitable[Sequence[Status]]]
"""Runs coroutines concurrently and returns their results in order, or only the result of the first that failed."""


@dataclass(slots=True)
class PermitResult:
    """Success, a rejection, or the plugins to wait for with their timeouts."""

    status: Status = SUCCESS
    waits: dict[str, float] = field(default_factory=dict)
    reason: str = ""  # of the last plugin that waits


_PERMITTED = PermitResult()


@dataclass(slots=True)
class PreBindPlan:
    """The PreBind plugins with work, in groups that may run concurrently."""

    groups: list[list[Any]] = field(default_factory=list)
    status: Status = SUCCESS

    @property
    def has_work(self) -> bool:
        return any(self.groups)


class BindingPoints:
    """The extension points of one profile after a node is chosen."""

    def __init__(self, plugins: dict[ExtensionPoint, Sequence[Any]], caller: PluginCaller) -> None:
        self._plugins = {point: tuple(plugins.get(point, ())) for point in (RESERVE, PERMIT, PRE_BIND, BIND, POST_BIND)}
        self._skips_reserve = {
            plugin.name for plugin in self._plugins[RESERVE] if traits_of(plugin).reserves_only_filtered_pods
        }
        self._reserve_plugins, self._permit_plugins = self._plugins[RESERVE], self._plugins[PERMIT]
        self._caller = caller
        self._now_s, self._observe, self._observe_skipped = (
            caller.now_s,
            caller.points.observe,
            caller.points.observe_skipped,
        )

    def reserve(self, cycle: Cycle, node_name: str) -> Status:
        """Call every Reserve plugin. After a failure Unreserve runs for all of them, also for those not called."""
        start_s = self._now_s()
        status = self._run_reserve(cycle, node_name)
        self._observe(RESERVE.metric_label, self._now_s() - start_s, status.code.label)
        if not status.ok:
            self.unreserve(cycle, node_name)
        return status

    def _run_reserve(self, cycle: Cycle, node_name: str) -> Status:
        for plugin in self._reserve_plugins:
            if plugin.name in self._skips_reserve and plugin.name in cycle.skip_filter:
                continue
            status = self._call(plugin, RESERVE, plugin.reserve, cycle, node_name)
            if not status.ok:
                return _failure(status, f'running Reserve plugin "{plugin.name}"')
        return SUCCESS

    def unreserve(self, cycle: Cycle, node_name: str) -> None:
        """Undo Reserve in reverse order. A plugin that fails here is logged; the remaining plugins still run."""
        start_s = self._now_s()
        for plugin in reversed(self._plugins[RESERVE]):
            try:
                self._caller.call(plugin, UNRESERVE, plugin.unreserve, cycle, node_name)
            except PluginFault:
                continue
        self._observe(UNRESERVE.metric_label, self._now_s() - start_s)

    def permit(self, cycle: Cycle, node_name: str) -> PermitResult:
        """Call every Permit plugin. A rejection ends the loop, waits are collected."""
        if not self._permit_plugins:
            self._observe_skipped(PERMIT.metric_label)
            return _PERMITTED
        start_s = self._now_s()
        outcome = self._run_permit(cycle, node_name)
        self._observe(
            PERMIT.metric_label, self._now_s() - start_s, "Wait" if outcome.waits else outcome.status.code.label
        )
        return outcome

    def _run_permit(self, cycle: Cycle, node_name: str) -> PermitResult:
        outcome = PermitResult()
        for plugin in self._permit_plugins:
            try:
                result = self._caller.call(plugin, PERMIT, _permit_answer, plugin, cycle, node_name)
                if isinstance(result, PermitWait):
                    outcome.waits[plugin.name] = min(result.timeout_s, MAX_PERMIT_WAIT_S)
                    outcome.reason = result.reason
                    continue
                status = result
            except PluginFault as fault:
                status = error(fault.text).by(plugin.name)
            if not status.ok:
                return PermitResult(_failure(status, f'running Permit plugin "{plugin.name}"'))
        return outcome

    def plan_pre_bind(self, cycle: Cycle, node_name: str) -> PreBindPlan:
        """Ask each PreBind plugin whether it has work. Adjacent plugins that allow it share a group.

        A plugin that does not allow parallel calls closes the group before it, even if it has no work.
        """
        start_s = self._now_s()
        plan = self._plan_pre_bind_plugins(cycle, node_name)
        status = plan.status.code.label if plan.has_work or not plan.status.ok else Code.SKIP.label
        self._observe(PREFLIGHT.metric_label, self._now_s() - start_s, status)
        if plan.status.ok and not plan.has_work:
            self._observe_skipped(PRE_BIND.metric_label)  # without work the point counts as done
        return plan

    def _plan_pre_bind_plugins(self, cycle: Cycle, node_name: str) -> PreBindPlan:
        plan = PreBindPlan(groups=[[]])
        for plugin in self._plugins[PRE_BIND]:
            try:
                result = self._preflight(plugin, cycle, node_name)
            except PluginFault as fault:
                plan.status = error(f'running PreBindPreFlight "{plugin.name}": {fault.text}').by(plugin.name)
                return plan
            if isinstance(result, PreBindPreFlightResult) and result.allow_parallel:
                plan.groups[-1].append(plugin)
            elif isinstance(result, PreBindPreFlightResult):
                plan.groups += [[plugin], []]
            else:
                cycle.skip_pre_bind.add(plugin.name)
                plan.groups.append([])
        plan.groups = [group for group in plan.groups if group]
        return plan

    async def pre_bind(
        self, cycle: Cycle, node_name: str, plan: PreBindPlan, run_concurrently: RunConcurrently
    ) -> Status:
        """Run the plan group by group. The first failure ends it."""
        start_s = self._now_s()
        status = await self._run_pre_bind(cycle, node_name, plan, run_concurrently)
        self._observe(PRE_BIND.metric_label, self._now_s() - start_s, status.code.label)
        return status

    async def _run_pre_bind(
        self, cycle: Cycle, node_name: str, plan: PreBindPlan, run_concurrently: RunConcurrently
    ) -> Status:
        for group in plan.groups:
            statuses = await run_concurrently([self._pre_bind_one(plugin, cycle, node_name) for plugin in group])
            for status in statuses:
                if not status.ok:
                    return status
        return SUCCESS

    async def bind(self, cycle: Cycle, node_name: str) -> Status:
        """Call Bind plugins in order until one does not return Skip."""
        start_s = self._now_s()
        status = await self._run_bind(cycle, node_name)
        self._observe(BIND.metric_label, self._now_s() - start_s, status.code.label)
        return status

    async def _run_bind(self, cycle: Cycle, node_name: str) -> Status:
        status = Status(Code.SKIP)
        for plugin in self._plugins[BIND]:
            status = await self._call_async(plugin, BIND, plugin.bind, cycle, node_name)
            if status.code is not Code.SKIP:
                return status if status.ok else _failure(status, f'running Bind plugin "{plugin.name}"')
        return status

    def has_no_post_bind_plugins(self) -> bool:
        """Whether there is no PostBind plugin. The point then counts as done, and `post_bind` need not run."""
        if self._plugins[POST_BIND]:
            return False
        self._observe_skipped(POST_BIND.metric_label)
        return True

    async def post_bind(self, cycle: Cycle, node_name: str) -> None:
        if self.has_no_post_bind_plugins():
            return
        start_s = self._now_s()
        for plugin in self._plugins[POST_BIND]:
            try:
                await self._caller.await_call(plugin, POST_BIND, plugin.post_bind, cycle, node_name)
            except PluginFault:
                continue
        self._observe(POST_BIND.metric_label, self._now_s() - start_s)

    async def _pre_bind_one(self, plugin: Any, cycle: Cycle, node_name: str) -> Status:
        status = await self._call_async(plugin, PRE_BIND, plugin.pre_bind, cycle, node_name)
        return status if status.ok else _failure(status, f'running PreBind plugin "{plugin.name}"')

    def _preflight(self, plugin: Any, cycle: Cycle, node_name: str) -> PreBindPreFlightResult | None:
        """Return the work that the plugin expects; None: no work. A plugin without the method always has work."""
        method = getattr(plugin, "pre_bind_preflight", None)
        if method is None:
            return PreBindPreFlightResult()
        result = self._caller.call(plugin, PREFLIGHT, method, cycle, node_name)
        if isinstance(result, PreBindPreFlightResult):
            return result
        status = to_status(result, plugin.name, PRE_BIND)
        if status.ok:
            return PreBindPreFlightResult()
        if status.code is Code.SKIP:
            return None
        raise PluginFault(plugin.name, PRE_BIND.key, status.message)

    def _call(
        self, plugin: Any, point: ExtensionPoint, method: Callable[..., Any], cycle: Cycle, node_name: str
    ) -> Status:
        try:
            return self._caller.call_for_status(plugin, point, method, cycle, node_name)
        except PluginFault as fault:
            return error(fault.text).by(plugin.name)

    async def _call_async(
        self, plugin: Any, point: ExtensionPoint, method: Callable[..., Any], cycle: Cycle, node_name: str
    ) -> Status:
        try:
            result = await self._caller.await_call(plugin, point, method, cycle, node_name)
            return to_status(result, plugin.name, point)
        except PluginFault as fault:
            return error(fault.text).by(plugin.name)


def _permit_answer(plugin: Any, cycle: Cycle, node_name: str) -> PermitWait | Status:
    result = plugin.permit(cycle, node_name)
    return result if isinstance(result, PermitWait) else to_status(result, plugin.name, PERMIT)


def _failure(status: Status, doing: str) -> Status:
    """Keep a rejection; convert any other status to an error that names the step."""
    return status if status.rejected else error(f"{doing}: {status_text(status)}").by(status.plugin)
