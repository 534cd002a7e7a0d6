"""Which annotations say something that nobody can read, and what counts instead?

Volcano takes such a value for missing, or for false, without a word, and people look for the reason elsewhere. Here
each is a sentence that names the object, the key and the value; sessions tell it as long as it stands there. Objects
are read when they come or change. Cost: a set operation a pod that has none of these keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from bayplan.batch.config.arguments import TRUTHS
from bayplan.batch.devices.numa import BEST_EFFORT, RESTRICTED, SINGLE_NUMA_NODE
from bayplan.batch.devices.shared_gpus import GPU_INDEX, UNHEALTHY
from bayplan.batch.devices.vgpus import REGISTER, card_fields
from bayplan.batch.model.jobs import (
    JDB_MAX_UNAVAILABLE,
    JDB_MIN_AVAILABLE,
    OLD_SLA_WAITING_TIME,
    SLA_WAITING_TIME,
)
from bayplan.batch.model.node_accounts import OVERSUBSCRIPTION_CPU, OVERSUBSCRIPTION_MEMORY
from bayplan.batch.model.tasks import (
    PREEMPTABLE,
    REVOCABLE_ZONE,
    TASK_PRIORITY,
    parse_int,
)
from bayplan.codec.go_duration import DurationError, parse_duration
from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.volcano.types import PodGroup

if TYPE_CHECKING:
    from bayplan.batch.cluster_state import Ledger

MOST_TOLD = 20
"""So many sentences a session; whoever has more has one cause for them."""

_COOLDOWN_TIME = "volcano.sh/cooldown-time"
_NUMA_POLICY = "volcano.sh/numa-topology-policy"
_STRATEGY_FIT = "resource-strategy-fit"
_OWN_TYPE = "volcano.sh/resource-strategy-scoring-type"
_OWN_WEIGHTS = "volcano.sh/resource-strategy-weight"
_SCORING = ("MostAllocated", "LeastAllocated")
_NUMA_POLICIES = ("", "none", BEST_EFFORT, RESTRICTED, SINGLE_NUMA_NODE)


@dataclass(frozen=True, slots=True)
class Reading:
    """How one annotation is read: by which plugin ("": by all), what it may say, and what counts if it does not."""

    key: str
    plugin: str
    reads: Callable[[str], bool]
    wanted: str
    instead: str


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


def _is_share(text: str) -> bool:
    return parse_int(text, 32) is not None or (text.endswith("%") and parse_int(text[:-1]) is not None)


def _is_list_of_numbers(text: str) -> bool:
    return not text or all(parse_int(part) is not None for part in text.split(","))


def _are_weights(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text, type=dict[str, int | None] | None), dict | None)
    except msgspec.MsgspecError:
        return False


def _are_cards(text: str) -> bool:
    return not text or bool(card_fields(text))


_PREEMPTABLE = Reading(PREEMPTABLE, "", TRUTHS.__contains__, "true or false", "it counts as false")
_REVOCABLE = Reading(REVOCABLE_ZONE, "", ("", "*").__contains__, "*, which is all it can be", "it counts as missing")

_OF_PODS = (
    Reading(
        TASK_PRIORITY, "", lambda text: parse_int(text, 32) is not None, "a whole number", "the pod's priority counts"
    ),
    _PREEMPTABLE,
    _REVOCABLE,
    Reading(_COOLDOWN_TIME, "cdp", _is_duration, "a duration such as 10m", "the pod is not protected"),
    Reading(_NUMA_POLICY, "numa-aware", _NUMA_POLICIES.__contains__, "a policy of kubelets", "no node has it"),
    Reading(_OWN_WEIGHTS, _STRATEGY_FIT, _are_weights, 'weights such as {"cpu": 1}', "no resource counts"),
    Reading(_OWN_TYPE, _STRATEGY_FIT, _SCORING.__contains__, " or ".join(_SCORING), "every node scores 0 for it"),
    Reading(GPU_INDEX, "deviceshare", _is_list_of_numbers, "a list of numbers", "the pod is counted on no card"),
)
_OF_GROUPS = (
    _PREEMPTABLE,
    _REVOCABLE,
    Reading(SLA_WAITING_TIME, "sla", _is_duration, "a duration such as 1h", "it counts as missing"),
    Reading(OLD_SLA_WAITING_TIME, "sla", _is_duration, "a duration such as 1h", "it counts as missing"),
    Reading(JDB_MIN_AVAILABLE, "tdm", _is_share, "a number of pods or a percentage", "it counts as 0"),
    Reading(JDB_MAX_UNAVAILABLE, "tdm", _is_share, "a number of pods or a percentage", "it counts as 0"),
)
_OF_NODES = (
    Reading(OVERSUBSCRIPTION_CPU, "", _is_number, "a number of thousandths of a CPU", "nothing is lent"),
    Reading(OVERSUBSCRIPTION_MEMORY, "", _is_number, "a number of bytes", "nothing is lent"),
    Reading(REGISTER, "deviceshare", _are_cards, "a list of cards", "no card of the node is known"),
    Reading(UNHEALTHY, "deviceshare", _is_list_of_numbers, "a list of numbers", "other parts are passed over"),
)
_KEYS_OF_PODS = frozenset(each.key for each in _OF_PODS)
_KEYS_OF_NODES = frozenset(each.key for each in _OF_NODES)

Sentences = tuple[tuple[str, str], ...]
"""Each with the plugin that it matters to."""


class Misreadings:
    """What cannot be read at the moment, by object."""

    def __init__(self) -> None:
        self._pods: dict[str, Sentences] = {}
        self._groups: dict[str, tuple[PodGroup, Sentences]] = {}
        self._of_groups: list[Sentences] = []  # of those alone that have some
        self._nodes: dict[str, Sentences] = {}
        self._revision = self._renewed = -1

    def observe(self, pod: Pod) -> None:
        meta = pod.metadata
        self._pods.pop(pod.uid, None)
        if _KEYS_OF_PODS.isdisjoint(meta.annotations) and _KEYS_OF_PODS.isdisjoint(meta.labels):
            return
        found = tuple(_misread("pod", pod.key, pod, _OF_PODS))
        if found:
            self._pods[pod.uid] = found

    def withdraw(self, pod: Pod) -> None:
        self._pods.pop(pod.uid, None)

    def told(self, ledger: Ledger, plugins: Collection[str]) -> list[str]:
        """The sentences that matter to a session with these plugins."""
        self._read_groups(ledger)
        self._read_nodes(ledger)
        everything = (*self._nodes.values(), *self._of_groups, *self._pods.values())
        found = [text for each in everything for plugin, text in each if not plugin or plugin in plugins]
        more = len(found) - MOST_TOLD
        return found if more <= 0 else [*found[:MOST_TOLD], f"{more} more annotation(s) cannot be read"]

    def _read_groups(self, ledger: Ledger) -> None:
        catalog = ledger.cache.catalog
        if self._revision == (revision := catalog.revision(PodGroup)):
            return
        self._revision = revision
        before, self._groups = self._groups, {}
        for key, group in catalog.table(PodGroup).items():
            known = before.get(key)
            if known is None or known[0] is not group:
                known = (group, tuple(_misread("pod group", key, group, _OF_GROUPS)))
            self._groups[key] = known
        self._of_groups = [found for _, found in self._groups.values() if found]

    def _read_nodes(self, ledger: Ledger) -> None:
        snapshot = ledger.snapshot
        columns = snapshot.nodes
        rows = snapshot.renewed.since(self._renewed) if self._renewed >= 0 else None
        self._renewed = snapshot.renewed.end
        for row in range(columns.count) if rows is None else rows:
            if row >= columns.count:
                continue
            node = columns.nodes[row]
            self._nodes.pop(node.name, None)
            if not _KEYS_OF_NODES.isdisjoint(node.metadata.annotations):
                self._nodes[node.name] = tuple(_misread("node", node.name, node, _OF_NODES))
        for name in [name for name in self._nodes if name not in columns.index]:
            del self._nodes[name]


def _misread(kind: str, name: str, item: KubeObject, readings: tuple[Reading, ...]) -> Iterator[tuple[str, str]]:
    meta = item.metadata
    for each in readings:
        text = meta.annotations.get(each.key, meta.labels.get(each.key))
        if text is not None and not each.reads(text):
            yield each.plugin, f'{kind} {name}: {each.key} is "{text}", not {each.wanted}; {each.instead}'
