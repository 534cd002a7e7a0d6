"""One controller without an API server: requests are recorded and answered from a table.

async with run_controller(Namespaces, {"GET /apis": {...}}) as harness:
    harness.deliver(harness.controller.namespaces, item)
    await harness.controller.sync(("", "team"))
    assert harness.requests == [...]
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from bayplan.client import Client
from bayplan.client.auth.connection_config import ConnectionConfig
from bayplan.client.http.connection import HttpResponse
from bayplan.client.http.response_parser import ResponseHead
from bayplan.clock import ManualClock
from bayplan.controllers.core.controller import Controller
from bayplan.controllers.core.shared_informers import Key, SharedIndexInformer, SharedInformerFactory
from bayplan.objects.meta import KubeObject
from support.harness.controllers import deliver_event

C = TypeVar("C", bound=Controller)
Sent = tuple[str, Any]
"""A request: method and path, and its decoded body or None."""


class RecordingTransport:
    """Answers each "METHOD path" from a table: a list in turn, an exception by raising it, a missing entry with {}."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = dict(answers)
        self.requests: list[Sent] = []

    async def request(self, method: str, path: str, body: bytes = b"", **_: Any) -> HttpResponse:
        line = f"{method} {path}"
        self.requests.append((line, msgspec.json.decode(body) if body else None))
        answer = self.answers.get(line, {})
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, BaseException):
            raise answer
        return HttpResponse(
            ResponseHead(200, b""), answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
        )

    async def close(self) -> None:
        """There is no connection to close."""


@dataclass
class SingleControllerHarness(Generic[C]):
    controller: C
    transport: RecordingTransport
    clock: ManualClock
    _known: dict[str, KubeObject] = field(default_factory=dict)

    @property
    def requests(self) -> list[Sent]:
        """Every request since the last access."""
        found, self.transport.requests = self.transport.requests, []
        return found

    @property
    def writes(self) -> list[Sent]:
        """The same without reads."""
        return [each for each in self.requests if not each[0].startswith("GET ")]

    def deliver(self, feed: SharedIndexInformer[Any], *items: KubeObject) -> None:
        """Deliver watch events of objects: new ones, or new versions of those that were delivered before."""
        for item in items:
            key = f"{feed.resource} {item.key}"
            deliver_event(feed, self._known.get(key), item)
            self._known[key] = item

    def deliver_deletion(self, feed: SharedIndexInformer[Any], *items: KubeObject) -> None:
        for item in items:
            deliver_event(feed, self._known.pop(f"{feed.resource} {item.key}"), None)

    def queued(self) -> dict[Key, float]:
        """The keys in the work queue with their delays in seconds; the queue is emptied."""
        queue = self.controller.queue
        found = dict.fromkeys(queue._waiting, 0.0)
        found |= {key: round(due - self.clock.monotonic_s(), 3) for key, due in queue._due.items()}
        for key in found:
            queue.forget(key)
        return found


@contextlib.asynccontextmanager
async def run_controller(
    make: Callable[[SharedInformerFactory], C], answers: Mapping[str, Any] | None = None
) -> AsyncIterator[SingleControllerHarness[C]]:
    """A controller without any delivered objects."""
    clock, transport = ManualClock(), RecordingTransport(answers or {})
    async with Client(ConnectionConfig(server="http://127.0.0.1:1"), clock=clock, chance=random.Random(0)) as client:
        await client.transport.close()
        client.transport = transport  # type: ignore[assignment]
        yield SingleControllerHarness(make(SharedInformerFactory(client)), transport, clock)
