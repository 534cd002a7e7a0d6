"""Parts of GPUs for the pods of a session, and the annotations by which HAMi's device plugin hands them out.

A pod under a rule of exclusive use never shares a card with another pod under the same rule. What was given to a pod
that is being bound is remembered until the API server shows it, so that no session gives it away again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bayplan.batch.devices.card_pools import CardPool, Fit
from bayplan.batch.devices.vgpus import (
    VGPU_CORES,
    VGPU_MEMORY,
    Card,
    Given,
    Usage,
    VgpuRequest,
    choose_cards,
    given,
    group_of,
    registered,
    request_of,
    written,
)
from bayplan.batch.model.nodes import Node
from bayplan.batch.model.statuses import TaskStatus
from bayplan.batch.model.tasks import Task
from bayplan.batch.session.session import Session
from bayplan.objects.core import Pod

IDS = "volcano.sh/vgpu-ids-new"
IDS_TO_ALLOCATE = "volcano.sh/devices-to-allocate"
ON_NODE = "volcano.sh/vgpu-node"
GIVEN_AT = "volcano.sh/vgpu-time"
BIND_PHASE = "volcano.sh/bind-phase"
BIND_TIME = "volcano.sh/bind-time"
ALLOCATING, SUCCESS = "allocating", "success"
REFUSED = "hami-vgpuDeviceSharing error"
_WRITTEN = (ON_NODE, IDS, IDS_TO_ALLOCATE, GIVEN_AT, BIND_TIME, BIND_PHASE)

Rule = Mapping[str, str]
"""Labels; a pod that has all of them falls under the rule."""

Notes = Mapping[str, str]


class Exclusive:
    """Which cards of one node the pods under each rule use."""

    def __init__(self, rules: Sequence[Rule], cards: list[Card]) -> None:
        self._rules = rules
        self._cards = cards
        self._by_rule: dict[int, set[int]] = {}
        self._rules_of: dict[str, tuple[int, ...]] = {}  # by pod
        self._uids: dict[str, str] = {}  # of counted pods

    def read(self, tasks: Iterable[Task], notes: Mapping[str, str]) -> None:
        """Who is on the node when the session opens; one that goes keeps its cards, by what it says it has."""
        for task in tasks:
            self._uids[task.key] = task.uid
            rules = matching(task.pod, self._rules)
            if not rules:
                continue
            self._rules_of[task.key] = rules
            if not self._reserve(task.uid, rules):
                named = {each.uuid for each in given(notes.get(task.uid, ""))}
                self._enter(rules, (position for position, card in enumerate(self._cards) if card.uuid in named))

    def closed_to(self, rules: Iterable[int]) -> set[int]:
        """The cards that a pod under these rules may not use."""
        return {position for rule in rules for position in self._by_rule.get(rule, ())}

    def put(self, task: Task) -> None:
        """The pod is counted on the node."""
        self._uids[task.key] = task.uid
        self.chosen(task)

    def chosen(self, task: Task) -> None:
        """The pod was given cards."""
        rules = matching(task.pod, self._rules)
        if rules:
            self._rules_of[task.key] = rules
            self._reserve(task.uid, rules)

    def take(self, task: Task) -> None:
        self.given_back(task)
        self._uids.pop(task.key, None)

    def given_back(self, task: Task) -> None:
        """The pod's rules let go of cards that no other pod under any rule uses."""
        known = {self._uids.get(key) for key in self._rules_of if key != task.key}
        for rule in self._rules_of.pop(task.key, ()):
            held = self._by_rule.pop(rule, set())
            kept = {position for position in held if any(uid in known for uid in self._others(position, task))}
            if kept:
                self._by_rule[rule] = kept

    def copied(self, cards: list[Card]) -> Exclusive:
        twin = Exclusive(self._rules, cards)
        twin._by_rule = {rule: set(held) for rule, held in self._by_rule.items()}
        twin._rules_of, twin._uids = dict(self._rules_of), dict(self._uids)
        return twin

    def _others(self, position: int, task: Task) -> Iterable[str]:
        return (uid for uid in self._cards[position].pods if uid != task.uid)

    def _reserve(self, uid: str, rules: Iterable[int]) -> bool:
        return self._enter(rules, [position for position, card in enumerate(self._cards) if uid in card.pods])

    def _enter(self, rules: Iterable[int], positions: Iterable[int]) -> bool:
        found = set(positions)
        for rule in rules if found else ():
            self._by_rule.setdefault(rule, set()).update(found)
        return bool(found)


