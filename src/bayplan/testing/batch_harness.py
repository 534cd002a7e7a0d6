"""Test harness for batch plugins: a small cluster with gangs and queues, and the results of sessions.

    cluster = BatchHarness([CostAware], nodes=[make_node("a"), make_node("b")], gangs=[make_gang("train", 2, cpu=1)])
    assert cluster.run().bound == {"train-0": "a", "train-1": "b"}

It runs the real engine on a real cache, with a manual clock and seeded randomness. Queries change nothing; `run` and
`settle` do. Building a harness takes a few milliseconds, so each test builds its own.

Pods and groups of the namespace `default` are named by name, those of other namespaces by `namespace/name`.
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
    """Result of one session. `str()` prints one line per group, then the reason of each waiting pod."""

    bound: dict[str, str]
    """Node by bound pod."""
    evicted: dict[str, str]
    """Reason by evicted pod."""
    pipelined: dict[str, str]
    """Node by pod that waits there for resources that are being released."""
    allocated: dict[str, str]
    """Node by pod that waits for the rest of its gang."""
    phases: dict[str, str]
    """Phase by group."""
    conditions: dict[str, dict[str, str]]
    """By group: `reason: message` of each type of condition."""
    events: dict[str, list[str]]
    """By group: `type reason: text`."""
    messages: dict[str, str]
    """Reason by waiting pod."""
    faults: list[str]
    """Faults of plugins and actions, one sentence each."""
    outcome: SessionResult
    """The complete result of the engine: queues, gauges, annotations and the fields above."""
    members: dict[str, list[str]] = field(repr=False)
    """Pods by group."""

    def __str__(self) -> str:
        lines = [line for group in self.phases for line in self._describe_group(group)]
        lines += [f"fault: {sentence}" for sentence in self.faults]
        return "\n".join(lines)

    def _describe_group(self, group: str) -> Iterator[str]:
        pods = self.members.get(group, [])
        parts = [
            f"{pod} {verb} {results[pod]}"
            for results, verb in (
                (self.bound, "bound to"),
                (self.allocated, "allocated to"),
                (self.pipelined, "pipelined to"),
                (self.evicted, "evicted by"),
            )
            for pod in pods
            if pod in results
        ]
        yield f"{group}: {'; '.join([self.phases[group], *parts])}"
        yield from (f"  {pod} waits: {self.messages[pod]}" for pod in pods if pod in self.messages)


class BatchHarness:
    """A small cluster with a batch engine that runs the given plugins."""

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
        quirk_fixes: Iterable[str] = (),
        seed: int = 0,
        now: datetime = CREATED,
    ) -> None:
        """Build a cluster of nodes, gangs, queues (`default` always exists), single pods and other objects.

        The plugins form a tier of their own before the built-in tiers, with every flag on and with `args` by plugin
        name; `only` leaves out the built-in tiers. `tiers` defines all tiers instead: names, classes, or results of
        `make_option`, in which unset flags are off. `config` is the text of a volcano-scheduler.conf, in which missing
        flags are on; it excludes the other options. `actions` are names or classes. `post(url, body, timeout_s)`
        replaces HTTP services of plugins; by default requests fail. `quirk_fixes` disables quirks of Volcano.
        """
        plugins = as_list("plugins", plugins, type, "classes, as in [CostAware]")
        nodes = as_list("nodes", nodes, Node, "what make_node makes")
        gangs = as_list("gangs", gangs, Gang, "what make_gang makes")
        queues = as_list("queues", queues, Queue, "what make_queue makes")
        pods = as_list("pods", pods, Pod, "what make_pod makes")
        objects = as_list("objects", objects, KubeObject, "objects, such as those of make_hyper_node")
        if config is not None and (tiers is not None or args or only):
            raise UsageError("config excludes tiers, args and only; leave them out")
        action_set = action_set_with(actions)
        configuration = (
            batch_configured(config, action_set)
            if config is not None
            else build_configuration(plugins, actions=actions, tiers=tiers, args=args or {}, only=only)
        )
        check_plugins_listed(plugins, configuration)
        all_objects = [*queues, *(each for gang in gangs for each in gang.objects), *pods, *objects]
        if not any(isinstance(each, Queue) and each.name == DEFAULT_QUEUE for each in all_objects):
            all_objects.append(make_queue(DEFAULT_QUEUE))
        self.clock = ManualClock(now)
        self._unsettled: list[SessionResult] = []
        cluster = list(with_all_defaults(_unique_objects([*nodes, *all_objects])))
        self.engine = build_batch_engine(
            configuration,
            filled_cache(cluster),
            plugins=plugin_set_with([*plugins, *plugin_classes(tiers)]),
            actions=action_set,
            framework_plugins=registry_with(()),
            clock=self.clock,
            chance=random.Random(seed),
            quirk_fixes=quirk_fixes,
        )
        self.engine.handle.http_post = post
        self.engine.set_usage(usage or {})
        self._cluster = OutcomeApplier(self.engine)
        for item in cluster:
            self._cluster.note_object(item)

    # Queries

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Open a session without running an action, to call plugin functions through it."""
        with self.engine.session() as session:
            yield session

    def task(self, session: Session, pod: Pod | str) -> Task:
        key = pod.key if isinstance(pod, Pod) else _key(pod)
        tasks = {task.key: task for job in session.jobs.values() for task in job.tasks.values()}
        if key not in tasks:
            known = ", ".join(map(short_name, tasks)) or "none"
            raise UsageError(f"no group with a queue has a pod {short_name(key)}; the pods are: {known}")
        return tasks[key]

    def refusals(self, pod: Pod | str) -> dict[str, list[Status]]:
        """Rejections of the pod by node: predicates, or insufficient resources."""
        with self.engine.session() as session:
            task = self.task(session, pod)
            failure = session.pre_predicate(task)
            if failure is not None:
                return {name: [failure] for name in session.nodes.names}
            found = session.evaluate_class(task).rejections(task, session.nodes.rows, with_room=True)
            by_row = {int(row): list(each.statuses) for each in found for row in each.rows}
            return {name: by_row[row] for row, name in enumerate(session.nodes.names) if row in by_row}

    def scores(self, pod: Pod | str) -> dict[str, float]:
        """Total score by node that does not reject the pod; the node may lack idle resources at the moment."""
        with self.engine.session() as session:
            task = self.task(session, pod)
            candidates = session.evaluate_class(task).rows_to_allocate(task)
            totals = session.scores(task, candidates) if candidates.any() else None
            if totals is None:
                return {}
            return {session.nodes.names[row]: float(totals[row]) for row in np.flatnonzero(candidates)}

    def job_order(self) -> list[str]:
        """Groups in job order, in a session that opens now."""
        with self.engine.session() as session:
            return [short_name(job.uid) for job in _sort_by(session.jobs.values(), session.job_order)]

    def queue_order(self) -> list[str]:
        """Queues in queue order, in a session that opens now."""
        with self.engine.session() as session:
            return [queue.name for queue in _sort_by(session.queues.values(), session.queue_order)]

    # Commands

    def run(self, sessions: int = 1) -> BatchResult:
        """Run sessions, with `settle` between them, and return the result of the last one."""
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
        """Apply the results of sessions: bound pods run, evicted pods are removed, groups and queues are updated."""
        for outcome in self._unsettled:
            self._cluster.apply(outcome)
        self._unsettled = []

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        self.clock.advance(seconds)

    def add(self, *objects: KubeObject | Gang) -> None:
        """Add new objects, or update existing ones."""
        results = [each for item in objects for each in (item.objects if isinstance(item, Gang) else (item,))]
        self._cluster.add(with_all_defaults(_unique_objects(results)))

    def remove(self, *objects: KubeObject) -> None:
        self._cluster.remove(objects)

    def close(self) -> None:
        """Close the actions, which release their resources."""
        self.engine.close()

    def __enter__(self) -> BatchHarness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Helpers

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
    """The name without the namespace `default`."""
    return key.removeprefix(f"{DEFAULT_NAMESPACE}/")


def _key(name: str) -> str:
    return name if "/" in name else f"{DEFAULT_NAMESPACE}/{name}"


def _shorten_keys(results: Mapping[str, str]) -> dict[str, str]:
    return {short_name(key): value for key, value in results.items()}


def _unique_objects(objects: Iterable[KubeObject]) -> list[KubeObject]:
    """Remove equal duplicates, such as the priority class of two gangs; different objects of one name are an error."""
    found: dict[tuple[type, str, str], KubeObject] = {}
    for item in objects:
        if found.setdefault((type(item), item.namespace, item.name), item) != item:
            raise UsageError(f'two different {type(item).__name__}s are called "{item.name}"; rename one of them')
    return list(found.values())


def _sort_by(items: Iterable[T], less: Callable[[T, T], bool]) -> list[T]:
    def compare(left: T, right: T) -> int:
        return -1 if less(left, right) else 1

    return sorted(items, key=cmp_to_key(compare))
