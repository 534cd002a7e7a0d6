"""Objects that outlive the process, in a file that says what it is."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from pathlib import Path

import pytest

from bayplan.apiserver.storage.sqlite_backend import (
    DataSync,
    SqliteBackend,
    StorageBackendError,
    delete_files,
)
from bayplan.apiserver.storage.store import CommitError, Store, StoredObject
from bayplan.apiserver.storage.watch_cache import WatchCacheEvent
from support.harness.async_tests import async_test

PODS = ("", "pods")


def tree(name: str) -> dict[str, object]:
    return {"metadata": {"name": name, "namespace": "default", "uid": name}}


async def written(path: Path, *names: str, deleted: str = "") -> int:
    journal = SqliteBackend(path)
    store = Store(journal, version=journal.version)
    place = store.committed(PODS)
    for name in names:
        store.put(PODS, tree(name))
    await store.wait_committed()
    if deleted:
        entry = place.get("default", deleted)
        assert entry is not None
        store.delete(PODS, entry)
        await store.wait_committed()
    await asyncio.to_thread(journal.close)
    return store.version


def kept(path: Path) -> dict[str, int]:
    journal = SqliteBackend(path)
    store = Store()
    for group, plural, version, raw in journal.objects():
        store.restore((group, plural), raw, version)
    journal.close()
    return {entry.name: entry.version for entry in store.committed(PODS).entries()}


@async_test
async def test_what_was_settled_is_there_after_an_opening(tmp_path: Path) -> None:
    path = tmp_path / "objects.db"
    await written(path, "a", "b", "c", deleted="b")
    assert kept(path) == {"a": 1, "c": 3}


@async_test
async def test_the_version_of_the_last_commit_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "objects.db"
    last = await written(path, "a", deleted="a")
    journal = SqliteBackend(path)
    assert journal.version == last == 2
    journal.close()


@pytest.mark.parametrize("sync", ["full", "normal"])
def test_what_was_settled_survives_a_process_that_never_closes(tmp_path: Path, sync: DataSync) -> None:
    @async_test
    async def run() -> None:
        path = tmp_path / "objects.db"
        journal = SqliteBackend(path, sync)
        store = Store(journal)
        store.put(PODS, tree("a"))
        await store.wait_committed()
        copies = [path.with_name(path.name + suffix) for suffix in ("", "-wal")]
        other = tmp_path / "copy"
        other.mkdir()
        for each in copies:  # what a kill would leave
            (other / each.name).write_bytes(each.read_bytes())
        assert kept(other / "objects.db") == {"a": 1}
        journal.close()

    run()


@pytest.mark.parametrize(("sync", "level"), [("full", 2), ("normal", 1)])
def test_sqlite_syncs_as_it_was_asked_to(tmp_path: Path, sync: DataSync, level: int) -> None:
    journal = SqliteBackend(tmp_path / "objects.db", sync)

    def pragma(name: str) -> int:
        ask = journal._database.execute
        return int(journal._thread.submit(lambda: ask(f"PRAGMA {name}").fetchone()[0]).result())

    assert (pragma("synchronous"), pragma("fullfsync")) == (level, sync == "full")
    journal.close()


@async_test
async def test_a_full_file_is_refused_as_a_whole_and_used_again_when_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "objects.db"
    journal = SqliteBackend(path)
    store = Store(journal)
    store.put(PODS, tree("a"))
    await store.wait_committed()

    def allow(pages: int) -> None:
        journal._thread.submit(journal._database.execute, f"PRAGMA max_page_count = {pages}").result()

    allow(1)  # SQLite takes the present size for the smallest that there is
    store.put(PODS, tree("small"))
    store.put(PODS, {"metadata": {**tree("large"), "name": "large"}, "data": "x" * 100_000})
    with pytest.raises(CommitError, match=r"not committed: cannot write .*objects\.db: database or disk is full"):
        await store.wait_committed()
    assert (store.version, store.newest_version) == (1, 1)
    assert [each.name for each in store.uncommitted(PODS).entries()] == ["a"]
    allow(1_000_000)
    store.put(PODS, tree("b"))
    await store.wait_committed()
    assert store.failure is None
    await store.close()
    journal.close()
    assert kept(path) == {"a": 1, "b": 2}


@async_test
async def test_a_transaction_that_fails_halfway_is_rolled_back(tmp_path: Path) -> None:
    path = tmp_path / "objects.db"
    journal = SqliteBackend(path)

    def change(name: str, raw: object) -> WatchCacheEvent:
        return WatchCacheEvent("ADDED", 1, StoredObject("default", name, 1, raw, {}, {}, name), None)  # type: ignore[arg-type]

    with pytest.raises(StorageBackendError, match="cannot write"):
        await journal.commit(1, [(PODS, change("a", b"{}")), (PODS, change("b", object()))])
    await journal.commit(1, [(PODS, change("c", b'{"metadata":{"name":"c","namespace":"default"}}'))])
    journal.close()
    assert kept(path) == {"c": 1}


@async_test
async def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "made" / "objects.db"
    journal = SqliteBackend(path)
    store = Store(journal)
    store.put(PODS, tree("a"))
    await store.wait_committed()
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    assert modes == {"objects.db": 0o600, "objects.db-wal": 0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    journal.close()


@async_test
async def test_files_of_earlier_versions_are_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "objects.db"
    await written(path, "a")
    path.chmod(0o644)
    tmp_path.chmod(0o755)
    journal = SqliteBackend(path)
    assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == {0o600}
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755, "the folder is not ours"
    journal.close()


def test_a_file_of_something_else_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be looked at" * 20)
    path.chmod(0o644)
    with pytest.raises(StorageBackendError):
        SqliteBackend(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "objects.db"
    SqliteBackend(path).close()
    with sqlite3.connect(path) as database:
        database.execute("UPDATE facts SET value = 99 WHERE name = 'format'")
    database.close()
    with pytest.raises(StorageBackendError, match=r"has format 99, and this version reads format 1; open it with"):
        SqliteBackend(path)


def test_a_file_in_use_is_refused(tmp_path: Path) -> None:
    journal = SqliteBackend(tmp_path / "objects.db")
    with pytest.raises(StorageBackendError, match="is in use by another cluster"):
        SqliteBackend(tmp_path / "objects.db")
    journal.close()


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be looked at" * 20)
    with pytest.raises(StorageBackendError, match="cannot be used for objects"):
        SqliteBackend(path)


def test_removing_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "objects.db"
    SqliteBackend(path).close()
    delete_files(path)
    assert list(tmp_path.iterdir()) == []
