"""HyperNode controller: creates HyperNodes from node labels, and counts their nodes.

Volcano's ConfigMap `volcano-controller-configmap` lists the labels of each network type, from the widest to the node's
own. Nodes, HyperNodes and the ConfigMap enqueue a discovery. One pass over all nodes covers all changes since the last.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import yaml

from bayplan.client import Selection
from bayplan.controllers.core.api_types import NODES, ConfigMap, Tree, UntypedObject
from bayplan.controllers.core.shared_informers import Key, SharedInformerFactory
from bayplan.controllers.volcano.controller import VolcanoController, run_concurrently
from bayplan.controllers.volcano.resources import CONFIG_MAPS, HYPER_NODES
from bayplan.objects.core import Node
from bayplan.objects.kinds import convert
from bayplan.objects.meta import KubeObject, LabelSelector
from bayplan.objects.selectors.label_selectors import SelectorError, compile_label_selector
from bayplan.objects.volcano.constants import TOPOLOGY_SOURCE

log = logging.getLogger(__name__)

NAMESPACE = "volcano-system"
CONFIG_NAME = "volcano-controller-configmap"
CONFIG_KEY = "volcano-controller.conf"
SOURCE = "label"
_MAX_NAME_LENGTH = 20
_DISCOVER: Key = ("", "")
"""Key of the discovery; HyperNode keys have a name."""


class _Selector(KubeObject, frozen=True):
    spec: LabelSelector = LabelSelector()


class HyperNodeController(VolcanoController):
    """Keeps HyperNodes in step with node labels."""

    name = "volcano-hypernode-controller"
    workers = 1

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self.nodes = self.informer(NODES, Node)
        self.hyper_nodes = self.informer(HYPER_NODES, UntypedObject)
        selection = Selection(namespace=NAMESPACE, field_selector=f"metadata.name={CONFIG_NAME}")
        self.configuration = self.informer(CONFIG_MAPS, ConfigMap, selection=selection)
        self.nodes.add_handler(self._on_node)
        self.hyper_nodes.add_handler(self._on_hyper_node)
        self.configuration.add_handler(lambda _old, _new: self.queue.add(_DISCOVER))

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        if old is None or new is None or old.metadata.labels != new.metadata.labels:
            self.queue.add(_DISCOVER)

    def _on_hyper_node(self, old: UntypedObject | None, new: UntypedObject | None) -> None:
        if new is None:
            self.queue.add(_DISCOVER)
        self.enqueue(old, new)

    async def sync(self, key: Key) -> float | None:
        if key == _DISCOVER:
            await self._discover()
            for each in self.hyper_nodes.all():
                self.queue.add(("", each.name))
            return None
        item = self.get_latest(self.hyper_nodes, key)
        if item is not None:
            count = node_count(item, self.nodes.all())
            if count != int(item.status.get("nodeCount") or 0):
                await self.replace_status(HYPER_NODES, item, {**item.status, "nodeCount": count})
        return None

    async def _discover(self) -> None:
        """Create, update and delete HyperNodes according to the node labels."""
        found = self.configuration.get(NAMESPACE, CONFIG_NAME)
        networks = label_networks(found.data.get(CONFIG_KEY, "")) if found is not None else None
        managed = {
            each.name: each for each in self.hyper_nodes.all() if each.metadata.labels.get(TOPOLOGY_SOURCE) == SOURCE
        }
        if networks is None:
            return  # label discovery is disabled: existing HyperNodes stay
        wanted = {each.name: each for each in discover_hypernodes(networks, self.nodes.all(), managed)}
        new = [each for name, each in wanted.items() if name not in managed]
        changed = [
            (managed[n], each)
            for n, each in wanted.items()
            if n in managed and managed[n].spec.get("members") != each.members
        ]
        gone = [each for name, each in managed.items() if name not in wanted]
        faults = await run_concurrently(new, self._create)
        faults += await run_concurrently(changed, lambda pair: self._update(*pair))
        faults += await run_concurrently(gone, self._delete)
        if faults:
            raise faults[0]

    async def _create(self, wanted: DesiredHyperNode) -> None:
        await self.ensure(HYPER_NODES, "", wanted.body())

    async def _update(self, item: UntypedObject, wanted: DesiredHyperNode) -> None:
        await self.replace(HYPER_NODES, item, {"/spec/members": wanted.members})

    async def _delete(self, item: UntypedObject) -> None:
        await self.delete(HYPER_NODES, item)


@dataclass(slots=True)
class DesiredHyperNode:
    """HyperNode that node labels describe."""

    name: str
    tier: int
    label: str
    value: str
    names: set[str]

    @property
    def members(self) -> list[Tree]:
        kind = "Node" if self.tier == 1 else "HyperNode"
        return [{"type": kind, "selector": {"exactMatch": {"name": name}}} for name in sorted(self.names)]

    def body(self) -> Tree:
        labels = {TOPOLOGY_SOURCE: SOURCE, self.label: self.value}
        spec = {"tier": self.tier, "tierName": self.label, "members": self.members}
        return {"metadata": {"name": self.name, "labels": labels}, "spec": spec}


def label_networks(text: str) -> dict[str, list[str]] | None:
    """Labels of each network type, nearest first; None when label discovery is disabled."""
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError:
        return None
    sources = tree.get("networkTopologyDiscovery") if isinstance(tree, dict) else None
    wanted = [each for each in sources or () if isinstance(each, dict) and each.get("source") == SOURCE]
    if not wanted or not wanted[0].get("enabled"):
        return None
    config = wanted[0].get("config")
    types = config.get("networkTopologyTypes") if isinstance(config, dict) else None
    if not isinstance(types, dict) or not all(isinstance(labels, list) for labels in types.values()):
        log.warning("%s %s: networkTopologyTypes must name a list of labels for each network", CONFIG_NAME, CONFIG_KEY)
        return None
    networks: dict[str, list[str]] = {}
    for name, labels in types.items():
        keys = [str(each.get("nodeLabel")) for each in labels if isinstance(each, dict)]
        if len(str(name)) <= _MAX_NAME_LENGTH and len(set(keys)) == len(keys):
            networks[str(name)] = keys[-2::-1]  # the last label is the node's own
    return networks


def discover_hypernodes(
    networks: Mapping[str, list[str]], nodes: Iterable[Node], known: Mapping[str, UntypedObject]
) -> list[DesiredHyperNode]:
    """Compute the HyperNodes of these nodes. An existing HyperNode keeps its name."""
    found: dict[tuple[str, str, str], DesiredHyperNode] = {}
    for node in nodes:
        for network, labels in networks.items():
            member = node.name
            for tier, label in enumerate(labels, 1):
                value = node.metadata.labels.get(label)
                if value is None:
                    break
                key = (network, label, value)
                if key not in found:
                    found[key] = DesiredHyperNode(_name(network, tier, label, value, known), tier, label, value, set())
                found[key].names.add(member)
                member = found[key].name
    return list(found.values())


def _name(network: str, tier: int, label: str, value: str, known: Mapping[str, UntypedObject]) -> str:
    prefix = f"hypernode-{re.sub(r'[^a-z0-9.-]', '-', network.lower())}-tier{tier}"
    for name, item in sorted(known.items()):
        if name.startswith(prefix) and item.metadata.labels.get(label) == value:
            return name
    return f"{prefix}-{hashlib.sha256(f'{label}={value}'.encode()).hexdigest()[:5]}"


def node_count(item: UntypedObject, nodes: Iterable[Node]) -> int:
    """Number of nodes that are direct members of a HyperNode."""
    names: set[str] = set()
    nodes = list(nodes)
    node_names = {node.name for node in nodes}
    for member in item.spec.get("members") or ():
        selector = member.get("selector") or {}
        if exact := selector.get("exactMatch"):
            names |= {exact.get("name", "")} & node_names
        elif pattern := (selector.get("regexMatch") or {}).get("pattern"):
            try:
                found = re.compile(pattern)
            except re.error:
                continue
            names |= {node.name for node in nodes if found.search(node.name)}
        elif labels := selector.get("labelMatch"):
            try:
                matcher = compile_label_selector(convert({"spec": labels}, _Selector).spec)
            except SelectorError:
                continue
            names |= {node.name for node in nodes if matcher.matches(node.metadata.labels)}
    return len(names)
