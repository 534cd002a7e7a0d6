from __future__ import annotations

from msgspec.structs import replace

from bayplan.batch.plugins.conformance import ConformancePlugin
from bayplan.batch.session.registration import EvictionContext, EvictionKind
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, open_session, task_names, tasks_of


def test_critical_pods_are_no_victims() -> None:
    plain = make_member("plain", node="n")
    critical = make_member("critical", node="n")
    critical = replace(critical, spec=replace(critical.spec, priority_class_name="system-node-critical"))
    system = make_member("system", node="n", namespace="kube-system")
    groups = [make_group(), make_group(namespace="kube-system")]
    with open_session(
        ConformancePlugin, nodes=[make_node("n")], pods=[plain, critical, system], objects=groups
    ) as session:
        candidates = tasks_of(session, "plain", "critical", "system")
        assert task_names(session.preemptable(candidates[0], candidates)) == ["plain"]
        assert task_names(session.reclaimable(candidates[0], candidates)) == ["plain"]
        context = EvictionContext(EvictionKind.GANG_RECLAIM, session.jobs["default/job"])
        assert task_names(session.unified_evictable(context, candidates)) == ["plain"]
