"""Every error is reported in a message, and the session continues for all other objects.

A failing plugin is in a tier of its own before working plugins; what it does not decide, they decide.
"""

# ruff: noqa: ARG001, ARG002, ARG005  (test plugins ignore most arguments)

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from bayplan.batch import (
    Arguments,
    BatchHandle,
    EvictionContext,
    EvictionKind,
    SearchPurpose,
    Session,
    Simulation,
    Task,
)
from bayplan.batch.config.scheduler_conf import ActionConfiguration, SchedulerConfLoader
from bayplan.batch.diagnostics.bad_annotations import MAX_WARNINGS_PER_SESSION
from bayplan.batch.diagnostics.plugin_faults import MAX_SIMILAR_FAULTS
from bayplan.batch.engine import BatchEngine
from bayplan.batch.model.tasks import GROUP_NAME
from bayplan.batch.registry import ActionSet
from bayplan.batch.session.extension_points import POINTS
from bayplan.errors import PluginError
from bayplan.framework import Rejection
from bayplan.framework.api.status import unschedulable
from bayplan.objects.core import PodStatus
from bayplan.objects.meta import KubeObject, LabelSelector
from bayplan.objects.volcano.types import NetworkTopology, SubGroupPolicy
from bayplan.testing import (
    BatchHarness,
    BatchResult,
    Gang,
    make_gang,
    make_hyper_node,
    make_node,
    make_option,
    make_pod,
    make_queue,
)
from support.builders.framework import replace_fields

GOOD = make_gang("good", 2, cpu=1)
NODES = [make_node(name, cpu=4) for name in "abcd"]
WORKING = ("priority", "gang", "conformance"), ("predicates", "proportion", "nodeorder", "network-topology-aware")


def tiers_with(*first: Any) -> list[list[Any]]:
    """These plugins in a tier, followed by tiers of working plugins."""
    return [
        [each if not isinstance(each, type) else make_option(each).with_default_flags() for each in first],
        *([make_option(name).with_default_flags() for name in tier] for tier in WORKING),
    ]


def run_session(*first: Any, gangs: tuple[Gang, ...] = (), **more: Any) -> BatchResult:
    """A session with a gang that fits on any node."""
    options = {"nodes": NODES, "tiers": tiers_with(*first), **more}
    return BatchHarness([each for each in first if isinstance(each, type)], gangs=[GOOD, *gangs], **options).run()


def is_placed(done: BatchResult) -> bool:
    return {"good-0", "good-1"} <= done.bound.keys()


# Configurations


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("actions: [allocate]", "cannot unmarshal !!seq into string", id="type"),
        pytest.param("actions: allocate, alocate", "failed to find Action  alocate", id="unknown-action"),
        pytest.param("", "failed to find Action ", id="empty"),
        pytest.param("actions: allocate\ntiers: {}", "line 2: cannot unmarshal !!map into []conf.Tier", id="tiers"),
        pytest.param("actions: 'allocate", "yaml: ", id="syntax"),
        pytest.param(
            "actions: allocate\ntiers: [{plugins: [{name: gang, enableJobOrder: 'on'}]}]", "`on` into bool", id="flag"
        ),
        pytest.param(
            "actions: allocate\ntiers: [{plugins: [{name: drf, enableHierarchy: true}, {name: proportion}]}]",
            "proportion and drf with hierarchy enabled conflicts",
            id="conflict",
        ),
    ],
)
def test_an_invalid_file_leaves_the_valid_configuration_in_force(text: str, words: str) -> None:
    loader = SchedulerConfLoader()
    assert loader.apply_text("actions: allocate\ntiers: [{plugins: [{name: gang}]}]")
    before = loader.current
    assert not loader.apply_text(text)
    assert loader.error is not None
    assert words in loader.error
    assert loader.error.endswith("; the previous configuration stays in force")
    assert loader.current is before


def test_an_unknown_plugin_is_reported() -> None:
    text = "actions: enqueue, allocate\ntiers: [{plugins: [{name: gangg}, {name: predicates}]}]"
    done = run_session(config=text, tiers=None)
    assert is_placed(done)
    assert done.faults == ["Failed to get plugin gangg; `bayplan plugin list --batch` lists the known ones"]


# Arguments


@pytest.mark.parametrize(
    ("plugin", "key", "value", "words"),
    [
        (
            "binpack",
            "binpack.weight",
            "heavy",
            "binpack: Could not parse argument: heavy for key binpack.weight to int",
        ),
        ("nodeorder", "leastrequested.weight", 1.5, "nodeorder: Could not parse argument: 1.5 for key leastrequested"),
        ("overcommit", "overcommit-factor", [1], "overcommit: Could not parse argument: [1] for key overcommit-factor"),
        ("overcommit", "overcommit-factor", 0.5, "overcommit: overcommit-factor 0.5 is below 1"),
        ("sla", "sla-waiting-time", "soon", 'sla: sla-waiting-time: time: invalid duration "soon"'),
        ("tdm", "tdm.evict.period", "often", 'tdm: tdm.evict.period: time: invalid duration "often"; 1m is used'),
        ("usage", "thresholds", "high", "usage: thresholds 'high' is not a map such as"),
        ("resource-strategy-fit", "sra", 7, "resource-strategy-fit: Could not parse argument for key sra"),
        (
            "predicates",
            "predicate.NodePortsEnable",
            3,
            "predicates: Could not parse argument: 3 for key predicate.Node",
        ),
        ("rescheduling", "interval", 5, "argument interval must be a text such as 5m, not 5"),
        ("extender", "extender.httpTimeout", 5, "extender: Could not parse argument: 5 for key extender.httpTimeout"),
    ],
)
def test_an_unusable_argument_is_reported(plugin: str, key: str, value: Any, words: str) -> None:
    done = run_session(make_option(plugin, arguments={key: value}).with_default_flags())
    assert [fault for fault in done.faults if words in fault]
    assert is_placed(done)


