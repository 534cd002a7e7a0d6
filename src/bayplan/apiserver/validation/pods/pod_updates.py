"""Validation of pod updates, resizes, new ephemeral containers and status updates."""

from __future__ import annotations

from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.resources.qos import qos_class
from bayplan.apiserver.validation.go_struct_text import struct_diff
from bayplan.apiserver.validation.metadata import check_immutable, check_metadata_update
from bayplan.apiserver.validation.names import INT32_MAX, dns_subdomain, in_range, ip, label_key
from bayplan.apiserver.validation.pods.pod_spec import check_pod
from bayplan.apiserver.validation.pods.scheduling import REQUIRED_TERMS, check_tolerations
from bayplan.codec.field_errors import FieldErrorList

_MUTABLE_FIELDS = (
    "`spec.containers[*].image`",
    "`spec.initContainers[*].image`",
    "`spec.activeDeadlineSeconds`",
    "`spec.tolerations` (only additions to existing tolerations)",
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
)
_RESIZABLE = ("cpu", "memory")


def check_pod_update(out: FieldErrorList, pod: Tree, old: Tree) -> None:
    check_metadata_update(out, pod["metadata"], old["metadata"])
    check_pod(out, pod)
    new, before = pod["spec"], old["spec"]
    for name in ("containers", "initContainers"):
        if not _check_images(out, new.get(name) or (), before.get(name) or (), f"spec.{name}"):
            return
    if not _check_deadline(out, new.get("activeDeadlineSeconds"), before.get("activeDeadlineSeconds")):
        return
    _check_added_tolerations(out, new.get("tolerations") or [], before.get("tolerations") or [])
    _check_removed_gates(out, new.get("schedulingGates") or [], before.get("schedulingGates") or [])
    if new == before:
        return
    restored = _undo_allowed_changes(out, new, before)
    if restored != before:
        detail = f"pod updates may not change fields other than {','.join(_MUTABLE_FIELDS)}"
        out.forbidden("spec", f"{detail}\n{struct_diff('core.PodSpec', before, restored)}")


def _check_images(out: FieldErrorList, new: Any, old: Any, path: str) -> bool:
    if len(new) != len(old):
        out.forbidden(path, "pod updates may not add or remove containers")
        return False
    for index, container in enumerate(new):
        image = container.get("image", "")
        if not image:
            out.required(f"{path}[{index}].image")
        if image.strip() != image:
            out.invalid(f"{path}[{index}].image", image, "must not have leading or trailing whitespace")
    return True


def _check_deadline(out: FieldErrorList, new: int | None, old: int | None) -> bool:
    path = "spec.activeDeadlineSeconds"
    if new is None:
        if old is not None:
            out.invalid(path, None, "must not update from a positive integer to nil value")
        return True
    if problems := in_range(new, 0, INT32_MAX):
        out.each_invalid(path, new, problems)
        return False
    if old is not None and old < new:
        out.invalid(path, new, "must be less than or equal to previous value")
        return False
    return True


def _check_added_tolerations(out: FieldErrorList, new: list[Tree], old: list[Tree]) -> None:
    known = [_without_seconds(each) for each in new]
    if any(_without_seconds(each) not in known for each in old):
        rule = "existing toleration can not be modified except its tolerationSeconds"
        out.forbidden("spec.tolerations", rule)
        return
    check_tolerations(out, new, "spec.tolerations")


def _without_seconds(toleration: Tree) -> Tree:
    return {name: value for name, value in toleration.items() if name != "tolerationSeconds"}


def _check_removed_gates(out: FieldErrorList, new: list[Tree], old: list[Tree]) -> None:
    known = {gate.get("name") for gate in old}
    for index, gate in enumerate(new):
        if gate.get("name") not in known:
            rule = f"only deletion is allowed, but found new scheduling gate '{gate.get('name', '')}'"
            out.forbidden(f"spec.schedulingGates[{index}].name", rule)


