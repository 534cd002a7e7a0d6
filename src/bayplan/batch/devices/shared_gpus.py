"""GPUs shared by memory or assigned by number: `volcano.sh/gpu-memory` and `volcano.sh/gpu-number`.

A node reports its number of cards and their total memory. A pod's annotation `volcano.sh/gpu-index` lists its cards. By
memory a pod gets the first card with enough memory, by number it gets unused cards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from bayplan.batch.devices.card_pools import CardFit, CardPool
from bayplan.batch.model.nodes import Node
from bayplan.batch.model.tasks import Task, parse_int
from bayplan.batch.session.session import Session
from bayplan.codec.quantity import parse_quantity
from bayplan.objects.core import Container, Pod

GPU_MEMORY = "volcano.sh/gpu-memory"
GPU_NUMBER = "volcano.sh/gpu-number"
GPU_INDEX = "volcano.sh/gpu-index"
PREDICATE_TIME = "volcano.sh/predicate-time"
UNHEALTHY = "volcano.sh/gpu-unhealthy-ids"
_UNSIGNED = 1 << 64


class GpuRequest(NamedTuple):
    """Request of a pod: memory of one card, and a number of exclusive cards."""

    memory: int
    number: int


@dataclass(slots=True)
class NodeGpus:
    node: str
    memory: int  # of each card
    users: dict[int, dict[str, int]]  # by card: the memory that each pod uses

    def with_memory(self, memory: int) -> list[int]:
        """Cards with this much free memory. An overcommitted card counts as unlimited, because Volcano's amount is
        unsigned."""
        left = {card: (self.memory - sum(users.values())) % _UNSIGNED for card, users in self.users.items()}
        return [card for card in sorted(left) if left[card] >= memory]

    def unused_cards(self, number: int) -> list[int]:
        """This many unused cards; empty when there are fewer."""
        found = [card for card in sorted(self.users) if not self.users[card]]
        return found[:number] if len(found) >= number else []


class SharedGpuPool(CardPool[NodeGpus, GpuRequest]):
    """GPUs by memory or by number, never by both."""

    def __init__(self, session: Session, *, by_memory: bool, by_number: bool) -> None:
        super().__init__(session)
        self._by_memory = by_memory
        self._by_number = by_number
        self._stripped: set[str] = set()  # pods (by uid) whose own annotations were removed

    def read_request(self, task: Task) -> GpuRequest | None:
        request = _read_request(task.pod)
        concerned = (self._by_memory and request.memory > 0) or (self._by_number and request.number > 0)
        return request if concerned else None

    def read_cards(self, node: Node) -> NodeGpus | None:
        capacity = node.node.status.capacity
        if GPU_MEMORY not in capacity or GPU_NUMBER not in capacity:
            return None
        number = parse_quantity(capacity[GPU_NUMBER]).value()
        if number == 0:
            return None
        unhealthy = _parse_numbers(node.node.metadata.annotations.get(UNHEALTHY, ""))
        memory = int(parse_quantity(capacity[GPU_MEMORY]).value() / number)
        return NodeGpus(node.name, memory, {card: {} for card in range(number) if card not in unhealthy})

    def copy_cards(self, cards: NodeGpus) -> NodeGpus:
        return NodeGpus(cards.node, cards.memory, {card: dict(users) for card, users in cards.users.items()})

    def add_pod(self, cards: NodeGpus, task: Task) -> None:
        for card in _assigned_cards(task.pod):
            if card in cards.users:
                request = _read_request(task.pod)
                if request.memory > 0 or request.number > 0:
                    cards.users[card][task.uid] = request.memory

    def remove_pod(self, cards: NodeGpus, task: Task) -> None:
        for card in _assigned_cards(task.pod):
            cards.users.get(card, {}).pop(task.uid, None)

    def check_fit(self, cards: NodeGpus, request: GpuRequest, *, weighed: bool = True) -> CardFit:  # noqa: ARG002
        if self._by_memory and request.memory > 0 and not cards.with_memory(request.memory):
            return CardFit(f"GpuShare no enough gpu memory on node {cards.node}")
        if self._by_number and request.number > 0 and not cards.unused_cards(request.number):
            return CardFit(f"GpuNumber no enough gpu number on node {cards.node}")
        return CardFit("")

    def assign_cards(self, cards: NodeGpus, task: Task, request: GpuRequest) -> dict[str, str] | None:
        chosen: list[int] = []
        if request.memory > 0:
            chosen = cards.with_memory(request.memory)[:1]
            if not self._add_to_cards(cards, chosen, task, request):
                return None
        if request.number > 0:
            chosen = cards.unused_cards(request.number)
            if not self._add_to_cards(cards, chosen, task, request):
                return None
        nanoseconds = int(self._session.clock.now().timestamp() * 1_000_000) * 1000
        return {GPU_INDEX: ",".join(map(str, chosen)), PREDICATE_TIME: str(nanoseconds)}

    @staticmethod
    def _add_to_cards(cards: NodeGpus, chosen: list[int], task: Task, request: GpuRequest) -> bool:
        for card in chosen:
            cards.users[card][task.uid] = request.memory
        return bool(chosen)

    def unassign_cards(self, cards: NodeGpus, task: Task) -> Iterable[str] | None:
        """Release the cards. Only a card that the pod named when the session opened becomes free.

        Volcano forgets the card that it chose itself, so a gang that did not start keeps its cards until the session
        ends. It also cannot remove annotations from a pod that has none (any more).
        """
        annotations = {} if task.uid in self._stripped else task.pod.metadata.annotations
        annotations = {**annotations, **self._session.annotations.get(task.key, {})}
        if GPU_INDEX not in annotations or PREDICATE_TIME not in annotations:
            return None
        self._stripped.add(task.uid)
        self.remove_pod(cards, task)
        return GPU_INDEX, PREDICATE_TIME


def _read_request(pod: Pod) -> GpuRequest:
    return GpuRequest(_max_limit(pod, GPU_MEMORY), _max_limit(pod, GPU_NUMBER))


def _max_limit(pod: Pod, resource: str) -> int:
    """The sum over containers, or the maximum init container limit if that is more."""
    running = sum(_limit(container, resource) for container in pod.spec.containers)
    return max(running, *(_limit(container, resource) for container in pod.spec.init_containers), 0)


def _limit(container: Container, resource: str) -> int:
    limits = container.resources.limits
    return parse_quantity(limits[resource]).value() if resource in limits else 0


def _assigned_cards(pod: Pod) -> list[int]:
    """The cards listed in the pod's annotation; empty if it is invalid."""
    text = pod.metadata.annotations.get(GPU_INDEX)
    if text is None:
        return []
    parts = text.split(",")
    cards = _parse_numbers(text)
    return cards if len(cards) == len(parts) else []


def _parse_numbers(text: str) -> list[int]:
    return [number for part in text.split(",") if (number := parse_int(part)) is not None]
