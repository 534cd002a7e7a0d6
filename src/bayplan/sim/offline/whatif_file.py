"""The file of a what-if: its first document describes the changes, the other documents are objects to add.

    apiVersion: bayplan.dev/v1alpha1
    kind: WhatIf
    nodes:
      add: ["gpu=2:cpu=96,nvidia.com/gpu=8"]
      remove: [node-7]

Decoding is strict: an unknown key is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from bayplan.codec.yaml import read_manifests
from bayplan.config.bayplan_settings import API_VERSION
from bayplan.controllers import NodePool
from bayplan.errors import BayplanError, ObjectError, UsageError
from bayplan.objects.core import Node, Pod
from bayplan.objects.defaults import DEFAULT_NAMESPACE, with_all_defaults
from bayplan.objects.kinds import convert, decode_error_text, find_kind, kind_of
from bayplan.objects.meta import KubeObject
from bayplan.objects.storage import StorageClass
from bayplan.objects.workloads import PriorityClass

KIND = "WhatIf"
HOSTNAME = "kubernetes.io/hostname"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"


class WhatIfError(BayplanError):
    """The file is invalid, or does not apply to this cluster."""


class _WhatIfSection(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Base of the structs in the file."""


class NodeCopies(_WhatIfSection, frozen=True):
    like: str
    count: int = 1


class NodeChanges(_WhatIfSection, frozen=True):
    add: tuple[str | NodeCopies, ...] = ()
    """Pools such as `gpu=2:cpu=96,nvidia.com/gpu=8`, or copies: {like: node-1, count: 2}."""
    remove: tuple[str, ...] = ()
    """Names; `*` matches any text."""


class PriorityChanges(_WhatIfSection, frozen=True):
    classes: dict[str, int] = {}
    """New value by PriorityClass, for all pods of the class."""
    pods: dict[str, int] = {}
    """New priority by `namespace/name`; `*` matches any text."""


class Prices(_WhatIfSection, frozen=True):
    """Price per hour of a node, by the value of one of its labels."""

    label: str = INSTANCE_TYPE
    per_hour: dict[str, float] = {}


_NO_NODES, _NO_PRIORITIES, _NO_PRICES = NodeChanges(), PriorityChanges(), Prices()


class _WhatIfFile(_WhatIfSection, frozen=True):
    api_version: str
    kind: str
    nodes: NodeChanges = NodeChanges()
    configuration: str = ""
    batch_configuration: str = ""
    priorities: PriorityChanges = PriorityChanges()
    prices: Prices = Prices()
    afresh: bool = False


_SECTIONS = {"nodes": NodeChanges, "nodes.add": NodeCopies, "priorities": PriorityChanges, "prices": Prices}


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfChange:
    nodes: NodeChanges = _NO_NODES
    configuration: str | None = None
    """Text of another KubeSchedulerConfiguration; None keeps the current one."""
    batch_configuration: str | None = None
    priorities: PriorityChanges = _NO_PRIORITIES
    prices: Prices = _NO_PRICES
    reschedule_all: bool = False
    """Whether all pods are scheduled again, as if they had no node."""
    objects: tuple[KubeObject, ...] = ()
    """Objects to add, or to replace those with the same name."""
    sources: tuple[str, ...] = ()
    """Position of each object in the file, for error messages."""

    def apply(self, objects: Iterable[KubeObject]) -> list[KubeObject]:
        """Apply the change to the objects of a cluster; pods of removed nodes keep their node name."""
        known = {_identity(item): item for item in objects}
        classes = [item for item in known.values() if isinstance(item, PriorityClass | StorageClass)]
        places = [*("" for _ in classes), *self.sources]
        new = list(with_all_defaults([*classes, *self.objects], places))[len(classes) :]
        deleted: set[tuple[type[KubeObject], str]] = {(Node, f"/{name}") for name in self._removals(known.values())}
        for item in [*new, *self._additions([*known.values(), *new])]:
            known[_identity(item)] = item
            deleted.discard(_identity(item))  # added nodes stay: `*` matches only the nodes of the cluster
        return [self._with_priority(item) for identity, item in known.items() if identity not in deleted]

    def _removals(self, objects: Iterable[KubeObject]) -> Iterator[str]:
        names = [item.name for item in objects if isinstance(item, Node)]
        for pattern in self.nodes.remove:
            found = [name for name in names if _matches(pattern, name)]
            if not found:
                raise WhatIfError(f"nodes.remove: there is no node {pattern}; name one that is there")
            yield from found

    def _additions(self, objects: Iterable[KubeObject]) -> Iterator[Node]:
        nodes = {item.name: item for item in objects if isinstance(item, Node)}
        for addition in self.nodes.add:
            for node in _pool_nodes(addition) if isinstance(addition, str) else _copy_nodes(addition, nodes):
                if node.name in nodes:
                    raise WhatIfError(f"nodes.add: there is a node {node.name} already; choose another name")
                nodes[node.name] = node
                yield node

    def _with_priority(self, item: KubeObject) -> KubeObject:
        classes = self.priorities.classes
        if isinstance(item, PriorityClass) and item.name in classes:
            return replace(item, value=classes[item.name])
        if not isinstance(item, Pod):
            return item
        priority = classes.get(item.spec.priority_class_name)
        for pattern, value in self.priorities.pods.items():
            if _matches(pattern, item.key):
                priority = value
        return item if priority is None else replace(item, spec=replace(item.spec, priority=priority))

    def check_priorities(self, objects: Iterable[KubeObject]) -> None:
        """Raise an error for a class or a pod that does not exist."""
        known = list(objects)
        used = {pod.spec.priority_class_name for pod in known if isinstance(pod, Pod)}
        used |= {item.name for item in known if isinstance(item, PriorityClass)}
        for name in self.priorities.classes:
            if name not in used:
                raise WhatIfError(f"priorities.classes: there is no class {name}; name one that is there")
        keys = [pod.key for pod in known if isinstance(pod, Pod)]
        for pattern in self.priorities.pods:
            if not any(_matches(pattern, key) for key in keys):
                raise WhatIfError(f"priorities.pods: there is no pod {pattern}; write namespace/name")


