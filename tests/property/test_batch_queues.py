"""Invariants of queues with any weights, limits and trees: limits hold, and sums are correct."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bayplan.batch.model.amounts import Amounts, DimensionDefault, excess_amounts, max_amounts
from bayplan.batch.model.statuses import HOLDING, TaskStatus
from bayplan.batch.plugins.drf.hierarchy import ShareTree, is_saturated
from bayplan.batch.plugins.proportion.water_filling import QueueShareRequest, divide_by_weight
from bayplan.batch.queue_accounts.queue_usage import QueueUsage, QueueUsageCache, job_usage
from bayplan.batch.session.session import Session
from bayplan.objects.core import Pod
from bayplan.objects.volcano.types import Guarantee, Queue
from bayplan.testing.builders import make_node
from support.builders.batch import make_engine, make_group, make_member, make_queue
from support.builders.batch_engines import build_engine

GPU = "nvidia.com/gpu"
NAMES = ("cpu", "memory", GPU, "pods")

amounts = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.integers(0, 12),
        "memory": st.integers(0, 12).map(lambda gib: f"{gib}Gi"),
        GPU: st.integers(0, 4),
        "pods": st.integers(0, 20),
    },
)


# dividing the cluster


@st.composite
def claims(draw: st.DrawFn) -> tuple[Amounts, list[QueueShareRequest]]:
    total = Amounts.of(draw(amounts))
    asked = [(Amounts.of(draw(amounts)), Amounts.of(draw(amounts))) for _ in range(draw(st.integers(0, 4)))]
    promised = Amounts()
    for _, guarantee in asked:
        promised.add(guarantee)
    free = excess_amounts(total, promised)
    found = []
    for request, guarantee in asked:
        limit = free.clone().add(guarantee).min_dimension(Amounts.of(draw(amounts)), DimensionDefault.INFINITY)
        found.append(QueueShareRequest(draw(st.integers(1, 5)), request, limit, guarantee))
    return total, found


def plainly_divided(total: Amounts, asked: list[QueueShareRequest]) -> list[Amounts]:
    """Deserved shares computed queue by queue, as the rule is documented."""
    deserved = [Amounts() for _ in asked]
    wanting = set(range(len(asked)))
    remaining = total.clone()
    while whole := sum(asked[n].weight for n in wanting):
        before, more, less = remaining, Amounts(), Amounts()
        for n in sorted(wanting):
            claim, old = asked[n], deserved[n].clone()
            new = deserved[n].add(remaining.clone().multi(claim.weight / whole))
            new.min_dimension(claim.limit, DimensionDefault.INFINITY).min_dimension(
                claim.request, DimensionDefault.ZERO
            )
            deserved[n] = max_amounts(new, claim.guarantee)
            if claim.request.less_equal(deserved[n]) or _identical(deserved[n], old):
                wanting.discard(n)
            gained, lost = deserved[n].diff(old, DimensionDefault.ZERO)
            more.add(gained)
            less.add(lost)
        remaining = excess_amounts(remaining.clone().add(less), more)
        if remaining.is_empty() or _identical(remaining, before):
            break
    return deserved


def _identical(left: Amounts, right: Amounts) -> bool:
    same = (left.milli_cpu, left.memory) == (right.milli_cpu, right.memory)
    return same and (left.scalars or {}) == (right.scalars or {})


@given(claims())
def test_column_division_equals_division_queue_by_queue(given_: tuple[Amounts, list[QueueShareRequest]]) -> None:
    total, asked = given_
    for mine, plain in zip(divide_by_weight(total, asked), plainly_divided(total, asked), strict=True):
        for name in NAMES:
            assert abs(mine.get(name) - plain.get(name)) <= 1e-9 * max(1.0, plain.get(name))


@given(claims())
def test_deserved_shares_respect_requests_capabilities_and_guarantees(
    given_: tuple[Amounts, list[QueueShareRequest]],
) -> None:
    total, asked = given_
    for claim, deserved in zip(asked, divide_by_weight(total, asked), strict=True):
        assert claim.guarantee.less_equal(deserved)
        assert deserved.less_equal(max_amounts(claim.request, claim.guarantee))
        limited = [name for name in NAMES[:2] if claim.guarantee.get(name) <= claim.limit.get(name)]
        assert all(deserved.get(name) <= claim.limit.get(name) for name in limited)


# sums over jobs


@given(st.data())
@settings(max_examples=40)
def test_incremental_sums_equal_recomputed_sums(data: st.DataObject) -> None:
    queues = [make_queue("a"), make_queue("b")]
    pods: dict[str, Pod] = {}
    engine = make_engine(nodes=[make_node("n")], objects=queues)
    kept = QueueUsageCache()
    for _ in range(data.draw(st.integers(1, 5))):
        for _ in range(data.draw(st.integers(0, 3))):
            _change(data, engine, pods)
        with engine.session() as session:
            found = {name: _numbers(sums) for name, sums in kept.refresh(session.jobs).items()}
            anew: dict[str, QueueUsage] = {}
            for job in session.jobs.values():
                anew.setdefault(job.queue, QueueUsage()).add(job_usage(job))
            assert found == {name: _numbers(sums) for name, sums in anew.items()}


def _change(data: st.DataObject, engine: Any, pods: dict[str, Pod]) -> None:
    number = data.draw(st.integers(0, 2))
    match data.draw(st.sampled_from(["group", "pod", "gone"])):
        case "group":
            minimum = data.draw(st.none() | amounts)
            phase = data.draw(st.sampled_from(["Pending", "Inqueue", "Running"]))
            queue = data.draw(st.sampled_from(["a", "b"]))
            engine.cache.upsert(make_group(f"j{number}", queue=queue, phase=phase, min_resources=minimum))
        case "pod":
            name = f"p{data.draw(st.integers(0, 3))}"
            node = data.draw(st.sampled_from(["", "n"]))
            _remove(engine, pods, name)
            gates = data.draw(st.sampled_from([(), ("gate",)])) if not node else ()
            pod = make_member(name, f"j{number}", node=node, requests=data.draw(amounts), gates=gates)
            if node:
                engine.cache.add_pod(pod)
            engine.handle_update(pod)
            pods[name] = pod
        case _:
            _remove(engine, pods, f"p{data.draw(st.integers(0, 3))}")


def _remove(engine: Any, pods: dict[str, Pod], name: str) -> None:
    old = pods.pop(name, None)
    if old is not None:
        if old.spec.node_name:
            engine.cache.remove_pod(old)
        engine.handle_delete(old)


def _numbers(sums: QueueUsage) -> tuple[object, ...]:
    """Amounts without zero scalars, whose names may remain."""
    parts = (sums.allocated, sums.request, sums.inqueue, sums.elastic)
    return (sums.jobs, *((tuple(part.get(name) for name in NAMES)) for part in parts))


# whole sessions

CONF = """\
actions: "enqueue, allocate, backfill, reclaim"
tiers:
- plugins:
  - name: gang