@pytest.mark.parametrize(
    ("action", "key"),
    [
        pytest.param("allocate", "predicateErrorCacheEnable", id="allocate"),
        pytest.param("preempt", "minCandidateNodesPercentage", id="preempt"),
        pytest.param("gangpreempt", "maxDomains", id="gangpreempt"),
    ],
)
def test_an_unusable_argument_of_an_action_is_reported(action: str, key: str) -> None:
    cluster = BatchHarness(nodes=NODES, gangs=[GOOD], actions=["enqueue", "allocate", "preempt", "gangpreempt"])
    given = ActionConfiguration(action, {key: "perhaps"})
    cluster.engine.configuration = dataclasses.replace(cluster.engine.configuration, configurations=(given,))
    done = cluster.run()
    assert [
        fault for fault in done.faults if fault.startswith(f"{action}: Could not parse argument: perhaps for key {key}")
    ]
    assert is_placed(done)


# Annotations

NOTE = "volcano.sh/"


@pytest.mark.parametrize(
    ("key", "value", "plugin", "words"),
    [
        ("task-priority", "high", "", 'is "high", not a whole number; the pod\'s priority counts'),
        ("task-priority", "99999999999", "", "not a whole number"),
        ("preemptable", "perhaps", "", 'is "perhaps", not true or false; it counts as false'),
        ("revocable-zone", "rz1", "", 'is "rz1", not *'),
        ("cooldown-time", "a while", "cdp", "not a duration such as 10m; the pod is not protected"),
        ("numa-topology-policy", "close", "numa-aware", "not a policy of the kubelet's topology manager"),
        ("resource-strategy-weight", "{", "resource-strategy-fit", 'not weights such as {"cpu": 1}'),
        ("resource-strategy-scoring-type", "Most", "resource-strategy-fit", "not MostAllocated or LeastAllocated"),
        ("gpu-index", "first", "deviceshare", "not a list of numbers"),
    ],
)
def test_an_invalid_annotation_of_a_pod_is_reported(key: str, value: str, plugin: str, words: str) -> None:
    odd = make_gang("odd", 1, cpu=1, annotations={NOTE + key: value})
    done = run_session(*([make_option(plugin).with_default_flags()] if plugin else []), gangs=(odd,))
    (fault,) = (fault for fault in done.faults if words in fault)
    assert fault.startswith(f"pod default/odd-0: {NOTE}{key} is ")
    assert is_placed(done)
    assert "odd-0" in done.bound


@pytest.mark.parametrize(
    ("key", "value", "plugin", "words"),
    [
        ("volcano.sh/sla-waiting-time", "soon", "sla", "not a duration such as 1h; it counts as missing"),
        ("sla-waiting-time", "-1h", "sla", "not a duration such as 1h"),
        ("volcano.sh/jdb-min-available", "most", "tdm", "not a number of pods or a percentage"),
        ("volcano.sh/jdb-max-unavailable", "x%", "tdm", "not a number of pods or a percentage"),
        ("volcano.sh/preemptable", "maybe", "", "not true or false"),
        (
            "volcano.sh/task-topology-affinity",
            "ps,worker",
            "task-topology",
            "names the role ps, of which the job has no",
        ),
    ],
)
def test_an_invalid_annotation_of_a_group_is_reported(key: str, value: str, plugin: str, words: str) -> None:
    odd = make_gang("odd", 1, cpu=1)
    noted = Gang(replace(odd.group, metadata=replace(odd.group.metadata, annotations={key: value})), odd.pods)
    done = run_session(*([make_option(plugin).with_default_flags()] if plugin else []), gangs=(noted,))
    (fault,) = (fault for fault in done.faults if words in fault)
    assert "default/odd" in fault
    assert key in fault
    assert is_placed(done)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("oversubscription-cpu", "not a number of thousandths of a CPU; no oversubscription is added"),
        ("oversubscription-memory", "not a number of bytes; no oversubscription is added"),
        ("gpu-unhealthy-ids", "not a list of numbers"),
        ("node-vgpu-register", "not a list of cards; no card of the node is known"),
    ],
)
def test_an_invalid_annotation_of_a_node_is_reported(key: str, words: str) -> None:
    odd = make_node("odd")
    odd = replace(odd, metadata=replace(odd.metadata, annotations={NOTE + key: "a few"}))
    done = run_session(make_option("deviceshare").with_default_flags(), nodes=[odd, *NODES])
    assert [fault for fault in done.faults if fault.startswith(f'node odd: {NOTE}{key} is "a few", {words}')]
    assert is_placed(done)


def test_annotations_are_checked_only_for_configured_plugins() -> None:
    odd = make_gang("odd", 1, cpu=1, annotations={"volcano.sh/cooldown-time": "a while"})
    assert run_session(gangs=(odd,)).faults == []


def test_invalid_annotations_are_reported_until_they_are_corrected() -> None:
    odd = make_gang("odd", 1, cpu=9, annotations={"volcano.sh/task-priority": "high"})
    node = replace(NODES[0], metadata=replace(NODES[0].metadata, annotations={"volcano.sh/oversubscription-cpu": "x"}))
    cluster = BatchHarness(nodes=[node], gangs=[odd])
    assert len(cluster.run().faults) == len(cluster.run().faults) == 2
    cluster.add(NODES[0])
    assert len(cluster.run().faults) == 1
    cluster.add(make_gang("odd", 1, cpu=9).pods[0])
    assert cluster.run().faults == []
    cluster.add(odd.pods[0])
    cluster.remove(odd.pods[0])
    assert cluster.run().faults == []


def test_many_invalid_annotations_are_summarized() -> None:
    odd = make_gang("odd", MAX_WARNINGS_PER_SESSION + 5, cpu="1m", annotations={"volcano.sh/preemptable": "?"})
    done = run_session(gangs=(odd,))
    assert len(done.faults) == MAX_WARNINGS_PER_SESSION + 1
    assert done.faults[-1] == "5 more annotation(s) cannot be read"


