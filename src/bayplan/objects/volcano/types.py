"""Volcano's kinds, with the fields that a session depends on: pod groups, queues, hypernodes, NUMA topologies.

The groups are scheduling.volcano.sh, topology.volcano.sh and nodeinfo.volcano.sh. A field is None if it is missing and
that differs from an empty value: every queue admits a pod group without `minResources`.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from bayplan.objects.meta import Api, Condition, KubeObject, LabelSelector, ResourceList

DEFAULT_QUEUE = "default"
ROOT_QUEUE = "root"
HARD, SOFT = "hard", "soft"

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


class NetworkTopology(Api, frozen=True):
    """How close together the pods must be. The tier is a number or a name, not both."""

    mode: str = ""
    highest_tier_allowed: int | None = None
    highest_tier_name: str = ""


class SubGroupPolicy(Api, frozen=True):
    """The sub-groups of a pod group: pods with equal labels under `match_label_keys` are in one sub-group."""

    name: str = ""
    label_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    network_topology: NetworkTopology | None = None
    sub_group_size: int | None = None
    min_sub_groups: int | None = None


class PodGroupSpec(Api, frozen=True):
    min_member: int = 0
    min_task_member: dict[str, int] = {}
    queue: str = ""
    priority_class_name: str = ""
    min_resources: ResourceList | None = None
    network_topology: NetworkTopology | None = None
    sub_group_policy: tuple[SubGroupPolicy, ...] = ()


class PodGroupCondition(Api, frozen=True):
    type: str = ""
    status: str = ""
    transition_id: str = msgspec.field(default="", name="transitionID")
    last_transition_time: datetime | None = None
    reason: str = ""
    message: str = ""


class PodGroupStatus(Api, frozen=True):
    phase: str = ""
    conditions: tuple[PodGroupCondition, ...] = ()
    running: int = 0
    succeeded: int = 0
    failed: int = 0


class PodGroup(KubeObject, frozen=True):
    """scheduling.volcano.sh PodGroup: the pods of one job, of which at least `min_member` start together or none."""

    spec: PodGroupSpec = PodGroupSpec()
    status: PodGroupStatus = PodGroupStatus()


class Guarantee(Api, frozen=True):
    resource: ResourceList = {}


class NodeGroupAffinity(Api, frozen=True):
    """Names of node groups, for affinity or anti-affinity."""

    required: tuple[str, ...] = msgspec.field(default=(), name=_REQUIRED)
    preferred: tuple[str, ...] = msgspec.field(default=(), name=_PREFERRED)


class QueueAffinity(Api, frozen=True):
    node_group_affinity: NodeGroupAffinity | None = None
    node_group_anti_affinity: NodeGroupAffinity | None = None


class QueueSpec(Api, frozen=True):
    weight: int = 0
    capability: ResourceList = {}
    deserved: ResourceList = {}
    guarantee: Guarantee = Guarantee()
    reclaimable: bool | None = None
    parent: str = ""
    priority: int = 0
    affinity: QueueAffinity | None = None
    type: str = ""
    dequeue_strategy: str = ""


class Reservation(Api, frozen=True):
    nodes: tuple[str, ...] = ()
    resource: ResourceList = {}


class QueueStatus(Api, frozen=True):
    state: str = ""
    unknown: int = 0
    pending: int = 0
    running: int = 0
    inqueue: int = 0
    completed: int = 0
    reservation: Reservation = Reservation()
    allocated: ResourceList = {}


class Queue(KubeObject, frozen=True):
    """scheduling.volcano.sh Queue: a share of the cluster. A child queue names its parent."""

    spec: QueueSpec = QueueSpec()
    status: QueueStatus = QueueStatus()


class ExactMatch(Api, frozen=True):
    name: str = ""


class RegexMatch(Api, frozen=True):
    pattern: str = ""


class MemberSelector(Api, frozen=True):
    """Exactly one of the fields is set."""

    exact_match: ExactMatch | None = None
    regex_match: RegexMatch | None = None
    label_match: LabelSelector | None = None


class MemberSpec(Api, frozen=True):
    type: str = ""
    selector: MemberSelector = MemberSelector()


class HyperNodeSpec(Api, frozen=True):
    tier: int = 0
    tier_name: str = ""
    members: tuple[MemberSpec, ...] = ()


class HyperNodeStatus(Api, frozen=True):
    conditions: tuple[Condition, ...] = ()
    node_count: int = 0


class HyperNode(KubeObject, frozen=True):
    """topology.volcano.sh HyperNode: nodes, or hypernodes of a lower tier, that are close to each other."""

    spec: HyperNodeSpec = HyperNodeSpec()
    status: HyperNodeStatus = HyperNodeStatus()


class NumaResource(Api, frozen=True):
    """A resource of a node: how many units, and which of them are free, as a list such as `0-3,8`."""

    allocatable: str = ""
    capacity: int = 0


class CpuLocation(Api, frozen=True):
    numa: int = 0
    socket: int = 0
    core: int = 0


class NumatopologySpec(Api, frozen=True):
    policies: dict[str, str] = {}
    res_reserved: dict[str, str] = {}
    numares: dict[str, NumaResource] = {}
    cpu_detail: dict[str, CpuLocation] = {}


class Numatopology(KubeObject, frozen=True):
    """nodeinfo.volcano.sh Numatopology: the NUMA placement of the CPUs of the node with the same name."""

    spec: NumatopologySpec = NumatopologySpec()


class NodeShardSpec(Api, frozen=True):
    nodes_desired: tuple[str, ...] = ()


class NodeShardStatus(Api, frozen=True):
    nodes_in_use: tuple[str, ...] = ()
    nodes_to_add: tuple[str, ...] = ()
    nodes_to_remove: tuple[str, ...] = ()


class NodeShard(KubeObject, frozen=True):
    """shard.volcano.sh NodeShard: the nodes of one of several schedulers, and those that it uses now."""

    spec: NodeShardSpec = NodeShardSpec()
    status: NodeShardStatus = NodeShardStatus()
