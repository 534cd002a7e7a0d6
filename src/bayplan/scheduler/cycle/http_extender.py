"""HTTP extenders: builds the requests and reads the results of filter, prioritize, preempt and bind.

Sends nothing. A scheduling attempt yields an `ExtenderCall`; the caller posts its body and returns the reply. Keys are
capitalised because extenders decode them into Go structs without JSON tags.
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
    """An extender did not answer, refused, or answered with an invalid result."""


@dataclass(frozen=True, slots=True)
class ExtenderReply:
    """The HTTP status and body of a response, or the reason why there is none."""

    code: int = 0
    body: bytes = b""
    failure: str = ""
    may_have_acted: bool = False
    """Whether the extender may have executed the request, or may still execute it."""


class _NodeName(msgspec.Struct, frozen=True):
    name: str = ""


class _NodeItem(msgspec.Struct, frozen=True):
    metadata: _NodeName = _NodeName()


class _NodeList(msgspec.Struct, frozen=True):
    items: tuple[_NodeItem, ...] | None = None


class ExtenderFilterResult(msgspec.Struct, frozen=True):
    """Result of filter. Field names are lower case because Go decodes keys of any case."""

    nodes: _NodeList | None = None
    nodenames: tuple[str, ...] | None = None
    failednodes: dict[str, str] | None = None
    failedandunresolvablenodes: dict[str, str] | None = None
    error: str | None = None


class HostPriority(msgspec.Struct, frozen=True):
    """Score of one node in a result of prioritize: 0 to 10."""

    host: str = ""
    score: int = 0


class _MetaPod(msgspec.Struct, frozen=True):
    uid: str = ""


class _MetaVictims(msgspec.Struct, frozen=True):
    pods: tuple[_MetaPod, ...] | None = None
    numpdbviolations: int = 0


class ExtenderPreemptionResult(msgspec.Struct, frozen=True):
    """Result of preempt. Always has metaVictims (pod uids), whichever form was sent."""

    nodenametometavictims: dict[str, _MetaVictims] | None = None


class ExtenderBindingResult(msgspec.Struct, frozen=True):
    """Result of bind: empty, or an error."""

    error: str | None = None


class HttpExtender:
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
        """Extenders without managed resources get every pod; the rest get pods that request a managed resource."""
        if not self._managed:
            return True
        return any(
            self._managed & (container.resources.requests.keys() | container.resources.limits.keys())
            for container in (*pod.spec.init_containers, *pod.spec.containers)
        )

    # filter

    def filter_call(self, pod: Pod, nodes: NodeTable) -> ExtenderCall:
        return ExtenderCall(self, self.config.filter_verb, self._arguments(pod, nodes))

    def parse_filter(self, reply: ExtenderReply, nodes: NodeTable) -> tuple[RowVector, dict[int, Status]]:
        """The rows that remain, and the statuses of the rejected rows."""
        answer = self._parse(reply, self.config.filter_verb, ExtenderFilterResult)
        if answer.error:
            raise ExtenderError(answer.error)
        index = nodes.columns.index
        sent = set(nodes.names)
        remaining = [index[name] for name in dict.fromkeys(self._remaining_nodes(answer, sent))]
        failed: dict[int, Status] = {}
        for name, text in (answer.failedandunresolvablenodes or {}).items():
            if name in sent:
                failed[index[name]] = Status(Code.UNRESOLVABLE, (text,))
        for name, text in (answer.failednodes or {}).items():
            if name in sent and index[name] not in failed:
                failed[index[name]] = Status(Code.UNSCHEDULABLE, (text,))
        return np.array(remaining, dtype=np.intp), failed

    def _remaining_nodes(self, answer: ExtenderFilterResult, sent: set[str]) -> Iterator[str]:
        if not self.config.node_cache_capable or answer.nodenames is None:
            items = (answer.nodes.items if answer.nodes else None) or ()
            yield from (item.metadata.name for item in items if item.metadata.name in sent)
            return
        for name in answer.nodenames:
            if name not in sent:
                raise ExtenderError(
                    f'extender "{self.name}" claims a filtered node "{name}" which is not found in the input node list'
                )
            yield name

    # prioritize

    def prioritize_call(self, pod: Pod, nodes: NodeTable) -> ExtenderCall:
        return ExtenderCall(self, self.config.prioritize_verb, self._arguments(pod, nodes))

    def parse_prioritize(self, reply: ExtenderReply, nodes: NodeTable) -> IntVector:
        """What the extender adds to each total: its score times its weight, scaled to the range 0 to 100."""
        scores: Counter[str] = Counter()
        for item in self._parse(reply, self.config.prioritize_verb, list[HostPriority]):
            scores[item.host] += item.score
        factor = self.config.weight * (MAX_SCORE // MAX_EXTENDER_PRIORITY)
        try:
            return np.array([scores[name] * factor for name in nodes.names], dtype=np.int64)
        except OverflowError:
            raise ExtenderError(
                f"extender {self.name} returned scores beyond 64 bits; scores must be 0 to 10"
            ) from None

    # preempt

    def supports_preemption(self, pod: Pod) -> bool:
        return bool(self.config.preempt_verb) and self.is_interested(pod)

    def preempt_call(self, pod: Pod, candidates: Mapping[str, Victims]) -> ExtenderCall:
        arguments: dict[str, Any] = {"Pod": msgspec.to_builtins(pod), "NodeNameToVictims": None}
        arguments["NodeNameToMetaVictims"] = None
        capable = self.config.node_cache_capable
        arguments["NodeNameToMetaVictims" if capable else "NodeNameToVictims"] = {
            name: {
                "Pods": [{"UID": victim.uid} if capable else msgspec.to_builtins(victim) for victim in victims.pods],
                "NumPDBViolations": victims.violations,
            }
            for name, victims in candidates.items()
        }
        return ExtenderCall(self, self.config.preempt_verb, arguments)

    def parse_preempt(self, reply: ExtenderReply) -> ExtenderAnswer:
        """The candidates that the extender keeps, or the error that it or the transport returned."""
        try:
            answer = self._parse(reply, self.config.preempt_verb, ExtenderPreemptionResult, _lowercase_victim_keys)
        except ExtenderError as fault:
            return fault
        return {
            name: NamedVictims(tuple(pod.uid for pod in victims.pods or ()), victims.numpdbviolations)
            for name, victims in (answer.nodenametometavictims or {}).items()
        }

    def process_preemption(self, pod: Pod, candidates: Mapping[str, Victims]) -> Mapping[str, NamedVictims]:
        raise ExtenderError(
            f"extender {self.name} handles preemption, and this process cannot call extenders ({len(candidates)} nodes "
            f"for pod {pod.key}); leave `preemptVerb` out of the configuration"
        )

    # bind

    def is_binder(self, pod: Pod) -> bool:
        return bool(self.config.bind_verb) and self.is_interested(pod)

    def bind_call(self, pod: Pod, node_name: str) -> ExtenderCall:
        arguments = {"PodName": pod.name, "PodNamespace": pod.namespace, "PodUID": pod.uid, "Node": node_name}
        return ExtenderCall(self, self.config.bind_verb, arguments)

    def parse_bind(self, reply: ExtenderReply) -> None:
        """Raises `ExtenderError` if the pod is not bound."""
        answer = self._parse(reply, self.config.bind_verb, ExtenderBindingResult)
        if answer.error:
            raise ExtenderError(answer.error)

    # all calls

    def _arguments(self, pod: Pod, nodes: NodeTable) -> dict[str, Any]:
        arguments: dict[str, Any] = {"Pod": msgspec.to_builtins(pod), "Nodes": None, "NodeNames": None}
        if self.config.node_cache_capable:
            arguments["NodeNames"] = list(nodes.names)
        else:
            arguments["Nodes"] = {"metadata": {}, "items": [msgspec.to_builtins(node.node) for node in nodes]}
        return arguments

    def _parse(
        self, reply: ExtenderReply, verb: str, kind: type[T], normalize: Callable[[Any], Any] | None = None
    ) -> T:
        if reply.failure:
            raise ExtenderError(reply.failure)
        if reply.code != 200:
            raise ExtenderError(f"failed {verb} with extender at URL {self.url(verb)}, code {reply.code}")
        try:
            return msgspec.convert((normalize or _lowercase_keys)(msgspec.json.decode(reply.body)), kind)
        except (msgspec.DecodeError, msgspec.ValidationError) as fault:
            raise ExtenderError(f"extender {self.name} returned an invalid result of {verb}: {fault}") from None

    def url(self, verb: str) -> str:
        return f"{self.config.url_prefix.rstrip('/')}/{verb}"


@dataclass(frozen=True, slots=True)
class ExtenderCall:
    extender: HttpExtender
    verb: str
    arguments: dict[str, Any]

    @property
    def url(self) -> str:
        return self.extender.url(self.verb)

    @property
    def body(self) -> bytes:
        return msgspec.json.encode(self.arguments)


def _lowercase_keys(answer: Any) -> Any:
    """The answer with the keys of its outermost objects in lower case; null becomes an empty object."""
    if isinstance(answer, list):
        return [_lowercase_keys(item) for item in answer]
    if isinstance(answer, dict):
        return {key.lower(): value for key, value in answer.items()}
    return {} if answer is None else answer


def _lowercase_victim_keys(answer: Any) -> Any:
    """The same for a result of preempt, whose objects are nested. Node names keep their case."""
    top = _lowercase_keys(answer)
    by_node = top.get("nodenametometavictims") if isinstance(top, dict) else None
    if not isinstance(by_node, dict):
        return top
    victims = {name: _lowercase_keys(each) for name, each in by_node.items()}
    for each in victims.values():
        if isinstance(each, dict) and isinstance(each.get("pods"), list):
            each["pods"] = _lowercase_keys(each["pods"])
    return {**top, "nodenametometavictims": victims}