# Queues, groups and hypernodes


@pytest.mark.parametrize(
    ("queues", "words"),
    [
        pytest.param([], 'pod group default/odd is in queue "x", which does not exist; create it', id="missing"),
        pytest.param(
            [make_queue("x", parent="y"), make_queue("y", parent="x")],
            "queues form a cycle of parents: x > y > x; give one of them another parent",
            id="cycle",
        ),
        pytest.param([make_queue("x", parent="x")], "queues form a cycle of parents: x > x", id="its-own-parent"),
    ],
)
def test_a_cycle_of_queues_is_reported(queues: list[Any], words: str) -> None:
    done = run_session(gangs=(make_gang("odd", cpu=1, queue="x"),), queues=queues)
    assert [fault for fault in done.faults if fault.startswith(words)]
    assert is_placed(done)


def test_a_queue_cycle_does_not_affect_other_queues() -> None:
    queues = [
        make_queue("root"),
        make_queue("x", parent="y"),
        make_queue("y", parent="x"),
        make_queue("default", parent="root"),
    ]
    capacity = make_option("capacity", enableHierarchy=True).with_default_flags()
    done = run_session(capacity, gangs=(make_gang("odd", cpu=1, queue="x"),), queues=queues)
    assert "capacity: queue x is its own ancestor, or below one that is; it gets nothing" in done.faults
    assert is_placed(done)
    assert "odd-0" not in done.bound


def test_a_missing_group_is_reported() -> None:
    lost = make_gang("lost", 2, cpu=1)
    done = run_session(pods=lost.pods)
    assert done.faults == [
        "2 pod(s) name the pod group default/lost, which does not exist; they wait until it is created"
    ]
    assert is_placed(done)


def test_finished_pods_without_a_group_are_not_reported() -> None:
    lost = make_gang("lost", 2, cpu=1)
    done = run_session(pods=[replace_fields(pod, status=PodStatus(phase="Succeeded")) for pod in lost.pods])
    assert done.faults == []
    assert is_placed(done)


@pytest.mark.parametrize(
    ("places", "words"),
    [
        pytest.param([make_hyper_node("x", tier=2, children=["x"])], "hypernodes form a cycle: x > x", id="cycle"),
        pytest.param(
            [
                make_hyper_node("leaf", nodes=["a"]),
                make_hyper_node("x", tier=2, children=["leaf"]),
                make_hyper_node("y", tier=2, children=["leaf"]),
            ],
            "hypernode leaf is a member of x and of y; remove it from one of them",
            id="two-parents",
        ),
    ],
)
def test_contradicting_hypernodes_are_reported(places: list[KubeObject], words: str) -> None:
    close = make_gang("close", 2, cpu=1, topology=1)
    done = run_session(gangs=(close,), objects=places)
    assert [fault for fault in done.faults if words in fault]
    assert is_placed(done)
    assert "close-0" not in done.bound


@pytest.mark.parametrize(
    ("place", "words"),
    [
        pytest.param(
            make_hyper_node("x", pattern="rack-("), 'hypernode x: the pattern "rack-(" is invalid: ', id="pattern"
        ),
        pytest.param(
            make_hyper_node("x", labels={"not a key!": "a"}),
            "hypernode x: its label selector is invalid: ",
            id="labels",
        ),
    ],
)
def test_an_invalid_hypernode_is_reported_once(place: KubeObject, words: str) -> None:
    done = run_session(gangs=(make_gang("close", 2, cpu=1, topology=1),), objects=[place])
    (fault_message,) = [fault for fault in done.faults if fault.startswith(words)]
    assert fault_message.endswith("; the member matches no node")
    assert is_placed(done)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        pytest.param(
            make_hyper_node("x", nodes=["a", "gone"]), "1 member(s) do not exist: gone; they match no node", id="node"
        ),
        pytest.param(
            make_hyper_node("x", tier=2, children=["y"]), "1 member(s) do not exist: y; they match no node", id="place"
        ),
        pytest.param(
            make_hyper_node("x", nodes=[f"n{number}" for number in range(9)]),
            "9 member(s) do not exist: n0, n1, n2, n3, n4 and more; they match no node",
            id="many",
        ),
    ],
)
def test_missing_members_of_a_hypernode_are_reported(place: KubeObject, words: str) -> None:
    done = run_session(objects=[place])
    assert done.faults == [f"hypernode x: {words}"]
    assert is_placed(done)


def test_a_member_that_is_created_later_is_no_longer_reported() -> None:
    cluster = BatchHarness(nodes=NODES, gangs=[GOOD], objects=[make_hyper_node("x", nodes=["late"])])
    assert cluster.run().faults
    cluster.add(make_node("late"))
    assert not cluster.run().faults


@pytest.mark.parametrize(
    ("topology", "words"),
    [
        pytest.param(
            NetworkTopology("hard", None, "rack"), 'highestTierName is "rack", which no hypernode has', id="name"
        ),
        pytest.param(NetworkTopology("strict", 1), 'mode is "strict", neither hard nor soft', id="mode"),
        pytest.param(NetworkTopology("soft", None, "rack"), "", id="a-soft-one-has-no-limit"),
        pytest.param(NetworkTopology("hard", None, "row"), "", id="a-name-that-there-is"),
    ],
)
def test_an_invalid_topology_is_reported(topology: NetworkTopology, words: str) -> None:
    row = make_hyper_node("x", nodes=["a"])
    row = replace(row, spec=replace(row.spec, tier_name="row"))
    close = make_gang("close", 2, cpu=1)
    cluster = BatchHarness(nodes=NODES, gangs=[GOOD, close], objects=[row])
    group = close.group
    cluster.engine.cache.upsert(replace(group, spec=replace(group.spec, network_topology=topology)))
    done = cluster.run()
    expected = [f"pod group default/close: networkTopology.{words}; it has no effect"] if words else []
    assert done.faults == expected
    assert is_placed(done)


