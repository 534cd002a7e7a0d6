"""The past of one kind: bounded, replayed in order, heard of by those who listen."""

from __future__ import annotations

from bayplan.apiserver.storage.stored_objects import make_stored_object
from bayplan.apiserver.storage.watch_cache import WatchCache, WatchCacheEvent


def change(version: int, size: int = 0) -> WatchCacheEvent:
    entry = make_stored_object({"metadata": {"name": f"o{version}"}, "data": "x" * size}, version)
    return WatchCacheEvent("ADDED", version, entry, None)


def kept(ring: WatchCache, version: int = 0) -> list[int]:
    return [each.version for each in ring.events_after(version)]


def test_it_replays_what_came_after_a_version() -> None:
    ring = WatchCache()
    for version in (3, 5, 9):
        ring.append(change(version))
    assert kept(ring) == [3, 5, 9]
    assert kept(ring, 5) == [9]
    assert kept(ring, 9) == []


def test_it_forgets_the_oldest_by_count() -> None:
    ring = WatchCache(max_events=2)
    for version in (3, 5, 9):
        ring.append(change(version))
    assert (kept(ring, 3), ring.compacted_version) == ([5, 9], 3)


def test_it_forgets_the_oldest_by_size() -> None:
    ring = WatchCache(max_bytes=1500)
    for version in (3, 5, 9):
        ring.append(change(version, size=600))
    assert (kept(ring, 3), ring.compacted_version) == ([5, 9], 3)


def test_forgetting_on_purpose() -> None:
    ring = WatchCache()
    ring.append(change(3))
    ring.compact(7)
    assert (kept(ring, 7), ring.compacted_version) == ([], 7)


def test_a_line_is_made_once_for_all_who_listen() -> None:
    ring = WatchCache()
    made: list[int] = []

    def make() -> bytes:
        made.append(1)
        return b"line"

    for _ in range(3):
        ring.add_listener(lambda each, got=[]: got.append(each.encoded_line("form", make)))  # type: ignore[misc]
    ring.append(change(1))
    assert len(made) == 1


def test_who_left_hears_no_more() -> None:
    ring = WatchCache()
    heard: list[WatchCacheEvent] = []
    ring.add_listener(heard.append)
    ring.remove_listener(heard.append)
    ring.append(change(1))
    assert heard == []
