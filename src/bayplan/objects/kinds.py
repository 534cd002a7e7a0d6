"""Kinds of API objects and their structs, and the decoding of objects.

Decoding is lenient where Kubernetes is (`null` means absent, unknown fields are skipped) and strict in all else: an
object that does not fit raises `ObjectError` with the object's name and the field, never another exception.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import msgspec

from bayplan.errors import ObjectError
from bayplan.objects import core, resource, storage, workloads
from bayplan.objects.kai import bind_request
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano import types as volcano

T = TypeVar("T", bound=KubeObject)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of API object that Bayplan reads."""

    name: str
    plural: str
    group: str
    struct: type[KubeObject]
    namespaced: bool = False
    versions: tuple[str, ...] = ("v1",)
    """The versions with the fields of the struct, best first."""

    @property
    def api_versions(self) -> tuple[str, ...]:
        return tuple(f"{self.group}/{version}" if self.group else version for version in self.versions)


_DEVICES = ("v1", "v1beta2")

KINDS: tuple[Kind, ...] = (
    Kind("Pod", "pods", "", core.Pod, namespaced=True),
    Kind("Node", "nodes", "", core.Node),
    Kind("Namespace", "namespaces", "", core.Namespace),
    Kind("ResourceQuota", "resourcequotas", "", core.ResourceQuota, namespaced=True),
    Kind("Service", "services", "", core.Service, namespaced=True),
    Kind("ReplicationController", "replicationcontrollers", "", core.ReplicationController, namespaced=True),
    Kind("ReplicaSet", "replicasets", "apps", workloads.ReplicaSet, namespaced=True),
    Kind("StatefulSet", "statefulsets", "apps", workloads.StatefulSet, namespaced=True),
    Kind("PodDisruptionBudget", "poddisruptionbudgets", "policy", workloads.PodDisruptionBudget, namespaced=True),
    Kind("PriorityClass", "priorityclasses", "scheduling.k8s.io", workloads.PriorityClass),
    Kind("PodGroup", "podgroups", "scheduling.k8s.io", workloads.PodGroup, namespaced=True, versions=("v1alpha2",)),
    Kind("PersistentVolume", "persistentvolumes", "", storage.PersistentVolume),
    Kind("PersistentVolumeClaim", "persistentvolumeclaims", "", storage.PersistentVolumeClaim, namespaced=True),
    Kind("StorageClass", "storageclasses", "storage.k8s.io", storage.StorageClass),
    Kind("CSINode", "csinodes", "storage.k8s.io", storage.CsiNode),
    Kind("CSIDriver", "csidrivers", "storage.k8s.io", storage.CsiDriver),
    Kind("CSIStorageCapacity", "csistoragecapacities", "storage.k8s.io", storage.CsiStorageCapacity, namespaced=True),
    Kind("VolumeAttachment", "volumeattachments", "storage.k8s.io", storage.VolumeAttachment),
    Kind(
        "ResourceClaim", "resourceclaims", "resource.k8s.io", resource.ResourceClaim, namespaced=True, versions=_DEVICES
    ),
    Kind("ResourceSlice", "resourceslices", "resource.k8s.io", resource.ResourceSlice, versions=_DEVICES),
    Kind("DeviceClass", "deviceclasses", "resource.k8s.io", resource.DeviceClass, versions=_DEVICES),
    Kind("PodGroup", "podgroups", "scheduling.volcano.sh", volcano.PodGroup, namespaced=True, versions=("v1beta1",)),
    Kind("Queue", "queues", "scheduling.volcano.sh", volcano.Queue, versions=("v1beta1",)),
    Kind("HyperNode", "hypernodes", "topology.volcano.sh", volcano.HyperNode, versions=("v1alpha1",)),
    Kind("Numatopology", "numatopologies", "nodeinfo.volcano.sh", volcano.Numatopology, versions=("v1alpha1",)),
    Kind("NodeShard", "nodeshards", "shard.volcano.sh", volcano.NodeShard, versions=("v1alpha1",)),
    Kind(
        "BindRequest",
        "bindrequests",
        bind_request.GROUP,
        bind_request.BindRequest,
        namespaced=True,
        versions=(bind_request.VERSION,),
    ),
)
"""Of two kinds with one name the first is Kubernetes' own."""