def test_a_pod_with_invalid_amounts_is_reported_until_it_is_corrected() -> None:
    odd = make_pod("odd", requests={"cpu": "1"}, annotations={GROUP_NAME: "good"}, scheduler_name="volcano")
    container = odd.spec.containers[0]
    bad = replace(container, resources=replace(container.resources, requests={"cpu": "much"}))
    cluster = BatchHarness(nodes=NODES, gangs=[GOOD])
    cluster.engine.handle_update(replace(odd, spec=replace(odd.spec, containers=(bad,))))
    done = cluster.run()
    assert [fault for fault in done.faults if fault.startswith("pod default/odd: ") and "much" in fault]
    assert is_placed(done)
    cluster.engine.handle_update(odd)
    assert not cluster.run().faults


# Plugins: opening and closing of a session


class Odd:
    """Does what a test defines, at the point that the test chooses."""

    name = "odd"
    register: Callable[[Session], None] = staticmethod(lambda session: None)

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments

    def on_session_open(self, session: Session) -> None:
        type(self).register(session)


def odd(**members: Any) -> type[Odd]:
    return type("Made", (Odd,), members)


def fail(*_: Any) -> Any:
    raise LookupError("no idea")


async def wait(*_: Any) -> None:
    raise AssertionError("the coroutine is not awaited")


def yield_once(*_: Any) -> Iterator[None]:
    yield


def plugin_registering(add: str, fn: Any) -> type[Odd]:
    def register(session: Session) -> None:
        getattr(session, add)("odd", [fn] if add.endswith("_fns") else fn)

    return odd(register=staticmethod(register))


@pytest.mark.parametrize(
    ("plugin", "words"),
    [
        pytest.param(odd(__init__=fail), "at on_session_open: LookupError: no idea (test_invalid_input.py:", id="init"),
        pytest.param(odd(factory=staticmethod(fail)), "at on_session_open: LookupError: no idea", id="factory"),
        pytest.param(
            odd(factory=staticmethod(lambda *_: None)),
            "at on_session_open: answered None; an object with on_session_open is needed; what",
            id="no-plugin",
        ),
        pytest.param(odd(on_session_open=fail), "at on_session_open: LookupError: no idea", id="open"),
        pytest.param(odd(on_session_open=wait), "at on_session_open: answered <coroutine object ", id="async"),
        pytest.param(
            odd(on_session_open=yield_once), "at on_session_open: answered <generator object ", id="generator"
        ),
        pytest.param(odd(on_session_open=lambda *_: 5), "at on_session_open: answered 5; None is needed", id="answer"),
        pytest.param(odd(on_session_close=wait), "at on_session_close: answered <coroutine object ", id="late-async"),
        pytest.param(odd(on_session_close=lambda *_: 5), "at on_session_close: answered 5; None is needed", id="late"),
        pytest.param(odd(on_session_close=fail), "at on_session_close: LookupError: no idea", id="close"),
        pytest.param(
            odd(on_session_close=7), "at on_session_close: TypeError: 'int' object is not callable", id="no-fn"
        ),
        pytest.param(
            plugin_registering("add_task_order_fn", None),
            "at on_session_open: it registers None at task_order, which is not callable; pass a function (test_",
            id="nothing",
        ),
        pytest.param(
            plugin_registering("add_node_order_fn", 7),
            "at on_session_open: it registers 7 at node_order, which",
            id="a-number",
        ),
        pytest.param(
            plugin_registering("add_predicate_nodes_fn", None),
            "at on_session_open: it registers None at predicate",
            id="rows",
        ),
        pytest.param(
            plugin_registering("add_victim_tasks_fns", "x"),
            "at on_session_open: it registers 'x' at victim_tasks",
            id="victims",
        ),
        pytest.param(
            odd(register=staticmethod(lambda session: session.add_victim_tasks_fns("odd", fail))),
            "at on_session_open: it registers <function fail at ",
            id="no-list",
        ),
        pytest.param(
            odd(register=staticmethod(lambda session: session.add_event_handler("odd", deallocate=3))),
            "at on_session_open: it registers 3 at events, which is not callable; pass a function "
            "(test_invalid_input.py:",
            id="events",
        ),
        pytest.param(
            odd(register=staticmethod(lambda session: session.add_job_order_fn("ood", fail))),
            'at on_session_open: it registers at job_order as "ood", but its name is "odd"; pass self.name (test_',
            id="misspelt-name",
        ),
        pytest.param(
            odd(register=staticmethod(lambda session: session.add_job_ready_fn("gang", fail))),
            'at on_session_open: it registers at job_ready as "gang", but its name is "odd"; pass self.name (test_',
            id="another-plugins-name",
        ),
        pytest.param(
            odd(register=staticmethod(lambda session: session.add_event_handler("ood", allocate=fail))),
            'at on_session_open: it registers at events as "ood", but its name is "odd"; pass self.name (test_',
            id="misspelt-name-of-a-handler",
        ),
    ],
)
def test_a_plugin_that_fails_at_opening_or_closing_is_reported(plugin: type[Odd], words: str) -> None:
    done = run_session(plugin)
    (fault,) = done.faults
    assert fault.startswith(f'plugin "odd" {words}')
    assert is_placed(done)
    # the other plugins were closed
    assert done.conditions["good"] == {"Scheduled": "tasks in gang are ready to be scheduled"}


def test_a_function_registered_later_must_belong_to_a_plugin_of_a_tier() -> None:
    with BatchHarness([odd()]).session() as session:
        session.add_job_order_fn("odd", fail)
        with pytest.raises(PluginError, match='"stranger" registers at job_order, but no tier lists a plugin of that'):
            session.add_job_order_fn("stranger", fail)


