from __future__ import annotations

from datetime import timedelta

import pytest

from bayplan.batch.plugins.cdp import CdpPlugin
from bayplan.objects.core import Pod
from bayplan.objects.meta import Condition
from bayplan.testing.builders import make_node
from support.builders.batch import NOW, make_group, make_member, open_session, task_names, tasks_of

COOLDOWN = "volcano.sh/cooldown-time"
PLACED = Condition(type="PodScheduled", status="True", last_transition_time=NOW - timedelta(minutes=10))
NOT_PLACED = Condition(type="PodScheduled", status="False", last_transition_time=NOW)
READY = Condition(type="Ready", status="True", last_transition_time=NOW)


def pod(
    label: str = "", annotation: str = "", conditions: tuple[Condition, ...] = (PLACED,), phase: str = "Running"
) -> Pod:
    labels = {COOLDOWN: label} if label else {}
    annotations = {COOLDOWN: annotation} if annotation else {}
    return make_member("p", node="n", labels=labels, annotations=annotations, conditions=conditions, phase=phase)


@pytest.mark.parametrize(
    ("victim", "protected"),
    [
        pytest.param(pod(), False, id="no-cooldown-time"),
        pytest.param(pod("11m"), True, id="label"),
        pytest.param(pod("", "11m"), True, id="annotation"),
        pytest.param(pod("1m", "11m"), False, id="label-before-annotation"),
        pytest.param(pod("10m"), False, id="just-over"),
        pytest.param(pod("a while"), False, id="no-duration"),
        pytest.param(pod("11m", phase="Pending"), False, id="not-running-yet"),
        pytest.param(pod("11m", conditions=()), False, id="no-condition"),
        pytest.param(pod("11m", conditions=(NOT_PLACED, READY)), False, id="not-placed"),
        pytest.param(pod("11m", conditions=(READY, NOT_PLACED, PLACED)), True, id="other-conditions-first"),
        pytest.param(pod("11m", conditions=(Condition(type="PodScheduled", status="True"),)), False, id="no-time"),
    ],
)
def test_protected_pods(victim: Pod, protected: bool) -> None:
    evictor = make_member("e", "other")
    groups = [make_group(), make_group("other")]
    with open_session(CdpPlugin, nodes=[make_node("n")], pods=[victim, evictor], objects=groups) as session:
        (preemptor,) = tasks_of(session, "e")
        candidates = tasks_of(session, "p")
        expected = [] if protected else ["p"]
        assert task_names(session.preemptable(preemptor, candidates)) == expected
        assert task_names(session.reclaimable(preemptor, candidates)) == expected