def _identity(item: KubeObject) -> tuple[type[KubeObject], str]:
    namespace = item.namespace or (DEFAULT_NAMESPACE if kind_of(type(item)).namespaced else "")
    return type(item), f"{namespace}/{item.name}"


def _matches(pattern: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None


def _pool_nodes(text: str) -> Iterator[Node]:
    try:
        pool = NodePool.parse(text)
    except UsageError as fault:
        raise WhatIfError(str(fault).replace("--nodes", "nodes.add:", 1)) from None
    for tree in pool.nodes():
        yield from _nodes(with_all_defaults([convert(tree, Node)]))


def _nodes(objects: Iterable[KubeObject]) -> Iterator[Node]:
    for item in objects:
        assert isinstance(item, Node)
        yield item


def _copy_nodes(addition: NodeCopies, nodes: Mapping[str, Node]) -> Iterator[Node]:
    model = nodes.get(addition.like)
    if model is None:
        raise WhatIfError(f"nodes.add: there is no node {addition.like} to copy; name one that is there")
    if addition.count < 0:
        raise WhatIfError(f"nodes.add: count is {addition.count}; expected 0 or more")
    number = 0
    for _ in range(addition.count):
        while (name := f"{addition.like}-copy-{number}") in nodes:
            number += 1
        number += 1
        labels = {**model.labels, **({HOSTNAME: name} if HOSTNAME in model.labels else {})}
        meta = replace(model.metadata, name=name, uid=f"nodes//{name}", labels=labels)
        yield replace(model, metadata=meta, spec=replace(model.spec, provider_id=""))


# Decoding


def read_whatif_file(path: Path) -> WhatIfChange:
    """Read a what-if from a file; its configurations are files in the same folder."""
    documents = list(read_manifests(path))
    if not documents:
        raise WhatIfError(f"{path} is empty; write apiVersion: {API_VERSION} and kind: {KIND}")
    changes = [each for each in documents if each.value.get("kind") == KIND]
    if len(changes) != 1:
        raise WhatIfError(
            f"{path} holds {len(changes) or 'no'} documents of kind {KIND}; write one, with apiVersion: {API_VERSION}"
        )
    file = _file(changes[0].value, changes[0].place)
    object_documents = [each for each in documents if each is not changes[0]]
    return WhatIfChange(
        nodes=file.nodes,
        configuration=_read_sibling_file(path, file.configuration, "configuration"),
        batch_configuration=_read_sibling_file(path, file.batch_configuration, "batchConfiguration"),
        priorities=file.priorities,
        prices=file.prices,
        reschedule_all=file.afresh,
        objects=tuple(_object(each.value, each.place) for each in object_documents),
        sources=tuple(each.place for each in object_documents),
    )


def _file(tree: dict[str, Any], place: str) -> _WhatIfFile:
    try:
        found = msgspec.convert(tree, _WhatIfFile)
    except msgspec.ValidationError as fault:
        unknown = re.search(r"unknown field `(\w+)`(?: - at `\$\.?([^`]*)`)?", str(fault))
        if unknown is None:
            raise WhatIfError(f"{place}: {decode_error_text(str(fault))}") from None
        struct = _SECTIONS.get((unknown[2] or "").partition("[")[0], _WhatIfFile)
        known = ", ".join(struct.__struct_encode_fields__)
        where = f"{unknown[2]}.{unknown[1]}" if unknown[2] else unknown[1]
        raise WhatIfError(f"{place}: {where} is not a field of {KIND}; expected one of {known}") from None
    if found.api_version != API_VERSION:
        raise WhatIfError(f"{place}: apiVersion is {found.api_version}; expected {API_VERSION}")
    wrong = [name for name, price in found.prices.per_hour.items() if not 0 <= price < float("inf")]
    if wrong:
        raise WhatIfError(f"{place}: prices.perHour.{wrong[0]} is not a price; expected a number of 0 or more")
    return found


def _object(tree: dict[str, Any], place: str) -> KubeObject:
    api_version, name = tree.get("apiVersion"), tree.get("kind")
    if not isinstance(api_version, str) or not isinstance(name, str):
        raise WhatIfError(f"{place}: apiVersion or kind is missing; expected both")
    try:
        kind = find_kind(api_version, name)
        if kind is None:
            raise WhatIfError(
                f"{place}: {name} of {api_version} does not affect scheduling; expected nodes, pods or similar"
            )
        return convert(tree, kind.struct)
    except ObjectError as fault:
        raise WhatIfError(f"{place}: {fault}") from None


def _read_sibling_file(path: Path, name: str, key: str) -> str | None:
    if not name:
        return None
    file = path.parent / name
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise WhatIfError(f"{path}: {key}: {file} cannot be read: {fault}; name a file in the same folder") from None
