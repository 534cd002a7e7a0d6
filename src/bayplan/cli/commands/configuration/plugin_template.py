"""What stands in the files of a new plugin: a rule that works, and the tests that hold it.

Asked by `bayplan plugin new`. The rule is one that needs both a filter and a score, so that an author deletes and
replaces instead of looking things up.
"""

from __future__ import annotations

from string import Template

_ONE_NODE = '''\
"""Which nodes may a pod run on, and which does it like best? Asked about one node at a time.

The rule is an example that works: put yours in its place, here and in the tests,
test_$module.py.
"""

from bayplan.framework import MAX_SCORE, Action, Cure, Cycle, NodeView, Resource, Status, unresolvable

LABEL = "example.com/$slug"
REASON = "node(s) didn't have the pod's value of the label $slug"


class $name:
    """Pods with the label run only on nodes with the same value; pods without it leave those nodes to them."""

    name = "$name"
    cured_by = (Cure(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL),)

    def filter(self, cycle: Cycle, node: NodeView) -> Status | None:
        """May the pod run on this node? None says yes."""
        wanted = cycle.pod.labels.get(LABEL)
        if wanted is None or node.labels.get(LABEL) == wanted:
            return None
        return unresolvable(REASON)

    def score(self, cycle: Cycle, node: NodeView) -> int:
        """How good is the node for the pod, from 0 to 100?"""
        return MAX_SCORE if (LABEL in node.labels) == (LABEL in cycle.pod.labels) else 0
'''

_ALL_NODES = '''\
"""Which nodes may a pod run on, and which does it like best? Asked about all nodes at once.

The rule is an example that works: put yours in its place, here and in the tests,
test_$module.py. Cost: one look at the column of a label.
"""

from collections.abc import Hashable, Iterator

import numpy as np
from bayplan.framework import (
    MAX_SCORE,
    Action,
    Cure,
    Cycle,
    IntVector,
    NodeTable,
    Pod,
    Rejection,
    Resource,
    row_alone,
)

LABEL = "example.com/$slug"
REASON = "node(s) didn't have the pod's value of the label $slug"


class $name:
    """Pods with the label run only on nodes with the same value; pods without it leave those nodes to them."""

    name = "$name"
    cured_by = (Cure(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL),)
    depends_on = row_alone  # what is said of a node depends on the pod and that node, on nothing else,
    looks_at_pods = False  # and not on the pods that run there

    def signature(self, pod: Pod) -> Hashable:
        """Pods for which this is equal get equal answers."""
        return (pod.labels.get(LABEL),)

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:
        """Which nodes are refused, and why? No rejection says that all fit."""
        wanted = cycle.pod.labels.get(LABEL)
        if wanted is not None:
            yield Rejection(~nodes.where_label_in(LABEL, [wanted]), REASON, resolvable=False)

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:
        """How good is each node for the pod, from 0 to 100?"""
        scores: IntVector = np.zeros(len(nodes), dtype=np.int64)
        scores[(nodes.label_ids(LABEL) >= 0) == (LABEL in cycle.pod.labels)] = MAX_SCORE
        return scores
'''

_TEST = '''\
"""What $name decides, on small clusters. Run it with pytest."""

from bayplan.framework import Action, ClusterEvent, Resource, unresolvable
$imports

from $module import LABEL, REASON, $name

BLUE = make_node("blue", labels={LABEL: "blue"})
PLAIN = make_node("plain")
LABELS = label_sets({LABEL: ["blue", "red"]})
PODS, CLUSTERS = pods(labels=LABELS), clusters(nodes(labels=LABELS))


def test_a_pod_with_the_label_runs_only_where_the_value_is_the_same() -> None:
    cluster = Harness([$name], nodes=[BLUE, PLAIN])
    pod = make_pod(labels={LABEL: "blue"})
    assert cluster.filter(pod) == {"blue": "ok", "plain": unresolvable(REASON).by("$name")}
    assert cluster.place(pod) == "blue"


def test_a_pod_without_the_label_leaves_labelled_nodes_to_others() -> None:
    cluster = Harness([$name], nodes=[BLUE, PLAIN], only=True)
    given = {node: scores["$name"] for node, scores in cluster.scores(make_pod()).items()}
    assert given == {"blue": 0, "plain": 100}


def test_a_new_node_is_worth_another_try() -> None:
    cluster = Harness([$name], nodes=[PLAIN])
    pod = make_pod(labels={LABEL: "blue"})
    assert cluster.why(pod).startswith(f"0/1 nodes are available: 1 {REASON}.")
    woken = cluster.wakes(pod, ClusterEvent(Resource.NODE, Action.ADD), new=BLUE)
    assert woken == {"$name"}


def test_a_node_gets_the_same_answer_whichever_way_it_is_asked_about() -> None:
    check_forms_agree($name, pods=PODS, clusters=CLUSTERS)
'''

_SHARING_TEST = """

def test_pods_that_share_answers_get_their_own() -> None:
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

_TEMPLATES = {
    "node": (_ONE_NODE, _TEST, _IMPORTS),
    "table": (_ALL_NODES, _TEST + _SHARING_TEST, _MORE_IMPORTS),
}
TEMPLATE_NAMES = tuple(_TEMPLATES)


def render_plugin(form: str, *, name: str, module: str) -> tuple[str, str]:
    """The texts of both files."""
    plugin, test, imports = _TEMPLATES[form]
    words = {"name": name, "module": module, "slug": module.replace("_", "-"), "imports": imports}
    return Template(plugin).substitute(words), Template(test).substitute(words)
