"""Validation of webhook configurations.

Bayplan's API server does not call webhooks, but reports errors in their configurations. Match conditions need a name
and an expression; the expression is not compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.validation.metadata import check_metadata, check_metadata_update, check_selector
from bayplan.apiserver.validation.names import dns1035_label, dns_subdomain, label_key, port_number
from bayplan.codec.field_errors import FieldErrorList

_REVIEWS = ("v1", "v1beta1")
_CHOICES = {
    "failurePolicy": ("Fail", "Ignore"),
    "matchPolicy": ("Equivalent", "Exact"),
    "reinvocationPolicy": ("IfNeeded", "Never"),
}
_SIDE_EFFECTS = ("None", "NoneOnDryRun")
_OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
_SCOPES = ("*", "Cluster", "Namespaced")
_FORM = "; desired format: https://host[/path]"
_MAX_MATCH_CONDITIONS = 64
_MAX_TIMEOUT_S = 30


def check_webhooks(out: FieldErrorList, item: Tree) -> None:
    check_metadata(out, item["metadata"], dns_subdomain, namespaced=False, kube=False)
    names: set[str] = set()
    for index, hook in enumerate(item.get("webhooks") or ()):
        path = f"webhooks[{index}]"
        _check_webhook(out, hook, path)
        _check_reviews(out, hook.get("admissionReviewVersions") or [], f"{path}.admissionReviewVersions")
        _check_unique_name(out, names, hook.get("name", ""), f"{path}.name")


def check_webhooks_update(out: FieldErrorList, item: Tree, old: Tree) -> None:
    check_metadata_update(out, item["metadata"], old["metadata"], kube=False)
    check_webhooks(out, item)


def _check_unique_name(out: FieldErrorList, names: set[str], name: str, path: str) -> None:
    if name and name in names:
        out.duplicate(path, name)
    names.add(name)


def _check_webhook(out: FieldErrorList, hook: Tree, path: str) -> None:
    _check_name(out, hook.get("name", ""), f"{path}.name")
    for index, rule in enumerate(hook.get("rules") or ()):
        _check_rule(out, rule, f"{path}.rules[{index}]")
    for name, known in _CHOICES.items():
        if hook.get(name) is not None and hook[name] not in known:
            out.unsupported(f"{path}.{name}", hook[name], known)
    effects = hook.get("sideEffects")
    if effects is None:
        out.required(f"{path}.sideEffects", f"must specify one of {', '.join(_SIDE_EFFECTS)}")
    elif effects not in _SIDE_EFFECTS:
        out.unsupported(f"{path}.sideEffects", effects, _SIDE_EFFECTS)
    seconds = hook.get("timeoutSeconds")
    if seconds is not None and not 1 <= seconds <= _MAX_TIMEOUT_S:
        out.invalid(f"{path}.timeoutSeconds", seconds, "the timeout value must be between 1 and 30 seconds")
    for name in ("namespaceSelector", "objectSelector"):
        check_selector(out, hook.get(name), f"{path}.{name}")
    _check_client(out, hook.get("clientConfig") or {}, f"{path}.clientConfig")
    _check_conditions(out, hook.get("matchConditions") or [], f"{path}.matchConditions")


def _check_name(out: FieldErrorList, name: str, path: str) -> None:
    if not name:
        out.required(path)
    elif problems := dns_subdomain(name):
        out.invalid(path, name, ",".join(problems))
    elif name.count(".") < 2:
        out.invalid(path, name, "should be a domain with at least three segments separated by dots")


def _check_reviews(out: FieldErrorList, versions: Sequence[str], path: str) -> None:
    if not versions:
        out.required(path, f"must specify one of {', '.join(_REVIEWS)}")
        return
    for index, version in enumerate(versions):
        if version in versions[:index]:
            out.invalid(f"{path}[{index}]", version, "duplicate version")
        else:
            out.each_invalid(f"{path}[{index}]", version, dns1035_label(version))
    if not set(versions) & set(_REVIEWS):
        out.invalid(path, list(versions), f"must include at least one of {', '.join(_REVIEWS)}")


# Rules.


def _check_rule(out: FieldErrorList, rule: Tree, path: str) -> None:
    operations = rule.get("operations") or []
    _check_wildcard(out, operations, f"{path}.operations", "operations")
    for index, operation in enumerate(operations):
        if operation not in _OPERATIONS:
            out.unsupported(f"{path}.operations[{index}]", operation, _OPERATIONS)
    _check_wildcard(out, rule.get("apiGroups") or [], f"{path}.apiGroups", "API groups")
    versions = rule.get("apiVersions") or []
    _check_wildcard(out, versions, f"{path}.apiVersions", "API versions")
    for index, version in enumerate(versions):
        if not version:
            out.required(f"{path}.apiVersions[{index}]")
    _check_resources(out, rule.get("resources") or [], f"{path}.resources")
    if rule.get("scope") is not None and rule["scope"] not in _SCOPES:
        out.unsupported(f"{path}.scope", rule["scope"], _SCOPES)


def _check_wildcard(out: FieldErrorList, chosen: Sequence[str], path: str, what: str) -> None:
    """The list must not be empty, and a wildcard must be its only entry."""
    if not chosen:
        out.required(path)
    elif len(chosen) > 1 and "*" in chosen:
        out.invalid(path, list(chosen), f"if '*' is present, must not specify other {what}")


def _check_resources(out: FieldErrorList, resources: Sequence[str], path: str) -> None:
    if not resources:
        out.required(path)
    whole, parts, plain = set(), set(), False
    for index, name in enumerate(resources):
        resource, slash, part = name.partition("/")
        if not name:
            out.required(f"{path}[{index}]")
        elif not slash:
            plain = name != "*"
        else:
            if resource in whole:
                out.invalid(f"{path}[{index}]", name, f"if '{resource}/*' is present, must not specify {name}")
            if part in parts:
                out.invalid(f"{path}[{index}]", name, f"if '*/{part}' is present, must not specify {name}")
            whole |= {resource} if part == "*" else set()
            parts |= {part} if resource == "*" else set()
    if len(resources) > 1 and "*/*" in resources:
        out.invalid(path, list(resources), "if '*/*' is present, must not specify other resources")
    if "*" in resources and plain:
        rule = "if '*' is present, must not specify other resources without subresources"
        out.invalid(path, list(resources), rule)


# The webhook's address.


def _check_client(out: FieldErrorList, config: Tree, path: str) -> None:
    url, service = config.get("url"), config.get("service")
    if (url is None) == (service is None):
        out.required(path, "exactly one of url or service is required")
    elif url is not None:
        _check_url(out, url, f"{path}.url")
    else:
        _check_service(out, service or {}, f"{path}.service")


def _check_url(out: FieldErrorList, url: str, path: str) -> None:
    try:
        parts = urlsplit(url)
    except ValueError as fault:
        out.required(path, f"url must be a valid URL: {fault}{_FORM}")
        return
    user, _, host = parts.netloc.rpartition("@")
    if parts.scheme != "https":
        out.invalid(path, parts.scheme, f"'https' is the only allowed URL scheme{_FORM}")
    if not host:
        out.invalid(path, "", f"host must be specified{_FORM}")
    if user:
        out.invalid(path, user, "user information is not permitted in the URL")
    if parts.fragment:
        out.invalid(path, parts.fragment, "fragments are not permitted in the URL")
    if parts.query:
        out.invalid(path, parts.query, "query parameters are not permitted in the URL")


def _check_service(out: FieldErrorList, service: Tree, path: str) -> None:
    # Upstream passes name and namespace in the wrong order, so it reports each of them under the other's name.
    for name, reported in (("namespace", "name"), ("name", "namespace")):
        if not service.get(name):
            out.required(f"{path}.{reported}")
    if problems := port_number(port := service.get("port", 443)):
        out.invalid(f"{path}.port", port, f"port is not valid: {', '.join(problems)}")
    where = service.get("path") or "/"
    if where == "/":
        return
    if where == "//":
        out.invalid(f"{path}.path", where, "segment[0] may not be empty")
        return
    if not where.startswith("/"):
        out.invalid(f"{path}.path", where, "must start with a '/'")
    for index, step in enumerate(where[1:].removesuffix("/").split("/")):
        if not step:
            out.invalid(f"{path}.path", where, f"segment[{index}] may not be empty")
            continue
        for problem in dns_subdomain(step):
            out.invalid(f"{path}.path", where, f"segment[{index}]: {problem}")


def _check_conditions(out: FieldErrorList, conditions: Sequence[Tree], path: str) -> None:
    if len(conditions) > _MAX_MATCH_CONDITIONS:
        out.too_many(path, len(conditions), _MAX_MATCH_CONDITIONS)
    names: set[str] = set()
    for index, condition in enumerate(conditions):
        if not condition.get("expression", "").strip():
            out.required(f"{path}[{index}].expression")
        name = condition.get("name", "")
        if not name:
            out.required(f"{path}[{index}].name")
        out.each_invalid(f"{path}[{index}].name", name, label_key(name) if name else ())
        _check_unique_name(out, names, name, f"{path}[{index}].name")
