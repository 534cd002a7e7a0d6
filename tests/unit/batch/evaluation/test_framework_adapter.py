"""Framework plugins in a session are evaluated once per class of tasks, and then only for changes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.objects.core import Affinity, Pod, PodAffinity, PodAffinityTerm, WeightedPodAffinityTerm
from bayplan.objects.meta import LabelSelector
from bayplan.plugins.inter_pod_affinity.plugin import InterPodAffinity
from bayplan.plugins.pod_topology_spread.plugin import PodTopologySpread
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member
from support.builders.batch_engines import build_engine

GANG = 6
POINTS = ("pre_filter", "pre_score", "score_nodes")
HOST = "kubernetes.io/hostname"


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Number of full evaluations of affinity and spread."""
    counts: Counter[str] = Counter()
    for plugin in (InterPodAffinity, PodTopologySpread):
        for name in POINTS:
            monkeypatch.setattr(plugin, name, _counting(counts, f"{plugin.__name__}.{name}", getattr(plugin, name)))
    return counts


def _counting(counts: Counter[str], name: str, method: Any) -> Any:
    def counted(*args: Any) -> Any:
        counts[name] += 1
        return method(*args)

    return counted


def gang(name: str, size: int = GANG) -> list[Pod]:
    return [make_member(f"{name}-w-{number}", name) for number in range(size)]


def test_plugins_that_are_not_applicable_are_not_evaluated_again(evaluations: Counter[str]) -> None:
    nodes = [make_node(f"n{number}", cpu=8) for number in range(3)]
    engine = build_engine(nodes=nodes, pods=gang("job"), objects=[make_group("job", min_member=GANG)])
    assert len(engine.run_session().binds) == GANG
    assert not evaluations


def test_a_gang_without_terms_is_evaluated_once_beside_pods_with_terms(evaluations: Counter[str]) -> None:
    term = PodAffinityTerm(topology_key=HOST, label_selector=LabelSelector(match_labels={"app": "other"}))
    shy = Affinity(pod_anti_affinity=PodAffinity(required=(term,), preferred=(WeightedPodAffinityTerm(1, term),)))
    pod = make_member("shy", "old", node="n0", labels={"app": "shy"})
    old = replace(pod, spec=replace(pod.spec, affinity=shy))
    nodes = [make_node(f"n{number}", cpu=8) for number in range(3)]
    groups = [make_group("job", min_member=GANG), make_group("old", phase="Running")]
    engine = build_engine(nodes=nodes, pods=[old, *gang("job")], objects=groups)
    assert len(engine.run_session().binds) == GANG
    assert max(evaluations.values()) <= 2, evaluations
