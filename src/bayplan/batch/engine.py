"""The batch engine: a shared cache, a configuration, and sessions one after another.

`run_session` opens a session, runs the actions, closes it and returns the decisions. Bound pods are assumed in the
shared cache at once, so that no other engine uses their resources. The cost of opening depends on the changes since the
last session.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections import deque
from collections.abc import Collection, Coroutine, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from bayplan.batch.cluster_state import DEFAULT_SCHEDULER, BatchClusterState
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.config.conf_file import ConfFile
from bayplan.batch.config.scheduler_conf import BatchConfiguration
from bayplan.batch.config.volcano_quirk_fixes import QuirkFix, parse_quirk_fixes
from bayplan.batch.diagnostics.bad_annotations import BadAnnotations
from bayplan.batch.diagnostics.plugin_faults import InvalidAnswer, describe_with_location
from bayplan.batch.handle import BatchHandle, HttpPoster, HttpReply
from bayplan.batch.model.nodes import NodeUsage
from bayplan.batch.model.statuses import COMPLETED, TaskStatus, status_of
from bayplan.batch.registry import ActionSet, BatchPluginSet
from bayplan.batch.session.close_session import collect_group_outcomes, collect_queue_outcomes
from bayplan.batch.session.commit import SessionCommit
from bayplan.batch.session.open_session import open_session
from bayplan.batch.session.outcome import GroupEvent, SessionResult
from bayplan.batch.session.session import Session
from bayplan.cache import Cache
from bayplan.clock import Clock
from bayplan.codec.quantity import QuantityError
from bayplan.errors import BayplanError, PluginError
from bayplan.framework.runtime.cooperative import run_to_end
from bayplan.framework.runtime.nominator import Nominator
from bayplan.framework.runtime.plugin_call import PLUGIN_EXCEPTIONS
from bayplan.framework.runtime.registry import Registry
from bayplan.memory import pause_gc
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano.types import DEFAULT_QUEUE
from bayplan.telemetry.decisions import DecisionRing

log = logging.getLogger(__name__)

_EVENTS_PER_STEP = 64
_EXTENDER = "extender"
_UNBOUND_STATUSES = (TaskStatus.ALLOCATED, TaskStatus.PIPELINED)
_TERMINATING_STATUSES = COMPLETED | {TaskStatus.RELEASING}


class SessionAlreadyOpen(BayplanError):
    """A second session was started. Sessions use the same jobs, so only one can be open."""

    def __init__(self) -> None:
        super().__init__("a session of this engine is still open; close it before opening another one")


class BatchEngine:
    """Volcano's scheduler logic without API access."""

    def __init__(
        self,
        cache: Cache,
        configuration: BatchConfiguration,
        *,
        plugins: BatchPluginSet,
        actions: ActionSet,
        framework_plugins: Registry,
        clock: Clock,
        chance: random.Random,
        scheduler_names: Collection[str] = (DEFAULT_SCHEDULER,),
        default_queue: str = DEFAULT_QUEUE,
        ignored_provisioners: Iterable[str] = (),
        nominations: Nominator | None = None,
        file: ConfFile | None = None,
        outside: HttpPoster | None = None,
        quirk_fixes: Iterable[str | QuirkFix] = (),
    ) -> None:
        """Build an engine.

        `file` is checked for a new configuration before each session. `outside` sends the HTTP requests of extenders.
        `quirk_fixes` lists the quirks of Volcano to fix.
        """
        self.cache = cache
        self.configuration = configuration
        self._file = file
        self._file_fault = ""  # why the current file content is not in force
        self._http = outside
        self.handle = BatchHandle(cache, clock, chance, framework_plugins)
        self.handle.quirk_fixes = parse_quirk_fixes(quirk_fixes)
        if nominations is not None:
            self.handle.nominator = nominations
        self.cluster_state = BatchClusterState(
            cache,
            scheduler_names=scheduler_names,
            default_queue=default_queue,
            nominations=self.handle.nominator,
            ignored_provisioners=ignored_provisioners,
        )
        self._has_posted = False
        if outside is not None:
            self.handle.http_post = partial(self._post, outside)
        self._nominated_uids: set[str] = set()  # uids of tasks pipelined by the last session
        self._is_open = False
        # pod events received while a session is open; true: the pod is deleted
        self._pending_events: deque[tuple[Pod, bool]] = deque()
        self._removed_uids: set[str] = set()  # uids of pods deleted, finished or terminating since the session opened
        self._bad_annotations = BadAnnotations()
        self._plugins = plugins
        self._actions = actions
        self._failed_actions: dict[str, str] = {}  # by name: why `initialize` failed
        self.unreadable_pods: dict[str, tuple[Pod, str]] = {}  # by uid: pods with invalid quantities, and the message
        self._initialize_actions(actions)

    def _post(self, outside: HttpPoster, url: str, body: bytes, timeout_s: float) -> HttpReply:
        self._has_posted = True
        return HttpReply(*outside.post(url, body, timeout_s))

    @property
    def calls_http(self) -> bool:
        """Whether sessions can wait for HTTP responses: an extender is configured or was called before."""
        return self._has_posted or any(each.name == _EXTENDER for each in self.configuration.plugins)

    def _initialize_actions(self, actions: ActionSet) -> None:
        """Initialize the actions. A failing action raises if it is configured; otherwise it is logged."""
        for name in actions:
            try:
                _call_action(actions, name, "initialize")
            except PluginError as fault:
                if name in self.configuration.actions:
                    raise
                self._failed_actions[name] = str(fault)
                log.error(str(fault))

    def replace_plugins(self, plugins: BatchPluginSet, actions: ActionSet) -> None:
        """Use other plugins and actions from the next session on. An error leaves everything unchanged.

        Plugins are built anew in each session; their state in the handle stays. Changed actions are initialized, and
        removed ones are uninitialized.
        """
        if self._is_open:
            raise SessionAlreadyOpen
        self._check_plugins_build(plugins)
        before, failed_actions = self._actions, self._failed_actions
        fresh = ActionSet(
            {name: actions.actions[name] for name in actions if before.get(name) is not actions.get(name)}
        )
        self._failed_actions = {
            name: reason for name, reason in failed_actions.items() if name not in fresh and name in actions
        }
        try:
            self._initialize_actions(fresh)
        except PluginError:
            self._failed_actions = failed_actions
            raise
        self._release(
            ActionSet({name: before.actions[name] for name in before if before.get(name) is not actions.get(name)}),
            failed_actions,
        )
        self._plugins, self._actions = plugins, actions
        if self._file is not None:
            self._file.set_actions(tuple(actions))

    def _check_plugins_build(self, plugins: BatchPluginSet) -> None:
        """Build each changed plugin that is configured, so that a broken one does not replace a working one."""
        for option in self.configuration.plugins:
            name = option.name
            if name not in plugins or plugins.get(name) is self._plugins.get(name):
                continue
            try:
                plugins.build(name, Arguments(option.arguments, owner=name), self.handle)
            except PLUGIN_EXCEPTIONS as fault:
                raise PluginError(f'plugin "{name}" cannot be built: {describe_with_location(fault)}') from fault

    def close(self) -> None:
        """Uninitialize the actions. A failing action is logged, and the remaining ones follow."""
        self._release(self._actions, self._failed_actions)
        if self._http is not None:
            self._http.close()

    def _release(self, actions: ActionSet, failed_actions: Mapping[str, str]) -> None:
        for name in actions:
            if name in failed_actions:
                continue
            try:
                _call_action(actions, name, "uninitialize")
            except PluginError as fault:
                log.error(str(fault))

    @property
    def records(self) -> DecisionRing:
        """The newest decision records of bound pods."""
        return self.handle.decision_records

    @property
    def file_fault(self) -> str:
        """Why the current file content is not in force; "" if it is."""
        return self._file.fault if self._file is not None else ""

    def load_configuration(self) -> BatchConfiguration:
        """The current configuration. A file that uses an action whose `initialize` failed is rejected."""
        if self._file is None:
            return self.configuration
        latest, self._file_fault = self._file.check(), self._file.fault
        broken = [self._failed_actions[name] for name in latest.actions if name in self._failed_actions]
        if broken:
            self._file_fault = f"{self._file.path}: {broken[0]}; the previous configuration stays in force"
        else:
            self.configuration = latest
        return self.configuration

    # Cluster events

    def handle_update(self, item: KubeObject) -> None:
        """Handle an added or changed pod. Pods on nodes must be in the cache as well; other objects only need to be
        there.

        An open session keeps its jobs; the next one sees the change.
        """
        if isinstance(item, Pod):
            self._queue_or_apply(item, is_gone=False)

    def handle_delete(self, item: KubeObject) -> None:
        """Handle a deleted pod. An open session no longer places it."""
        if isinstance(item, Pod):
            self._queue_or_apply(item, is_gone=True)

    def _queue_or_apply(self, pod: Pod, *, is_gone: bool) -> None:
        if self._is_open:
            self._pending_events.append((pod, is_gone))
            if is_gone or status_of(pod) in _TERMINATING_STATUSES:
                self._removed_uids.add(pod.uid)
        else:
            self._apply_event(pod, is_gone=is_gone)

    def _apply_event(self, pod: Pod, *, is_gone: bool) -> None:
        if is_gone:
            self.unreadable_pods.pop(pod.uid, None)
            self.cluster_state.remove_pod(pod)
            self._bad_annotations.remove_pod(pod)
            self.handle.nominator.delete_nomination(pod.uid)
        else:
            self._add_pod(pod)
            self._bad_annotations.update_pod(pod)

    def _add_pod(self, pod: Pod) -> None:
        """Add a pod. A pod with invalid quantities is left out and reported until a valid version arrives."""
        self.unreadable_pods.pop(pod.uid, None)
        try:
            self.cluster_state.update_pod(pod)
        except QuantityError as fault:
            message = f"pod {pod.key}: {fault}; it waits until this is corrected"
            self.unreadable_pods[pod.uid] = pod, message
            log.error(message)

    def _apply_pending_events(self) -> Iterator[None]:
        """Apply the events received during a session, some per step; later events follow in order."""
        while self._pending_events:
            for _ in range(min(_EVENTS_PER_STEP, len(self._pending_events))):
                pod, is_gone = self._pending_events.popleft()
                self._apply_event(pod, is_gone=is_gone)
            yield

    def _finish_session(self) -> None:
        for _ in self._apply_pending_events():
            pass
        self._removed_uids.clear()
        self._is_open = False

    def cancel_eviction(self, pod: Pod) -> None:
        """Undo the eviction of a pod that could not be deleted."""
        self.cluster_state.cancel_eviction(pod.uid)
        self._queue_or_apply(pod, is_gone=False)

    def set_usage(self, usage: Mapping[str, NodeUsage]) -> None:
        self.handle.usage = usage

    # Sessions

    def run_session(self) -> SessionResult:
        """Run one session without interruption."""
        outcome = SessionResult()
        for _ in self.run_session_steps(outcome):
            pass
        return outcome

    def run_session_steps(self, outcome: SessionResult) -> Generator[None, None, None]:
        """Run one session, with a step after each statement; `outcome` receives the decisions.

        The cache can change between steps: every commit is checked against it. Only one session can run at a time.
        """
        session = yield from self._open_session(outcome)
        restoring = self.cluster_state.restore_after_session(session)
        try:
            yield from session.verbose_log.log_open(session)
            for name in self.configuration.actions:
                start_s = self._now_s()
                session.verbose_log.log_enter_action(name)
                with session.last_choices.scope(name):
                    yield from self._run(name, session)
                session.verbose_log.log_leave_action(name)
                outcome.action_s[name] = outcome.action_s.get(name, 0.0) + self._now_s() - start_s
            session.faults += session.argument_warnings()
            _record_placements(session, outcome)
            yield from session.verbose_log.log_jobs(session.jobs.values())
            self._nominate_pipelined(session)
            yield from self._close_plugins(session, outcome)
            yield from collect_group_outcomes(session, outcome)
            yield from collect_queue_outcomes(session, outcome)
            outcome.events += [GroupEvent(*event) for event in session.events]
            outcome.faults, outcome.final_gauges = session.faults, session.queue_gauges
            outcome.shares, outcome.stalled_queues = session.job_shares, session.stalled_queues
            self._save_hypernodes(session)
            _unreserve_unbound(session)
            yield from restoring
            yield from self._apply_pending_events()
        finally:
            self._end_session(session, restoring)
            session.release()

    @contextmanager
    def session(self, outcome: SessionResult | None = None) -> Iterator[Session]:
        """An open session. When the block ends, even by an error, the engine's state is restored."""
        session = run_to_end(self._open_session(SessionResult() if outcome is None else outcome))
        try:
            yield session
        finally:
            self._end_session(session, self.cluster_state.restore_after_session(session))

    def _open_session(self, outcome: SessionResult) -> Generator[None, None, Session]:
        """Open a session in which the plugins have registered. An interrupted opening leaves no changes."""
        if self._is_open:
            raise SessionAlreadyOpen
        session: Session | None = None
        configuration = self.load_configuration()
        self._is_open = True  # later events are queued, so that all steps of the opening see the same state
        try:
            with pause_gc():  # objects read for the first time stay in memory
                session = yield from open_session(
                    self.cluster_state,
                    configuration,
                    self.handle,
                    SessionCommit(
                        self.cluster_state,
                        outcome,
                        self.handle.nominator,
                        nominated_uids=self._nominated_uids,
                        removed_uids=self._removed_uids,
                    ),
                    uid=str(uuid.UUID(int=self.handle.random.getrandbits(128))),
                )
            session.faults += [each for each in (self._file_fault, self.handle.usage_fault) if each]
            session.faults += [message for _, message in self.unreadable_pods.values()]
            session.faults += self._bad_annotations.warnings_for(
                self.cluster_state, {each.name for each in self.configuration.plugins}
            )
            outcome.session, outcome.pre_binds = session.uid, session.pre_binds
            outcome.annotations = session.annotations
            outcome.request_annotations = session.request_annotations
            yield from self._open_plugins(session, outcome)
        except BaseException:
            if session is not None:
                self._end_session(session, self.cluster_state.restore_after_session(session))
            else:
                self._finish_session()
            raise
        outcome.queue_gauges = {queue: dict(gauges) for queue, gauges in session.queue_gauges.items()}
        return session

    def _end_session(self, session: Session, restoring: Iterator[None]) -> None:
        """End a session. `restoring` is the rest of `restore_after_session`; all of it after an error."""
        self.handle.previous_faults = frozenset(session.faults)
        self._save_hypernodes(session)
        _unreserve_unbound(session)
        for _ in restoring:
            pass
        self._finish_session()

    def _now_s(self) -> float:
        return self.handle.clock.monotonic_s()

    def _open_plugins(self, session: Session, outcome: SessionResult) -> Iterator[None]:
        for tier in self.configuration.tiers:
            for option in tier:
                if option.name not in self._plugins:
                    message = f"Failed to get plugin {option.name}; `bayplan plugin list --batch` lists the known ones"
                    session.faults.append(message)
                    if message not in session.previous_faults:
                        log.error("%s", message)
                    continue
                start_s = self._now_s()
                arguments = Arguments(option.arguments, owner=option.name)
                before = session.plugins.get(option.name)
                try:
                    plugin = self._plugins.build(option.name, arguments, self.handle)
                    session.plugins[option.name] = plugin
                    session.opening_plugin = option.name
                    _require_no_answer(plugin.on_session_open(session))
                except PLUGIN_EXCEPTIONS as fault:
                    session.record_plugin_fault(option.name, fault, "on_session_open")
                    session.plugins.pop(option.name, None)  # a plugin that did not open is not closed
                    if before is not None:
                        session.plugins[option.name] = before
                finally:
                    session.opening_plugin = ""
                session.faults += arguments.warnings
                outcome.plugin_s[option.name, "OnSessionOpen"] = self._now_s() - start_s
                yield

    def _close_plugins(self, session: Session, outcome: SessionResult) -> Iterator[None]:
        for name, plugin in session.plugins.items():
            closing = getattr(plugin, "on_session_close", None)
            if closing is None:
                continue
            start_s = self._now_s()
            try:
                work = closing(session)
                if isinstance(work, Generator):  # a slow plugin can yield between steps
                    work = yield from work
                _require_no_answer(work)
            except PLUGIN_EXCEPTIONS as fault:
                session.record_plugin_fault(name, fault, "on_session_close")
            outcome.plugin_s[name, "OnSessionClose"] = self._now_s() - start_s
            yield

    def _run(self, name: str, session: Session) -> Iterator[None]:
        action = self._actions.get(name)
        if action is None:
            session.faults.append(f"action {name} is configured but does not exist; the session skipped it")
            return
        if name in self._failed_actions:
            session.faults.append(self._failed_actions[name])
            return
        session.begin_action()
        try:
            yield from action.execute(session) or ()
        except PLUGIN_EXCEPTIONS as fault:
            session.undo_action()
            message = f"action {name} was aborted: {describe_with_location(fault)}"
            session.faults.append(message)
            if message not in session.previous_faults:
                log.exception(message)

    def _nominate_pipelined(self, session: Session) -> None:
        """Nominate pods for resources that are being released, so that no other engine uses them."""
        waiting = {uid: task for uid, (task, _) in session.moved_tasks.items() if task.status is TaskStatus.PIPELINED}
        for uid in self._nominated_uids - waiting.keys():
            self.handle.nominator.delete_nomination(uid)
        for task in waiting.values():
            self.handle.nominator.nominate(task.info, task.node_name)
        self._nominated_uids = set(waiting)

    def _save_hypernodes(self, session: Session) -> None:
        """Save the hypernodes of marked jobs for the next session; restore the previous ones of all other jobs."""
        for job in session.jobs.values():
            if not job.has_topology_specs:
                continue
            if job.uid in session.dirty_jobs:
                job.sub_hyper_nodes = {uid: sub.allocated_hyper_node for uid, sub in job.sub_jobs.items()}
                job.saved_hyper_node = job.allocated_hyper_node
            else:
                job.allocated_hyper_node = job.saved_hyper_node


