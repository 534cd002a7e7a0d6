"""Which nodes are close to each other: the tree of hypernodes, its tiers, and the virtual root above it.

Built from the HyperNode objects and the names and labels of the nodes whenever either changes, not a session. A fault
in the objects (two parents, a cycle) makes the tree unready, and jobs that ask for a topology wait until it is mended.
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
"""The root that every session has: all nodes, one tier above the highest."""

_NODE_MEMBER, _HYPERNODE_MEMBER = "Node", "HyperNode"
_MAX_LISTED_NAMES = 5


@dataclass(slots=True)
class HyperNode:
    """One place in the tree."""

    name: str
    tier: int
    tier_name: str = ""
    parent: str = ""
    children: set[str] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)  # names of all nodes below it
    listed: bool = True  # false: somebody names it as a member, but there is no such object (yet)

    def __repr__(self) -> str:
        return f"HyperNode({self.name}, tier {self.tier})"


class HyperNodeTree(Mapping[str, HyperNode]):
    """The tree of a session, the virtual root included."""

    def __init__(self, places: dict[str, HyperNode], nodes: Nodes, *, ready: bool = True) -> None:
        self.ready = ready  # false: the objects contradict each other
        self._nodes = nodes
        self._places = dict(places)
        names = set(nodes.names)
        for place in self._places.values():
            place.nodes &= names
        self.tier_names = {place.tier_name: place.tier for place in places.values() if place.tier_name}
        self._add_top(names)
        self.by_tier: dict[int, list[str]] = {}
        for name, place in self._places.items():
            if place.listed:
                self.by_tier.setdefault(place.tier, []).append(name)
        self.tiers: list[int] = sorted(self.by_tier)
        self._rows: dict[str, Nodes] = {}
        self._leaves: dict[str, str] | None = None  # by node

    def _add_top(self, names: set[str]) -> None:
        tier = max((place.tier + 1 for place in self._places.values() if place.listed), default=1)
        top = HyperNode(TOP_HYPERNODE, max(tier, 1), nodes=names)
        for place in self._places.values():
            if not place.parent:
                place.parent = TOP_HYPERNODE
                top.children.add(place.name)
        self._places[TOP_HYPERNODE] = top

    def __getitem__(self, name: str) -> HyperNode:
        return self._places[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def top(self) -> HyperNode:
        return self._places[TOP_HYPERNODE]

    def nodes_of(self, name: str) -> Nodes:
        """The nodes below a hypernode; none for one that does not exist."""
        if name == TOP_HYPERNODE:
            return self._nodes
        found = self._rows.get(name)
        if found is None:
            place = self._places.get(name)
            found = self._rows[name] = self._nodes.select_rows(_rows_of(self._nodes, place.nodes if place else ()))
        return found

    def leaf_of(self, node_name: str) -> str:
        """The hypernode of the lowest tier that holds the node; "" if none of that tier does."""
        if self._leaves is None:
            self._leaves = {}
            for name in self.by_tier[self.tiers[0]] if self.tiers else ():
                for node in self._places[name].nodes:
                    self._leaves.setdefault(node, name)
        return self._leaves.get(node_name, "")

    def ancestors(self, name: str) -> list[str]:
        """The hypernode itself and everything above it, upwards."""
        found: list[str] = []
        while name and name in self._places and name not in found:
            found.append(name)
            name = self._places[name].parent
        return found

    def lowest_common(self, left: str, right: str) -> str:
        """The lowest hypernode above both; with one of them empty, the other; "" where there is none."""
        if not left or not right:
            return left or right
        above = set(self.ancestors(left))
        return next((name for name in self.ancestors(right) if name in above), "")


def _rows_of(nodes: Nodes, names: Iterable[str]) -> RowVector:
    index = nodes.snapshot.nodes.index
    return np.array(sorted(index[name] for name in names if name in index), dtype=np.intp)


HyperNodeFaults = dict[str, tuple[str, ...]]
"""By sentence: the hypernodes that must be mended."""


class HyperNodeTreeError(BayplanError):
    """Hypernodes contradict each other; the sentence says which."""

    def __init__(self, problem: str, names: tuple[str, ...]) -> None:
        super().__init__(f"{problem}; jobs that ask for a network topology wait until that is mended")
        self.names = names


def build_hypernode_tree(
    objects: Sequence[HyperNodeObject], nodes: Sequence[NodeObject]
) -> tuple[dict[str, HyperNode], HyperNodeFaults]:
    """The tree that the objects describe, and why it cannot be used, if so.

    Objects are taken in one after another and again while that mends something, as Volcano's cache does; those that
    do not fit in the end make the tree unusable.
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
    return tree.places, faults


