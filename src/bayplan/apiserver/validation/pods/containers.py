"""Validation of a pod's containers: image, ports, environment, mounts, probes and security context.

Called by the validation of pods and pod templates for every container. A field that is not set costs one lookup; a
plain container takes about five microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bayplan.apiserver.resources.kinds import Tree
from bayplan.apiserver.validation.names import (
    config_key,
    dns_label,
    dns_subdomain,
    environment_name,
    header_name,
    label_key,
    local_path,
    no_backsteps,
    port_name,
    port_number,
)
from bayplan.apiserver.validation.pods.security import check_container_security
from bayplan.apiserver.validation.resource_quantities import NEGATIVE, check_requirements
from bayplan.codec.field_errors import FieldErrorList

PROTOCOLS = ("SCTP", "TCP", "UDP")
_PULL = ("Always", "IfNotPresent", "Never")
_ENV_FIELDS = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
_POD_FIELDS = (
    *_ENV_FIELDS,
    "metadata.labels",
    "metadata.annotations",
    "spec.restartPolicy",
    "spec.schedulerName",
    "status.phase",
)
_RESOURCE_FIELDS = tuple(
    f"{kind}.{name}" for kind in ("limits", "requests") for name in ("cpu", "ephemeral-storage", "memory")
)
_SIZES = ("1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei")
_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")


@dataclass(frozen=True, slots=True)
class PodContext:
    """The facts of the pod that the validation of its containers needs."""

    volumes: Mapping[str, Tree]
    claims: frozenset[str]
    restart_policy: str
    grace_s: int | None
    os: str | None
    host_users: bool


def check_container(out: FieldErrorList, container: Tree, pod: PodContext, path: str) -> None:
    """Check what containers, init containers and ephemeral containers have in common."""
    name = container.get("name", "")
    if not name:
        out.required(f"{path}.name")
    elif problems := dns_label(name):
        out.each_invalid(f"{path}.name", name, problems)
    if not container.get("image"):
        out.required(f"{path}.image")
    policy = container.get("terminationMessagePolicy", "File")
    if policy not in ("File", "FallbackToLogsOnError"):
        out.unsupported(f"{path}.terminationMessagePolicy", policy, ("File", "FallbackToLogsOnError"))
    if container.get("imagePullPolicy", "Always") not in _PULL:
        out.unsupported(f"{path}.imagePullPolicy", container["imagePullPolicy"], _PULL)
    if ports := container.get("ports"):
        _check_ports(out, ports, f"{path}.ports")
    if variables := container.get("env"):
        _check_env(out, variables, f"{path}.env")
    if sources := container.get("envFrom"):
        _check_env_from(out, sources, f"{path}.envFrom")
    if container.get("volumeMounts"):
        _check_mounts(out, container, pod.volumes, f"{path}.volumeMounts")
    if container.get("volumeDevices"):
        _check_devices(out, container, pod.volumes, f"{path}.volumeDevices")
    if resources := container.get("resources"):
        check_requirements(out, resources, pod.claims, f"{path}.resources")
    if policies := container.get("resizePolicy"):
        _check_resize(out, policies, pod.restart_policy, f"{path}.resizePolicy")
    if security := container.get("securityContext"):
        check_container_security(out, security, f"{path}.securityContext", host_users=pod.host_users)


def _check_ports(out: FieldErrorList, ports: Iterable[Tree], path: str) -> None:
    names: set[str] = set()
    for index, port in enumerate(ports):
        where = f"{path}[{index}]"
        if name := port.get("name"):
            if problems := port_name(name):
                out.each_invalid(f"{where}.name", name, problems)
            elif name in names:
                out.duplicate(f"{where}.name", name)
            names.add(name)
        number = port.get("containerPort", 0)
        if not number:
            out.required(f"{where}.containerPort")
        elif problems := port_number(number):
            out.each_invalid(f"{where}.containerPort", number, problems)
        if outside := port.get("hostPort"):
            out.each_invalid(f"{where}.hostPort", outside, port_number(outside))
        check_protocol(out, port, where)


def check_protocol(out: FieldErrorList, port: Tree, path: str) -> None:
    protocol = port.get("protocol")
    if not protocol:
        out.required(f"{path}.protocol")
    elif protocol not in PROTOCOLS:
        out.unsupported(f"{path}.protocol", protocol, PROTOCOLS)


def check_port_or_name(out: FieldErrorList, port: Any, path: str) -> None:
    if isinstance(port, str):
        out.each_invalid(path, port, port_name(port))
    else:
        out.each_invalid(path, port or 0, port_number(port or 0))


def check_host_ports(out: FieldErrorList, containers: Iterable[tuple[int, Tree]], path: str) -> None:
    seen: set[str] = set()
    for index, container in containers:
        for at, port in enumerate(container.get("ports", ())):
            number = port.get("hostPort")
            if number:
                key = f"{port.get('protocol', '')}/{port.get('hostIP', '')}/{number}"
                if key in seen:
                    out.duplicate(f"{path}[{index}].ports[{at}].hostPort", key)
                seen.add(key)


# Environment.


def _check_env(out: FieldErrorList, variables: Iterable[Tree], path: str) -> None:
    for index, variable in enumerate(variables):
        name = variable.get("name", "")
        if not name:
            out.required(f"{path}[{index}].name")
        elif problems := environment_name(name):
            out.each_invalid(f"{path}[{index}].name", name, problems)
        source = variable.get("valueFrom")
        if source is not None:
            _check_env_source(out, source, variable.get("value"), f"{path}[{index}].valueFrom")


def _check_env_source(out: FieldErrorList, source: Tree, value: str | None, path: str) -> None:
    if (field := source.get("fieldRef")) is not None:
        check_field_reference(out, field, _ENV_FIELDS, f"{path}.fieldRef")
    if (resource := source.get("resourceFieldRef")) is not None:
        check_resource_reference(out, resource, f"{path}.resourceFieldRef", in_volume=False)
    for name in ("configMapKeyRef", "secretKeyRef"):
        if (key := source.get(name)) is not None:
            _check_key_reference(out, key, f"{path}.{name}")
    if (file := source.get("fileKeyRef")) is not None:
        _check_file_reference(out, file, f"{path}.fileKeyRef")
    if not source:
        known = "`fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        out.invalid(path, "", f"must specify one of: {known}")
    elif value:
        out.invalid(path, "", "may not be specified when `value` is not empty")
    elif len(source) > 1:
        out.invalid(path, "", "may not have more than one field specified at a time")


def check_field_reference(out: FieldErrorList, reference: Tree, known: Iterable[str], path: str) -> None:
    field = reference.get("fieldPath", "")
    if not field:
        out.required(f"{path}.fieldPath")
        return
    base, bracket, rest = field.partition("['")
    version = reference.get("apiVersion", "v1")
    if version != "v1":
        detail = f"error converting fieldPath: unsupported pod version: {version}"
        out.invalid(f"{path}.fieldPath", field, detail)
    elif bracket and rest.endswith("']"):
        _check_subscript(out, base, rest[:-2], path)
    elif field not in _POD_FIELDS:
        out.invalid(f"{path}.fieldPath", field, f"error converting fieldPath: field label not supported: {field}")
    elif field not in known:
        out.unsupported(f"{path}.fieldPath", field, sorted(known))


def _check_subscript(out: FieldErrorList, base: str, key: str, path: str) -> None:
    if base == "metadata.annotations":
        out.each_invalid(path, key.lower(), label_key(key.lower()))
    elif base == "metadata.labels":
        out.each_invalid(path, key, label_key(key))
    else:
        detail = f"error converting fieldPath: field label does not support subscript: {base}['{key}']"
        out.invalid(f"{path}.fieldPath", f"{base}['{key}']", detail)


def check_resource_reference(out: FieldErrorList, reference: Tree, path: str, *, in_volume: bool) -> None:
    resource = reference.get("resource", "")
    huge = resource.startswith(("requests.hugepages-", "limits.hugepages-"))
    if in_volume and not reference.get("containerName"):
        out.required(f"{path}.containerName")
    elif not resource:
        out.required(f"{path}.resource")
    elif resource not in _RESOURCE_FIELDS and not huge:
        out.unsupported(f"{path}.resource", resource, _RESOURCE_FIELDS)
    _check_divisor(out, resource, str(reference.get("divisor", "0")), path, huge=huge)


def _check_divisor(out: FieldErrorList, resource: str, divisor: str, path: str, *, huge: bool) -> None:
    if divisor == "0":
        return
    if resource in ("limits.cpu", "requests.cpu"):
        if divisor not in ("1m", "1"):
            detail = "only divisor's values 1m and 1 are supported with the cpu resource"
            out.invalid(f"{path}.divisor", resource, detail)
        return
    display_name = resource.partition(".")[2].replace("ephemeral-storage", "local ephemeral storage")
    display_name = "hugepages" if huge else display_name
    if divisor not in _SIZES and (huge or resource in _RESOURCE_FIELDS):
        detail = f"only divisor's values {', '.join(_SIZES)} are supported with the {display_name} resource"
        out.invalid(f"{path}.divisor", resource, detail)


def _check_key_reference(out: FieldErrorList, reference: Tree, path: str) -> None:
    name, key = reference.get("name", ""), reference.get("key", "")
    out.each_invalid(f"{path}.name", name, dns_subdomain(name))
    if not key:
        out.required(f"{path}.key")
    else:
        out.each_invalid(f"{path}.key", key, config_key(key))


def _check_file_reference(out: FieldErrorList, reference: Tree, path: str) -> None:
    for name, rule in (("key", environment_name), ("volumeName", dns_label), ("path", no_backsteps)):
        if not reference.get(name):
            out.required(f"{path}.{name}")
        else:
            out.each_invalid(f"{path}.{name}", reference[name], rule(reference[name]))


def _check_env_from(out: FieldErrorList, sources: Iterable[Tree], path: str) -> None:
    for index, source in enumerate(sources):
        if prefix := source.get("prefix"):
            out.each_invalid(f"{path}[{index}].prefix", prefix, environment_name(prefix))
        given = [name for name in ("configMapRef", "secretRef") if source.get(name) is not None]
        for name in given:
            reference = source[name].get("name", "")
            if not reference:
                out.required(f"{path}[{index}].{name}.name")
            elif problems := dns_subdomain(f"{reference[:-1]}a" if reference.endswith("-") else reference):
                out.each_invalid(f"{path}[{index}].{name}.name", reference, problems)
        if not given:
            out.invalid(path, "", "must specify one of: `configMapRef` or `secretRef`")
        elif len(given) > 1:
            out.invalid(path, "", "may not have more than one field specified at a time")


# Mounts.


def _check_mounts(out: FieldErrorList, container: Tree, volumes: Mapping[str, Tree], path: str) -> None:
    devices = {each.get("name", ""): each.get("devicePath", "") for each in container.get("volumeDevices", ())}
    points: set[str] = set()
    for index, mount in enumerate(container["volumeMounts"]):
        name, point, where = mount.get("name", ""), mount.get("mountPath", ""), f"{path}[{index}]"
        if not name:
            out.required(f"{where}.name")
        if name not in volumes:
            out.not_found(f"{where}.name", name)
        if not point:
            out.required(f"{where}.mountPath")
        if point in points:
            out.invalid(f"{where}.mountPath", point, "must be unique")
        points.add(point)
        if name in devices:
            out.invalid(f"{where}.name", name, "must not already exist in volumeDevices")
        if point in devices.values():
            out.invalid(f"{where}.mountPath", point, "must not already exist as a path in volumeDevices")
        _check_mount_details(out, mount, container, path, where)


def _check_mount_details(out: FieldErrorList, mount: Tree, container: Tree, path: str, where: str) -> None:
    below, expression = mount.get("subPath"), mount.get("subPathExpr")
    if below:
        out.each_invalid(f"{path}.subPath", below, local_path(below))
    if expression:
        if below:
            out.invalid(f"{where}.subPathExpr", expression, "subPathExpr and subPath are mutually exclusive")
        out.each_invalid(f"{path}.subPathExpr", expression, local_path(expression))
    if (propagation := mount.get("mountPropagation")) is not None:
        if propagation not in ("Bidirectional", "HostToContainer", "None"):
            out.unsupported(f"{path}.mountPropagation", propagation, ("Bidirectional", "HostToContainer", "None"))
        if propagation == "Bidirectional" and not (container.get("securityContext") or {}).get("privileged"):
            rule = "Bidirectional mount propagation is available only to privileged containers"
            out.forbidden(f"{path}.mountPropagation", rule)
    if (recursive := mount.get("recursiveReadOnly")) is not None:
        _check_recursive(out, mount, recursive, f"{path}.recursiveReadOnly")


def _check_recursive(out: FieldErrorList, mount: Tree, recursive: str, path: str) -> None:
    if recursive not in ("Disabled", "Enabled", "IfPossible"):
        out.unsupported(path, recursive, ("Disabled", "Enabled", "IfPossible"))
    elif recursive != "Disabled":
        if not mount.get("readOnly"):
            out.forbidden(path, "may only be specified when readOnly is true")
        if mount.get("mountPropagation", "None") != "None":
            out.forbidden(path, "may only be specified when mountPropagation is None or not specified")


def _check_devices(out: FieldErrorList, container: Tree, volumes: Mapping[str, Tree], path: str) -> None:
    mounts = {each.get("name", ""): each.get("mountPath", "") for each in container.get("volumeMounts", ())}
    names: set[str] = set()
    points: set[str] = set()
    for index, device in enumerate(container["volumeDevices"]):
        name, point, where = device.get("name", ""), device.get("devicePath", ""), f"{path}[{index}]"
        source = volumes.get(name)
        if not name:
            out.required(f"{where}.name")
        if name in names:
            out.invalid(f"{where}.name", name, "must be unique")
        if source is None:
            out.not_found(f"{where}.name", name)
        elif "persistentVolumeClaim" not in source and "ephemeral" not in source:
            rule = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
            out.invalid(f"{where}.name", name, rule)
        if not point:
            out.required(f"{where}.devicePath")
        if point in points:
            out.invalid(f"{where}.devicePath", point, "must be unique")
        if no_backsteps(point):
            out.invalid(f"{where}.devicePath", point, "can not contain backsteps ('..')")
        else:
            points.add(point)
        if name in mounts:
            out.invalid(f"{where}.name", name, "must not already exist in volumeMounts")
        if point in mounts.values():
            out.invalid(f"{where}.devicePath", point, "must not already exist as a path in volumeMounts")
        names |= {name} if name else set()


def _check_resize(out: FieldErrorList, policies: Iterable[Tree], restart_policy: str, path: str) -> None:
    seen: set[str] = set()
    for index, policy in enumerate(policies):
        resource, restart = policy.get("resourceName", ""), policy.get("restartPolicy", "")
        if resource in seen:
            out.duplicate(f"{path}[{index}]", resource)
        seen.add(resource)
        for value, known in ((resource, ("cpu", "memory")), (restart, ("NotRequired", "RestartContainer"))):
            if not value:
                out.required(path)
            elif value not in known:
                out.unsupported(path, value, known)
        if restart_policy == "Never" and restart != "NotRequired":
            out.invalid(path, restart, "must be 'NotRequired' when pod `restartPolicy` is 'Never'")


# Probes and lifecycle hooks.


def check_probes(out: FieldErrorList, container: Tree, pod: PodContext, path: str) -> None:
    if (lifecycle := container.get("lifecycle")) is not None:
        for name in ("postStart", "preStop"):
            if (handler := lifecycle.get(name)) is not None:
                _check_handler(out, handler, pod, f"{path}.lifecycle.{name}")
        if lifecycle.get("stopSignal") is not None and pod.os is None:
            rule = "may not be set for containers with empty `spec.os.name`"
            out.forbidden(f"{path}.lifecycle.stopSignal", rule)
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if (probe := container.get(name)) is not None:
            _check_probe(out, probe, name, pod, f"{path}.{name}")


def _check_probe(out: FieldErrorList, probe: Tree, name: str, pod: PodContext, path: str) -> None:
    _check_handler(out, probe, pod, path)
    for field in ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"):
        if probe.get(field, 0) < 0:
            out.invalid(f"{path}.{field}", probe[field], NEGATIVE)
    grace = probe.get("terminationGracePeriodSeconds")
    if grace is not None and grace <= 0:
        out.invalid(f"{path}.terminationGracePeriodSeconds", grace, "must be greater than 0")
    if name == "readinessProbe":
        if grace is not None:
            out.invalid(f"{path}.terminationGracePeriodSeconds", grace, "must not be set for readinessProbes")
    elif probe.get("successThreshold", 1) != 1:
        out.invalid(f"{path}.successThreshold", probe["successThreshold"], "must be 1")


def _check_handler(out: FieldErrorList, handler: Tree, pod: PodContext, path: str) -> None:
    given = [name for name in _HANDLERS if handler.get(name) is not None]
    for extra in given[1:]:
        out.forbidden(f"{path}.{extra}", "may not specify more than 1 handler type")
    if not given:
        out.required(path, "must specify a handler type")
        return
    action, where = handler[given[0]], f"{path}.{given[0]}"
    if given[0] == "exec":
        if not action.get("command"):
            out.required(f"{where}.command")
    elif given[0] == "sleep":
        seconds = action.get("seconds", 0)
        if pod.grace_s is not None and not 0 <= seconds <= pod.grace_s:
            rule = f"must be non-negative and less than terminationGracePeriodSeconds ({pod.grace_s})"
            out.invalid(where, seconds, rule)
    else:
        check_port_or_name(out, action.get("port", 0), f"{where}.port")
        if given[0] == "httpGet":
            _check_http(out, action, where)


def _check_http(out: FieldErrorList, action: Tree, path: str) -> None:
    if action.get("scheme", "HTTP") not in ("HTTP", "HTTPS"):
        out.unsupported(f"{path}.scheme", action["scheme"], ("HTTP", "HTTPS"))
    for header in action.get("httpHeaders", ()):
        out.each_invalid(f"{path}.httpHeaders", header.get("name", ""), header_name(header.get("name", "")))


def check_restart_rules(out: FieldErrorList, container: Tree, path: str) -> None:
    policy, rules = container.get("restartPolicy"), container.get("restartPolicyRules", ())
    if policy is None:
        if not rules:
            return
        out.required(f"{path}.restartPolicy", "must specify restartPolicy when restart rules are used")
    elif policy not in ("Always", "Never", "OnFailure"):
        out.unsupported(f"{path}.restartPolicy", policy, ("Always", "Never", "OnFailure"))
    for index, rule in enumerate(rules):
        where = f"{path}.restartPolicyRules[{index}]"
        if rule.get("action", "") not in ("Restart", "RestartAllContainers"):
            out.unsupported(f"{where}.action", rule.get("action", ""), ("Restart", "RestartAllContainers"))
        codes = rule.get("exitCodes")
        if codes is None:
            out.required(f"{where}.exitCodes", "must be specified")
        elif codes.get("operator", "") not in ("In", "NotIn"):
            out.unsupported(f"{where}.exitCodes.operator", codes.get("operator", ""), ("In", "NotIn"))
