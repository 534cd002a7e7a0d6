"""What does my batch plugin do in a session? A cluster, gangs and queues in one expression, and what became of them.

    cluster = BatchHarness([CostAware], nodes=[make_node("a"), make_node("b")], gangs=[make_gang("train", 2, cpu=1)])
    assert cluster.run().bound == {"train-0": "a", "train-1": "b"}

It is the real engine on a real cache, with a clock that moves when told to and chance that repeats. Questions change
nothing; `run` and `settle` do. Building one takes a few milliseconds, so each test makes its own.

Pods and groups of the namespace `default` go by their names, others by `namespace/name`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cmp_to_key
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from bayplan.app.batch import build_batch_engine
from bayplan.app.configuration import batch_configured, filled_cache
from bayplan.batch.apply_outcome import OutcomeApplier
from bayplan.batch.handle import HttpPost, raise_no_network
from bayplan.batch.model.nodes import NodeUsage
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.outcome import SessionResult
from bayplan.batch.session.session import Session
from bayplan.clock import ManualClock
from bayplan.errors import UsageError
from bayplan.framework.api.status import Status
from bayplan.objects.core import Node, Pod
from bayplan.objects.defaults import DEFAULT_NAMESPACE, with_all_defaults
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano.types import DEFAULT_QUEUE, Queue
from bayplan.testing.batch_builders import Gang, make_queue
from bayplan.testing.builders import CREATED, as_list
from bayplan.testing.profile_config import registry_with
from bayplan.testing.tier_config import (
    TierEntry,
    action_set_with,
    build_configuration,
    check_plugins_listed,
    plugin_classes,
    plugin_set_with,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What one session did. As a text it is a line a group, then what each of its pods waits for."""

    bound: dict[str, str]
    """Pods that are told to start, each with its node."""
    evicted: dict[str, str]
    """Pods that are told to go, each with the reason."""
    pipelined: dict[str, str]
    """Pods that wait for others to go, each with the node."""
    allocated: dict[str, str]
    """Pods that have a node, and wait for the rest of their gang."""
    phases: dict[str, str]
    """By group."""
    conditions: dict[str, dict[str, str]]
    """By group: `reason: message` of each type of condition."""
    events: dict[str, list[str]]
    """By group: `type reason: text`."""
    messages: dict[str, str]
    """By pod: why it waits."""
    faults: list[str]
    """What plugins and actions did wrong, a sentence each."""
    outcome: SessionResult
    """The same as the engine gives it, and the rest: queues, gauges, annotations."""
    members: dict[str, list[str]] = field(repr=False)
    """By group: its pods."""

    def __str__(self) -> str:
        lines = [line for group in self.phases for line in self._describe_group(group)]
        lines += [f"fault: {sentence}" for sentence in self.faults]
        return "\n".join(lines)

    def _describe_group(self, group: str) -> Iterator[str]:
        pods = self.members.get(group, [])
        done = [
            f"{pod} {word} {told[pod]}"
            for told, word in (
                (self.bound, "bound to"),
                (self.allocated, "allocated to"),
                (self.pipelined, "pipelined to"),
                (self.evicted, "evicted by"),
            )
            for pod in pods
            if pod in told
        ]
        yield f"{group}: {'; '.join([self.phases[group], *done])}"
        yield from (f"  {pod} waits: {self.messages[pod]}" for pod in pods if pod in self.messages)


