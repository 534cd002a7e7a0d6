"""Checks of the Pod Security Standards, by level and Kubernetes version.

The table at the end lists every check, with the version of each of its revisions. Texts and their order are those of
kube-apiserver. `pod_security` calls it for pods in namespaces with a level. Cost: some twenty microseconds for a plain
pod there, nothing elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.codec.go_text import quote

BASELINE, RESTRICTED = "baseline", "restricted"


@dataclass(frozen=True, slots=True)
class PolicyViolation:
    """A violation: its short reason, and the parts of the pod that cause it."""

    reason: str
    detail: str

    def __str__(self) -> str:
        return f"{self.reason} ({self.detail})"


CheckFunction = Callable[[Tree, Tree], PolicyViolation | None]
"""Gets the metadata and the spec of a pod."""


@dataclass(frozen=True, slots=True)
class SecurityCheck:
    """One check: its revisions by the minor version that introduced them, oldest first."""

    name: str
    level: str
    revisions: Sequence[tuple[int, CheckFunction]]
    replaces: str = ""
    """The check of the lower level that this one replaces."""

    def function(self, minor: int) -> CheckFunction | None:
        return next((function for since, function in reversed(self.revisions) if since <= minor), None)


def violations(level: str, minor: int, metadata: Tree, spec: Tree) -> list[PolicyViolation]:
    """All violations of a level, as it is defined in version 1.`minor`."""
    found = (function(metadata, spec) for function in _check_functions(level, min(minor, _NEWEST)))
    return [each for each in found if each is not None]


@cache
def _check_functions(level: str, minor: int) -> tuple[CheckFunction, ...]:
    """The checks of a level: baseline first, then by name."""
    rows = [(row, function) for row in _CHECKS if (function := row.function(minor)) is not None]
    if level == BASELINE:
        rows = [(row, function) for row, function in rows if row.level == BASELINE]
    covered = {row.replaces for row, _ in rows}
    rows.sort(key=lambda each: (each[0].level, each[0].name))
    return tuple(function for row, function in rows if row.name not in covered)


# Fields of a pod


def _containers(spec: Tree) -> Iterator[Tree]:
    for part in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(part) or ()


def _context(holder: Tree) -> Tree:
    return holder.get("securityContext") or {}


def _violators(spec: Tree, name: str, is_forbidden: Callable[[Any], bool]) -> tuple[bool, list[str]]:
    """Whether the pod sets a forbidden value of its security context, and the containers that do."""
    value = _context(spec).get(name)
    names = [each["name"] for each in _containers(spec) if _has_forbidden(_context(each).get(name), is_forbidden)]
    return _has_forbidden(value, is_forbidden), names


def _has_forbidden(value: Any, is_forbidden: Callable[[Any], bool]) -> bool:
    return value is not None and is_forbidden(value)


# Texts


def _quote(words: Iterable[str]) -> str:
    return ", ".join(f'"{each}"' for each in words)


def _plural(word: str, many: Sequence[Any] | set[str]) -> str:
    return word if len(many) == 1 else f"{word}s"


def _use(many: Sequence[str]) -> str:
    return "uses" if len(many) == 1 else "use"


def _name_list(names: Sequence[str], word: str = "container") -> str:
    return f"{_plural(word, names)} {_quote(names)}"


def _setters_text(pod: bool, names: Sequence[str]) -> str:
    """`pod and containers "a", "b"`; empty if there are none."""
    return " and ".join(["pod"] * pod + [_name_list(names)] * bool(names))


# Checks


def _privileged(_: Tree, spec: Tree) -> PolicyViolation | None:
    names = [each["name"] for each in _containers(spec) if _context(each).get("privileged")]
    return (
        PolicyViolation("privileged", f"{_name_list(names)} must not set securityContext.privileged=true")
        if names
        else None
    )


def _host_namespaces(_: Tree, spec: Tree) -> PolicyViolation | None:
    found = [f"{name}=true" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    return PolicyViolation("host namespaces", ", ".join(found)) if found else None


def _host_paths(_: Tree, spec: Tree) -> PolicyViolation | None:
    names = [each["name"] for each in spec.get("volumes") or () if each.get("hostPath") is not None]
    return PolicyViolation("hostPath volumes", _name_list(names, "volume")) if names else None


def _host_ports(_: Tree, spec: Tree) -> PolicyViolation | None:
    names, ports = [], set()
    for each in _containers(spec):
        if own := {str(port["hostPort"]) for port in each.get("ports") or () if port.get("hostPort")}:
            names.append(each["name"])
            ports |= own
    if not names:
        return None
    return PolicyViolation(
        "hostPort", f"{_name_list(names)} {_use(names)} {_plural('hostPort', ports)} {', '.join(sorted(ports))}"
    )


def _hosts(container: Tree) -> set[str]:
    """The hosts of the container's probes and hooks, other than the pod itself."""
    lifecycle = container.get("lifecycle") or {}
    handlers = [container.get(name) for name in ("livenessProbe", "readinessProbe", "startupProbe")]
    handlers += [lifecycle.get("postStart"), lifecycle.get("preStop")]
    actions = [(each or {}).get(name) or {} for each in handlers for name in ("httpGet", "tcpSocket")]
    return {action["host"] for action in actions if action.get("host")}


