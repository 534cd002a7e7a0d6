"""HTTP services that have a say in a decision: what to ask them, and how to read what they answer.

Nothing is sent from here. An attempt yields an `ExtenderCall`; whoever can await sends its body and hands the reply
back. Keys are capitalised because the services are written against Go structs without tags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from bayplan.config.model import Extender as ExtenderConfig
from bayplan.errors import BayplanError
from bayplan.framework.plugin import MAX_SCORE
from bayplan.framework.status import Code, Status
from bayplan.objects.core import Pod
from bayplan.snapshot import IntVector, NodeTable, RowVector

MAX_EXTENDER_PRIORITY = 10


class ExtenderFault(BayplanError):
    """An extender did not answer, or not in a way that can be used."""


@dataclass(frozen=True, slots=True)
class ExtenderReply:
    """What came back: an HTTP status with a body, or why nothing did."""

    code: int = 0
    body: bytes = b""
    failure: str = ""


class Extender:
    """One configured extender."""

    def __init__(self, config: ExtenderConfig) -> None:
        self.config = config
        self._managed = frozenset(resource.name for resource in config.managed_resources)

    @property
    def name(self) -> str:
        return self.config.url_prefix

    def is_interested(self, pod: Pod) -> bool:
        """Extenders without managed resources want every pod; others those that ask for one of them."""
        if not self._managed:
            return True
        return any(
            self._managed & (container.resources.requests.keys() | container.resources.limits.keys())
            for container in (*pod.spec.init_containers, *pod.spec.containers)
        )

    # filter -----------------------------------------------------------------------------------------------------

    def filter_call(self, pod: Pod, nodes: NodeTable) -> ExtenderCall:
        return ExtenderCall(self, self.config.filter_verb, self._arguments(pod, nodes))

    def read_filter(self, reply: ExtenderReply, nodes: NodeTable) -> tuple[RowVector, dict[int, Status]]:
        """The rows that survive, and the statuses of those that do not."""
        answer = self._read(reply, self.config.filter_verb)
        if not isinstance(answer, Mapping):
            raise ExtenderFault(f"extender {self.name} answered {type(answer).__name__} to filter, an object is needed")
        if answer.get("Error"):
            raise ExtenderFault(str(answer["Error"]))
        index = nodes.columns.index
        mine = set(nodes.names)
        kept = [index[name] for name in self._survivors(answer, mine)]
        failed: dict[int, Status] = {}
        for name, text in (answer.get("FailedAndUnresolvableNodes") or {}).items():
            if name in mine:
                failed[index[name]] = Status(Code.UNRESOLVABLE, (text,))
        for name, text in (answer.get("FailedNodes") or {}).items():
            if name in mine and index[name] not in failed:
                failed[index[name]] = Status(Code.UNSCHEDULABLE, (text,))
        return np.array(kept, dtype=np.intp), failed

    def _survivors(self, answer: Mapping[str, Any], mine: set[str]) -> Sequence[str]:
        names = answer.get("NodeNames")
        if self.config.node_cache_capable and names is not None:
            for name in names:
                if name not in mine:
                    raise ExtenderFault(
                        f'extender "{self.name}" claims a filtered node "{name}" '
                        "which is not found in the input node list"
                    )
            return list(names)
        nodes = answer.get("Nodes") or {}
        return [item["metadata"]["name"] for item in nodes.get("items") or () if item["metadata"]["name"] in mine]

    # prioritize -------------------------------------------------------------------------------------------------

    def prioritize_call(self, pod: Pod, nodes: NodeTable) -> ExtenderCall:
        return ExtenderCall(self, self.config.prioritize_verb, self._arguments(pod, nodes))

    def read_prioritize(self, reply: ExtenderReply, nodes: NodeTable) -> IntVector:
        """What the extender adds to each total: its score, weighted, stretched to our range."""
        answer = self._read(reply, self.config.prioritize_verb)
        if not isinstance(answer, list):
            raise ExtenderFault(
                f"extender {self.name} answered {type(answer).__name__} to prioritize, a list is needed"
            )
        scores = {item.get("Host"): int(item.get("Score") or 0) for item in answer if isinstance(item, Mapping)}
        factor = self.config.weight * (MAX_SCORE // MAX_EXTENDER_PRIORITY)
        return np.array([scores.get(name, 0) * factor for name in nodes.names], dtype=np.int64)

    # both -------------------------------------------------------------------------------------------------------

    def _arguments(self, pod: Pod, nodes: NodeTable) -> dict[str, Any]:
        items = [msgspec.to_builtins(node.node) for node in nodes]
        cached = self.config.node_cache_capable
        return {
            "Pod": msgspec.to_builtins(pod),
            "Nodes": None if cached else {"metadata": {}, "items": items},
            "NodeNames": list(nodes.names) if cached else None,
        }

    def _read(self, reply: ExtenderReply, verb: str) -> Any:
        if reply.failure:
            raise ExtenderFault(reply.failure)
        if reply.code != 200:
            raise ExtenderFault(f"failed {verb} with extender at URL {self.url(verb)}, code {reply.code}")
        try:
            return msgspec.json.decode(reply.body)
        except msgspec.DecodeError as fault:
            raise ExtenderFault(f"extender {self.name} did not answer JSON to {verb}: {fault}") from None

    def url(self, verb: str) -> str:
        return f"{self.config.url_prefix.rstrip('/')}/{verb}"


@dataclass(frozen=True, slots=True)
class ExtenderCall:
    """A question to an extender."""

    extender: Extender
    verb: str
    arguments: dict[str, Any]

    @property
    def url(self) -> str:
        return self.extender.url(self.verb)

    @property
    def body(self) -> bytes:
        return msgspec.json.encode(self.arguments)