def _undo_allowed_changes(out: FieldErrorList, new: Tree, old: Tree) -> Tree:
    restored = dict(new)
    for name in ("containers", "initContainers"):
        if name in restored:
            pairs = zip(restored[name], old[name], strict=True)
            restored[name] = [{**new_value, "image": old_value.get("image")} for new_value, old_value in pairs]
    for name in ("activeDeadlineSeconds", "schedulingGates", "tolerations"):
        _copy_field(restored, old, name)
    if old.get("terminationGracePeriodSeconds", 0) < 0 and restored.get("terminationGracePeriodSeconds") == 1:
        _copy_field(restored, old, "terminationGracePeriodSeconds")
    if old.get("schedulingGates"):
        _undo_placement(out, restored, old)
    return restored


def _copy_field(tree: Tree, old: Tree, name: str) -> None:
    if name in old:
        tree[name] = old[name]
    else:
        tree.pop(name, None)


def _undo_placement(out: FieldErrorList, restored: Tree, old: Tree) -> None:
    """Restore the old placement. A pod with a scheduling gate may still narrow its node selector and node affinity."""
    selector, before = restored.get("nodeSelector") or {}, old.get("nodeSelector") or {}
    if any(selector.get(key) != value for key, value in before.items()):
        rule = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        out.invalid("spec.nodeSelector", selector or None, rule)
    _copy_field(restored, old, "nodeSelector")
    new_value, old_value = restored.get("affinity"), old.get("affinity")
    node, node_before = (new_value or {}).get("nodeAffinity"), (old_value or {}).get("nodeAffinity")
    if node == node_before:
        return
    _check_node_affinity(out, node or {}, node_before or {})
    affinity = {name: value for name, value in (new_value or {}).items() if name != "nodeAffinity"}
    if node_before is not None:
        affinity["nodeAffinity"] = node_before
    if affinity or old_value is not None:
        restored["affinity"] = affinity
    else:
        restored.pop("affinity", None)


