"""Hypothesis strategies for pods, nodes and clusters, and property checks for plugins.

Pools are small, so that values collide: two pods request the same port, a taint meets its toleration. Every keyword of
the builders can be a strategy or a value: `nodes(labels=label_sets({"rack": ["1", "2"]}), cpu=4)`. A plugin is tested
only with the fields that vary, so pass strategies for the fields that it reads.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from msgspec import to_builtins
from msgspec.structs import replace

from bayplan.errors import BayplanError, UsageError
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.extension_points import FILTER, SCORE
from bayplan.framework.api.plugin import Rejection
from bayplan.framework.api.plugin_traits import PluginTraits, row_local
from bayplan.objects.core import Node, Pod
from bayplan.objects.meta import KubeObject
from bayplan.snapshot import IntVector, NodeTable
from bayplan.testing.builders import HOSTNAME, make_node, make_pod
from bayplan.testing.form_checks import form_disagreements, twin_disagreements
from bayplan.testing.harness import Harness


class MissingExtraError(BayplanError, ImportError):
    """An optional package is missing that this part of the test kit needs."""


try:
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st
except ImportError as fault:
    raise MissingExtraError(
        "bayplan.testing.strategies needs hypothesis, which is not installed: pip install bayplan[testing]"
    ) from fault

K = TypeVar("K", bound=KubeObject)


@dataclass(frozen=True, slots=True)
class RandomCluster:
    """Nodes n0, n1, …, pods p0, p1, … that run on them, and other objects."""

    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...] = ()
    objects: tuple[KubeObject, ...] = ()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002
        """Representation of a failing example: only fields that are set."""
        printer.text(f"Cluster(nodes={to_builtins(self.nodes)}, pods={to_builtins(self.pods)})")


_PHASES = (Phase.explicit, Phase.generate, Phase.shrink)
"""Without `explain`, which traces every line of the scheduler without a useful result."""

_LABELS = {"app": ("web", "db"), "team": ("red", "blue"), "disk": ("ssd", "hdd")}
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def label_sets(choices: Mapping[str, Sequence[str]]) -> st.SearchStrategy[dict[str, str]]:
    """Labels in which each key is missing or has one of its values."""
    return st.fixed_dictionaries({}, optional={key: st.sampled_from(values) for key, values in choices.items()})


def pods(**fields: Any) -> st.SearchStrategy[Pod]:
    """Pending pods; `fields` are keywords of `make_pod`, each a strategy or a value."""
    taints = st.builds("{}:{}".format, st.sampled_from(("gpu", "old")), st.sampled_from(("", *_EFFECTS)))
    defaults = {
        "labels": label_sets(_LABELS),
        "cpu": st.sampled_from((None, "0", "250m", "1", "3")),
        "memory": st.sampled_from((None, "0", "256Mi", "2Gi")),
        "priority": st.sampled_from((None, 0, 10)),
        "host_ports": st.lists(st.sampled_from((80, 443)), max_size=1),
        "node_selector": st.one_of(st.just({}), label_sets({"disk": _LABELS["disk"]})),
        "tolerations": st.lists(taints, max_size=2),
    }
    return _resolve_fields(defaults, fields).map(lambda drawn: make_pod(**drawn))


def nodes(**fields: Any) -> st.SearchStrategy[Node]:
    """Nodes; `fields` are keywords of `make_node`, each a strategy or a value."""
    taints = st.builds("{}:{}".format, st.sampled_from(("gpu", "old")), st.sampled_from(_EFFECTS))
    defaults = {
        "labels": label_sets(_LABELS),
        "zone": st.sampled_from(("", "z1", "z2")),
        "cpu": st.sampled_from(("0", "500m", "2", "4")),
        "memory": st.sampled_from(("0", "1Gi", "8Gi")),
        "capacity": st.fixed_dictionaries({"pods": st.sampled_from(("0", "2", "110"))}),
        "taints": st.lists(taints, max_size=2, unique=True),
        "unschedulable": st.booleans(),
    }
    return _resolve_fields(defaults, fields).map(lambda drawn: make_node(**drawn))


@st.composite
def clusters(
    draw: st.DrawFn,
    nodes: st.SearchStrategy[Node] | None = None,
    pods: st.SearchStrategy[Pod] | None = None,
    *,
    max_nodes: int = 4,
    max_pods: int = 4,
) -> RandomCluster:
    """Clusters of at least one node, and pods that run on the nodes."""
    drawn = draw(st.lists(_NODES if nodes is None else nodes, min_size=1, max_size=max_nodes))
    named = tuple(_rename_object(node, f"n{number}") for number, node in enumerate(drawn))
    node_names = st.sampled_from([node.name for node in named])
    running = draw(st.lists(st.tuples(_PODS if pods is None else pods, node_names), max_size=max_pods))
    placed = tuple(
        _rename_object(pod, f"p{number}").bound_to(node_name) for number, (pod, node_name) in enumerate(running)
    )
    return RandomCluster(named, placed)


def check_forms_agree(
    plugin: type[Any],
    *,
    twin: type[Any] | None = None,
    pods: st.SearchStrategy[Pod] | None = None,
    clusters: st.SearchStrategy[RandomCluster] | None = None,
    args: Any = None,
    max_examples: int = 50,
) -> None:
    """Fail unless the plugin gives the same results for a node in every form of call, on random clusters.

    Both forms of Filter or Score agree; narrowed tables and forks of one row agree with the whole table; nothing raises
    and no score is out of range. `twin`: a reference plugin, for example a simple slow one, whose statuses and final
    scores must be equal. `args` are the arguments of both.
    """
    if not FILTER.extended_by(plugin) and not SCORE.extended_by(plugin):
        raise UsageError(f"{plugin.__name__} neither filters nor scores: it has no forms to compare")
    some_pods = _PODS if pods is None else pods
    some_clusters = _CLUSTERS if clusters is None else clusters

    @settings(max_examples=max_examples, deadline=None, phases=_PHASES, suppress_health_check=[HealthCheck.too_slow])
    @given(data=st.data(), pod=some_pods, cluster=some_clusters)
    def agree(data: st.DataObject, pod: Pod, cluster: RandomCluster) -> None:
        order = data.draw(st.permutations(range(len(cluster.nodes))), label="order of rows")
        rows = order[: data.draw(st.integers(1, len(order)), label="rows")]
        found = list(_find_disagreements(plugin, twin, pod, cluster, args, rows))
        assert not found, "\n".join(found)

    agree()


def check_sharing_agrees(
    plugin: type[Any],
    *,
    pods: st.SearchStrategy[Pod] | None = None,
    clusters: st.SearchStrategy[RandomCluster] | None = None,
    args: Any = None,
    max_examples: int = 50,
) -> None:
    """Fail unless pods that share results by the plugin's `signature` and `depends_on` get the results of a full run.

    Series of pods are placed on two clusters, one of which evaluates every pod in full.
    """
    kinds = st.lists(_PODS if pods is None else pods, min_size=1, max_size=3)
    some_clusters = _CLUSTERS if clusters is None else clusters

    @settings(max_examples=max_examples, deadline=None, phases=_PHASES, suppress_health_check=[HealthCheck.too_slow])
    @given(data=st.data(), kinds=kinds, cluster=some_clusters)
    def agree(data: st.DataObject, kinds: list[Pod], cluster: RandomCluster) -> None:
        series = data.draw(st.lists(st.sampled_from(kinds), min_size=3, max_size=8), label="series")
        extra_plugins = (_SharingTrigger,)
        with (
            _harness_for(plugin, cluster, args, extra_plugins) as sharing,
            _harness_for(plugin, cluster, args, extra_plugins, share=False) as reference,
        ):
            for number, kind in enumerate(series):
                pod = _rename_object(kind, f"new{number}")
                shared, alone = _describe_example(sharing, pod), _describe_example(reference, pod)
                assert shared == alone, f"{pod.name} gets {shared} with shared results, but {alone} without"
            classes = sharing.engine.equivalence_classes(sharing.profile().scheduler_name)
            full_evaluations = classes.full_evaluations if classes is not None else {}
            faults = {name: times for name, times in full_evaluations.items() if name != "NotShareable"}
            assert not faults, f"results could not be shared: {faults}; see the log for the reasons"

    agree()


_CROWD_SIZE = 2


class _SharingTrigger:
    """Makes a profile evaluate all nodes and share results. It scores all nodes equally and rejects crowded nodes, so
    that the number of candidates decreases from pod to pod."""

    name = "Company"
    traits = PluginTraits(depends_on=row_local)

    def signature(self, pod: Pod) -> Hashable:  # noqa: ARG002
        return ()

    def filter_nodes(self, cycle: Cycle, nodes: NodeTable) -> Iterator[Rejection]:  # noqa: ARG002
        yield Rejection(nodes.pod_count >= _CROWD_SIZE, "node(s) were crowded")

    def score_nodes(self, cycle: Cycle, nodes: NodeTable) -> IntVector:  # noqa: ARG002
        return np.zeros(len(nodes), dtype=np.int64)


def _describe_example(cluster: Harness, pod: Pod) -> tuple[str, str]:
    return cluster.place(pod), cluster.why(pod)


def _find_disagreements(
    plugin: type[Any], twin: type[Any] | None, pod: Pod, cluster: RandomCluster, args: Any, rows: Sequence[int]
) -> list[str]:
    with _harness_for(plugin, cluster, args) as harness:
        built = harness.profile().instances[plugin.name]
        found = list(form_disagreements(built, lambda: harness.engine.begin(pod), rows))
        if twin is not None:
            with _harness_for(twin, cluster, args) as twin_harness:
                reference = twin_harness.profile().instances[twin.name]
                found += twin_disagreements(
                    built, lambda: harness.engine.begin(pod), reference, lambda: twin_harness.engine.begin(pod)
                )
    return found


def _harness_for(
    plugin: type[Any], cluster: RandomCluster, args: Any, extra_plugins: Sequence[type[Any]] = (), *, share: bool = True
) -> Harness:
    return Harness(
        [plugin, *extra_plugins],
        nodes=cluster.nodes,
        pods=cluster.pods,
        objects=cluster.objects,
        args={} if args is None else {plugin.name: args},
        only=True,
        share=share,
    )


def _resolve_fields(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    fields = {**defaults, **given}
    return st.fixed_dictionaries(
        {name: value if isinstance(value, st.SearchStrategy) else st.just(value) for name, value in fields.items()}
    )


def _rename_object(item: K, name: str) -> K:
    """The object with another name, and the uid and host name label that follow from it."""
    meta = item.metadata
    labels = {**meta.labels, HOSTNAME: name} if meta.labels.get(HOSTNAME) == meta.name else meta.labels
    uid = "-".join(filter(None, ("uid", meta.namespace, name)))
    return replace(item, metadata=replace(meta, name=name, uid=uid, labels=labels))


_PODS = pods()
_NODES = nodes()
_CLUSTERS = clusters()
