"""Room that was made for somebody: which pods wait for which node, and which were told to leave for whom.

Preemption nominates; filters count the nominated pods of equal or higher priority, so that nobody takes the room
meanwhile. Victims are known here from the moment they are chosen until they are gone, which the API server shows only
later: whoever looks for victims next counts them as going, and does not evict another in their place. One ledger for
both engines.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from bayplan.snapshot import PodInfo


@dataclass(frozen=True, slots=True)
class TerminatingVictim:
    """A pod that was told to go, or is about to be: from where, and for whose sake."""

    node_name: str
    preemptor: str


_NO_VICTIMS: Mapping[str, TerminatingVictim] = {}


class Nominator:
    """Nominated pods by node, in order of nomination; and who leaves."""

    def __init__(self) -> None:
        self._leaving: dict[str, TerminatingVictim] = {}
        self._leaving_from: dict[str, dict[str, TerminatingVictim]] = {}
        self._refused: dict[str, str] = {}
        self._refused_on: dict[str, set[str]] = {}
        self._by_node: dict[str, list[PodInfo]] = {}
        self._node_of: dict[str, str] = {}

    def nominate(self, info: PodInfo, node_name: str) -> None:
        """The pod waits for this node now; an older nomination is over."""
        self.delete_nomination(info.uid)
        if node_name:
            self._by_node.setdefault(node_name, []).append(info)
            self._node_of[info.uid] = node_name

    def delete_nomination(self, uid: str) -> None:
        node_name = self._node_of.pop(uid, None)
        if node_name is None:
            return
        left = [info for info in self._by_node[node_name] if info.uid != uid]
        if left:
            self._by_node[node_name] = left
        else:
            del self._by_node[node_name]

    def node_of(self, uid: str) -> str | None:
        return self._node_of.get(uid)

    def on_node(self, node_name: str) -> Sequence[PodInfo]:
        return self._by_node.get(node_name, ())

    def nodes(self) -> Collection[str]:
        return self._by_node.keys()

    # who leaves -------------------------------------------------------------------------------------------------

    @property
    def terminating_victims(self) -> Mapping[str, TerminatingVictim]:
        """By uid: everybody who was chosen to go and is not gone."""
        return MappingProxyType(self._leaving)

    def add_victim(self, uid: str, node_name: str, for_whom: str) -> None:
        """A pod was chosen to go; who chose it first is remembered."""
        if uid not in self._leaving:
            self._leaving[uid] = found = TerminatingVictim(node_name, for_whom)
            self._leaving_from.setdefault(node_name, {})[uid] = found

    def remove_victim(self, uid: str) -> None:
        """A pod is gone, or was spared after all."""
        found = self._leaving.pop(uid, None)
        if found is None:
            return
        others = self._leaving_from[found.node_name]
        del others[uid]
        if not others:
            del self._leaving_from[found.node_name]

    def is_victim(self, uid: str) -> bool:
        return uid in self._leaving

    def terminating_victims_on(self, node_name: str) -> Mapping[str, TerminatingVictim]:
        """By uid: who leaves one node."""
        return self._leaving_from.get(node_name, _NO_VICTIMS)

    # victims that cannot be deleted now -------------------------------------------------------------------------

    @property
    def refused(self) -> Mapping[str, str]:
        """Nodes by uid: pods that are no victims now, since the API server refused to delete them a short time ago."""
        return MappingProxyType(self._refused)

    def refused_on(self, node_name: str) -> Collection[str]:
        """The uids of such pods on one node."""
        return self._refused_on.get(node_name, ())

    def refuse(self, uid: str, node_name: str) -> None:
        """The API server refused to delete a pod."""
        if uid not in self._refused:
            self._refused[uid] = node_name
            self._refused_on.setdefault(node_name, set()).add(uid)

    def accept(self, uid: str) -> None:
        """The pod may be a victim again."""
        node_name = self._refused.pop(uid, None)
        if node_name is None:
            return
        others = self._refused_on[node_name]
        others.discard(uid)
        if not others:
            del self._refused_on[node_name]
