"""The pod engine and the batch engine on one cache, in any order: neither uses room that is occupied or promised.

The cluster is small and almost full, so that both must evict. Sessions run statement by statement; between statements
the pod engine places and preempts, victims are deleted, and assumed pods are confirmed: both engines see each change at
once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.app import build_batch_engine, build_engine, configured, known_plugins
from bayplan.batch.config.scheduler_conf import load_conf
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.tasks import GROUP_NAME
from bayplan.batch.session.outcome import SessionResult
from bayplan.cache import Cache
from bayplan.clock import ManualClock
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject, ObjectMeta
from bayplan.objects.workloads import PriorityClass
from bayplan.testing.builders import make_node, make_pod
from support.builders.batch import NOW, make_group, make_member, make_queue

CONF = """\
actions: "enqueue, allocate, preempt, reclaim, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: conformance
- plugins:
  - name: predicates
  - name: proportion
  - name: nodeorder
"""
GANG_DECIDES = """\
actions: "enqueue, allocate, preempt, reclaim, backfill"
tiers:
- plugins:
  - name: priority
  - name: conformance
  - name: predicates
  - name: proportion
  - name: nodeorder
  - name: gang
"""
"""Tiers in which plugins that choose victims come before `gang`, and none after it: no pod is a victim against its
veto.

