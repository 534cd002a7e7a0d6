"""An informer's store, and the state by its handler calls, converge to the server's state after any history."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.client import Informer, resource_of
from bayplan.clock import ManualClock
from bayplan.objects.core import Node
from bayplan.objects.kinds import kind_of
from bayplan.objects.meta import KubeObject
from support.fakes.http_server import (
    FakeHttpServer,
    Request,
    ServerAnswer,
    WatchStream,
    added,
    bookmark,
    deleted,
    error,
    listed,
    modified,
    node,
    status,
)
from support.harness.async_tests import wait_until

NAMES = st.sampled_from("abcd")
STEPS = st.one_of(
    st.tuples(st.sampled_from(["put", "spoil", "delete", "replace"]), NAMES),
    st.tuples(st.sampled_from(["forget", "cut", "catch up", "refuse", "answer 410"]), st.just("")),
)


class Server:
    """A simple API server for nodes: a state, a history that can be compacted, and injected faults."""

    def __init__(self, *, streams: bool) -> None:
        self.items: dict[str, dict[str, Any]] = {}
        self.history: list[tuple[int, dict[str, Any]]] = []
        self.version = 1
        self.forgotten = 0
        self.streams = streams
        self.refusals = 0
        self.gone_as_answer = False

    def change(self, verb: str, name: str) -> None:
        self.version += 1
        known = self.items.get(name)
        if verb == "delete":
            if known is not None:
                del self.items[name]
                self.history.append(
                    (self.version, deleted({**known, "metadata": {**known["metadata"], **self._version()}}))
                )
            return
        if verb == "replace" and known is not None:
            self.change("delete", name)
            known = None
            self.version += 1
        uid = known["metadata"]["uid"] if known else f"uid-{self.version}"
        spoilt = {"spec": {"unschedulable": "perhaps"}} if verb == "spoil" else {}
        self.items[name] = node(name, self.version, uid, **spoilt)
        self.history.append((self.version, (modified if known else added)(self.items[name])))

    def _version(self) -> dict[str, str]:
        return {"resourceVersion": str(self.version)}

    def answer(self, request: Request) -> ServerAnswer:
        options = request.options
        if self.refusals:
            self.refusals -= 1
            return status(500, "InternalError", "not now")
        if "watch" not in options:
            return listed(self.version, *self.items.values())
        if "sendInitialEvents" in options:
            return self._initial() if self.streams else status(422, "Invalid", "sendInitialEvents is forbidden")
        return self._since(int(options["resourceVersion"]))

    def _initial(self) -> WatchStream:
        feed = WatchStream(*map(added, self.items.values()), bookmark(self.version, initial_end=True))
        feed.end()
        return feed

    def _since(self, version: int) -> ServerAnswer:
        if version < self.forgotten:
            return status(410, "Expired", "too old") if self.gone_as_answer else ended(error(410, "Expired", "too old"))
        return ended(*(event for at, event in self.history if at > version), bookmark(self.version))


def ended(*events: dict[str, Any]) -> WatchStream:
    feed = WatchStream(*events)
    feed.end()
    return feed


class Shadow:
    """The state of a consumer that only receives the handler calls."""

    def __init__(self) -> None:
        self.items: dict[str, KubeObject] = {}

    def __call__(self, old: KubeObject | None, new: KubeObject | None) -> None:
        about = new or old
        assert about is not None
        if old is None:
            assert about.name not in self.items
        else:
            assert self.items[about.name].metadata.uid == old.metadata.uid
        if new is None:
            del self.items[about.name]
        else:
            self.items[about.name] = new


def differences(server: Server, informer: Informer, shadow: Shadow) -> Iterator[str]:
    """The store has the current version of decodable objects, and at most an earlier version of the other ones."""
    store = {name: item for (_, name), item in informer.store.items()}
    if store != shadow.items:
        yield f"the store has {store}, and the handler got {shadow.items}"
    for name in store.keys() - server.items.keys():
        yield f"{name} is deleted"
    for name, item in server.items.items():
        known, spoilt = store.get(name), "spec" in item
        if (("", name) in informer.undecodable) != spoilt:
            yield f"{name} can be read or not, and the informer thinks otherwise"
        if known is not None and known.metadata.uid != item["metadata"]["uid"]:
            yield f"{name} is another one by now"
        if not spoilt and (known is None or known.metadata.resource_version != item["metadata"]["resourceVersion"]):
            yield f"{name} is not known as it is: {known}"


async def followed(steps: list[tuple[str, str]], *, streams: bool) -> list[str]:
    """The differences of the informer, each time when it had caught up."""
    found: list[str] = []
    clock, model, shadow = ManualClock(), Server(streams=streams), Shadow()
    async with FakeHttpServer(model.answer) as wire, wire.client(clock) as client:
        informer = client.informer(resource_of(kind_of(Node)), shadow)
        task = asyncio.create_task(informer.run())

        async def caught_up() -> None:
            model.version += 1
            await wait_until(lambda: informer.resource_version == str(model.version), tick=lambda: clock.advance(5.0))

        for verb, name in steps:
            if verb == "forget":
                model.forgotten = model.version
            elif verb == "cut":
                wire.cut()
            elif verb == "refuse":
                model.refusals += 1
            elif verb == "answer 410":
                model.gone_as_answer = not model.gone_as_answer
            elif verb == "catch up":
                await caught_up()
                found += differences(model, informer, shadow)
            else:
                model.change(verb, name)
        await caught_up()
        found += differences(model, informer, shadow)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return found


@settings(max_examples=60)
@given(st.lists(STEPS, max_size=30), st.booleans())
def test_an_informer_ends_up_with_what_the_server_has(steps: list[tuple[str, str]], streams: bool) -> None:
    assert asyncio.run(asyncio.wait_for(followed(steps, streams=streams), 30.0)) == []
