"""Pod engine: decisions, assumed pods, refusals, profiles and plugin handles."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from bayplan.app import build_engine, configured, filled_cache, known_plugins
from bayplan.cache import Cache
from bayplan.clock import ManualClock
from bayplan.config.load import load
from bayplan.errors import ConfigError
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.plugin import PermitWait, PostFilterResult
from bayplan.framework.api.status import SUCCESS, Code, Status, error, unschedulable
from bayplan.framework.runtime.registry import Registry
from bayplan.objects.core import Pod, PodSchedulingGroup
from bayplan.objects.meta import ObjectMeta
from bayplan.objects.storage import StorageClass
from bayplan.plugins import default_plugins
from bayplan.scheduler.engine import PodEngine
from bayplan.scheduler.plugin_handle import NoApiServer, NoWrites
from bayplan.snapshot import NodeColumns, PodInfo, RowVector
from support.builders.framework import make_node, make_pod

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


class Late:
    """A plugin of the points after the choice."""

    name = "Late"
    log: list[str] = []
    on_reserve: Any = None
    on_permit: Any = None

    def reserve(self, cycle: Cycle, node_name: str) -> Any:
        self.log.append(f"reserve {cycle.pod.name} on {node_name}")
        return self.on_reserve

    def unreserve(self, cycle: Cycle, node_name: str) -> None:
        self.log.append(f"unreserve {cycle.pod.name} on {node_name}")

    def permit(self, cycle: Cycle, node_name: str) -> Any:  # noqa: ARG002
        return self.on_permit


def late(**answers: Any) -> type[Late]:
    return type("Late", (Late,), {"log": [], **answers})


def engine(*nodes: Any, plugin: type[Any] | None = None, text: str = "", **fields: Any) -> PodEngine:
    registry = default_plugins() if plugin is None else default_plugins().with_plugins(plugin)
    if plugin is not None:
        text = f"profiles: [{{plugins: {{multiPoint: {{enabled: [{{name: {plugin.name}}}]}}}}}}]\n"
    cache = filled_cache(nodes or (make_node("a"), make_node("b")))
    configuration = load(HEAD + text, args_kinds=registry.args_kinds)
    fields = {"clock": ManualClock(), "chance": random.Random(0), **fields}
    return PodEngine(configuration, registry, cache, **fields)


def counted(one: PodEngine) -> dict[str, int]:
    return {node.name: len(node.pods) for node in one.snapshot().table}


# place and try_pod


def test_try_pod_changes_nothing() -> None:
    one = engine()
    decision = one.try_pod(make_pod())
    assert decision.node in ("a", "b")
    assert counted(one) == {"a": 0, "b": 0}
    assert len(one.records) == 1


def test_a_placed_pod_counts_for_the_next() -> None:
    one = engine(make_node("a", allocatable={"cpu": "1", "pods": "9"}), make_node("b"))
    placed = [one.place(make_pod(name, requests={"cpu": "1"})).node for name in ("p", "q", "r")]
    assert sorted(str(node) for node in placed).count("a") <= 1
    assert sum(counted(one).values()) == 3
    assert one.cache.is_assumed(make_pod("p").uid)


def test_ties_are_broken_alike_with_the_same_seed() -> None:
    def choices(seed: int) -> list[str | None]:
        nodes = [make_node(f"n{number}") for number in range(8)]
        return [engine(*nodes, chance=random.Random(seed + turn)).try_pod(make_pod()).node for turn in range(6)]

    assert choices(1) == choices(1)
    assert len(set(choices(1))) > 1, "chance decides, not the order of nodes"


def last_by_name(columns: NodeColumns, rows: RowVector | Sequence[int]) -> int:
    names = [columns.names[row] for row in rows]
    return names.index(max(names))


def test_a_tie_break_can_be_given() -> None:
    one = engine(*(make_node(name) for name in "abc"), tie_break=last_by_name)
    assert one.place(make_pod()).node == "c"


def of_one_node(reason: str) -> Status:
    """A refusal after the choice counts one node: the one that was chosen."""
    return unschedulable(f"0/1 nodes are available: 1 {reason}.").by("Late")


@pytest.mark.parametrize(
    ("answers", "status"),
    [
        pytest.param({"on_reserve": unschedulable("taken")}, of_one_node("taken"), id="reserve-rejects"),
        pytest.param(
            {"on_reserve": error("broke")},
            error('running Reserve plugin "Late": broke').by("Late"),
            id="reserve-breaks",
        ),
        pytest.param({"on_permit": unschedulable("not yet")}, of_one_node("not yet"), id="permit-rejects"),
        pytest.param(
            {"on_permit": error("broke")}, error('running Permit plugin "Late": broke').by("Late"), id="permit-breaks"
        ),
    ],
)
def test_a_refusal_after_the_choice_undoes_everything(answers: dict[str, Any], status: Status) -> None:
    plugin = late(**answers)
    one = engine(make_node("a"), plugin=plugin)
    placed = one.place(make_pod("p"))
    assert placed.status == status
    assert placed.node is None
    assert placed.decision.node == "a"
    assert counted(one) == {"a": 0}
    assert one.cache.pod_count == 0
    assert plugin.log == ["reserve p on a", "unreserve p on a"]
    (record,) = one.records
    assert (record.node, record.message) == (None, status.message), "the record has the final status"


def test_a_pod_that_waits_at_permit_is_assumed() -> None:
    one = engine(make_node("a"), plugin=late(on_permit=PermitWait(30.0)))
    placed = one.place(make_pod("p"))
    assert placed.node == "a"
    assert placed.permit_timeouts_s == {"Late": 30.0}
    waiting = one.waiting_pods.get(make_pod("p").uid)
    assert waiting is not None
    assert waiting.pod.spec.node_name == "a"
    assert counted(one) == {"a": 1}


def test_placing_ends_a_nomination() -> None:
    one = engine(make_node("a"))
    pod = make_pod("p")
    one.nominator.nominate(PodInfo(pod), "a")
    one.place(pod)
    assert one.nominator.node_of(pod.uid) is None


class Evicts:
    name = "Evicts"

    def post_filter(self, cycle: Cycle, diagnosis: Any) -> PostFilterResult:  # noqa: ARG002
        return PostFilterResult(SUCCESS, "a", (make_pod("victim"),))


def test_a_nomination_is_recorded_and_reserves_capacity() -> None:
    text = (
        "profiles: [{plugins: {multiPoint: {enabled: [{name: Evicts}], disabled: [{name: DefaultPreemption}]},"
        " postFilter: {disabled: [{name: DynamicResources}]}}}]\n"
    )
    registry = default_plugins().with_plugins(Evicts)
    cache = filled_cache(
        [make_node("a", allocatable={"cpu": "1", "pods": "9"}), make_pod("v", node="a", requests={"cpu": "1"})]
    )
    configuration = load(HEAD + text, args_kinds=registry.args_kinds)
    one = PodEngine(configuration, registry, cache, clock=ManualClock(), chance=random.Random(0))
    big = make_pod("big", requests={"cpu": "1"}, priority=10)
    placed = one.place(big)
    assert placed.node is None
    assert placed.decision.victims == ("default/victim",)
    assert one.nominator.node_of(big.uid) == "a"
    cache.remove_pod(make_pod("v", node="a"))
    assert one.place(make_pod("small", requests={"cpu": "1"})).node is None, "the capacity is reserved"
    assert one.place(big).node == "a"


# profiles


def test_pods_of_unknown_schedulers_are_not_served() -> None:
    one = engine()
    stranger = make_pod(scheduler_name="volcano")
    assert not one.serves(stranger)
    assert one.serves(make_pod())
    words = 'no profile serves scheduler name "volcano"; the configuration has: default-scheduler'
    with pytest.raises(ConfigError, match=words):
        one.place(stranger)


def test_each_profile_serves_its_own_pods() -> None:
    one = engine(text="profiles: [{schedulerName: one}, {schedulerName: two}]\n")
    assert list(one.scheduler_names) == ["one", "two"]
    assert one.place(make_pod(scheduler_name="two")).node is not None
    assert [record.profile for record in one.records] == ["two"]


@pytest.mark.parametrize(
    ("text", "percentage"),
    [
        pytest.param("", None, id="all-nodes"),
        pytest.param("percentageOfNodesToScore: 30\n", 30, id="global"),
        pytest.param(
            "percentageOfNodesToScore: 30\nprofiles: [{percentageOfNodesToScore: 40}]\n", 40, id="the-profile-wins"
        ),
        pytest.param("profiles: [{percentageOfNodesToScore: 0}]\n", 0, id="a-profile-that-asks-for-adaptive"),
        pytest.param(
            "extenders: [{urlPrefix: 'http://x', prioritizeVerb: p, weight: 1}]\n", 0, id="an-extender-is-not-cheap"
        ),
        pytest.param(
            "percentageOfNodesToScore: 100\nextenders: [{urlPrefix: 'http://x', prioritizeVerb: p, weight: 1}]\n",
            100,
            id="configured-percentage",
        ),
    ],
)
def test_sample_size_of_a_profile(text: str, percentage: int | None) -> None:
    assert engine(text=text).sample_size("default-scheduler").percentage == percentage


def number(self: Any, cycle: Cycle, node: Any) -> int: ...  # type: ignore[empty-body]
def answer(self: Any, cycle: Cycle, node: Any) -> None: ...
def signature(self: Any, pod: Any) -> int: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("methods", "because"),
    [
        pytest.param({"score": number}, "these plugins answer for one node at a time: Simple (score)", id="score"),
        pytest.param({"filter": answer}, "these plugins answer for one node at a time: Simple (filter)", id="filter"),
        pytest.param(
            {"filter": answer, "score": number},
            "these plugins answer for one node at a time: Simple (filter and score)",
            id="both",
        ),
        pytest.param({"filter": answer, "signature": signature}, "", id="pods-share-what-a-signing-filter-says"),
        pytest.param({"filter": answer, "filter_nodes": answer}, "", id="filters-tables"),
        pytest.param({"score": number, "score_nodes": number}, "", id="scores-tables"),
    ],
)
def test_a_per_node_plugin_makes_the_profile_sample(methods: dict[str, Any], because: str) -> None:
    share = engine(plugin=type("Simple", (), {"name": "Simple", **methods})).sample_size("default-scheduler")
    assert share.reason == because
    assert share.percentage == (0 if because else None)


# plugin handles


def test_a_process_without_an_api_server_writes_nothing() -> None:
    writes = NoWrites()
    with pytest.raises(NoApiServer, match="dict needs an API server; this process only decides"):
        asyncio.run(writes.perform({}))
    writes.submit({})  # reverts a write that was never made


class Reaches:
    """Stores its handle for the test."""

    name = "Reaches"
    handle: Any = None

    @classmethod
    def factory(cls, args: Any, handle: Any) -> Reaches:
        assert args is None
        cls.handle = handle
        return cls()

    def filter(self, cycle: Cycle, node: Any) -> None: ...


def test_a_handle_posts_with_a_post_function() -> None:
    async def post(url: str, body: bytes, timeout_s: float) -> bytes:
        return f"{url} {body.decode()} {timeout_s:g}".encode()

    engine(plugin=Reaches, post=post)
    assert asyncio.run(Reaches.handle.post("http://x", b"y", 2.0)) == b"http://x y 2"


def test_a_handle_has_the_cluster_the_queue_and_groups() -> None:
    one = engine(make_node("a"), plugin=Reaches)
    handle = Reaches.handle
    assert handle.catalog is one.cache.catalog
    assert (handle.volumes, handle.devices) == (one.cache.volumes, one.cache.devices)
    assert handle.filter_runner is one.framework("default-scheduler").filter_points
    waiting = make_pod("w", scheduling_group=PodSchedulingGroup(pod_group_name="g"))
    one.pending[waiting.uid] = waiting
    one.place(make_pod("p", scheduling_group=PodSchedulingGroup(pod_group_name="g")))
    one.place(make_pod("q", scheduling_group=PodSchedulingGroup(pod_group_name="other")))
    assert [(pod.name, pod.spec.node_name) for pod in handle.group_pods("default", "g")] == [("p", "a"), ("w", "")]
    assert handle.group_pods("elsewhere", "g") == []
    handle.activate({"default/w": waiting})
    assert handle.pods_to_activate == {"default/w": waiting}
    with pytest.raises(NoApiServer, match="POST http://x needs a network client"):
        asyncio.run(handle.post("http://x", b"", 1.0))


def test_closing_closes_every_profile() -> None:
    closed: list[str] = []

    class Holds(Reaches):
        name = "Holds"

        def close(self) -> None:
            closed.append(self.name)

    engine(plugin=Holds).close()
    assert closed == ["Holds"]


# the composition root


def test_a_cache_from_objects() -> None:
    done = make_pod("done", node="a")
    done = Pod(metadata=done.metadata, spec=done.spec, status=type(done.status)(phase="Succeeded"))
    cache: Cache = filled_cache(
        [
            make_node("a"),
            make_pod("p", node="a"),
            make_pod("waiting"),
            done,
            StorageClass(metadata=ObjectMeta(name="s")),
        ]
    )
    assert [pod.name for pod in cache.pods()] == ["p"]
    assert "s" in cache.catalog.storage_classes


def test_the_default_configuration_serves_the_default_scheduler() -> None:
    registry: Registry = known_plugins()
    one = build_engine(configured(None, registry), registry, Cache(), clock=ManualClock(), seed=0)
    assert list(one.scheduler_names) == ["default-scheduler"]
    decision = one.try_pod(make_pod())
    assert decision.status.code is Code.UNRESOLVABLE
    assert decision.message == "no nodes available to schedule pods"
