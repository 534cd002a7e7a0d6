"""GPUs shared by memory and cores: node registration, pod requests and the choice of cards.

The formats are those of HAMi's device plugin. A node registers each card as `uuid,split,memory,type,health,mode:`. A
pod lists its cards as `uuid,NVIDIA,memory,cores:` each, with containers separated by `;`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from bayplan.batch.model.tasks import GROUP_NAME, parse_int
from bayplan.codec.quantity import parse_quantity
from bayplan.objects.core import Container, Node, Pod

VGPU_NUMBER = "volcano.sh/vgpu-number"
VGPU_MEMORY = "volcano.sh/vgpu-memory"
VGPU_CORES = "volcano.sh/vgpu-cores"
REGISTER = "volcano.sh/node-vgpu-register"
USE_TYPE = "nvidia.com/use-gputype"
NO_USE_TYPE = "nvidia.com/nouse-gputype"
MODE = "volcano.sh/vgpu-mode"
GROUP_POLICY = "volcano.sh/vgpu-podgroup-policy"
SPREAD, BINPACK = "spread", "binpack"
VENDOR = "NVIDIA"
HAMI_CORE = "hami-core"
_VOLCANO_GROUP_NAME = "scheduling.volcano.sh/group-name"
_ALL_CORES = 100
_PERCENT = 100.0
_UNSIGNED = 1 << 64
_FIELDS = 6


class ContainerVgpu(NamedTuple):
    """The share of a card that a container holds."""

    uuid: str
    memory: int
    cores: int


class ContainerVgpuRequest(NamedTuple):
    number: int
    memory: int  # per card; 0: the whole card
    cores: int  # percent per card


class VgpuRequest(NamedTuple):
    containers: tuple[ContainerVgpuRequest, ...]
    use: str | None
    no_use: str | None
    mode: str | None
    spread_group: str  # the group whose pods must not share a card; "" for none
    rules: tuple[int, ...] = ()  # the exclusive rules that the pod matches


@dataclass(slots=True)
class PodGpuUsage:
    """The share of a card that one pod uses."""

    memory: int
    cores: int
    group: str


@dataclass(slots=True)
class GpuCard:
    uuid: str
    max_pods: int  # maximum number of pods that share it
    memory: int
    type: str
    users: int = 0
    used_memory: int = 0
    used_cores: int = 0
    pods: dict[str, PodGpuUsage] = field(default_factory=dict)

    def add(self, memory: int, cores: int) -> None:
        self.users += 1
        self.used_memory += memory
        self.used_cores += cores

    def sub(self, memory: int, cores: int) -> None:
        self.users -= 1
        self.used_memory -= memory
        self.used_cores -= cores

    def copy(self) -> GpuCard:
        return replace(self, pods={uid: replace(usage) for uid, usage in self.pods.items()})


# Annotations of nodes and pods


def read_registered_cards(node: Node) -> list[GpuCard]:
    """The cards that a node registered; empty unless it also offers number, memory and cores."""
    text = node.metadata.annotations.get(REGISTER, "")
    offered = node.status.allocatable
    for resource in (VGPU_NUMBER, VGPU_CORES, VGPU_MEMORY):
        if resource not in offered or parse_quantity(offered[resource]).value() == 0:
            return []
    return [GpuCard(*each) for each in parse_card_annotation(text)]


@lru_cache(maxsize=8192)
def parse_card_annotation(text: str) -> tuple[tuple[str, int, int, str], ...]:
    """The fields of each card in the annotation; empty if it is invalid."""
    if ":" not in text:
        return ()
    listed = [part.split(",") for part in text.split(":") if "," in part]
    if any(len(fields) < _FIELDS for fields in listed):
        return ()
    return tuple(
        (fields[0], (parse_int(fields[1]) or 0) % _UNSIGNED, parse_int(fields[2]) or 0, fields[3]) for fields in listed
    )


@lru_cache(maxsize=65536)
def parse_assigned_vgpus(text: str) -> tuple[ContainerVgpu, ...]:
    """The card shares that a pod's annotation lists, of all its containers."""
    found = []
    for part in text.replace(";", ":").split(":"):
        fields = part.split(",")
        if len(fields) >= 4:
            found.append(ContainerVgpu(fields[0], parse_int(fields[2], 32) or 0, parse_int(fields[3], 32) or 0))
    return tuple(found)


def format_assigned_vgpus(containers: Iterable[Iterable[ContainerVgpu]]) -> str:
    return ";".join(
        "".join(f"{each.uuid},{VENDOR},{each.memory},{each.cores}:" for each in parts) for parts in containers
    )