class BatchHarness:
    """A small cluster with a batch engine that runs your plugins."""

    def __init__(
        self,
        plugins: Sequence[type[Any]] = (),
        *,
        nodes: Iterable[Node] = (),
        gangs: Iterable[Gang] = (),
        queues: Iterable[Queue] = (),
        pods: Iterable[Pod] = (),
        objects: Iterable[KubeObject] = (),
        actions: Sequence[str | type[Any]] = ("enqueue", "allocate", "backfill"),
        tiers: Sequence[Sequence[TierEntry]] | None = None,
        config: str | None = None,
        args: Mapping[str, Mapping[str, Any]] | None = None,
        only: bool = False,
        usage: Mapping[str, NodeUsage] | None = None,
        post: HttpPost = raise_no_network,
        mends: Iterable[str] = (),
        seed: int = 0,
        now: datetime = CREATED,
    ) -> None:
        """A cluster of nodes, gangs, queues (`default` is always there), single pods and other objects.

        The plugins make a tier of their own before the built-in tiers, with every flag on and with `args` by plugin
        name; `only` leaves out the built-in tiers. `tiers` says instead what is in each: names, classes, or what
        `make_option` gives. A flag that is unset there is off. `config` is the text of a volcano-scheduler.conf, in
        which a flag that is not given is on; it says everything itself. `actions` are names or classes of your own.
        `post(url, body, timeout_s)` answers for the HTTP services that plugins ask; without it there are none. `mends`
        are quirks of Volcano's that are switched off.
        """
        plugins = as_list("plugins", plugins, type, "classes, as in [CostAware]")
        nodes = as_list("nodes", nodes, Node, "what make_node makes")
        gangs = as_list("gangs", gangs, Gang, "what make_gang makes")
        queues = as_list("queues", queues, Queue, "what make_queue makes")
        pods = as_list("pods", pods, Pod, "what make_pod makes")
        objects = as_list("objects", objects, KubeObject, "objects, as make_hyper_node and others make them")
        if config is not None and (tiers is not None or args or only):
            raise UsageError("a configuration says everything itself; leave out tiers, args and only")
        steps = action_set_with(actions)
        configuration = (
            batch_configured(config, steps)
            if config is not None
            else build_configuration(plugins, actions=actions, tiers=tiers, args=args or {}, only=only)
        )
        check_plugins_listed(plugins, configuration)
        everything = [*queues, *(each for gang in gangs for each in gang.objects), *pods, *objects]
        if not any(isinstance(each, Queue) and each.name == DEFAULT_QUEUE for each in everything):
            everything.append(make_queue(DEFAULT_QUEUE))
        self.clock = ManualClock(now)
        self._unsettled: list[SessionResult] = []
        cluster = list(with_all_defaults(_unique_objects([*nodes, *everything])))
        self.engine = build_batch_engine(
            configuration,
            filled_cache(cluster),
            plugins=plugin_set_with([*plugins, *plugin_classes(tiers)]),
            actions=steps,
            framework_plugins=registry_with(()),
            clock=self.clock,
            chance=random.Random(seed),
            mends=mends,
        )
        self.engine.handle.http_post = post
        self.engine.set_usage(usage or {})
        self._cluster = OutcomeApplier(self.engine)
        for item in cluster:
            self._cluster.note_object(item)

    # questions --------------------------------------------------------------------------------------------------

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A session that is open and runs no action, to ask your functions through it."""
        with self.engine.session() as session:
            yield session

    def task(self, session: Session, pod: Pod | str) -> Task:
        """The task of a pod in a session."""
        key = pod.key if isinstance(pod, Pod) else _key(pod)
        tasks = {task.key: task for job in session.jobs.values() for task in job.tasks.values()}
        if key not in tasks:
            known = ", ".join(map(short_name, tasks)) or "none"
            raise UsageError(f"no group that has a queue has a pod {short_name(key)}; there are: {known}")
        return tasks[key]

    def refusals(self, pod: Pod | str) -> dict[str, list[Status]]:
        """Nodes that refuse the pod, each with what its predicates, or its lack of room, say."""
        with self.engine.session() as session:
            task = self.task(session, pod)
            refused = session.pre_predicate(task)
            if refused is not None:
                return {name: [refused] for name in session.nodes.names}
            found = session.evaluate_class(task).rejections(task, session.nodes.rows, with_room=True)
            by_row = {int(row): list(each.statuses) for each in found for row in each.rows}
            return {name: by_row[row] for row, name in enumerate(session.nodes.names) if row in by_row}

    def scores(self, pod: Pod | str) -> dict[str, float]:
        """What all plugins together give each node that refuses nothing, but may lack room at the moment."""
        with self.engine.session() as session:
            task = self.task(session, pod)
            candidates = session.evaluate_class(task).rows_to_allocate(task)
            totals = session.scores(task, candidates) if candidates.any() else None
            if totals is None:
                return {}
            return {session.nodes.names[row]: float(totals[row]) for row in np.flatnonzero(candidates)}

    def job_order(self) -> list[str]:
        """Groups in the order in which a session that opens now would serve them within one queue."""
        with self.engine.session() as session:
            return [short_name(job.uid) for job in _sort_by(session.jobs.values(), session.job_order)]

    def queue_order(self) -> list[str]:
        """Queues in the order in which a session that opens now would serve them."""
        with self.engine.session() as session:
            return [queue.name for queue in _sort_by(session.queues.values(), session.queue_order)]

    # changes ----------------------------------------------------------------------------------------------------

    def run(self, sessions: int = 1) -> BatchResult:
        """Run a session, and say what it did. Of several the last is told; before each the cluster `settle`s."""
        outcome = self._session()
        for _ in range(sessions - 1):
            self.settle()
            outcome = self._session()
        return self._build_result(outcome)

    def _session(self) -> SessionResult:
        outcome = self.engine.run_session()
        self._unsettled.append(outcome)
        return outcome

    def settle(self) -> None:
        """Let what sessions decided come true: bound pods run, evicted ones are gone, groups and queues know it."""
        for outcome in self._unsettled:
            self._cluster.apply(outcome)
        self._unsettled = []

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.advance(seconds)

    def add(self, *objects: KubeObject | Gang) -> None:
        """Objects that are new, or that have changed."""
        told = [each for item in objects for each in (item.objects if isinstance(item, Gang) else (item,))]
        self._cluster.add(with_all_defaults(_unique_objects(told)))

    def remove(self, *objects: KubeObject) -> None:
        """Objects that are gone."""
        self._cluster.remove(objects)

    def close(self) -> None:
        """Let the actions release what they hold."""
        self.engine.close()

    def __enter__(self) -> BatchHarness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # the rest ---------------------------------------------------------------------------------------------------

    def _build_result(self, outcome: SessionResult) -> BatchResult:
        groups = {short_name(uid): group for uid, group in outcome.groups.items()}
        events: dict[str, list[str]] = {}
        for event in outcome.events:
            events.setdefault(short_name(event.group), []).append(f"{event.type} {event.reason}: {event.text}")
        members: dict[str, list[str]] = {}
        for pod in self._cluster.pods.values():
            members.setdefault(short_name(Task(pod).job), []).append(short_name(pod.key))
        return BatchResult(
            bound=_shorten_keys(outcome.binds),
            evicted=_shorten_keys(outcome.evicts),
            pipelined=_shorten_keys(outcome.pipelined),
            allocated=_shorten_keys(outcome.allocated),
            phases={name: group.status.phase for name, group in groups.items()},
            conditions={
                name: {each.type: f"{each.reason}: {each.message}".rstrip(": ") for each in group.status.conditions}
                for name, group in groups.items()
            },
            events=events,
            messages={short_name(key): message.message for key, message in outcome.messages.items()},
            faults=list(outcome.faults),
            outcome=outcome,
            members=members,
        )


def short_name(key: str) -> str:
    """The name alone in the namespace `default`."""
    return key.removeprefix(f"{DEFAULT_NAMESPACE}/")


def _key(name: str) -> str:
    return name if "/" in name else f"{DEFAULT_NAMESPACE}/{name}"


def _shorten_keys(told: Mapping[str, str]) -> dict[str, str]:
    return {short_name(key): value for key, value in told.items()}


def _unique_objects(objects: Iterable[KubeObject]) -> list[KubeObject]:
    """Gangs of one priority bring the same class each; two different objects of one name are a slip."""
    found: dict[tuple[type, str, str], KubeObject] = {}
    for item in objects:
        if found.setdefault((type(item), item.namespace, item.name), item) != item:
            raise UsageError(f'two different {type(item).__name__}s are called "{item.name}"; rename one of them')
    return list(found.values())


def _sort_by(items: Iterable[T], less: Callable[[T, T], bool]) -> list[T]:
    def compare(left: T, right: T) -> int:
        return -1 if less(left, right) else 1

    return sorted(items, key=cmp_to_key(compare))