- plugins:
  - name: drf
  - name: predicates
  - name: {plugin}
    enableHierarchy: {tree}
  - name: nodeorder
"""


@st.composite
def trees(draw: st.DrawFn) -> list[Queue]:
    """The root, some parents, and leaves below them."""
    parents = [f"p{number}" for number in range(draw(st.integers(0, 2)))]
    leaves = [f"l{number}" for number in range(draw(st.integers(1, 3)))]
    found = [make_queue("root"), *(make_queue(name, parent="root", **draw(limits())) for name in parents)]
    above = st.sampled_from(["root", "", *parents])
    return [*found, *(make_queue(name, parent=draw(above), **draw(limits())) for name in leaves)]


some = st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(1, 6), max_size=2).map(
    lambda given_: {name: (f"{amount}Gi" if name == "memory" else amount) for name, amount in given_.items()}
)


@st.composite
def limits(draw: st.DrawFn) -> dict[str, Any]:
    """As admission allows them: no guarantee above the capability."""
    capability = draw(some)
    most = Amounts.of(capability)
    promised = {
        name: amount
        for name, amount in draw(some).items()
        if name not in capability or Amounts.of({name: amount}).get(name) <= most.get(name)
    }
    return {"capability": capability, "deserved": draw(some), "guarantee": Guarantee(resource=promised)}


@st.composite
def families(draw: st.DrawFn) -> list[Queue]:
    """Two leaves without limits of their own, which together request more than their parent's capability."""
    parent = make_queue("p0", parent="root", capability={"cpu": draw(st.integers(2, 3))})
    return [make_queue("root"), parent, *(make_queue(name, parent="p0") for name in ("l0", "l1"))]


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, Any]:
    queues = draw(trees() | families())
    parents = {queue.spec.parent for queue in queues}
    leaves = [queue.name for queue in queues if queue.name != "root" and queue.name not in parents]
    objects: list[Any] = list(queues)
    pods = []
    first = draw(st.integers(0, 2))
    for number in range(draw(st.integers(1, 4))):
        size = draw(st.integers(1, 4))
        group = make_group(
            f"j{number}",
            queue=leaves[(first + number) % len(leaves)],
            phase=draw(st.sampled_from(["Pending", "Inqueue", "Running"])),
            min_member=draw(st.integers(1, size)),
            min_resources=draw(st.none() | some),
        )
        objects.append(group)
        for task in range(size):
            node = draw(st.sampled_from(["", "", "n0"]))
            requests = {
                "cpu": draw(st.sampled_from(["500m", "1", "2"])),
                "memory": draw(st.sampled_from(["1Gi", "2Gi"])),
            }
            pods.append(make_member(f"j{number}-{task}", f"j{number}", node=node, requests=requests))
    nodes = [make_node(f"n{number}", cpu=8, memory="8Gi") for number in range(2)]
    return {"nodes": nodes, "pods": pods, "objects": objects}


