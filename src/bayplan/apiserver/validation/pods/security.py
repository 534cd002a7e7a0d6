"""Validation of the security contexts of pods and containers. Called only for pods and containers that have one."""

from __future__ import annotations

import re
from collections.abc import Iterable

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.validation.go_struct_text import struct_text
from bayplan.apiserver.validation.names import dns_subdomain, local_path, user_or_group_id
from bayplan.codec.field_errors import FieldErrorList, format_value

APPARMOR_ANNOTATION_PREFIX = "container.apparmor.security.beta.kubernetes.io/"
_PROFILES = ("Localhost", "RuntimeDefault", "Unconfined")
_SEGMENT = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SYSCTL = rf"({_SEGMENT}[\./])*{_SEGMENT}"
_is_sysctl = re.compile(_SYSCTL).fullmatch
_IPC = ("kernel.shm", "kernel.msg", "fs.mqueue.", "kernel.sem")


def check_container_security(out: FieldErrorList, security: Tree, path: str, *, host_users: bool) -> None:
    for name in ("runAsUser", "runAsGroup"):
        if (number := security.get(name)) is not None:
            out.each_invalid(f"{path}.{name}", number, user_or_group_id(number))
    if (proc := security.get("procMount")) is not None:
        if proc not in ("Default", "Unmasked"):
            out.unsupported(f"{path}.procMount", proc, ("Default", "Unmasked"))
        if host_users and proc == "Unmasked":
            out.invalid(f"{path}.procMount", proc, "`hostUsers` must be false to use `Unmasked`")
    if security.get("allowPrivilegeEscalation") is False and security.get("privileged"):
        rule = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
        out.invalid(path, struct_text("core.SecurityContext", security), rule)
    _check_profiles(out, security, path)


def _check_profiles(out: FieldErrorList, security: Tree, path: str) -> None:
    if (seccomp := security.get("seccompProfile")) is not None:
        _check_seccomp(out, seccomp, f"{path}.seccompProfile")
    if (armor := security.get("appArmorProfile")) is not None:
        _check_app_armor(out, armor, f"{path}.appArmorProfile")
    if name := (security.get("windowsOptions") or {}).get("gmsaCredentialSpecName"):
        out.each_invalid(f"{path}.windowsOptions.gmsaCredentialSpecName", name, dns_subdomain(name))


def _check_seccomp(out: FieldErrorList, profile: Tree, path: str) -> None:
    kind, local = profile.get("type", ""), profile.get("localhostProfile")
    if not kind:
        out.required(f"{path}.type", "type is required when seccompProfile is set")
    elif kind not in _PROFILES:
        out.unsupported(f"{path}.type", kind, _PROFILES)
    if kind == "Localhost":
        if local is None:
            out.required(f"{path}.localhostProfile", "must be set when seccomp type is Localhost")
        else:
            out.each_invalid(f"{path}.localhostProfile", local, local_path(local))
    elif local is not None:
        shown = {"Type": kind, "LocalhostProfile": local}
        out.invalid(f"{path}.localhostProfile", shown, "can only be set when seccomp type is Localhost")


def _check_app_armor(out: FieldErrorList, profile: Tree, path: str) -> None:
    kind, local = profile.get("type", ""), profile.get("localhostProfile")
    if kind == "Localhost":
        if not local:
            out.required(f"{path}.localhostProfile", "must be set when AppArmor type is Localhost")
        elif local.strip() != local:
            out.invalid(f"{path}.localhostProfile", local, "must not be padded with whitespace")
    elif not kind:
        out.required(f"{path}.type", "type is required when appArmorProfile is set")
    elif kind not in _PROFILES:
        out.unsupported(f"{path}.type", kind, _PROFILES)
    elif local is not None:
        out.invalid(f"{path}.localhostProfile", local, "can only be set when AppArmor type is Localhost")


def check_apparmor_annotation(out: FieldErrorList, container: str, profile: str, spec: Tree, path: str) -> None:
    """Check the annotation, the older way to choose a container's AppArmor profile."""
    kinds = ("initContainers", "containers", "ephemeralContainers")
    if not any(each.get("name") == container for kind in kinds for each in spec.get(kind) or ()):
        out.invalid(path, container, "container not found")
    if profile not in ("", "runtime/default", "unconfined") and not profile.startswith("localhost/"):
        out.invalid(path, profile, f"invalid AppArmor profile name: {format_value(profile)}")