With Volcano's own tiers that is not so. Its `Session.Reclaimable` and `Session.Preemptable` continue with the next tier
when `gang` returns no victim, and `proportion` and `drf` there ignore `minMember`.
"""

LOW, MIDDLE, HIGH = 0, 5, 10
"""Pods of other schedulers are victims of the pod engine; gangs are victims of the batch engine only."""


@dataclass
class World:
    """The initial state."""

    nodes: list[tuple[int, int]]  # CPUs, pods
    strangers: list[Pod] = field(default_factory=list)
    members: list[Pod] = field(default_factory=list)
    groups: list[KubeObject] = field(default_factory=list)
    singles: list[Pod] = field(default_factory=list)  # pending pods of the pod engine


@st.composite
def worlds(draw: st.DrawFn) -> World:
    world = World(draw(st.lists(st.tuples(st.integers(2, 4), st.sampled_from([3, 10])), min_size=1, max_size=3)))
    room = [[1000 * cpus, pods] for cpus, pods in world.nodes]
    for number in range(draw(st.integers(0, 4))):
        node = _put(draw, room, 1000)
        if node:
            world.strangers.append(make_pod(f"s{number}", cpu=1, node=node, priority=LOW))
    for number in range(draw(st.integers(1, 3))):
        _draw_gang(draw, world, room, f"g{number}")
    if draw(st.booleans()):
        _fill(world, room, draw(st.integers(1, 3)))
    count = draw(st.integers(1, 4))
    sizes = draw(st.lists(st.sampled_from(["500m", "1", "2"]), min_size=count, max_size=count))
    world.singles = [make_pod(f"p{number}", cpu=size, priority=MIDDLE) for number, size in enumerate(sizes)]
    return world


def _put(draw: st.DrawFn, room: list[list[int]], milli: int) -> str:
    """A node that has room and is then filled; None if there is none."""
    fits = [number for number, (cpu, pods) in enumerate(room) if cpu >= milli and pods]
    if not fits:
        return ""
    chosen = draw(st.sampled_from(fits))
    room[chosen][0] -= milli
    room[chosen][1] -= 1
    return f"n{chosen}"


def _fill(world: World, room: list[list[int]], claims: int) -> None:
    """A gang that may shrink fills the rest, and one of higher priority waits for it."""
    places = [f"n{number}" for number, (cpu, pods) in enumerate(room) for _ in range(min(cpu // 500, pods))]
    world.groups.append(make_group("low", min_member=1, phase="Running", priority_class_name="low"))
    world.groups.append(make_group("top", min_member=claims, phase="Inqueue", priority_class_name="high"))
    for index, node in enumerate((*places, *[""] * claims)):
        gang = "low" if node else "top"
        pod = make_member(f"{gang}-{index}", gang, node=node, requests={"cpu": "500m"})
        world.members.append(replace(pod, spec=replace(pod.spec, priority=HIGH)))


def _draw_gang(draw: st.DrawFn, world: World, room: list[list[int]], name: str, *, waits: bool = False) -> None:
    """A gang that is pending as a whole, or one that runs and may shrink."""
    size, runs = draw(st.integers(1, 3)), not waits and draw(st.booleans())
    milli = draw(st.sampled_from([500, 1000]))
    places = [_put(draw, room, milli) if runs else "" for _ in range(size)]
    on_nodes = sum(map(bool, places))
    least = draw(st.integers(1, on_nodes)) if on_nodes else draw(st.integers(1, size))
    world.groups.append(
        make_group(
            name,
            min_member=least,
            phase="Running" if on_nodes else "Inqueue",
            queue=draw(st.sampled_from(["q", "z"])),
            priority_class_name="low" if runs else draw(st.sampled_from(["low", "high"])),
        )
    )
    for index, node in enumerate(places):
        pod = make_member(f"{name}-{index}", name, node=node, requests={"cpu": f"{milli}m"})
        world.members.append(replace(pod, spec=replace(pod.spec, priority=HIGH)))


class Cluster:
    """Both engines."""

    def __init__(self, world: World, seed: int, conf: str = CONF) -> None:
        self.cache, clock = Cache(), ManualClock(NOW)
        for number, (cpus, pods) in enumerate(world.nodes):
            self.cache.add_node(make_node(f"n{number}", cpu=cpus, capacity={"pods": pods}))
        classes = [PriorityClass(metadata=ObjectMeta(name=name), value=value) for name, value in _CLASSES.items()]
        for item in (make_queue(), make_queue("z"), *world.groups, *classes):
            self.cache.upsert(item)
        registry = known_plugins()
        self.single = build_engine(configured(None, registry), registry, self.cache, clock=clock, seed=seed)
        self.batch = build_batch_engine(
            load_conf(conf), self.cache, clock=clock, chance=random.Random(seed), nominations=self.single.nominator
        )
        self.pods = {pod.uid: pod for pod in (*world.strangers, *world.members)}
        for pod in self.pods.values():
            if pod.spec.node_name:
                self.cache.add_pod(pod)
            self.batch.handle_update(pod)
        self.least = {f"default/{group.name}": group.spec.min_member for group in world.groups}  # type: ignore[attr-defined]
        self.waiting = list(world.singles)
        self.pods |= {pod.uid: pod for pod in world.singles}
        self.leaving = {pod.uid for pod in world.strangers if pod.terminating}
        self._outcome = SessionResult()
        self._session: Iterator[None] | None = None

    # what happens -----------------------------------------------------------------------------------------------

    def turns(self, which: int) -> None:
        """Run the batch engine for some turns: a session yields to the loop often, and most turns change nothing."""
        for _ in range(2**which):
            self.turn()

    def turn(self) -> None:
        """Run the batch engine until its session yields next, or start a session."""
        if self._session is None:
            self._outcome = SessionResult()
            self._session = self.batch.run_session_steps(self._outcome)
        if next(self._session, self) is self:
            assert not self._outcome.faults
            self._session = None
        self.leaving |= {f"pod-{key.partition('/')[2]}" for key in self._outcome.evicts} & self.on_nodes().keys()

    def place(self, which: int) -> None:
        """The pod engine takes a pod off its queue."""
        if not self.waiting:
            return
        pod = self.waiting.pop(which % len(self.waiting))
        placed = self.single.place(pod)
        if placed.node is None:
            self.waiting.append(pod)
            for key in placed.decision.victims:
                self._ask_to_go(next(each for each in self.pods.values() if f"default/{each.name}" == key))

    def _ask_to_go(self, pod: Pod) -> None:
        self.leaving.add(pod.uid)
        bound = self.cache.pod(pod.uid)
        assert bound is not None
        going = replace(bound, metadata=replace(bound.metadata, deletion_timestamp=NOW))
        self.cache.add_pod(going) if self.cache.is_assumed(pod.uid) else self.cache.update_pod(going)
        self.batch.handle_update(going)

    def leave(self, which: int) -> None:
        """A victim is deleted."""
        if self.leaving:
            uid = sorted(self.leaving)[which % len(self.leaving)]
            self.leaving.remove(uid)
            pod = self.cache.pod(uid)
            assert pod is not None
            self.cache.remove_pod(pod)
            self.batch.handle_delete(pod)

    def confirm(self, which: int) -> None:
        """An assumed pod is confirmed on its node."""
        assumed = sorted(uid for uid in self.on_nodes() if self.cache.is_assumed(uid))
        if assumed:
            pod = self.cache.pod(assumed[which % len(assumed)])
            assert pod is not None
            shown = replace(pod, status=replace(pod.status, phase="Running"))
            self.cache.add_pod(shown)
            self.batch.handle_update(shown)

    # checks ---------------------------------------------------------------------------------------------------------

    def on_nodes(self) -> dict[str, Pod]:
        found = {uid: self.cache.pod(uid) for uid in self.pods}
        return {uid: pod for uid, pod in found.items() if pod is not None}

    def over_committed(self) -> list[str]:
        """Nodes that are overcommitted in CPU or in pods."""
        columns = self.cache.snapshot().nodes
        return [
            name
            for row, name in enumerate(columns.names)
            if columns.requested[0, row] > columns.allocatable[0, row]
            or columns.pod_count[row] > int(columns.nodes[row].status.allocatable["pods"])
        ]

    def staying(self) -> Counter[str]:
        """Number of pods of each gang that have a node and are not victims."""
        return Counter(_gang(pod) for uid, pod in self.on_nodes().items() if uid not in self.leaving)

    def half_started(self, before: dict[str, Pod]) -> list[str]:
        """Gangs that got a pod and are below their minimum. One that lost a pod may be: reclaim allows that."""
        now, staying = self.on_nodes(), self.staying()
        grown = {_gang(now[uid]) for uid in now.keys() - before.keys()} - {""}
        return [gang for gang in grown if staying[gang] < self.least[f"default/{gang}"]]

    def half_stopped(self, before: Counter[str]) -> list[str]:
        """Gangs that were complete and are below their minimum."""
        now = self.staying()
        return [gang for gang in before.keys() - {""} if now[gang] < self.least[f"default/{gang}"] <= before[gang]]

    def claims(self) -> dict[str, dict[str, str]]:
        """Beneficiaries of evictions, by engine: the nodes by uid. Room of an uncommitted statement is not counted."""
        found: dict[str, dict[str, str]] = {"batch": {}, "single": {}}
        ledger, placed = self.single.nominator, self.on_nodes()
        for name in ledger.nodes():
            for info in ledger.on_node(name):
                found["batch" if _gang(info.pod) else "single"][info.uid] = name
        jobs = self.batch.cluster_state.jobs.values()
        planned = {task.uid for job in jobs for task in job.with_status(TaskStatus.RELEASING)} - self.leaving
        for job in () if planned else jobs:
            for task in job.with_status(TaskStatus.PIPELINED):
                if task.eviction_occurred:
                    found["batch"][task.uid] = task.node_name
        return {who: {uid: node for uid, node in mine.items() if uid not in placed} for who, mine in found.items()}

    def slack(self, *claims: dict[str, str]) -> dict[str, int]:
        """CPU that is left on each node after all terminations and all promised placements."""
        columns = self.cache.snapshot().nodes
        left = {name: int(columns.allocatable[0, row]) for row, name in enumerate(columns.names)}
        for uid, pod in self.on_nodes().items():
            if uid not in self.leaving:
                left[pod.spec.node_name] -= _milli(pod)
        for mine in claims:
            for uid, node in mine.items():
                left[node] -= _milli(self.pods[uid])
        return left


_CLASSES = {"low": 1, "high": 2}


def _gang(pod: Pod) -> str:
    return pod.metadata.annotations.get(GROUP_NAME, "")


def _milli(pod: Pod) -> int:
    text = str(pod.spec.containers[0].resources.requests["cpu"])
    return int(text[:-1]) if text.endswith("m") else 1000 * int(text)


STEPS = st.lists(
    st.tuples(st.sampled_from(["turns", "turns", "turns", "place", "place", "leave", "confirm"]), st.integers(0, 5)),
    min_size=10,
    max_size=30,
)


def happen(cluster: Cluster, what: str, which: int) -> None:
    getattr(cluster, what)(which)


@st.composite
def crowded_worlds(draw: st.DrawFn) -> World:
    """A gang that just fits, or will after a termination; pending pods take its room if they can."""
    size, going = draw(st.integers(2, 3)), draw(st.booleans())
    world = World([(2, 10), (2, 10)])
    if going:
        stranger = make_pod("s0", cpu=4 - size, node="n0", priority=HIGH)
        world.strangers = [replace(stranger, metadata=replace(stranger.metadata, deletion_timestamp=NOW))]
    world.groups = [
        make_group("first", phase="Inqueue", priority_class_name="high"),
        make_group("gang", phase="Inqueue", min_member=size),
    ]
    world.members = [make_member("first-0", "first", requests={"cpu": "100m"})]
    world.members += [make_member(f"gang-{each}", "gang", requests={"cpu": "900m"}) for each in range(size)]
    world.singles = [make_pod(f"p{number}", cpu=1, priority=MIDDLE) for number in range(2)]
    return world


QUICK = st.integers(1, 30).map(lambda turns: [("turns", 0)] * turns + [("place", 0)] * 2 + [("turns", 0)] * 60)
"""The pod engine places or evicts during a session that has read the idle resources before."""


@settings(max_examples=150, deadline=None)
@given(st.tuples(worlds(), STEPS) | st.tuples(crowded_worlds(), QUICK), st.integers(0, 3))
def test_no_node_is_overcommitted_and_no_gang_partly_started(
    history: tuple[World, list[tuple[str, int]]], seed: int
) -> None:
    world, steps = history
    cluster = Cluster(world, seed)
    for step in steps:
        before = cluster.on_nodes()
        happen(cluster, *step)
        assert cluster.over_committed() == []
        assert cluster.half_started(before) == []


@settings(max_examples=100, deadline=None)
@given(worlds(), STEPS, st.integers(0, 3))
def test_no_gang_falls_below_its_minimum_if_gang_is_in_the_last_tier(
    world: World, steps: list[tuple[str, int]], seed: int
) -> None:
    cluster = Cluster(world, seed, GANG_DECIDES)
    for step in steps:
        before = cluster.staying()
        happen(cluster, *step)
        assert cluster.half_stopped(before) == []


SUDDEN = st.integers(1, 60).map(lambda turns: [("turns", 0)] * turns + [("leave", 0)] * 3 + [("place", 0)] * 4)
"""Victims are deleted while the session that evicted them still runs, and the pod engine is fast."""


@st.composite
def tight_worlds(draw: st.DrawFn) -> World:
    """A foreign pod leaves some room idle. A pending pod needs that and the foreign pod's room, gangs a part of it."""
    strangers, idle = draw(st.integers(1, 2)), draw(st.sampled_from([1, 2]))
    world = World([(strangers + idle, 10)])
    world.strangers = [make_pod(f"s{number}", cpu=1, node="n0", priority=LOW) for number in range(strangers)]
    for number in range(draw(st.integers(2, 3))):
        _draw_gang(draw, world, [], f"g{number}", waits=True)
    world.singles = [make_pod("p0", cpu=idle + 1, priority=MIDDLE)]
    return world


