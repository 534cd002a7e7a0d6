"""Room that was made for somebody: which pods wait for which node.

Preemption nominates; filters count the nominated pods of equal or higher priority, so that nobody takes the room
meanwhile. One ledger for both engines.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bayplan.snapshot import PodInfo


class NominationLedger:
    """Nominated pods by node, in order of nomination."""

    def __init__(self) -> None:
        self._by_node: dict[str, list[PodInfo]] = {}
        self._node_of: dict[str, str] = {}

    def nominate(self, info: PodInfo, node_name: str) -> None:
        """The pod waits for this node now; an older nomination is over."""
        self.withdraw(info.uid)
        if node_name:
            self._by_node.setdefault(node_name, []).append(info)
            self._node_of[info.uid] = node_name

    def withdraw(self, uid: str) -> None:
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