def held(session: Session, *, promises: bool) -> dict[str, Amounts]:
    """Allocation of each queue including its children, with or without promised room."""
    statuses = {*HOLDING, TaskStatus.PIPELINED} if promises else HOLDING
    found = {name: Amounts() for name in session.queues}
    for job in session.jobs.values():
        for task in job.with_status(*statuses):
            name = job.queue
            while name:
                found[name].add(task.resreq)
                name = "" if name == "root" else session.queues[name].parent or "root"
    return found


def within_capability(queue: Queue, amounts_: Amounts) -> bool:
    named = Amounts.of(queue.spec.capability)
    return all(amounts_.get(name) <= named.get(name) for name in queue.spec.capability)


def gone_above(conf: str, world: dict[str, Any], *, tree: bool) -> list[str]:
    """Queues that were within their capability before a session and exceed it after an action.

    What reclaim promises does not count: Preemptive compares the leaf with its limits, as Volcano does, and not the
    sum of a parent. The session that binds the task checks the whole tree.
    """
    engine = build_engine(conf=conf, **world)
    with engine.session() as session:
        before, found = held(session, promises=True), set()
        for action in engine.configuration.actions:
            for _ in engine._run(action, session):
                pass
            promises = action != "reclaim"
            after = held(session, promises=promises)
            found |= {
                name
                for name, queue in session.queues.items()
                if tree
                or after[name] == _own(session, name, promises)  # without a tree only queues with jobs have limits
                if within_capability(queue.queue, before[name]) and not within_capability(queue.queue, after[name])
            }
        assert not session.faults
        return sorted(found)


def _own(session: Session, name: str, promises: bool) -> Amounts:
    """What the jobs of the queue itself hold."""
    statuses = {*HOLDING, TaskStatus.PIPELINED} if promises else HOLDING
    total = Amounts()
    for job in session.jobs.values():
        for task in job.with_status(*statuses) if job.queue == name else ():
            total.add(task.resreq)
    return total


@given(worlds())
@settings(max_examples=30, deadline=None)
def test_no_queue_of_a_tree_exceeds_its_capability(world: dict[str, Any]) -> None:
    assert gone_above(CONF.format(plugin="capacity", tree="true"), world, tree=True) == []


@given(worlds(), st.sampled_from(["capacity", "proportion"]))
@settings(max_examples=30, deadline=None)
def test_no_queue_exceeds_its_capability(world: dict[str, Any], plugin: str) -> None:
    assert gone_above(CONF.format(plugin=plugin, tree="false"), world, tree=False) == []


