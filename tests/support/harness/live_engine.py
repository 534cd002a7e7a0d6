"""Base of the harnesses of live engines: a fake API server, and watch events that the test delivers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from bayplan.client import Client
from bayplan.clock import ManualClock
from bayplan.objects.meta import KubeObject
from support.builders.framework import replace_fields
from support.fakes.http_server import FakeHttpServer, Reply, Request, ServerAnswer


class EventConsumer(Protocol):
    """An engine with a handler of watch events."""

    def handle_event(self, old: KubeObject | None, new: KubeObject | None) -> None: ...


L = TypeVar("L", bound=EventConsumer)


@dataclass
class LiveEngineHarness(Generic[L]):
    """A live engine with a fake API server. The server stores nothing, and accepts every request without a planned
    refusal."""

    server: FakeHttpServer
    client: Client
    clock: ManualClock
    live: L
    refusals: list[tuple[str, str, ServerAnswer]] = field(default_factory=list, kw_only=True)
    _known: dict[str, KubeObject] = field(default_factory=dict, kw_only=True)
    _versions: int = field(default=0, kw_only=True)

    def deliver(self, *items: KubeObject) -> None:
        """Deliver watch events of objects: new ones, or new versions of those that were delivered before."""
        for item in items:
            self._versions += 1
            newest = replace_fields(item, metadata={"resource_version": str(self._versions)})
            key = f"{type(item).__name__} {item.key}"
            self.live.handle_event(self._known.get(key), newest)
            self._known[key] = newest

    def deliver_deletion(self, *items: KubeObject) -> None:
        for item in items:
            self.live.handle_event(self._known.pop(f"{type(item).__name__} {item.key}"), None)

    def fail_next(self, method: str, ending: str, *answers: ServerAnswer) -> None:
        """Answer the next requests of this kind with these answers, in order."""
        self.refusals += [(method, ending, answer) for answer in answers]

    def fails(self, request: Request) -> bool:
        """Whether a refusal is planned for the request."""
        return any(_matches(request, refusal) for refusal in self.refusals)

    def answer(self, request: Request) -> ServerAnswer:
        for refusal in self.refusals:
            if _matches(request, refusal):
                self.refusals.remove(refusal)
                return refusal[2]
        return Reply(201 if request.method == "POST" else 200, {"metadata": {"name": "x", "resourceVersion": "9"}})

    def bound(self) -> dict[str, str]:
        """Node of each binding that was sent, by pod name."""
        return {each["metadata"]["name"]: each["target"]["name"] for each in self.sent("POST", "/binding")}

    def sent(self, method: str, ending: str = "") -> list[Any]:
        """The bodies of requests of this kind."""
        return [each.json for each in self.server.requests if each.method == method and each.path.endswith(ending)]


def _matches(request: Request, refusal: tuple[str, str, ServerAnswer]) -> bool:
    method, ending, _ = refusal
    return request.method == method and request.path.endswith(ending)