def test_a_plugin_that_did_not_open_is_not_closed() -> None:
    closed: list[str] = []

    class FailingHalfwayned(Odd):
        name = "odd"

        def on_session_open(self, session: Session) -> None:
            raise LookupError("no idea")

        def on_session_close(self, session: Session) -> None:
            closed.append(session.uid)

    run_session(FailingHalfwayned)
    assert closed == []


def test_a_plugin_that_fails_in_one_session_is_used_in_the_next() -> None:
    class FailingOnce(Odd):
        name = "odd"

        @classmethod
        def factory(cls, arguments: Arguments, handle: BatchHandle) -> FailingOnce:
            sessions = handle.keep(cls.name, list)
            sessions.append(1)
            if len(sessions) == 1:
                raise LookupError("not yet")
            return cls(arguments)

    cluster = BatchHarness([FailingOnce], nodes=NODES, gangs=[GOOD])
    assert len(cluster.run().faults) == 1
    assert cluster.run().faults == []


# Plugins: every extension point


def session_with(plugin: type[Any]) -> Any:
    """An open session on a cluster in which every extension point can be called."""
    old = make_gang("old", 2, cpu=1, on="a", min_member=1)
    parts = make_gang(
        "parts",
        2,
        cpu=1,
        labels={"part": "1"},
        sub_group_policy=(SubGroupPolicy(name="s", match_label_keys=("part",)),),
    )
    places = [make_hyper_node("left", nodes=["a", "b"]), make_hyper_node("right", nodes=["c"])]
    return BatchHarness([plugin], nodes=NODES, gangs=[GOOD, old, parts], objects=places, tiers=[[_everything(plugin)]])


def _everything(plugin: type[Any]) -> Any:
    return make_option(plugin, EnabledClusterOrder=True).with_default_flags()


class CallArguments:
    """Arguments for calls of extension points."""

    def __init__(self, session: Session) -> None:
        self.session = session
        jobs = {job.name: job for job in session.jobs.values()}
        tasks = {task.name: task for job in jobs.values() for task in job.tasks.values()}
        self.job, self.other, self.parts = jobs["good"], jobs["old"], jobs["parts"]
        self.task, self.victims = tasks["good-0"], [tasks["old-0"], tasks["old-1"]]
        self.queue = session.queues["default"]
        (self.sub,) = self.parts.sub_jobs.values()
        self.all = np.ones(len(session.nodes), dtype=np.bool_)
        self.place = session.hyper_nodes["left"]
        self.places = {name: session.hyper_nodes.nodes_of(name) for name in ("left", "right")}
        self.trial = Simulation(self.task, session.nodes[0])

    def allowed(self) -> list[bool]:
        return list(self.session.evaluate_class(self.task).rows_to_allocate(self.task))

    def chosen(self) -> str:
        node = self.session.choose(self.task, self.all)
        return "" if node is None else node.name

    def scores(self) -> list[float]:
        totals = self.session.scores(self.task, self.all)
        return [] if totals is None else [float(each) for each in totals]


def point(name: str) -> Any:
    return next(each for each in POINTS if each.name == name)


QUESTIONS: dict[str, Callable[[CallArguments], Any]] = {
    "job_order": lambda at: at.session.compare_jobs(at.job, at.other),
    "sub_job_order": lambda at: at.session.sub_job_order(at.sub, at.sub),
    "queue_order": lambda at: at.session.queue_order(at.queue, at.queue),
    "victim_queue_order": lambda at: at.session.victim_queue_order(at.queue, at.queue, at.queue),
    "cluster_order": lambda at: at.session.call_point(point("cluster_order"), "a", "b"),
    "task_order": lambda at: at.session.compare_tasks(at.task, at.victims[0]),
    "namespace_order": lambda at: at.session.call_point(point("namespace_order"), "a", "b"),
    "pre_predicate": lambda at: at.session.pre_predicate(at.task),
    "predicate": CallArguments.allowed,
    "best_node": CallArguments.chosen,
    "node_order": CallArguments.scores,
    "batch_node_order": CallArguments.scores,
    "node_reduce": CallArguments.scores,
    "hyper_node_order": lambda at: at.session.hyper_node_scores(at.sub, at.places),
    "hyper_node_gradient_for_job": lambda at: at.session.hyper_node_gradient_for_job(
        at.job, at.place, SearchPurpose.ALLOCATE
    ),
    "hyper_node_gradient_for_sub_job": lambda at: at.session.hyper_node_gradient_for_sub_job(
        at.sub, at.place, SearchPurpose.ALLOCATE
    ),
    "preemptable": lambda at: at.session.preemptable(at.task, at.victims),
    "reclaimable": lambda at: at.session.reclaimable(at.task, at.victims),
    "unified_evictable": lambda at: at.session.unified_evictable(
        EvictionContext(EvictionKind.GANG_PREEMPT, at.job), at.victims
    ),
    "victim_tasks": lambda at: at.session.victim_tasks(at.victims),
    "job_valid": lambda at: at.session.job_invalid(at.job),
    "job_enqueueable": lambda at: at.session.job_enqueueable(at.job),
    "job_enqueued": lambda at: at.session.job_enqueued(at.job),
    "job_ready": lambda at: at.session.job_ready(at.job),
    "sub_job_ready": lambda at: at.session.sub_job_ready(at.parts, at.sub),
    "job_pipelined": lambda at: at.session.job_pipelined(at.job),
    "sub_job_pipelined": lambda at: at.session.sub_job_pipelined(at.parts, at.sub),
    "job_starving": lambda at: at.session.job_starving(at.job),
    "overused": lambda at: at.session.overused(at.queue),
    "preemptive": lambda at: at.session.preemptive(at.queue, [at.task]),
    "allocatable": lambda at: at.session.allocatable(at.queue, at.task),
    "target_job": lambda at: at.session.target_job([at.job]),
    "reserved_nodes": lambda at: at.session.reserved_nodes(),
    "simulate_add_task": lambda at: at.session.simulate_add_task(at.trial, at.task),
    "simulate_remove_task": lambda at: at.session.simulate_remove_task(at.trial, at.task),
    "simulate_predicate": lambda at: at.session.simulate_predicate(at.trial),
    "simulate_allocatable": lambda at: at.session.simulate_allocatable(at.trial, at.queue),
}
"""How each point is called."""

