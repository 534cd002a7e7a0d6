"""Shares of GPUs for the pods of a session, and the annotations that HAMi's device plugin reads.

Pods that match an exclusive rule never share a card with another pod that matches it. Assignments of pods that are
being bound are remembered until the API server shows them, so that no session assigns the cards again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bayplan.batch.devices.card_pools import CardFit, CardPool
from bayplan.batch.devices.vgpus import (
    VGPU_CORES,
    VGPU_MEMORY,
    ContainerVgpu,
    GpuCard,
    PodGpuUsage,
    VgpuRequest,
    choose_cards,
    format_assigned_vgpus,
    parse_assigned_vgpus,
    pod_group_of,
    read_registered_cards,
    vgpu_request,
)
from bayplan.batch.model.nodes import Node
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.session import Session
from bayplan.objects.core import Pod

IDS = "volcano.sh/vgpu-ids-new"
IDS_TO_ALLOCATE = "volcano.sh/devices-to-allocate"
ASSIGNED_NODE = "volcano.sh/vgpu-node"
ASSIGNED_TIME = "volcano.sh/vgpu-time"
BIND_PHASE = "volcano.sh/bind-phase"
BIND_TIME = "volcano.sh/bind-time"
ALLOCATING, SUCCESS = "allocating", "success"
REFUSED = "hami-vgpuDeviceSharing error"
_WRITTEN_ANNOTATIONS = (ASSIGNED_NODE, IDS, IDS_TO_ALLOCATE, ASSIGNED_TIME, BIND_TIME, BIND_PHASE)

ExclusiveRule = Mapping[str, str]
"""Labels; a pod with all of them matches the rule."""

Annotations = Mapping[str, str]


class ExclusiveCards:
    """Cards of one node by exclusive rule: which cards the matching pods use."""

    def __init__(self, rules: Sequence[ExclusiveRule], cards: list[GpuCard]) -> None:
        self._rules = rules
        self._cards = cards
        self._by_rule: dict[int, set[int]] = {}
        self._rules_of: dict[str, tuple[int, ...]] = {}  # by pod
        self._uids: dict[str, str] = {}  # of counted pods

    def read(self, tasks: Iterable[Task], ids_by_uid: Mapping[str, str]) -> None:
        """Read the pods on the node when the session opens. A terminating pod keeps the cards that its annotation
        lists."""
        for task in tasks:
            self._uids[task.key] = task.uid
            rules = matching_rules(task.pod, self._rules)
            if not rules:
                continue
            self._rules_of[task.key] = rules
            if not self._reserve(task.uid, rules):
                assigned = {each.uuid for each in parse_assigned_vgpus(ids_by_uid.get(task.uid, ""))}
                self._add_cards(rules, (position for position, card in enumerate(self._cards) if card.uuid in assigned))

    def cards_closed_to(self, rules: Iterable[int]) -> set[int]:
        """The cards that a pod with these rules must not use."""
        return {position for rule in rules for position in self._by_rule.get(rule, ())}

    def add_pod(self, task: Task) -> None:
        self._uids[task.key] = task.uid
        self.reserve_for_pod(task)

    def reserve_for_pod(self, task: Task) -> None:
        """Mark the cards assigned to the pod as used by its rules."""
        rules = matching_rules(task.pod, self._rules)
        if rules:
            self._rules_of[task.key] = rules
            self._reserve(task.uid, rules)

    def remove_pod(self, task: Task) -> None:
        self.release_pod(task)
        self._uids.pop(task.key, None)

    def release_pod(self, task: Task) -> None:
        """Release the pod's rules from cards that no other pod with a rule uses."""
        known = {self._uids.get(key) for key in self._rules_of if key != task.key}
        for rule in self._rules_of.pop(task.key, ()):
            positions = self._by_rule.pop(rule, set())
            remaining = {
                position for position in positions if any(uid in known for uid in self._other_pods(position, task))
            }
            if remaining:
                self._by_rule[rule] = remaining

    def copy(self, cards: list[GpuCard]) -> ExclusiveCards:
        copied = ExclusiveCards(self._rules, cards)
        copied._by_rule = {rule: set(positions) for rule, positions in self._by_rule.items()}
        copied._rules_of, copied._uids = dict(self._rules_of), dict(self._uids)
        return copied

    def _other_pods(self, position: int, task: Task) -> Iterable[str]:
        return (uid for uid in self._cards[position].pods if uid != task.uid)

    def _reserve(self, uid: str, rules: Iterable[int]) -> bool:
        return self._add_cards(rules, [position for position, card in enumerate(self._cards) if uid in card.pods])

    def _add_cards(self, rules: Iterable[int], positions: Iterable[int]) -> bool:
        found = set(positions)
        for rule in rules if found else ():
            self._by_rule.setdefault(rule, set()).update(found)
        return bool(found)


