"""Defaults, validation and status of CustomResourceDefinitions.

Called when a definition is written. `set_crd_defaults` fills in optional fields and `validate_crd` lists errors with
upstream's messages. `initial_status` and `accept_names` make the status that clients wait for. `definition_schemas`
validates the schemas. Cost: linear in the definition, plus the compilation of its rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from bayplan.apiserver.schema.crd.definition_schemas import schema_warnings, validate_schema
from bayplan.apiserver.schema.object_reader import deep_copy
from bayplan.apiserver.validation.names import dns1035_label, dns_subdomain
from bayplan.codec.field_errors import FieldErrorList
from bayplan.codec.go_text import quote

Tree = dict[str, Any]

_APPROVAL = "api-approved.kubernetes.io"
_TYPES = "boolean,date,integer,number,string"
_FORMATS = "byte,date,date-time,double,float,int32,int64,password"


def set_crd_defaults(tree: Tree) -> None:
    """Fill in names and the conversion strategy, in place."""
    spec = tree.setdefault("spec", {})
    names = spec.setdefault("names", {})
    kind = names.get("kind", "")
    if kind:
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", f"{kind}List")
    spec.setdefault("conversion", {"strategy": "None"})
    webhook = spec["conversion"].get("webhook") or {}
    service = (webhook.get("clientConfig") or {}).get("service")
    if service is not None:
        service.setdefault("port", 443)


def initial_status(tree: Tree, old: Tree | None = None) -> Tree:
    """The status of a definition after a write: it records the storage version; the conditions follow later."""
    before: Tree = deep_copy((old or {}).get("status") or {})
    stored = list(before.get("storedVersions") or ())
    storing = next((each["name"] for each in tree["spec"].get("versions") or () if each.get("storage")), None)
    if storing is not None and storing not in stored:
        stored.append(storing)
    if before:
        return {**before, "storedVersions": stored}
    return {"conditions": None, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": stored}


def accept_names(tree: Tree, definitions: Iterable[Tree], now: str) -> Tree:
    """The status after the check of the names. `definitions` are the established definitions of the same group."""
    spec = tree["spec"]
    conflict = _conflict(spec["names"], [each for each in definitions if each["spec"]["group"] == spec["group"]])
    status: Tree = {**deep_copy(tree.get("status") or {})}
    if conflict is None:
        status["acceptedNames"] = deep_copy(spec["names"])
        conditions = [
            ("NamesAccepted", "True", "NoConflicts", "no conflicts found"),
            ("Established", "True", "InitialNamesAccepted", "the initial names have been accepted"),
        ]
    else:
        conditions = [
            ("NamesAccepted", "False", *conflict),
            ("Established", "False", "NotAccepted", "not all names are accepted"),
        ]
    if (approval := _api_approval(tree)) is not None:
        conditions.insert(0, ("KubernetesAPIApprovalPolicyConformant", *approval))
    status["conditions"] = [_condition(status.get("conditions"), *each, now) for each in conditions]
    status.setdefault("storedVersions", [])
    return status


def _conflict(names: Mapping[str, Any], definitions: list[Tree]) -> tuple[str, str] | None:
    """Reason and message if a name is taken."""
    taken: set[str] = set()
    kinds: set[str] = set()
    for each in definitions:
        held = (each.get("status") or {}).get("acceptedNames") or {}
        taken |= {held.get("plural", ""), held.get("singular", ""), *(held.get("shortNames") or ())}
        kinds |= {held.get("kind", ""), held.get("listKind", "")}
    checks = [("PluralConflict", names["plural"], taken), ("SingularConflict", names.get("singular", ""), taken)]
    checks += [("ShortNamesConflict", short, taken) for short in names.get("shortNames") or ()]
    checks += [("KindConflict", names["kind"], kinds), ("ListKindConflict", names.get("listKind", ""), kinds)]
    for reason, name, held in checks:
        if name and name in held:
            return reason, f'"{name}" is already in use'
    return None


def _condition(before: Any, kind: str, status: str, reason: str, message: str, now: str) -> Tree:
    old = next((each for each in before or () if each["type"] == kind), None)
    since = old["lastTransitionTime"] if old is not None and old["status"] == status else now
    condition = {"type": kind, "status": status, "lastTransitionTime": since}
    return {**condition, "reason": reason, "message": message}


# Validation.


def validate_crd(tree: Tree, old: Tree | None = None) -> FieldErrorList:
    """The errors of the definition, without those of its metadata."""
    found, spec = FieldErrorList(), tree["spec"]
    name, names = tree["metadata"].get("name", ""), spec.get("names") or {}
    if old is None and name != f"{names.get('plural', '')}.{spec.get('group', '')}":
        found.invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group')
    _check_group(spec.get("group", ""), found)
    _check_scope(spec, old, found)
    _check_versions(spec, found)
    _check_names(names, found)
    _check_conversion(spec.get("conversion") or {}, found)
    _check_per_version(spec, found)
    if spec.get("preserveUnknownFields"):
        detail = (
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"
        )
        found.invalid("spec.preserveUnknownFields", True, detail)
    _check_stored(tree, found)
    _check_approval(tree, old, found)
    if old is not None:
        _check_change(spec, old["spec"], found)
    return found


def crd_warnings(tree: Tree, old: Tree | None = None) -> list[str]:
    """The warnings of a definition. An update returns only new ones."""
    found = (schema_warnings(version) for version in tree["spec"].get("versions") or ())
    known = crd_warnings(old) if old is not None else ()
    return [warning for warning in dict.fromkeys(each for listed in found for each in listed) if warning not in known]


def _check_group(group: str, found: FieldErrorList) -> None:
    if not group:
        found.required("spec.group")
    elif problems := dns_subdomain(group):
        found.each_invalid("spec.group", group, problems)
    elif "." not in group:
        found.invalid("spec.group", group, "should be a domain with at least one dot")


def _check_scope(spec: Tree, old: Tree | None, found: FieldErrorList) -> None:
    scope = spec.get("scope", "")
    if not scope:
        found.required("spec.scope")
    elif scope not in ("Cluster", "Namespaced"):
        found.unsupported("spec.scope", scope, ("Cluster", "Namespaced"))
    elif old is not None and old["spec"].get("scope") != scope:
        found.invalid("spec.scope", scope, "field is immutable")


def _check_versions(spec: Tree, found: FieldErrorList) -> None:
    versions = spec.get("versions") or []
    for at, version in enumerate(versions):
        found.each_invalid(f"spec.versions[{at}].name", version["name"], dns1035_label(version["name"]))
        if version.get("deprecationWarning") and not version.get("deprecated"):
            detail = "can only be set for deprecated versions"
            found.invalid(f"spec.versions[{at}].deprecationWarning", version["deprecationWarning"], detail)
        if not (version.get("schema") or {}).get("openAPIV3Schema") and "schema" not in _version_text(version):
            found.required(f"spec.versions[{at}].schema.openAPIV3Schema")
    shown = [_internal(version) for version in versions]
    names = [version["name"] for version in versions]
    if len(set(names)) < len(names):
        found.invalid("spec.versions", shown, "must contain unique version names")
    if sum(bool(version.get("storage")) for version in versions) != 1:
        found.invalid("spec.versions", shown, "must have exactly one version marked as storage version")
    if versions:
        found.each_invalid("spec.version", names[0], dns1035_label(names[0]))


def _version_text(version: Tree) -> Tree:
    """The version without an empty schema, which errors do not show."""
    schema = version.get("schema")
    return version if schema and "openAPIV3Schema" in schema else {k: v for k, v in version.items() if k != "schema"}


def _internal(version: Tree) -> Tree:
    return {
        "Name": version["name"],
        "Served": bool(version.get("served")),
        "Storage": bool(version.get("storage")),
        "Deprecated": bool(version.get("deprecated")),
        "DeprecationWarning": version.get("deprecationWarning"),
        **dict.fromkeys(("Schema", "Subresources", "AdditionalPrinterColumns", "SelectableFields")),
    }


def _check_names(names: Tree, found: FieldErrorList) -> None:
    for key in ("plural", "singular"):
        _check_name(f"spec.names.{key}", names.get(key, ""), found)
    for key in ("kind", "listKind"):
        path, value = f"spec.names.{key}", names.get(key, "")
        if not value:
            found.required(path)
        elif problems := dns1035_label(value.lower()):
            found.invalid(path, value, "may have mixed case, but should otherwise match: " + ",".join(problems))
    for key in ("shortNames", "categories"):
        for at, value in enumerate(names.get(key) or ()):
            found.each_invalid(f"spec.names.{key}[{at}]", value, dns1035_label(value))
    if names.get("kind") and names.get("kind") == names.get("listKind"):
        found.invalid("spec.names.listKind", names["listKind"], "kind and listKind may not be the same")


def _check_name(path: str, value: str, found: FieldErrorList) -> None:
    if not value:
        found.required(path)
    else:
        found.each_invalid(path, value, dns1035_label(value))


def _check_conversion(conversion: Tree, found: FieldErrorList) -> None:
    strategy = conversion.get("strategy", "")
    if not strategy:
        found.required("spec.conversion.strategy")
    elif strategy not in ("None", "Webhook"):
        found.unsupported("spec.conversion.strategy", strategy, ("None", "Webhook"))
    elif strategy == "Webhook":
        webhook = conversion.get("webhook") or {}
        if not webhook.get("clientConfig"):
            found.required("spec.conversion.webhookClientConfig", "required when strategy is set to Webhook")
        if not webhook.get("conversionReviewVersions"):
            found.required("spec.conversion.conversionReviewVersions")


def _check_per_version(spec: Tree, found: FieldErrorList) -> None:
    """Check schemas, subresources and columns. Upstream reports once at the top what all versions have in common."""
    versions = spec.get("versions") or []
    for key, common, check in (
        ("schema", "spec.validation", _check_schema),
        ("subresources", "spec.subresources", _check_subresources),
        ("additionalPrinterColumns", "spec.additionalPrinterColumns", _check_columns),
        ("selectableFields", "spec.selectableFields", _check_selectable),
    ):
        given = [version.get(key) for version in versions]
        if given and all(each == given[0] for each in given):
            check(common, given[0], versions[0], found)
            continue
        for at, version in enumerate(versions):
            check(f"spec.versions[{at}].{key}", version.get(key), version, found)


def _check_schema(path: str, given: Any, _: Tree, found: FieldErrorList) -> None:
    schema = (given or {}).get("openAPIV3Schema")
    if schema is not None:
        found.extend(validate_schema(schema, f"{path}.openAPIV3Schema"))


def _check_subresources(path: str, given: Any, _: Tree, found: FieldErrorList) -> None:
    scale = (given or {}).get("scale")
    if scale is None:
        return
    for key, root in (("specReplicasPath", ".spec"), ("statusReplicasPath", ".status")):
        value = scale.get(key, "")
        if not value:
            found.required(f"{path}.scale.{key}")
        elif not value.startswith("."):
            found.invalid(f"{path}.scale.{key}", value, "must be a simple json path starting with .")
        elif not value.startswith(f"{root}."):
            found.invalid(f"{path}.scale.{key}", value, f"should be a json path under {root}")
    selector = scale.get("labelSelectorPath", "")
    if selector and not selector.startswith("."):
        found.invalid(f"{path}.scale.labelSelectorPath", selector, "must be a simple json path starting with .")
    elif selector and not selector.startswith((".spec.", ".status.")):
        detail = "should be a json path under either .spec or .status"
        found.invalid(f"{path}.scale.labelSelectorPath", selector, detail)


def _check_columns(path: str, given: Any, _: Tree, found: FieldErrorList) -> None:
    for at, column in enumerate(given or ()):
        here = f"{path}[{at}]"
        if not column.get("name"):
            found.required(f"{here}.name")
        kind, form, where = column.get("type", ""), column.get("format", ""), column.get("jsonPath", "")
        if not kind:
            found.required(f"{here}.type", f"must be one of {_TYPES}")
        elif kind not in _TYPES.split(","):
            found.invalid(f"{here}.type", kind, f"must be one of {_TYPES}")
        if form and form not in _FORMATS.split(","):
            found.invalid(f"{here}.format", form, f"must be one of {_FORMATS}")
        if not where:
            found.required(f"{here}.JSONPath")
        elif not where.startswith("."):
            found.invalid(f"{here}.JSONPath", where, "must be a simple json path starting with .")


def _check_selectable(path: str, given: Any, version: Tree, found: FieldErrorList) -> None:
    schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
    for at, field in enumerate(given or ()):
        where = field.get("jsonPath", "")
        if not _path_exists(schema, where):
            detail = "is an invalid path: does not refer to a valid field"
            found.invalid(f"{path}[{at}].jsonPath", where, detail)


def _path_exists(schema: Tree, where: str) -> bool:
    for name in where.removeprefix(".").split("."):
        schema = schema.get("properties", {}).get(name)
        if schema is None:
            return False
    return schema.get("type") in ("string", "integer", "boolean")


def _check_stored(tree: Tree, found: FieldErrorList) -> None:
    versions = tree["spec"].get("versions") or []
    stored = (tree.get("status") or {}).get("storedVersions") or []
    wanted = [version["name"] for version in versions if version.get("storage")]
    if not stored:
        if not wanted:
            found.invalid("status.storedVersions", None, "must have at least one stored version")
        return
    names = [version["name"] for version in versions]
    for at, name in enumerate(stored):
        if name not in names:
            found.invalid(f"status.storedVersions[{at}]", name, _MIGRATE.format(name=name))
    if wanted and wanted[-1] not in stored:
        found.invalid("status.storedVersions", stored, f"must have the storage version {wanted[-1]}")


_MIGRATE = (
    "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a "
    "storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
)


def _check_approval(tree: Tree, old: Tree | None, found: FieldErrorList) -> None:
    approval = _api_approval(tree)
    if approval is None or (old is not None and (_api_approval(old) or ("", ""))[1] == approval[1]):
        return
    path = f"metadata.annotations[{_APPROVAL}]"
    if approval[1] == "MissingAnnotation":
        found.required(path, approval[2])
    elif approval[1] == "InvalidAnnotation":
        found.invalid(path, (tree["metadata"].get("annotations") or {})[_APPROVAL], approval[2])


def _api_approval(tree: Tree) -> tuple[str, str, str] | None:
    """Status, reason and message of the approval that Kubernetes' own groups need; None for other groups."""
    group = tree["spec"].get("group", "")
    if not any(group == root or group.endswith(f".{root}") for root in ("k8s.io", "kubernetes.io")):
        return None
    value = (tree["metadata"].get("annotations") or {}).get(_APPROVAL, "")
    see = "see https://github.com/kubernetes/enhancements/pull/1111"
    needed = f'protected groups must have approval annotation "{_APPROVAL}"'
    if not value:
        return "False", "MissingAnnotation", f"{needed}, {see}"
    if value.startswith("unapproved"):
        return "False", "UnapprovedAnnotation", f"not approved: {quote(value)}"
    if re.match(r"[a-z]+://[^/]", value):
        return "True", "ApprovedAnnotation", f"approved in {value}"
    detail = f'{needed} with either a URL or a reason starting with "unapproved", {see}'
    return "False", "InvalidAnnotation", detail


def _check_change(spec: Tree, before: Tree, found: FieldErrorList) -> None:
    for path in ("group", "names.plural", "names.kind"):
        new, old = _at(spec, path), _at(before, path)
        if new != old:
            found.invalid(f"spec.{path}", new, "field is immutable")


def _at(tree: Any, path: str) -> Any:
    for name in path.split("."):
        tree = (tree or {}).get(name)
    return tree
