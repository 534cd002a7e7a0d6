"""Harness: the real engine on a small cluster; queries change nothing, `place` and `bind` do."""

# ruff: noqa: ARG002  (plugin methods have more parameters than these use)

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

RACK_A, RACK_B, UNRACKED = make_node("a", labels={"rack": "1"}), make_node("b", labels={"rack": "2"}), make_node("c")
NODE_ADDED = ClusterEvent(EventResource.NODE, ActionType.ADD)


def hint_rack_added(pod: Pod, old: KubeObject | None, new: KubeObject | None) -> QueueingHint:  # noqa: ARG001
    return queue_hint_if(new is not None and "rack" in new.metadata.labels)


class Racked:
    name = "Racked"
    events_to_register = (ClusterEventWithHint(EventResource.NODE, ActionType.ADD, hint_rack_added),)

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
        return None if "rack" in node.labels else unresolvable("node(s) are in no rack")

    def score(self, cycle: Cycle, node: NodeInfo) -> int:
        return 10 * int(node.labels["rack"])


class Recorder:
    """Records the called points and returns configured answers."""

    name = "Recorder"
    answers: dict[str, Any] = {}

    def __init__(self, args: Any, handle: Handle) -> None:
        self.args, self.handle = args, handle
        self.calls: list[str] = []
        self.closed = False

    @classmethod
    def factory(cls, args: Any, handle: Handle) -> Recorder:
        return cls(args, handle)

    def _record(self, point: str) -> Any:
        self.calls.append(point)
        return self.answers.get(point)

    def pre_enqueue(self, pod: Pod) -> Status | None:
        answer: Status | None = self._record("pre_enqueue")
        return answer

    def reserve(self, cycle: Cycle, node_name: str) -> Status | None:
        answer: Status | None = self._record("reserve")
        return answer

    def unreserve(self, cycle: Cycle, node_name: str) -> None:
        self._record("unreserve")

    def permit(self, cycle: Cycle, node_name: str) -> PermitWait | Status | None:
        answer: PermitWait | Status | None = self._record("permit")
        return answer

    def pre_bind_preflight(self, cycle: Cycle, node_name: str) -> PreBindPreFlightResult | Status:
        answer: PreBindPreFlightResult | Status = self._record("pre_bind_preflight") or PreBindPreFlightResult()
        return answer

    async def pre_bind(self, cycle: Cycle, node_name: str) -> Status | None:
        answer: Status | None = self._record("pre_bind")
        return answer

    async def post_bind(self, cycle: Cycle, node_name: str) -> None:
        self._record("post_bind")

    def close(self) -> None:
        self.closed = True


def recording(**answers: Any) -> tuple[Harness, Recorder]:
    """A cluster of one node, and its recorder with these answers."""
    plugin = type("Recorder", (Recorder,), {"answers": answers})
    cluster = Harness([plugin], nodes=[UNRACKED])
    recorder = cluster.profile().instances["Recorder"]
    assert isinstance(recorder, Recorder)
    return cluster, recorder


# Plugins of the profile


def test_plugins_are_added_to_the_default_profile() -> None:
    described = Harness([Racked]).profile().describe()
    assert described["filter"][-1] == "Racked"
    assert {"NodeResourcesFit", "Racked"} <= set(described["filter"])
    assert described["score"][-1] == "Racked:1"


def test_only_keeps_a_queue_sort_and_a_bind_plugin() -> None:
    assert Harness([Racked], only=True).profile().describe() == {
        "queueSort": ["PrioritySort"],
        "filter": ["Racked"],
        "score": ["Racked:1"],
        "bind": ["DefaultBinder"],
    }


def test_a_built_in_plugin_can_run_alone() -> None:
    taken = make_pod("taken", node="a", host_ports=[80])
    cluster = Harness([NodePorts], nodes=[RACK_A, UNRACKED], pods=[taken], only=True)
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
def test_a_queue_sort_replaces_the_built_in_one_and_a_bind_plugin_runs_before_it(only: bool) -> None:
    described = Harness([Backwards, OwnBinder], only=only).profile().describe()
    assert (described["queueSort"], described["bind"]) == (["Backwards"], ["OwnBinder", "DefaultBinder"])


