"""Validation of a pod's scheduling fields: selectors, affinity, tolerations, topology spread and scheduling gates.

Called by the validation of pods and templates; the validation of volumes uses the node affinity checks. Fields that are
not set cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.validation.metadata import check_selector
from bayplan.apiserver.validation.names import dns_label, dns_subdomain, label_key, label_value
from bayplan.apiserver.validation.resource_quantities import NOT_POSITIVE
from bayplan.codec.field_errors import FieldErrorList

REQUIRED_TERMS = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED_TERMS = "preferredDuringSchedulingIgnoredDuringExecution"
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def check_affinity(out: FieldErrorList, affinity: Tree, path: str) -> None:
    if (node := affinity.get("nodeAffinity")) is not None:
        if (required := node.get(REQUIRED_TERMS)) is not None:
            check_node_selector(out, required, f"{path}.nodeAffinity.{REQUIRED_TERMS}")
        for index, term in enumerate(node.get(PREFERRED_TERMS, ())):
            where = f"{path}.nodeAffinity.{PREFERRED_TERMS}[{index}]"
            _check_weight(out, term, where)
            _check_node_term(out, term.get("preference") or {}, f"{where}.preference", values=False)
    for name in ("podAffinity", "podAntiAffinity"):
        pods = affinity.get(name) or {}
        for index, term in enumerate(pods.get(REQUIRED_TERMS, ())):
            _check_pod_term(out, term, f"{path}.{name}.{REQUIRED_TERMS}[{index}]")
        for index, term in enumerate(pods.get(PREFERRED_TERMS, ())):
            where = f"{path}.{name}.{PREFERRED_TERMS}[{index}]"
            _check_weight(out, term, where)
            _check_pod_term(out, term.get("podAffinityTerm") or {}, f"{where}.podAffinityTerm")


def _check_weight(out: FieldErrorList, term: Tree, path: str) -> None:
    weight = term.get("weight", 0)
    if not 1 <= weight <= 100:
        out.invalid(f"{path}.weight", weight, "must be in the range 1-100")


def check_node_selector(out: FieldErrorList, selector: Tree, path: str) -> None:
    terms = selector.get("nodeSelectorTerms")
    if not terms:
        out.required(f"{path}.nodeSelectorTerms", "must have at least one node selector term")
    for index, term in enumerate(terms or ()):
        _check_node_term(out, term, f"{path}.nodeSelectorTerms[{index}]", values=True)


def _check_node_term(out: FieldErrorList, term: Tree, path: str, *, values: bool) -> None:
    for index, requirement in enumerate(term.get("matchExpressions", ())):
        _check_node_requirement(out, requirement, f"{path}.matchExpressions[{index}]", check_values=values)
    for index, requirement in enumerate(term.get("matchFields", ())):
        _check_field_requirement(out, requirement, f"{path}.matchFields[{index}]")


def _check_node_requirement(out: FieldErrorList, requirement: Tree, path: str, *, check_values: bool) -> None:
    operator, values = requirement.get("operator", ""), requirement.get("values", ())
    if operator in ("In", "NotIn"):
        if not values:
            out.required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            out.forbidden(f"{path}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
    elif operator in ("Gt", "Lt"):
        if len(values) != 1:
            out.required(f"{path}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
    else:
        out.invalid(f"{path}.operator", operator, "not a valid selector operator")
    key = requirement.get("key", "")
    out.each_invalid(f"{path}.key", key, label_key(key))
    if check_values:
        for index, value in enumerate(values):
            out.each_invalid(f"{path}.values[{index}]", value, label_value(value))


def _check_field_requirement(out: FieldErrorList, requirement: Tree, path: str) -> None:
    operator, values, key = (requirement.get(name) for name in ("operator", "values", "key"))
    if operator not in ("In", "NotIn"):
        out.invalid(f"{path}.operator", operator or "", "not a valid selector operator")
    elif len(values or ()) != 1:
        rule = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        out.required(f"{path}.values", rule)
    if key != "metadata.name":
        out.invalid(f"{path}.key", key or "", "not a valid field selector key")
        return
    for index, value in enumerate(values or ()):
        out.each_invalid(f"{path}.values[{index}]", value, dns_subdomain(value))


def _check_pod_term(out: FieldErrorList, term: Tree, path: str) -> None:
    selector = term.get("labelSelector")
    check_selector(out, selector, f"{path}.labelSelector")
    check_selector(out, term.get("namespaceSelector"), f"{path}.namespaceSelector")
    for name in term.get("namespaces", ()):
        out.each_invalid(f"{path}.namespace", name, dns_label(name))
    _check_label_keys(out, term, selector, path)
    key = term.get("topologyKey", "")
    if not key:
        out.required(f"{path}.topologyKey", "can not be empty")
    out.each_invalid(f"{path}.topologyKey", key, label_key(key))


def _check_label_keys(out: FieldErrorList, term: Tree, selector: Tree | None, path: str) -> None:
    for name in ("matchLabelKeys", "mismatchLabelKeys"):
        keys = term.get(name)
        if keys and selector is None:
            out.forbidden(f"{path}.{name}", "must not be specified when labelSelector is not set")
        elif keys:
            for index, key in enumerate(keys):
                out.each_invalid(f"{path}.{name}[{index}]", key, label_key(key))
    matched = term.get("matchLabelKeys") or ()
    selected = set((selector or {}).get("matchLabels") or ())
    for expression in (selector or {}).get("matchExpressions", ()):
        key = expression.get("key", "")
        if key in matched and key in selected:
            rule = "exists in both matchLabelKeys and labelSelector"
            out.invalid(f"{path}[{list(matched).index(key)}]", key, rule)
        selected.add(key)
    for index, key in enumerate(matched):
        if key in (term.get("mismatchLabelKeys") or ()):
            rule = "exists in both matchLabelKeys and mismatchLabelKeys"
            out.invalid(f"{path}.matchLabelKeys[{index}]", key, rule)


def check_effect(out: FieldErrorList, effect: str, path: str) -> None:
    if not effect:
        out.required(path)
    elif effect not in EFFECTS:
        out.unsupported(path, effect, EFFECTS)


def check_tolerations(out: FieldErrorList, tolerations: Iterable[Tree], path: str) -> None:
    for index, each in enumerate(tolerations):
        where = f"{path}[{index}]"
        key, operator, value = each.get("key", ""), each.get("operator", ""), each.get("value", "")
        effect = each.get("effect", "")
        if key:
            out.each_invalid(f"{where}.key", key, label_key(key))
        elif operator != "Exists":
            rule = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            out.invalid(f"{where}.operator", operator, rule)
        if each.get("tolerationSeconds") is not None and effect != "NoExecute":
            out.invalid(f"{where}.effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
        _check_toleration_value(out, operator, value, where)
        if effect:
            check_effect(out, effect, f"{where}.effect")


def _check_toleration_value(out: FieldErrorList, operator: str, value: str, path: str) -> None:
    if operator in ("Equal", ""):
        if problems := label_value(value):
            out.invalid(f"{path}.operator", value, ";".join(problems))
    elif operator == "Exists":
        if value:
            out.invalid(f"{path}.operator", value, "value must be empty when `operator` is 'Exists'")
    elif operator in ("Lt", "Gt"):
        out.unsupported(f"{path}.operator", operator, ("Equal", "Exists", "Lt", "Gt"))
    else:
        out.unsupported(f"{path}.operator", operator, ("Equal", "Exists"))


def check_topology_spread(out: FieldErrorList, constraints: list[Tree], path: str) -> None:
    for index, each in enumerate(constraints):
        where, action, key = f"{path}[{index}]", each.get("whenUnsatisfiable", ""), each.get("topologyKey", "")
        if each.get("maxSkew", 0) <= 0:
            out.invalid(f"{where}.maxSkew", each.get("maxSkew", 0), NOT_POSITIVE)
        if not key:
            out.required(f"{where}.topologyKey", "can not be empty")
        if action not in ("DoNotSchedule", "ScheduleAnyway"):
            out.unsupported(f"{where}.whenUnsatisfiable", action, ("DoNotSchedule", "ScheduleAnyway"))
        if any((key, action) == _constraint_key(other) for other in constraints[index + 1 :]):
            out.duplicate(f"{where}.{{topologyKey, whenUnsatisfiable}}", f"{{{key}, {action}}}")
        _check_spread_details(out, each, action, where)


def _constraint_key(constraint: Tree) -> tuple[str, str]:
    return constraint.get("topologyKey", ""), constraint.get("whenUnsatisfiable", "")


def _check_spread_details(out: FieldErrorList, constraint: Tree, action: str, path: str) -> None:
    if (domains := constraint.get("minDomains")) is not None:
        if domains <= 0:
            out.invalid(f"{path}.minDomains", domains, NOT_POSITIVE)
        if action != "DoNotSchedule":
            rule = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
            out.invalid(f"{path}.minDomains", domains, rule)
    for name in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        if (policy := constraint.get(name)) is not None and policy not in ("Honor", "Ignore"):
            out.unsupported(f"{path}.{name}", policy, ("Honor", "Ignore"))
    _check_label_keys(out, constraint, constraint.get("labelSelector"), path)
    check_selector(out, constraint.get("labelSelector"), f"{path}.labelSelector")


def check_scheduling_gates(out: FieldErrorList, gates: Iterable[Tree], path: str) -> None:
    seen: set[str] = set()
    for index, gate in enumerate(gates):
        name = gate.get("name", "")
        out.each_invalid(f"{path}[{index}]", name, label_key(name))
        if name in seen:
            out.duplicate(f"{path}[{index}]", name)
        seen.add(name)


def check_taints(out: FieldErrorList, taints: Iterable[Tree], path: str) -> None:
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(taints):
        where, key, effect = f"{path}[{index}]", taint.get("key", ""), taint.get("effect", "")
        out.each_invalid(f"{where}.key", key, label_key(key))
        if problems := label_value(taint.get("value", "")):
            out.invalid(f"{where}.value", taint["value"], ";".join(problems))
        check_effect(out, effect, f"{where}.effect")
        if (key, effect) in seen:
            shown = {"Key": key, "Value": taint.get("value", ""), "Effect": effect, "TimeAdded": taint.get("timeAdded")}
            out.duplicate(where, shown, "taints must be unique by key and effect pair")
        seen.add((key, effect))