@dataclass(slots=True)
class NodeVgpus:
    """The cards of one node."""

    name: str
    cards: list[Card]
    exclusive: Exclusive | None = None
    score: float = 0.0  # what the last kind of pod that fitted made of it; one that does not fit finds it here

    def holding(self, uuid: str) -> Card | None:
        """The card that a part of a card belongs to."""
        return next((card for card in self.cards if card.uuid in uuid), None)


@dataclass(slots=True)
class Assignments:
    """What was given to pods that are being bound, by uid, until the API server shows it."""

    notes: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)  # uid -> (job, annotations)

    def of(self, task: Task) -> Notes:
        """What the pod says, or will say, about its cards."""
        said = task.pod.metadata.annotations
        if IDS not in said and task.uid in self.notes and task.status is not TaskStatus.PENDING:
            return {**said, **self.notes[task.uid][1]}
        return said

    def settle(self, session: Session) -> None:
        """A session is over: remember what it gave to those that are being bound, forget what has been seen."""
        for job in session.jobs.values() if session.annotations else ():
            for bound in job.with_status(TaskStatus.BINDING):
                notes = session.annotations.get(bound.key, {})
                if IDS in notes:
                    self.notes[bound.uid] = (job.uid, dict(notes))
        for uid, (name, _) in list(self.notes.items()):
            known = session.jobs.get(name)
            task = None if known is None else known.tasks.get(uid)
            if task is None or task.status is not TaskStatus.BINDING or IDS in task.pod.metadata.annotations:
                del self.notes[uid]