def test_weights_and_arguments_by_plugin_name() -> None:
    cluster = Harness([Racked, Recorder], nodes=[RACK_A], weights={"Racked": 3}, args={"Recorder": {"x": [1]}})
    assert cluster.scores(make_pod())["a"]["Racked"] == 30
    assert cluster.profile().instances["Recorder"].args == {"x": [1]}


@pytest.mark.parametrize("keyword", ["args", "weights"])
def test_an_unknown_plugin_name_is_rejected(keyword: str) -> None:
    with pytest.raises(UsageError, match=rf"{keyword} name Rakced, which is not among the plugins \(Racked\)"):
        Harness([Racked], **{keyword: {"Rakced": 1}})  # type: ignore[arg-type]


MAPPING: dict[str, Any] = {"profiles": [{"plugins": {"score": {"enabled": [{"name": "Racked", "weight": 5}]}}}]}
TEXT = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {score: {enabled: [{name: Racked, weight: 5}]}}
"""


@pytest.mark.parametrize("config", [MAPPING, TEXT], ids=["mapping", "text"])
def test_a_configuration_defines_the_points_of_plugins(config: Any) -> None:
    described = Harness([Racked], config=config).profile().describe()
    assert "Racked:5" in described["score"]
    assert "Racked" not in described["filter"]


def test_a_configuration_without_the_plugin_is_rejected() -> None:
    with pytest.raises(
        UsageError, match='the configuration does not enable "Racked"; add it, for example at multiPoint'
    ):
        Harness([Racked], config={"profiles": []})


@pytest.mark.parametrize("more", [{"only": True}, {"args": {"Racked": 1}}, {"weights": {"Racked": 1}}], ids=str)
def test_config_excludes_other_options(more: Any) -> None:
    with pytest.raises(UsageError, match="config excludes args, weights and only"):
        Harness([Racked], config=MAPPING, **more)


def test_an_invalid_configuration_is_rejected_with_the_schedulers_message() -> None:
    with pytest.raises(ConfigError, match='"Missing" does not exist'):
        Harness(config={"profiles": [{"plugins": {"filter": {"enabled": [{"name": "Missing"}]}}}]})


# Queries


def test_filter_returns_every_node() -> None:
    cluster = Harness([Racked], nodes=[RACK_A, UNRACKED])
    assert cluster.filter(make_pod()) == {"a": "ok", "c": unresolvable("node(s) are in no rack").by("Racked")}
    assert cluster.status(make_pod(), "a").ok
    assert cluster.status(make_pod(), "c").message == "node(s) are in no rack"


def test_the_status_of_an_unknown_node_is_an_error() -> None:
    with pytest.raises(UsageError, match='there is no node "z"; the nodes are: a, c'):
        Harness(nodes=[RACK_A, UNRACKED]).status(make_pod(), "z")


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
def test_a_prefilter_rejection_applies_to_every_node(name: str, expected: Status) -> None:
    assert Harness([RejectsFirst], nodes=[RACK_A]).filter(make_pod(name)) == {"a": expected}


def test_scores_of_feasible_nodes() -> None:
    cluster = Harness([Racked], nodes=[RACK_A, RACK_B, UNRACKED], only=True)
    assert cluster.scores(make_pod()) == {"a": {"Racked": 10}, "b": {"Racked": 20}}
    assert Harness([Racked], nodes=[UNRACKED]).scores(make_pod()) == {}


def test_an_invalid_score_is_an_error() -> None:
    with pytest.raises(PluginError, match='plugin "Racked" returns an invalid score 990'):
        Harness([Racked], nodes=[make_node("a", labels={"rack": "99"})]).scores(make_pod())


def test_queries_change_nothing() -> None:
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


def test_a_gated_pod_is_not_placed() -> None:
    cluster = Harness(nodes=[RACK_A])
    gated = make_pod(gates=["later"])
    assert cluster.pre_enqueue(gated).message == "waiting for scheduling gates: [later]"
    assert cluster.why(gated) == cluster.place(gated) == "waiting for scheduling gates: [later]"


@pytest.mark.parametrize(
    ("pod", "event", "new", "requeuing"),
    [
        pytest.param(make_pod(), NODE_ADDED, RACK_A, {"Racked"}, id="hint-queue"),
        pytest.param(make_pod(), NODE_ADDED, make_node("d"), set(), id="hint-skip"),
        pytest.param(
            make_pod(), ClusterEvent(EventResource.POD_GROUP, ActionType.ADD), None, set(), id="another-event"
        ),
        pytest.param(make_pod(gates=["x"]), NODE_ADDED, RACK_A, set(), id="rejected-by-another-plugin"),
        pytest.param(
            make_pod(gates=["x"]),
            ClusterEvent(EventResource.UNSCHEDULABLE_POD, ActionType.UPDATE_POD_GATES_ELIMINATED),
            make_pod(),
            {"SchedulingGates"},
            id="gate-removed",
        ),
    ],
)
def test_plugins_that_requeue_a_pod(pod: Pod, event: ClusterEvent, new: Any, requeuing: set[str]) -> None:
    assert Harness([Racked], nodes=[UNRACKED]).wakes(pod, event, new=new) == requeuing


class Hasty:
    """Its hint returns a value of the wrong type."""

    name = "Hasty"
    events_to_register = (ClusterEventWithHint(EventResource.NODE, ActionType.ADD, lambda _pod, _old, _new: True),)  # type: ignore[arg-type,return-value]

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
        return unschedulable("never")


def test_an_invalid_hint_result_is_an_error() -> None:
    cluster = Harness([Hasty], nodes=[make_node()])
    with pytest.raises(PluginError, match=r'a hint of plugin "Hasty" must return Hint\.QUEUE or Hint\.SKIP; got True'):
        cluster.wakes(make_pod(), ClusterEvent(EventResource.NODE, ActionType.ADD), new=make_node("new"))


@pytest.mark.parametrize("query", ["place", "bind", "filter", "scores", "why", "decide", "pre_enqueue", "node_of"])
def test_a_query_without_a_pod_is_rejected(query: str) -> None:
    with pytest.raises(UsageError, match="expected a pod, such as one of make_pod; got 'web'"):
        getattr(Harness(nodes=[make_node()]), query)("web")


def test_no_event_requeues_a_feasible_pod() -> None:
    assert Harness([Racked], nodes=[RACK_A]).wakes(make_pod(), NODE_ADDED, new=RACK_A) == set()
    assert Harness([Racked]).wakes(make_pod(), NODE_ADDED, new=RACK_A) == set()


# Placement


def test_placed_pods_use_resources() -> None:
    cluster = Harness(nodes=[make_node("a", cpu=2)])
    assert cluster.place(make_pod("one", cpu=2)) == "a"
    assert cluster.place(make_pod("two", cpu=1)).startswith("0/1 nodes are available: 1 Insufficient cpu.")
    assert cluster.why(make_pod("two", cpu=1)).startswith("0/1 nodes are available: 1 Insufficient cpu.")
    assert cluster.node_of(make_pod("one")) == "a"


def test_ties_depend_on_the_seed() -> None:
    nodes = [make_node(f"n{number}") for number in range(8)]

    def placed(seed: int) -> list[str]:
        cluster = Harness(nodes=nodes, seed=seed)
        return [cluster.place(make_pod(f"p{number}")) for number in range(3)]

    assert placed(1) == placed(1)
    assert len({tuple(placed(seed)) for seed in range(5)}) > 1


def test_priority_classes_are_applied() -> None:
    classes = [PriorityClass(metadata=ObjectMeta(name="vip"), value=7)]
    cluster = Harness(nodes=[make_node("a", cpu=1)], pods=[make_pod("weak", node="a", cpu=1)], objects=classes)
    assert cluster.decide(make_pod("strong", cpu=1, priority_class_name="vip")).victims == ("default/weak",)
    assert cluster.why(make_pod("strong", cpu=1, priority_class_name="vip")) == (
        "fits no node yet; it fits a once default/weak is gone"
    )


def test_a_priority_class_can_be_added_later() -> None:
    cluster = Harness()
    cluster.add(PriorityClass(metadata=ObjectMeta(name="vip"), value=7))
    assert cluster.order([make_pod("plain"), make_pod("vip", priority_class_name="vip")]) == ["vip", "plain"]


def test_pending_pods_are_placed_in_queue_order() -> None:
    pods = [make_pod("a", cpu=1), make_pod("b", cpu=1), make_pod("c", cpu=1, priority=5)]
    cluster = Harness([Backwards], nodes=[make_node("n", cpu=2)], pods=pods)
    results = cluster.place_all()
    assert list(results) == ["c", "b", "a"]
    assert [results["c"], results["b"]] == ["n", "n"]
    assert "Insufficient cpu" in results["a"]
    assert list(cluster.place_all()) == ["a"]


def test_the_cluster_can_change() -> None:
    cluster = Harness([Racked], nodes=[UNRACKED])
    pod = make_pod()
    assert "node(s) are in no rack" in cluster.place(pod)
    cluster.add(RACK_A, make_pod("full", node="a", cpu=8))
    assert "Insufficient cpu" in cluster.why(make_pod(cpu=1))
    cluster.add(make_pod("full", node="a", cpu=1))
    assert cluster.place(make_pod(cpu=1)) == "a"
    cluster.remove(make_pod("full"), UNRACKED)
    assert list(cluster.filter(make_pod())) == ["a"]


def test_other_objects_and_pending_pods_are_added_and_removed() -> None:
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
        nodes=[RACK_A, RACK_B], objects=[make_pvc("data", volume="disk"), make_pv("disk", near={"rack": "2"})]
    )
    assert cluster.place(make_pod(claims=["data"])) == "b"


class Teams:
    """Declares no signature, so its results cannot be shared."""

    name = "Teams"

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        team = cycle.pod.metadata.annotations["team"]
        yield Rejection(~nodes.where_label_in("team", [team]), "node(s) belong to another team")


@pytest.mark.parametrize("only", [False, True], ids=["beside", "only"])
def test_results_of_a_plugin_without_a_signature_are_not_shared(only: bool) -> None:
    nodes = [make_node(f"{team}-{number}", labels={"team": team}) for team in ("red", "blue") for number in range(2)]
    cluster = Harness([Teams], nodes=nodes, only=only)
    placed = [cluster.place(make_pod(team, annotations={"team": team})) for team in ("red", "blue", "green")]
    assert [where.partition("-")[0] for where in placed[:2]] == ["red", "blue"]
    assert "4 node(s) belong to another team" in placed[2]


def test_an_exception_in_a_plugin_fails_the_attempt_with_the_plugin_name() -> None:
    cluster = Harness([Teams], nodes=[UNRACKED])
    message = cluster.place(make_pod())
    assert message.startswith("running \"Teams\" filter plugin: KeyError: 'team' (test_harness.py:")
    assert cluster.why(make_pod()) == f"the attempt failed: {message}"


# Permit and time


def test_reserve_can_reject() -> None:
    cluster, recorder = recording(reserve=unschedulable("taken meanwhile"))
    message = cluster.place(make_pod())
    assert "taken meanwhile" in message
    assert cluster.why(make_pod()) == message
    assert recorder.calls == ["pre_enqueue", "reserve", "unreserve"]
    assert cluster.node_of(make_pod()) is None


def test_a_waiting_pod_is_released_by_its_plugin() -> None:
    cluster, recorder = recording(permit=PermitWait(30.0))
    pod = make_pod()
    assert cluster.place(pod) == cluster.why(pod) == "waiting on c for Recorder"
    assert cluster.waiting == {"pod": ["Recorder"]}
    (waiting_pod,) = recorder.handle.waiting_pods.all()
    waiting_pod.allow("Recorder")
    assert cluster.waiting == {}
    assert cluster.node_of(pod) == "c"
    assert cluster.why(pod) == "the only node that fits"


def test_a_waiting_pod_loses_its_node_after_the_permit_timeout() -> None:
    cluster, recorder = recording(permit=PermitWait(30.0))
    cluster.place(make_pod())
    cluster.advance(29)
    assert cluster.waiting
    cluster.advance(1)
    assert cluster.waiting == {}
    assert cluster.node_of(make_pod()) is None
    assert recorder.calls[-1] == "unreserve"
    assert "rejected due to timeout after waiting 30s at plugin Recorder" in cluster.why(make_pod())


def test_the_clock_starts_at_now() -> None:
    at = datetime(2027, 5, 1, tzinfo=UTC)
    cluster = Harness(now=at)
    cluster.advance(60)
    assert (cluster.clock.now() - at).total_seconds() == 60


# Binding


def test_bind_runs_the_binding_points_and_records_the_write() -> None:
    cluster, recorder = recording()
    assert cluster.bind(make_pod()) == "c"
    assert recorder.calls == ["pre_enqueue", "reserve", "permit", "pre_bind_preflight", "pre_bind", "post_bind"]
    (written,) = cluster.writes.performed
    assert isinstance(written, BindPod)
    assert written.node_name == "c"


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        pytest.param({"pre_bind": error("disk lost")}, "disk lost", id="prebind-fails"),
        pytest.param({"pre_bind_preflight": error("odd")}, 'running PreBindPreFlight "Recorder": odd', id="preflight"),
        pytest.param({"pre_enqueue": pending("not yet")}, "not yet", id="never-placed"),
        pytest.param({"permit": PermitWait(5.0)}, "waiting on c for Recorder", id="still-waiting"),
    ],
)
def test_failures_before_the_bind(answers: dict[str, Any], message: str) -> None:
    cluster, recorder = recording(**answers)
    assert message in cluster.bind(make_pod())
    assert cluster.writes.performed == []
    assert "post_bind" not in recorder.calls


def test_a_failed_bind_unreserves_the_node() -> None:
    cluster, recorder = recording()
    cluster.writes.failure = UsageError("conflict")
    assert cluster.bind(make_pod()) == 'running Bind plugin "DefaultBinder": conflict'
    assert cluster.node_of(make_pod()) is None
    assert recorder.calls[-1] == "unreserve"


@pytest.mark.parametrize("only", [False, True], ids=["beside", "only"])
def test_a_skipped_pod_is_bound_by_the_default_binder(only: bool) -> None:
    cluster = Harness([OwnBinder], nodes=[UNRACKED], only=only)
    assert cluster.bind(make_pod()) == "c"
    assert cluster.writes.performed == []
    assert cluster.bind(make_pod("strange")) == "c"
    assert [type(each) for each in cluster.writes.performed] == [BindPod]


def test_a_pod_without_a_bind_plugin() -> None:
    bind = {"disabled": [{"name": "DefaultBinder"}], "enabled": [{"name": "OwnBinder"}]}
    cluster = Harness([OwnBinder], nodes=[UNRACKED], config={"profiles": [{"plugins": {"bind": bind}}]})
    assert cluster.bind(make_pod("strange")) == "no plugin binds the pod"
    assert cluster.bind(make_pod()) == "c"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param({"plugins": Racked}, "plugins takes a list of classes.*; got the class Racked", id="a-class"),
        pytest.param({"plugins": [Racked()]}, "it contains an object of type Racked", id="an-instance"),
        pytest.param(
            {"nodes": UNRACKED}, "nodes takes a list of what make_node makes; got an object of type Node", id="node"
        ),
        pytest.param({"nodes": [{"metadata": {}}]}, "nodes takes .*; it contains an object of type dict", id="a-dict"),
        pytest.param({"pods": [UNRACKED]}, "pods takes .*; it contains an object of type Node", id="not-a-pod"),
        pytest.param({"objects": 7}, "objects takes .*; got 7", id="not-a-list"),
    ],
)
def test_arguments_that_are_not_lists_of_objects_are_rejected(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Harness(**given)


def test_a_closed_cluster_rejects_queries() -> None:
    cluster = Harness([Racked], nodes=[RACK_A])
    cluster.close()
    cluster.close()
    for query in (cluster.place, cluster.filter, cluster.why):
        with pytest.raises(UsageError, match="this cluster is closed"):
            query(make_pod())


@pytest.mark.parametrize("answer", ["x", None, 1])
def test_a_less_result_that_is_no_bool_is_rejected(answer: Any) -> None:
    sorts = type("Sorts", (), {"name": "Sorts", "less": lambda *_: answer})
    with pytest.raises(PluginError, match=f'plugin "Sorts" at queueSort: less answers True or False; got {answer!r}'):
        Harness([sorts]).order([make_pod("a"), make_pod("b")])


def test_a_running_pod_cannot_be_bound_again() -> None:
    cluster = Harness(nodes=[UNRACKED], pods=[make_pod("there", node="c")])
    cluster.place(make_pod())
    assert cluster.bind(make_pod()) == "c"
    for name in ("pod", "there"):
        with pytest.raises(UsageError, match=f"pod default/{name} already runs on c"):
            cluster.bind(make_pod(name))


def test_close_closes_the_plugins() -> None:
    with Harness([Recorder]) as cluster:
        recorder = cluster.profile().instances["Recorder"]
        assert not recorder.closed
    assert recorder.closed
