from __future__ import annotations

import pytest

from bayplan.batch.plugins.pdb import PdbPlugin
from bayplan.objects.meta import LabelSelector, ObjectMeta
from bayplan.objects.workloads import PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus
from bayplan.testing.builders import make_node
from support.builders.batch import NOW, make_group, make_member, open_session, task_names, tasks_of

WEB = LabelSelector(match_labels={"app": "web"})


def budget(
    allowed: int, selector: LabelSelector | None = WEB, *, namespace: str = "default", disrupted: tuple[str, ...] = ()
) -> PodDisruptionBudget:
    return PodDisruptionBudget(
        metadata=ObjectMeta(name=f"b{allowed}-{namespace}", namespace=namespace),
        spec=PodDisruptionBudgetSpec(selector=selector),
        status=PodDisruptionBudgetStatus(disruptions_allowed=allowed, disrupted_pods=dict.fromkeys(disrupted, NOW)),
    )


@pytest.mark.parametrize(
    ("budgets", "victims"),
    [
        pytest.param([], ["w1", "w2", "db"], id="no-budget"),
        pytest.param([budget(1)], ["w1", "db"], id="one-of-two"),
        pytest.param([budget(0)], ["db"], id="none"),
        pytest.param(
            [budget(2), budget(1, LabelSelector())], ["w1", "w2", "db"], id="an-empty-selector-covers-nothing"
        ),
        pytest.param([budget(0, None)], ["w1", "w2", "db"], id="no-selector-covers-nothing"),
        pytest.param([budget(0, namespace="other")], ["w1", "w2", "db"], id="another-namespace"),
        pytest.param([budget(0, disrupted=("w1",))], ["w1", "db"], id="disrupted-already"),
        pytest.param([budget(2), budget(1)], ["w1", "db"], id="every-budget"),
    ],
)
def test_allowed_victims(budgets: list[PodDisruptionBudget], victims: list[str]) -> None:
    pods = [
        make_member("w1", node="n", labels={"app": "web"}),
        make_member("bare", node="n"),
        make_member("w2", node="n", labels={"app": "web"}),
        make_member("db", node="n", labels={"app": "db"}),
    ]
    with open_session(PdbPlugin, nodes=[make_node("n")], pods=pods, objects=[make_group(), *budgets]) as session:
        candidates = tasks_of(session, "w1", "bare", "w2", "db")
        assert task_names(session.preemptable(candidates[0], candidates)) == victims
        assert task_names(session.reclaimable(candidates[0], candidates)) == victims
        assert task_names(session.victim_tasks(candidates)) == victims
