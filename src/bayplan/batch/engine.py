"""The batch engine in one process: a cache that it shares, a configuration, and sessions one after another.

`run_session` opens, runs the actions and closes; what it returns is what the session decided. Bound pods are assumed in
the shared cache at once, so that nobody else takes their room. What it costs to open is what changed since the last.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from bayplan.batch.cluster_state import DEFAULT_SCHEDULER, Ledger
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.config.conf_file import ConfFile
from bayplan.batch.config.scheduler_conf import BatchConfiguration
from bayplan.batch.config.volcano_quirk_fixes import Mend, mends_named
from bayplan.batch.diagnostics.bad_annotations import Misreadings
from bayplan.batch.diagnostics.plugin_faults import Nonsense, told_with_place
from bayplan.batch.handle import BatchHandle, Outside, Reply
from bayplan.batch.model.nodes import NodeUsage
from bayplan.batch.model.statuses import COMPLETED, TaskStatus, status_of
from bayplan.batch.registry import ActionSet, PluginSet
from bayplan.batch.session.close_session import settle_groups, settle_queues
from bayplan.batch.session.commit import Outbox
from bayplan.batch.session.open_session import opening
from bayplan.batch.session.outcome import GroupEvent, Outcome
from bayplan.batch.session.session import Session
from bayplan.cache import Cache
from bayplan.clock import Clock
from bayplan.codec.quantity import QuantityError
from bayplan.errors import BayplanError, PluginError
from bayplan.framework.runtime.cooperative import finished
from bayplan.framework.runtime.nominator import NominationLedger
from bayplan.framework.runtime.plugin_call import FAULTS
from bayplan.framework.runtime.registry import Registry
from bayplan.memory import without_collections
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano.types import DEFAULT_QUEUE
from bayplan.telemetry.decisions import DecisionRing

log = logging.getLogger(__name__)

_NEWS_A_TURN = 64
_EXTENDER = "extender"
_UNBOUND = (TaskStatus.ALLOCATED, TaskStatus.PIPELINED)
_GOING = COMPLETED | {TaskStatus.RELEASING}


class SessionOpen(BayplanError):
    """Sessions work on the same jobs, so there is one at a time."""

    def __init__(self) -> None:
        super().__init__("a session of this engine is still open; let it come to its end before another one begins")


class BatchEngine:
    """Volcano's brain, without its wires."""

    def __init__(
        self,
        cache: Cache,
        configuration: BatchConfiguration,
        *,
        plugins: PluginSet,
        actions: ActionSet,
        framework_plugins: Registry,
        clock: Clock,
        chance: random.Random,
        scheduler_names: Collection[str] = (DEFAULT_SCHEDULER,),
        default_queue: str = DEFAULT_QUEUE,
        ignored_provisioners: Iterable[str] = (),
        nominations: NominationLedger | None = None,
        file: ConfFile | None = None,
        outside: Outside | None = None,
        mends: Iterable[str | Mend] = (),
    ) -> None:
        """`file`: where the configuration is looked up before each session; `outside`: how extenders are reached;
        `mends`: which of Volcano's quirks are switched off."""
        self.cache = cache
        self.configuration = configuration
        self._file = file
        self._file_fault = ""  # why what the file says now is not in force
        self._outside = outside
        self.handle = BatchHandle(cache, clock, chance, framework_plugins)
        self.handle.mends = mends_named(mends)
        if nominations is not None:
            self.handle.nominations = nominations
        self.ledger = Ledger(
            cache,
            scheduler_names=scheduler_names,
            default_queue=default_queue,
            nominations=self.handle.nominations,
            ignored_provisioners=ignored_provisioners,
        )
        self.waiting: Callable[[Callable[[], tuple[int, bytes]]], tuple[int, bytes]] = _at_once
        """How answers from outside are waited for: whoever runs sessions may do something else meanwhile."""
        self._has_posted = False
        if outside is not None:
            self.handle.post_now = partial(self._post, outside)
        self._promised: set[str] = set()  # uids of tasks that wait for room on a node since the last session
        self._is_open = False
        self._news: deque[tuple[Pod, bool]] = (
            deque()
        )  # what was told while a session is open, and whether the pod is gone
        self._gone: set[str] = set()  # uids of pods that have gone, ended or been asked to go since it opened
        self._misreadings = Misreadings()
        self._plugins = plugins
        self._actions = actions
        self._unready: dict[str, str] = {}  # actions that broke before anything was asked of them, and how
        self.unread: dict[str, tuple[Pod, str]] = {}  # by uid: pods whose amounts are no quantities, and why
        self._make_ready(actions)

    def _post(self, outside: Outside, url: str, body: bytes, timeout_s: float) -> Reply:
        self._has_posted = True
        return Reply(*self.waiting(lambda: outside.post(url, body, timeout_s)))

    @property
    def asks_outside(self) -> bool:
        """Whether sessions may wait for answers of others: by the plugin for that, or because one did."""
        return self._has_posted or any(each.name == _EXTENDER for each in self.configuration.plugins)

    def _make_ready(self, actions: ActionSet) -> None:
        """One that breaks is refused where it is configured; else it is nobody's loss until it is."""
        for name in actions:
            try:
                _call(actions, name, "initialize")
            except PluginError as fault:
                if name in self.configuration.actions:
                    raise
                self._unready[name] = str(fault)
                log.error(str(fault))

    def renew(self, plugins: PluginSet, actions: ActionSet) -> None:
        """Go on with other plugins and actions, between two sessions. What cannot begin is refused: nothing changed.

        Plugins are made for each session anyway; what they keep in the handle stays. Actions that are other objects
        than before begin anew, and those that nobody is going to run any more release what they hold."""
        if self._is_open:
            raise SessionOpen
        self._try_out(plugins)
        before, unready = self._actions, self._unready
        fresh = ActionSet(
            {name: actions.actions[name] for name in actions if before.get(name) is not actions.get(name)}
        )
        self._unready = {name: why for name, why in unready.items() if name not in fresh and name in actions}
        try:
            self._make_ready(fresh)
        except PluginError:
            self._unready = unready
            raise
        self._release(
            ActionSet({name: before.actions[name] for name in before if before.get(name) is not actions.get(name)}),
            unready,
        )
        self._plugins, self._actions = plugins, actions
        if self._file is not None:
            self._file.allow(tuple(actions))

    def _try_out(self, plugins: PluginSet) -> None:
        """Build each plugin that is configured and another than before: one that cannot be must not take its place."""
        for option in self.configuration.plugins:
            name = option.name
            if name not in plugins or plugins.get(name) is self._plugins.get(name):
                continue
            try:
                plugins.build(name, Arguments(option.arguments, owner=name), self.handle)
            except FAULTS as fault:
                raise PluginError(f'plugin "{name}" cannot be built: {told_with_place(fault)}') from fault

    def close(self) -> None:
        """Let the actions release what they hold; one that cannot is named, and the others still do."""
        self._release(self._actions, self._unready)
        if self._outside is not None:
            self._outside.close()

    def _release(self, actions: ActionSet, unready: Mapping[str, str]) -> None:
        for name in actions:
            if name in unready:
                continue
            try:
                _call(actions, name, "uninitialize")
            except PluginError as fault:
                log.error(str(fault))

    @property
    def records(self) -> DecisionRing:
        """Why pods that sessions have bound were put where they are: the newest."""
        return self.handle.records

    @property
    def file_fault(self) -> str:
        """Why what the file says now is not in force; nothing where it is."""
        return self._file.fault if self._file is not None else ""

    def configured(self) -> BatchConfiguration:
        """The configuration of this moment. One of a file that names an action which broke at start stays out."""
        if self._file is None:
            return self.configuration
        latest, self._file_fault = self._file.look(), self._file.fault
        broken = [self._unready[name] for name in latest.actions if name in self._unready]
        if broken:
            self._file_fault = f"{self._file.path}: {broken[0]}; the configuration that was in force stays so"
        else:
            self.configuration = latest
        return self.configuration

    # the cluster ------------------------------------------------------------------------------------------------

    def observe(self, item: KubeObject) -> None:
        """A pod was added or changed. Pods on nodes must be in the cache as well; other objects need only that.

        A session that is open keeps the jobs that it opened with; the next one has the news."""
        if isinstance(item, Pod):
            self._hear(item, is_gone=False)

    def withdraw(self, item: KubeObject) -> None:
        """A pod is gone. A session that is open does not place it any more."""
        if isinstance(item, Pod):
            self._hear(item, is_gone=True)

    def _hear(self, pod: Pod, *, is_gone: bool) -> None:
        if self._is_open:
            self._news.append((pod, is_gone))
            if is_gone or status_of(pod) in _GOING:
                self._gone.add(pod.uid)
        else:
            self._learn(pod, is_gone=is_gone)

    def _learn(self, pod: Pod, *, is_gone: bool) -> None:
        if is_gone:
            self.unread.pop(pod.uid, None)
            self.ledger.withdraw(pod)
            self._misreadings.withdraw(pod)
            self.handle.nominations.withdraw(pod.uid)
        else:
            self._take_in(pod)
            self._misreadings.observe(pod)

    def _take_in(self, pod: Pod) -> None:
        """A pod whose amounts cannot be read stays out, and is named, until another version of it can."""
        self.unread.pop(pod.uid, None)
        try:
            self.ledger.observe(pod)
        except QuantityError as fault:
            sentence = f"pod {pod.key}: {fault}; it waits until that is mended"
            self.unread[pod.uid] = pod, sentence
            log.error(sentence)

    def _catching_up(self) -> Iterator[None]:
        """Learn what was told while a session was open, some of it a turn; what is told meanwhile comes after it."""
        while self._news:
            for _ in range(min(_NEWS_A_TURN, len(self._news))):
                pod, is_gone = self._news.popleft()
                self._learn(pod, is_gone=is_gone)
            yield

    def _catch_up(self) -> None:
        for _ in self._catching_up():
            pass
        self._gone.clear()
        self._is_open = False

    def spare(self, pod: Pod) -> None:
        """A pod that a session wanted to go stays: nobody could have it deleted."""
        self.ledger.note_stay(pod.uid)
        self._hear(pod, is_gone=False)

    def set_usage(self, usage: Mapping[str, NodeUsage]) -> None:
        """How busy nodes really are, as last collected."""
        self.handle.usage = usage

    # sessions ---------------------------------------------------------------------------------------------------

    def run_session(self) -> Outcome:
        """One session from opening to closing, in one go."""
        outcome = Outcome()
        for _ in self.turns(outcome):
            pass
        return outcome

    def turns(self, outcome: Outcome) -> Generator[None, None, None]:
        """One session that gives others their turn after each statement; what it decides goes into `outcome`.

        Others may change the cache meanwhile: every commit is checked against it. One session at a time."""
        session = yield from self._opened(outcome)
        settling = self.ledger.settling(session)
        try:
            yield from session.narration.opened(session)
            for name in self.configuration.actions:
                start_s = self._now_s()
                session.narration.entering(name)
                with session.last_choices.within(name):
                    yield from self._run(name, session)
                session.narration.leaving(name)
                outcome.action_s[name] = outcome.action_s.get(name, 0.0) + self._now_s() - start_s
            session.faults += session.misfits_of_arguments()
            _note_places(session, outcome)
            yield from session.narration.jobs(session.jobs.values())
            self._promise(session)
            yield from self._close_plugins(session, outcome)
            yield from settle_groups(session, outcome)
            yield from settle_queues(session, outcome)
            outcome.events += [GroupEvent(*event) for event in session.events]
            outcome.faults, outcome.final_gauges = session.faults, session.queue_gauges
            outcome.shares, outcome.standstills = session.job_shares, session.standstills
            self._remember(session)
            _give_back(session)
            yield from settling
            yield from self._catching_up()
        finally:
            self._ended(session, settling)
            session.end()

    @contextmanager
    def session(self, outcome: Outcome | None = None) -> Iterator[Session]:
        """An open session; whatever happens in it, the engine's own state is right again afterwards."""
        session = finished(self._opened(Outcome() if outcome is None else outcome))
        try:
            yield session
        finally:
            self._ended(session, self.ledger.settling(session))

    def _opened(self, outcome: Outcome) -> Generator[None, None, Session]:
        """A session in which the plugins have registered. Whoever stops in the middle of this leaves no trace."""
        if self._is_open:
            raise SessionOpen
        session: Session | None = None
        configuration = self.configured()
        self._is_open = True  # from here on news wait: what opens bit by bit must open on one state of affairs
        try:
            with without_collections():  # a cluster that is read for the first time stays
                session = yield from opening(
                    self.ledger,
                    configuration,
                    self.handle,
                    Outbox(self.ledger, outcome, self.handle.nominations, promised=self._promised, gone=self._gone),
                    uid=str(uuid.UUID(int=self.handle.chance.getrandbits(128))),
                )
            session.faults += [each for each in (self._file_fault, self.handle.usage_fault) if each]
            session.faults += [sentence for _, sentence in self.unread.values()]
            session.faults += self._misreadings.told(self.ledger, {each.name for each in self.configuration.plugins})
            outcome.session, outcome.pre_binds = session.uid, session.pre_binds
            outcome.annotations = session.annotations
            outcome.request_annotations = session.request_annotations
            yield from self._open_plugins(session, outcome)
        except BaseException:
            if session is not None:
                self._ended(session, self.ledger.settling(session))
            else:
                self._catch_up()
            raise
        outcome.queue_gauges = {queue: dict(gauges) for queue, gauges in session.queue_gauges.items()}
        return session

    def _ended(self, session: Session, settling: Iterator[None]) -> None:
        """`settling`: what is left of setting tasks back; all of it where the session broke off."""
        self.handle.told = frozenset(session.faults)
        self._remember(session)
        _give_back(session)
        for _ in settling:
            pass
        self._catch_up()

    def _now_s(self) -> float:
        return self.handle.clock.monotonic_s()

    def _open_plugins(self, session: Session, outcome: Outcome) -> Iterator[None]:
        for tier in self.configuration.tiers:
            for option in tier:
                if option.name not in self._plugins:
                    sentence = f"Failed to get plugin {option.name}; `bayplan plugin list --batch` lists the known ones"
                    session.faults.append(sentence)
                    if sentence not in session.told_before:
                        log.error("%s", sentence)
                    continue
                start_s = self._now_s()
                arguments = Arguments(option.arguments, owner=option.name)
                before = session.plugins.get(option.name)
                try:
                    plugin = self._plugins.build(option.name, arguments, self.handle)
                    session.plugins[option.name] = plugin
                    session.opening = option.name
                    _refuse_answer(plugin.on_session_open(session))
                except FAULTS as fault:
                    session.blame(option.name, fault, "on_session_open")
                    session.plugins.pop(option.name, None)  # who did not open is not closed
                    if before is not None:
                        session.plugins[option.name] = before
                finally:
                    session.opening = ""
                session.faults += arguments.warnings
                outcome.plugin_s[option.name, "OnSessionOpen"] = self._now_s() - start_s
                yield

    def _close_plugins(self, session: Session, outcome: Outcome) -> Iterator[None]:
        for name, plugin in session.plugins.items():
            closing = getattr(plugin, "on_session_close", None)
            if closing is None:
                continue
            start_s = self._now_s()
            try:
                work = closing(session)
                if isinstance(work, Generator):  # one that takes long may give others their turn
                    work = yield from work
                _refuse_answer(work)
            except FAULTS as fault:
                session.blame(name, fault, "on_session_close")
            outcome.plugin_s[name, "OnSessionClose"] = self._now_s() - start_s
            yield

    def _run(self, name: str, session: Session) -> Iterator[None]:
        action = self._actions.get(name)
        if action is None:
            session.faults.append(f"action {name} is configured but not there; it was passed over")
            return
        if name in self._unready:
            session.faults.append(self._unready[name])
            return
        session.begin_action()
        try:
            yield from action.execute(session) or ()
        except FAULTS as fault:
            session.undo_action()
            sentence = f"action {name} broke off: {told_with_place(fault)}"
            session.faults.append(sentence)
            if sentence not in session.told_before:
                log.exception(sentence)

    def _promise(self, session: Session) -> None:
        """Let everybody know for whom room is being released, so that nobody takes it meanwhile."""
        waiting = {uid: task for uid, (task, _) in session.moved.items() if task.status is TaskStatus.PIPELINED}
        for uid in self._promised - waiting.keys():
            self.handle.nominations.withdraw(uid)
        for task in waiting.values():
            self.handle.nominations.nominate(task.info, task.node_name)
        self._promised = set(waiting)

    def _remember(self, session: Session) -> None:
        """What jobs were allocated to outlives the session where it was marked; else it is as before."""
        for job in session.jobs.values():
            if not job.has_topology_specs:
                continue
            if job.uid in session.dirty_jobs:
                job.sub_hyper_nodes = {uid: sub.allocated_hyper_node for uid, sub in job.sub_jobs.items()}
                job.kept_hyper_node = job.allocated_hyper_node
            else:
                job.allocated_hyper_node = job.kept_hyper_node


