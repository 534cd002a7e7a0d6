"""Record of every object version that the driver's own watches delivered.

Listeners are called with each change, in the order of arrival. Versions are kept as compressed JSON, so that a
violation can show the whole history of an object. Histories of objects that are long gone are dropped.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from chaos.objects import Tree, is_terminal, key, name, node_of, uid, version

KEPT_S = 600.0
"""How long the history of a deleted object stays."""


@dataclass(frozen=True, slots=True)
class Version:
    at_s: float
    type: str
    version: int
    raw: bytes

    def tree(self) -> Tree:
        found: Tree = json.loads(zlib.decompress(self.raw))
        return found


@dataclass(slots=True)
class History:
    """All versions of one object, oldest first."""

    kind: str
    uid: str
    key: str
    versions: list[Version] = field(default_factory=list)
    gone_s: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One watch event. `old` and `new` are None before the creation and after the deletion."""

    at_s: float
    kind: str
    type: str
    old: Tree | None
    new: Tree | None
    tree: Tree

    @property
    def is_binding(self) -> bool:
        """Whether a pod got its node with this change."""
        return self.kind == "Pod" and self.new is not None and bool(node_of(self.new)) and not self._had_node

    @property
    def _had_node(self) -> bool:
        return self.old is not None and bool(node_of(self.old))


def _order_of_relist(tree: Tree) -> tuple[bool, int]:
    """Pods that finished come first: they have made room for those that were bound in the same gap."""
    return (not is_terminal(tree), version(tree))


class Record:
    def __init__(self) -> None:
        self.current: dict[str, dict[str, Tree]] = defaultdict(dict)
        """By kind and uid: objects that exist."""
        self.histories: dict[str, History] = {}
        self.listeners: list[Callable[[Change], None]] = []
        self.versions_seen = 0
        self.bindings: list[tuple[float, str]] = []
        """Time and uid of every binding."""
        self.versions_lost: list[str] = []
        """Objects of which the server showed an older version than it had shown before."""
        self._gone: deque[History] = deque()
        self._by_node: dict[str, dict[str, Tree]] = defaultdict(dict)
        self._by_key: dict[tuple[str, str], list[str]] = defaultdict(list)

    # writing

    def apply(self, kind: str, type_: str, tree: Tree, at_s: float) -> None:
        """One watch event, or one item of a list as `ADDED`. A version that is known already changes nothing."""
        tree["metadata"].pop("managedFields", None)
        old = self.current[kind].get(uid(tree))
        if type_ == "DELETED":
            new = None
            self.current[kind].pop(uid(tree), None)
        else:
            if old is not None and version(old) >= version(tree):
                return
            new = self.current[kind][uid(tree)] = tree
        self._remember(kind, type_, tree, at_s)
        if kind == "Pod":
            self._index_pod(old, new)
        change = Change(at_s, kind, type_, old, new, tree)
        if change.is_binding:
            self.bindings.append((at_s, uid(tree)))
        for listen in self.listeners:
            listen(change)

    def relist(self, kind: str, items: Iterable[Tree], at_s: float) -> None:
        """A whole list, after the watch lost its place: what is missing was deleted meanwhile."""
        found = {uid(each): each for each in items}
        for known in list(self.current[kind]):
            if known not in found:
                self.apply(kind, "DELETED", dict(self.current[kind][known]), at_s)
        for each in sorted(found.values(), key=_order_of_relist):
            old = self.current[kind].get(uid(each))
            if old is not None and version(each) < version(old):
                self.versions_lost.append(f"{kind} {key(each)}: version {version(old)} was shown, now {version(each)}")
                self.current[kind].pop(uid(each))
            self.apply(kind, "ADDED" if old is None else "MODIFIED", each, at_s)

    def _remember(self, kind: str, type_: str, tree: Tree, at_s: float) -> None:
        self.versions_seen += 1
        history = self.histories.get(uid(tree))
        if history is None:
            history = self.histories[uid(tree)] = History(kind, uid(tree), key(tree))
        known = self._by_key[kind, key(tree)]
        if uid(tree) not in known:
            known.append(uid(tree))
        raw = zlib.compress(json.dumps(tree, separators=(",", ":")).encode(), 1)
        history.versions.append(Version(at_s, type_, version(tree), raw))
        if type_ == "DELETED":
            history.gone_s = at_s
            self._gone.append(history)
        while self._gone and self._gone[0].gone_s is not None and self._gone[0].gone_s < at_s - KEPT_S:
            self._drop(self._gone.popleft())

    def _drop(self, history: History) -> None:
        self.histories.pop(history.uid, None)
        known = self._by_key[history.kind, history.key]
        known.remove(history.uid)
        if not known:
            del self._by_key[history.kind, history.key]

    def _index_pod(self, old: Tree | None, new: Tree | None) -> None:
        if old is not None and node_of(old):
            self._by_node[node_of(old)].pop(uid(old), None)
        if new is not None and node_of(new):
            self._by_node[node_of(new)][uid(new)] = new

    # reading

    def all(self, kind: str) -> Iterator[Tree]:
        return iter(list(self.current[kind].values()))

    def get(self, kind: str, uid_: str) -> Tree | None:
        return self.current[kind].get(uid_)

    def named(self, kind: str, key_: str) -> Tree | None:
        """By `namespace/name`, or by name for cluster-scoped kinds; None where it does not exist."""
        found = self._by_key.get((kind, key_), ())
        return next((self.current[kind][each] for each in found if each in self.current[kind]), None)

    def states(self, kind: str, key_: str, since_s: float, until_s: float) -> list[Tree | None]:
        """Every state that the object of this name had in the window; None for times at which there was none."""
        versions = [each for uid_ in self._by_key.get((kind, key_), ()) for each in self.histories[uid_].versions]
        versions.sort(key=lambda each: each.at_s)
        before: Version | None = None
        found: list[Version] = []
        for each in versions:
            if each.at_s <= since_s:
                before = each
            elif each.at_s <= until_s:
                found.append(each)
        first = None if before is None or before.type == "DELETED" else before.tree()
        return [first, *(None if each.type == "DELETED" else each.tree() for each in found)]

    def uids(self, kind: str, key_: str) -> list[str]:
        """Of all objects that had this name, oldest first."""
        return list(self._by_key.get((kind, key_), ()))

    def pods_on(self, node: str) -> list[Tree]:
        """Pods that are bound to the node, finished ones too."""
        return list(self._by_node[node].values())

    def nodes(self) -> dict[str, Tree]:
        return {name(each): each for each in self.all("Node")}

    def history(self, uid_: str) -> History | None:
        return self.histories.get(uid_)