@dataclass(slots=True)
class NodeVgpus:
    name: str
    cards: list[GpuCard]
    exclusive: ExclusiveCards | None = None
    score: float = 0.0  # score of the last request that fitted; a request that does not fit gets it, too

    def card_of(self, uuid: str) -> GpuCard | None:
        return next((card for card in self.cards if card.uuid in uuid), None)


@dataclass(slots=True)
class PendingVgpuAssignments:
    """Assignments of pods that are being bound, by uid, until the API server shows them."""

    assignments: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)  # uid -> (job, annotations)

    def annotations_of(self, task: Task) -> Annotations:
        """The pod's annotations, including assignments that are not yet visible."""
        annotations = task.pod.metadata.annotations
        if IDS not in annotations and task.uid in self.assignments and task.status is not TaskStatus.PENDING:
            return {**annotations, **self.assignments[task.uid][1]}
        return annotations

    def end_session(self, session: Session) -> None:
        """At the end of a session: save the assignments of pods that are being bound, drop those already visible."""
        for job in session.jobs.values() if session.annotations else ():
            for bound in job.with_status(TaskStatus.BINDING):
                annotations = session.annotations.get(bound.key, {})
                if IDS in annotations:
                    self.assignments[bound.uid] = (job.uid, dict(annotations))
        for uid, (name, _) in list(self.assignments.items()):
            known = session.jobs.get(name)
            task = None if known is None else known.tasks.get(uid)
            if task is None or task.status is not TaskStatus.BINDING or IDS in task.pod.metadata.annotations:
                del self.assignments[uid]