@given(worlds())
@settings(max_examples=25, deadline=None)
def test_accounts_of_a_tree_are_the_sums_of_their_tasks_throughout(world: dict[str, Any]) -> None:
    engine = build_engine(conf=CONF.format(plugin="capacity", tree="true"), **world)
    with engine.session() as session:
        plugin = session.plugins["capacity"]

        def check() -> None:
            for name, total in held(session, promises=True).items():
                account = plugin._accounts[name]
                assert [account.allocated.get(each) for each in NAMES] == [total.get(each) for each in NAMES]
                children = [child.allocated for child in account.children]
                assert not children or sum(each.milli_cpu for each in children) == account.allocated.milli_cpu

        check()
        for name in engine.configuration.actions:
            for _ in engine._run(name, session):
                check()
        check()


# shares in a tree of weights

TOTAL = Amounts.of({"cpu": "12", "memory": "12Gi"})


def share_of(held_: Amounts) -> float:
    return max(held_.milli_cpu / TOTAL.milli_cpu, held_.memory / TOTAL.memory)


class PlainTree:
    """Hierarchical shares computed from scratch each time, as the rule is documented."""

    def __init__(self) -> None:
        self.jobs: dict[str, tuple[list[str], Amounts, Amounts]] = {}  # path, request, allocated

    def shares(self) -> dict[str, float]:
        total = Amounts()
        for _, _, allocated in self.jobs.values():
            total.add(allocated)
        demanding = frozenset(name for name in ("cpu", "memory") if total.get(name) < TOTAL.get(name))
        found: dict[str, float] = {}
        self._visit(["root"], demanding, found)
        return found

    def _visit(
        self, path: list[str], demanding: frozenset[str], found: dict[str, float]
    ) -> tuple[Amounts, float, bool]:
        depth = len(path)
        below = dict.fromkeys(
            own[depth] for own, _, _ in self.jobs.values() if own[:depth] == path and len(own) > depth
        )
        children = [self._visit([*path, name], demanding, found) for name in below]
        children += [
            (allocated, share_of(allocated), is_saturated(allocated, request, demanding))
            for own, request, allocated in self.jobs.values()
            if own == path
        ]
        holding = [child for child in children if child[1] != 0]
        poorest = min([1.0, *(share_of(each) for each, _, full in holding if not full)])
        total = Amounts()
        for each, share, full in holding:
            total.add(each.clone().multi(1.0 if full else poorest / share))
        found["/".join(path)] = share_of(total)
        return total, share_of(total), all(full for _, _, full in children)


few = st.fixed_dictionaries({"cpu": st.integers(0, 6), "memory": st.integers(0, 6).map(lambda gib: f"{gib}Gi")})


@given(st.data())
def test_incremental_shares_equal_recomputed_shares(data: st.DataObject) -> None:
    tree, plain = ShareTree(TOTAL, share_of), PlainTree()
    for number in range(data.draw(st.integers(1, 6))):
        path = ["root", *data.draw(st.lists(st.sampled_from(["a", "b"]), max_size=2))]
        request = Amounts.of(data.draw(few))
        tree.add_job(f"j{number}", "/".join(path), "1/1/1", request)
        plain.jobs[f"j{number}"] = (path, request, Amounts())
    for _ in range(data.draw(st.integers(0, 8))):
        name = data.draw(st.sampled_from(sorted(plain.jobs)))
        allocated = Amounts.of(data.draw(few))
        path, request, _ = plain.jobs[name]
        plain.jobs[name] = (path, request, allocated)
        tree.set_job(name, allocated, share_of(allocated))
        expected = plain.shares()
        assert tree.shares().keys() == expected.keys()
        assert all(abs(share - expected[path_]) < 1e-9 for path_, share in tree.shares().items())


@given(st.lists(few, min_size=1, max_size=4))
def test_shares_of_satisfied_children_add_up(held_: list[dict[str, Any]]) -> None:
    """A parent whose jobs are all satisfied holds exactly their sum."""
    tree, total = ShareTree(TOTAL, share_of), Amounts()
    for number, each in enumerate(held_):
        allocated = Amounts.of(each)
        tree.add_job(f"j{number}", "root/a", "1/1", allocated)
        tree.set_job(f"j{number}", allocated, share_of(allocated))
        total.add(allocated)
    assume(all(share_of(Amounts.of(each)) > 0 for each in held_))
    assert abs(tree.shares()["root/a"] - share_of(total)) < 1e-9
