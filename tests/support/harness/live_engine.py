"""What rigs of live engines share: a wire server that plays the API, and a watch that tells what a test says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from bayplan.client import Client
from bayplan.clock import ManualClock
from bayplan.objects.meta import KubeObject
from support.builders.framework import changed
from support.fakes.http_server import (
    Answer,
    Reply,
    Request,
    WireServer,
)


class Hears(Protocol):
    """An engine that follows what it is told."""

    def hear(self, old: KubeObject | None, new: KubeObject | None) -> None: ...


L = TypeVar("L", bound=Hears)


@dataclass
class PlayedServer(Generic[L]):
    """The server keeps nothing up to date by itself, and accepts everything that no refusal stands in the way of."""

    server: WireServer
    client: Client
    clock: ManualClock
    live: L
    refusals: list[tuple[str, str, Answer]] = field(default_factory=list, kw_only=True)
    _known: dict[str, KubeObject] = field(default_factory=dict, kw_only=True)
    _versions: int = field(default=0, kw_only=True)

    def hear(self, *items: KubeObject) -> None:
        """The watch tells of objects: new ones, or new versions of those that it told of before."""
        for item in items:
            self._versions += 1
            newest = changed(item, metadata={"resource_version": str(self._versions)})
            key = f"{type(item).__name__} {item.key}"
            self.live.hear(self._known.get(key), newest)
            self._known[key] = newest

    def hear_gone(self, *items: KubeObject) -> None:
        for item in items:
            self.live.hear(self._known.pop(f"{type(item).__name__} {item.key}"), None)

    def refuse(self, method: str, ending: str, *answers: Answer) -> None:
        """Answer the next requests of this kind so, one after another."""
        self.refusals += [(method, ending, answer) for answer in answers]

    def refuses(self, request: Request) -> bool:
        """Whether something stands in its way."""
        return any(_meant(request, refusal) for refusal in self.refusals)

    def answer(self, request: Request) -> Answer:
        for refusal in self.refusals:
            if _meant(request, refusal):
                self.refusals.remove(refusal)
                return refusal[2]
        return Reply(201 if request.method == "POST" else 200, {"metadata": {"name": "x", "resourceVersion": "9"}})

    def bound(self) -> dict[str, str]:
        """By pod the node that it was bound to, or tried to be."""
        return {each["metadata"]["name"]: each["target"]["name"] for each in self.sent("POST", "/binding")}

    def sent(self, method: str, ending: str = "") -> list[Any]:
        """The bodies of requests of this kind."""
        return [each.json for each in self.server.requests if each.method == method and each.path.endswith(ending)]


def _meant(request: Request, refusal: tuple[str, str, Answer]) -> bool:
    method, ending, _ = refusal
    return request.method == method and request.path.endswith(ending)
