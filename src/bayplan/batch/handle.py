"""The handle of batch plugins: their access to the engine, and state that outlives a session.

A plugin is created for every session by `factory(arguments, handle)`, or by calling its class with the arguments. State
that outlives a session (a timer, a view of measured usage) is stored here under the plugin's name.
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
    def __init__(self, url: str, status: int) -> None:
        super().__init__(
            f"{url} answered with HTTP status {status} where {HTTP_OK} is needed; see the log of the service"
        )
        self.url, self.status = url, status


class HttpReply(NamedTuple):
    """An HTTP response with any status."""

    status: int
    body: bytes

    def body_or_error(self, url: str) -> bytes:
        """The body of a successful response; raises `HttpStatusError` for any other status."""
        if self.status != HTTP_OK:
            raise HttpStatusError(url, self.status)
        return self.body


HttpPost = Callable[[str, bytes, float], HttpReply]
"""POST a body to a URL with a timeout in seconds; used by the HTTP extender."""


class HttpPoster(Protocol):
    """A blocking HTTP client."""

    def post(self, url: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """Status and body of the response."""
        ...

    def close(self) -> None: ...


class NetworkUnavailable(BayplanError):
    """A plugin used the network in a process without network access."""


class _NoWaitingPods:
    """The waiting pods of Permit: a session has none."""

    def get(self, uid: str) -> None:  # noqa: ARG002
        return None

    def all(self) -> Iterable[Any]:
        return ()


class _NoWrites:
    async def perform(self, intent: object) -> Any:
        raise NetworkUnavailable(f"{type(intent).__name__} needs an API server; a session only decides")

    def submit(self, intent: object) -> None:
        """Such a write cancels an earlier one, and there was none."""


def raise_no_network(url: str, body: bytes, timeout_s: float) -> HttpReply:
    """The default of `http_post`: raises, because the process has no network."""
    raise NetworkUnavailable(f"POST {url} needs a network client ({len(body)} bytes, {timeout_s} s)")


@dataclass(frozen=True, slots=True)
class SessionRequests:
    """Bind requests as the framework's plugins see them: only the session creates them."""

    factory: BindRequestFactory

    def annotations(self, cycle: Cycle, node_name: str) -> Mapping[str, str]:
        raise NetworkUnavailable(f"the bind request of {cycle.pod.key} to {node_name} is created by the session only")


@dataclass(slots=True)
class BatchHandle:
    """Everything that a plugin of a session can access. The framework's plugins in sessions use it, too."""

    cache: Cache
    clock: Clock
    random: random.Random
    framework_plugins: Registry
    nominator: Nominator = field(default_factory=Nominator)  # nominated pods of both engines
    usage: Mapping[str, NodeUsage] = field(default_factory=dict)  # measured usage by node, as last collected
    usage_fault: str = ""  # why `usage` is not current
    http_post: HttpPost = raise_no_network
    quirk_fixes: frozenset[QuirkFix] = frozenset()  # quirks of Volcano to fix
    # number of nodes to examine per task; None: all
    node_sampling: FeasibleNodeSampling | None = None
    shard: Shard | None = None  # the nodes of this scheduler, when several share a cluster
    # by pod key: decides between nodes with equal scores
    preferred_nodes: Mapping[str, str] = field(default_factory=dict)
    last_choices: LastChoices | None = None  # repeats choices between equal nodes; None: each session chooses anew
    writes: Writes = field(default_factory=_NoWrites)  # writes of the framework's plugins before a pod is bound
    memory: dict[str, Any] = field(default_factory=dict)  # by plugin: state that outlives sessions
    # creates bind requests; None without the binder
    bind_request_factory: BindRequestFactory | None = None
    queue_admission: bool = False  # whether Volcano's gate holds pods until their queue has capacity
    previous_faults: Set[str] = frozenset()  # the faults of the last session
    # why bound tasks were placed on their nodes
    decision_records: DecisionRing = field(default_factory=DecisionRing)

    @property
    def bind_requests(self) -> SessionRequests:
        """Bind requests as the framework's plugins see them."""
        assert self.bind_request_factory is not None, "bind requests exist only with the binder"
        return SessionRequests(self.bind_request_factory)

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
        raise NetworkUnavailable("a session has no profile, so its filters cannot run")

    def keep(self, plugin: str, make: Callable[[], T]) -> T:
        """State of a plugin between sessions, created at the first call."""
        if plugin not in self.memory:
            self.memory[plugin] = make()
        stored: T = self.memory[plugin]
        return stored

    def activate(self, pods: Mapping[str, Pod]) -> None:
        """No effect: sessions process every job anyway."""

    def group_pods(self, namespace: str, group: str) -> Sequence[Pod]:  # noqa: ARG002
        return ()

    async def post(self, url: str, body: bytes, timeout_s: float) -> bytes:
        return self.http_post(url, body, timeout_s).body_or_error(url)
