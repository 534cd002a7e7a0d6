"""Validation of metadata: names, labels, annotations, owner references, finalizers and immutable fields.

Every validator calls it first. Cost: a few microseconds for an object with a handful of labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.validation.names import NameRule, dns_label, label_key, label_value
from bayplan.codec.field_errors import IMMUTABLE, FieldErrorList
from bayplan.codec.go_text import quote

MAX_ANNOTATION_BYTES = 256 * 1024
_STANDARD_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")
_IMMUTABLE_FIELDS = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")


def mask_trailing_dash(text: str) -> str:
    """Replace the dash at the end of a `generateName` prefix, since more characters follow it in the name."""
    return f"{text[:-1]}a" if len(text) > 1 and text.endswith("-") else text


def check_metadata(
    out: FieldErrorList, meta: Tree, rule: NameRule, *, namespaced: bool, path: str = "metadata", kube: bool = True
) -> None:
    """`kube`: finalizers must be standard ones or have a domain, as older built-in kinds require."""
    prefix, name = meta.get("generateName"), meta.get("name")
    if prefix:
        out.each_invalid(f"{path}.generateName", prefix, rule(mask_trailing_dash(prefix)))
    if not name:
        out.required(f"{path}.name", "name or generateName is required")
    elif problems := rule(name):
        out.each_invalid(f"{path}.name", name, problems)
    check_common(out, meta, namespaced=namespaced, path=path, kube=kube)


def check_common(
    out: FieldErrorList, meta: Tree, *, namespaced: bool, path: str = "metadata", kube: bool = True
) -> None:
    """Check all metadata but the name."""
    namespace = meta.get("namespace")
    if namespaced:
        if not namespace:
            out.required(f"{path}.namespace")
        elif problems := dns_label(namespace):
            out.each_invalid(f"{path}.namespace", namespace, problems)
    elif namespace:
        out.forbidden(f"{path}.namespace", "not allowed on this type")
    _check_mutable(out, meta, path, kube=kube)


def _check_mutable(out: FieldErrorList, meta: Tree, path: str, *, kube: bool = True) -> None:
    if labels := meta.get("labels"):
        check_labels(out, labels, f"{path}.labels")
    if annotations := meta.get("annotations"):
        check_annotations(out, annotations, f"{path}.annotations")
    if owners := meta.get("ownerReferences"):
        _check_owners(out, owners, f"{path}.ownerReferences")
    if finalizers := meta.get("finalizers"):
        _check_finalizers(out, finalizers, f"{path}.finalizers", kube=kube)


def check_labels(out: FieldErrorList, labels: Mapping[str, str], path: str) -> None:
    for key, value in labels.items():
        if problems := label_key(key):
            out.each_invalid(path, key, problems)
        if problems := label_value(value):
            out.each_invalid(path, value, problems)


def check_annotations(out: FieldErrorList, annotations: Mapping[str, str], path: str) -> None:
    size = 0
    for key, value in annotations.items():
        if problems := label_key(key.lower()):
            out.each_invalid(path, key, problems)
        size += len(key) + len(value)
    if size > MAX_ANNOTATION_BYTES // 4:
        size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
        if size > MAX_ANNOTATION_BYTES:
            out.too_long(path, MAX_ANNOTATION_BYTES)


def _check_owners(out: FieldErrorList, owners: Iterable[Tree], path: str) -> None:
    controller = ""
    for owner in owners:
        version = owner.get("apiVersion", "")
        if not version.rpartition("/")[2]:
            out.invalid(f"{path}.apiVersion", version, "version must not be empty")
        for name in ("kind", "name", "uid"):
            if not owner.get(name):
                out.invalid(f"{path}.{name}", owner.get(name, ""), "must not be empty")
        if version == "v1" and owner.get("kind") == "Event":
            out.invalid(path, owner, "/v1, Kind=Event is disallowed from being an owner")
        if owner.get("controller"):
            this = f"{owner.get('kind', '')}/{owner.get('name', '')}"
            if controller:
                detail = f'Found "true" in references for {controller} and {this}'
                out.invalid(path, list(owners), f"Only one reference can have Controller set to true. {detail}")
            controller = controller or this


def _check_finalizers(out: FieldErrorList, finalizers: list[str], path: str, *, kube: bool) -> None:
    for index, name in enumerate(finalizers):
        out.each_invalid(path, name, label_key(name))
        if kube:
            check_kube_finalizer(out, name, f"{path}[{index}]")
    if "orphan" in finalizers and "foregroundDeletion" in finalizers:
        out.invalid(path, finalizers, "finalizer orphan and foregroundDeletion cannot be both set")


def check_kube_finalizer(out: FieldErrorList, name: str, path: str) -> None:
    if "/" not in name and name not in _STANDARD_FINALIZERS:
        out.invalid(path, name, "name is neither a standard finalizer name nor is it fully qualified")


def check_metadata_update(
    out: FieldErrorList, meta: Tree, old: Tree, path: str = "metadata", *, kube: bool = True
) -> None:
    """Check a metadata update.

    Every kind runs the check without `kube`; built-in kinds run it a second time with `kube`.
    """
    if old.get("deletionTimestamp"):
        new = sorted(set(meta.get("finalizers", ())) - set(old.get("finalizers", ())))
        if new:
            rule = "no new finalizers can be added if the object is being deleted, found new finalizers"
            out.forbidden(f"{path}.finalizers", f"{rule} []string{{{', '.join(map(quote, new))}}}")
    if not meta.get("resourceVersion"):
        out.invalid(f"{path}.resourceVersion", "", "must be specified for an update")
    if meta.get("generation", 0) < old.get("generation", 0):
        out.invalid(f"{path}.generation", meta.get("generation", 0), "must not be decremented")
    for name in _IMMUTABLE_FIELDS:
        if meta.get(name) != old.get(name):
            empty = "" if name in ("name", "namespace", "uid") else None
            out.invalid(f"{path}.{name}", meta.get(name, empty), IMMUTABLE)
    _check_mutable(out, meta, path, kube=kube)


def check_immutable(out: FieldErrorList, new: Any, old: Any, path: str) -> None:
    if new != old:
        out.invalid(path, new, IMMUTABLE)


def check_same_selector(out: FieldErrorList, spec: Tree, old: Tree) -> None:
    if spec.get("selector") != old.get("selector"):
        out.invalid("spec.selector", normalize_selector(spec.get("selector")), IMMUTABLE)


# Label selectors.


def check_selector(out: FieldErrorList, selector: Tree | None, path: str) -> None:
    if not selector:
        return
    if labels := selector.get("matchLabels"):
        check_labels(out, labels, f"{path}.matchLabels")
    for index, expression in enumerate(selector.get("matchExpressions", ())):
        _check_requirement(out, expression, f"{path}.matchExpressions[{index}]")


def _check_requirement(out: FieldErrorList, expression: Tree, path: str) -> None:
    operator, values = expression.get("operator", ""), expression.get("values", ())
    if operator in ("In", "NotIn"):
        if not values:
            out.required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            out.forbidden(f"{path}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
    else:
        out.invalid(f"{path}.operator", operator, "not a valid selector operator")
    out.each_invalid(f"{path}.key", expression.get("key", ""), label_key(expression.get("key", "")))
    for index, value in enumerate(values):
        out.each_invalid(f"{path}.values[{index}]", value, label_value(value))


def normalize_selector(selector: Mapping[str, Any] | None) -> Any:
    """A selector as messages show it: fields in the order of the API's types, labels sorted."""
    if selector is None:
        return None
    form: Tree = {}
    if labels := selector.get("matchLabels"):
        form["matchLabels"] = sorted_map(labels)
    if expressions := selector.get("matchExpressions"):
        form["matchExpressions"] = [
            {name: each[name] for name in ("key", "operator", "values") if name in each} for each in expressions
        ]
    return form


def sorted_map(labels: Mapping[str, Any] | None) -> Any:
    """A map as messages show it: sorted keys; an empty map is null."""
    return {key: labels[key] for key in sorted(labels)} if labels else None


def selector_is_empty(selector: Mapping[str, Any] | None) -> bool:
    """Whether the selector selects everything. A missing selector selects nothing."""
    return selector is not None and not (selector.get("matchLabels") or selector.get("matchExpressions"))


def selector_matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether the label selector matches the labels. A malformed requirement matches nothing."""
    if selector is None:
        return False
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    return all(
        _requirement_matches(each, labels.get(each.get("key", ""))) for each in selector.get("matchExpressions") or ()
    )


def _requirement_matches(expression: Mapping[str, Any], value: str | None) -> bool:
    match expression.get("operator"):
        case "In":
            return value is not None and value in expression.get("values", ())
        case "NotIn":
            return value is None or value not in expression.get("values", ())
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False
