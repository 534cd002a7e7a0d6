"""Label and field selectors of lists and watches.

Field selectors cover the fields that Kubernetes supports for the kind. The store extracts these once for each write
(`field_extractor`), so neither a list nor a watch decodes an object to match it.
Cost: a dictionary lookup for each term and object.
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
    """Returns a function that reads the selectable fields of this kind from the stored form."""
    fields = _custom_fields(resource) if resource.custom else _FIELDS.get(resource.storage, ())
    if not fields:
        return None
    paths = [(name, _FIELD_ALIASES.get(name, name).split("."), _DEFAULT_VALUES.get(name, "")) for name in fields]
    two_step_fields = [(name, *path, default) for name, path, default in paths if len(path) == 2]
    other_fields = [(name, path, default) for name, path, default in paths if len(path) != 2]

    def extract(tree: Tree) -> dict[str, str]:
        found = {}
        for name, first, second, default in two_step_fields:
            part = tree.get(first)
            value = part.get(second) if type(part) is dict else None
            found[name] = value if type(value) is str else _value_text(value, default)
        for name, path, default in other_fields:
            found[name] = _text(tree, path, default)
        return found

    return extract


@dataclass(frozen=True, slots=True)
class SelectionPredicate:
    """The selectors of a list or watch. `name` is set if a field selector leaves a single name."""

    namespace: str = ""
    labels: LabelMatcher = EVERYTHING
    terms: tuple[FieldTerm, ...] = ()

    @property
    def matches_all(self) -> bool:
        """Whether every object matches, within the namespace if one is set."""
        return self.labels.everything and not self.terms

    @property
    def name(self) -> str | None:
        return next((each.value for each in self.terms if each.field == "metadata.name" and not each.negated), None)

    def matches(self, entry: StoredObject) -> bool:
        if self.namespace and entry.namespace != self.namespace:
            return False
        if not self.labels.matches(entry.labels):
            return False
        for term in self.terms:  # noqa: SIM110 (a generator costs more than the loop, and every watch runs it)
            if not _term_matches(term, entry):
                return False
        return True


def parse_selectors(
    resource: ServedResource, namespace: str, label_selector: str, field_selector: str
) -> SelectionPredicate:
    """Parses both selectors. Raises kube-apiserver's error for an unsupported selector."""
    try:
        labels = parse_selector(label_selector) if label_selector else EVERYTHING
        terms = parse_field_selector(field_selector).terms if field_selector else ()
    except SelectorError as error:
        raise api_errors.bad_request(error.reason) from None
    return SelectionPredicate(namespace, labels, tuple(_stored_term(resource, term) for term in terms))


def _term_matches(term: FieldTerm, entry: StoredObject) -> bool:
    match term.field:
        case "metadata.name":
            value = entry.name
        case "metadata.namespace":
            value = entry.namespace
        case field:
            value = entry.fields.get(field, "")
    return (value == term.value) is not term.negated


def _stored_term(resource: ServedResource, term: FieldTerm) -> FieldTerm:
    """The term with the field name of the stored form."""
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


def _text(tree: Any, path: Sequence[str], default: str) -> str:
    for step in path:
        tree = tree.get(step) if isinstance(tree, dict) else None
    return _value_text(tree, default)


def _value_text(value: Any, default: str) -> str:
    if value is None or value is False:
        return default
    return "true" if value is True else str(value)
