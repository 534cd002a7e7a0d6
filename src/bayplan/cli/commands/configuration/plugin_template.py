"""Templates of a new plugin: an example rule, and its tests.

Used by `bayplan plugin new`. The rule needs both a filter and a score, so an author edits working code instead of
reading references.
"""

from __future__ import annotations

from string import Template

_ONE_NODE = '''\
"""Filters and scores nodes by a label. Called for one node at a time.

The rule is an example: replace it with yours, here and in the tests,
test_$module.py.
"""

from bayplan.framework import (
    MAX_SCORE,
    ActionType,
    ClusterEventWithHint,
    Cycle,
    EventResource,
    NodeInfo,
    Status,
    unresolvable,
)

LABEL = "example.com/$slug"
REASON = "node(s) didn't have the pod's value of the label $slug"


class $name:
    """Pods with the label run only on nodes with the same value; pods without it avoid those nodes."""

    name = "$name"
    events_to_register = (ClusterEventWithHint(EventResource.NODE, ActionType.ADD | ActionType.UPDATE_NODE_LABEL),)

    def filter(self, cycle: Cycle, node: NodeInfo) -> Status | None:
        """Filter: None if the pod may run on this node."""
        wanted = cycle.pod.labels.get(LABEL)
        if wanted is None or node.labels.get(LABEL) == wanted:
            return None
        return unresolvable(REASON)

    def score(self, cycle: Cycle, node: NodeInfo) -> int:
        """Score the node for the pod, from 0 to 100."""
        return MAX_SCORE if (LABEL in node.labels) == (LABEL in cycle.pod.labels) else 0
'''

_ALL_NODES = '''\
"""Filters and scores nodes by a label. Called once for all nodes.

The rule is an example: replace it with yours, here and in the tests,
test_$module.py. Cost: one lookup of the column of a label.
"""

from collections.abc import Hashable, Iterator

import numpy as np
from bayplan.framework import (
    MAX_SCORE,
    ActionType,
    ClusterEventWithHint,
    Cycle,
    EventResource,
    IntVector,
    NodeTable,
    PluginTraits,
    Pod,
    Rejection,
    row_local,
)

LABEL = "example.com/$slug"
REASON = "node(s) didn't have the pod's value of the label $slug"


class $name:
    """Pods with the label run only on nodes with the same value; pods without it avoid those nodes."""

    name = "$name"
    events_to_register = (ClusterEventWithHint(EventResource.NODE, ActionType.ADD | ActionType.UPDATE_NODE_LABEL),)
    traits = PluginTraits(
        depends_on=row_local,  # results for a node depend only on the pod and that node,
        looks_at_pods=False,  # and not on the pods on it
    )

    def signature(self, pod: Pod) -> Hashable:
        """Pods with the same value get the same results."""
        return (pod.labels.get(LABEL),)

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        """Filter all nodes. Nodes without a rejection fit."""
        wanted = cycle.pod.labels.get(LABEL)
        if wanted is not None:
            yield Rejection(~nodes.where_label_in(LABEL, [wanted]), REASON, resolvable=False)

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        """Score all nodes for the pod, from 0 to 100."""
        scores: IntVector = np.zeros(len(nodes), dtype=np.int64)
        scores[(nodes.label_ids(LABEL) >= 0) == (LABEL in cycle.pod.labels)] = MAX_SCORE
        return scores
'''

_TEST = '''\
"""Decisions of $name on small clusters. Run it with pytest."""

from bayplan.framework import ActionType, ClusterEvent, EventResource, unresolvable
$imports

from $module import LABEL, REASON, $name

BLUE = make_node("blue", labels={LABEL: "blue"})
PLAIN = make_node("plain")
LABELS = label_sets({LABEL: ["blue", "red"]})
PODS, CLUSTERS = pods(labels=LABELS), clusters(nodes(labels=LABELS))


def test_a_pod_with_the_label_runs_only_on_nodes_with_the_same_value() -> None:
    cluster = Harness([$name], nodes=[BLUE, PLAIN])
    pod = make_pod(labels={LABEL: "blue"})
    assert cluster.filter(pod) == {"blue": "ok", "plain": unresolvable(REASON).by("$name")}
    assert cluster.place(pod) == "blue"


def test_a_pod_without_the_label_avoids_labelled_nodes() -> None:
    cluster = Harness([$name], nodes=[BLUE, PLAIN], only=True)
    found = {node: scores["$name"] for node, scores in cluster.scores(make_pod()).items()}
    assert found == {"blue": 0, "plain": 100}


def test_a_new_node_requeues_the_pod() -> None:
    cluster = Harness([$name], nodes=[PLAIN])
    pod = make_pod(labels={LABEL: "blue"})
    assert cluster.why(pod).startswith(f"0/1 nodes are available: 1 {REASON}.")
    requeuing = cluster.wakes(pod, ClusterEvent(EventResource.NODE, ActionType.ADD), new=BLUE)
    assert requeuing == {"$name"}


def test_all_forms_of_the_plugin_agree() -> None:
    check_forms_agree($name, pods=PODS, clusters=CLUSTERS)
'''

_SHARING_TEST = """

def test_pods_with_the_same_signature_get_the_same_results() -> None:
    check_sharing_agrees($name, pods=PODS, clusters=CLUSTERS)
"""

_IMPORTS = """\
from bayplan.testing import Harness, check_forms_agree, clusters, label_sets, make_node, make_pod, nodes, pods"""

_MORE_IMPORTS = """\
from bayplan.testing import (
    Harness,
    check_forms_agree,
    check_sharing_agrees,
    clusters,
    label_sets,
    make_node,
    make_pod,
    nodes,
    pods,
)"""

_TEMPLATES = {"node": (_ONE_NODE, _TEST, _IMPORTS), "table": (_ALL_NODES, _TEST + _SHARING_TEST, _MORE_IMPORTS)}
TEMPLATE_NAMES = tuple(_TEMPLATES)


def render_plugin(form: str, *, name: str, module: str) -> tuple[str, str]:
    """The texts of both files."""
    plugin, test, imports = _TEMPLATES[form]
    words = {"name": name, "module": module, "slug": module.replace("_", "-"), "imports": imports}
    return Template(plugin).substitute(words), Template(test).substitute(words)
