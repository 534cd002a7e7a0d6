"""Workloads of the batch benchmarks. Each sets up a cluster and times one operation, repeatedly.

Sessions have the default configuration, with hypernodes also `network-topology-aware`. A workload that changes its
cluster for good has a new cluster each round. The garbage collector is on; only the garbage of the setup is collected
before a round.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns, thread_time_ns

from msgspec.structs import replace

from bayplan.app import known_actions
from bayplan.batch.config.scheduler_conf import DEFAULT_CONF
from bayplan.batch.engine import BatchEngine
from bayplan.batch.session.outcome import SessionResult
from bayplan.objects.core import Pod
from bayplan.objects.meta import ObjectMeta
from bayplan.objects.workloads import PriorityClass
from benchmarks import clusters
from benchmarks.batch_clusters import GANG, engine_on, gang_pods, group, hyper_nodes, running_pod, show
from benchmarks.calibration import pace
from benchmarks.decision_timing import Latencies, UnexpectedOutcome

CHANGED = 0.05
"""Share of the pods that change or are replaced before each opening."""
QUEUES = 10
_HELD_M, _HELD_A_NODE = 900, 4  # requests of the pods that fill the small nodes of reclaim and preempt
_HIGH = 1000
_PACES = 10
"""Runs of the calibration loop before each round, and after it."""


@dataclass
class Timer:
    """Collects the times of rounds."""

    took_us: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    paces: list[float] = field(default_factory=list)

    @contextmanager
    def round(self) -> Iterator[None]:
        gc.collect()
        self._look_at_the_machine()
        start_cpu, start = thread_time_ns(), perf_counter_ns()
        yield
        took_ns, cpu_ns = perf_counter_ns() - start, thread_time_ns() - start_cpu
        self.took_us.append(took_ns / 1e3)
        self.cpu_us.append(cpu_ns / 1e3)
        self._look_at_the_machine()

    def _look_at_the_machine(self) -> None:
        self.paces += [pace() for _ in range(_PACES)]

    @property
    def latencies(self) -> Latencies:
        return Latencies(self.took_us, self.cpu_us, self.paces)


@dataclass(frozen=True, slots=True)
class Measured:
    """Times of the rounds, and of the first one if that is a different operation."""

    rounds: Latencies
    cold: Latencies | None = None


@dataclass(frozen=True, kw_only=True)
class BatchWorkload:
    """One operation to time, on a cluster of the size that the budget applies to."""

    about: str
    measure: Callable[[int, int, int], Measured]
    """Called with nodes, pods and rounds."""
    nodes: int
    pods: int
    rounds: int
    budget_us: float | None = None
    volcano_us: float | None = None
    """Time of Volcano 1.15.1 for the same, in process on two cores, if known."""
    counts: bool = True
    """Whether pods a second is meaningful: the operation decides about each pod."""


# gangs


def waiting_gangs(nodes: int, sizes: Sequence[int], queues: int = 1) -> BatchEngine:
    """A cluster with room, and pending gangs."""
    names = [f"queue-{number}" for number in range(queues)]
    engine = engine_on((clusters.node(number) for number in range(nodes)), names)
    for number, size in enumerate(sizes):
        name = f"gang-{number:05}"
        engine.cache.upsert(group(name, size, queue=names[number % queues]))
        for pod in gang_pods(name, size):
            show(engine, pod)
    return engine


def place_gangs(nodes: int, sizes: Sequence[int], rounds: int, queues: int = 1) -> Latencies:
    """Sessions that place every gang, from opening to closing."""
    timer = Timer()
    for _ in range(rounds):
        engine = waiting_gangs(nodes, sizes, queues)
        with timer.round():
            outcome = engine.run_session()
        _check(outcome, "bound", len(outcome.binds), sum(sizes))
        engine.close()
    return timer.latencies


def _check(outcome: SessionResult, what: str, found: int, wanted: int) -> None:
    if outcome.faults:
        raise UnexpectedOutcome(f"the session had faults: {outcome.faults[0]}")
    if found != wanted:
        raise UnexpectedOutcome(f"{found} of {wanted} pods were {what}")


def gangs_in_places(nodes: int, pods: int) -> BatchEngine:
    """A cluster with room and hypernodes; each pending gang needs a hypernode of its own."""
    conf = DEFAULT_CONF.rstrip() + "\n  - name: network-topology-aware\n"
    engine = engine_on((clusters.node(number) for number in range(nodes)), ["queue-0"], conf)
    for place in hyper_nodes(nodes):
        engine.cache.upsert(place)
    for number in range(pods // GANG):
        name = f"gang-{number:05}"
        engine.cache.upsert(group(name, GANG, queue="queue-0", tier=1))
        for pod in gang_pods(name, GANG):
            show(engine, pod)
    return engine


def _hyper_nodes(nodes: int, pods: int, rounds: int) -> Measured:
    timer = Timer()
    for _ in range(rounds):
        engine = gangs_in_places(nodes, pods)
        with timer.round():
            outcome = engine.run_session()
        _check(outcome, "bound", len(outcome.binds), pods)
        engine.close()
    return Measured(timer.latencies)


def _gangs(nodes: int, pods: int, rounds: int) -> Measured:
    return Measured(place_gangs(nodes, [GANG] * (pods // GANG), rounds))


def _one_gang(nodes: int, pods: int, rounds: int) -> Measured:
    return Measured(place_gangs(nodes, [pods], rounds))


# session opening


class Busy:
    """A cluster on which gangs run, with changes between sessions."""

    def __init__(self, nodes: int, pods: int) -> None:
        self._nodes, self._chance = nodes, random.Random(0)
        queues = [f"queue-{number}" for number in range(QUEUES)]
        self.engine = engine_on((clusters.node(number) for number in range(nodes)), queues)
        self.pods: list[Pod] = []
        for number in range(pods // GANG):
            name = f"gang-{number:05}"
            self.engine.cache.upsert(group(name, GANG, queue=queues[number % QUEUES], phase="Running"))
            self.pods += [running_pod(name, index, (number * GANG + index) % nodes) for index in range(GANG)]
        for pod in self.pods:
            show(self.engine, pod)

    def change(self, share: float) -> None:
        """Update half of these pods; delete the other half, and add a running pod on another node for each."""
        for number in self._chance.sample(range(len(self.pods)), int(len(self.pods) * share)):
            pod = self.pods[number]
            self.pods[number] = self._shown_anew(pod) if self._chance.random() < 0.5 else self._replaced(pod)

    def _shown_anew(self, pod: Pod) -> Pod:
        version = str(int(pod.metadata.resource_version or "0") + 1)
        anew = replace(pod, metadata=replace(pod.metadata, resource_version=version))
        self.engine.cache.update_pod(anew)
        self.engine.handle_update(anew)
        return anew

    def _replaced(self, pod: Pod) -> Pod:
        self.engine.cache.remove_pod(pod)
        self.engine.handle_delete(pod)
        node = clusters.node_name(self._chance.randrange(self._nodes))
        another = replace(
            pod, metadata=replace(pod.metadata, uid=pod.uid + "+"), spec=replace(pod.spec, node_name=node)
        )
        show(self.engine, another)
        return another


def _opening(nodes: int, pods: int, rounds: int) -> Measured:
    busy = Busy(nodes, pods)
    cold, warm = Timer(), Timer()
    _open(busy.engine, cold)
    for _ in range(rounds):
        busy.change(CHANGED)
        _open(busy.engine, warm)
    return Measured(warm.latencies, cold.latencies)


def _open(engine: BatchEngine, timer: Timer) -> None:
    session = engine.session()
    with timer.round():
        opened = session.__enter__()
    faults = opened.faults
    session.__exit__(None, None, None)
    if faults:
        raise UnexpectedOutcome(f"the session had faults: {faults[0]}")


# reclaim and preempt


def full_cluster(nodes: int, pods: int, *, holder: str, claimant: str) -> BatchEngine:
    """Small nodes that are full of gangs that may shrink, and as many pending pods as tasks are to be evicted."""
    engine = engine_on((clusters.small_node(number) for number in range(nodes)), dict.fromkeys((holder, claimant)))
    engine.cache.upsert(PriorityClass(metadata=ObjectMeta(name="high", uid="uid-high"), value=_HIGH))
    for number in range(nodes * _HELD_A_NODE // GANG):
        name = f"held-{number:05}"
        engine.cache.upsert(group(name, GANG, queue=holder, phase="Running"))
        for index in range(GANG):
            show(engine, running_pod(name, index, (number * GANG + index) % nodes, cpu_m=_HELD_M))
    for number in range(pods // GANG):
        name = f"claim-{number:05}"
        claim = group(name, GANG, queue=claimant, phase="Inqueue", priority_class="high", cpu_m=_HELD_M)
        engine.cache.upsert(claim)
        for pod in gang_pods(name, GANG, cpu_m=_HELD_M, priority=_HIGH):
            show(engine, pod)
    return engine


def make_room(action: str, nodes: int, pods: int, rounds: int, *, holder: str, claimant: str) -> Measured:
    """The action alone, in an open session without cached results."""
    timer = Timer()
    for _ in range(rounds):
        engine = full_cluster(nodes, pods, holder=holder, claimant=claimant)
        outcome, chosen = SessionResult(), known_actions().get(action)
        assert chosen is not None
        with engine.session(outcome) as session:
            with timer.round():
                for _ in chosen.execute(session) or ():
                    pass
            outcome.faults = list(session.faults)
        _check(outcome, "evicted", len(outcome.evicts), pods)
        engine.close()
    return Measured(timer.latencies)


def _reclaim(nodes: int, pods: int, rounds: int) -> Measured:
    return make_room("reclaim", nodes, pods, rounds, holder="queue-0", claimant="queue-1")


def _preempt(nodes: int, pods: int, rounds: int) -> Measured:
    return make_room("preempt", nodes, pods, rounds, holder="queue-0", claimant="queue-0")


WORKLOADS: dict[str, BatchWorkload] = {
    "gangs": BatchWorkload(
        about="gangs of 20, one session",
        measure=_gangs,
        nodes=1000,
        pods=10_000,
        rounds=3,
        budget_us=10_000 / 3000 * 1e6,
        volcano_us=10_000 / 274 * 1e6,
    ),
    "one_gang": BatchWorkload(
        about="one gang of all pods, one session",
        measure=_one_gang,
        nodes=5000,
        pods=1000,
        rounds=5,
        budget_us=500_000,
        volcano_us=4_700_000,
    ),
    "hyper_nodes": BatchWorkload(
        about="gangs of 20 that may not span two switches, one session",
        measure=_hyper_nodes,
        nodes=1000,
        pods=400,
        rounds=3,
    ),
    "opening": BatchWorkload(
        about="opening a session with 5 % of the running pods changed since the last",
        measure=_opening,
        nodes=5000,
        pods=50_000,
        rounds=7,
        budget_us=100_000,
        volcano_us=1_150_000,
        counts=False,
    ),
    "reclaim": BatchWorkload(
        about="gangs of a queue evict as many tasks of another queue",
        measure=_reclaim,
        nodes=5000,
        pods=1000,
        rounds=3,
        budget_us=500_000,
    ),
    "preempt": BatchWorkload(
        about="gangs of high priority evict as many tasks of their own queue",
        measure=_preempt,
        nodes=5000,
        pods=1000,
        rounds=3,
        budget_us=500_000,
    ),
}
