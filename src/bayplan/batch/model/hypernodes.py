"""The tree of hypernodes with its tiers and a virtual root: which nodes are close to each other.

Rebuilt from the HyperNode objects and the names and labels of nodes when either changes, not in every session. An error
in the objects (two parents, a cycle) makes the tree not ready. Jobs with a network topology then wait until the objects
are corrected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bayplan.batch.model.nodes import Nodes
from bayplan.cel.regex.regex import compile_regex
from bayplan.errors import BayplanError
from bayplan.objects.core import Node as NodeObject
from bayplan.objects.selectors.label_selectors import SelectorError, compile_label_selector
from bayplan.objects.volcano.types import HyperNode as HyperNodeObject
from bayplan.objects.volcano.types import MemberSpec
from bayplan.snapshot import RowVector

TOP_HYPERNODE = "<cluster-top-hypernode>"
"""The virtual root of every session: all nodes, one tier above the highest."""

_NODE_MEMBER, _HYPERNODE_MEMBER = "Node", "HyperNode"
_MAX_LISTED_NAMES = 5


@dataclass(slots=True)
class HyperNode:
    name: str
    tier: int
    tier_name: str = ""
    parent: str = ""
    children: set[str] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)  # names of all nodes below it
    listed: bool = True  # false: a member refers to it, but the object does not exist (yet)

    def __repr__(self) -> str:
        return f"HyperNode({self.name}, tier {self.tier})"


class HyperNodeTree(Mapping[str, HyperNode]):
    """The tree of a session, including the virtual root."""

    def __init__(self, hypernodes: dict[str, HyperNode], nodes: Nodes, *, ready: bool = True) -> None:
        self.ready = ready  # false: the objects contradict each other
        self._nodes = nodes
        self._hypernodes = dict(hypernodes)
        names = set(nodes.names)
        for hypernode in self._hypernodes.values():
            hypernode.nodes &= names
        self.tier_names = {
            hypernode.tier_name: hypernode.tier for hypernode in hypernodes.values() if hypernode.tier_name
        }
        self._add_top(names)
        self.by_tier: dict[int, list[str]] = {}
        for name, hypernode in self._hypernodes.items():
            if hypernode.listed:
                self.by_tier.setdefault(hypernode.tier, []).append(name)
        self.tiers: list[int] = sorted(self.by_tier)
        self._rows: dict[str, Nodes] = {}
        self._leaves: dict[str, str] | None = None  # by node

    def _add_top(self, names: set[str]) -> None:
        tier = max((hypernode.tier + 1 for hypernode in self._hypernodes.values() if hypernode.listed), default=1)
        top = HyperNode(TOP_HYPERNODE, max(tier, 1), nodes=names)
        for hypernode in self._hypernodes.values():
            if not hypernode.parent:
                hypernode.parent = TOP_HYPERNODE
                top.children.add(hypernode.name)
        self._hypernodes[TOP_HYPERNODE] = top

    def __getitem__(self, name: str) -> HyperNode:
        return self._hypernodes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._hypernodes)

    def __len__(self) -> int:
        return len(self._hypernodes)

    @property
    def top(self) -> HyperNode:
        return self._hypernodes[TOP_HYPERNODE]

    def nodes_of(self, name: str) -> Nodes:
        """The nodes below a hypernode; empty for a missing hypernode."""
        if name == TOP_HYPERNODE:
            return self._nodes
        found = self._rows.get(name)
        if found is None:
            hypernode = self._hypernodes.get(name)
            found = self._rows[name] = self._nodes.select_rows(
                _rows_of(self._nodes, hypernode.nodes if hypernode else ())
            )
        return found

    def leaf_of(self, node_name: str) -> str:
        """The hypernode of the lowest tier that contains the node, or ""."""
        if self._leaves is None:
            self._leaves = {}
            for name in self.by_tier[self.tiers[0]] if self.tiers else ():
                for node in self._hypernodes[name].nodes:
                    self._leaves.setdefault(node, name)
        return self._leaves.get(node_name, "")

    def ancestors(self, name: str) -> list[str]:
        """The hypernode itself and all its ancestors, upwards."""
        found: list[str] = []
        while name and name in self._hypernodes and name not in found:
            found.append(name)
            name = self._hypernodes[name].parent
        return found

    def lowest_common(self, left: str, right: str) -> str:
        """The lowest common ancestor. If one name is empty, the other; "" when there is none."""
        if not left or not right:
            return left or right
        above = set(self.ancestors(left))
        return next((name for name in self.ancestors(right) if name in above), "")


def _rows_of(nodes: Nodes, names: Iterable[str]) -> RowVector:
    index = nodes.snapshot.nodes.index
    return np.array(sorted(index[name] for name in names if name in index), dtype=np.intp)


HyperNodeFaults = dict[str, tuple[str, ...]]
"""By message: the hypernodes to correct."""


class HyperNodeTreeError(BayplanError):
    """Hypernodes contradict each other; the message names them."""

    def __init__(self, problem: str, names: tuple[str, ...]) -> None:
        super().__init__(f"{problem}; jobs that ask for a network topology wait until this is corrected")
        self.names = names


def build_hypernode_tree(
    objects: Sequence[HyperNodeObject], nodes: Sequence[NodeObject]
) -> tuple[dict[str, HyperNode], HyperNodeFaults]:
    """Build the tree that the objects describe, and the errors that make it unusable.

    Objects are added one after another, and again while that resolves an error, as in Volcano's cache. Objects that
    remain in error make the tree unusable.
    """
    tree = _TreeBuilder(nodes)
    waiting, faults = list(objects), HyperNodeFaults()
    while waiting:
        again, faults = [], {}
        for each in waiting:
            try:
                tree.add_object(each)
            except HyperNodeTreeError as found:
                faults[str(found)] = found.names
                again.append(each)
        if len(again) == len(waiting):
            break
        waiting = again
    return tree.hypernodes, faults


class _TreeBuilder:
    def __init__(self, nodes: Sequence[NodeObject]) -> None:
        self.hypernodes: dict[str, HyperNode] = {}
        self._nodes = nodes
        self._objects: dict[str, HyperNodeObject] = {}

    def add_object(self, each: HyperNodeObject) -> None:
        name = each.name
        known = self.hypernodes.setdefault(name, HyperNode(name, 0))
        known.tier, known.tier_name, known.listed = each.spec.tier, each.spec.tier_name, True
        self._objects[name] = each
        chain = self._ancestors_of(name)
        for above in chain:
            hypernode = self.hypernodes[above]
            hypernode.nodes, hypernode.parent, hypernode.children = set(), "", set()
        done: set[str] = set()
        for above in chain:
            self._collect_nodes(above, done, [], set(chain))

    def _ancestors_of(self, name: str) -> list[str]:
        """The hypernode and its known ancestors."""
        chain = [name]
        while True:
            parent = self.hypernodes[chain[-1]].parent or self._parent_by_member(chain[-1])
            if not parent or parent in chain:
                return chain
            chain.append(parent)

    def _parent_by_member(self, name: str) -> str:
        """A hypernode of a higher tier that lists this one as a member."""
        tier = self.hypernodes[name].tier
        for other, each in self._objects.items():
            if each.spec.tier > tier and any(_child_name(member) == name for member in each.spec.members):
                return other
        return ""

    def _collect_nodes(self, name: str, done: set[str], chain: list[str], ancestors: set[str]) -> None:
        """Collect the nodes below a hypernode of the ancestor chain."""
        if name in chain:
            raise _cycle_message(chain[chain.index(name) :])
        if name in done or name not in ancestors or name not in self._objects:
            return
        hypernode = self.hypernodes[name]
        for member in self._objects[name].spec.members:
            if member.type == _NODE_MEMBER:
                hypernode.nodes |= _matching_nodes(member, self._nodes)
            child = _child_name(member)
            if child:
                self._add_child(hypernode, child)
                self._collect_nodes(child, done, [*chain, name], ancestors)
                hypernode.nodes |= self.hypernodes[child].nodes
        done.add(name)

    def _add_child(self, parent: HyperNode, child: str) -> None:
        hypernode = self.hypernodes.setdefault(child, HyperNode(child, 0, listed=False))
        if hypernode.parent not in ("", parent.name):
            claimants = hypernode.parent, parent.name
            raise HyperNodeTreeError(
                f"hypernode {child} is a member of {' and of '.join(claimants)}; remove it from one of them", claimants
            )
        hypernode.parent = parent.name
        parent.children.add(child)


def _cycle_message(cycle: list[str]) -> HyperNodeTreeError:
    """The same message, wherever the search entered the cycle."""
    first = cycle.index(min(cycle))
    names = (*cycle[first:], *cycle[:first])
    return HyperNodeTreeError(f"hypernodes form a cycle: {' > '.join([*names, names[0]])}; remove one of them", names)


def unreadable_members(objects: Sequence[HyperNodeObject]) -> HyperNodeFaults:
    """Members whose type, pattern or selector is invalid: one message each."""
    return {
        f"hypernode {each.name}: {fault}; the member matches no node": (each.name,)
        for each in objects
        for member in each.spec.members
        if (fault := _member_error(member))
    }


def missing_members(objects: Sequence[HyperNodeObject], nodes: Sequence[NodeObject]) -> HyperNodeFaults:
    """Members that refer to missing nodes or hypernodes: one message per hypernode."""
    known = {False: {node.name for node in nodes}, True: {each.name for each in objects}}
    found = HyperNodeFaults()
    for each in objects:
        named = [
            (member.type == _HYPERNODE_MEMBER, member.selector.exact_match.name)
            for member in each.spec.members
            if member.type in (_NODE_MEMBER, _HYPERNODE_MEMBER)
            and member.selector.exact_match is not None
            and member.selector.exact_match.name
        ]
        missing = [name for is_hypernode, name in named if name not in known[is_hypernode]]
        if missing:
            listed = ", ".join(missing[:_MAX_LISTED_NAMES]) + (" and more" if len(missing) > _MAX_LISTED_NAMES else "")
            message = f"hypernode {each.name}: {len(missing)} member(s) do not exist: {listed}; they match no node"
            found[message] = (each.name,)
    return found


def _member_error(member: MemberSpec) -> str:
    pattern, labels = member.selector.regex_match, member.selector.label_match
    if member.type == _HYPERNODE_MEMBER:
        return ""
    if member.type != _NODE_MEMBER:
        return f'the member type "{member.type}" is unknown; use {_NODE_MEMBER} or {_HYPERNODE_MEMBER}'
    try:
        if pattern is not None:
            compile_regex(pattern.pattern)
        if labels is not None:
            compile_label_selector(labels)
    except SelectorError as fault:
        return f"its label selector is invalid: {fault}"
    except ValueError as fault:
        return f'the pattern "{pattern.pattern if pattern is not None else ""}" is invalid: {fault}'
    return ""


def _child_name(member: MemberSpec) -> str:
    exact = member.selector.exact_match
    return exact.name if member.type == _HYPERNODE_MEMBER and exact is not None else ""


def _matching_nodes(member: MemberSpec, nodes: Sequence[NodeObject]) -> set[str]:
    selector, found = member.selector, set[str]()
    if selector.exact_match is not None:
        if not selector.exact_match.name:
            return found
        found.add(selector.exact_match.name)
    if selector.regex_match is not None:
        try:
            pattern = compile_regex(selector.regex_match.pattern)
        except ValueError:
            return set()
        found |= {node.name for node in nodes if pattern.matches(node.name)}
    labels = selector.label_match
    if labels is not None and (labels.match_labels or labels.match_expressions):
        try:
            matcher = compile_label_selector(labels)
        except SelectorError:
            return set()
        found |= {node.name for node in nodes if matcher.matches(node.metadata.labels)}
    return found
