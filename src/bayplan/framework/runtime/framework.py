"""One profile at work: the points of an attempt behind one object."""

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
from bayplan.framework.api.plugin import PostFilterAnswer
from bayplan.framework.api.plugin_error import PluginFault
from bayplan.framework.api.status import (
    SUCCESS,
    Code,
    Status,
    error,
)
from bayplan.framework.preemption.extenders import Answer, Question, at_once
from bayplan.framework.runtime.binding_points import Committing
from bayplan.framework.runtime.filtering import Filtering
from bayplan.framework.runtime.placement_scoring import Placing
from bayplan.framework.runtime.plugin_call import Boundary, as_status, words_of
from bayplan.framework.runtime.profile import Profile
from bayplan.framework.runtime.scoring import Scoring
from bayplan.objects.core import Pod
from bayplan.telemetry.plugin_timings import PluginTimings

_SAMPLED_ONE_IN = 10
_COUNTED = (PRE_FILTER, FILTER, PRE_SCORE, SCORE)


class Framework:
    """Runs the plugins of one profile."""

    def __init__(self, profile: Profile, handle: Handle, timings: PluginTimings | None = None) -> None:
        self.profile = profile
        self.timings = timings or PluginTimings()
        self.boundary = Boundary(handle.clock, self.timings, profile.scheduler_name)
        self._points = self.boundary.points
        self._attempts = 0
        self._gated = 0
        at = profile.at
        for point in _COUNTED:
            for plugin in at(point):
                self._points.count(plugin.name, point.label, 0)  # seen from the start, at zero
        self.filtering = Filtering(at(PRE_FILTER), at(FILTER), self.boundary, handle.nominations)
        self.scoring = Scoring(at(PRE_SCORE), at(SCORE), dict(profile.weights), self.boundary)
        self.placing = Placing(at(PLACEMENT_GENERATE), at(PLACEMENT_SCORE), profile.placement_weights, self.boundary)
        self.committing = Committing(
            {point: at(point) for point in (RESERVE, PERMIT, PRE_BIND, BIND, POST_BIND)}, self.boundary
        )

    def begin(self) -> None:
        """An attempt begins. The calls of one in ten enter the statistics: enough for averages, and nearly free."""
        self._attempts += 1
        self.boundary.sampling = self._attempts % _SAMPLED_ONE_IN == 1
        if self.boundary.told:
            self.boundary.told.clear()

    def pre_enqueue(self, pod: Pod, first: str = "") -> Status:
        """May the pod enter the queue? The first plugin that says no is on the status; `first` is asked before others.

        A pod that a plugin keeps out is asked about by that one first: most often nothing has changed.
        """
        start_s = self.boundary.now_s()
        status = self._pre_enqueued(pod, first)
        self._points.took(PRE_ENQUEUE.label, self.boundary.now_s() - start_s, status.code.label)
        return status

    def _pre_enqueued(self, pod: Pod, first: str) -> Status:
        plugins = self.profile.at(PRE_ENQUEUE)
        if first:
            plugins = tuple(sorted(plugins, key=lambda plugin: plugin.name != first))
        self._gated += 1
        ask = self.boundary.ask if self._gated % _SAMPLED_ONE_IN == 1 else self.boundary.ask_untimed
        for plugin in plugins:
            try:
                call = plugin.pre_enqueue
                status = ask(plugin, PRE_ENQUEUE, call, pod)
            except PluginFault as fault:
                status = error(fault.text)
            if status.rejected:
                return status
            if not status.ok:
                return error(f'running PreEnqueue plugin "{plugin.name}": {words_of(status)}').by(plugin.name)
        return SUCCESS

    def post_filter(self, cycle: Cycle, diagnosis: Diagnosis) -> PostFilterAnswer:
        """Can something be done about a pod that fits nowhere? Plugins that ask extenders are answered at once."""
        return at_once(self.post_filtering(cycle, diagnosis))

    def post_filtering(self, cycle: Cycle, diagnosis: Diagnosis) -> Generator[Question, Answer, PostFilterAnswer]:
        """The same, with a question wherever an extender has a say in preemption.

        Success or UAU ends it; other reasons are collected.
        """
        cycle.failed = None  # preemption asks the same plugins about other nodes
        start_s = self.boundary.now_s()
        answer = yield from self._post_filtered(cycle, diagnosis)
        self._points.took(POST_FILTER.label, self.boundary.now_s() - start_s, answer.status.code.label)
        return answer

    def _post_filtered(self, cycle: Cycle, diagnosis: Diagnosis) -> Generator[Question, Answer, PostFilterAnswer]:
        reasons: list[str] = []
        writes: list[object] = []
        nominate: str | None = None
        plugin_name = ""
        for plugin in self.profile.at(POST_FILTER):
            self._points.count(plugin.name, POST_FILTER.label)
            answer = yield from self._ask_post_filter(plugin, cycle, diagnosis)
            writes += answer.writes
            if answer.status.ok or answer.status.code is Code.UNRESOLVABLE:
                return PostFilterAnswer(answer.status, answer.nominate, answer.victims, tuple(writes))
            if not answer.status.rejected:
                return PostFilterAnswer(error(words_of(answer.status)).by(plugin.name), writes=tuple(writes))
            reasons += answer.status.reasons
            plugin_name = plugin_name or plugin.name
            if answer.nominate is not None:
                nominate = answer.nominate
        status = Status(Code.UNSCHEDULABLE, reasons, plugin=plugin_name)
        return PostFilterAnswer(status, nominate, writes=tuple(writes))

    def close(self) -> None:
        self.profile.close()

    def _ask_post_filter(
        self, plugin: Any, cycle: Cycle, diagnosis: Diagnosis
    ) -> Generator[Question, Answer, PostFilterAnswer]:
        try:
            if not getattr(plugin, "extenders", ()):
                return self.boundary.call(plugin, POST_FILTER, _post_filter_answer, plugin, cycle, diagnosis)
            steps = plugin.post_filter_asking(cycle, diagnosis)
            answer: Answer | None = None
            while True:
                step = self.boundary.call(plugin, POST_FILTER, _next_step, plugin, steps, answer)
                if isinstance(step, PostFilterAnswer):
                    return step
                answer = yield step
        except PluginFault as fault:
            return PostFilterAnswer(error(f'running PostFilter plugin "{plugin.name}": {fault.text}').by(plugin.name))


def _next_step(
    plugin: Any, steps: Generator[Question, Answer, Any], answer: Answer | None
) -> Question | PostFilterAnswer:
    """The next question of a plugin that asks, or what it says in the end."""
    try:
        return next(steps) if answer is None else steps.send(answer)
    except StopIteration as done:
        return _as_answer(plugin, done.value)


def _post_filter_answer(plugin: Any, cycle: Cycle, diagnosis: Diagnosis) -> PostFilterAnswer:
    return _as_answer(plugin, plugin.post_filter(cycle, diagnosis))


def _as_answer(plugin: Any, answer: Any) -> PostFilterAnswer:
    if isinstance(answer, PostFilterAnswer):
        return answer
    return PostFilterAnswer(as_status(answer, plugin.name, POST_FILTER))
