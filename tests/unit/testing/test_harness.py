"""A harness is the real engine on a small cluster: questions change nothing, `place` and `bind` do."""

# ruff: noqa: ARG002  (plugins are told more than these need)

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from bayplan.errors import ConfigError, PluginError, UsageError
from bayplan.framework import (
    SKIP,
    ActionType,
    BindPod,
    ClusterEvent,
    ClusterEventWithHint,
    Cycle,
    EventResource,
    Handle,
    NodeInfo,
    NodeTable,
    PermitWait,
    Pod,
    PreBindPreFlightResult,
    QueuedPod,
    QueueingHint,
    Rejection,
    Status,
    error,
    pending,
    queue_hint_if,
    unresolvable,
    unschedulable,
)
from bayplan.objects.core import Service
from bayplan.objects.meta import KubeObject, ObjectMeta
from bayplan.objects.workloads import PriorityClass
from bayplan.plugins.node_ports import NodePorts
from bayplan.testing import Harness, make_node, make_pod, make_pv, make_pvc

RACK_A, RACK_B, LOOSE = make_node("a", labels={"rack": "1"}), make_node("b", labels={"rack": "2"}), make_node("c")
NODE_ADDED = ClusterEvent(EventResource.NODE, ActionType.ADD)


def in_a_rack(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    return queue_hint_if(new is not None and "rack" in new.metadata.labels)


class Racked:
    name = "Racked"
    cured_by = (ClusterEventWithHint(EventResource.NODE, ActionType.ADD, in_a_rack),)

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
        return None if "rack" in node.labels else unresolvable("node(s) are in no rack")

    def score(self, cycle: Cycle, node: NodeInfo) -> int:
        return 10 * int(node.labels["rack"])


class Recorder:
    """Writes down what it was asked."""

    name = "Recorder"
    answers: dict[str, Any] = {}

    def __init__(self, args: Any, handle: Handle) -> None:
        self.args, self.handle = args, handle
        self.asked: list[str] = []
        self.closed = False

    @classmethod
    def factory(cls, args: Any, handle: Handle) -> Recorder:
        return cls(args, handle)

    def _answer(self, what: str) -> Any:
        self.asked.append(what)
        return self.answers.get(what)

    def pre_enqueue(self, pod: Pod) -> Status | None:
        answer: Status | None = self._answer("pre_enqueue")
        return answer

    def reserve(self, cycle: Cycle, node_name: str) -> Status | None:
        answer: Status | None = self._answer("reserve")
        return answer

    def unreserve(self, cycle: Cycle, node_name: str) -> None:
        self._answer("unreserve")

    def permit(self, cycle: Cycle, node_name: str) -> PermitWait | Status | None:
        answer: PermitWait | Status | None = self._answer("permit")
        return answer

    def pre_bind_preflight(self, cycle: Cycle, node_name: str) -> PreBindPreFlightResult | Status:
        answer: PreBindPreFlightResult | Status = self._answer("pre_bind_preflight") or PreBindPreFlightResult()
        return answer

    async def pre_bind(self, cycle: Cycle, node_name: str) -> Status | None:
        answer: Status | None = self._answer("pre_bind")
        return answer

    async def post_bind(self, cycle: Cycle, node_name: str) -> None:
        self._answer("post_bind")

    def close(self) -> None:
        self.closed = True


def recording(**answers: Any) -> tuple[Harness, Recorder]:
    """A cluster of one node, and the recorder that gives these answers."""
    plugin = type("Recorder", (Recorder,), {"answers": answers})
    cluster = Harness([plugin], nodes=[LOOSE])
    recorder = cluster.profile().instances["Recorder"]
    assert isinstance(recorder, Recorder)
    return cluster, recorder


# which plugins run


def test_plugins_are_added_to_the_default_profile() -> None:
    described = Harness([Racked]).profile().describe()
    assert described["filter"][-1] == "Racked"
    assert {"NodeResourcesFit", "Racked"} <= set(described["filter"])
    assert described["score"][-1] == "Racked:1"


def test_only_leaves_out_everything_but_an_order_and_a_binder() -> None:
    assert Harness([Racked], only=True).profile().describe() == {
        "queueSort": ["PrioritySort"],
        "filter": ["Racked"],
        "score": ["Racked:1"],
        "bind": ["DefaultBinder"],
    }


def test_a_shipped_plugin_can_be_looked_at_alone() -> None:
    taken = make_pod("taken", node="a", host_ports=[80])
    cluster = Harness([NodePorts], nodes=[RACK_A, LOOSE], pods=[taken], only=True)
    assert cluster.filter(make_pod(host_ports=[80], cpu=1000)) == {
        "a": unschedulable("node(s) didn't have free ports for the requested pod ports").by("NodePorts"),
        "c": "ok",
    }


class Backwards:
    name = "Backwards"

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        return first.pod.name > second.pod.name


class OwnBinder:
    name = "OwnBinder"

    async def bind(self, cycle: Cycle, node_name: str) -> Status | None:
        return SKIP if cycle.pod.name == "strange" else None


@pytest.mark.parametrize("only", [False, True], ids=["beside", "only"])
def test_an_order_takes_the_place_of_the_shipped_one_and_a_binder_comes_before_it(only: bool) -> None:
    described = Harness([Backwards, OwnBinder], only=only).profile().describe()
    assert (described["queueSort"], described["bind"]) == (["Backwards"], ["OwnBinder", "DefaultBinder"])


def test_weights_and_arguments_go_by_name() -> None:
    cluster = Harness([Racked, Recorder], nodes=[RACK_A], weights={"Racked": 3}, args={"Recorder": {"x": [1]}})
    assert cluster.scores(make_pod())["a"]["Racked"] == 30
    assert cluster.profile().instances["Recorder"].args == {"x": [1]}


@pytest.mark.parametrize("what", ["args", "weights"])
def test_a_name_that_is_no_plugin_here_is_refused(what: str) -> None:
    with pytest.raises(UsageError, match=rf"{what} name Rakced, which is not among the plugins \(Racked\)"):
        Harness([Racked], **{what: {"Rakced": 1}})  # type: ignore[arg-type]


MAPPING: dict[str, Any] = {"profiles": [{"plugins": {"score": {"enabled": [{"name": "Racked", "weight": 5}]}}}]}
TEXT = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {score: {enabled: [{name: Racked, weight: 5}]}}
"""


@pytest.mark.parametrize("config", [MAPPING, TEXT], ids=["mapping", "text"])
def test_a_configuration_says_where_plugins_run(config: Any) -> None:
    described = Harness([Racked], config=config).profile().describe()
    assert "Racked:5" in described["score"]
    assert "Racked" not in described["filter"]


def test_a_configuration_that_forgets_the_plugin_is_refused() -> None:
    with pytest.raises(UsageError, match='the configuration does not enable "Racked"; add it, for example at multiPoint'):
        Harness([Racked], config={"profiles": []})


@pytest.mark.parametrize("more", [{"only": True}, {"args": {"Racked": 1}}, {"weights": {"Racked": 1}}], ids=str)
def test_a_configuration_stands_alone(more: Any) -> None:
    with pytest.raises(UsageError, match="config excludes args, weights and only"):
        Harness([Racked], config=MAPPING, **more)


def test_a_wrong_configuration_is_refused_in_the_scheduler_s_words() -> None:
    with pytest.raises(ConfigError, match='"Nobody" does not exist'):
        Harness(config={"profiles": [{"plugins": {"filter": {"enabled": [{"name": "Nobody"}]}}}]})


# questions


def test_filter_tells_of_every_node() -> None:
    cluster = Harness([Racked], nodes=[RACK_A, LOOSE])
    assert cluster.filter(make_pod()) == {"a": "ok", "c": unresolvable("node(s) are in no rack").by("Racked")}
    assert cluster.status(make_pod(), "a").ok
    assert cluster.status(make_pod(), "c").message == "node(s) are in no rack"


def test_a_node_that_is_not_there_cannot_be_asked_about() -> None:
    with pytest.raises(UsageError, match='there is no node "z"; the nodes are: a, c'):
        Harness(nodes=[RACK_A, LOOSE]).status(make_pod(), "z")


class RejectsFirst:
    name = "RejectsFirst"

    def pre_filter(self, cycle: Cycle) -> Status | None:
        return {"no": unresolvable("never"), "broken": error("lost")}.get(cycle.pod.name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("no", unresolvable("never").by("RejectsFirst")),
        ("broken", error('running PreFilter plugin "RejectsFirst": lost').by("RejectsFirst")),
    ],
)
def test_what_prefilter_says_holds_for_every_node(name: str, expected: Status) -> None:
    assert Harness([RejectsFirst], nodes=[RACK_A]).filter(make_pod(name)) == {"a": expected}


def test_scores_are_those_of_the_nodes_that_fit() -> None:
    cluster = Harness([Racked], nodes=[RACK_A, RACK_B, LOOSE], only=True)
    assert cluster.scores(make_pod()) == {"a": {"Racked": 10}, "b": {"Racked": 20}}
    assert Harness([Racked], nodes=[LOOSE]).scores(make_pod()) == {}


def test_a_score_that_makes_no_sense_is_the_plugin_s_fault() -> None:
    with pytest.raises(PluginError, match='plugin "Racked" returns an invalid score 990'):
        Harness([Racked], nodes=[make_node("a", labels={"rack": "99"})]).scores(make_pod())


def test_questions_change_nothing() -> None:
    cluster = Harness([Racked], nodes=[RACK_B])
    pod = make_pod(cpu=8)
    assert cluster.decide(pod).node == "b"
    assert cluster.why(pod) == "the only node that fits"
    assert cluster.node_of(pod) is None
    assert cluster.place(pod) == "b"


def test_the_order_of_the_queue() -> None:
    pods = [make_pod("old"), make_pod("young"), make_pod("vip", priority=1)]
    assert Harness().order(pods) == ["vip", "old", "young"]
    assert Harness([Backwards]).order(pods) == ["young", "vip", "old"]
    assert Harness().order([]) == []


def test_why_a_pod_is_held_before_the_queue() -> None:
    cluster = Harness(nodes=[RACK_A])
    gated = make_pod(gates=["later"])
    assert cluster.pre_enqueue(gated).message == "waiting for scheduling gates: [later]"
    assert cluster.why(gated) == cluster.place(gated) == "waiting for scheduling gates: [later]"


@pytest.mark.parametrize(
    ("pod", "event", "new", "woken"),
    [
        pytest.param(make_pod(), NODE_ADDED, RACK_A, {"Racked"}, id="cured"),
        pytest.param(make_pod(), NODE_ADDED, make_node("d"), set(), id="the-hint-says-no"),
        pytest.param(
            make_pod(), ClusterEvent(EventResource.POD_GROUP, ActionType.ADD), None, set(), id="another-event"
        ),
        pytest.param(make_pod(gates=["x"]), NODE_ADDED, RACK_A, set(), id="refused-by-another"),
        pytest.param(
            make_pod(gates=["x"]),
            ClusterEvent(EventResource.UNSCHEDULABLE_POD, ActionType.UPDATE_POD_GATES_ELIMINATED),
            make_pod(),
            {"SchedulingGates"},
            id="a-gate-goes",
        ),
    ],
)
def test_what_wakes_a_pod(pod: Pod, event: ClusterEvent, new: Any, woken: set[str]) -> None:
    assert Harness([Racked], nodes=[LOOSE]).wakes(pod, event, new=new) == woken


class Hasty:
    """Its hint answers what a hint must not."""

    name = "Hasty"
    cured_by = (ClusterEventWithHint(EventResource.NODE, ActionType.ADD, lambda _pod, _old, _new: True),)  # type: ignore[arg-type,return-value]

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
        return unschedulable("never")


def test_a_hint_that_answers_nonsense_is_told_of() -> None:
    cluster = Harness([Hasty], nodes=[make_node()])
    with pytest.raises(PluginError, match=r'a hint of plugin "Hasty" must return Hint\.QUEUE or Hint\.SKIP; got True'):
        cluster.wakes(make_pod(), ClusterEvent(EventResource.NODE, ActionType.ADD), new=make_node("new"))


@pytest.mark.parametrize("question", ["place", "bind", "filter", "scores", "why", "decide", "pre_enqueue", "node_of"])
def test_a_question_about_what_is_no_pod_is_refused(question: str) -> None:
    with pytest.raises(UsageError, match="expected a pod, such as one of make_pod; got 'web'"):
        getattr(Harness(nodes=[make_node()]), question)("web")


def test_nothing_wakes_a_pod_that_fits() -> None:
    assert Harness([Racked], nodes=[RACK_A]).wakes(make_pod(), NODE_ADDED, new=RACK_A) == set()
    assert Harness([Racked]).wakes(make_pod(), NODE_ADDED, new=RACK_A) == set()


# placing


def test_placed_pods_take_room() -> None:
    cluster = Harness(nodes=[make_node("a", cpu=2)])
    assert cluster.place(make_pod("one", cpu=2)) == "a"
    assert cluster.place(make_pod("two", cpu=1)).startswith("0/1 nodes are available: 1 Insufficient cpu.")
    assert cluster.why(make_pod("two", cpu=1)).startswith("0/1 nodes are available: 1 Insufficient cpu.")
    assert cluster.node_of(make_pod("one")) == "a"


def test_ties_fall_by_the_seed() -> None:
    nodes = [make_node(f"n{number}") for number in range(8)]

    def placed(seed: int) -> list[str]:
        cluster = Harness(nodes=nodes, seed=seed)
        return [cluster.place(make_pod(f"p{number}")) for number in range(3)]

    assert placed(1) == placed(1)
    assert len({tuple(placed(seed)) for seed in range(5)}) > 1


def test_priority_classes_count() -> None:
    classes = [PriorityClass(metadata=ObjectMeta(name="vip"), value=7)]
    cluster = Harness(nodes=[make_node("a", cpu=1)], pods=[make_pod("weak", node="a", cpu=1)], objects=classes)
    assert cluster.decide(make_pod("strong", cpu=1, priority_class_name="vip")).victims == ("default/weak",)
    assert cluster.why(make_pod("strong", cpu=1, priority_class_name="vip")) == (
        "fits no node yet; it fits a once default/weak is gone"
    )


def test_a_priority_class_may_come_later() -> None:
    cluster = Harness()
    cluster.add(PriorityClass(metadata=ObjectMeta(name="vip"), value=7))
    assert cluster.order([make_pod("plain"), make_pod("vip", priority_class_name="vip")]) == ["vip", "plain"]


def test_pending_pods_are_placed_in_the_order_of_the_queue() -> None:
    pods = [make_pod("a", cpu=1), make_pod("b", cpu=1), make_pod("c", cpu=1, priority=5)]
    cluster = Harness([Backwards], nodes=[make_node("n", cpu=2)], pods=pods)
    told = cluster.place_all()
    assert list(told) == ["c", "b", "a"]
    assert [told["c"], told["b"]] == ["n", "n"]
    assert "Insufficient cpu" in told["a"]
    assert list(cluster.place_all()) == ["a"]


def test_the_cluster_can_change() -> None:
    cluster = Harness([Racked], nodes=[LOOSE])
    pod = make_pod()
    assert "node(s) are in no rack" in cluster.place(pod)
    cluster.add(RACK_A, make_pod("full", node="a", cpu=8))
    assert "Insufficient cpu" in cluster.why(make_pod(cpu=1))
    cluster.add(make_pod("full", node="a", cpu=1))
    assert cluster.place(make_pod(cpu=1)) == "a"
    cluster.remove(make_pod("full"), LOOSE)
    assert list(cluster.filter(make_pod())) == ["a"]


def test_other_objects_and_pending_pods_come_and_go() -> None:
    service = Service(metadata=ObjectMeta(name="web"))
    cluster = Harness()
    cluster.add(service, make_pod("later"))
    assert list(cluster.engine.cache.catalog.services) == ["default/web"]
    assert list(cluster.place_all()) == ["later"]
    cluster.remove(service, make_pod("later"))
    assert not cluster.engine.cache.catalog.services
    assert cluster.place_all() == {}


def test_claims_and_volumes_are_part_of_the_cluster() -> None:
    cluster = Harness(
        nodes=[RACK_A, RACK_B],
        objects=[make_pvc("data", volume="disk"), make_pv("disk", near={"rack": "2"})],
    )
    assert cluster.place(make_pod(claims=["data"])) == "b"


class Teams:
    """Says nothing of what its answers depend on, so nobody may share them."""

    name = "Teams"

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        team = cycle.pod.metadata.annotations["team"]
        yield Rejection(~nodes.where_label_in("team", [team]), "node(s) belong to another team")


@pytest.mark.parametrize("only", [False, True], ids=["beside", "only"])
def test_pods_that_are_alike_to_others_get_their_own_answers(only: bool) -> None:
    nodes = [make_node(f"{team}-{number}", labels={"team": team}) for team in ("red", "blue") for number in range(2)]
    cluster = Harness([Teams], nodes=nodes, only=only)
    placed = [cluster.place(make_pod(team, annotations={"team": team})) for team in ("red", "blue", "green")]
    assert [where.partition("-")[0] for where in placed[:2]] == ["red", "blue"]
    assert "4 node(s) belong to another team" in placed[2]


def test_a_plugin_that_raises_costs_the_attempt_and_says_who_it_was() -> None:
    cluster = Harness([Teams], nodes=[LOOSE])
    said = cluster.place(make_pod())
    assert said.startswith("running \"Teams\" filter plugin: KeyError: 'team' (test_harness.py:")
    assert cluster.why(make_pod()) == f"the attempt failed: {said}"


# permit, time


def test_reserve_may_refuse() -> None:
    cluster, recorder = recording(reserve=unschedulable("taken meanwhile"))
    said = cluster.place(make_pod())
    assert "taken meanwhile" in said
    assert cluster.why(make_pod()) == said
    assert recorder.asked == ["pre_enqueue", "reserve", "unreserve"]
    assert cluster.node_of(make_pod()) is None


def test_a_waiting_pod_is_let_go_by_its_plugin() -> None:
    cluster, recorder = recording(permit=PermitWait(30.0))
    pod = make_pod()
    assert cluster.place(pod) == cluster.why(pod) == "waiting on c for Recorder"
    assert cluster.waiting == {"pod": ["Recorder"]}
    (held,) = recorder.handle.waiting_pods.all()
    held.allow("Recorder")
    assert cluster.waiting == {}
    assert cluster.node_of(pod) == "c"
    assert cluster.why(pod) == "the only node that fits"


def test_a_waiting_pod_loses_its_node_when_time_is_up() -> None:
    cluster, recorder = recording(permit=PermitWait(30.0))
    cluster.place(make_pod())
    cluster.advance(29)
    assert cluster.waiting
    cluster.advance(1)
    assert cluster.waiting == {}
    assert cluster.node_of(make_pod()) is None
    assert recorder.asked[-1] == "unreserve"
    assert "rejected due to timeout after waiting 30s at plugin Recorder" in cluster.why(make_pod())


def test_time_starts_where_the_test_says() -> None:
    at = datetime(2027, 5, 1, tzinfo=UTC)
    cluster = Harness(now=at)
    cluster.advance(60)
    assert (cluster.clock.now() - at).total_seconds() == 60


# binding


def test_binding_runs_the_last_points_and_remembers_the_write() -> None:
    cluster, recorder = recording()
    assert cluster.bind(make_pod()) == "c"
    assert recorder.asked == ["pre_enqueue", "reserve", "permit", "pre_bind_preflight", "pre_bind", "post_bind"]
    (written,) = cluster.writes.performed
    assert isinstance(written, BindPod)
    assert written.node_name == "c"


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        pytest.param({"pre_bind": error("disk lost")}, "disk lost", id="prebind-fails"),
        pytest.param({"pre_bind_preflight": error("odd")}, 'running PreBindPreFlight "Recorder": odd', id="preflight"),
        pytest.param({"pre_enqueue": pending("not yet")}, "not yet", id="never-placed"),
        pytest.param({"permit": PermitWait(5.0)}, "waiting on c for Recorder", id="still-waiting"),
    ],
)
def test_a_pod_that_cannot_be_bound(answers: dict[str, Any], said: str) -> None:
    cluster, recorder = recording(**answers)
    assert said in cluster.bind(make_pod())
    assert cluster.writes.performed == []
    assert "post_bind" not in recorder.asked


def test_a_failed_bind_gives_the_node_back() -> None:
    cluster, recorder = recording()
    cluster.writes.failure = UsageError("conflict")
    assert cluster.bind(make_pod()) == 'running Bind plugin "DefaultBinder": conflict'
    assert cluster.node_of(make_pod()) is None
    assert recorder.asked[-1] == "unreserve"


@pytest.mark.parametrize("only", [False, True], ids=["beside", "only"])
def test_a_pod_that_a_binder_skips_is_left_to_the_shipped_one(only: bool) -> None:
    cluster = Harness([OwnBinder], nodes=[LOOSE], only=only)
    assert cluster.bind(make_pod()) == "c"
    assert cluster.writes.performed == []
    assert cluster.bind(make_pod("strange")) == "c"
    assert [type(each) for each in cluster.writes.performed] == [BindPod]


def test_a_pod_that_no_binder_wants() -> None:
    bind = {"disabled": [{"name": "DefaultBinder"}], "enabled": [{"name": "OwnBinder"}]}
    cluster = Harness([OwnBinder], nodes=[LOOSE], config={"profiles": [{"plugins": {"bind": bind}}]})
    assert cluster.bind(make_pod("strange")) == "no plugin binds the pod"
    assert cluster.bind(make_pod()) == "c"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        pytest.param({"plugins": Racked}, "plugins takes a list of classes.*; got the class Racked", id="a-class"),
        pytest.param({"plugins": [Racked()]}, "it contains an object of type Racked", id="an-instance"),
        pytest.param(
            {"nodes": LOOSE}, "nodes takes a list of what make_node makes; got an object of type Node", id="node"
        ),
        pytest.param({"nodes": [{"metadata": {}}]}, "nodes takes .*; it contains an object of type dict", id="a-dict"),
        pytest.param({"pods": [LOOSE]}, "pods takes .*; it contains an object of type Node", id="no-pod"),
        pytest.param({"objects": 7}, "objects takes .*; got 7", id="no-list"),
    ],
)
def test_what_is_no_list_of_objects_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Harness(**given)


def test_a_closed_cluster_answers_no_more() -> None:
    cluster = Harness([Racked], nodes=[RACK_A])
    cluster.close()
    cluster.close()
    for question in (cluster.place, cluster.filter, cluster.why):
        with pytest.raises(UsageError, match="this cluster is closed"):
            question(make_pod())


@pytest.mark.parametrize("answer", ["x", None, 1])
def test_an_order_that_is_neither_yes_nor_no_is_refused(answer: Any) -> None:
    sorts = type("Sorts", (), {"name": "Sorts", "less": lambda *_: answer})
    with pytest.raises(PluginError, match=f'plugin "Sorts" at queueSort: less answers True or False; got {answer!r}'):
        Harness([sorts]).order([make_pod("a"), make_pod("b")])


def test_a_pod_that_runs_cannot_be_bound_again() -> None:
    cluster = Harness(nodes=[LOOSE], pods=[make_pod("there", node="c")])
    cluster.place(make_pod())
    assert cluster.bind(make_pod()) == "c"
    for name in ("pod", "there"):
        with pytest.raises(UsageError, match=f"pod default/{name} already runs on c"):
            cluster.bind(make_pod(name))


def test_closing_closes_the_plugins() -> None:
    with Harness([Recorder]) as cluster:
        recorder = cluster.profile().instances["Recorder"]
        assert not recorder.closed
    assert recorder.closed
