"""Filter results after AddPod and RemovePod equal those on a cluster with the same pods.

Preemption removes pods from a fork and adds some back, and nominated pods are added: spread and affinity adjust their
counts. One difference is by design: spread subtracts a terminating pod, or one under an empty selector, although it
never counted it, so neither occurs here.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bayplan.objects.core import Pod
from bayplan.snapshot import PodInfo
from naive import inter_pod_affinity, pod_topology_spread
from naive.twin import Case, Twin
from support.builders.framework import (
    FakeHandle,
    make_cycle,
    make_filtering,
    make_plugin,
    make_pod,
    make_snapshot,
    replace_fields,
)


def _counted(pod: Pod) -> Pod:
    return replace_fields(pod, metadata={"deletion_timestamp": None})


def _ordinary(case: Case) -> Case:
    """The case without terminating pods."""
    return replace(case, cluster=replace(case.cluster, pods=tuple(map(_counted, case.cluster.pods))))


def _has_empty_selector(case: Case) -> bool:
    selectors = [each.label_selector for each in case.pod.spec.topology_spread_constraints]
    return any(each is not None and not each.match_labels and not each.match_expressions for each in selectors)


@pytest.mark.parametrize(
    "twin",
    [
        pytest.param(pod_topology_spread.TWIN, id="PodTopologySpread"),
        pytest.param(inter_pod_affinity.TWIN, id="InterPodAffinity"),
    ],
)
@given(data=st.data())
@settings(max_examples=60)
def test_a_dry_run_equals_the_real_cluster(twin: Twin, data: st.DataObject) -> None:
    case = _ordinary(data.draw(twin.cases))
    assume(not _has_empty_selector(case))
    snapshot = make_snapshot(case.cluster.nodes, case.cluster.pods, case.cluster.objects)
    plugin = make_plugin(twin.plugin, args=case.args, handle=FakeHandle(snapshot.catalog))
    filtering, cycle = make_filtering(plugin), make_cycle(case.pod, snapshot)
    assume(filtering.pre_filter(cycle).status.ok and plugin.name not in cycle.skip_filter)
    row = data.draw(st.integers(0, len(snapshot) - 1))
    node = case.cluster.nodes[row]
    trial, fork = cycle.clone(), snapshot.nodes.fork([row])
    here = case.cluster.pods_on(node)
    gone = [pod for pod in here if data.draw(st.booleans(), label=f"remove {pod.name}")]
    like = data.draw(st.lists(st.sampled_from((*case.cluster.pods, case.pod)), max_size=2), label="add")
    added = [_renamed(pod, f"guest{number}", node.name) for number, pod in enumerate(like)]
    for pod in gone:
        assert filtering.remove_pod(trial, fork, PodInfo(pod)).ok
    for pod in added:
        assert filtering.add_pod(trial, fork, PodInfo(pod)).ok
    left = tuple(pod for pod in case.cluster.pods if pod not in gone)
    really = replace(case, cluster=replace(case.cluster, pods=(*left, *added)))
    assert twin.filter is not None
    found = filtering.filter_fork(trial, fork)
    assert (found.code.label, found.reasons) == twin.filter(really, node)
    assert filtering.filter_fork(cycle, snapshot.nodes.fork([row])).code.label == twin.filter(case, node)[0], (
        "no trace is left"
    )


def _renamed(pod: Pod, name: str, node: str) -> Pod:
    return make_pod(name, namespace=pod.namespace, labels=pod.labels, node=node, affinity=pod.spec.affinity)
