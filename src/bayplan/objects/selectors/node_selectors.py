"""Node selectors: compilation and matching.

Used by NodeAffinity, volumes with a node affinity, device slices and storage classes. A selector is compiled once. An
invalid term stores its errors and never matches, while all other terms still count: kube-scheduler treats manifests
from older API servers in this way.

Cost: compiling validates keys and values; matching one node is one lookup per requirement. Plugins run the same
requirements over columns instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bayplan.codec.field_errors import AsJson, aggregate, invalid, unsupported
from bayplan.objects.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PreferredSchedulingTerm
from bayplan.objects.selectors.label_selectors import (
    NODE_OPERATORS,
    NOTHING,
    LabelMatcher,
    Requirement,
    SelectorError,
    make_requirement,
    matcher_of,
    requirement_problems,
    selector_from_map,
)
from bayplan.objects.storage import TopologySelectorTerm

NAME_FIELD = "metadata.name"
FIELD_OPERATORS = ("In", "NotIn")


class CompiledNodeTerm(msgspec.Struct, frozen=True, cache_hash=True):
    """One term: all label requirements and all field requirements hold. A term with `errors` matches no node."""

    requirements: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()
    errors: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str], name: str = "") -> bool:
        """Whether a node matches. Without a name (as for volumes) field requirements are ignored."""
        if self.errors or not all(requirement.matches(labels) for requirement in self.requirements):
            return False
        return not name or all(field.accepts(field_value(field, name)) for field in self.fields)


class NodeSelectorMatcher(msgspec.Struct, frozen=True, cache_hash=True):
    """A compiled node selector: at least one term matches. Without terms it matches no node."""

    terms: tuple[CompiledNodeTerm, ...] = ()

    def matches(self, labels: Mapping[str, str], name: str = "") -> bool:
        return any(term.matches(labels, name) for term in self.terms)

    @property
    def errors(self) -> tuple[str, ...]:
        return tuple(error for term in self.terms for error in term.errors)

    def check(self) -> NodeSelectorMatcher:
        """Return itself; raise `SelectorError` if any term is invalid. For callers that refuse invalid terms."""
        if self.errors:
            raise SelectorError(aggregate(self.errors))
        return self


class PreferredTerm(msgspec.Struct, frozen=True, cache_hash=True):
    """A term, and the weight that a matching node gets."""

    weight: int
    term: CompiledNodeTerm


class RequiredNodeAffinity(msgspec.Struct, frozen=True, cache_hash=True):
    """A pod's requirements on its node: the labels of `nodeSelector`, and the required node affinity if any."""

    labels: LabelMatcher
    selector: NodeSelectorMatcher | None = None

    def matches(self, labels: Mapping[str, str], name: str) -> bool:
        return self.labels.matches(labels) and (self.selector is None or self.selector.matches(labels, name))

    @property
    def everything(self) -> bool:
        """Whether the pod has no requirements."""
        return self.selector is None and self.labels.everything


class TopologyMatcher(msgspec.Struct, frozen=True, cache_hash=True):
    """Compiled `allowedTopologies`: at least one term matches; an empty list allows every node."""

    terms: tuple[LabelMatcher, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return not self.terms or any(term.matches(labels) for term in self.terms)


def field_value(requirement: Requirement, name: str) -> str:
    """The value that a field requirement compares with: only the node's name is selectable, other fields are empty."""
    return name if requirement.key == NAME_FIELD else ""


def compile_node_selector(selector: NodeSelector, path: str = "") -> NodeSelectorMatcher:
    """Compile a node selector. Never raises; errors stay in their term. An empty term is dropped."""
    return compile_node_terms(
        selector.node_selector_terms, f"{path}.nodeSelectorTerms" if path else "nodeSelectorTerms"
    )


def compile_node_terms(terms: Sequence[NodeSelectorTerm], path: str) -> NodeSelectorMatcher:
    """The terms of a selector; `path` is the path of the list in errors."""
    return NodeSelectorMatcher(
        tuple(compile_node_term(term, f"{path}[{number}]") for number, term in enumerate(terms) if not _is_empty(term))
    )


def compile_node_term(term: NodeSelectorTerm, path: str) -> CompiledNodeTerm:
    errors: list[str] = []
    requirements = list(_label_requirements(term.match_expressions, f"{path}.matchExpressions", errors))
    fields = list(_field_requirements(term.match_fields, f"{path}.matchFields", errors))
    if errors:
        return CompiledNodeTerm(errors=tuple(errors))
    return CompiledNodeTerm(matcher_of(requirements).requirements, tuple(fields))


def compile_preferred_terms(terms: Iterable[PreferredSchedulingTerm], path: str = "") -> tuple[PreferredTerm, ...]:
    """The terms with a weight. Raises `SelectorError` if one of them is invalid."""
    compiled = tuple(
        PreferredTerm(preferred.weight, compile_node_term(preferred.preference, f"{path}[{number}]"))
        for number, preferred in enumerate(terms)
        if preferred.weight and not _is_empty(preferred.preference)
    )
    errors = [error for preferred in compiled for error in preferred.term.errors]
    if errors:
        raise SelectorError(aggregate(errors))
    return compiled


def required_node_affinity(pod: Pod) -> RequiredNodeAffinity:
    """The requirements of the pod's `nodeSelector` and required node affinity."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    required = affinity.required if affinity is not None else None
    selector = compile_node_selector(required) if required is not None else None
    return RequiredNodeAffinity(selector_from_map(pod.spec.node_selector), selector)


def compile_topology_terms(terms: Iterable[TopologySelectorTerm]) -> TopologyMatcher:
    """Compile `allowedTopologies`. An empty or invalid term allows no node."""
    return TopologyMatcher(tuple(_topology_term(term) for term in terms))


def _topology_term(term: TopologySelectorTerm) -> LabelMatcher:
    expressions = term.match_label_expressions
    if not expressions or any(requirement_problems(item.key, "In", item.values) for item in expressions):
        return NOTHING
    return matcher_of(make_requirement(item.key, "In", item.values) for item in expressions)


def _is_empty(term: NodeSelectorTerm) -> bool:
    return not (term.match_expressions or term.match_fields)


def _label_requirements(
    expressions: Iterable[NodeSelectorRequirement], path: str, errors: list[str]
) -> Iterable[Requirement]:
    for number, expression in enumerate(expressions):
        at = f"{path}[{number}]"
        operator = NODE_OPERATORS.get(expression.operator)
        if operator is None:
            errors.append(str(unsupported(f"{at}.operator", AsJson(expression.operator), NODE_OPERATORS)))
        elif problems := requirement_problems(expression.key, operator, expression.values, at):
            errors.extend(problems)
        else:
            yield make_requirement(expression.key, operator, expression.values)


def _field_requirements(
    expressions: Iterable[NodeSelectorRequirement], path: str, errors: list[str]
) -> Iterable[Requirement]:
    for number, expression in enumerate(expressions):
        at = f"{path}[{number}]"
        operator = NODE_OPERATORS.get(expression.operator)
        if operator is None or operator not in FIELD_OPERATORS:
            errors.append(str(unsupported(f"{at}.operator", AsJson(expression.operator), FIELD_OPERATORS)))
        elif len(expression.values) != 1:
            errors.append(str(invalid(f"{at}.values", expression.values or None, "must have one element")))
        else:
            yield make_requirement(expression.key, operator, expression.values)