def vgpu_request(pod: Pod, rules: tuple[int, ...]) -> VgpuRequest | None:
    """The request of a pod; None without a vGPU request."""
    containers = tuple(
        container_request
        for container in pod.spec.containers
        if (container_request := _container_request(container)) is not None
    )
    if not containers:
        return None
    annotations = pod.metadata.annotations
    spread_group = pod_group_of(pod) if annotations.get(GROUP_POLICY) == SPREAD else ""
    return VgpuRequest(
        containers, annotations.get(USE_TYPE), annotations.get(NO_USE_TYPE), annotations.get(MODE), spread_group, rules
    )


def pod_group_of(pod: Pod) -> str:
    annotations = pod.metadata.annotations
    name = annotations.get(GROUP_NAME) or annotations.get(_VOLCANO_GROUP_NAME) or ""
    return f"{pod.metadata.namespace}/{name}" if name else ""


def _container_request(container: Container) -> ContainerVgpuRequest | None:
    limits, requests = container.resources.limits, container.resources.requests

    def amount(resource: str) -> int:
        text = limits.get(resource, requests.get(resource))
        whole = None if text is None else parse_quantity(text).as_integer()
        return _int32(whole or 0)

    if VGPU_NUMBER in limits:
        return ContainerVgpuRequest(
            _int32(parse_quantity(limits[VGPU_NUMBER]).as_integer() or 0), amount(VGPU_MEMORY), amount(VGPU_CORES)
        )
    return ContainerVgpuRequest(1, amount(VGPU_MEMORY), amount(VGPU_CORES)) if VGPU_MEMORY in limits else None


def _int32(number: int) -> int:
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


# Choice of cards


@dataclass(frozen=True, slots=True)
class GpuCardAssignment:
    """Cards chosen for a pod: the shares of each container, the score, and what was added to the cards."""

    containers: list[list[ContainerVgpu]]
    score: float
    taken: list[tuple[GpuCard, int, int]]

    def undo(self) -> None:
        for card, memory, cores in self.taken:
            card.sub(memory, cores)


def choose_cards(
    cards: list[GpuCard], request: VgpuRequest, policy: str, closed: Collection[int] = ()
) -> GpuCardAssignment | None:
    """Assign cards to every container in turn. Returns None, and changes nothing, if a container does not get enough.

    `closed` lists the positions of cards that this pod must not use.
    """
    if request.mode is not None and request.mode != HAMI_CORE:
        return None
    chosen = GpuCardAssignment([], 0.0, [])
    score = 0.0
    for container_request in request.containers:
        parts: list[ContainerVgpu] = []
        wanted = container_request.number if container_request.number <= len(cards) else math.inf
        for position in _ordered_cards(cards, policy) if wanted < math.inf else ():
            card = cards[position]
            memory = container_request.memory or int(float(card.memory) * _PERCENT / 100.0)
            if position in closed or not _has_capacity(card, container_request, memory, request):
                continue
            card.add(memory, container_request.cores)
            chosen.taken.append((card, memory, container_request.cores))
            if wanted > 0:
                wanted -= 1
                parts.append(ContainerVgpu(card.uuid, memory, container_request.cores))
                score += _score(card, policy)
            if wanted == 0:
                break
        if wanted > 0:
            chosen.undo()
            return None
        chosen.containers.append(parts)
    return replace(chosen, score=score)


def _ordered_cards(cards: list[GpuCard], policy: str) -> list[int]:
    positions = range(len(cards))
    if policy == BINPACK:
        return sorted(positions, key=lambda position: -cards[position].used_memory)
    if policy == SPREAD:
        return sorted(positions, key=lambda position: cards[position].users)
    return list(reversed(positions))


def _has_capacity(card: GpuCard, container_request: ContainerVgpuRequest, memory: int, request: VgpuRequest) -> bool:
    if card.max_pods <= card.users or card.memory - card.used_memory < memory:
        return False
    if request.spread_group and _has_group(card, request.spread_group):
        return False
    if card.used_cores + container_request.cores > _ALL_CORES or (
        container_request.cores == _ALL_CORES and card.users > 0
    ):
        return False
    if card.used_cores == _ALL_CORES and container_request.cores == 0:
        return False
    return _type_allowed(card.type, request)


def _has_group(card: GpuCard, group: str) -> bool:
    return any(usage.group == group and (usage.memory > 0 or usage.cores > 0) for usage in card.pods.values())


def _type_allowed(kind: str, request: VgpuRequest) -> bool:
    if VENDOR not in kind:
        return False
    if request.use is not None:
        return any(name.upper() in kind.upper() for name in request.use.split(","))
    if request.no_use is not None:
        return not any(name.upper() in kind.upper() for name in request.no_use.split(","))
    return True


def _score(card: GpuCard, policy: str) -> float:
    """Score of a card with the pod on it. With the spread policy it is 0, because the card then has a user."""
    if policy == BINPACK:
        return 100.0 * (card.used_memory / card.memory) if card.memory else math.nan
    return 100.0 if policy == SPREAD and card.users == 0 else 0.0
