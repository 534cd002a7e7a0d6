"""Every pod that a session leaves waiting has an answer, and what is suggested lets the next session place it.

No node holds more than it has: sessions leave such a node alone, as Volcano's do, and filters know nothing of that.
"""

from __future__ import annotations

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batch_builders import GROUP_NAME, make_group, make_queue
from bayplan.batch.live.explaining import BatchExplainer
from bayplan.framework.answering import NOT_ALONE, NOTHING_HELPS
from bayplan.objects.core import Pod, PodStatus
from bayplan.objects.relaxing import Change
from bayplan.telemetry.answers import PENDING, Answer
from bayplan.testing import make_affinity
from bayplan.testing.strategies import Cluster, clusters, nodes, pods
from builders import changed
from live_batch_rig import batch_running
from naive import why as naive

WEB = {"app": "web"}
UNHURRIED = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))

waiting = pods(
    labels=st.just(WEB),
    cpu=st.sampled_from(["1", "3"]),
    memory=None,
    node_selector=st.sampled_from([{}, {}, {"disk": "ssd"}]),
    tolerations=st.sampled_from([[], ["gpu"]]),
    host_ports=st.sampled_from([[], [], [80]]),
    affinity=st.sampled_from([None, None, make_affinity(nodes={"disk": ["ssd"]}), make_affinity(apart=WEB)]),
)
small = clusters(
    nodes(
        cpu=st.sampled_from(["4", "8"]),
        memory="8Gi",
        taints=st.sampled_from([[], [], ["gpu:NoSchedule"], ["gpu:NoSchedule", "old:NoExecute"]]),
        unschedulable=st.sampled_from([False, False, False, True]),
    ),
    pods(
        labels=st.sampled_from([WEB, {}]),
        cpu=st.sampled_from(["1", "2"]),
        host_ports=st.sampled_from([[], [80]]),
    ),
    max_nodes=3,
    max_pods=2,
)


def asked(cluster: Cluster, pod: Pod) -> Answer | None:
    """Why a pod that is a gang of its own waits after a session; None where it does not."""
    mine = changed(
        pod,
        metadata={"annotations": {GROUP_NAME: "alone"}},
        spec={"scheduler_name": "volcano"},
        status=PodStatus(phase="Pending"),
    )

    async def session() -> Answer | None:
        known = (*cluster.nodes, *cluster.pods, *cluster.objects)
        async with batch_running(*known, make_queue(), make_group("alone", min_member=1), mine) as rig:
            outcome = await rig.session()
            return None if mine.key in outcome.binds else await BatchExplainer(rig.live).answer(mine)

    return asyncio.run(session())


def after(cluster: Cluster, pod: Pod, changes: tuple[Change, ...]) -> Answer | None:
    """The same once changes were really made."""
    for change in changes:
        cluster, pod = naive.made(cluster, pod, change)
    return asked(cluster, pod)


@UNHURRIED
@given(cluster=small, pod=waiting)
def test_what_is_suggested_lets_the_next_session_place_the_pod(cluster: Cluster, pod: Pod) -> None:
    answer = asked(cluster, pod)
    fits = bool(naive.fitting(cluster, pod))
    assert (answer is None) == fits
    if answer is None:
        return
    assert answer.state == PENDING
    assert answer.sentence
    assert answer.reasons
    for change in answer.changes:
        assert after(cluster, pod, (change,)) is None, change
    assert {change.kind for change in answer.changes} == naive.enough(cluster, pod)
    if answer.together:
        assert answer.no_change == NOT_ALONE
        assert after(cluster, pod, answer.together) is None
    elif not answer.changes:
        assert answer.no_change == NOTHING_HELPS