def _probed_hosts(_: Tree, spec: Tree) -> PolicyViolation | None:
    found = {each["name"]: hosts for each in _containers(spec) if (hosts := _hosts(each))}
    if not found:
        return None
    names, hosts = sorted(found), set().union(*found.values())
    word = "probe or lifecycle host"
    return PolicyViolation(word, f"{_name_list(names)} {_use(names)} {_plural(word, hosts)} {_quote(sorted(hosts))}")


_APPARMOR_PREFIX = "container.apparmor.security.beta.kubernetes.io/"


def _apparmor(metadata: Tree, spec: Tree) -> PolicyViolation | None:
    kinds: set[str] = set()

    def is_forbidden(profile: Tree) -> bool:
        if (kind := profile.get("type", "")) not in ("RuntimeDefault", "Localhost"):
            kinds.add(kind)
        return kind in kinds

    setters = _setters_text(*_violators(spec, "appArmorProfile", is_forbidden))
    annotations_found = [
        f"{key}={quote(value)}"
        for key, value in sorted((metadata.get("annotations") or {}).items())
        if key.startswith(_APPARMOR_PREFIX)
        and value not in ("", "runtime/default")
        and not value.startswith("localhost/")
    ]
    values = [*sorted(kinds), *annotations_found]
    if not values:
        return None
    by = " and ".join(filter(None, (setters, _plural("annotation", annotations_found) if annotations_found else "")))
    return PolicyViolation(
        _plural("forbidden AppArmor profile", values), f"{by} must not set AppArmor profile type to {_quote(values)}"
    )


_BASELINE_CAPABILITIES = frozenset(
    {
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"),
        *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    }
)


def _added_capabilities(spec: Tree, allowed: frozenset[str]) -> str:
    """The containers that add forbidden capabilities, and these capabilities; empty if there are none."""
    names, added = [], set()
    for each in _containers(spec):
        if own := set((_context(each).get("capabilities") or {}).get("add") or ()) - allowed:
            names.append(each["name"])
            added |= own
    detail = f"{_name_list(names)} must not include {_quote(sorted(added))} in securityContext.capabilities.add"
    return detail if names else ""


def _baseline_capabilities(_: Tree, spec: Tree) -> PolicyViolation | None:
    detail = _added_capabilities(spec, _BASELINE_CAPABILITIES)
    return PolicyViolation("non-default capabilities", detail) if detail else None


def _restricted_capabilities(_: Tree, spec: Tree) -> PolicyViolation | None:
    not_dropped = [
        each["name"]
        for each in _containers(spec)
        if "ALL" not in ((_context(each).get("capabilities") or {}).get("drop") or ())
    ]
    dropped = f'{_name_list(not_dropped)} must set securityContext.capabilities.drop=["ALL"]' if not_dropped else ""
    detail = "; ".join(filter(None, (dropped, _added_capabilities(spec, frozenset({"NET_BIND_SERVICE"})))))
    return PolicyViolation("unrestricted capabilities", detail) if detail else None


def _proc_mount(_: Tree, spec: Tree) -> PolicyViolation | None:
    proc_mounts = {each["name"]: _context(each).get("procMount") or "Default" for each in _containers(spec)}
    names = [name for name, proc_mount in proc_mounts.items() if proc_mount != "Default"]
    if not names:
        return None
    detail = _quote(sorted({proc_mounts[name] for name in names}))
    return PolicyViolation("procMount", f"{_name_list(names)} must not set securityContext.procMount to {detail}")


def _se_linux(types: frozenset[str], _: Tree, spec: Tree) -> PolicyViolation | None:
    kinds: set[str] = set()
    roles: set[str] = set()

    def is_forbidden(options: Tree) -> bool:
        own = {options.get("type", "")} - types
        set_too = {name for name in ("user", "role") if options.get(name)}
        kinds.update(own)
        roles.update(set_too)
        return bool(own or set_too)

    setters = _setters_text(*_violators(spec, "seLinuxOptions", is_forbidden))
    if not setters:
        return None
    what = [f"{_plural('type', kinds)} {_quote(sorted(kinds))}"] if kinds else []
    what += [f"{name} may not be set" for name in ("user", "role") if name in roles]
    return PolicyViolation(
        "seLinuxOptions", f"{setters} set forbidden securityContext.seLinuxOptions: {'; '.join(what)}"
    )