WITHOUT_AN_ANSWER = {"job_enqueued", "reserved_nodes"}
"""Points whose functions return nothing, so that no answer is invalid."""

FORMS = {"predicate": ("", "_nodes"), "node_order": ("", "_nodes"), "batch_node_order": ("", "_nodes")}

REGISTRATIONS = [
    pytest.param(name, f"add_{name}{form}_fn{'s' if name == 'victim_tasks' else ''}", id=f"{name}{form}")
    for name in QUESTIONS
    for form in FORMS.get(name, ("",))
]


def test_every_point_is_tested() -> None:
    assert {each.name for each in POINTS} == {*QUESTIONS, "node_map"}


@pytest.mark.parametrize(("name", "add"), REGISTRATIONS)
def test_a_plugin_that_raises_at_a_point_is_ignored(name: str, add: str) -> None:
    call = QUESTIONS[name]
    with session_with(Odd).session() as session:
        expected = call(CallArguments(session))
    with session_with(plugin_registering(add, fail)).session() as session:
        assert call(CallArguments(session)) == expected
        assert len(session.faults) == 1
        assert session.faults[0].startswith(f'plugin "odd" at {name}: LookupError: no idea (test_invalid_input.py:')


class FailingRepr:
    def __repr__(self) -> str:
        raise ValueError("no words")


NONSENSE = [
    pytest.param("perhaps", id="text"),
    pytest.param([1, "x"], id="list"),
    pytest.param({"x": "y"}, id="dictionary"),
    pytest.param(object(), id="object"),
    pytest.param(FailingRepr(), id="unspeakable"),
]


@pytest.mark.parametrize("answer", NONSENSE)
@pytest.mark.parametrize(("name", "add"), [each for each in REGISTRATIONS if each.values[0] not in WITHOUT_AN_ANSWER])
def test_an_invalid_answer_at_a_point_is_ignored(name: str, add: str, answer: Any) -> None:
    call = QUESTIONS[name]
    with session_with(Odd).session() as session:
        expected = call(CallArguments(session))
    with session_with(plugin_registering(add, lambda *_: answer)).session() as session:
        assert call(CallArguments(session)) == expected
        (fault,) = session.faults
        assert fault.startswith(f'plugin "odd" at {name}: answered ')
        assert fault.endswith(" is needed; its answer is ignored")


@pytest.mark.parametrize(
    ("add", "answer", "words"),
    [
        pytest.param("add_job_order_fn", True, "answered True; a number below, above or equal to 0", id="less-than"),
        pytest.param("add_job_order_fn", math.nan, "answered nan; a number below, above or equal to 0", id="nan"),
        pytest.param("add_job_enqueueable_fn", False, "answered False; a Vote", id="truth-for-a-vote"),
        pytest.param("add_job_ready_fn", None, "answered None; True or False", id="forgotten-return"),
        pytest.param("add_node_order_fn", None, "answered None; a number", id="forgotten-score"),
        pytest.param(
            "add_node_order_nodes_fn", None, "answered None; a vector of 4 numbers, one per node,", id="no-vector"
        ),
        pytest.param("add_node_order_nodes_fn", np.zeros(3), "a vector of 4 numbers, one per node,", id="short"),
        pytest.param("add_node_order_nodes_fn", np.array(list("abcd")), "a vector of 4 numbers", id="letters"),
        pytest.param(
            "add_batch_node_order_fn", {"unknown": 1.0}, "answered 'unknown'; the name of a node", id="stranger"
        ),
        pytest.param(
            "add_node_reduce_fn", {"unknown": 1.0}, "answered 'unknown'; the name of a node", id="stranger-reduced"
        ),
        pytest.param(
            "add_predicate_nodes_fn", [Rejection(np.ones(3, bool), "x")], "a mask of 4 booleans", id="short-mask"
        ),
        pytest.param(
            "add_predicate_nodes_fn", [Rejection(np.ones(4), "x")], "a mask of 4 booleans", id="mask-of-numbers"
        ),  # type: ignore[arg-type]
        pytest.param("add_predicate_nodes_fn", [unschedulable("x")], "a Rejection", id="status-for-a-mask"),
        pytest.param("add_predicate_fn", True, "answered True; a Status, several, or None", id="truth-for-a-status"),
    ],
)
def test_likely_mistakes_are_reported(add: str, answer: Any, words: str) -> None:
    name = add.removeprefix("add_").removesuffix("_fn").replace("_nodes", "")
    with session_with(plugin_registering(add, lambda *_: answer)).session() as session:
        QUESTIONS[name](CallArguments(session))
        (fault,) = session.faults
        assert fault.startswith(f'plugin "odd" at {name}: ')
        assert f"{words} is needed" in fault or words in fault


def test_the_best_node_must_be_a_candidate() -> None:
    def elsewhere(task: Task, by_score: Any) -> Any:
        return session.nodes.get("d")

    with session_with(plugin_registering("add_best_node_fn", elsewhere)).session() as session:
        scene = CallArguments(session)
        scene.all[3] = False
        assert scene.chosen() in ("a", "b", "c")
        assert "answered Node(d); one of the nodes, or None for no opinion, is needed" in session.faults[0]