def _check_node_affinity(out: FieldErrorList, new: Tree, old: Tree) -> None:
    if old.get(REQUIRED_TERMS) is None:
        return
    before = old[REQUIRED_TERMS].get("nodeSelectorTerms") or []
    after = (new.get(REQUIRED_TERMS) or {}).get("nodeSelectorTerms") or []
    path = f"spec.affinity.nodeAffinity.{REQUIRED_TERMS}.nodeSelectorTerms"
    if before and len(before) != len(after):
        shown = [_normalize_term(each) for each in after] or None
        out.invalid(path, shown, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")
        return
    for index, (first, second) in enumerate(zip(before, after, strict=False)):
        if not _only_adds(second, first):
            rule = "only additions are allowed (no mutations or deletions)"
            out.invalid(f"{path}[{index}]", _normalize_term(second), rule)


def _normalize_term(term: Tree) -> Tree:
    def each(requirements: Any) -> Any:
        forms = [
            {"Key": one.get("key", ""), "Operator": one.get("operator", ""), "Values": one.get("values")}
            for one in requirements or ()
        ]
        return forms or None

    return {"MatchExpressions": each(term.get("matchExpressions")), "MatchFields": each(term.get("matchFields"))}


def _only_adds(new: Tree, old: Tree) -> bool:
    names = ("matchExpressions", "matchFields")
    if not any(old.get(name) for name in names):
        return not any(new.get(name) for name in names)
    return all((new.get(name) or [])[: len(old.get(name) or [])] == (old.get(name) or []) for name in names)


# Subresources.


def check_pod_status(out: FieldErrorList, pod: Tree, old: Tree) -> None:
    check_metadata_update(out, pod["metadata"], old["metadata"])
    status, before = pod.get("status") or {}, old.get("status") or {}
    for index, condition in enumerate(status.get("conditions", ())):
        kind = condition.get("type", "")
        out.each_invalid(f"status.conditions[{index}].Type", kind, label_key(kind))
    nominated = status.get("nominatedNodeName", "")
    if nominated and nominated != before.get("nominatedNodeName"):
        out.each_invalid("status.nominatedNodeName", nominated, dns_subdomain(nominated))
        if old["spec"].get("nodeName"):
            rule = "may not be set on pods that are already bound to a node"
            out.forbidden("status.nominatedNodeName", rule)
    check_immutable(out, status.get("qosClass", ""), before.get("qosClass", ""), "status.qosClass")
    for index, each in enumerate(status.get("podIPs", ())):
        out.each_invalid(f"status.podIPs[{index}]", each.get("ip", ""), ip(each.get("ip", "")))


def check_ephemeral_containers(out: FieldErrorList, pod: Tree, old: Tree) -> None:
    check_metadata_update(out, pod["metadata"], old["metadata"])
    check_pod(out, pod)
    known = {each.get("name"): each for each in pod["spec"].get("ephemeralContainers", ())}
    path = "spec.ephemeralContainers"
    for each in old["spec"].get("ephemeralContainers", ()):
        name = each.get("name", "")
        if name not in known:
            out.forbidden(path, f'existing ephemeral containers "{name}" may not be removed\n')
        elif known[name] != each:
            detail = struct_diff("core.EphemeralContainer", each, known[name])
            out.forbidden(path, f'existing ephemeral containers "{name}" may not be changed\n{detail}')


def check_resize(out: FieldErrorList, pod: Tree, old: Tree) -> None:
    check_metadata_update(out, pod["metadata"], old["metadata"])
    check_pod(out, pod)
    new, before = pod["spec"], old["spec"]
    quality = (old.get("status") or {}).get("qosClass") or qos_class(before)
    if quality != qos_class(new):
        out.invalid("spec", quality, "Pod QOS Class may not change as a result of resizing")
    if not _node_resizes(old):
        out.forbidden("spec", "Pod running on node without support for resize")
    for name in ("containers", "initContainers"):
        if not _check_same_order(out, new.get(name) or (), before.get(name) or (), f"spec.{name}"):
            return
    for name in ("initContainers", "containers"):
        pairs = zip(new.get(name) or (), before.get(name) or (), strict=True)
        for index, (new_value, old_value) in enumerate(pairs):
            _check_container_resize(out, new_value, old_value, name, index)


def _node_resizes(pod: Tree) -> bool:
    for status in (pod.get("status") or {}).get("containerStatuses", ()):
        if (status.get("state") or {}).get("running") is not None:
            return status.get("resources") is not None
    return True


def _check_same_order(out: FieldErrorList, new: Any, old: Any, path: str) -> bool:
    if len(new) != len(old):
        out.forbidden(path, "containers may not be added or removed on resize")
        return False
    for index, (new_value, old_value) in enumerate(zip(new, old, strict=True)):
        if new_value.get("name") != old_value.get("name"):
            out.forbidden(f"{path}[{index}].name", "containers may not be renamed or reordered on resize")
            return False
    return True


def _check_container_resize(out: FieldErrorList, new: Tree, old: Tree, name: str, index: int) -> None:
    sidecar = name == "containers" or new.get("restartPolicy") == "Always"
    if not sidecar:
        if new != old:
            out.forbidden("spec", "resources for non-sidecar init containers are immutable")
        return
    after, before = new.get("resources") or {}, old.get("resources") or {}
    for field in ("requests", "limits"):
        if set(before.get(field) or ()) - set(after.get(field) or ()):
            where = f"spec.{name}[{index}].resources.{field}"
            out.forbidden(where, f"resource {field} cannot be removed")
    if _without_resources(new) != _without_resources(old):
        if name == "containers":
            out.forbidden("spec", "only cpu and memory resources are mutable")
        else:
            detail = "only cpu and memory resources for sidecar containers are mutable"
            out.forbidden(f"spec.initContainers[{index}]", detail)


def _without_resources(container: Tree) -> Tree:
    """A container without the fields that a resize may change."""
    resources = container.get("resources") or {}
    restored = {
        field: {name: value for name, value in (resources.get(field) or {}).items() if name not in _RESIZABLE}
        for field in ("requests", "limits")
    }
    return {**container, "resources": {"claims": resources.get("claims"), **restored}}
