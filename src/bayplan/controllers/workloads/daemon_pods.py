"""On which nodes does a DaemonSet want a pod, and what does the pod for one node look like?

Pure. A node costs a few comparisons, and the answer is kept until the node's labels or taints change: a sync of a set
on 5,000 nodes is a walk over a dictionary.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from bayplan.controllers.core.api_types import (
    DAEMON_SETS,
    PodFields,
    PodSpecFields,
    Tree,
    UntypedObject,
)
from bayplan.controllers.core.owner_refs import generated_prefix, owner_reference, pod_from_template
from bayplan.controllers.workloads.controller_revisions import HASH_LABEL
from bayplan.errors import ObjectError
from bayplan.objects.core import Node, NodeSelector, NodeSelectorRequirement, Taint, Toleration
from bayplan.objects.kinds import without_nulls
from bayplan.objects.selectors.node_selectors import NodeSelectorMatcher, compile_node_selector
from bayplan.objects.taints import first_untolerated

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
    """What a set wants of a node."""

    should_run: bool
    """A pod is to be there."""
    should_continue_running: bool
    """A pod that is there may stay."""


class NodeDecisions:
    """What one generation of a DaemonSet wants of nodes."""

    def __init__(self, found: UntypedObject) -> None:
        self.generation = found.metadata.generation
        template = found.spec.get("template") or {}
        spec = _typed(template.get("spec") or {})
        self._node_name = spec.node_name
        self._tolerations = (*spec.tolerations, *(_toleration(*each) for each in _added(template)))
        self._labels = spec.node_selector
        affinity = spec.affinity.node_affinity if spec.affinity is not None else None
        self._selector = _compiled(affinity.required) if affinity is not None else None
        self._known: dict[str, tuple[dict[str, str], tuple[Taint, ...], bool, NodeDecision]] = {}

    def decide(self, node: Node) -> NodeDecision:
        known = self._known.get(node.name)
        if known is not None and known[:3] == (node.labels, node.spec.taints, node.spec.unschedulable):
            return known[3]
        answer = self._look(node)
        self._known[node.name] = (node.labels, node.spec.taints, node.spec.unschedulable, answer)
        return answer

    def forget(self, node_name: str) -> None:
        self._known.pop(node_name, None)

    def _look(self, node: Node) -> NodeDecision:
        if self._node_name and self._node_name != node.name:
            return NodeDecision(False, False)
        if not self._labels.items() <= node.labels.items():
            return NodeDecision(False, False)
        if self._selector is not None and not self._selector.matches(node.labels, node.name):
            return NodeDecision(False, False)
        taints = node.spec.taints
        if first_untolerated(taints, self._tolerations, ("NoSchedule", "NoExecute")) is None:
            return NodeDecision(True, True)
        return NodeDecision(False, first_untolerated(taints, self._tolerations, ("NoExecute",)) is None)


def _typed(spec: Tree) -> PodSpecFields:
    try:
        return msgspec.convert(without_nulls(spec), PodSpecFields)
    except msgspec.ValidationError as fault:
        raise ObjectError(f"the template of a DaemonSet cannot be read: {fault}") from None


def _compiled(selector: NodeSelector | None) -> NodeSelectorMatcher | None:
    return compile_node_selector(selector) if selector is not None else None


def _added(template: Tree) -> Iterable[tuple[str, str]]:
    network = (template.get("spec") or {}).get("hostNetwork")
    return (*_DAEMON_TOLERATIONS, _HOST_NETWORK_TOLERATION) if network else _DAEMON_TOLERATIONS


def _toleration(key: str, effect: str) -> Toleration:
    return Toleration(key=key, operator="Exists", effect=effect)


def daemon_pod(found: UntypedObject, node_name: str, short_hash: str) -> Tree:
    """The pod for one node. The scheduler places it: it may go to that node and to no other."""
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
            for key, effect in _added(template)
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
    """The node that a pod is on, or is meant for."""
    if pod.spec.node_name:
        return pod.spec.node_name
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    terms = affinity.required.node_selector_terms if affinity is not None and affinity.required is not None else ()
    fields: Iterable[NodeSelectorRequirement] = terms[0].match_fields if terms else ()
    return next((each.values[0] for each in fields if each.key == _NAME_FIELD and each.values), "")
