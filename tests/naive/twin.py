"""`Twin`, and the small random clusters on which plugins are compared with their naive twins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from bayplan.objects.core import (
    Affinity,
    Container,
    ContainerPort,
    Node,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Pod,
    PreferredSchedulingTerm,
    ResourceRequirements,
    RestartRule,
    Toleration,
)
from bayplan.objects.meta import KubeObject, ObjectMeta
from bayplan.objects.resource import DeviceClass, DeviceClassSpec
from support.builders.framework import FEASIBLE, FilterResult, make_container, make_node, make_pod, taint

GPU = "example.com/gpu"


@dataclass(frozen=True)
class Cluster:
    """Nodes, the pods on them, and all other objects."""

    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...] = ()
    objects: tuple[KubeObject, ...] = ()

    def pods_on(self, node: Node) -> list[Pod]:
        return [pod for pod in self.pods if pod.spec.node_name == node.name]

    def of(self, kind: type[KubeObject]) -> list[Any]:
        return [item for item in self.objects if isinstance(item, kind)]


@dataclass(frozen=True)
class Case:
    """A pod, its cluster, and the plugin's arguments (None: the defaults)."""

    pod: Pod
    cluster: Cluster
    args: Any = None


Filter = Callable[[Case, Node], FilterResult]
"""The combined result of PreFilter and Filter for one node."""
Scores = Callable[[Case, Sequence[Node]], dict[str, int] | None]
"""The normalised scores of the feasible nodes; None if the plugin skips the pod."""


@dataclass(frozen=True)
class Twin:
    """A plugin and its naive implementation."""

    plugin: type[Any]
    cases: st.SearchStrategy[Case]
    filter: Filter | None = None
    scores: Scores | None = None


def fits_unless(*reasons: tuple[bool, FilterResult]) -> FilterResult:
    """A filter that returns the first reason that applies, or success."""
    return next((answer for holds, answer in reasons if holds), FEASIBLE)


# random objects, from pools so small that values collide

_KEYS = ("zone", "disk", "gen")
_VALUES = ("a", "b", "1", "5")
LABELS = st.dictionaries(st.sampled_from(_KEYS), st.sampled_from(_VALUES), max_size=3)
IMAGES = ("app:v1", "app:latest", "db:v2", "repo/x:latest")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_RESTART_ALL = RestartRule(action="RestartAllContainers")
_SERVES_GPUS = DeviceClassSpec(extended_resource_name=GPU)
_FEATURES = ("RestartAllContainersOnContainerExits", "UserNamespacesHostNetworkSupport", "Other")

TAINTS = st.lists(
    st.builds(taint, st.sampled_from(("t", "u")), st.sampled_from(_EFFECTS), st.sampled_from(("", "v"))), max_size=3
)
TOLERATIONS = st.lists(
    st.builds(
        Toleration,
        key=st.sampled_from(("", "t", "u", "node.kubernetes.io/unschedulable")),
        operator=st.sampled_from(("", "Equal", "Exists", "Gt")),
        value=st.sampled_from(("", "v")),
        effect=st.sampled_from(("", *_EFFECTS)),
    ),
    max_size=3,
).map(tuple)
AMOUNTS = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.sampled_from(("0", "1m", "250m", "1", "1500m", "3")),
        "memory": st.sampled_from(("0", "1", "200Mi", "1Gi", "3G", "4294967297")),
        "ephemeral-storage": st.sampled_from(("0", "1Gi", "5Gi")),
        GPU: st.sampled_from(("0", "1", "2")),
        "hugepages-2Mi": st.sampled_from(("2Mi", "8Mi")),
        "other.com/thing": st.sampled_from(("0", "1")),
    },
)
ROOM = st.fixed_dictionaries(
    {"pods": st.sampled_from(("0", "1", "2", "110"))},
    optional={
        "cpu": st.sampled_from(("0", "500m", "2", "4")),
        "memory": st.sampled_from(("0", "1Gi", "4Gi", "8589934591")),
        "ephemeral-storage": st.sampled_from(("1Gi", "10Gi")),
        GPU: st.sampled_from(("0", "1", "4")),
        "hugepages-2Mi": st.sampled_from(("0", "8Mi")),
    },
)
PORTS = st.lists(
    st.builds(
        ContainerPort,
        host_port=st.sampled_from((0, 80, 81)),
        host_ip=st.sampled_from(("", "0.0.0.0", "10.0.0.1", "10.0.0.2")),
        protocol=st.sampled_from(("", "TCP", "UDP")),
    ),
    max_size=2,
).map(tuple)


