"""Admission of pods that share GPUs: validation, and the references to their ConfigMaps.

The device is unknown at admission. The binder creates ConfigMaps that give the container its device. This module
generates their names, stores them in an annotation of the pod and adds references to the container, as KAI-Scheduler
does. The kubelet does not start the container before they exist. A pod that has all references is not changed. The
webhooks and the API server call it for every pod.
Cost: a look at three annotations for other pods; some ten microseconds for these.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bayplan.errors import ObjectError
from bayplan.objects.core import Pod
from bayplan.objects.kai.gpu_sharing import (
    CONFIG_MAP_NAME,
    DEVICE_COUNT_ANNOTATION,
    FRACTION_ANNOTATION,
    LEGACY_PORTION_VARIABLE,
    MEMORY_ANNOTATION,
    PORTION_VARIABLE,
    VISIBLE_DEVICES,
    config_map_names,
    requested_share,
    sharing_container,
)
from bayplan.objects.kinds import convert
from bayplan.objects.meta import NAME_SUFFIX_ALPHABET
from bayplan.objects.name_validation import dns_label_problems

Tree = dict[str, Any]

DEFAULT_SCHEDULER = "default-scheduler"
"""Pods of this scheduler are checked unless scheduler names are configured."""
SCHEDULERS_ANNOTATION = "bayplan.dev/scheduler-names"
"""Annotation of a webhook configuration with the scheduler names, for the embedded API server."""
_SHARE_ANNOTATIONS = (FRACTION_ANNOTATION, MEMORY_ANNOTATION, DEVICE_COUNT_ANNOTATION)
_SUFFIX_LENGTH = 7
_MAX_VOLUME_NAME = 63
"""The volume is named after the ConfigMap, so this limit bounds the prefix of both names."""


def random_suffix() -> str:
    """Distinguishes the ConfigMaps of pods of one owner."""
    return "".join(random.choices(NAME_SUFFIX_ALPHABET, k=_SUFFIX_LENGTH))


def gpu_sharing_error(pod: Tree, schedulers: Sequence[str]) -> str:
    """Why the GPU share of a pod of these schedulers is invalid; empty if it is valid."""
    if not _wants_share(pod, schedulers):
        return ""
    try:
        requested_share(_decode_pod(pod))
    except ObjectError as error:
        return str(error)
    return ""


def add_config_map_references(
    pod: Tree, schedulers: Sequence[str], make_suffix: Callable[[], str] = random_suffix
) -> Tree:
    """The pod with the names of its ConfigMaps and the references to them.

    Pods without a GPU share, and pods with an invalid one, are returned unchanged; `gpu_sharing_error` refuses the
    latter.
    """
    if not _wants_share(pod, schedulers):
        return pod
    try:
        typed = _decode_pod(pod)
        if requested_share(typed) is None or not typed.spec.containers:
            return pod
        container_key = sharing_container(typed)
    except ObjectError:
        return pod
    metadata, spec = {**pod["metadata"]}, {**pod["spec"]}
    prefix = typed.metadata.annotations.get(CONFIG_MAP_NAME) or _config_map_prefix(typed, container_key, make_suffix())
    metadata["annotations"] = {**metadata["annotations"], CONFIG_MAP_NAME: prefix}
    capabilities, variables = config_map_names(prefix, container_key)
    key, index = (
        ("initContainers", int(container_key[1:]))
        if container_key.startswith("i")
        else ("containers", int(container_key))
    )
    containers = list(spec[key])
    containers[index] = _set_environment(containers[index], capabilities, variables)
    spec[key] = containers
    _add_volume(spec, capabilities)
    return {**pod, "metadata": metadata, "spec": spec}


def match_conditions(schedulers: Sequence[str]) -> list[Tree]:
    """Match conditions of the webhook: the API server calls it for these pods only, so no other pod depends on it."""
    names = ", ".join(f"'{each}'" for each in schedulers)
    shares_gpu = " || ".join(f"'{each}' in object.metadata.annotations" for each in _SHARE_ANNOTATIONS)
    return [
        {"name": "placed-by-us", "expression": f"object.spec.schedulerName in [{names}]"},
        {"name": "shares-gpus", "expression": f"has(object.metadata.annotations) && ({shares_gpu})"},
    ]


def registered_schedulers(registration: Mapping[str, Any]) -> tuple[str, ...]:
    """The scheduler names of a webhook configuration."""
    names = (registration["metadata"].get("annotations") or {}).get(SCHEDULERS_ANNOTATION, DEFAULT_SCHEDULER)
    return tuple(names.split(","))


def _wants_share(pod: Tree, schedulers: Sequence[str]) -> bool:
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    placed_by = (pod.get("spec") or {}).get("schedulerName") or DEFAULT_SCHEDULER
    return any(key in annotations for key in _SHARE_ANNOTATIONS) and placed_by in schedulers


def _decode_pod(pod: Tree) -> Pod:
    """The typed pod. Uses `generateName` if the name is not generated yet."""
    metadata = pod["metadata"]
    return convert({**pod, "metadata": {**metadata, "name": _name(metadata)}}, Pod)


def _name(metadata: Tree) -> str:
    return str(metadata.get("name") or metadata.get("generateName") or "").rstrip("-")


def _config_map_prefix(pod: Pod, container_key: str, suffix: str) -> str:
    """The name of the owner or of the pod, shortened and without dots, and the random suffix."""
    owners = pod.metadata.owner_references
    name = re.sub("[^a-z0-9-]", "-", owners[0].name if owners else pod.name)
    rest = f"-{suffix}-shared-gpu"
    max_length = _MAX_VOLUME_NAME - len(_volume_name(config_map_names(rest, container_key)[0]))
    return f"{name[:max_length].strip('-') or 'pod'}{rest}"


def _set_environment(container: Tree, capabilities: str, variables: str) -> Tree:
    """The container with environment variables of its device; its own values of these are replaced."""
    env = list(container.get("env") or ())
    for name in (VISIBLE_DEVICES, LEGACY_PORTION_VARIABLE, PORTION_VARIABLE):
        source = {"configMapKeyRef": {"name": capabilities, "key": name}}
        env = _replace_or_append(env, {"name": name, "valueFrom": source}, _by_name)
    source_of_all = {"configMapRef": {"name": variables, "optional": False}}
    return {
        **container,
        "env": env,
        "envFrom": _replace_or_append(container.get("envFrom") or (), source_of_all, _by_config_map),
    }


def _add_volume(spec: Tree, capabilities: str) -> None:
    """Also add the ConfigMap as a volume, unless its name is no valid volume name."""
    name = _volume_name(capabilities)
    if not dns_label_problems(name):
        volume = {"name": name, "configMap": {"name": capabilities, "defaultMode": 0o644}}
        spec["volumes"] = _replace_or_append(spec.get("volumes") or (), volume, _by_name)


def _volume_name(config_map: str) -> str:
    return f"{config_map}-vol"


def _by_name(item: Tree) -> object:
    return item.get("name")


def _by_config_map(source: Tree) -> object:
    return (source.get("configMapRef") or {}).get("name")


def _replace_or_append(items: Iterable[Tree], new: Tree, key: Callable[[Tree], object]) -> list[Tree]:
    found = [new if key(each) == key(new) else each for each in items]
    return found if new in found else [*found, new]