_SECCOMP_POD = "seccomp.security.alpha.kubernetes.io/pod"
_SECCOMP_CONTAINER = "container.seccomp.security.alpha.kubernetes.io/"


def _seccomp_annotations(metadata: Tree, spec: Tree) -> PolicyViolation | None:
    keys = {_SECCOMP_POD, *(f"{_SECCOMP_CONTAINER}{each['name']}" for each in _containers(spec))}
    annotations = metadata.get("annotations") or {}
    found = sorted(
        f"{key}={quote(annotations[key])}"
        for key in keys & set(annotations)
        if annotations[key] not in ("runtime/default", "docker/default")
        and not annotations[key].startswith("localhost/")
    )
    return (
        PolicyViolation("seccompProfile", f"forbidden {_plural('annotation', found)} {', '.join(found)}")
        if found
        else None
    )


def _seccomp(_: Tree, spec: Tree, *, needed: bool = False) -> PolicyViolation | None:
    kinds: set[str] = set()

    def is_forbidden(profile: Tree) -> bool:
        if (kind := profile.get("type", "")) not in ("RuntimeDefault", "Localhost"):
            kinds.add(kind)
        return kind in kinds

    setters = _setters_text(*_violators(spec, "seccompProfile", is_forbidden))
    if setters:
        detail = f"{setters} must not set securityContext.seccompProfile.type to {_quote(sorted(kinds))}"
        return PolicyViolation("seccompProfile", detail)
    if not needed or _context(spec).get("seccompProfile") is not None:
        return None
    names = [each["name"] for each in _containers(spec) if _context(each).get("seccompProfile") is None]
    detail = (
        f'pod or {_name_list(names)} must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
    )
    return PolicyViolation("seccompProfile", detail) if names else None


_SYSCTLS = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.ping_group_range",
        "net.ipv4.ip_unprivileged_port_start",
    }
)
_SYSCTLS_27 = _SYSCTLS | {"net.ipv4.ip_local_reserved_ports"}
_SYSCTLS_29 = _SYSCTLS_27 | {
    f"net.ipv4.{name}"
    for name in ("tcp_keepalive_time", "tcp_fin_timeout", "tcp_keepalive_intvl", "tcp_keepalive_probes")
}
_SYSCTLS_32 = _SYSCTLS_29 | {"net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"}


def _sysctls(allowed: frozenset[str], _: Tree, spec: Tree) -> PolicyViolation | None:
    found = [each["name"] for each in _context(spec).get("sysctls") or () if each["name"] not in allowed]
    return PolicyViolation("forbidden sysctls", ", ".join(found)) if found else None


def _host_process(_: Tree, spec: Tree) -> PolicyViolation | None:
    setters = _setters_text(*_violators(spec, "windowsOptions", lambda options: bool(options.get("hostProcess"))))
    detail = f"{setters} must not set securityContext.windowsOptions.hostProcess=true"
    return PolicyViolation("hostProcess", detail) if setters else None


def _no_escalation(_: Tree, spec: Tree) -> PolicyViolation | None:
    names = [each["name"] for each in _containers(spec) if _context(each).get("allowPrivilegeEscalation") is not False]
    detail = f"{_name_list(names)} must set securityContext.allowPrivilegeEscalation=false"
    return PolicyViolation("allowPrivilegeEscalation != false", detail) if names else None


_VOLUMES = frozenset(
    {
        *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image"),
        *("persistentVolumeClaim", "projected", "secret"),
    }
)
_OTHER_VOLUMES = (
    *("hostPath", "gcePersistentDisk", "awsElasticBlockStore", "gitRepo", "nfs", "iscsi", "glusterfs", "rbd"),
    *("flexVolume", "cinder", "cephfs", "flocker", "fc", "azureFile", "vsphereVolume", "quobyte", "azureDisk"),
    *("photonPersistentDisk", "portworxVolume", "scaleIO", "storageos"),
)


def _restricted_volumes(_: Tree, spec: Tree) -> PolicyViolation | None:
    restricted = [
        each for each in spec.get("volumes") or () if not any(each.get(kind) is not None for kind in _VOLUMES)
    ]
    if not restricted:
        return None
    names = [each["name"] for each in restricted]
    kinds = {next((kind for kind in _OTHER_VOLUMES if each.get(kind) is not None), "unknown") for each in restricted}
    word = _plural("restricted volume type", kinds)
    detail = f"{_name_list(names, 'volume')} {_use(names)} {word} {_quote(sorted(kinds))}"
    return PolicyViolation("restricted volume types", detail)