@cache
def kinds_by_name() -> dict[str, Kind]:
    """The kinds by their bare names; `PodGroup` is Kubernetes' own."""
    return {kind.name: kind for kind in reversed(KINDS)}


@cache
def _kinds_by_group() -> dict[tuple[str, str], Kind]:
    return {(kind.group, kind.name): kind for kind in KINDS}


def find_kind(api_version: str, name: str) -> Kind | None:
    """The kind for an apiVersion and a name; None for kinds that Bayplan does not read."""
    group, _, version = api_version.rpartition("/")
    kind = _kinds_by_group().get((group, name))
    if kind is None:
        return None
    if version not in kind.versions:
        raise ObjectError(f"{name} of {api_version} is not supported; use {' or '.join(kind.api_versions)}")
    return kind


@cache
def kind_of(struct: type[KubeObject]) -> Kind:
    return next(kind for kind in KINDS if kind.struct is struct)


def convert(raw: object, struct: type[T]) -> T:
    """A decoded JSON tree as a typed object."""
    try:
        return msgspec.convert(raw, struct)
    except msgspec.ValidationError:
        pass  # nearly always a null in a field without null; the second attempt drops nulls
    try:
        return msgspec.convert(without_nulls(raw), struct)
    except msgspec.ValidationError as fault:
        raise ObjectError(
            f"{object_description(raw, struct)} cannot be read: {decode_error_text(str(fault))}"
        ) from None


_FAULT = re.compile(r"(?P<what>.+) - at `\$\.(?P<where>[^`]+)`", re.DOTALL)
_WRONG_TYPE = re.compile(r"Expected `(?P<wanted>[^`]+)`, got `(?P<got>[^`]+)`")
_TYPE_NAMES = {
    "array": "a list",
    "bool": "true or false",
    "datetime": "a time",
    "float": "a number",
    "int": "a whole number",
    "null": "null",
    "object": "an object",
    "str": "a text",
}


def decode_error_text(fault: str) -> str:
    """The field, the error and what to write, without Python terms."""
    found = _FAULT.fullmatch(fault)
    what, where = (found["what"], found["where"]) if found else (fault, "the object")
    types = _WRONG_TYPE.fullmatch(what)
    if types is None:
        return f"{where}: {what}; correct it"
    words = [_TYPE_NAMES.get(word, word) for word in types["wanted"].split(" | ") if word not in ("null", "int")]
    # YAML reads y, no and 12 as other types than strings.
    quotes = ", in quotes" if words == ["a text"] and types["got"] in ("bool", "int", "float") else ""
    return (
        f"{where} is {_TYPE_NAMES.get(types['got'], types['got'])}; write "
        f"{' or '.join(words) or _TYPE_NAMES['int']}{quotes}"
    )


def decode(data: bytes | str, struct: type[T]) -> T:
    """JSON text as a typed object; the fast path for lists and watches."""
    try:
        return msgspec.json.decode(data, type=struct)
    except msgspec.ValidationError:
        return convert(msgspec.json.decode(data), struct)
    except msgspec.DecodeError as fault:
        raise ObjectError(f"{kind_of(struct).name} is not JSON: {fault}") from None


def without_nulls(value: Any) -> Any:
    """The tree without null members, which Kubernetes treats as absent."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value if item is not None]
    return value


def object_description(raw: object, struct: type[KubeObject]) -> str:
    """The name of an object that could not be decoded, for errors."""
    metadata = raw.get("metadata") if isinstance(raw, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    # callers may decode kinds of their own
    kind = next((kind.name for kind in KINDS if kind.struct is struct), "object")
    return f'{kind} "{name}"' if name else f"a {kind} without a name"