class _TreeBuilder:
    def __init__(self, nodes: Sequence[NodeObject]) -> None:
        self.places: dict[str, HyperNode] = {}
        self._nodes = nodes
        self._objects: dict[str, HyperNodeObject] = {}

    def add_object(self, each: HyperNodeObject) -> None:
        name = each.name
        known = self.places.setdefault(name, HyperNode(name, 0))
        known.tier, known.tier_name, known.listed = each.spec.tier, each.spec.tier_name, True
        self._objects[name] = each
        line = self._ancestors_of(name)
        for above in line:
            place = self.places[above]
            place.nodes, place.parent, place.children = set(), "", set()
        done: set[str] = set()
        for above in line:
            self._collect_nodes(above, done, [], set(line))

    def _ancestors_of(self, name: str) -> list[str]:
        """The hypernode and what is above it, as far as that is known."""
        line = [name]
        while True:
            parent = self.places[line[-1]].parent or self._parent_by_member(line[-1])
            if not parent or parent in line:
                return line
            line.append(parent)

    def _parent_by_member(self, name: str) -> str:
        """A hypernode of a higher tier that names this one as a member."""
        tier = self.places[name].tier
        for other, each in self._objects.items():
            if each.spec.tier > tier and any(_child_name(member) == name for member in each.spec.members):
                return other
        return ""

    def _collect_nodes(self, name: str, done: set[str], chain: list[str], line: set[str]) -> None:
        """Work out which nodes are below a hypernode of the line."""
        if name in chain:
            raise _cycle_message(chain[chain.index(name) :])
        if name in done or name not in line or name not in self._objects:
            return
        place = self.places[name]
        for member in self._objects[name].spec.members:
            if member.type == _NODE_MEMBER:
                place.nodes |= _matching_nodes(member, self._nodes)
            child = _child_name(member)
            if child:
                self._add_child(place, child)
                self._collect_nodes(child, done, [*chain, name], line)
                place.nodes |= self.places[child].nodes
        done.add(name)

    def _add_child(self, parent: HyperNode, child: str) -> None:
        place = self.places.setdefault(child, HyperNode(child, 0, listed=False))
        if place.parent not in ("", parent.name):
            claimants = place.parent, parent.name
            raise HyperNodeTreeError(
                f"hypernode {child} is a member of {' and of '.join(claimants)}; leave one out", claimants
            )
        place.parent = parent.name
        parent.children.add(child)


def _cycle_message(ring: list[str]) -> HyperNodeTreeError:
    """The same sentence wherever the ring was entered."""
    first = ring.index(min(ring))
    names = (*ring[first:], *ring[:first])
    return HyperNodeTreeError(f"hypernodes form a cycle: {' > '.join([*names, names[0]])}; take one of them out", names)


def unreadable_members(objects: Sequence[HyperNodeObject]) -> HyperNodeFaults:
    """Members that no node can be, because what they say cannot be read; a sentence each."""
    return {
        f"hypernode {each.name}: {fault}; this member stands for no node": (each.name,)
        for each in objects
        for member in each.spec.members
        if (fault := _member_error(member))
    }


def missing_members(objects: Sequence[HyperNodeObject], nodes: Sequence[NodeObject]) -> HyperNodeFaults:
    """Members by name that the cluster does not have; a sentence a hypernode."""
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
        missing = [name for is_place, name in named if name not in known[is_place]]
        if missing:
            listed = ", ".join(missing[:_MAX_LISTED_NAMES]) + (" and more" if len(missing) > _MAX_LISTED_NAMES else "")
            sentence = f"hypernode {each.name}: {len(missing)} member(s) do not exist: {listed}; they stand for no node"
            found[sentence] = (each.name,)
    return found


def _member_error(member: MemberSpec) -> str:
    pattern, labels = member.selector.regex_match, member.selector.label_match
    if member.type == _HYPERNODE_MEMBER:
        return ""
    if member.type != _NODE_MEMBER:
        return f'the member type "{member.type}" is none; say {_NODE_MEMBER} or {_HYPERNODE_MEMBER}'
    try:
        if pattern is not None:
            compile_regex(pattern.pattern)
        if labels is not None:
            compile_label_selector(labels)
    except SelectorError as fault:
        return f"its label selector cannot be read: {fault}"
    except ValueError as fault:
        return f'the pattern "{pattern.pattern if pattern is not None else ""}" cannot be read: {fault}'
    return ""


def _child_name(member: MemberSpec) -> str:
    exact = member.selector.exact_match
    return exact.name if member.type == _HYPERNODE_MEMBER and exact is not None else ""


def _matching_nodes(member: MemberSpec, nodes: Sequence[NodeObject]) -> set[str]:
    """The names of nodes that a member means."""
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
