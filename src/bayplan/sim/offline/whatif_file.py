"""What is to be different? The file of a what-if: its first document says so, the others are objects that come.

    apiVersion: bayplan.dev/v1alpha1
    kind: WhatIf
    nodes:
      add: ["gpu=2:cpu=96,nvidia.com/gpu=8"]
      remove: [node-7]

Read strictly: a key that is misspelt is an error and not a wish that nobody hears.
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
    """A what-if cannot be read, or means nothing in this cluster."""


class _WhatIfSection(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Base of what stands in the file."""


class NodeCopies(_WhatIfSection, frozen=True):
    """Nodes like one that is there."""

    like: str
    count: int = 1


class NodeChanges(_WhatIfSection, frozen=True):
    add: tuple[str | NodeCopies, ...] = ()
    """Pools such as `gpu=2:cpu=96,nvidia.com/gpu=8`, or copies: {like: node-1, count: 2}."""
    remove: tuple[str, ...] = ()
    """Names; `*` stands for anything."""


class PriorityChanges(_WhatIfSection, frozen=True):
    classes: dict[str, int] = {}
    """By PriorityClass: its new value, for all pods of the class."""
    pods: dict[str, int] = {}
    """By `namespace/name`; `*` stands for anything."""


class Prices(_WhatIfSection, frozen=True):
    """What a node costs an hour, by one of its labels."""

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
    """What is to be different."""

    nodes: NodeChanges = _NO_NODES
    configuration: str | None = None
    """The text of another KubeSchedulerConfiguration; None: as it is."""
    batch_configuration: str | None = None
    priorities: PriorityChanges = _NO_PRIORITIES
    prices: Prices = _NO_PRICES
    reschedule_all: bool = False
    """Whether all pods are placed anew, as if none had a node yet."""
    objects: tuple[KubeObject, ...] = ()
    """That come, or take the place of those of the same name."""
    sources: tuple[str, ...] = ()
    """Where each of these stands, for complaints."""

    def apply(self, objects: Iterable[KubeObject]) -> list[KubeObject]:
        """The objects of the cluster with the change; pods of nodes that go stay where they are."""
        known = {_identity(item): item for item in objects}
        classes = [item for item in known.values() if isinstance(item, PriorityClass | StorageClass)]
        places = [*("" for _ in classes), *self.sources]
        new = list(with_all_defaults([*classes, *self.objects], places))[len(classes) :]
        gone: set[tuple[type[KubeObject], str]] = {(Node, f"/{name}") for name in self._removed(known.values())}
        for item in [*new, *self._added([*known.values(), *new])]:
            known[_identity(item)] = item
            gone.discard(_identity(item))  # what comes stays: `*` stands for the nodes that there are
        return [self._with_priority(item) for identity, item in known.items() if identity not in gone]

    def _removed(self, objects: Iterable[KubeObject]) -> Iterator[str]:
        names = [item.name for item in objects if isinstance(item, Node)]
        for pattern in self.nodes.remove:
            found = [name for name in names if _matches(pattern, name)]
            if not found:
                raise WhatIfError(f"nodes.remove: there is no node {pattern}; name one that is there")
            yield from found

    def _added(self, objects: Iterable[KubeObject]) -> Iterator[Node]:
        nodes = {item.name: item for item in objects if isinstance(item, Node)}
        for wish in self.nodes.add:
            for node in _pool_nodes(wish) if isinstance(wish, str) else _copy_nodes(wish, nodes):
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
        """A class or a pod that nobody has is a slip."""
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


def _copy_nodes(wish: NodeCopies, nodes: Mapping[str, Node]) -> Iterator[Node]:
    model = nodes.get(wish.like)
    if model is None:
        raise WhatIfError(f"nodes.add: there is no node {wish.like} to copy; name one that is there")
    if wish.count < 0:
        raise WhatIfError(f"nodes.add: count is {wish.count}; expected 0 or more")
    number = 0
    for _ in range(wish.count):
        while (name := f"{wish.like}-copy-{number}") in nodes:
            number += 1
        number += 1
        labels = {**model.labels, **({HOSTNAME: name} if HOSTNAME in model.labels else {})}
        meta = replace(model.metadata, name=name, uid=f"nodes//{name}", labels=labels)
        yield replace(model, metadata=meta, spec=replace(model.spec, provider_id=""))


# reading ----------------------------------------------------------------------------------------------------------


def read_whatif_file(path: Path) -> WhatIfChange:
    """The what-if of a file; configurations are files beside it."""
    documents = list(read_manifests(path))
    if not documents:
        raise WhatIfError(f"{path} is empty; write apiVersion: {API_VERSION} and kind: {KIND}")
    told = [each for each in documents if each.value.get("kind") == KIND]
    if len(told) != 1:
        raise WhatIfError(
            f"{path} holds {len(told) or 'no'} documents of kind {KIND}; write one, with apiVersion: {API_VERSION}"
        )
    file = _file(told[0].value, told[0].place)
    others = [each for each in documents if each is not told[0]]
    return WhatIfChange(
        nodes=file.nodes,
        configuration=_read_sibling_file(path, file.configuration, "configuration"),
        batch_configuration=_read_sibling_file(path, file.batch_configuration, "batchConfiguration"),
        priorities=file.priorities,
        prices=file.prices,
        reschedule_all=file.afresh,
        objects=tuple(_object(each.value, each.place) for each in others),
        sources=tuple(each.place for each in others),
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
        raise WhatIfError(f"{place}: {where} is nothing a {KIND} has; expected some of {known}") from None
    if found.api_version != API_VERSION:
        raise WhatIfError(f"{place}: apiVersion is {found.api_version}; expected {API_VERSION}")
    wrong = [name for name, price in found.prices.per_hour.items() if not 0 <= price < float("inf")]
    if wrong:
        raise WhatIfError(f"{place}: prices.perHour.{wrong[0]} is no price; expected a number of 0 or more")
    return found


def _object(tree: dict[str, Any], place: str) -> KubeObject:
    api_version, name = tree.get("apiVersion"), tree.get("kind")
    if not isinstance(api_version, str) or not isinstance(name, str):
        raise WhatIfError(f"{place}: it says not what it is; expected apiVersion and kind")
    try:
        kind = find_kind(api_version, name)
        if kind is None:
            raise WhatIfError(
                f"{place}: {name} of {api_version} changes no decision; expected nodes, pods and the like"
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
        raise WhatIfError(f"{path}: {key}: {file} cannot be read: {fault}; name a file beside this one") from None
