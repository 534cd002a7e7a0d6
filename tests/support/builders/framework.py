"""Snapshots and handles for tests of framework parts, and runners for single extension points of shipped plugins.

Pods and nodes come from the public kit (`bayplan.testing`). The kit runs whole profiles; this module runs parts:
`run_filter(NodePorts, pod, node_a, node_b, pods=[...])`. A plugin may be given as a class: it is then built as a
profile builds it, with its default arguments unless `args` is given.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar

import msgspec
import numpy as np

from bayplan.clock import ManualClock
from bayplan.devices import DeviceAssumptions
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.diagnosis import Diagnosis
from bayplan.framework.api.extension_points import FILTER, PRE_FILTER, PRE_SCORE, SCORE
from bayplan.framework.api.status import Code, Status
from bayplan.framework.runtime.bind_request_factory import BindRequestFactory
from bayplan.framework.runtime.filtering import FilterPoints
from bayplan.framework.runtime.plugin_call import PluginCaller
from bayplan.framework.runtime.registry import Registry
from bayplan.framework.runtime.scoring import ScorePoints, TotalScores
from bayplan.framework.runtime.waiting_pods import WaitingPodsMap
from bayplan.objects.core import Node, Pod, Taint
from bayplan.objects.meta import KubeObject
from bayplan.snapshot import Catalog, ImageState, InternTables, NodeColumns, NodeTable, PodInfo, Snapshot
from bayplan.telemetry.plugin_timings import PluginTimings
from bayplan.testing import builders as kit
from bayplan.testing.builders import CREATED, DEFAULT_ALLOCATABLE, make_container, make_pod, make_taint
from bayplan.testing.recorded_writes import RecordedWrites
from bayplan.volumes import VolumeAssumptions

K = TypeVar("K", bound=KubeObject)

__all__ = [
    "CREATED",
    "DEFAULT_ALLOCATABLE",
    "FEASIBLE",
    "FakeHandle",
    "FakeNominations",
    "FilterResult",
    "RecordedWrites",
    "diagnose",
    "errored",
    "evaluate_hints",
    "filter_result",
    "from_api",
    "make_container",
    "make_cycle",
    "make_filtering",
    "make_node",
    "make_plugin",
    "make_pod",
    "make_scoring",
    "make_snapshot",
    "rejected",
    "replace_fields",
    "run_filter",
    "run_score",
    "score",
    "taint",
    "unresolvable",
]

FilterResult = tuple[str, tuple[str, ...]]
"""The result of a filter for a node: the code's label and the reasons."""


# objects


def from_api(kind: type[K], manifest: Mapping[str, Any]) -> K:
    """An object from its manifest, for fields that the builders have no keyword for."""
    return msgspec.convert(manifest, kind)


def make_node(name: str = "node", *, labels: Mapping[str, str] | None = None, **fields: Any) -> Node:
    """The kit's node with only these labels: tests of the parts count them."""
    node = kit.make_node(name, **fields)
    return replace_fields(node, metadata={"labels": dict(labels or {})})


def taint(key: str, effect: str = "NoSchedule", value: str = "") -> Taint:
    return make_taint(key, effect, value)


def replace_fields(item: K, **fields: Any) -> K:
    """The same object with some fields replaced: `replace_fields(item, spec={"priority": 3}, status={...})`."""
    parts = {
        name: msgspec.structs.replace(getattr(item, name), **value) if isinstance(value, dict) else value
        for name, value in fields.items()
    }
    return msgspec.structs.replace(item, **parts)


# snapshots


def make_snapshot(nodes: Iterable[Node] = (), pods: Iterable[Pod] = (), objects: Iterable[KubeObject] = ()) -> Snapshot:
    """A snapshot of these nodes in this order.

    Pods are counted on the node that they name; pods without a node are ignored.
    """
    nodes = list(nodes)
    vocabulary = InternTables()
    snapshot = Snapshot(vocabulary, Catalog(objects))
    columns = NodeColumns(vocabulary)
    for node in nodes:
        columns.add_row(node)
    for pod in pods:
        row = columns.index.get(pod.spec.node_name)
        if row is not None:
            _place(snapshot, columns, row, PodInfo(pod))
    images = _image_states(nodes)
    for row, node in enumerate(nodes):
        names = [name for image in node.status.images for name in image.names]
        snapshot.nodes.copy_rows(columns, {row: {name: images[name] for name in names}})
    snapshot.order = np.arange(len(nodes))
    return snapshot


