"""What stands in the files of a new batch plugin: a rule that works, and the tests that hold it.

Asked by `bayplan plugin new --batch`. The rule orders gangs, refuses nodes and scores them, so that an author deletes
and replaces instead of looking things up.
"""

from __future__ import annotations

from string import Template

_HEAD = '''\
"""Which gang goes first, where may its pods run, and where are they best off? $asked

The rule is an example that works: put yours in its place, here and in the tests,
test_$module.py.$cost
"""

$imports

LABEL = "example.com/$slug"
REASON = "node(s) didn't have the pod's value of the label $slug"


class $name:
    """Large gangs go first. Pods with the label run only on nodes with the same value; others leave those to them."""

    name = "$slug"
    takes = (Argument("$slug.weight", float, 1.0),)

    def __init__(self, arguments: Arguments) -> None:
        self._weight = arguments.get_float("$slug.weight", 1.0)

    def on_session_open(self, session: Session) -> None:
        """Say at which points to be asked. A plugin is made anew for every session."""
        session.add_job_order_fn(self.name, self._order)
'''

_ORDER = '''
    def _order(self, left: Job, right: Job) -> int:
        """Which gang goes first? Negative: the left one; 0: no opinion."""
        return right.min_available - left.min_available
'''

_ONE_NODE = '''\
        session.add_predicate_fn(self.name, self._refusal)
        session.add_node_order_fn(self.name, self._score)
$order
    def _refusal(self, task: Task, node: Node) -> Status | None:
        """May the pod run on this node? None says yes."""
        wanted = task.pod.labels.get(LABEL)
        if wanted is None or node.labels.get(LABEL) == wanted:
            return None
        return unresolvable(REASON)

    def _score(self, task: Task, node: Node) -> float:
        """How good is the node for the pod, from 0 to 100, times the weight?"""
        at_home = (LABEL in node.labels) == (LABEL in task.pod.labels)
        return MAX_SCORE * self._weight if at_home else 0.0
'''

_ALL_NODES = '''\
        session.add_predicate_nodes_fn(self.name, self._refusals, signature=_alike, depends_on=NODE_ALONE)
        session.add_node_order_nodes_fn(self.name, self._scores, signature=_alike, depends_on=NODE_ALONE)
$order
    def _refusals(self, task: Task, nodes: Nodes) -> Iterator[Rejection]:
        """Which nodes are refused, and why? No rejection says that all fit."""
        wanted = task.pod.labels.get(LABEL)
        if wanted is not None:
            yield Rejection(~nodes.table.where_label_in(LABEL, [wanted]), REASON, resolvable=False)

    def _scores(self, task: Task, nodes: Nodes) -> FloatVector:
        """How good is each node for the pod, from 0 to 100, times the weight?"""
        scores: FloatVector = np.zeros(len(nodes))
        scores[(nodes.table.label_ids(LABEL) >= 0) == (LABEL in task.pod.labels)] = MAX_SCORE * self._weight
        return scores


def _alike(task: Task) -> Hashable:
    """Tasks for which this is equal get equal answers, so that a gang is evaluated once."""
    return (task.pod.labels.get(LABEL),)
'''

_IMPORTS_OF_ONE = """\
from bayplan.batch import Argument, Arguments, Job, Node, Session, Task
from bayplan.framework import MAX_SCORE, Status, unresolvable"""

_IMPORTS_OF_ALL = """\
from collections.abc import Hashable, Iterator

import numpy as np
from bayplan.batch import NODE_ALONE, Argument, Arguments, FloatVector, Job, Nodes, Session, Task
from bayplan.framework import MAX_SCORE, Rejection"""

_TEST = '''\
"""What $name decides, in sessions on small clusters. Run it with pytest."""

from bayplan.framework import unresolvable
from bayplan.testing import BatchHarness, make_gang, make_node

from $module import LABEL, REASON, $name

NODES = [make_node("blue", labels={LABEL: "blue"}), make_node("plain")]


def test_pods_with_the_label_run_only_where_the_value_is_the_same() -> None:
    gang = make_gang("train", 2, cpu=1, labels={LABEL: "blue"})
    cluster = BatchHarness([$name], nodes=NODES, gangs=[gang])
    assert cluster.refusals("train-0") == {"plain": [unresolvable(REASON)]}
    assert cluster.run().bound == {"train-0": "blue", "train-1": "blue"}


def test_a_gang_that_cannot_start_as_a_whole_does_not_start_at_all() -> None:
    gang = make_gang("train", 2, cpu=5, labels={LABEL: "blue"})
    done = BatchHarness([$name], nodes=NODES, gangs=[gang]).run()
    assert (done.bound, done.phases) == ({}, {"train": "Inqueue"})


def test_pods_without_the_label_leave_labelled_nodes_to_others() -> None:
    doubled = {$name.name: {f"{$name.name}.weight": 2.0}}
    gangs = [make_gang("train")]
    cluster = BatchHarness([$name], nodes=NODES, gangs=gangs, args=doubled, only=True)
    assert cluster.scores("train-0") == {"blue": 0.0, "plain": 200.0}


def test_large_gangs_go_first() -> None:
    cluster = BatchHarness([$name], gangs=[make_gang("small", 2), make_gang("large", 3)])
    assert cluster.job_order() == ["large", "small"]
'''

_TEMPLATES = {
    "node": (_ONE_NODE, _IMPORTS_OF_ONE, "Asked about one node at a time.", ""),
    "table": (
        _ALL_NODES,
        _IMPORTS_OF_ALL,
        "Asked about all nodes at once.",
        " Cost: one look at the column of a label.",
    ),
}


def render_batch_plugin(form: str, *, name: str, module: str) -> tuple[str, str]:
    """The texts of both files."""
    body, imports, asked, cost = _TEMPLATES[form]
    words = {"name": name, "module": module, "slug": plugin_slug(module), "order": _ORDER}
    words |= {"imports": imports, "asked": asked, "cost": cost}
    return Template(_HEAD + body).substitute(words), Template(_TEST).substitute(words)


def plugin_slug(module: str) -> str:
    """What tiers will call the plugin, in the way of Volcano's own."""
    return module.replace("_", "-")