@st.composite
def contested_worlds(draw: st.DrawFn) -> World:
    """On one node: a pending pod needs the idle room and that of a foreign pod, a gang the idle room and that of a
    gang.
    """
    idle, claim = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    world = World([(idle + 3, 20), (1, 20)])
    world.strangers = [make_pod("s0", cpu=1, node="n0", priority=LOW)]
    world.singles = [make_pod("p0", cpu=idle + 1, priority=MIDDLE)]
    for name, node, cpu in (("low", "n0", 1), ("low", "n0", 1), ("top", "", idle + claim), ("first", "", 1)):
        pod = make_member(f"{name}-{len(world.members)}", name, node=node, requests={"cpu": str(cpu)})
        world.members.append(replace(pod, spec=replace(pod.spec, priority=HIGH)))
    for name, phase, importance in (
        ("low", "Running", "low"),
        ("top", "Inqueue", "high"),
        ("first", "Inqueue", "high"),
    ):
        world.groups.append(
            make_group(name, min_member=int(name != "low"), phase=phase, priority_class_name=importance)
        )
    return world


BEFORE = st.integers(20, 60).map(lambda turns: [("place", 0)] + [("turns", 0)] * turns)
"""The pod engine evicts before the session opens."""


@settings(max_examples=200, deadline=None)
@given(st.tuples(worlds(), STEPS | SUDDEN) | st.tuples(tight_worlds(), QUICK), st.integers(0, 3))
def test_no_engine_uses_the_room_that_the_other_evicted_for(
    history: tuple[World, list[tuple[str, int]]], seed: int
) -> None:
    world, steps = history
    cluster = Cluster(world, seed)
    for what, which in steps:
        before = cluster.claims()
        other = before["single" if what == "turns" else "batch"]
        room = cluster.slack(other)
        happen(cluster, what, which)
        still = {uid: node for uid, node in other.items() if uid not in cluster.on_nodes()}
        after = cluster.slack(still)
        for node in {*still.values()}:
            assert room[node] < 0 or after[node] >= 0, (what, node, still)


@settings(max_examples=150, deadline=None)
@given(st.tuples(worlds(), STEPS) | st.tuples(contested_worlds(), QUICK | BEFORE), st.integers(0, 3))
def test_no_room_is_promised_twice(history: tuple[World, list[tuple[str, int]]], seed: int) -> None:
    world, steps = history
    cluster = Cluster(world, seed)
    for what, which in steps:
        room = cluster.slack(*cluster.claims().values())
        mine: Any = cluster.claims()["single"]
        happen(cluster, what, which)
        claims = cluster.claims()
        after = cluster.slack(*claims.values())
        both = {*claims["batch"].values()} & {*claims["single"].values(), *mine.values()}
        for node in both:
            assert room[node] < 0 or after[node] >= 0, (what, node, claims)
