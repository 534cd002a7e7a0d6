"""Templates of a new batch plugin: an example rule, and its tests.

Used by `bayplan plugin new --batch`. The rule orders gangs, and filters and scores nodes, so an author edits working
code instead of reading references.
"""

from __future__ import annotations

from string import Template

_HEAD = '''\
"""Orders gangs by size, and filters and scores nodes by a label. $called

The rule is an example: replace it with yours, here and in the tests,
test_$module.py.$cost
"""

$imports

LABEL = "example.com/$slug"
REASON = "node(s) didn't have the pod's value of the label $slug"


class $name:
    """Large gangs go first. Pods with the label run only on nodes with the same value; other pods avoid those nodes."""

    name = "$slug"
    takes = (Argument("$slug.weight", float, 1.0),)

    def __init__(self, arguments: Arguments) -> None:
        self._weight = arguments.get_float("$slug.weight", 1.0)

    def on_session_open(self, session: Session) -> None:
        """Register at the extension points. A plugin is created anew for every session."""
        session.add_job_order_fn(self.name, self._order)
'''

_ORDER = '''
    def _order(self, left: Job, right: Job) -> int:
        """Order two gangs: negative if the left one goes first, 0 without a preference."""
        return right.min_available - left.min_available
'''

_ONE_NODE = '''\
        session.add_predicate_fn(self.name, self._filter)
        session.add_node_order_fn(self.name, self._score)
$order
    def _filter(self, task: Task, node: Node) -> Status | None:
        """Filter: None if the pod may run on this node."""
        wanted = task.pod.labels.get(LABEL)
        if wanted is None or node.labels.get(LABEL) == wanted:
            return None
        return unresolvable(REASON)

    def _score(self, task: Task, node: Node) -> float:
        """Score the node for the pod, from 0 to 100, times the weight."""
        at_home = (LABEL in node.labels) == (LABEL in task.pod.labels)
        return MAX_SCORE * self._weight if at_home else 0.0
'''

_ALL_NODES = '''\
        session.add_predicate_nodes_fn(self.name, self._filter_nodes, signature=_signature, depends_on=ROW_LOCAL)
        session.add_node_order_nodes_fn(self.name, self._score_nodes, signature=_signature, depends_on=ROW_LOCAL)
$order
    def _filter_nodes(self, task: Task, nodes: Nodes) -> Iterator[Rejection]:
        """Filter all nodes. Nodes without a rejection fit."""
        wanted = task.pod.labels.get(LABEL)
        if wanted is not None:
            yield Rejection(~nodes.table.where_label_in(LABEL, [wanted]), REASON, resolvable=False)

    def _score_nodes(self, task: Task, nodes: Nodes) -> FloatVector:
        """Score all nodes for the pod, from 0 to 100, times the weight."""
        scores: FloatVector = np.zeros(len(nodes))
        scores[(nodes.table.label_ids(LABEL) >= 0) == (LABEL in task.pod.labels)] = MAX_SCORE * self._weight
        return scores


def _signature(task: Task) -> Hashable:
    """Signature: tasks with the same value get the same results, so that a gang is evaluated once."""
    return (task.pod.labels.get(LABEL),)
'''

_IMPORTS_OF_ONE = """\
from bayplan.batch import Argument, Arguments, Job, Node, Session, Task
from bayplan.framework import MAX_SCORE, Status, unresolvable"""

_IMPORTS_OF_ALL = """\
from collections.abc import Hashable, Iterator

import numpy as np
from bayplan.batch import ROW_LOCAL, Argument, Arguments, FloatVector, Job, Nodes, Session, Task
from bayplan.framework import MAX_SCORE, Rejection"""

_TEST = '''\
"""Decisions of $name in sessions on small clusters. Run it with pytest."""

from bayplan.framework import unresolvable
from bayplan.testing import BatchHarness, make_gang, make_node

from $module import LABEL, REASON, $name

NODES = [make_node("blue", labels={LABEL: "blue"}), make_node("plain")]


def test_pods_with_the_label_run_only_on_nodes_with_the_same_value() -> None:
    gang = make_gang("train", 2, cpu=1, labels={LABEL: "blue"})
    cluster = BatchHarness([$name], nodes=NODES, gangs=[gang])
    assert cluster.refusals("train-0") == {"plain": [unresolvable(REASON)]}
    assert cluster.run().bound == {"train-0": "blue", "train-1": "blue"}


def test_a_gang_that_does_not_fit_as_a_whole_does_not_start() -> None:
    gang = make_gang("train", 2, cpu=5, labels={LABEL: "blue"})
    done = BatchHarness([$name], nodes=NODES, gangs=[gang]).run()
    assert (done.bound, done.phases) == ({}, {"train": "Inqueue"})


def test_pods_without_the_label_avoid_labelled_nodes() -> None:
    doubled = {$name.name: {f"{$name.name}.weight": 2.0}}
    gangs = [make_gang("train")]
    cluster = BatchHarness([$name], nodes=NODES, gangs=gangs, args=doubled, only=True)
    assert cluster.scores("train-0") == {"blue": 0.0, "plain": 200.0}


def test_large_gangs_go_first() -> None:
    cluster = BatchHarness([$name], gangs=[make_gang("small", 2), make_gang("large", 3)])
    assert cluster.job_order() == ["large", "small"]
'''

_TEMPLATES = {
    "node": (_ONE_NODE, _IMPORTS_OF_ONE, "Called for one node at a time.", ""),
    "table": (_ALL_NODES, _IMPORTS_OF_ALL, "Called once for all nodes.", " Cost: one lookup of the column of a label."),
}


def render_batch_plugin(form: str, *, name: str, module: str) -> tuple[str, str]:
    """The texts of both files."""
    body, imports, called, cost = _TEMPLATES[form]
    words = {"name": name, "module": module, "slug": plugin_slug(module), "order": _ORDER}
    words |= {"imports": imports, "called": called, "cost": cost}
    return Template(_HEAD + body).substitute(words), Template(_TEST).substitute(words)


def plugin_slug(module: str) -> str:
    """The plugin's name in tiers, in the style of Volcano's own."""
    return module.replace("_", "-")