def _place(snapshot: Snapshot, columns: NodeColumns, row: int, info: PodInfo) -> None:
    vocabulary = snapshot.vocabulary
    kind = vocabulary.kinds.acquire(info.namespaced_labels)
    affinity = -1 if info.affinity is None else vocabulary.affinities.acquire(info.affinity)
    snapshot.pods.set_slot(snapshot.pods.slots, info, row, kind, affinity)
    columns.add_pod(row, info)


def _image_states(nodes: Sequence[Node]) -> dict[str, ImageState]:
    """Each image with the size that its first node reports and the number of nodes that have it."""
    states: dict[str, ImageState] = {}
    for node in nodes:
        sizes: dict[str, int] = {}
        for image in node.status.images:
            for name in image.names:
                sizes.setdefault(name, image.size_bytes)
        for name, size in sizes.items():
            known = states.get(name, ImageState(size, 0))
            states[name] = ImageState(known.size_bytes, known.node_count + 1)
    return states


def make_cycle(pod: Pod, snapshot: Snapshot | None = None) -> Cycle:
    """The cycle of one scheduling attempt for `pod`."""
    return Cycle(PodInfo(pod), make_snapshot() if snapshot is None else snapshot)


# the plugin handle


@dataclass
class FakeNominations:
    """Nominated pods by node; empty unless a test adds some."""

    waiting: dict[str, list[PodInfo]] = field(default_factory=dict)
    leaving: dict[str, Mapping[str, object]] = field(default_factory=dict)

    def on_node(self, node_name: str) -> Sequence[PodInfo]:
        return self.waiting.get(node_name, ())

    def node_of(self, uid: str) -> str | None:
        return next((node for node, infos in self.waiting.items() if any(info.uid == uid for info in infos)), None)

    def terminating_victims_on(self, node_name: str) -> Mapping[str, object]:
        return self.leaving.get(node_name, {})

    def refused_on(self, node_name: str) -> Sequence[str]:  # noqa: ARG002
        return ()

    def nodes(self) -> Iterable[str]:
        return self.waiting


class FakeHandle:
    """A handle over a catalog, with a clock that stands still and a seeded random generator."""

    def __init__(self, catalog: Catalog | None = None, *, group_pods: Iterable[Pod] = ()) -> None:
        self.catalog = Catalog() if catalog is None else catalog
        self.clock = ManualClock()
        self.random = random.Random(0)
        self.volumes = VolumeAssumptions(self.catalog)
        self.devices = DeviceAssumptions()
        self.nominator = FakeNominations()
        self.waiting_pods = WaitingPodsMap()
        self.writes = RecordedWrites()
        self.filter_runner: Any = None
        self.activated: dict[str, Pod] = {}
        self.known_pods = list(group_pods)
        self.bind_requests: Any = SimpleNamespace(factory=BindRequestFactory(self.clock))

    def activate(self, pods: Mapping[str, Pod]) -> None:
        self.activated.update(pods)

    def group_pods(self, namespace: str, group: str) -> Sequence[Pod]:
        return [pod for pod in self.known_pods if pod.namespace == namespace and _group_of(pod) == group]

    async def post(self, url: str, body: bytes, timeout_s: float) -> bytes:
        raise AssertionError(f"nothing answers at {url} ({len(body)} bytes, {timeout_s} s)")


def _group_of(pod: Pod) -> str | None:
    group = pod.spec.scheduling_group
    return None if group is None else group.pod_group_name


def make_plugin(plugin: Any, *, args: Any = None, handle: FakeHandle | None = None) -> Any:
    """A plugin built as a profile builds it; an instance is returned as it is."""
    if not isinstance(plugin, type):
        return plugin
    (entry,) = Registry.of(plugin)
    if args is None and entry.args is not None:
        args = entry.args.default()
    return entry.build(args, handle or FakeHandle())