def _require_no_answer(answer: object) -> None:
    """Reject an answer where none is expected; for example a coroutine, which nothing awaits."""
    if isinstance(answer, Coroutine):
        answer.close()
    if answer is not None:
        raise InvalidAnswer(answer, "None")


def _call_action(actions: ActionSet, name: str, method: str) -> None:
    try:
        getattr(actions.get(name), method)()
    except PLUGIN_EXCEPTIONS as fault:
        raise PluginError(
            f'action "{name}" broke in {method}(): {type(fault).__name__}: {fault}; correct it or remove it'
        ) from fault


def _unreserve_unbound(session: Session) -> None:
    """Unreserve volumes and devices of tasks that are not bound, until the next session reserves them again."""
    for uid, needs in list(session.pre_binds.items()):
        moved = session.moved_tasks.get(uid)
        if moved is not None and moved[0].status in _UNBOUND_STATUSES:
            del session.pre_binds[uid]
            needs.unreserve(moved[0].node_name)


def _record_placements(session: Session, outcome: SessionResult) -> None:
    """Record the nodes of tasks that are pipelined or allocated after the last action."""
    for task, _ in session.moved_tasks.values():
        if task.status is TaskStatus.PIPELINED:
            outcome.pipelined[task.key] = task.node_name
        elif task.status is TaskStatus.ALLOCATED:
            outcome.allocated[task.key] = task.node_name