@pytest.mark.parametrize("add", ["add_preemptable_fn", "add_reclaimable_fn"])
def test_victims_must_be_candidates(add: str) -> None:
    with session_with(plugin_registering(add, lambda task, candidates: [*candidates, task])).session() as session:
        scene = CallArguments(session)
        name = add.removeprefix("add_").removesuffix("_fn")
        assert QUESTIONS[name](scene) == []
        assert "a list of some of the candidates, or None to abstain, is needed" in session.faults[0]


def test_a_failing_map_function_disables_its_reduce_function() -> None:
    def register(session: Session) -> None:
        session.add_node_map_fn("odd", fail)
        session.add_node_reduce_fn("odd", lambda task, raw: raw)

    with session_with(odd(register=staticmethod(register))).session() as session:
        assert CallArguments(session).scores() == [0.0] * 4
        assert session.faults[0].startswith('plugin "odd" at node_reduce: LookupError: no idea')


@pytest.mark.parametrize(
    ("promise", "words"),
    [
        pytest.param({"signature": fail}, "LookupError: no idea", id="signature"),
        pytest.param({"signature": lambda task: []}, "TypeError: unhashable type: 'list'", id="unhashable"),
        pytest.param({"signature": lambda task: (), "depends_on": fail}, "LookupError: no idea", id="depends-on"),
    ],
)
@pytest.mark.parametrize("name", ["predicate", "node_order", "batch_node_order"])
def test_a_failing_signature_or_dependency_is_reported(name: str, promise: dict[str, Any], words: str) -> None:
    def register(session: Session) -> None:
        getattr(session, f"add_{name}_nodes_fn")("odd", _in_order, **promise)

    def _in_order(task: Task, nodes: Any) -> Any:
        if name == "predicate":
            return [Rejection(np.arange(len(nodes)) > 1, "later")]
        return np.arange(len(nodes), dtype=float)

    with session_with(odd(register=staticmethod(register))).session() as session:
        assert QUESTIONS[name](CallArguments(session)) == (
            [True, True, False, False] if name == "predicate" else [0, 1, 2, 3]
        )
        assert session.faults[0].startswith(f'plugin "odd" at {name}: {words}')


@pytest.mark.parametrize(
    ("handlers", "words"),
    [
        pytest.param({"allocate": fail}, "at its allocate handler: LookupError: no idea", id="allocate"),
        pytest.param(
            {"allocate": lambda task: "no"}, "at its allocate handler: answered 'no'; a Status, or", id="text"
        ),
        pytest.param({"deallocate": fail}, "at its deallocate handler: LookupError: no idea", id="deallocate"),
    ],
)
def test_a_failing_event_handler_is_reported(handlers: dict[str, Any], words: str) -> None:
    large = make_gang("large", 5, cpu=3)  # its first tasks are placed, and undone
    done = run_session(
        odd(register=staticmethod(lambda session: session.add_event_handler("odd", **handlers))), gangs=(large,)
    )
    assert done.faults[0].startswith(f'plugin "odd" {words}')
    assert is_placed(done)


def test_similar_faults_of_a_plugin_are_limited() -> None:
    def refusal(task: Task, node: Any) -> Any:
        raise LookupError(f"no price of {node.name} for {task.name}")

    crowd = make_gang("crowd", 4, cpu=1)
    done = run_session(plugin_registering("add_predicate_fn", refusal), gangs=(crowd,))
    assert len(done.faults) == MAX_SIMILAR_FAULTS + 1
    assert done.faults[-1].startswith('plugin "odd" at predicate: more faults like this are not reported')
    assert is_placed(done)


# Plugins in whole sessions

EVERY_ACTION = ["enqueue", "allocate", "preempt", "reclaim", "gangpreempt", "gangreclaim", "backfill", "shuffle"]


def busy_cluster(plugin: type[Any]) -> BatchHarness:
    """A cluster in which every action has something to do."""
    may_go = {"volcano.sh/preemptable": "true"}
    policy = SubGroupPolicy(name="s", label_selector=LabelSelector(), match_label_keys=("part",), sub_group_size=1)
    gangs = [
        make_gang("old", 2, cpu=2, on="a", min_member=1, annotations=may_go),
        make_gang("hog", 4, cpu=2, on=["b", "b", "c", "c"], min_member=1, queue="rich", annotations=may_go),
        make_gang("urgent", 1, cpu="3500m", priority=10),
        make_gang("wants", 1, cpu=3, queue="poor", priority=5),
        make_gang("also", 2, cpu="500m", min_resources={"cpu": "1"}),
        make_gang("parts", 2, cpu="100m", labels={"part": "1"}, topology=1, sub_group_policy=(policy,)),
        make_gang("free", 1),
    ]
    queues = [make_queue("default", weight=10), make_queue("poor", weight=10), make_queue("rich", weight=1)]
    places = [make_hyper_node("left", nodes=["a", "b"]), make_hyper_node("right", nodes=["c", "d"])]
    return BatchHarness(
        [plugin],
        nodes=NODES,
        gangs=gangs,
        queues=queues,
        objects=places,
        tiers=tiers_with(plugin),
        actions=EVERY_ACTION,
    )


def decisions(done: BatchResult) -> tuple[Any, ...]:
    return done.bound, done.evicted, done.pipelined, done.phases


@pytest.fixture(scope="module")
def expected_decisions() -> tuple[Any, ...]:
    """The decisions of the session without answers of the odd plugin."""
    found = decisions(busy_cluster(Odd).run())
    assert found[0]
    assert found[1]
    assert found[2]
    return found


@pytest.mark.parametrize(
    "fn", [pytest.param(fail, id="raises"), pytest.param(lambda *_: "perhaps", id="invalid-answer")]
)
@pytest.mark.parametrize(("name", "add"), REGISTRATIONS)
def test_a_whole_session_without_the_answers_of_one_plugin(
    name: str, add: str, fn: Any, expected_decisions: tuple[Any, ...]
) -> None:
    done = busy_cluster(plugin_registering(add, fn)).run()
    assert decisions(done) == expected_decisions
    assert all(fault.startswith(f'plugin "odd" at {name}: ') for fault in done.faults)


