"""Warnings about annotations with invalid values.

Volcano silently treats such a value as missing or as false. Bayplan reports each with the object, the key, the value
and the consequence, in every session until it is corrected. Objects are checked when they are added or change. Cost: a
set operation for a pod without these keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from bayplan.batch.config.arguments import TRUE_TEXTS
from bayplan.batch.devices.numa import BEST_EFFORT, RESTRICTED, SINGLE_NUMA_NODE
from bayplan.batch.devices.shared_gpus import GPU_INDEX, UNHEALTHY
from bayplan.batch.devices.vgpus import REGISTER, parse_card_annotation
from bayplan.batch.model.jobs import JDB_MAX_UNAVAILABLE, JDB_MIN_AVAILABLE, OLD_SLA_WAITING_TIME, SLA_WAITING_TIME
from bayplan.batch.model.node_accounts import OVERSUBSCRIPTION_CPU, OVERSUBSCRIPTION_MEMORY
from bayplan.batch.model.tasks import PREEMPTABLE, REVOCABLE_ZONE, TASK_PRIORITY, parse_int
from bayplan.codec.go_duration import DurationError, parse_duration
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano.types import PodGroup

if TYPE_CHECKING:
    from bayplan.batch.cluster_state import BatchClusterState

MAX_WARNINGS_PER_SESSION = 20
"""More than this usually has one cause."""

_COOLDOWN_TIME = "volcano.sh/cooldown-time"
_NUMA_POLICY = "volcano.sh/numa-topology-policy"
_STRATEGY_FIT = "resource-strategy-fit"
_POD_SCORING_TYPE = "volcano.sh/resource-strategy-scoring-type"
_POD_RESOURCE_WEIGHTS = "volcano.sh/resource-strategy-weight"
_SCORING = ("MostAllocated", "LeastAllocated")
_NUMA_POLICIES = ("", "none", BEST_EFFORT, RESTRICTED, SINGLE_NUMA_NODE)


@dataclass(frozen=True, slots=True)
class AnnotationRule:
    """The format of one annotation: the plugin that reads it ("": all), the check, the expected format and the
    consequence of a bad value."""

    key: str
    plugin: str
    is_valid: Callable[[str], bool]
    expected: str
    consequence: str


def _is_duration(text: str) -> bool:
    try:
        return parse_duration(text).seconds > 0
    except DurationError:
        return False


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_number_or_percentage(text: str) -> bool:
    return parse_int(text, 32) is not None or (text.endswith("%") and parse_int(text[:-1]) is not None)


def _is_number_list(text: str) -> bool:
    return not text or all(parse_int(part) is not None for part in text.split(","))


def _is_weight_map(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text, type=dict[str, int | None] | None), dict | None)
    except msgspec.MsgspecError:
        return False


def _is_card_list(text: str) -> bool:
    return not text or bool(parse_card_annotation(text))


_PREEMPTABLE = AnnotationRule(PREEMPTABLE, "", TRUE_TEXTS.__contains__, "true or false", "it counts as false")
_REVOCABLE = AnnotationRule(
    REVOCABLE_ZONE, "", ("", "*").__contains__, "*, the only valid value", "it counts as missing"
)

_POD_RULES = (
    AnnotationRule(
        TASK_PRIORITY, "", lambda text: parse_int(text, 32) is not None, "a whole number", "the pod's priority counts"
    ),
    _PREEMPTABLE,
    _REVOCABLE,
    AnnotationRule(_COOLDOWN_TIME, "cdp", _is_duration, "a duration such as 10m", "the pod is not protected"),
    AnnotationRule(
        _NUMA_POLICY,
        "numa-aware",
        _NUMA_POLICIES.__contains__,
        "a policy of the kubelet's topology manager",
        "no node has it",
    ),
    AnnotationRule(
        _POD_RESOURCE_WEIGHTS, _STRATEGY_FIT, _is_weight_map, 'weights such as {"cpu": 1}', "no resource counts"
    ),
    AnnotationRule(
        _POD_SCORING_TYPE, _STRATEGY_FIT, _SCORING.__contains__, " or ".join(_SCORING), "every node scores 0 for it"
    ),
    AnnotationRule(GPU_INDEX, "deviceshare", _is_number_list, "a list of numbers", "the pod is counted on no card"),
)
_POD_GROUP_RULES = (
    _PREEMPTABLE,
    _REVOCABLE,
    AnnotationRule(SLA_WAITING_TIME, "sla", _is_duration, "a duration such as 1h", "it counts as missing"),
    AnnotationRule(OLD_SLA_WAITING_TIME, "sla", _is_duration, "a duration such as 1h", "it counts as missing"),
    AnnotationRule(
        JDB_MIN_AVAILABLE, "tdm", _is_number_or_percentage, "a number of pods or a percentage", "it counts as 0"
    ),
    AnnotationRule(
        JDB_MAX_UNAVAILABLE, "tdm", _is_number_or_percentage, "a number of pods or a percentage", "it counts as 0"
    ),
)
_NODE_RULES = (
    AnnotationRule(
        OVERSUBSCRIPTION_CPU, "", _is_number, "a number of thousandths of a CPU", "no oversubscription is added"
    ),
    AnnotationRule(OVERSUBSCRIPTION_MEMORY, "", _is_number, "a number of bytes", "no oversubscription is added"),
    AnnotationRule(REGISTER, "deviceshare", _is_card_list, "a list of cards", "no card of the node is known"),
    AnnotationRule(UNHEALTHY, "deviceshare", _is_number_list, "a list of numbers", "invalid parts are ignored"),
)
_POD_KEYS = frozenset(each.key for each in _POD_RULES)
_NODE_KEYS = frozenset(each.key for each in _NODE_RULES)

Warnings = tuple[tuple[str, str], ...]
"""Plugin that reads the annotation, and the message."""


class BadAnnotations:
    """The warnings about invalid annotations, by object."""

    def __init__(self) -> None:
        self._pods: dict[str, Warnings] = {}
        self._groups: dict[str, tuple[PodGroup, Warnings]] = {}
        self._group_warnings: list[Warnings] = []  # of the groups that have warnings
        self._nodes: dict[str, Warnings] = {}
        self._revision = self._renewed = -1

    def update_pod(self, pod: Pod) -> None:
        meta = pod.metadata
        self._pods.pop(pod.uid, None)
        if _POD_KEYS.isdisjoint(meta.annotations) and _POD_KEYS.isdisjoint(meta.labels):
            return
        found = tuple(_check_annotations("pod", pod.key, pod, _POD_RULES))
        if found:
            self._pods[pod.uid] = found

    def remove_pod(self, pod: Pod) -> None:
        self._pods.pop(pod.uid, None)

    def warnings_for(self, cluster_state: BatchClusterState, plugins: Collection[str]) -> list[str]:
        self._read_groups(cluster_state)
        self._read_nodes(cluster_state)
        everything = (*self._nodes.values(), *self._group_warnings, *self._pods.values())
        found = [text for each in everything for plugin, text in each if not plugin or plugin in plugins]
        more = len(found) - MAX_WARNINGS_PER_SESSION
        return found if more <= 0 else [*found[:MAX_WARNINGS_PER_SESSION], f"{more} more annotation(s) cannot be read"]

    def _read_groups(self, cluster_state: BatchClusterState) -> None:
        catalog = cluster_state.cache.catalog
        if self._revision == (revision := catalog.revision(PodGroup)):
            return
        self._revision = revision
        before, self._groups = self._groups, {}
        for key, group in catalog.table(PodGroup).items():
            known = before.get(key)
            if known is None or known[0] is not group:
                known = (group, tuple(_check_annotations("pod group", key, group, _POD_GROUP_RULES)))
            self._groups[key] = known
        self._group_warnings = [found for _, found in self._groups.values() if found]

    def _read_nodes(self, cluster_state: BatchClusterState) -> None:
        snapshot = cluster_state.snapshot
        columns = snapshot.nodes
        rows = snapshot.renewed.since(self._renewed) if self._renewed >= 0 else None
        self._renewed = snapshot.renewed.end
        for row in range(columns.count) if rows is None else rows:
            if row >= columns.count:
                continue
            node = columns.nodes[row]
            self._nodes.pop(node.name, None)
            if not _NODE_KEYS.isdisjoint(node.metadata.annotations):
                self._nodes[node.name] = tuple(_check_annotations("node", node.name, node, _NODE_RULES))
        for name in [name for name in self._nodes if name not in columns.index]:
            del self._nodes[name]


def _check_annotations(
    kind: str, name: str, item: KubeObject, rules: tuple[AnnotationRule, ...]
) -> Iterator[tuple[str, str]]:
    meta = item.metadata
    for each in rules:
        text = meta.annotations.get(each.key, meta.labels.get(each.key))
        if text is not None and not each.is_valid(text):
            yield each.plugin, f'{kind} {name}: {each.key} is "{text}", not {each.expected}; {each.consequence}'
