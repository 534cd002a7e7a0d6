"""Which objects of a kind does a list or a watch mean?

By label as everywhere; by field only those fields that Kubernetes lets one select by, which the store extracts once a
write (`field_extractor`), so that neither a list nor a watch reads an object to know whether it is wanted.
Cost: a dictionary lookup a term and object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bayplan.apiserver import api_errors
from bayplan.apiserver.resources.kinds import ServedResource, Tree
from bayplan.apiserver.storage.stored_objects import FieldExtractor, StoredObject
from bayplan.objects.selectors.label_selectors import EVERYTHING, LabelMatcher, SelectorError
from bayplan.objects.selectors.selector_text import FieldTerm, parse_field_selector, parse_selector

_EVENT_FIELDS = (
    *(f"involvedObject.{name}" for name in ("apiVersion", "fieldPath", "kind", "name", "namespace")),
    *("involvedObject.resourceVersion", "involvedObject.uid", "reason", "reportingComponent", "source", "type"),
)
_FIELDS: Mapping[tuple[str, str], Sequence[str]] = {
    ("", "pods"): (
        *("spec.hostNetwork", "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName"),
        *("status.nominatedNodeName", "status.phase", "status.podIP", "status.podIPs"),
    ),
    ("", "events"): _EVENT_FIELDS,
    ("", "nodes"): ("spec.unschedulable",),
    ("", "namespaces"): ("status.phase",),
    ("", "replicationcontrollers"): ("status.replicas",),
    ("", "secrets"): ("type",),
    ("", "services"): ("spec.clusterIP", "spec.type"),
    ("batch", "jobs"): ("status.successful",),
    ("certificates.k8s.io", "certificatesigningrequests"): ("spec.signerName",),
    ("resource.k8s.io", "resourceslices"): ("spec.driver", "spec.nodeName"),
}
_FIELD_ALIASES = {
    "status.successful": "status.succeeded",
    "source": "source.component",
    "status.podIPs": "status.podIP",
}
_DEFAULT_VALUES = {
    "spec.hostNetwork": "false",
    "spec.unschedulable": "false",
    "status.successful": "0",
    "status.replicas": "0",
}
_EVENTS_GROUP_FIELDS = {"reportingController": "reportingComponent", "reason": "reason", "type": "type"}
_EVENTS_GROUP_FIELDS |= {f"regarding.{name[15:]}": name for name in _EVENT_FIELDS if name.startswith("involvedObject.")}
_NAMES = ("metadata.name", "metadata.namespace")


def field_extractor(resource: ServedResource) -> FieldExtractor | None:
    """Reads the fields that objects of this kind can be selected by, from the form that is stored."""
    fields = _custom_fields(resource) if resource.custom else _FIELDS.get(resource.storage, ())
    if not fields:
        return None
    ways = [(name, _FIELD_ALIASES.get(name, name).split("."), _DEFAULT_VALUES.get(name, "")) for name in fields]
    near = [(name, *way, zero) for name, way, zero in ways if len(way) == 2]
    far = [(name, way, zero) for name, way, zero in ways if len(way) != 2]

    def extract(tree: Tree) -> dict[str, str]:
        found = {}
        for name, first, second, zero in near:
            part = tree.get(first)
            value = part.get(second) if type(part) is dict else None
            found[name] = value if type(value) is str else _value_text(value, zero)
        for name, way, zero in far:
            found[name] = _text(tree, way, zero)
        return found

    return extract


@dataclass(frozen=True, slots=True)
class SelectionPredicate:
    """What a list or a watch asks for. `name` is set where a field selector leaves only one."""

    namespace: str = ""
    labels: LabelMatcher = EVERYTHING
    terms: tuple[FieldTerm, ...] = ()

    @property
    def matches_all(self) -> bool:
        """Whether all objects, of the namespace if there is one, are meant."""
        return self.labels.everything and not self.terms

    @property
    def name(self) -> str | None:
        return next((each.value for each in self.terms if each.field == "metadata.name" and not each.negated), None)

    def matches(self, entry: StoredObject) -> bool:
        if self.namespace and entry.namespace != self.namespace:
            return False
        if not self.labels.matches(entry.labels):
            return False
        for term in self.terms:  # noqa: SIM110 (a generator costs more than the question, which every watch asks)
            if not _term_matches(term, entry):
                return False
        return True


def parse_selectors(
    resource: ServedResource, namespace: str, label_selector: str, field_selector: str
) -> SelectionPredicate:
    """Read both selectors. Raises the refusals that Kubernetes gives for what it cannot select by."""
    try:
        labels = parse_selector(label_selector) if label_selector else EVERYTHING
        terms = parse_field_selector(field_selector).terms if field_selector else ()
    except SelectorError as fault:
        raise api_errors.bad_request(fault.reason) from None
    return SelectionPredicate(namespace, labels, tuple(_stored_term(resource, term) for term in terms))


def _term_matches(term: FieldTerm, entry: StoredObject) -> bool:
    match term.field:
        case "metadata.name":
            value = entry.name
        case "metadata.namespace":
            value = entry.namespace
        case other:
            value = entry.fields.get(other, "")
    return (value == term.value) is not term.negated


def _stored_term(resource: ServedResource, term: FieldTerm) -> FieldTerm:
    """The term under the name of the stored form."""
    if term.field in _NAMES:
        return term
    if resource.group == "events.k8s.io":
        if (stored := _EVENTS_GROUP_FIELDS.get(term.field)) is not None:
            return term._replace(field=stored)
    elif term.field in (_custom_fields(resource) if resource.custom else _FIELDS.get(resource.storage, ())):
        return term
    raise api_errors.bad_request(_unsupported_field(resource, term.field))


def _unsupported_field(resource: ServedResource, field: str) -> str:
    if resource.kind == "Job" and resource.group == "batch":
        return f'field label "{field}" not supported for Job'
    if resource.kind == "ResourceSlice" and resource.group == "resource.k8s.io":
        return f"field label not supported for {resource.api_version}, Kind={resource.kind}: {field}"
    if resource.custom or resource.storage in _FIELDS:
        return f"field label not supported: {field}"
    return f'"{field}" is not a known field selector: only "metadata.name", "metadata.namespace"'


def _custom_fields(resource: ServedResource) -> tuple[str, ...]:
    found = (resource.definition or {}).get("selectableFields") or ()
    return tuple(str(each.get("jsonPath", "")).lstrip(".") for each in found)


def _text(tree: Any, way: Sequence[str], zero: str) -> str:
    for step in way:
        tree = tree.get(step) if isinstance(tree, dict) else None
    return _value_text(tree, zero)


def _value_text(value: Any, zero: str) -> str:
    if value is None or value is False:
        return zero
    return "true" if value is True else str(value)
