"""Nominated pods by node, and the victims that preemption deletes for them. The counterpart of kube-scheduler's
nominator.

Preemption nominates. Filters count nominated pods of equal or higher priority, so their resources stay reserved.
Victims are listed from the choice until the API server shows them deleted. A later search for victims counts them as
terminating, and evicts no second pod for the same resources. Both engines use one nominator.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from bayplan.snapshot import PodInfo


@dataclass(frozen=True, slots=True)
class TerminatingVictim:
    """A pod that preemption has deleted or is about to delete: its node and its preemptor."""

    node_name: str
    preemptor: str


_NO_VICTIMS: Mapping[str, TerminatingVictim] = {}


class Nominator:
    """Nominated pods by node in order of nomination, and terminating victims."""

    def __init__(self) -> None:
        self._victims: dict[str, TerminatingVictim] = {}
        self._victims_by_node: dict[str, dict[str, TerminatingVictim]] = {}
        self._refused: dict[str, str] = {}
        self._refused_on: dict[str, set[str]] = {}
        self._by_node: dict[str, list[PodInfo]] = {}
        self._node_by_pod: dict[str, str] = {}

    def nominate(self, info: PodInfo, node_name: str) -> None:
        """Nominate the pod to this node. An older nomination is dropped."""
        self.delete_nomination(info.uid)
        if node_name:
            self._by_node.setdefault(node_name, []).append(info)
            self._node_by_pod[info.uid] = node_name

    def delete_nomination(self, uid: str) -> None:
        node_name = self._node_by_pod.pop(uid, None)
        if node_name is None:
            return
        remaining = [info for info in self._by_node[node_name] if info.uid != uid]
        if remaining:
            self._by_node[node_name] = remaining
        else:
            del self._by_node[node_name]

    def node_of(self, uid: str) -> str | None:
        return self._node_by_pod.get(uid)

    def on_node(self, node_name: str) -> Sequence[PodInfo]:
        return self._by_node.get(node_name, ())

    def nodes(self) -> Collection[str]:
        return self._by_node.keys()

    @property
    def terminating_victims(self) -> Mapping[str, TerminatingVictim]:
        """Victims by uid that are chosen and not yet deleted."""
        return MappingProxyType(self._victims)

    def add_victim(self, uid: str, node_name: str, preemptor: str) -> None:
        """Add a victim. The first preemptor of a pod stays."""
        if uid not in self._victims:
            self._victims[uid] = victim = TerminatingVictim(node_name, preemptor)
            self._victims_by_node.setdefault(node_name, {})[uid] = victim

    def remove_victim(self, uid: str) -> None:
        """Remove a victim that is deleted or no longer needed."""
        victim = self._victims.pop(uid, None)
        if victim is None:
            return
        remaining = self._victims_by_node[victim.node_name]
        del remaining[uid]
        if not remaining:
            del self._victims_by_node[victim.node_name]

    def is_victim(self, uid: str) -> bool:
        return uid in self._victims

    def terminating_victims_on(self, node_name: str) -> Mapping[str, TerminatingVictim]:
        """Return the victims on one node by uid."""
        return self._victims_by_node.get(node_name, _NO_VICTIMS)

    @property
    def refused(self) -> Mapping[str, str]:
        """Nodes by uid of pods that cannot be victims now: the API server refused to delete them a short time ago."""
        return MappingProxyType(self._refused)

    def refused_on(self, node_name: str) -> Collection[str]:
        """Return the uids of such pods on one node."""
        return self._refused_on.get(node_name, ())

    def refuse(self, uid: str, node_name: str) -> None:
        """Record that the API server refused to delete a pod."""
        if uid not in self._refused:
            self._refused[uid] = node_name
            self._refused_on.setdefault(node_name, set()).add(uid)

    def accept(self, uid: str) -> None:
        """Allow the pod as a victim again."""
        node_name = self._refused.pop(uid, None)
        if node_name is None:
            return
        remaining = self._refused_on[node_name]
        remaining.discard(uid)
        if not remaining:
            del self._refused_on[node_name]
