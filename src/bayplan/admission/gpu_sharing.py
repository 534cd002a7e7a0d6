"""What does a new pod still need that wants a part of a GPU, and may it be at all? Asked of every pod at the door.

Nobody knows yet which device it will get. Its container is therefore told by ConfigMaps that the binder makes: their
names are drawn here, stand in an annotation of the pod, and its container refers to them, in KAI-Scheduler's way. Until
they are there no kubelet starts the container. A pod that has all of it already is left as it is.
Cost: a look at three annotations, for other pods; some ten microseconds for these.
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
"""Whose pods are looked at unless others are named."""
SCHEDULERS_ANNOTATION = "bayplan.dev/scheduler-names"
"""The annotation in which a registration says whose pods are looked at, for who answers without being asked by it."""
_SHARE_ANNOTATIONS = (FRACTION_ANNOTATION, MEMORY_ANNOTATION, DEVICE_COUNT_ANNOTATION)
_SUFFIX_LENGTH = 7
_MAX_VOLUME_NAME = 63
"""A volume has the name of the longest ConfigMap, and what may be the name of one may be the name of the other."""


def random_suffix() -> str:
    """What keeps the ConfigMaps of one pod apart from those of its like."""
    return "".join(random.choices(NAME_SUFFIX_ALPHABET, k=_SUFFIX_LENGTH))


def gpu_sharing_error(pod: Tree, schedulers: Sequence[str]) -> str:
    """Why a pod that one of these schedulers places may not have the part of a GPU that it asks for."""
    if not _wants_share(pod, schedulers):
        return ""
    try:
        requested_share(_decode_pod(pod))
    except ObjectError as fault:
        return str(fault)
    return ""


def add_config_map_references(pod: Tree, schedulers: Sequence[str], draw: Callable[[], str] = random_suffix) -> Tree:
    """The pod with the names of its ConfigMaps and what refers to them, the pod itself where it wants no part of a GPU,
    or one that it cannot have: that is for `gpu_sharing_error` to say."""
    if not _wants_share(pod, schedulers):
        return pod
    try:
        read = _decode_pod(pod)
        if requested_share(read) is None or not read.spec.containers:
            return pod
        place = sharing_container(read)
    except ObjectError:
        return pod
    metadata, spec = {**pod["metadata"]}, {**pod["spec"]}
    beginning = read.metadata.annotations.get(CONFIG_MAP_NAME) or _config_map_prefix(read, place, draw())
    metadata["annotations"] = {**metadata["annotations"], CONFIG_MAP_NAME: beginning}
    capabilities, variables = config_map_names(beginning, place)
    key, index = ("initContainers", int(place[1:])) if place.startswith("i") else ("containers", int(place))
    containers = list(spec[key])
    containers[index] = _container_with_environment(containers[index], capabilities, variables)
    spec[key] = containers
    _add_volume(spec, capabilities)
    return {**pod, "metadata": metadata, "spec": spec}


def match_conditions(schedulers: Sequence[str]) -> list[Tree]:
    """What an API server is told, so that it asks about these pods only: no other waits for us, or fails without us."""
    names = ", ".join(f"'{each}'" for each in schedulers)
    asked = " || ".join(f"'{each}' in object.metadata.annotations" for each in _SHARE_ANNOTATIONS)
    return [
        {"name": "placed-by-us", "expression": f"object.spec.schedulerName in [{names}]"},
        {"name": "shares-gpus", "expression": f"has(object.metadata.annotations) && ({asked})"},
    ]


def registered_schedulers(registration: Mapping[str, Any]) -> tuple[str, ...]:
    """Whose pods a registration is about."""
    said = (registration["metadata"].get("annotations") or {}).get(SCHEDULERS_ANNOTATION, DEFAULT_SCHEDULER)
    return tuple(said.split(","))


def _wants_share(pod: Tree, schedulers: Sequence[str]) -> bool:
    said = (pod.get("metadata") or {}).get("annotations") or {}
    placed_by = (pod.get("spec") or {}).get("schedulerName") or DEFAULT_SCHEDULER
    return any(key in said for key in _SHARE_ANNOTATIONS) and placed_by in schedulers


def _decode_pod(pod: Tree) -> Pod:
    """With a name to speak of: one that a controller makes may get its name after us."""
    metadata = pod["metadata"]
    return convert({**pod, "metadata": {**metadata, "name": _name(metadata)}}, Pod)


def _name(metadata: Tree) -> str:
    return str(metadata.get("name") or metadata.get("generateName") or "").rstrip("-")


def _config_map_prefix(pod: Pod, place: str, drawn: str) -> str:
    """The owner's name, or the pod's, and letters: names of pods may have dots, and be longer than those of volumes."""
    owners = pod.metadata.owner_references
    name = re.sub("[^a-z0-9-]", "-", owners[0].name if owners else pod.name)
    rest = f"-{drawn}-shared-gpu"
    room = _MAX_VOLUME_NAME - len(_volume_name(config_map_names(rest, place)[0]))
    return f"{name[:room].strip('-') or 'pod'}{rest}"


def _container_with_environment(container: Tree, capabilities: str, variables: str) -> Tree:
    """A container that hears by its environment what it has. What it says of that itself does not count."""
    env = list(container.get("env") or ())
    for name in (VISIBLE_DEVICES, LEGACY_PORTION_VARIABLE, PORTION_VARIABLE):
        source = {"configMapKeyRef": {"name": capabilities, "key": name}}
        env = _with_item(env, {"name": name, "valueFrom": source}, _by_name)
    whole = {"configMapRef": {"name": variables, "optional": False}}
    return {**container, "env": env, "envFrom": _with_item(container.get("envFrom") or (), whole, _by_config_map)}


def _add_volume(spec: Tree, capabilities: str) -> None:
    """As a volume, too, for whoever wants to mount it, unless somebody has chosen a name that no volume may have."""
    name = _volume_name(capabilities)
    if not dns_label_problems(name):
        volume = {"name": name, "configMap": {"name": capabilities, "defaultMode": 0o644}}
        spec["volumes"] = _with_item(spec.get("volumes") or (), volume, _by_name)


def _volume_name(config_map: str) -> str:
    return f"{config_map}-vol"


def _by_name(item: Tree) -> object:
    return item.get("name")


def _by_config_map(source: Tree) -> object:
    return (source.get("configMapRef") or {}).get("name")


def _with_item(items: Iterable[Tree], new: Tree, key: Callable[[Tree], object]) -> list[Tree]:
    """The items with a new one, in the place of its like, or at the end."""
    found = [new if key(each) == key(new) else each for each in items]
    return found if new in found else [*found, new]
