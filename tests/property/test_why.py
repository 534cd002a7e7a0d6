"""Every pending pod gets an explanation; suggestions are correct; and if one change suffices, one is found."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayplan.explain.answer_builder import NO_CHANGE_HELPS, NO_SINGLE_CHANGE_IS_ENOUGH
from bayplan.explain.pod_explainer import PodExplainer
from bayplan.framework.runtime.cooperative import run_to_end
from bayplan.objects.core import Pod
from bayplan.objects.pod_relaxations import SuggestedChange
from bayplan.telemetry.answers import Answer
from bayplan.testing import Harness, make_affinity, make_spread
from bayplan.testing.strategies import RandomCluster, clusters, nodes, pods
from naive import why as naive

WEB = {"app": "web"}
UNHURRIED = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))

spreads = st.lists(
    st.builds(
        make_spread,
        st.sampled_from(["topology.kubernetes.io/zone", "kubernetes.io/hostname"]),
        labels=st.just(WEB),
        node_taints_policy=st.sampled_from([None, "Honor"]),
        min_domains=st.sampled_from([None, 2]),
    ),
    max_size=1,
)
affinities = st.sampled_from(
    [
        None,
        None,
        make_affinity(nodes={"disk": ["ssd"]}),
        make_affinity(nodes={"disk": ["ssd"], "team": ["red"]}),
        make_affinity(near=WEB),
        make_affinity(apart=WEB),
    ]
)
one_taint = st.sampled_from([[], [], ["gpu:NoSchedule"], ["old:NoExecute"], ["gpu:NoSchedule", "old:NoExecute"]])
"""Most pods have one unsatisfiable requirement, so that one change often suffices and often does not."""
waiting = st.one_of(
    pods(
        labels=st.just(WEB),
        cpu=st.sampled_from([None, "1", "3"]),
        memory=None,
        priority=st.sampled_from([0, 10]),
        node_selector=st.sampled_from([{}, {}, {"disk": "ssd"}]),
        tolerations=st.sampled_from([[], ["gpu"]]),
        spread=spreads,
        affinity=affinities,
    ),
    pods(
        gates=st.sampled_from([(), ("a",), ("a", "b")]),
        claims=st.sampled_from([(), ("data",)]),
        host_ports=st.sampled_from([[], [80], [80, 443]]),
        node_selector=st.sampled_from([{}, {"disk": "ssd"}]),
    ),
)
small = clusters(
    nodes(
        cpu=st.sampled_from(["2", "4"]),
        memory="8Gi",
        capacity=st.sampled_from([{"pods": "110"}, {"pods": "110"}, {"pods": "2"}]),
        taints=one_taint,
        unschedulable=st.sampled_from([False, False, False, True]),
    ),
    pods(
        labels=st.sampled_from([WEB, {}]),
        cpu=st.sampled_from(["1", "3"]),
        priority=st.sampled_from([0, 0, 10]),
        host_ports=st.sampled_from([[], [80]]),
    ),
    max_nodes=3,
    max_pods=4,
)


def asked(cluster: RandomCluster, pod: Pod) -> Answer:
    with Harness(nodes=cluster.nodes, pods=[*cluster.pods, pod], objects=cluster.objects) as harness:
        return run_to_end(PodExplainer(harness.engine, harness.clock).explain_pending(pod, now=True))


def after(cluster: RandomCluster, pod: Pod, changes: tuple[SuggestedChange, ...]) -> list[str]:
    """The feasible nodes after the changes were applied."""
    for change in changes:
        cluster, pod = naive.made(cluster, pod, change)
    return naive.fitting(cluster, pod)


@UNHURRIED
@given(cluster=small, pod=waiting)
def test_one_change_is_found_if_one_suffices_and_every_suggestion_helps(cluster: RandomCluster, pod: Pod) -> None:
    fitting = naive.fitting(cluster, pod)
    answer = asked(cluster, pod)
    assert answer.sentence
    if fitting:
        assert answer.closest in fitting
        assert not answer.changes
        assert not answer.together
        return
    assert answer.reasons
    for change in answer.changes:
        assert change.node in after(cluster, pod, (change,)), change
    assert {change.kind for change in answer.changes} == naive.enough(cluster, pod)
    if answer.together:
        assert answer.no_change == NO_SINGLE_CHANGE_IS_ENOUGH
        assert answer.closest in after(cluster, pod, answer.together)
    elif not answer.changes:
        assert answer.no_change == NO_CHANGE_HELPS
