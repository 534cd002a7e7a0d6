"""Anonymiser of recordings: replaces names, labels and images by numbers, so that decisions stay the same.

Equal texts stay equal everywhere, and the order by name is preserved, because the engines compare and sort names.
Machine-readable texts are kept: kinds, operators, amounts, resource names, times, labels and annotations of Kubernetes
and Volcano, and expressions of device selectors. All other annotations are removed. A text without a rule is replaced.
Cost: two walks over the objects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from bayplan.objects.kinds import convert, kind_of
from bayplan.objects.meta import KubeObject
from bayplan.plugins.gpu.gpu_requests import GPU_COUNT, GPU_INDEX, GPU_MILLI, GPU_MODEL
from bayplan.sim.recordings.recording_file import RecordedDecision, object_manifest

_KEPT_WORDS = frozenset(
    [
        "apiVersion",
        "kind",
        "operator",
        "effect",
        "phase",
        "type",
        "status",
        "state",
        "schedulerName",
        "preemptionPolicy",
        "restartPolicy",
        "action",
        "protocol",
        "whenUnsatisfiable",
        "nodeAffinityPolicy",
        "nodeTaintsPolicy",
        "accessModes",
        "volumeMode",
        "volumeBindingMode",
        "provisioner",
        "driver",
        "attacher",
        "allocationMode",
        "matchAttribute",
        "distinctAttribute",
        "expression",
        "source",
        "apiGroup",
        "resource",
        "resourceName",
        "capacity",
        "extendedResourceName",
        "mode",
        "dequeueStrategy",
        "bindingConditions",
        "bindingFailureConditions",
        "declaredFeatures",
        "disruptionMode",
        "consumesCounters",
        "sharedCounters",
        "min",
        "max",
        "allocatable",
        "creationTimestamp",
        "deletionTimestamp",
        "lastTransitionTime",
        "startTime",
        "timeAdded",
        "allocationTimestamp",
        "hostIP",
        "maximumVolumeSize",
    ]
)
"""Fields whose values belong to an API vocabulary."""
_KEPT_MAPS = frozenset(
    [
        "attributes",
        "capacity",
        "counters",
        "overhead",
        "requests",
        "limits",
        "allocatable",
        "hard",
        "used",
        "minResources",
        "capability",
        "deserved",
        "allocated",
        "allocatedResources",
        "consumedCapacity",
        "requestPolicy",
        "policies",
        "resReserved",
        "numares",
        "cpuDetail",
        "resource",
    ]
)
"""Maps whose keys are resources, not names."""
_DROPPED_FIELDS = frozenset(
    [
        "resourceVersion",
        "generation",
        "managedFields",
        "reason",
        "message",
        "providerID",
        "parameters",
        "data",
        "networkData",
        "finalizers",
        "transitionID",
        "nodeID",
    ]
)
"""Fields that no decision needs, or that may contain private data."""
_KEYED_FIELDS = frozenset(("labels", "matchLabels", "nodeSelector", "selector"))
"""Maps whose keys are labels."""
_KEY_FIELDS = frozenset(("key", "topologyKey", "matchLabelKeys", "mismatchLabelKeys", "topologyKeys"))
"""Fields that contain keys of labels and taints."""
_IMAGE_FIELDS = frozenset(("image", "reference", "names"))
_PATHS = frozenset(("request", "requests"))
"""Fields whose values may be two names separated by a slash."""
_KEPT_VALUE_LABELS = frozenset(
    ("kubernetes.io/os", "kubernetes.io/arch", "node.kubernetes.io/instance-type", GPU_MODEL)
)
"""Labels whose values describe the type of a node and identify no cluster."""
_WELL_KNOWN = re.compile(
    r"([a-z0-9.-]+\.)?(kubernetes\.io|k8s\.io|volcano\.sh)/.+|metadata\.(name|namespace)|" + re.escape(GPU_MODEL)
)
_GPU_ANNOTATIONS = frozenset((GPU_COUNT, GPU_INDEX, GPU_MILLI, GPU_MODEL))
"""Requests and assignments of shared GPUs: numbers, and public model names."""
_KEPT_ANNOTATIONS = re.compile(
    r"([a-z.]+\.)?volcano\.sh/.+|scheduling\.k8s\.io/group-name|pv\.kubernetes\.io/.+|volume(\.beta)?\.kubernetes\.io/.+|"
    r"storageclass\.kubernetes\.io/.+|storage\.alpha\.kubernetes\.io/.+|resource\.kubernetes\.io/.+|"
    r"kubernetes\.io/config\.mirror"
)
_KEPT_VALUES = frozenset(
    ("", "*", "true", "false", "default", "root", "kube-system", "system-cluster-critical", "system-node-critical")
)
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
_NUMBERED = re.compile(r"(?P<head>.+)-(?P<number>\d+)")
_TOKEN = re.compile(r"[^,;/]+")
_NAME_ROLES = ("node", "namespace", "pod", "queue", "podgroup", "priorityclass", "image", "key", "value", "uid")

Rename = Callable[[str, str], str]
"""Maps a text and its role to the replacement."""


class Anonymiser:
    """The replacements for the names of one cluster."""

    def __init__(self, objects: Iterable[KubeObject]) -> None:
        items = list(objects)
        found: dict[str, str] = {}  # role by string
        kept_values: set[str] = set()

        def collect_name(text: str, role: str) -> str:
            if role not in _NAME_ROLES:
                role = "value"
            if text not in found or _NAME_ROLES.index(role) < _NAME_ROLES.index(found[text]):
                found[text] = role
            return text

        for item in items:
            tree = object_manifest(item)
            kept_values.update(_kept_label_values(tree))
            _rename_tree(tree, "", collect_name, _role_of(item))
        self._names = _number_names(
            {text: role for text, role in found.items() if text not in kept_values and not _is_kept(text)}
        )
        self._nodes = sorted(item.name for item in items if kind_of(type(item)).name == "Node")

    def name(self, text: str, role: str = "value") -> str:  # noqa: ARG002 (the shape of a Rename)
        return self._names.get(text, text)

    def rename_object(self, item: KubeObject) -> KubeObject:
        tree = _rename_tree(self._expand_patterns(object_manifest(item)), "", self.name, _role_of(item))
        return convert(tree, type(item))

    def rename_decision(self, decision: RecordedDecision) -> RecordedDecision:
        """An observed decision with all names replaced; its reason is removed, because it may contain names."""
        return replace(
            decision,
            pod=self._key(decision.pod),
            node=self.name(decision.node),
            why="",
            evicted=tuple(map(self._key, decision.evicted)),
            nominated=self.name(decision.nominated),
            annotations={},
        )

    def _key(self, key: str) -> str:
        return "/".join(map(self.name, key.split("/")))

    def _expand_patterns(self, tree: Any) -> Any:
        """Replace patterns of node names by a list of the nodes that they match, because numbers match no pattern."""
        if isinstance(tree, list | tuple):
            return [self._expand_patterns(each) for each in tree]
        if not isinstance(tree, dict):
            return tree
        if set(tree) == {"pattern"} and isinstance(tree["pattern"], str):
            matching = [self.name(node) for node in self._nodes if _pattern_matches(tree["pattern"], node)]
            return {"pattern": f"^({'|'.join(map(re.escape, matching))})$"}
        return {key: self._expand_patterns(value) for key, value in tree.items()}


def _pattern_matches(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return False


def _role_of(item: KubeObject) -> str:
    return kind_of(type(item)).name.lower()


def _is_kept(text: str) -> bool:
    return text in _KEPT_VALUES or _NUMBER.fullmatch(text) is not None


def _kept_label_values(tree: Mapping[str, Any]) -> Iterable[str]:
    labels = tree.get("metadata", {}).get("labels", {})
    return [value for key, value in labels.items() if key in _KEPT_VALUE_LABELS]


def _number_names(roles: Mapping[str, str]) -> dict[str, str]:
    """Number the texts of each role in their sort order."""
    names: dict[str, str] = {}
    for role in _NAME_ROLES:
        texts = sorted(text for text, each in roles.items() if each == role)
        heads = sorted({_head(text) for text in texts}) if role == "pod" else texts
        width = len(str(len(heads)))
        ranks = {head: f"{role}-{number:0{width}}" for number, head in enumerate(heads, 1)}
        for text in texts:
            # Sessions order the pods of a job by the number at the end of their name, so this number is kept.
            tail = text[len(_head(text)) :] if role == "pod" else ""
            names[text] = ranks[_head(text) if role == "pod" else text] + tail
    return names


def _head(name: str) -> str:
    found = _NUMBERED.fullmatch(name)
    return found["head"] if found else name


# Tree walk


def _rename_tree(value: Any, field: str, rename: Rename, kind: str, parent: str = "") -> Any:
    """Rename every text in the tree that no rule keeps. `parent`: the field that contains `field`."""
    if isinstance(value, list | tuple):
        return [_rename_tree(each, field, rename, kind, parent) for each in value]
    if isinstance(value, dict):
        return _rename_map(value, field, rename, kind)
    if not isinstance(value, str):
        return value
    if field in _IMAGE_FIELDS and (field != "names" or parent == "images"):
        return _image(value, rename)
    if field in _PATHS:
        return "/".join(rename(part, "value") for part in value.split("/"))
    if field in _KEY_FIELDS:
        return _key_name(value, rename)
    return rename(value, _role(field, parent, kind))


def _rename_map(value: dict[str, Any], field: str, rename: Rename, kind: str) -> dict[str, Any]:
    if field == "annotations":
        kept_values = {key: text for key, text in value.items() if _KEPT_ANNOTATIONS.fullmatch(key)}
        renamed = {key: _TOKEN.sub(lambda found: rename(found[0], "value"), text) for key, text in kept_values.items()}
        return renamed | {key: text for key, text in value.items() if key in _GPU_ANNOTATIONS}
    if field in _KEYED_FIELDS and all(isinstance(each, str) for each in value.values()):
        return {_key_name(key, rename): rename(text, "value") for key, text in value.items()}
    if field in ("disruptedPods", "minTaskMember"):
        return {rename(key, "value"): each for key, each in value.items()}
    found: dict[str, Any] = {}
    for key, each in value.items():
        if key in _DROPPED_FIELDS:
            continue
        is_kept = key in (_KEPT_MAPS if isinstance(each, dict) else _KEPT_WORDS)
        found[key] = each if is_kept else _rename_tree(each, key, rename, kind, field)
    return found


def _role(field: str, parent: str, kind: str) -> str:
    """The role of a text, derived from its field."""
    if field == "uid":
        return "uid"
    if field in ("namespace", "namespaces"):
        return "namespace"
    if field in ("nodeName", "nominatedNodeName", "nodes"):
        return "node"
    if field == "priorityClassName":
        return "priorityclass"
    if field in ("queue", "parent"):
        return "queue"
    return kind if (field, parent) == ("name", "metadata") else "value"


def _key_name(key: str, rename: Rename) -> str:
    return key if _WELL_KNOWN.fullmatch(key) else rename(key, "key")


def _image(name: str, rename: Rename) -> str:
    """Rename the repository and the digest. The tag is kept, because nodes list images with tags."""
    if not name:
        return name
    repository, at, rest = name.partition("@")
    end = repository.rfind(":")
    repository, tag = (repository[:end], repository[end:]) if end > repository.rfind("/") else (repository, "")
    algorithm, colon, number = rest.partition(":")
    return f"{rename(repository, 'image')}{tag}{at}{algorithm}{colon}{rename(number, 'value')}"
