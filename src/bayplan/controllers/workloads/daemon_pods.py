"""Node decisions and pods of a DaemonSet. Pure.

A decision costs a few comparisons and is cached until the node's labels or taints change. So a sync of a set on 5,000
nodes is a walk over a dictionary.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from bayplan.controllers.core.api_types import DAEMON_SETS, PodFields, PodSpecFields, Tree, UntypedObject
from bayplan.controllers.core.owner_refs import generated_prefix, owner_reference, pod_from_template
from bayplan.controllers.workloads.controller_revisions import HASH_LABEL
from bayplan.errors import ObjectError
from bayplan.objects.core import Node, NodeSelector, NodeSelectorRequirement, Taint, Toleration
from bayplan.objects.kinds import without_nulls
from bayplan.objects.selectors.node_selectors import NodeSelectorMatcher, compile_node_selector
from bayplan.objects.taints import find_untolerated_taint

GENERATION_LABEL = "pod-template-generation"
_NAME_FIELD = "metadata.name"
_DAEMON_TOLERATIONS = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)
_HOST_NETWORK_TOLERATION = ("node.kubernetes.io/network-unavailable", "NoSchedule")


class NodeDecision(NamedTuple):
    """Decision for a node: upstream's shouldRun and shouldContinueRunning."""

    should_run: bool
    """The node should have a pod."""
    should_continue_running: bool
    """A running pod may stay."""


class NodeDecisions:
    """Decisions of one generation of a DaemonSet, cached by node."""

    def __init__(self, found: UntypedObject) -> None:
        self.generation = found.metadata.generation
        template = found.spec.get("template") or {}
        spec = _decode_spec(template.get("spec") or {})
        self._node_name = spec.node_name
        self._tolerations = (*spec.tolerations, *(_toleration(*each) for each in _daemon_tolerations(template)))
        self._labels = spec.node_selector
        affinity = spec.affinity.node_affinity if spec.affinity is not None else None
        self._selector = _compile(affinity.required) if affinity is not None else None
        self._cache: dict[str, tuple[dict[str, str], tuple[Taint, ...], bool, NodeDecision]] = {}

    def decide(self, node: Node) -> NodeDecision:
        cached = self._cache.get(node.name)
        if cached is not None and cached[:3] == (node.labels, node.spec.taints, node.spec.unschedulable):
            return cached[3]
        decision = self._evaluate(node)
        self._cache[node.name] = (node.labels, node.spec.taints, node.spec.unschedulable, decision)
        return decision

    def forget(self, node_name: str) -> None:
        self._cache.pop(node_name, None)

    def _evaluate(self, node: Node) -> NodeDecision:
        if self._node_name and self._node_name != node.name:
            return NodeDecision(False, False)
        if not self._labels.items() <= node.labels.items():
            return NodeDecision(False, False)
        if self._selector is not None and not self._selector.matches(node.labels, node.name):
            return NodeDecision(False, False)
        taints = node.spec.taints
        if find_untolerated_taint(taints, self._tolerations, ("NoSchedule", "NoExecute")) is None:
            return NodeDecision(True, True)
        return NodeDecision(False, find_untolerated_taint(taints, self._tolerations, ("NoExecute",)) is None)


def _decode_spec(spec: Tree) -> PodSpecFields:
    try:
        return msgspec.convert(without_nulls(spec), PodSpecFields)
    except msgspec.ValidationError as fault:
        raise ObjectError(f"the template of a DaemonSet is invalid: {fault}; correct it") from None


def _compile(selector: NodeSelector | None) -> NodeSelectorMatcher | None:
    return compile_node_selector(selector) if selector is not None else None


def _daemon_tolerations(template: Tree) -> Iterable[tuple[str, str]]:
    network = (template.get("spec") or {}).get("hostNetwork")
    return (*_DAEMON_TOLERATIONS, _HOST_NETWORK_TOLERATION) if network else _DAEMON_TOLERATIONS


def _toleration(key: str, effect: str) -> Toleration:
    return Toleration(key=key, operator="Exists", effect=effect)


def daemon_pod(found: UntypedObject, node_name: str, short_hash: str) -> Tree:
    """Build the pod for one node. Its node affinity lets the scheduler place it on that node only."""
    template: Tree = found.spec.get("template") or {}
    body = pod_from_template(template, owner_reference(DAEMON_SETS, found), generate=generated_prefix(found.name))
    labels = {HASH_LABEL: short_hash, GENERATION_LABEL: str(found.metadata.generation)}
    body["metadata"]["labels"] = {**body["metadata"].get("labels", {}), **labels}
    spec: dict[str, Any] = {**body["spec"]}
    spec["affinity"] = _pin_to_node(spec.get("affinity") or {}, node_name)
    have = {(each.get("key"), each.get("effect"), each.get("operator")) for each in spec.get("tolerations") or ()}
    spec["tolerations"] = [
        *(spec.get("tolerations") or ()),
        *(
            {"key": key, "operator": "Exists", "effect": effect}
            for key, effect in _daemon_tolerations(template)
            if (key, effect, "Exists") not in have
        ),
    ]
    return {**body, "spec": spec}


def _pin_to_node(affinity: Tree, node_name: str) -> Tree:
    field = {"key": _NAME_FIELD, "operator": "In", "values": [node_name]}
    nodes = affinity.get("nodeAffinity") or {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = (nodes.get(required) or {}).get("nodeSelectorTerms") or [{}]
    pinned = [{**term, "matchFields": [field]} for term in terms]
    return {**affinity, "nodeAffinity": {**nodes, required: {"nodeSelectorTerms": pinned}}}


def node_of(pod: PodFields) -> str:
    """Node that a pod is bound to, or pinned to."""
    if pod.spec.node_name:
        return pod.spec.node_name
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    terms = affinity.required.node_selector_terms if affinity is not None and affinity.required is not None else ()
    fields: Iterable[NodeSelectorRequirement] = terms[0].match_fields if terms else ()
    return next((each.values[0] for each in fields if each.key == _NAME_FIELD and each.values), "")
