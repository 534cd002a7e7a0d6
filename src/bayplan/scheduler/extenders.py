"""HTTP services that have a say in a decision: what to ask them, and how to read what they answer.

Nothing is sent from here. An attempt yields an `ExtenderCall`; whoever can await sends its body and hands the reply
back. Keys are capitalised because the services are written against Go structs without tags.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np

from bayplan.config.model import Extender as ExtenderConfig
from bayplan.errors import BayplanError
from bayplan.framework.plugin import MAX_SCORE
from bayplan.framework.status import Code, Status
from bayplan.objects.core import Pod
from bayplan.snapshot import IntVector, NodeTable, RowVector

MAX_EXTENDER_PRIORITY = 10

T = TypeVar("T")


class ExtenderFault(BayplanError):
    """An extender did not answer, or not in a way that can be used."""


@dataclass(frozen=True, slots=True)
class ExtenderReply:
    """What came back: an HTTP status with a body, or why nothing did."""

    code: int = 0
    body: bytes = b""
    failure: str = ""


class _NodeName(msgspec.Struct, frozen=True):
    name: str = ""


class _NodeItem(msgspec.Struct, frozen=True):
    metadata: _NodeName = _NodeName()


class _NodeList(msgspec.Struct, frozen=True):
    items: tuple[_NodeItem, ...] | None = None


class FilterAnswer(msgspec.Struct, frozen=True):
    """An answer to filter. Names are in small letters because Go, whose structs these are, reads them in any case."""

    nodes: _NodeList | None = None
    nodenames: tuple[str, ...] | None = None
    failednodes: dict[str, str] | None = None
    failedandunresolvablenodes: dict[str, str] | None = None
    error: str | None = None


class HostScore(msgspec.Struct, frozen=True):
    """One node in an answer to prioritize: 0 to 10."""

    host: str = ""
    score: int = 0


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
        answer = self._read(reply, self.config.filter_verb, FilterAnswer)
        if answer.error:
            raise ExtenderFault(answer.error)
        index = nodes.columns.index
        mine = set(nodes.names)
        kept = [index[name] for name in dict.fromkeys(self._survivors(answer, mine))]
        failed: dict[int, Status] = {}
        for name, text in (answer.failedandunresolvablenodes or {}).items():
            if name in mine:
                failed[index[name]] = Status(Code.UNRESOLVABLE, (text,))
        for name, text in (answer.failednodes or {}).items():
            if name in mine and index[name] not in failed:
                failed[index[name]] = Status(Code.UNSCHEDULABLE, (text,))
        return np.array(kept, dtype=np.intp), failed

    def _survivors(self, answer: FilterAnswer, mine: set[str]) -> Iterator[str]:
        if not self.config.node_cache_capable or answer.nodenames is None:
            items = (answer.nodes.items if answer.nodes else None) or ()
            yield from (item.metadata.name for item in items if item.metadata.name in mine)
            return
        for name in answer.nodenames:
            if name not in mine:
                raise ExtenderFault(
                    f'extender "{self.name}" claims a filtered node "{name}" which is not found in the input node list'
                )
            yield name

    # prioritize -------------------------------------------------------------------------------------------------

    def prioritize_call(self, pod: Pod, nodes: NodeTable) -> ExtenderCall:
        return ExtenderCall(self, self.config.prioritize_verb, self._arguments(pod, nodes))

    def read_prioritize(self, reply: ExtenderReply, nodes: NodeTable) -> IntVector:
        """What the extender adds to each total: its score, weighted, stretched to our range."""
        scores: Counter[str] = Counter()
        for item in self._read(reply, self.config.prioritize_verb, list[HostScore]):
            scores[item.host] += item.score
        factor = self.config.weight * (MAX_SCORE // MAX_EXTENDER_PRIORITY)
        try:
            return np.array([scores[name] * factor for name in nodes.names], dtype=np.int64)
        except OverflowError:
            raise ExtenderFault(f"extender {self.name} gave scores beyond 64 bits; it gives 0 to 10") from None

    # both -------------------------------------------------------------------------------------------------------

    def _arguments(self, pod: Pod, nodes: NodeTable) -> dict[str, Any]:
        told: dict[str, Any] = {"Pod": msgspec.to_builtins(pod), "Nodes": None, "NodeNames": None}
        if self.config.node_cache_capable:
            told["NodeNames"] = list(nodes.names)
        else:
            told["Nodes"] = {"metadata": {}, "items": [msgspec.to_builtins(node.node) for node in nodes]}
        return told

    def _read(self, reply: ExtenderReply, verb: str, kind: type[T]) -> T:
        if reply.failure:
            raise ExtenderFault(reply.failure)
        if reply.code != 200:
            raise ExtenderFault(f"failed {verb} with extender at URL {self.url(verb)}, code {reply.code}")
        try:
            return msgspec.convert(_folded(msgspec.json.decode(reply.body)), kind)
        except (msgspec.DecodeError, msgspec.ValidationError) as fault:
            raise ExtenderFault(f"extender {self.name} answered {verb} with something else: {fault}") from None

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


def _folded(answer: Any) -> Any:
    """The answer with the keys of its outermost objects in small letters; nothing at all is an empty object."""
    if isinstance(answer, list):
        return [_folded(item) for item in answer]
    if isinstance(answer, dict):
        return {key.lower(): value for key, value in answer.items()}
    return {} if answer is None else answer
