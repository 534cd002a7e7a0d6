"""Workloads of the pod engine's benchmarks: which pods are decided on which cluster. One entry per line of the table.

The shapes follow kube-scheduler's own benchmarks (`scheduler_perf`), on realistic nodes. A workload is a value: its
nodes and pods, the objects that exist before, and the budget of a decision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from bayplan.objects.core import Service
from bayplan.objects.kinds import convert
from bayplan.objects.meta import KubeObject
from bayplan.objects.workloads import ReplicaSet
from benchmarks import clusters, volume_workload
from benchmarks.clusters import HOST, NAMESPACE, ZONE, Manifest, container, pod, running
from benchmarks.device_workload import claimed_pod, devices

MANY = 1000
FEW = 100
"""Pods of workloads whose decisions take milliseconds."""
FULL_RATIO = 1.1
"""Maximum ratio of sharing results to evaluating every pod in full, for workloads where sharing gains least."""
ONE_NODE_US = 2.0
"""Maximum time of a plugin that evaluates one node at a time, excluding its own time, for each node that is left when
it runs.
"""


class Budget(Enum):
    """Maximum of a decision's median on the machine that the budget was set for, in microseconds."""

    SHARED = 50.0
    OWN = 300.0
    PREEMPTION = 20_000.0


PodMaker = Callable[[int], Manifest]
Around = Callable[[int, int], Iterator[KubeObject | Manifest]]