def _at_once(wait: Callable[[], tuple[int, bytes]]) -> tuple[int, bytes]:
    return wait()


def _refuse_answer(answer: object) -> None:
    """Where nothing is answered, something is a mistake: a coroutine that nobody awaits has not done its work."""
    if isinstance(answer, Coroutine):
        answer.close()
    if answer is not None:
        raise Nonsense(answer, "None")


def _call(actions: ActionSet, name: str, method: str) -> None:
    try:
        getattr(actions.get(name), method)()
    except FAULTS as fault:
        raise PluginError(
            f'action "{name}" broke in {method}(): {type(fault).__name__}: {fault}; mend it or leave it out'
        ) from fault


def _give_back(session: Session) -> None:
    """Volumes and devices of tasks that are not bound are anybody's until the next session reserves them again."""
    for uid, needs in list(session.pre_binds.items()):
        moved = session.moved.get(uid)
        if moved is not None and moved[0].status in _UNBOUND:
            del session.pre_binds[uid]
            needs.undo(moved[0].node_name)


def _note_places(session: Session, outcome: Outcome) -> None:
    """Where tasks stand after the last action that are neither bound nor waiting."""
    for task, _ in session.moved.values():
        if task.status is TaskStatus.PIPELINED:
            outcome.pipelined[task.key] = task.node_name
        elif task.status is TaskStatus.ALLOCATED:
            outcome.allocated[task.key] = task.node_name