# runners


def make_filtering(*plugins: Any) -> FilterPoints:
    """PreFilter and Filter of a profile with only these plugins."""
    return FilterPoints(
        [plugin for plugin in plugins if PRE_FILTER.extended_by(plugin)],
        [plugin for plugin in plugins if FILTER.extended_by(plugin)],
        PluginCaller(ManualClock(), PluginTimings()),
        FakeNominations(),
    )


def make_scoring(*plugins: Any) -> ScorePoints:
    """PreScore and Score of a profile with only these plugins, each with weight 1."""
    return ScorePoints(
        [plugin for plugin in plugins if PRE_SCORE.extended_by(plugin)],
        [plugin for plugin in plugins if SCORE.extended_by(plugin)],
        {plugin.name: 1 for plugin in plugins},
        PluginCaller(ManualClock(), PluginTimings()),
    )


def run_filter(
    plugin: Any, pod: Pod, *nodes: Node, pods: Iterable[Pod] = (), objects: Iterable[KubeObject] = (), args: Any = None
) -> dict[str, FilterResult]:
    """PreFilter and Filter of one plugin: each node's code and reasons."""
    snapshot = make_snapshot(nodes, pods, objects)
    diagnosis = diagnose(plugin, pod, snapshot, args=args)
    return {name: filter_result(diagnosis.status(row)) for row, name in enumerate(snapshot.nodes.names)}


def diagnose(plugin: Any, pod: Pod, snapshot: Snapshot, *, args: Any = None) -> Diagnosis:
    """The same as a `Diagnosis`, for tests that read more than the nodes."""
    built = make_plugin(plugin, args=args, handle=FakeHandle(snapshot.catalog))
    filtering, cycle = make_filtering(built), make_cycle(pod, snapshot)
    return filtering.run_filters(cycle, filtering.pre_filter(cycle))


def run_score(
    plugin: Any, pod: Pod, *nodes: Node, pods: Iterable[Pod] = (), objects: Iterable[KubeObject] = (), args: Any = None
) -> dict[str, int]:
    """PreScore, Score and NormalizeScore of one plugin over all nodes; empty if it skips the pod."""
    snapshot = make_snapshot(nodes, pods, objects)
    scores = score(plugin, pod, snapshot, args=args)
    assert scores.status.ok, scores.status
    vector = next(iter(scores.by_plugin.values()), None)
    return {} if vector is None else dict(zip(snapshot.nodes.names, vector.tolist(), strict=True))


def score(
    plugin: Any, pod: Pod, snapshot: Snapshot, *, args: Any = None, nodes: NodeTable | None = None
) -> TotalScores:
    """The same in the framework's types, for tests that read the status or part of the nodes."""
    built = make_plugin(plugin, args=args, handle=FakeHandle(snapshot.catalog))
    return make_scoring(built).score(make_cycle(pod, snapshot), snapshot.table if nodes is None else nodes)


def filter_result(status: Status) -> FilterResult:
    """A status as tests compare it."""
    return status.code.label, status.reasons


FEASIBLE: FilterResult = (Code.SUCCESS.label, ())


def rejected(*reasons: str) -> FilterResult:
    """The node is rejected; evicting pods could help."""
    return Code.UNSCHEDULABLE.label, reasons


def unresolvable(*reasons: str) -> FilterResult:
    """The node is rejected, and evicting pods cannot help."""
    return Code.UNRESOLVABLE.label, reasons


def errored(*reasons: str) -> FilterResult:
    """The plugin returned an error."""
    return Code.ERROR.label, reasons


def evaluate_hints(plugin: Any, resource: str, pod: Pod, old: KubeObject | None, new: KubeObject | None) -> list[str]:
    """The results of the plugin's hint functions for an event of a resource; "Queue" for a registration without one."""
    registrations = [registration for registration in plugin.events_to_register if registration.resource == resource]
    return [
        registration.hint(pod, old, new).value if registration.hint is not None else "Queue"
        for registration in registrations
    ]
