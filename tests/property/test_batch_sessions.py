"""Invariants of every session, for any cluster, jobs and order of events."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.batch import cluster_state as ledger_module
from bayplan.batch.engine import BatchEngine
from bayplan.batch.model.jobs import Job
from bayplan.batch.model.node_accounts import NodeAccounts, offered_amounts
from bayplan.batch.model.statuses import HOLDING, TaskStatus
from bayplan.batch.session.outcome import SessionResult
from bayplan.batch.session.session import Session
from bayplan.batch.session.statement import save_operations
from bayplan.cache import Cache
from bayplan.objects.core import (
    Affinity,
    ContainerPort,
    Node,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
)
from bayplan.objects.meta import LabelSelector
from bayplan.testing.builders import make_node, make_pod
from support.builders.batch import NOW, make_group, make_member, make_queue
from support.builders.batch_engines import GANGS, account_rows, add_pod, build_engine

HOST = "kubernetes.io/hostname"
APPS = ("web", "db")


@st.composite
def nodes(draw: st.DrawFn) -> list[Node]:
    count = draw(st.integers(1, 5))
    return [
        make_node(
            f"n{number}",
            cpu=draw(st.integers(1, 4)),
            labels={"zone": draw(st.sampled_from(["z1", "z2"]))},
            taints=draw(st.sampled_from([[], [], ["gpu:NoSchedule"], ["spot:PreferNoSchedule"]])),
            capacity={"pods": draw(st.sampled_from([2, 10]))},
        )
        for number in range(count)
    ]


def with_rules(pod: Pod, rule: str) -> Pod:
    selector = LabelSelector(match_labels={"app": "web"})
    term = PodAffinityTerm(topology_key=HOST, label_selector=selector)
    spec = pod.spec
    if rule == "apart":
        spec = replace(spec, affinity=Affinity(pod_anti_affinity=PodAffinity(required=(term,))))
    elif rule == "near":
        spec = replace(
            spec, affinity=Affinity(pod_affinity=PodAffinity(required=(replace(term, topology_key="zone"),)))
        )
    elif rule == "port":
        port = ContainerPort(container_port=80, host_port=80, protocol="TCP")
        spec = replace(spec, containers=(replace(spec.containers[0], ports=(port,)),))
    elif rule == "spread":
        spread = TopologySpreadConstraint(1, "zone", "DoNotSchedule", selector)
        spec = replace(spec, topology_spread_constraints=(spread,))
    return replace(pod, spec=spec)


@st.composite
def gangs(draw: st.DrawFn, places: list[Node]) -> tuple[list[Any], list[Pod]]:
    groups: list[Any] = [make_queue("z")]
    pods: list[Pod] = []
    for number in range(draw(st.integers(1, 4))):
        name = f"j{number}"
        size = draw(st.integers(1, 4))
        phase = draw(st.sampled_from(["Pending", "Inqueue", "Running"]))
        queue = draw(st.sampled_from(["q", "z"]))
        groups.append(make_group(name, min_member=draw(st.integers(0, size)), phase=phase, queue=queue))
        rule = draw(st.sampled_from(["", "", "apart", "near", "spread", "port"]))
        cpu = draw(st.sampled_from(["500m", "1", "2"]))
        for index in range(size):
            node = draw(st.sampled_from(["", "", *(place.name for place in places)]))
            pod = make_member(
                f"{name}-w-{index}",
                name,
                node=node,
                requests=draw(st.sampled_from([{"cpu": cpu}, {"cpu": cpu}, {}])),
                labels={"app": draw(st.sampled_from(APPS))},
                annotations={"volcano.sh/task-spec": draw(st.sampled_from(["", "w", "ps"]))},
            )
            pods.append(with_rules(pod, rule))
    return groups, pods


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, Any]:
    places = draw(nodes())
    groups, pods = draw(gangs(places))
    return {"nodes": places, "objects": groups, "pods": pods}


def rebuilt(session: Session) -> NodeAccounts:
    """The node accounts, recomputed from the tasks."""
    room = NodeAccounts(session.nodes.accounts.dimensions)
    room.resize(len(session.nodes))
    rows = {row: (offered_amounts(session.nodes.at_row(row).node), []) for row in range(len(session.nodes))}
    room.set_rows(rows)
    for row, held in enumerate(session.nodes.accounts.tasks):
        for task in held.values():
            status, task.status = task.status, task.counted_status or task.status
            before = task.counted_status
            room.add_task(row, task)
            task.status, task.counted_status = status, before
    return room


def checked(job: Job) -> None:
    """The counters of a job equal those of its tasks."""
    by_status = Counter(task.status for task in job.tasks.values())
    assert {
        status: len(job.status_index.by_status[status]) for status in TaskStatus if job.status_index.by_status[status]
    } == by_status
    cpu = sum(task.resreq.milli_cpu for task in job.tasks.values() if task.status in HOLDING)
    assert job.allocated.milli_cpu == cpu
    waiting = sum(task.best_effort for task in job.tasks.values() if task.status is TaskStatus.PENDING)
    assert job.status_index.best_effort_pending == waiting


def state(session: Session) -> Any:
    view = session.snapshot.nodes
    return (
        account_rows(session.nodes.accounts),
        {task.uid: (task.status, task.node_name) for job in session.jobs.values() for task in job.tasks.values()},
        [sorted(info.uid for info in infos) for infos in view.pods],
        view.requested[:, : view.count].tolist(),
        view.pod_count[: view.count].tolist(),
        Counter(int(kind) for kind in session.snapshot.pods.kinds[: session.snapshot.pods.slots] if kind >= 0).total(),
    )


SHARING = GANGS.replace("  - name: nodeorder\n", "  - name: nodeorder\n  - name: proportion\n  - name: drf\n")


def shares(session: Session) -> Any:
    """State that plugins keep by event handlers."""
    queues, drf = session.plugins["proportion"]._accounts, session.plugins["drf"]
    held = {uid: drf._job_share(job) for uid, job in session.jobs.items()}
    return {
        name: ([each.allocated.get(resource) for resource in ("cpu", "memory", "pods")], each.share)
        for name, each in (*queues.items(), *held.items())
    }


@settings(max_examples=60, deadline=None)
@given(worlds(), st.data())
def test_discarding_restores_everything(world: dict[str, Any], data: st.DataObject) -> None:
    with build_engine(conf=SHARING, **world).session() as session:
        before, counted = state(session)[:-1], shares(session)
        statement = session.statement()
        seen = len(before)
        for job in session.jobs.values():
            for task in list(job.with_status(TaskStatus.RUNNING)):
                if data.draw(st.booleans()):
                    statement.evict(task, "test")
                    seen = 2  # upstream hides a victim from predicates, also when it stays after all
            for task in list(job.pending.values()):
                if session.pre_predicate(task) is None and data.draw(st.booleans()):
                    name = data.draw(st.sampled_from(session.nodes.names))
                    if data.draw(st.booleans()):
                        statement.allocate(task, name)
                    else:
                        statement.pipeline(task, name)
            checked(job)
        assert account_rows(rebuilt(session)) == account_rows(session.nodes.accounts)
        if data.draw(st.booleans()):  # a discarded operation can be repeated by a later statement
            during, trial = state(session)[:-1], save_operations(statement)
            statement.discard()
            statement = session.statement()
            assert statement.recover_operations(trial)
            assert state(session)[:seen] == during[:seen]
        statement.discard()
        assert state(session)[:seen] == before[:seen]
        assert shares(session) == counted
        for job in session.jobs.values():
            checked(job)


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_no_gang_is_half_started_and_no_node_over_committed(world: dict[str, Any]) -> None:
    engine = build_engine(**world)
    with engine.session() as session:
        ready = {uid: job.is_ready() for uid, job in session.jobs.items()}
        least = {uid: job.min_available for uid, job in session.jobs.items()}
        idle = {node.name: node.idle for node in session.nodes}
        tasks = {task.key: task for job in session.jobs.values() for task in job.tasks.values()}
    outcome = engine.run_session()
    assert not outcome.faults
    bound: Counter[str] = Counter()
    for key, node in outcome.binds.items():
        bound[tasks[key].job] += 1
        idle[node].sub_unchecked(tasks[key].resreq)
    for uid in bound:
        with engine.session() as session:
            held = session.jobs[uid].ready_task_num + session.jobs[uid].status_index.best_effort_pending
            assert ready[uid] or held >= least[uid]
    for node in set(outcome.binds.values()):
        assert idle[node].milli_cpu >= 0
        assert idle[node].get("pods") >= 0


@settings(max_examples=40, deadline=None)
@given(worlds(), st.integers(0, 3))
def test_sharing_between_equal_tasks_changes_nothing(world: dict[str, Any], seed: int) -> None:
    shared = build_engine(**world, seed=seed).run_session()
    alone_engine = build_engine(**world, seed=seed)
    outcome = SessionResult()
    with alone_engine.session(outcome) as session:
        session.evaluations._key = lambda task: task.uid  # type: ignore[method-assign]
        for name in alone_engine.configuration.actions:
            for _ in alone_engine._run(name, session):
                pass
    assert outcome.binds == shared.binds
    assert outcome.evicts == shared.evicts


@st.composite
def histories(draw: st.DrawFn) -> tuple[dict[str, Any], list[tuple[str, int, int]]]:
    step = st.tuples(
        st.sampled_from(["session", "run", "end", "evict", "go", "stranger", "leave", "node", "drop"]),
        st.integers(0, 30),
        st.integers(0, 30),
    )
    return draw(worlds()), draw(st.lists(step, max_size=12))


class World:
    """A cluster with changes between the sessions."""

    def __init__(self, engine: BatchEngine, pods: list[Pod]) -> None:
        self.engine = engine
        self.pods = {pod.uid: pod for pod in pods}
        self.strangers: list[Pod] = []

    def happen(self, what: str, which: int, where: int) -> None:
        cache, names = self.engine.cache, list(self.engine.cluster_state.snapshot.nodes.names)
        pod = list(self.pods.values())[which % len(self.pods)]
        if what == "session":
            for key, node in self.engine.run_session().binds.items():
                uid = f"pod-{key.partition('/')[2]}"
                if which % 2:
                    self._show(replace(self.pods[uid], spec=replace(self.pods[uid].spec, node_name=node)))
        elif what == "run" and pod.spec.node_name and pod.status.phase == "Pending":
            self._show(replace(pod, status=replace(pod.status, phase="Running")))
        elif what == "end" and pod.spec.node_name and pod.status.phase == "Running":
            cache.remove_pod(pod)
            self.pods[pod.uid] = ended = replace(pod, status=replace(pod.status, phase="Succeeded"))
            self.engine.handle_update(ended)
        elif what == "evict":
            with self.engine.session() as session:
                for job in session.jobs.values():
                    victims = list(job.with_status(TaskStatus.RUNNING))[: which % 3]
                    with session.statement() as statement:
                        for victim in victims:
                            statement.evict(victim, "test")
                        if where % 2:
                            statement.commit()
        elif what == "go" and pod.spec.node_name and pod.status.phase in ("Pending", "Running") and not pod.terminating:
            self._show(replace(pod, metadata=replace(pod.metadata, deletion_timestamp=NOW)))
        elif what == "stranger" and names:
            stranger = make_pod(f"s{len(self.strangers)}", cpu="250m", node=names[where % len(names)])
            self.strangers.append(stranger)
            add_pod(self.engine, stranger)
        elif what == "leave" and self.strangers:
            cache.remove_pod(self.strangers.pop())
        elif what == "node":
            cache.add_node(make_node(f"n{where}", cpu=where % 4 + 1))
        elif what == "drop" and len(names) > 1 and cache.node(names[where % len(names)]) is not None:
            cache.remove_node(names[where % len(names)])

    def _show(self, pod: Pod) -> None:
        if self.engine.cache.pod(pod.uid) is not None and not self.engine.cache.is_assumed(pod.uid):
            self.engine.cache.update_pod(pod)
        else:
            self.engine.cache.add_pod(pod)
        self.pods[pod.uid] = pod
        self.engine.handle_update(pod)


@settings(max_examples=80, deadline=None)
@given(histories())
def test_incremental_accounts_equal_recomputed_ones(history: tuple[dict[str, Any], list[tuple[str, int, int]]]) -> None:
    world, steps = history
    followed = World(build_engine(**world), world["pods"])
    for step in steps:
        followed.happen(*step)
        with followed.engine.session() as session:
            assert account_rows(rebuilt(session)) == account_rows(session.nodes.accounts)
            for job in session.jobs.values():
                checked(job)
            mine = by_name(session)
        with anew(followed).session() as session:
            assert by_name(session) == mine


@settings(max_examples=80, deadline=None)
@given(histories(), histories(), st.integers(0, 30), st.booleans())
def test_accounts_are_correct_after_changes_during_a_session_opening(
    before: tuple[dict[str, Any], list[tuple[str, int, int]]],
    meanwhile: tuple[dict[str, Any], list[tuple[str, int, int]]],
    turns: int,
    broken_off: bool,
) -> None:
    """One pod, row and change at a time, so that an opening has many turns; some openings are aborted."""
    world, steps = before
    followed = World(build_engine(**world), world["pods"])
    with mock.patch.multiple(ledger_module, _CHANGES_PER_STEP=1, _ROWS_PER_STEP=1):
        followed.happen("session", 1, 0)
        for step in steps:
            followed.happen(*step)
        session_turns = followed.engine.run_session_steps(SessionResult())
        for _ in islice(session_turns, turns):
            pass
        for what, which, where in meanwhile[1]:
            if what not in ("session", "evict"):  # only one at a time
                followed.happen(what, which, where)
        if broken_off:
            session_turns.close()
        for _ in session_turns:
            pass
    with followed.engine.session() as session:
        assert account_rows(rebuilt(session)) == account_rows(session.nodes.accounts)
        mine = by_name(session)
    with anew(followed).session() as session:
        assert by_name(session) == mine


def by_name(session: Session) -> Any:
    amounts = {
        node.name: tuple(
            str(each) for each in (node.idle, node.used, node.releasing, node.pipelined) if each is not None
        )
        for node in session.nodes
    }
    tasks = {task.uid: (task.status, task.node_name) for job in session.jobs.values() for task in job.tasks.values()}
    columns = session.snapshot.nodes
    seen = {
        name: (
            columns.requested[:, row].tolist(),
            int(columns.pod_count[row]),
            sorted(info.uid for info in columns.pods[row]),
            sorted(str(port) for port in columns.ports[row]),
        )
        for row, name in enumerate(columns.names)
    }
    return amounts, tasks, seen


def anew(world: World) -> BatchEngine:
    """An engine that has seen only the present cluster, on the same cache."""
    cache: Cache = world.engine.cache
    engine = build_engine(cache=cache)
    for uid, evicted in world.engine.cluster_state._evicted.items():
        engine.cluster_state._evicted[uid] = evicted
    for pod in world.pods.values():
        engine.handle_update(pod)
    return engine


@settings(max_examples=40, deadline=None)
@given(worlds(), st.randoms(use_true_random=False))
def test_two_engines_on_one_cache_never_overcommit(world: dict[str, Any], chance: random.Random) -> None:
    """Another scheduler places pods between the statements of a session."""
    engine = build_engine(**world)
    cache = engine.cache
    outcome = SessionResult()
    rivals = 0
    for _ in engine.run_session_steps(outcome):
        name = chance.choice(list(engine.cluster_state.snapshot.nodes.names))
        node = cache.node(name)
        assert node is not None
        columns = cache.snapshot().nodes
        row = columns.index[name]
        if columns.allocatable[0, row] - columns.requested[0, row] >= 500 and (
            columns.pod_count[row] < int(node.status.allocatable["pods"])
        ):
            rivals += 1
            cache.add_pod(make_pod(f"rival{rivals}", cpu="500m", node=name))
    before = {pod.spec.node_name for pod in world["pods"] if pod.spec.node_name}
    columns = cache.snapshot().nodes
    for row, name in enumerate(columns.names):
        if name not in before:  # existing pods may have exceeded the limit
            assert columns.requested[0, row] <= columns.allocatable[0, row]
            assert columns.pod_count[row] <= int(columns.nodes[row].status.allocatable["pods"])
    with engine.session() as session:
        tasks = {task.key: task for job in session.jobs.values() for task in job.tasks.values()}
        for key in outcome.binds:
            assert session.jobs[tasks[key].job].is_ready()