class VirtualGpus(CardPool[NodeVgpus, VgpuRequest]):
    """Parts of GPUs on all nodes."""

    def __init__(self, session: Session, policy: str, rules: Sequence[Rule], assignments: Assignments) -> None:
        super().__init__(session)
        self._policy = policy
        self._rules = rules
        self._assignments = assignments
        self._own: dict[str, Notes] = {}  # by uid: what pods say after this session has changed it
        if rules:
            for row in range(len(session.nodes)):  # who goes later in the session still counts when it opens
                self.cards(row)

    def read_request(self, task: Task) -> VgpuRequest | None:
        return request_of(task.pod, matching(task.pod, self._rules))

    def read_cards(self, node: Node) -> NodeVgpus | None:
        cards = registered(node.node)
        return NodeVgpus(node.name, cards) if cards else None

    def cards(self, row: int) -> NodeVgpus | None:
        known = row in self._cards
        found = super().cards(row)
        if self._rules and found is not None and not known:
            tasks = list(self._session.nodes.at(row).tasks.values())
            found.exclusive = Exclusive(self._rules, found.cards)
            found.exclusive.read(tasks, {task.uid: self._assignments.of(task).get(IDS, "") for task in tasks})
        return found

    def copied(self, cards: NodeVgpus) -> NodeVgpus:
        twins = [card.copy() for card in cards.cards]
        exclusive = None if cards.exclusive is None else cards.exclusive.copied(twins)
        return NodeVgpus(cards.name, twins, exclusive, cards.score)

    # who is where -----------------------------------------------------------------------------------------------

    def put(self, cards: NodeVgpus, task: Task) -> None:
        group = group_of(task.pod)
        for each in given(self._assignments.of(task).get(IDS, "")):
            card = cards.holding(each.uuid)
            if card is None:
                continue
            if task.uid not in card.pods:
                card.add(each.memory, each.cores)
                card.pods[task.uid] = Usage(each.memory, each.cores, group)
        if cards.exclusive is not None:
            cards.exclusive.put(task)

    def take(self, cards: NodeVgpus, task: Task) -> None:
        _sub(cards, task.uid, self._assignments.of(task))
        if cards.exclusive is not None:
            cards.exclusive.take(task)

    # trying, choosing, giving back ------------------------------------------------------------------------------

    def fit(self, cards: NodeVgpus, request: VgpuRequest, *, weighed: bool = True) -> Fit:
        closed = () if cards.exclusive is None else cards.exclusive.closed_to(request.rules)
        chosen = choose_cards(cards.cards, request, self._policy if weighed else "", closed)
        if chosen is None:
            return Fit(REFUSED, cards.score)
        chosen.undo()
        cards.score = chosen.score
        return Fit("", chosen.score)

    def last_score(self, cards: NodeVgpus) -> float:
        return cards.score

    def choose(self, cards: NodeVgpus, task: Task, request: VgpuRequest) -> dict[str, str] | None:
        said = self._said(task)
        if said.get(ON_NODE) == cards.name and said.get(IDS):
            return {}
        closed = () if cards.exclusive is None else cards.exclusive.closed_to(request.rules)
        chosen = choose_cards(cards.cards, request, self._policy, closed)
        if chosen is None:
            return None
        for each in (part for parts in chosen.containers for part in parts):
            _enter(cards, task, each)
        if cards.exclusive is not None:
            cards.exclusive.chosen(task)
        notes = self._notes(cards.name, written(chosen.containers))
        self._own[task.uid] = {**said, **notes}
        return notes

    def _notes(self, node: str, ids: str) -> dict[str, str]:
        now = str(int(self._session.clock.now().timestamp()))
        return {
            ON_NODE: node,
            GIVEN_AT: now,
            IDS: ids,
            IDS_TO_ALLOCATE: ids,
            BIND_PHASE: ALLOCATING,
            BIND_TIME: now,
        }

    def give_back(self, cards: NodeVgpus, task: Task) -> Iterable[str]:
        said = self._said(task)
        _sub(cards, task.uid, said)
        if cards.exclusive is not None:
            cards.exclusive.given_back(task)
        if said.get(BIND_PHASE) == SUCCESS:
            return ()
        self._own[task.uid] = {key: value for key, value in said.items() if key not in _WRITTEN}
        return _WRITTEN

    def _said(self, task: Task) -> Notes:
        found = self._own.get(task.uid)
        return self._assignments.of(task) if found is None else found

    def queue_amounts(self, task: Task) -> Mapping[str, float]:
        """Memory and cores as the pod says it has them, in thousandths."""
        said = task.pod.metadata.annotations.get(IDS, "")
        row = self._session.snapshot.nodes.index.get(task.node_name)
        cards = None if not said or row is None or self.request(task) is None else self.cards(row)
        if cards is None:
            return {}
        parts = [each for each in given(said) for card in cards.cards if card.uuid in each.uuid]
        if not parts:
            return {}
        return {
            VGPU_MEMORY: sum(each.memory for each in parts) * 1000.0,
            VGPU_CORES: sum(each.cores for each in parts) * 1000.0,
        }


def _enter(cards: NodeVgpus, task: Task, part: Given) -> None:
    for card in cards.cards:
        if card.uuid in part.uuid:
            usage = card.pods.setdefault(task.uid, Usage(0, 0, group_of(task.pod)))
            usage.memory += part.memory
            usage.cores += part.cores


def _sub(cards: NodeVgpus, uid: str, said: Notes) -> None:
    """Take a pod off its cards. It is on a card once, however many of its containers have a part of it."""
    for each in given(said.get(IDS, "")):
        card = cards.holding(each.uuid)
        if card is not None and card.pods.pop(uid, None) is not None:
            card.sub(each.memory, each.cores)


def matching(pod: Pod, rules: Sequence[Rule]) -> tuple[int, ...]:
    """The rules that a pod falls under."""
    labels = pod.metadata.labels
    return tuple(
        number for number, rule in enumerate(rules) if all(labels.get(key) == value for key, value in rule.items())
    )
