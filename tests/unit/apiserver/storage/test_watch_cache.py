"""The watch cache: bounds, replay and listeners."""

from __future__ import annotations

from bayplan.apiserver.storage.stored_objects import make_stored_object
from bayplan.apiserver.storage.watch_cache import WatchCache, WatchCacheEvent


def change(version: int, size: int = 0) -> WatchCacheEvent:
    entry = make_stored_object({"metadata": {"name": f"o{version}"}, "data": "x" * size}, version)
    return WatchCacheEvent("ADDED", version, entry, None)


def versions(cache: WatchCache, version: int = 0) -> list[int]:
    return [each.version for each in cache.events_after(version)]


def test_it_replays_the_events_after_a_version() -> None:
    cache = WatchCache()
    for version in (3, 5, 9):
        cache.append(change(version))
    assert versions(cache) == [3, 5, 9]
    assert versions(cache, 5) == [9]
    assert versions(cache, 9) == []


def test_it_drops_the_oldest_events_by_count() -> None:
    cache = WatchCache(max_events=2)
    for version in (3, 5, 9):
        cache.append(change(version))
    assert (versions(cache, 3), cache.compacted_version) == ([5, 9], 3)


def test_it_drops_the_oldest_events_by_size() -> None:
    cache = WatchCache(max_bytes=1500)
    for version in (3, 5, 9):
        cache.append(change(version, size=600))
    assert (versions(cache, 3), cache.compacted_version) == ([5, 9], 3)


def test_compaction() -> None:
    cache = WatchCache()
    cache.append(change(3))
    cache.compact(7)
    assert (versions(cache, 7), cache.compacted_version) == ([], 7)


def test_a_line_is_encoded_once_for_all_listeners() -> None:
    cache = WatchCache()
    calls: list[int] = []

    def encode() -> bytes:
        calls.append(1)
        return b"line"

    for _ in range(3):
        cache.add_listener(lambda each, lines=[]: lines.append(each.encoded_line("form", encode)))  # type: ignore[misc]
    cache.append(change(1))
    assert len(calls) == 1


def test_a_removed_listener_gets_no_events() -> None:
    cache = WatchCache()
    events: list[WatchCacheEvent] = []
    cache.add_listener(events.append)
    cache.remove_listener(events.append)
    cache.append(change(1))
    assert events == []