def _not_root(_: Tree, spec: Tree) -> PolicyViolation | None:
    setters = _setters_text(*_violators(spec, "runAsNonRoot", lambda value: value is False))
    if setters:
        return PolicyViolation("runAsNonRoot != true", f"{setters} must not set securityContext.runAsNonRoot=false")
    if _context(spec).get("runAsNonRoot"):
        return None
    names = [each["name"] for each in _containers(spec) if _context(each).get("runAsNonRoot") is None]
    detail = f"pod or {_name_list(names)} must set securityContext.runAsNonRoot=true"
    return PolicyViolation("runAsNonRoot != true", detail) if names else None


def _not_user_zero(_: Tree, spec: Tree) -> PolicyViolation | None:
    setters = _setters_text(*_violators(spec, "runAsUser", lambda user: user == 0))
    return PolicyViolation("runAsUser=0", f"{setters} must not set runAsUser=0") if setters else None


def _skip_windows(function: CheckFunction) -> CheckFunction:
    """Since 1.25 checks of Linux fields skip pods with `os.name: windows`."""
    return lambda metadata, spec: None if (spec.get("os") or {}).get("name") == "windows" else function(metadata, spec)


def _skip_user_namespaces(function: CheckFunction) -> CheckFunction:
    """Since 1.35 checks of the user skip pods with `hostUsers: false`."""
    return lambda metadata, spec: None if spec.get("hostUsers") is False else function(metadata, spec)


_needs_seccomp: CheckFunction = partial(_seccomp, needed=True)
_SE_LINUX = frozenset({"", "container_t", "container_init_t", "container_kvm_t"})
_CHECKS = (
    SecurityCheck("allowPrivilegeEscalation", RESTRICTED, [(8, _no_escalation), (25, _skip_windows(_no_escalation))]),
    SecurityCheck("appArmorProfile", BASELINE, [(0, _apparmor)]),
    SecurityCheck("capabilities_baseline", BASELINE, [(0, _baseline_capabilities)]),
    SecurityCheck(
        "capabilities_restricted",
        RESTRICTED,
        [(22, _restricted_capabilities), (25, _skip_windows(_restricted_capabilities))],
        replaces="capabilities_baseline",
    ),
    SecurityCheck("hostNamespaces", BASELINE, [(0, _host_namespaces)]),
    SecurityCheck("hostPathVolumes", BASELINE, [(0, _host_paths)]),
    SecurityCheck("hostPorts", BASELINE, [(0, _host_ports)]),
    SecurityCheck("hostProbesAndHostLifecycle", BASELINE, [(34, _probed_hosts)]),
    SecurityCheck("privileged", BASELINE, [(0, _privileged)]),
    SecurityCheck("procMount", BASELINE, [(0, _proc_mount), (35, _skip_user_namespaces(_proc_mount))]),
    SecurityCheck("procMount_restricted", RESTRICTED, [(35, _proc_mount)], replaces="procMount"),
    SecurityCheck("restrictedVolumes", RESTRICTED, [(0, _restricted_volumes)], replaces="hostPathVolumes"),
    SecurityCheck("runAsNonRoot", RESTRICTED, [(0, _not_root), (35, _skip_user_namespaces(_not_root))]),
    SecurityCheck("runAsUser", RESTRICTED, [(23, _not_user_zero), (35, _skip_user_namespaces(_not_user_zero))]),
    SecurityCheck(
        "seLinuxOptions",
        BASELINE,
        [(0, partial(_se_linux, _SE_LINUX)), (31, partial(_se_linux, _SE_LINUX | {"container_engine_t"}))],
    ),
    SecurityCheck("seccompProfile_baseline", BASELINE, [(0, _seccomp_annotations), (19, _seccomp)]),
    SecurityCheck(
        "seccompProfile_restricted",
        RESTRICTED,
        [(19, _needs_seccomp), (25, _skip_windows(_needs_seccomp))],
        replaces="seccompProfile_baseline",
    ),
    SecurityCheck(
        "sysctls",
        BASELINE,
        [
            (0, partial(_sysctls, _SYSCTLS)),
            (27, partial(_sysctls, _SYSCTLS_27)),
            (29, partial(_sysctls, _SYSCTLS_29)),
            (32, partial(_sysctls, _SYSCTLS_32)),
        ],
    ),
    SecurityCheck("windowsHostProcess", BASELINE, [(0, _host_process)]),
)
_NEWEST = max(row.revisions[-1][0] for row in _CHECKS)