def _requirement(key: str, operator: str, *values: str) -> NodeSelectorRequirement:
    return NodeSelectorRequirement(key=key, operator=operator, values=values)


SOUND_EXPRESSIONS = (
    _requirement("zone", "In", "a", "b"),
    _requirement("zone", "NotIn", "a"),
    _requirement("disk", "In", "1"),
    _requirement("disk", "Exists"),
    _requirement("disk", "DoesNotExist"),
    _requirement("gen", "Gt", "2"),
    _requirement("gen", "Lt", "5"),
)
BROKEN_EXPRESSIONS = (
    _requirement("zone", "In"),
    _requirement("zone", "Exists", "a"),
    _requirement("gen", "Gt", "x"),
    _requirement("gen", "Lt", "1", "2"),
    _requirement("gen", "Gt", "-1"),
    _requirement("disk", "Like", "a"),
)
SOUND_FIELDS = (
    _requirement("metadata.name", "In", "n0"),
    _requirement("metadata.name", "In", "n1"),
    _requirement("metadata.name", "NotIn", "n0"),
    _requirement("metadata.uid", "In", "n0"),
)
BROKEN_FIELDS = (_requirement("metadata.name", "In", "n0", "n1"), _requirement("metadata.name", "Exists"))


def _terms(
    expressions: Sequence[NodeSelectorRequirement], fields: Sequence[NodeSelectorRequirement]
) -> st.SearchStrategy[NodeSelectorTerm]:
    return st.builds(
        NodeSelectorTerm,
        match_expressions=st.lists(st.sampled_from(expressions), max_size=2).map(tuple),
        match_fields=st.lists(st.sampled_from(fields), max_size=2).map(tuple),
    )


SOUND_TERMS = _terms(SOUND_EXPRESSIONS, SOUND_FIELDS)
ANY_TERMS = SOUND_TERMS | _terms(SOUND_EXPRESSIONS + BROKEN_EXPRESSIONS, SOUND_FIELDS + BROKEN_FIELDS)


def node_affinities(terms: st.SearchStrategy[NodeSelectorTerm]) -> st.SearchStrategy[NodeAffinity | None]:
    """None, or an affinity with such required terms. Preferences are valid: an invalid one ends the attempt."""
    preferred = st.builds(PreferredSchedulingTerm, weight=st.sampled_from((0, 1, 3, 100)), preference=SOUND_TERMS)
    required = st.builds(NodeSelector, node_selector_terms=st.lists(terms, max_size=3).map(tuple))
    return st.none() | st.builds(
        NodeAffinity, required=st.none() | required, preferred=st.lists(preferred, max_size=2).map(tuple)
    )


# the random fields of an object, by the name of the field

Fields = Mapping[str, st.SearchStrategy[Any]]