def _nothing(nodes: int, pods: int) -> Iterator[KubeObject | Manifest]:  # noqa: ARG001
    return iter(())


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Pods that are decided one after the other."""

    about: str
    pod: PodMaker
    node: Callable[[int], Manifest] = clusters.node
    around: Around = _nothing
    """Other objects for this number of nodes and pods, and manifests of already running pods."""
    budget: Budget | None = None
    pods: int = MANY
    against_full: bool = False
    """Whether sharing is compared with evaluating every pod in full."""
    preempts: bool = False
    """Whether every pod has to preempt; its decision is then a nomination."""
    one_by_one: bool = False
    """Whether a third-party plugin that evaluates one node at a time is added to the profile; its cost is what is
    judged.
    """


# pods


def basic(number: int) -> Manifest:
    return pod(f"basic-{number}", labels={"app": "basic"})


def all_different(number: int) -> Manifest:
    own = container(f"{100 + number}m", f"{500 + number}Mi", picture=clusters.image(number))
    return pod(f"own-{number}", labels={"app": f"own-{number}"}, containers=[own])


def templates(count: int) -> PodMaker:
    """Pods of `count` templates in turn."""

    def make(number: int) -> Manifest:
        kind = number % count
        own = container(f"{100 + 10 * kind}m", f"{300 + 20 * kind}Mi", picture=clusters.image(kind))
        return pod(f"of-{kind}-{number}", labels={"app": f"app-{kind}"}, containers=[own])

    return make


def filling(number: int) -> Manifest:
    return pod(f"filling-{number}", labels={"app": "filling"}, containers=[container("3", "4Gi")])


def node_affinity(number: int) -> Manifest:
    zones = {"key": ZONE, "operator": "In", "values": ["zone-0", "zone-1"]}
    disk = {"key": "disk", "operator": "In", "values": ["ssd"]}
    affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [zones]}]},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 10, "preference": {"matchExpressions": [disk]}}],
    }
    return pod(f"choosy-{number}", labels={"app": "choosy"}, affinity={"nodeAffinity": affinity})


def tolerating(number: int) -> Manifest:
    dedicated = {"key": "dedicated", "operator": "Equal", "value": "team-1", "effect": "NoSchedule"}
    return pod(f"tolerating-{number}", labels={"app": "tolerating"}, tolerations=[dedicated])


def _coloured(name: str, colour: str, kind: str, term: Manifest) -> Manifest:
    return pod(name, labels={"color": colour}, affinity={kind: term})


def _term(colour: str, key: str) -> Manifest:
    return {"labelSelector": {"matchLabels": {"color": colour}}, "topologyKey": key}


def affinity_required(number: int) -> Manifest:
    term = {"requiredDuringSchedulingIgnoredDuringExecution": [_term("blue", ZONE)]}
    return _coloured(f"blue-{number}", "blue", "podAffinity", term)


def affinity_preferred(number: int) -> Manifest:
    weighted = {"weight": 1, "podAffinityTerm": _term("red", HOST)}
    term = {"preferredDuringSchedulingIgnoredDuringExecution": [weighted]}
    return _coloured(f"red-{number}", "red", "podAffinity", term)


def anti_affinity(number: int) -> Manifest:
    term = {"requiredDuringSchedulingIgnoredDuringExecution": [_term("green", HOST)]}
    return _coloured(f"green-{number}", "green", "podAntiAffinity", term)


def spread_hard(number: int) -> Manifest:
    constraint = {
        "maxSkew": 5,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"color": "blue"}},
    }
    return pod(f"spread-{number}", labels={"color": "blue"}, topologySpreadConstraints=[constraint])


def deployed(number: int) -> Manifest:
    """A pod of a Deployment: owned by a ReplicaSet, selected by a Service, without spread constraints of its own."""
    return pod(f"web-{number}", labels={"app": "web", "pod-template-hash": "7f9c"}, owner="web-7f9c")


def preempting(number: int) -> Manifest:
    return pod(f"high-{number}", containers=[container("3", "500Mi")], priority=10)


_MIXED: tuple[PodMaker, ...] = (
    basic,
    deployed,
    templates(10),
    node_affinity,
    basic,
    deployed,
    spread_hard,
    tolerating,
    anti_affinity,
    affinity_preferred,
)


def mixed(number: int) -> Manifest:
    """Pods of a shared cluster: mostly Deployments and plain pods, some with special requirements."""
    return _MIXED[number % len(_MIXED)](number)


# objects that exist before


def _on_every(step: int, make: PodMaker, *, zone: int | None = None) -> Around:
    """Such pods run already on every step-th node, only in `zone` if given."""

    def around(nodes: int, pods: int) -> Iterator[Manifest]:  # noqa: ARG001
        for number in range(0, nodes, step):
            if zone is None or number % clusters.ZONES == zone:
                yield running(_earlier(make(number)), number)

    return around


def _earlier(found: Manifest) -> Manifest:
    """The same pod under a name that differs from those of pods to be placed."""
    metadata = found["metadata"]
    name = f"earlier-{metadata['name']}"
    return {**found, "metadata": {**metadata, "name": name, "uid": f"uid-{name}"}}


def _nearly_full(nodes: int, pods: int) -> Iterator[Manifest]:  # noqa: ARG001
    """One pod on each node that leaves room for exactly one pod of 3 CPUs, with small differences."""
    for number in range(nodes):
        room = clusters.node(number)["status"]["allocatable"]
        milli = int(room["cpu"].removesuffix("m")) - 3200 - 10 * (number % 200)
        found = pod(f"earlier-{number}", containers=[container(f"{milli}m", "8Gi")])
        yield running(found, number)


def _low_priority(nodes: int, pods: int) -> Iterator[Manifest]:  # noqa: ARG001
    """Four pods a node that leave no room for a larger one."""
    for number in range(nodes):
        for place in range(4):
            name = f"low-{number}-{place}"
            yield running(pod(name, containers=[container("900m", "500Mi")], terminationGracePeriodSeconds=0), number)


def deployment(nodes: int, pods: int) -> Iterator[KubeObject | Manifest]:
    """A Service and a ReplicaSet, with some of its pods running."""
    labels = {"app": "web", "pod-template-hash": "7f9c"}
    yield convert({"metadata": {"name": "web", "namespace": NAMESPACE}, "spec": {"selector": {"app": "web"}}}, Service)
    metadata = {"name": "web-7f9c", "namespace": NAMESPACE, "uid": "uid-web-7f9c"}
    yield convert({"metadata": metadata, "spec": {"selector": {"matchLabels": labels}}}, ReplicaSet)
    yield from _on_every(5, deployed)(nodes, pods)


def tainted_node(number: int) -> Manifest:
    """A fifth of the nodes has the taint of one team, a tenth that of another, some one that is only preferred."""
    found = clusters.node(number)
    taints = {
        0: [{"key": "dedicated", "value": "team-1", "effect": "NoSchedule"}],
        1: [{"key": "dedicated", "value": "team-1", "effect": "NoSchedule"}],
        2: [{"key": "dedicated", "value": "team-2", "effect": "NoSchedule"}],
        3: [{"key": "example.com/spot", "value": "", "effect": "PreferNoSchedule"}],
    }.get(number % 10, [])
    return {**found, "spec": {**found["spec"], "taints": taints}}


def _mixed_cluster(nodes: int, pods: int) -> Iterator[KubeObject | Manifest]:
    yield from deployment(nodes, pods)
    for make in (spread_hard, affinity_preferred, anti_affinity):
        yield from _on_every(10, make)(nodes, pods)


WORKLOADS: Mapping[str, Workload] = {
    "basic_identical": Workload(about="pods of one template", pod=basic, budget=Budget.SHARED),
    "all_different": Workload(about="no two pods alike", pod=all_different, budget=Budget.OWN),
    "templates_10": Workload(about="ten templates in turn", pod=templates(10), against_full=True),
    "templates_100": Workload(about="a hundred templates in turn", pod=templates(100), against_full=True),
    "filling_up": Workload(about="every pod fills its node", pod=filling, around=_nearly_full, against_full=True),
    "node_affinity": Workload(about="two zones of three, rather ssd", pod=node_affinity, budget=Budget.OWN),
    "taints": Workload(about="tainted nodes, some tolerated", pod=tolerating, node=tainted_node, budget=Budget.OWN),
    "affinity_required": Workload(
        about="in the zone of their like",
        pod=affinity_required,
        around=_on_every(1, affinity_required, zone=0),
        budget=Budget.OWN,
    ),
    "affinity_preferred": Workload(
        about="rather on nodes of their like",
        pod=affinity_preferred,
        around=_on_every(5, affinity_preferred),
        budget=Budget.OWN,
    ),
    "anti_affinity": Workload(
        about="one of them a node", pod=anti_affinity, around=_on_every(5, anti_affinity), budget=Budget.OWN
    ),
    "spread_hard": Workload(
        about="evenly over zones", pod=spread_hard, around=_on_every(5, spread_hard), budget=Budget.OWN
    ),
    "spread_default": Workload(
        about="a Deployment under the default constraints", pod=deployed, around=deployment, budget=Budget.SHARED
    ),
    "preemption": Workload(
        about="a full cluster, room is made",
        pod=preempting,
        node=clusters.small_node,
        around=_low_priority,
        budget=Budget.PREEMPTION,
        pods=FEW,
        preempts=True,
    ),
    "mixed": Workload(about="plain, deployed and particular pods in turn", pod=mixed, around=_mixed_cluster),
    "volumes": Workload(
        about="zonal CSI volumes, bound and to be made",
        pod=volume_workload.pod_with_claim,
        around=volume_workload.storage,
    ),
    "dra": Workload(about="a device for each pod", pod=claimed_pod, around=devices, pods=FEW),
    "one_node_plugin": Workload(about="a plugin that answers for one node", pod=basic, pods=FEW, one_by_one=True),
}
