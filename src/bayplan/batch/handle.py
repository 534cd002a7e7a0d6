"""What plugins of a session may reach of the world, and what they may keep from one session to the next.

A plugin is made anew for every session by `factory(arguments, handle)`, or by calling its class with the arguments.
What must outlive a session (a timer, a view of real usage) is kept here under the plugin's own name.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from bayplan.batch.config.volcano_quirk_fixes import QuirkFix
from bayplan.batch.evaluation.node_sampling import FeasibleNodeSampling
from bayplan.batch.evaluation.shard_filter import Shard
from bayplan.batch.model.nodes import NodeUsage
from bayplan.batch.session.last_choices import LastChoices
from bayplan.cache import Cache
from bayplan.clock import Clock
from bayplan.devices import DeviceAssumptions
from bayplan.errors import BayplanError
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.runtime.bind_request_factory import BindRequestFactory
from bayplan.framework.runtime.nominator import Nominator
from bayplan.framework.runtime.registry import Registry
from bayplan.intents.writes import Writes
from bayplan.objects.core import Pod
from bayplan.snapshot import Catalog
from bayplan.telemetry.decisions import DecisionRing
from bayplan.volumes import VolumeAssumptions

T = TypeVar("T")

HTTP_OK = 200


class HttpStatusError(BayplanError):
    """Somebody outside answered that it cannot do what it was asked for."""

    def __init__(self, url: str, status: int) -> None:
        super().__init__(f"{url} answered with HTTP status {status} where {HTTP_OK} is needed; its own log may say why")
        self.url, self.status = url, status


class HttpReply(NamedTuple):
    """What came back from outside, be it good or not."""

    status: int
    body: bytes

    def body_or_error(self, url: str) -> bytes:
        """The body of an answer that can be used; raises `HttpStatusError` for any other."""
        if self.status != HTTP_OK:
            raise HttpStatusError(url, self.status)
        return self.body


HttpPost = Callable[[str, bytes, float], HttpReply]
"""POST a body to a URL within so many seconds: what the session's HTTP extender uses."""


class HttpPoster(Protocol):
    """A way to HTTP services that waits for their answers."""

    def post(self, url: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """Status and body of the answer."""
        ...

    def close(self) -> None: ...


class NetworkUnavailable(BayplanError):
    """A plugin wanted to talk to the outside in a process that has no way to."""


class _NoWaitingPods:
    """Pods that Permit holds back: a session has none."""

    def get(self, uid: str) -> None:  # noqa: ARG002
        return None

    def all(self) -> Iterable[Any]:
        return ()


class _NoWrites:
    async def perform(self, intent: object) -> Any:
        raise NetworkUnavailable(f"{type(intent).__name__} needs an API server; a session only decides")

    def submit(self, intent: object) -> None:
        """What is written so takes back an earlier write, and there was none."""


def raise_no_network(url: str, body: bytes, timeout_s: float) -> HttpReply:
    """What a process without a network has to say."""
    raise NetworkUnavailable(f"POST {url} needs a network client ({len(body)} bytes, {timeout_s} s)")


@dataclass(frozen=True, slots=True)
class SessionRequests:
    """The bind requests of sessions: only sessions themselves draw them up."""

    factory: BindRequestFactory

    def annotations(self, cycle: Cycle, node_name: str) -> Mapping[str, str]:
        raise NetworkUnavailable(f"the bind request of {cycle.pod.key} to {node_name} is the session's to draw up")


@dataclass(slots=True)
class BatchHandle:
    """Everything a plugin of a session may reach; also the handle of the framework's plugins behind the bridge."""

    cache: Cache
    clock: Clock
    random: random.Random
    framework_plugins: Registry
    nominator: Nominator = field(default_factory=Nominator)  # who waits for which node, of both engines
    usage: Mapping[str, NodeUsage] = field(default_factory=dict)  # real usage by node, as last collected
    usage_fault: str = ""  # why that is not the newest there could be
    http_post: HttpPost = raise_no_network
    quirk_fixes: frozenset[QuirkFix] = frozenset()  # quirks of Volcano's that are switched off
    node_sampling: FeasibleNodeSampling | None = (
        None  # how many nodes are looked at for a task, where that is not all of them
    )
    shard: Shard | None = None  # the nodes that are ours, where several schedulers share a cluster
    preferred_nodes: Mapping[str, str] = field(
        default_factory=dict
    )  # by pod key: what decides between equally good nodes
    last_choices: LastChoices | None = None  # repeated among equals; None: each session draws anew
    writes: Writes = field(default_factory=_NoWrites)  # what the framework's plugins write before a pod is bound
    memory: dict[str, Any] = field(default_factory=dict)  # by plugin: what outlives sessions
    bind_request_desk: BindRequestFactory | None = (
        None  # where pods are bound by the binder: how its requests are drawn up
    )
    queue_admission: bool = False  # whether pods are held by a gate until their queue has room
    previous_faults: Set[str] = frozenset()  # what the last session complained of
    decision_records: DecisionRing = field(
        default_factory=DecisionRing
    )  # why tasks that were bound were put where they are

    @property
    def bind_requests(self) -> SessionRequests:
        """What the framework's plugins may know of them."""
        assert self.bind_request_desk is not None, "nobody asks where pods are not bound by the binder"
        return SessionRequests(self.bind_request_desk)

    @property
    def catalog(self) -> Catalog:
        return self.cache.catalog

    @property
    def volumes(self) -> VolumeAssumptions:
        return self.cache.volumes

    @property
    def devices(self) -> DeviceAssumptions:
        return self.cache.devices

    @property
    def waiting_pods(self) -> _NoWaitingPods:
        return _NoWaitingPods()

    @property
    def filter_runner(self) -> Any:
        raise NetworkUnavailable("a session has no profile whose filters could be asked")

    def keep(self, plugin: str, make: Callable[[], T]) -> T:
        """What a plugin keeps between sessions; made at the first ask."""
        if plugin not in self.memory:
            self.memory[plugin] = make()
        kept: T = self.memory[plugin]
        return kept

    def activate(self, pods: Mapping[str, Pod]) -> None:
        """Sessions look at every job anyway."""

    def group_pods(self, namespace: str, group: str) -> Sequence[Pod]:  # noqa: ARG002
        return ()

    async def post(self, url: str, body: bytes, timeout_s: float) -> bytes:
        return self.http_post(url, body, timeout_s).body_or_error(url)