def check_pod_security(out: FieldErrorList, security: Tree, spec: Tree, path: str) -> None:
    for name in ("fsGroup", "runAsUser", "runAsGroup"):
        if (number := security.get(name)) is not None:
            out.each_invalid(f"{path}.{name}", number, user_or_group_id(number))
    for index, number in enumerate(security.get("supplementalGroups", ())):
        out.each_invalid(f"{path}.supplementalGroups[{index}]", number, user_or_group_id(number))
    if spec.get("shareProcessNamespace") and spec.get("hostPID"):
        rule = "ShareProcessNamespace and HostPID cannot both be enabled"
        out.invalid(f"{path}.shareProcessNamespace", True, rule)
    if sysctls := security.get("sysctls"):
        _check_sysctls(out, sysctls, spec, f"{path}.sysctls")
    for name, known in (
        ("fsGroupChangePolicy", ("Always", "OnRootMismatch")),
        ("supplementalGroupsPolicy", ("Merge", "Strict")),
    ):
        if (value := security.get(name)) is not None and value not in known:
            out.unsupported(f"{path}.{name}", value, known)
    _check_profiles(out, security, path)
    policy = security.get("seLinuxChangePolicy")
    if policy not in (None, "Recursive"):
        out.unsupported(f"{path}.seLinuxChangePolicy", policy, ("Recursive",))


def _check_sysctls(out: FieldErrorList, sysctls: list[Tree], spec: Tree, path: str) -> None:
    seen: set[str] = set()
    for index, each in enumerate(sysctls):
        name, where = each.get("name", ""), f"{path}[{index}].name"
        if not name:
            out.required(where)
        elif len(name) > 253 or not _is_sysctl(name):
            out.invalid(where, name, f"must have at most 253 characters and match regex ^{_SYSCTL}$")
        elif name in seen:
            out.duplicate(where, name)
        dotted = name.replace("/", ".")
        if spec.get("hostNetwork") and dotted.startswith("net."):
            out.invalid(where, name, "may not be specified when 'hostNetwork' is true")
        elif spec.get("hostIPC") and dotted.startswith(_IPC):
            out.invalid(where, name, "may not be specified when 'hostIPC' is true")
        seen.add(name)


_NOT_ON_WINDOWS_SHARED = ("hostUsers", "hostPID", "hostIPC", "shareProcessNamespace")
_NOT_ON_WINDOWS = (
    *("appArmorProfile", "seLinuxOptions", "seccompProfile", "fsGroup", "fsGroupChangePolicy", "sysctls"),
    *("runAsUser", "runAsGroup", "supplementalGroups", "supplementalGroupsPolicy", "seLinuxChangePolicy"),
)
_NOT_IN_WINDOWS_CONTAINERS = (
    *("appArmorProfile", "seLinuxOptions", "seccompProfile", "capabilities", "readOnlyRootFilesystem", "privileged"),
    *("allowPrivilegeEscalation", "procMount", "runAsUser", "runAsGroup"),
)


def check_os(out: FieldErrorList, spec: Tree, path: str, containers: Iterable[tuple[str, Tree]]) -> None:
    """A pod with `spec.os` may not set fields of the other operating system. `containers`: each with its path."""
    parts: list[tuple[str, Tree, tuple[str, ...]]]
    if (spec.get("os") or {}).get("name") == "linux":
        parts = [(path, spec, ("windowsOptions",)), *((*each, ("windowsOptions",)) for each in containers)]
        rule = "windows options cannot be set for a linux pod"
    else:
        parts = [(path, spec, _NOT_ON_WINDOWS), *((*each, _NOT_IN_WINDOWS_CONTAINERS) for each in containers)]
        rule = "cannot be set for a windows pod"
        for name in _NOT_ON_WINDOWS_SHARED:
            if spec.get(name) is not None and (spec[name] or name in ("hostUsers", "shareProcessNamespace")):
                out.forbidden(f"{path}.{name}", rule)
    for where, fields, names in parts:
        security = fields.get("securityContext") or {}
        for name in names:
            if security.get(name) is not None:
                out.forbidden(f"{where}.securityContext.{name}", rule)