class VgpuPool(CardPool[NodeVgpus, VgpuRequest]):
    """Shares of GPUs on all nodes."""

    def __init__(
        self, session: Session, policy: str, rules: Sequence[ExclusiveRule], assignments: PendingVgpuAssignments
    ) -> None:
        super().__init__(session)
        self._policy = policy
        self._rules = rules
        self._assignments = assignments
        self._own: dict[str, Annotations] = {}  # by uid: annotations of pods changed by this session
        if rules:
            for row in range(len(session.nodes)):  # pods evicted later in the session still count at open
                self.cards(row)

    def read_request(self, task: Task) -> VgpuRequest | None:
        return vgpu_request(task.pod, matching_rules(task.pod, self._rules))

    def read_cards(self, node: Node) -> NodeVgpus | None:
        cards = read_registered_cards(node.node)
        return NodeVgpus(node.name, cards) if cards else None

    def cards(self, row: int) -> NodeVgpus | None:
        known = row in self._cards
        found = super().cards(row)
        if self._rules and found is not None and not known:
            tasks = list(self._session.nodes.at_row(row).tasks.values())
            found.exclusive = ExclusiveCards(self._rules, found.cards)
            found.exclusive.read(
                tasks, {task.uid: self._assignments.annotations_of(task).get(IDS, "") for task in tasks}
            )
        return found

    def copy_cards(self, cards: NodeVgpus) -> NodeVgpus:
        copied_cards = [card.copy() for card in cards.cards]
        exclusive = None if cards.exclusive is None else cards.exclusive.copy(copied_cards)
        return NodeVgpus(cards.name, copied_cards, exclusive, cards.score)

    # Pods on nodes

    def add_pod(self, cards: NodeVgpus, task: Task) -> None:
        group = pod_group_of(task.pod)
        for each in parse_assigned_vgpus(self._assignments.annotations_of(task).get(IDS, "")):
            card = cards.card_of(each.uuid)
            if card is None:
                continue
            if task.uid not in card.pods:
                card.add(each.memory, each.cores)
                card.pods[task.uid] = PodGpuUsage(each.memory, each.cores, group)
        if cards.exclusive is not None:
            cards.exclusive.add_pod(task)

    def remove_pod(self, cards: NodeVgpus, task: Task) -> None:
        _remove_pod_from_cards(cards, task.uid, self._assignments.annotations_of(task))
        if cards.exclusive is not None:
            cards.exclusive.remove_pod(task)

    # Fit check, assignment and release

    def check_fit(self, cards: NodeVgpus, request: VgpuRequest, *, weighed: bool = True) -> CardFit:
        closed = () if cards.exclusive is None else cards.exclusive.cards_closed_to(request.rules)
        chosen = choose_cards(cards.cards, request, self._policy if weighed else "", closed)
        if chosen is None:
            return CardFit(REFUSED, cards.score)
        chosen.undo()
        cards.score = chosen.score
        return CardFit("", chosen.score)

    def last_score(self, cards: NodeVgpus) -> float:
        return cards.score

    def assign_cards(self, cards: NodeVgpus, task: Task, request: VgpuRequest) -> dict[str, str] | None:
        annotations = self._annotations_of(task)
        if annotations.get(ASSIGNED_NODE) == cards.name and annotations.get(IDS):
            return {}
        closed = () if cards.exclusive is None else cards.exclusive.cards_closed_to(request.rules)
        chosen = choose_cards(cards.cards, request, self._policy, closed)
        if chosen is None:
            return None
        for each in (part for parts in chosen.containers for part in parts):
            _add_pod_to_cards(cards, task, each)
        if cards.exclusive is not None:
            cards.exclusive.reserve_for_pod(task)
        new_annotations = self._assignment_annotations(cards.name, format_assigned_vgpus(chosen.containers))
        self._own[task.uid] = {**annotations, **new_annotations}
        return new_annotations

    def _assignment_annotations(self, node: str, ids: str) -> dict[str, str]:
        now = str(int(self._session.clock.now().timestamp()))
        return {
            ASSIGNED_NODE: node,
            ASSIGNED_TIME: now,
            IDS: ids,
            IDS_TO_ALLOCATE: ids,
            BIND_PHASE: ALLOCATING,
            BIND_TIME: now,
        }

    def unassign_cards(self, cards: NodeVgpus, task: Task) -> Iterable[str]:
        annotations = self._annotations_of(task)
        _remove_pod_from_cards(cards, task.uid, annotations)
        if cards.exclusive is not None:
            cards.exclusive.release_pod(task)
        if annotations.get(BIND_PHASE) == SUCCESS:
            return ()
        self._own[task.uid] = {key: value for key, value in annotations.items() if key not in _WRITTEN_ANNOTATIONS}
        return _WRITTEN_ANNOTATIONS

    def _annotations_of(self, task: Task) -> Annotations:
        found = self._own.get(task.uid)
        return self._assignments.annotations_of(task) if found is None else found

    def queue_amounts(self, task: Task) -> Mapping[str, float]:
        """Memory and cores from the pod's annotation, in thousandths."""
        ids = task.pod.metadata.annotations.get(IDS, "")
        row = self._session.snapshot.nodes.index.get(task.node_name)
        cards = None if not ids or row is None or self.request(task) is None else self.cards(row)
        if cards is None:
            return {}
        parts = [each for each in parse_assigned_vgpus(ids) for card in cards.cards if card.uuid in each.uuid]
        if not parts:
            return {}
        return {
            VGPU_MEMORY: sum(each.memory for each in parts) * 1000.0,
            VGPU_CORES: sum(each.cores for each in parts) * 1000.0,
        }


def _add_pod_to_cards(cards: NodeVgpus, task: Task, part: ContainerVgpu) -> None:
    for card in cards.cards:
        if card.uuid in part.uuid:
            usage = card.pods.setdefault(task.uid, PodGpuUsage(0, 0, pod_group_of(task.pod)))
            usage.memory += part.memory
            usage.cores += part.cores


def _remove_pod_from_cards(cards: NodeVgpus, uid: str, annotations: Annotations) -> None:
    """Remove a pod from its cards. A card counts a pod once, even if several containers use it."""
    for each in parse_assigned_vgpus(annotations.get(IDS, "")):
        card = cards.card_of(each.uuid)
        if card is not None and card.pods.pop(uid, None) is not None:
            card.sub(each.memory, each.cores)


def matching_rules(pod: Pod, rules: Sequence[ExclusiveRule]) -> tuple[int, ...]:
    labels = pod.metadata.labels
    return tuple(
        number for number, rule in enumerate(rules) if all(labels.get(key) == value for key, value in rule.items())
    )
