"""The extension points of one profile behind one object, the counterpart of kube-scheduler's `frameworkImpl`."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.diagnosis import Diagnosis
from bayplan.framework.api.extension_points import (
    BIND,
    FILTER,
    PERMIT,
    PLACEMENT_GENERATE,
    PLACEMENT_SCORE,
    POST_BIND,
    POST_FILTER,
    PRE_BIND,
    PRE_ENQUEUE,
    PRE_FILTER,
    PRE_SCORE,
    RESERVE,
    SCORE,
)
from bayplan.framework.api.handle import Handle
from bayplan.framework.api.plugin import PostFilterResult
from bayplan.framework.api.plugin_error import PluginFault
from bayplan.framework.api.status import SUCCESS, Code, Status, error
from bayplan.framework.preemption.extenders import ExtenderAnswer, ExtenderQuestion, run_steps
from bayplan.framework.runtime.binding_points import BindingPoints
from bayplan.framework.runtime.filtering import FilterPoints
from bayplan.framework.runtime.placement_scoring import PlacementPoints
from bayplan.framework.runtime.plugin_call import PluginCaller, status_text, to_status
from bayplan.framework.runtime.profile import Profile
from bayplan.framework.runtime.scoring import ScorePoints
from bayplan.objects.core import Pod
from bayplan.telemetry.plugin_timings import PluginTimings

_PLUGIN_METRICS_SAMPLE_INTERVAL = 10
_SAMPLED_POINTS = (PRE_FILTER, FILTER, PRE_SCORE, SCORE)


class Framework:
    """Runs the plugins of one profile."""

    def __init__(self, profile: Profile, handle: Handle, timings: PluginTimings | None = None) -> None:
        self.profile = profile
        self.timings = timings or PluginTimings()
        self.plugin_caller = PluginCaller(handle.clock, self.timings, profile.scheduler_name)
        self._points = self.plugin_caller.points
        self._attempts = 0
        self._gated = 0
        at = profile.at
        for point in _SAMPLED_POINTS:
            for plugin in at(point):
                self._points.count(plugin.name, point.metric_label, 0)  # export the counters from the start, at zero
        self.filter_points = FilterPoints(at(PRE_FILTER), at(FILTER), self.plugin_caller, handle.nominator)
        self.score_points = ScorePoints(at(PRE_SCORE), at(SCORE), dict(profile.weights), self.plugin_caller)
        self.placement_points = PlacementPoints(
            at(PLACEMENT_GENERATE), at(PLACEMENT_SCORE), profile.placement_weights, self.plugin_caller
        )
        self.binding_points = BindingPoints(
            {point: at(point) for point in (RESERVE, PERMIT, PRE_BIND, BIND, POST_BIND)}, self.plugin_caller
        )

    def begin_attempt(self) -> None:
        """Start an attempt. Plugin calls of one attempt in ten are sampled for the statistics, which costs little."""
        self._attempts += 1
        self.plugin_caller.sampling = self._attempts % _PLUGIN_METRICS_SAMPLE_INTERVAL == 1
        if self.plugin_caller.logged_faults:
            self.plugin_caller.logged_faults.clear()

    def pre_enqueue(self, pod: Pod, first: str = "") -> Status:
        """Run PreEnqueue. The status names the first plugin that rejects the pod. `first` is called before the other
        plugins.

        For a gated pod `first` is the plugin that rejected it before: usually nothing has changed.
        """
        start_s = self.plugin_caller.now_s()
        status = self._run_pre_enqueue(pod, first)
        self._points.observe(PRE_ENQUEUE.metric_label, self.plugin_caller.now_s() - start_s, status.code.label)
        return status

    def _run_pre_enqueue(self, pod: Pod, first: str) -> Status:
        plugins = self.profile.at(PRE_ENQUEUE)
        if first:
            plugins = tuple(sorted(plugins, key=lambda plugin: plugin.name != first))
        self._gated += 1
        call_plugin = (
            self.plugin_caller.call_for_status
            if self._gated % _PLUGIN_METRICS_SAMPLE_INTERVAL == 1
            else self.plugin_caller.call_for_status_untimed
        )
        for plugin in plugins:
            try:
                method = plugin.pre_enqueue
                status = call_plugin(plugin, PRE_ENQUEUE, method, pod)
            except PluginFault as fault:
                status = error(fault.text)
            if status.rejected:
                return status
            if not status.ok:
                return error(f'running PreEnqueue plugin "{plugin.name}": {status_text(status)}').by(plugin.name)
        return SUCCESS

    def post_filter(self, cycle: Cycle, diagnosis: Diagnosis) -> PostFilterResult:
        """Run PostFilter for a pod that fits no node. Extenders are called synchronously."""
        return run_steps(self.post_filter_steps(cycle, diagnosis))

    def post_filter_steps(
        self, cycle: Cycle, diagnosis: Diagnosis
    ) -> Generator[ExtenderQuestion, ExtenderAnswer, PostFilterResult]:
        """Run PostFilter, and yield a question for each extender that takes part in preemption.

        Success or UnschedulableAndUnresolvable ends it; other reasons are collected.
        """
        cycle.plugin_error = None  # preemption calls the same plugins for other nodes
        start_s = self.plugin_caller.now_s()
        result = yield from self._run_post_filter(cycle, diagnosis)
        self._points.observe(POST_FILTER.metric_label, self.plugin_caller.now_s() - start_s, result.status.code.label)
        return result

    def _run_post_filter(
        self, cycle: Cycle, diagnosis: Diagnosis
    ) -> Generator[ExtenderQuestion, ExtenderAnswer, PostFilterResult]:
        reasons: list[str] = []
        writes: list[object] = []
        nominate: str | None = None
        plugin_name = ""
        for plugin in self.profile.at(POST_FILTER):
            self._points.count(plugin.name, POST_FILTER.metric_label)
            result = yield from self._call_post_filter(plugin, cycle, diagnosis)
            writes += result.writes
            if result.status.ok or result.status.code is Code.UNRESOLVABLE:
                return PostFilterResult(result.status, result.nominated_node_name, result.victims, tuple(writes))
            if not result.status.rejected:
                return PostFilterResult(error(status_text(result.status)).by(plugin.name), writes=tuple(writes))
            reasons += result.status.reasons
            plugin_name = plugin_name or plugin.name
            if result.nominated_node_name is not None:
                nominate = result.nominated_node_name
        status = Status(Code.UNSCHEDULABLE, reasons, plugin=plugin_name)
        return PostFilterResult(status, nominate, writes=tuple(writes))

    def close(self) -> None:
        self.profile.close()

    def _call_post_filter(
        self, plugin: Any, cycle: Cycle, diagnosis: Diagnosis
    ) -> Generator[ExtenderQuestion, ExtenderAnswer, PostFilterResult]:
        try:
            if not getattr(plugin, "extenders", ()):
                return self.plugin_caller.call(plugin, POST_FILTER, _call_post_filter_method, plugin, cycle, diagnosis)
            steps = plugin.post_filter_steps(cycle, diagnosis)
            result: ExtenderAnswer | None = None
            while True:
                step = self.plugin_caller.call(plugin, POST_FILTER, _next_step, plugin, steps, result)
                if isinstance(step, PostFilterResult):
                    return step
                result = yield step
        except PluginFault as fault:
            return PostFilterResult(error(f'running PostFilter plugin "{plugin.name}": {fault.text}').by(plugin.name))


def _next_step(
    plugin: Any, steps: Generator[ExtenderQuestion, ExtenderAnswer, Any], result: ExtenderAnswer | None
) -> ExtenderQuestion | PostFilterResult:
    """Return the next question of a PostFilter generator, or its result."""
    try:
        return next(steps) if result is None else steps.send(result)
    except StopIteration as done:
        return _to_post_filter_result(plugin, done.value)


def _call_post_filter_method(plugin: Any, cycle: Cycle, diagnosis: Diagnosis) -> PostFilterResult:
    return _to_post_filter_result(plugin, plugin.post_filter(cycle, diagnosis))


def _to_post_filter_result(plugin: Any, result: Any) -> PostFilterResult:
    if isinstance(result, PostFilterResult):
        return result
    return PostFilterResult(to_status(result, plugin.name, POST_FILTER))
