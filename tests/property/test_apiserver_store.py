"""The store against two dictionaries: the committed and the uncommitted objects, with any order of commits and
failures.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from bayplan.apiserver.storage.store import Changes, ResourceObjects, Store
from bayplan.apiserver.storage.watch_cache import WatchCacheEvent

PODS = ("", "pods")
Key = tuple[str, str]
Step = tuple[Literal["put", "delete", "commit", "fail"], Key]
State = dict[Key, int]

keys = st.tuples(st.sampled_from(["a", "a-b", "b"]), st.sampled_from(["x", "y", "z"]))
kinds = st.sampled_from(["put", "put", "put", "delete", "commit", "fail"])


class PlayedJournal:
    """Keeps the pending group; the test commits or fails it."""

    def __init__(self) -> None:
        self.waiting: tuple[Changes, asyncio.Future[None]] | None = None

    def commit(self, version: int, changes: Changes) -> asyncio.Future[None]:
        assert self.waiting is None, "one group at a time"
        assert not changes or changes[-1][1].version == version
        self.waiting = (changes, asyncio.get_running_loop().create_future())
        return self.waiting[1]


@dataclass
class Model:
    committed: State = field(default_factory=dict)
    newest: State = field(default_factory=dict)
    events: list[tuple[str, Key, int]] = field(default_factory=list)


def state(place: ResourceObjects, namespace: str = "", after: str = "") -> State:
    return {(each.namespace, each.name): each.version for each in place.entries(namespace, after=after)}


def ordered(known: State, namespace: str = "", after: str = "") -> list[tuple[Key, int]]:
    chosen = {key: version for key, version in known.items() if namespace in ("", key[0])}
    named = sorted((f"{key[0]}/{key[1]}", key, version) for key, version in chosen.items())
    return [(key, version) for text, key, version in named if text > after]


def check(store: Store, model: Model, events: list[tuple[str, Key, int]]) -> None:
    for place, known in (
        (store.committed_objects(PODS), model.committed),
        (store.uncommitted_objects(PODS), model.newest),
    ):
        for namespace, after in (("", ""), ("a", ""), ("", "a-b/y"), ("b", "b/x")):
            assert list(state(place, namespace, after).items()) == ordered(known, namespace, after)
        for namespace in ("a", "a-b", "b"):
            for name in ("x", "y", "z"):
                found = place.get(namespace, name)
                assert (found.version if found else None) == known.get((namespace, name))
    assert events == model.events
    assert store.version == (events[-1][2] if events else 0)
    assert store.version <= store.newest_version


async def play(steps: list[Step]) -> None:
    journal, model = PlayedJournal(), Model()
    store = Store(journal)
    events: list[tuple[str, Key, int]] = []

    def heard(change: WatchCacheEvent) -> None:
        events.append((change.type, (change.entry.namespace, change.entry.name), change.version))

    store.committed_objects(PODS).watch_cache.add_listener(heard)
    for kind, key in steps:
        if kind == "put":
            tree = {"metadata": {"namespace": key[0], "name": key[1], "uid": "u"}}
            model.newest[key] = store.put(PODS, tree).version
        elif kind == "delete":
            entry = store.uncommitted_objects(PODS).get(*key)
            if entry is not None:
                store.delete(PODS, entry)
                del model.newest[key]
        else:
            await asyncio.sleep(0)
            ended = end_group(journal, model, succeeds=kind == "commit")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if ended:
                assert (store.failure is not None) == (kind == "fail")
        check(store, model, events)


def end_group(journal: PlayedJournal, model: Model, *, succeeds: bool) -> bool:
    """Commit or fail the pending group, if there is one."""
    if journal.waiting is None:
        return False
    (changes, done), journal.waiting = journal.waiting, None
    if not succeeds:
        done.set_exception(OSError("full"))
        model.newest = dict(model.committed)
        return True
    done.set_result(None)
    for _, change in changes:
        key = (change.entry.namespace, change.entry.name)
        model.events.append((change.type, key, change.version))
        if change.after is None:
            del model.committed[key]
        else:
            model.committed[key] = change.version
    return True


@given(st.lists(st.tuples(kinds, keys), max_size=40))
def test_readers_see_committed_and_writers_uncommitted_objects(steps: list[Step]) -> None:
    asyncio.run(play(steps))