NODE_FIELDS: Fields = {
    "labels": LABELS,
    "taints": TAINTS,
    "allocatable": ROOM,
    "unschedulable": st.booleans(),
    "images": st.dictionaries(st.sampled_from(IMAGES), st.integers(0, 2**33), max_size=3),
    "features": st.lists(st.sampled_from(_FEATURES), max_size=3, unique=True),
}
CONTAINER_FIELDS: Fields = {
    "requests": AMOUNTS,
    "image": st.sampled_from((*IMAGES, "app", "repo/x")),
    "ports": PORTS,
    "restart_policy_rules": st.sampled_from(((), (RestartRule(action="Restart"),), (_RESTART_ALL,))),
}
POD_FIELDS: Fields = {
    "overhead": st.sampled_from(({}, {}, {"cpu": "10m"})),
    "resources": st.none() | st.builds(ResourceRequirements, requests=AMOUNTS),
}
INCOMING_FIELDS: Fields = {
    "node": st.sampled_from(("", "", "", "n1", "n9")),
    "tolerations": TOLERATIONS,
    "node_selector": st.one_of(st.just({}), LABELS),
    "affinity": st.builds(Affinity, node_affinity=node_affinities(ANY_TERMS)),
    "host_network": st.booleans(),
    "host_users": st.sampled_from((None, True, False)),
}
OBJECTS = {"classes": st.sampled_from(((), (DeviceClass(metadata=ObjectMeta(name="gpus"), spec=_SERVES_GPUS),)))}


def _some(fields: Fields, about: set[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({name: strategy for name, strategy in fields.items() if name in about})


def nodes(about: set[str]) -> st.SearchStrategy[tuple[Node, ...]]:
    """One to four nodes, n0 to n3."""
    return st.lists(_some(NODE_FIELDS, about), min_size=1, max_size=4).map(
        lambda found: tuple(make_node(f"n{number}", **fields) for number, fields in enumerate(found))
    )


def _containers(about: set[str], **more: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Container, ...]]:
    one = _some({**CONTAINER_FIELDS, **more}, about | more.keys()).map(lambda fields: make_container(**fields))
    return st.lists(one, max_size=2).map(tuple)


def _specs(about: set[str]) -> st.SearchStrategy[dict[str, Any]]:
    """The fields that both placed and incoming pods have."""
    fields = {name: strategy for name, strategy in POD_FIELDS.items() if name in about}
    if about & CONTAINER_FIELDS.keys():
        policy = st.sampled_from((None, "Always"))
        fields["containers"] = _containers(about)
        fields["init_containers"] = _containers(about, restart_policy=policy)
    return st.fixed_dictionaries(fields)


def incoming(about: set[str]) -> st.SearchStrategy[Pod]:
    """An incoming pod."""
    parts = st.tuples(_specs(about), _some(INCOMING_FIELDS, about))
    return parts.map(lambda found: make_pod("incoming", **found[0], **found[1]))


def placed(count: int, about: set[str]) -> st.SearchStrategy[tuple[Pod, ...]]:
    """Some pods on the first `count` nodes."""
    names = st.sampled_from([f"n{number}" for number in range(count)])
    return st.lists(st.tuples(_specs(about), names), max_size=4).map(
        lambda found: tuple(make_pod(f"p{number}", node=node, **spec) for number, (spec, node) in enumerate(found))
    )


@st.composite
def cases(draw: st.DrawFn, about: str, args: st.SearchStrategy[Any] | None = None) -> Case:
    """A pod and a small cluster. `about` names the random fields; the rest is as the builders have it."""
    fields = set(about.split())
    found = draw(nodes(fields))
    objects = tuple(item for name in sorted(OBJECTS.keys() & fields) for item in draw(OBJECTS[name]))
    cluster = Cluster(found, draw(placed(len(found), fields)), objects)
    return Case(draw(incoming(fields)), cluster, None if args is None else draw(args))


def spread_to_100(scores: dict[str, int], *, reverse: bool = False) -> dict[str, int]:
    """kube-scheduler's DefaultNormalizeScore, node by node."""
    largest = max([0, *scores.values()])
    if largest == 0:
        return dict.fromkeys(scores, 100) if reverse else scores
    return {name: 100 - 100 * score // largest if reverse else 100 * score // largest for name, score in scores.items()}
