"""HTTP services that have a say in a decision: what to ask them, and how to read what they answer.

Nothing is sent from here. An attempt yields an `ExtenderCall`; whoever can await sends its body and hands the reply
back. Keys are capitalised because the services are written against Go structs without tags.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np

from bayplan.config.model import ExtenderConfig as ExtenderConfig
from bayplan.errors import BayplanError
from bayplan.framework.api.plugin import MAX_SCORE
from bayplan.framework.api.preemption_extender import NamedVictims
from bayplan.framework.api.status import Code, Status
from bayplan.framework.preemption.extenders import ExtenderAnswer
from bayplan.framework.preemption.victims import Victims
from bayplan.objects.core import Pod
from bayplan.snapshot import IntVector, NodeTable, RowVector

MAX_EXTENDER_PRIORITY = 10

T = TypeVar("T")


class ExtenderError(BayplanError):
    """An extender did not answer, or not in a way that can be used."""


@dataclass(frozen=True, slots=True)
class ExtenderReply:
    """What came back: an HTTP status with a body, or why nothing did."""

    code: int = 0
    body: bytes = b""
    failure: str = ""
    may_have_acted: bool = False
    """Whether the extender may have done, or may still do, what it was asked for."""


class _NodeName(msgspec.Struct, frozen=True):
    name: str = ""


class _NodeItem(msgspec.Struct, frozen=True):
    metadata: _NodeName = _NodeName()


class _NodeList(msgspec.Struct, frozen=True):
    items: tuple[_NodeItem, ...] | None = None


class ExtenderFilterResult(msgspec.Struct, frozen=True):
    """An answer to filter. Names are in small letters because Go, whose structs these are, reads them in any case."""

    nodes: _NodeList | None = None
    nodenames: tuple[str, ...] | None = None
    failednodes: dict[str, str] | None = None
    failedandunresolvablenodes: dict[str, str] | None = None
    error: str | None = None


class HostPriority(msgspec.Struct, frozen=True):
    """One node in an answer to prioritize: 0 to 10."""

    host: str = ""
    score: int = 0


class _MetaPod(msgspec.Struct, frozen=True):
    uid: str = ""


class _MetaVictims(msgspec.Struct, frozen=True):
    pods: tuple[_MetaPod, ...] | None = None
    numpdbviolations: int = 0


class ExtenderPreemptionResult(msgspec.Struct, frozen=True):
    """An answer to preempt: always names of pods, whatever was sent."""

    nodenametometavictims: dict[str, _MetaVictims] | None = None


class ExtenderBindingResult(msgspec.Struct, frozen=True):
    """An answer to bind: nothing, or why not."""

    error: str | None = None


class HttpExtender:
    """One configured extender."""

    def __init__(self, config: ExtenderConfig) -> None:
        self.config = config
        self._managed = frozenset(resource.name for resource in config.managed_resources)

    @property
    def name(self) -> str:
        return self.config.url_prefix

    @property
    def ignorable(self) -> bool:
        return self.config.ignorable

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

    def parse_filter(self, reply: ExtenderReply, nodes: NodeTable) -> tuple[RowVector, dict[int, Status]]:
        """The rows that survive, and the statuses of those that do not."""
        answer = self._parse(reply, self.config.filter_verb, ExtenderFilterResult)
        if answer.error:
            raise ExtenderError(answer.error)
        index = nodes.columns.index
        mine = set(nodes.names)
        kept = [index[name] for name in dict.fromkeys(self._remaining_nodes(answer, mine))]
        failed: dict[int, Status] = {}
        for name, text in (answer.failedandunresolvablenodes or {}).items():
            if name in mine:
                failed[index[name]] = Status(Code.UNRESOLVABLE, (text,))
        for name, text in (answer.failednodes or {}).items():
            if name in mine and index[name] not in failed:
                failed[index[name]] = Status(Code.UNSCHEDULABLE, (text,))
        return np.array(kept, dtype=np.intp), failed

    def _remaining_nodes(self, answer: ExtenderFilterResult, mine: set[str]) -> Iterator[str]:
        if not self.config.node_cache_capable or answer.nodenames is None:
            items = (answer.nodes.items if answer.nodes else None) or ()
            yield from (item.metadata.name for item in items if item.metadata.name in mine)
            return
        for name in answer.nodenames:
            if name not in mine:
                raise ExtenderError(
                    f'extender "{self.name}" claims a filtered node "{name}" which is not found in the input node list'
                )
            yield name

    # prioritize -------------------------------------------------------------------------------------------------

    def prioritize_call(self, pod: Pod, nodes: NodeTable) -> ExtenderCall:
        return ExtenderCall(self, self.config.prioritize_verb, self._arguments(pod, nodes))

    def parse_prioritize(self, reply: ExtenderReply, nodes: NodeTable) -> IntVector:
        """What the extender adds to each total: its score, weighted, stretched to our range."""
        scores: Counter[str] = Counter()
        for item in self._parse(reply, self.config.prioritize_verb, list[HostPriority]):
            scores[item.host] += item.score
        factor = self.config.weight * (MAX_SCORE // MAX_EXTENDER_PRIORITY)
        try:
            return np.array([scores[name] * factor for name in nodes.names], dtype=np.int64)
        except OverflowError:
            raise ExtenderError(f"extender {self.name} gave scores beyond 64 bits; it gives 0 to 10") from None

    # preempt ----------------------------------------------------------------------------------------------------

    def supports_preemption(self, pod: Pod) -> bool:
        return bool(self.config.preempt_verb) and self.is_interested(pod)

    def preempt_call(self, pod: Pod, candidates: Mapping[str, Victims]) -> ExtenderCall:
        told: dict[str, Any] = {"Pod": msgspec.to_builtins(pod), "NodeNameToVictims": None}
        told["NodeNameToMetaVictims"] = None
        capable = self.config.node_cache_capable
        told["NodeNameToMetaVictims" if capable else "NodeNameToVictims"] = {
            name: {
                "Pods": [{"UID": victim.uid} if capable else msgspec.to_builtins(victim) for victim in victims.pods],
                "NumPDBViolations": victims.violations,
            }
            for name, victims in candidates.items()
        }
        return ExtenderCall(self, self.config.preempt_verb, told)

    def parse_preempt(self, reply: ExtenderReply) -> ExtenderAnswer:
        """The candidates that it leaves, or the fault that kept it from saying so."""
        try:
            answer = self._parse(reply, self.config.preempt_verb, ExtenderPreemptionResult, _with_lowercase_victim_keys)
        except ExtenderError as fault:
            return fault
        return {
            name: NamedVictims(tuple(pod.uid for pod in victims.pods or ()), victims.numpdbviolations)
            for name, victims in (answer.nodenametometavictims or {}).items()
        }

    def process_preemption(self, pod: Pod, candidates: Mapping[str, Victims]) -> Mapping[str, NamedVictims]:
        raise ExtenderError(
            f"extender {self.name} would have to be asked about {len(candidates)} nodes for pod {pod.key}, and nothing "
            "here can call it; leave `preemptVerb` out of the configuration"
        )

    # bind -------------------------------------------------------------------------------------------------------

    def is_binder(self, pod: Pod) -> bool:
        return bool(self.config.bind_verb) and self.is_interested(pod)

    def bind_call(self, pod: Pod, node_name: str) -> ExtenderCall:
        told = {"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": pod.uid, "Node": node_name}
        return ExtenderCall(self, self.config.bind_verb, told)

    def parse_bind(self, reply: ExtenderReply) -> None:
        """Raises `ExtenderError` where the pod is not bound."""
        answer = self._parse(reply, self.config.bind_verb, ExtenderBindingResult)
        if answer.error:
            raise ExtenderError(answer.error)

    # all --------------------------------------------------------------------------------------------------------

    def _arguments(self, pod: Pod, nodes: NodeTable) -> dict[str, Any]:
        told: dict[str, Any] = {"Pod": msgspec.to_builtins(pod), "Nodes": None, "NodeNames": None}
        if self.config.node_cache_capable:
            told["NodeNames"] = list(nodes.names)
        else:
            told["Nodes"] = {"metadata": {}, "items": [msgspec.to_builtins(node.node) for node in nodes]}
        return told

    def _parse(self, reply: ExtenderReply, verb: str, kind: type[T], folded: Callable[[Any], Any] | None = None) -> T:
        if reply.failure:
            raise ExtenderError(reply.failure)
        if reply.code != 200:
            raise ExtenderError(f"failed {verb} with extender at URL {self.url(verb)}, code {reply.code}")
        try:
            return msgspec.convert((folded or _with_lowercase_keys)(msgspec.json.decode(reply.body)), kind)
        except (msgspec.DecodeError, msgspec.ValidationError) as fault:
            raise ExtenderError(f"extender {self.name} answered {verb} with something else: {fault}") from None

    def url(self, verb: str) -> str:
        return f"{self.config.url_prefix.rstrip('/')}/{verb}"


@dataclass(frozen=True, slots=True)
class ExtenderCall:
    """A question to an extender."""

    extender: HttpExtender
    verb: str
    arguments: dict[str, Any]

    @property
    def url(self) -> str:
        return self.extender.url(self.verb)

    @property
    def body(self) -> bytes:
        return msgspec.json.encode(self.arguments)


def _with_lowercase_keys(answer: Any) -> Any:
    """The answer with the keys of its outermost objects in small letters; nothing at all is an empty object."""
    if isinstance(answer, list):
        return [_with_lowercase_keys(item) for item in answer]
    if isinstance(answer, dict):
        return {key.lower(): value for key, value in answer.items()}
    return {} if answer is None else answer


def _with_lowercase_victim_keys(answer: Any) -> Any:
    """The same for an answer to preempt, whose objects are nested; names of nodes stay as they are."""
    top = _with_lowercase_keys(answer)
    by_node = top.get("nodenametometavictims") if isinstance(top, dict) else None
    if not isinstance(by_node, dict):
        return top
    victims = {name: _with_lowercase_keys(each) for name, each in by_node.items()}
    for each in victims.values():
        if isinstance(each, dict) and isinstance(each.get("pods"), list):
            each["pods"] = _with_lowercase_keys(each["pods"])
    return {**top, "nodenametometavictims": victims}
