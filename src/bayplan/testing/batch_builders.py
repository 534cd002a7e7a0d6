"""Builders of pod groups, queues, hypernodes and tiers for tests of the batch engine; every field has a default.

`make_gang("train", 3, cpu=2)` is a group of three pending pods that start together or not at all. Pods and nodes come
from `make_pod` and `make_node`, as in tests of the pod engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from bayplan.batch.cluster_state import DEFAULT_SCHEDULER
from bayplan.batch.config.scheduler_conf import FLAGS, PluginOption
from bayplan.batch.model.tasks import GROUP_NAME, TASK_SPEC
from bayplan.codec.quantity import QuantityText
from bayplan.errors import UsageError
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject, LabelSelector, ObjectMeta, ResourceList
from bayplan.objects.volcano.types import (
    DEFAULT_QUEUE,
    HARD,
    ExactMatch,
    Guarantee,
    HyperNode,
    HyperNodeSpec,
    MemberSelector,
    MemberSpec,
    NetworkTopology,
    PodGroup,
    PodGroupCondition,
    PodGroupSpec,
    PodGroupStatus,
    Queue,
    QueueSpec,
    QueueStatus,
    RegexMatch,
)
from bayplan.objects.workloads import PriorityClass
from bayplan.testing.builders import CREATED, Labels, as_list, check_field_types, make_pod


def make_pod_group(
    name: str = "group",
    *,
    namespace: str = "default",
    queue: str = DEFAULT_QUEUE,
    min_member: int = 1,
    min_resources: ResourceList | None = None,
    topology: NetworkTopology | int | None = None,
    phase: str = "Pending",
    conditions: Sequence[PodGroupCondition] = (),
    labels: Labels | None = None,
    annotations: Labels | None = None,
    created: datetime = CREATED,
    **spec: Any,
) -> PodGroup:
    """Make a pending pod group. `topology` may be the highest tier that its pods may span.

    `spec` are fields of `PodGroupSpec`: `priority_class_name`, `min_task_member`, `sub_group_policy`, …
    """
    if isinstance(topology, int):
        topology = NetworkTopology(mode=HARD, highest_tier_allowed=topology)
    return check_field_types(
        PodGroup(
            metadata=ObjectMeta(
                name=name,
                namespace=namespace,
                uid=f"uid-{namespace}-{name}",
                labels=dict(labels or {}),
                annotations=dict(annotations or {}),
                creation_timestamp=created,
            ),
            spec=PodGroupSpec(
                queue=queue, min_member=min_member, min_resources=min_resources, network_topology=topology, **spec
            ),
            status=PodGroupStatus(phase=phase, conditions=tuple(conditions)),
        )
    )


@dataclass(frozen=True, slots=True)
class Gang:
    """A pod group with its pods, and the priority class that they need, if any."""

    group: PodGroup
    pods: tuple[Pod, ...]
    priority_class: PriorityClass | None = None

    @property
    def objects(self) -> tuple[KubeObject, ...]:
        return (self.group, *self.pods, *((self.priority_class,) if self.priority_class is not None else ()))


def make_gang(
    name: str = "gang",
    size: int = 1,
    *,
    min_member: int | None = None,
    namespace: str = "default",
    cpu: QuantityText | None = None,
    memory: QuantityText | None = None,
    requests: ResourceList | None = None,
    on: str | Sequence[str] = (),
    priority: int | None = None,
    role: str = "",
    labels: Labels | None = None,
    annotations: Labels | None = None,
    pod: Mapping[str, Any] | None = None,
    **group: Any,
) -> Gang:
    """Make a group of `size` pods, `name-0` and following, all of which (or `min_member` of them) must start.

    They run `on` one node, or the first ones run on the listed nodes, one each; the remaining pods are pending. With a
    `priority` the gang has a priority class. `labels` and `annotations` are those of the pods; `pod` has more keywords
    of `make_pod`, `group` those of `make_pod_group`.
    """
    if not isinstance(size, int) or size < 0:
        raise UsageError(f"size must be the number of pods of a gang; got {size!r}")
    nodes = [on] * size if isinstance(on, str) and on else as_list("on", on or (), str, "names of nodes")
    minimum = size if min_member is None else min_member
    priority_class = None if priority is None else _priority_class(priority)
    pod_annotations = {GROUP_NAME: name, **({TASK_SPEC: role} if role else {}), **(annotations or {})}
    common = {"scheduler_name": DEFAULT_SCHEDULER, "priority": priority, **(pod or {})}
    pods = tuple(
        make_pod(
            f"{name}-{number}",
            namespace=namespace,
            labels=labels,
            annotations=pod_annotations,
            cpu=cpu,
            memory=memory,
            requests=requests,
            node=nodes[number] if number < len(nodes) else "",
            **common,
        )
        for number in range(size)
    )
    group.setdefault("phase", "Running" if nodes and len(nodes) >= minimum else "Pending")
    group.setdefault("priority_class_name", "" if priority_class is None else priority_class.name)
    return Gang(make_pod_group(name, namespace=namespace, min_member=minimum, **group), pods, priority_class)


def _priority_class(value: int) -> PriorityClass:
    return PriorityClass(ObjectMeta(name=f"priority-{value}"), value=value)


def make_queue(
    name: str = "queue",
    *,
    weight: int = 1,
    parent: str = "",
    capability: ResourceList | None = None,
    deserved: ResourceList | None = None,
    guarantee: ResourceList | None = None,
    state: str = "Open",
    annotations: Labels | None = None,
    created: datetime = CREATED,
    **spec: Any,
) -> Queue:
    """Make an open queue; `spec` are fields of `QueueSpec`: `reclaimable`, `priority`, `affinity`, …"""
    return check_field_types(
        Queue(
            metadata=ObjectMeta(name=name, annotations=dict(annotations or {}), creation_timestamp=created),
            spec=QueueSpec(
                weight=weight,
                parent=parent,
                capability=capability or {},
                deserved=deserved or {},
                guarantee=Guarantee(resource=guarantee or {}),
                **spec,
            ),
            status=QueueStatus(state=state),
        )
    )


def make_hyper_node(
    name: str = "hyper-node",
    *,
    tier: int = 1,
    nodes: Iterable[str] = (),
    children: Iterable[str] = (),
    pattern: str = "",
    labels: Labels | None = None,
    tier_name: str = "",
) -> HyperNode:
    """Make a hypernode of nodes (by name, name `pattern` or labels), or of hypernodes of a lower tier (by name)."""
    nodes, children = as_list("nodes", nodes, str, "names of nodes"), as_list("children", children, str, "names")
    selectors = [
        *(("Node", MemberSelector(exact_match=ExactMatch(each))) for each in nodes),
        *(("HyperNode", MemberSelector(exact_match=ExactMatch(each))) for each in children),
    ]
    if pattern:
        selectors.append(("Node", MemberSelector(regex_match=RegexMatch(pattern))))
    if labels is not None:
        selectors.append(("Node", MemberSelector(label_match=LabelSelector(match_labels=dict(labels)))))
    members = tuple(MemberSpec(type=kind, selector=selector) for kind, selector in selectors)
    return check_field_types(
        HyperNode(metadata=ObjectMeta(name=name), spec=HyperNodeSpec(tier=tier, tier_name=tier_name, members=members))
    )


def make_option(plugin: str | type[Any], *, arguments: Mapping[str, Any] | None = None, **flags: bool) -> PluginOption:
    """Make a plugin entry of a tier, with flags as in the file; flags that are not given are off.

    `make_option("gang").with_default_flags()` is an entry as in a file without flags: they are on.
    """
    for flag, value in flags.items():
        if not isinstance(value, bool):
            raise UsageError(f"{flag} must be True or False; got {value!r}")
        if flag not in FLAGS:
            matches = get_close_matches(flag, FLAGS, n=1, cutoff=0.6)
            raise UsageError(f"{flag} is not a flag of a plugin" + (f"; did you mean {matches[0]}?" if matches else ""))
    name = plugin if isinstance(plugin, str) else getattr(plugin, "name", None)
    if not isinstance(name, str):
        raise UsageError(f"a plugin is a name, or a class with a `name`; got {plugin!r}")
    return PluginOption(name, flags, dict(arguments or {}))
