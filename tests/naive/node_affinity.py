"""Naive twin of NodeAffinity, one node at a time, on the manifests."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import strategies as st

from bayplan.objects import core
from bayplan.objects.core import Node, NodeSelectorRequirement, NodeSelectorTerm, Pod
from bayplan.plugins.node_affinity import args as node_affinity_args
from bayplan.plugins.node_affinity.args import NodeAffinityArgs
from bayplan.plugins.node_affinity.plugin import NodeAffinity
from naive.twin import SOUND_TERMS, Case, Twin, cases, fits_unless, node_affinities, spread_to_100
from support.builders.framework import FilterResult, unresolvable


def is_integer(text: str) -> bool:
    return text.lstrip("+-").isdigit()


def malformed(expression: NodeSelectorRequirement) -> bool:
    values = expression.values
    if any(value.startswith("-") for value in values):
        return True
    match expression.operator:
        case "In" | "NotIn":
            return not values
        case "Exists" | "DoesNotExist":
            return bool(values)
        case "Gt" | "Lt":
            return len(values) != 1 or not is_integer(values[0])
    return True


def field_malformed(field: NodeSelectorRequirement) -> bool:
    return field.operator not in ("In", "NotIn") or len(field.values) != 1


def term_is_broken(term: NodeSelectorTerm) -> bool:
    return any(map(malformed, term.match_expressions)) or any(map(field_malformed, term.match_fields))


def expression_holds(expression: NodeSelectorRequirement, node: Node) -> bool:
    value = node.metadata.labels.get(expression.key)
    match expression.operator:
        case "In":
            return value in expression.values
        case "NotIn":
            return value not in expression.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    if value is None or not is_integer(value):
        return False
    number, bound = int(value), int(expression.values[0])
    return number > bound if expression.operator == "Gt" else number < bound


def field_holds(field: NodeSelectorRequirement, node: Node) -> bool:
    value = node.name if field.key == "metadata.name" else ""
    return (value in field.values) == (field.operator == "In")


def term_matches(term: NodeSelectorTerm, node: Node) -> bool:
    if term_is_broken(term) or not (term.match_expressions or term.match_fields):
        return False
    return all(expression_holds(each, node) for each in term.match_expressions) and all(
        field_holds(each, node) for each in term.match_fields
    )


def affinity_of(pod: Pod) -> core.NodeAffinity:
    affinity = pod.spec.affinity
    return (affinity.node_affinity if affinity is not None else None) or core.NodeAffinity()


def added_to(case: Case) -> core.NodeAffinity:
    added = case.args.affinity if case.args is not None else None
    return added or core.NodeAffinity()


def only_names(pod: Pod) -> set[str] | None:
    """The nodes that PreFilter narrows to, if it does."""
    required = affinity_of(pod).required
    if required is None or not required.node_selector_terms:
        return None
    names: set[str] = set()
    for term in required.node_selector_terms:
        sets = [
            set(field.values) for field in term.match_fields if (field.key, field.operator) == ("metadata.name", "In")
        ]
        if not sets:
            return None
        names |= set.intersection(*sets)
    return names


def judge(case: Case, node: Node) -> FilterResult:
    names = only_names(case.pod)
    required, added = affinity_of(case.pod).required, added_to(case).required
    selected = all(node.metadata.labels.get(key) == value for key, value in case.pod.spec.node_selector.items())
    wanted = required is None or any(term_matches(term, node) for term in required.node_selector_terms)
    enforced = added is None or any(term_matches(term, node) for term in added.node_selector_terms)
    return fits_unless(
        (names == set(), unresolvable("pod affinity terms conflict")),
        (names is not None and node.name not in names, unresolvable("node(s) didn't satisfy plugin(s) [NodeAffinity]")),
        (not enforced, unresolvable("node(s) didn't match scheduler-enforced node affinity")),
        (not (selected and wanted), unresolvable("node(s) didn't match Pod's node affinity/selector")),
    )


def scores(case: Case, feasible: Sequence[Node]) -> dict[str, int] | None:
    preferred = (*added_to(case).preferred, *affinity_of(case.pod).preferred)
    if not preferred:
        return None
    return spread_to_100(
        {node.name: sum(each.weight for each in preferred if term_matches(each.preference, node)) for node in feasible}
    )


def _as_args(affinity: core.NodeAffinity | None) -> NodeAffinityArgs:
    manifest = None if affinity is None else msgspec.to_builtins(affinity)
    return NodeAffinityArgs(msgspec.convert(manifest, node_affinity_args.NodeAffinity | None))


ARGS = st.none() | node_affinities(SOUND_TERMS).map(_as_args)
TWIN = Twin(NodeAffinity, cases("labels node_selector affinity", ARGS), judge, scores)