# Actions


class FailingAction:
    """An action that fails in a chosen method."""

    name = "breaking"
    where = "execute"

    def initialize(self) -> None:
        self._do("initialize")

    def execute(self, session: Session) -> Iterator[None] | None:
        self._do("execute")
        return self._steps()

    def _steps(self) -> Iterator[None]:
        yield
        self._do("turns")

    def uninitialize(self) -> None:
        self._do("uninitialize")

    def _do(self, where: str) -> None:
        if where == self.where:
            raise LookupError("no idea")


def action_failing_in(where: str) -> type[FailingAction]:
    return type("Made", (FailingAction,), {"where": where})


@pytest.mark.parametrize("where", ["execute", "turns"])
def test_a_failing_action_is_reported_and_the_rest_run(where: str) -> None:
    done = run_session(actions=["enqueue", action_failing_in(where), "allocate"])
    (fault,) = done.faults
    assert re.fullmatch(r"action breaking was aborted: LookupError: no idea \(test_invalid_input\.py:\d+\)", fault)
    assert is_placed(done)


@pytest.mark.parametrize("committed", [False, True])
def test_uncommitted_operations_of_a_failing_action_are_undone(committed: bool) -> None:
    """Otherwise a gang with one placed task would need one task less, and half of it would start."""

    class FailingHalfwayned(FailingAction):
        def execute(self, session: Session) -> None:
            for name in ("default/g-0", "default/h-0"):
                (task,) = (each for job in session.jobs.values() for each in job.tasks.values() if each.key == name)
                assert session.pre_predicate(task) is None
                statement = session.statement()
                assert statement.allocate(task, "a")
                if committed and name == "default/h-0":
                    statement.commit()
            raise LookupError("no idea")

    gangs = [make_gang("g", 2, cpu=1), make_gang("h", 1, cpu=1)]
    done = BatchHarness(
        nodes=[make_node("a", cpu=2)], gangs=gangs, actions=["enqueue", FailingHalfwayned, "allocate"]
    ).run()
    assert len(done.faults) == 1
    assert set(done.bound) in ([{"h-0"}] if committed else [{"g-0", "g-1"}, {"h-0"}])


def test_an_action_whose_initialize_fails_is_rejected() -> None:
    with pytest.raises(
        PluginError, match=r'action "breaking" broke in initialize\(\): LookupError: no idea; correct it or'
    ):
        BatchHarness(actions=[action_failing_in("initialize")])


def test_a_failing_action_is_ignored_until_it_is_configured() -> None:
    cluster = BatchHarness(nodes=NODES, gangs=[GOOD])
    broken = action_failing_in("initialize")()
    actions = ActionSet({**cluster.engine._actions.actions, "breaking": broken})
    engine = BatchEngine(
        cluster.engine.cache,
        cluster.engine.configuration,
        plugins=cluster.engine._plugins,
        actions=actions,
        framework_plugins=cluster.engine.handle.framework_plugins,
        clock=cluster.engine.handle.clock,
        chance=cluster.engine.handle.random,
    )
    assert not engine.run_session().faults
    engine.configuration = dataclasses.replace(engine.configuration, actions=("breaking", "allocate"))
    assert engine.run_session().faults == [
        'action "breaking" broke in initialize(): LookupError: no idea; correct it or remove it'
    ]
    engine.close()


def exit_process(*_: Any) -> Any:
    raise SystemExit(3)


@pytest.mark.parametrize(
    "plugin",
    [
        pytest.param(odd(on_session_open=exit_process), id="open"),
        pytest.param(odd(on_session_close=exit_process), id="close"),
        pytest.param(plugin_registering("add_job_order_fn", exit_process), id="rule"),
        pytest.param(plugin_registering("add_predicate_fn", exit_process), id="predicate"),
        pytest.param(plugin_registering("add_node_order_fn", exit_process), id="node-order"),
        pytest.param(plugin_registering("add_job_valid_fn", exit_process), id="valid"),
    ],
)
def test_a_plugin_cannot_end_the_process(plugin: type[Odd]) -> None:
    done = run_session(plugin, gangs=(make_gang("other", 1, cpu=1),))
    assert [fault for fault in done.faults if 'plugin "odd"' in fault and "SystemExit: 3" in fault]
    assert is_placed(done)


@pytest.mark.parametrize(
    ("first", "actions", "message"),
    [
        pytest.param(odd(on_session_open=exit_process), ["allocate"], 'plugin "odd" at on_session_open', id="plugin"),
        pytest.param(None, [action_failing_in("execute")], "action breaking was aborted", id="action"),
    ],
)
def test_a_fault_in_every_session_is_logged_once(
    first: type | None, actions: list[Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    plugins = [first] if first is not None else []
    cluster = BatchHarness(plugins, nodes=NODES, gangs=[GOOD], tiers=tiers_with(*plugins), actions=actions)
    for _ in range(3):
        faults = cluster.engine.run_session().faults
        assert any(message in fault for fault in faults)
    logged = [each for each in caplog.records if message in each.getMessage()]
    assert len(logged) == 1


def test_a_failing_uninitialize_does_not_stop_other_actions() -> None:
    ended: list[str] = []

    class LastAction(FailingAction):
        name = "last"
        where = ""

        def uninitialize(self) -> None:
            ended.append("last")

    BatchHarness(actions=[action_failing_in("uninitialize"), LastAction]).close()
    assert ended == ["last"]


def test_a_configured_action_that_does_not_exist_is_skipped() -> None:
    cluster = BatchHarness(nodes=NODES, gangs=[GOOD])
    cluster.engine._actions = ActionSet(
        {name: each for name, each in cluster.engine._actions.actions.items() if name != "enqueue"}
    )
    assert cluster.run().faults == ["action enqueue is configured but does not exist; the session skipped it"]
