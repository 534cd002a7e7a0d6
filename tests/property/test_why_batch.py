"""Every pod left pending by a session gets an explanation; suggestions let the next session place it; if one change
suffices, one is found.

Nodes may be overcommitted, cordoned or oversubscribed; pods may request nothing, and sessions may or may not backfill.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayplan.batch.model.node_accounts import OVERSUBSCRIPTION_CPU
from bayplan.explain.answer_builder import NO_CHANGE_HELPS, NO_SINGLE_CHANGE_IS_ENOUGH
from bayplan.explain.batch_explainer import BatchExplainer
from bayplan.objects.core import Node, Pod, PodStatus
from bayplan.objects.pod_relaxations import SuggestedChange
from bayplan.telemetry.answers import PENDING, Answer
from bayplan.testing import make_affinity, make_spread
from bayplan.testing.strategies import RandomCluster, clusters, nodes, pods
from naive import why as naive
from support.builders.batch import GROUP_NAME, make_group, make_queue
from support.builders.batch_engines import GANGS, build_engine
from support.builders.framework import replace_fields
from support.harness.live_batch import run_live_batch

WEB = {"app": "web"}
UNHURRIED = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
NO_BACKFILL = GANGS.replace(", backfill", "")
CLOSED = ["node.kubernetes.io/not-ready:NoSchedule", "node.kubernetes.io/not-ready:NoExecute"]

waiting = pods(
    labels=st.just(WEB),
    cpu=st.sampled_from([None, "1", "3"]),
    memory=st.sampled_from([None, None, "1Gi"]),
    priority=st.sampled_from([0, 10]),
    node_selector=st.sampled_from([{}, {}, {"disk": "ssd"}]),
    tolerations=st.sampled_from([[], ["gpu"]]),
    host_ports=st.sampled_from([[], [], [80]]),
    gates=st.sampled_from([(), (), ("a",)]),
    affinity=st.sampled_from([None, None, make_affinity(nodes={"disk": ["ssd"]}), make_affinity(apart=WEB)]),
    spread=st.sampled_from([[], [], [make_spread("topology.kubernetes.io/zone", labels=WEB)]]),
)


def lent(node: Node, cpu: str) -> Node:
    return replace_fields(node, metadata={"annotations": {OVERSUBSCRIPTION_CPU: cpu}}) if cpu else node


small = clusters(
    st.builds(
        lent,
        nodes(
            cpu=st.sampled_from(["1", "4"]),
            memory=st.sampled_from(["1Gi", "8Gi"]),
            capacity=st.sampled_from([{"pods": "110"}, {"pods": "110"}, {"pods": "1"}]),
            taints=st.sampled_from([[], [], [], ["gpu:NoSchedule"], ["gpu:NoSchedule", "old:NoExecute"], CLOSED]),
            unschedulable=st.sampled_from([False, False, False, True]),
        ),
        st.sampled_from(["", "", "2000"]),
    ),
    pods(
        labels=st.sampled_from([WEB, {}]),
        cpu=st.sampled_from([None, "1", "2"]),
        memory=st.sampled_from([None, "1Gi", "2Gi"]),
        priority=st.sampled_from([0, 0, 10]),
        host_ports=st.sampled_from([[], [80]]),
    ),
    max_nodes=3,
    max_pods=4,
)


def of_a_gang(pod: Pod) -> Pod:
    """The pod as a gang of one."""
    return replace_fields(
        pod,
        metadata={"annotations": {GROUP_NAME: "alone"}},
        spec={"scheduler_name": "volcano"},
        status=PodStatus(phase="Pending"),
    )


def asked(cluster: RandomCluster, pod: Pod, conf: str) -> Answer | None:
    """Why a pod is pending after a session; None if it is not."""
    mine = of_a_gang(pod)

    async def session() -> Answer | None:
        known = (*cluster.nodes, *cluster.pods, *cluster.objects)
        async with run_live_batch(*known, make_queue(), make_group("alone", min_member=1), mine, conf=conf) as harness:
            outcome = await harness.session()
            return None if mine.key in outcome.binds else await BatchExplainer(harness.live).answer(mine)

    return asyncio.run(session())


@dataclass(frozen=True, slots=True)
class Chances:
    """Whether a session tries a pod, and the result of its evaluation."""

    tried: bool
    taken_by: list[str] = field(default_factory=list)
    chosen_in_vain: bool = False
    """Backfill does not check room, like Volcano's: it may choose a node that rejects the pod."""


def chances(cluster: RandomCluster, pod: Pod, conf: str) -> Chances:
    mine, group = of_a_gang(pod), make_group("alone", min_member=1)
    engine = build_engine(conf=conf, nodes=cluster.nodes, pods=[*cluster.pods, mine], objects=[*cluster.objects, group])
    with engine.session() as session:
        task = next(iter(session.jobs["default/alone"].pending.values()))
        if task.gated or (task.best_effort and "backfill" not in session.actions):
            return Chances(tried=False)
        if session.pre_predicate(task):
            return Chances(tried=True)
        prospect = session.evaluate_class(task)
        allowed, roomy = prospect.rows_to_allocate(task), prospect.fits_idle & prospect.fits_future
        names = session.snapshot.nodes.names
        taken_by = [names[row] for row in np.flatnonzero(allowed & roomy).tolist()]
        return Chances(True, taken_by, task.best_effort and bool((allowed & ~roomy).any()))


def is_enough(cluster: RandomCluster, pod: Pod, changes: tuple[SuggestedChange, ...], conf: str) -> bool:
    """Whether a session places the pod after the changes; or could, if its choice may fail."""
    for change in changes:
        cluster, pod = naive.made(cluster, pod, change)
    found = chances(cluster, pod, conf)
    return bool(found.taken_by) and (found.chosen_in_vain or asked(cluster, pod, conf) is None)


@UNHURRIED
@given(cluster=small, pod=waiting, conf=st.sampled_from([GANGS, GANGS, NO_BACKFILL]))
def test_a_suggestion_lets_the_next_session_place_the_pod(cluster: RandomCluster, pod: Pod, conf: str) -> None:
    answer, found = asked(cluster, pod, conf), chances(cluster, pod, conf)
    if answer is None:
        assert found.taken_by
        return
    assert answer.state == PENDING
    assert answer.sentence
    if found.taken_by:
        assert found.chosen_in_vain
        return
    assert answer.reasons or not found.tried
    for change in answer.changes:
        assert is_enough(cluster, pod, (change,), conf), change
    kinds = naive.enough_for(lambda others, mine: chances(others, mine, conf).taken_by, cluster, pod)
    assert {change.kind for change in answer.changes} == kinds
    if answer.together:
        assert answer.no_change == NO_SINGLE_CHANGE_IS_ENOUGH
        assert is_enough(cluster, pod, answer.together, conf)
    elif not answer.changes:
        assert answer.no_change == NO_CHANGE_HELPS
