"""The SQLite backend: durability, file modes and the file format."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from pathlib import Path

import pytest

from bayplan.apiserver.storage.sqlite_backend import DataSync, SqliteBackend, StorageBackendError, delete_files
from bayplan.apiserver.storage.store import CommitError, Store, StoredObject
from bayplan.apiserver.storage.watch_cache import WatchCacheEvent
from support.harness.async_tests import async_test

PODS = ("", "pods")


def tree(name: str) -> dict[str, object]:
    return {"metadata": {"name": name, "namespace": "default", "uid": name}}


async def write_objects(path: Path, *names: str, deleted: str = "") -> int:
    backend = SqliteBackend(path)
    store = Store(backend, version=backend.version)
    objects = store.committed_objects(PODS)
    for name in names:
        store.put(PODS, tree(name))
    await store.wait_committed()
    if deleted:
        entry = objects.get("default", deleted)
        assert entry is not None
        store.delete(PODS, entry)
        await store.wait_committed()
    await asyncio.to_thread(backend.close)
    return store.version


def read_versions(path: Path) -> dict[str, int]:
    backend = SqliteBackend(path)
    store = Store()
    for group, plural, version, raw in backend.objects():
        store.restore((group, plural), raw, version)
    backend.close()
    return {entry.name: entry.version for entry in store.committed_objects(PODS).entries()}


@async_test
async def test_committed_objects_are_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "objects.db"
    await write_objects(path, "a", "b", "c", deleted="b")
    assert read_versions(path) == {"a": 1, "c": 3}


@async_test
async def test_the_version_of_the_last_commit_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "objects.db"
    last = await write_objects(path, "a", deleted="a")
    backend = SqliteBackend(path)
    assert backend.version == last == 2
    backend.close()


@pytest.mark.parametrize("sync", ["full", "normal"])
def test_committed_objects_survive_a_killed_process(tmp_path: Path, sync: DataSync) -> None:
    @async_test
    async def run() -> None:
        path = tmp_path / "objects.db"
        backend = SqliteBackend(path, sync)
        store = Store(backend)
        store.put(PODS, tree("a"))
        await store.wait_committed()
        copies = [path.with_name(path.name + suffix) for suffix in ("", "-wal")]
        copy_folder = tmp_path / "copy"
        copy_folder.mkdir()
        for each in copies:  # the files that a SIGKILL leaves
            (copy_folder / each.name).write_bytes(each.read_bytes())
        assert read_versions(copy_folder / "objects.db") == {"a": 1}
        backend.close()

    run()


@pytest.mark.parametrize(("sync", "level"), [("full", 2), ("normal", 1)])
def test_the_sync_mode_sets_the_sqlite_pragmas(tmp_path: Path, sync: DataSync, level: int) -> None:
    backend = SqliteBackend(tmp_path / "objects.db", sync)

    def pragma(name: str) -> int:
        execute = backend._database.execute
        return int(backend._thread.submit(lambda: execute(f"PRAGMA {name}").fetchone()[0]).result())

    assert (pragma("synchronous"), pragma("fullfsync")) == (level, sync == "full")
    backend.close()


@async_test
async def test_a_group_that_does_not_fit_is_rolled_back_and_later_groups_are_committed(tmp_path: Path) -> None:
    path = tmp_path / "objects.db"
    backend = SqliteBackend(path)
    store = Store(backend)
    store.put(PODS, tree("a"))
    await store.wait_committed()

    def allow(pages: int) -> None:
        backend._thread.submit(backend._database.execute, f"PRAGMA max_page_count = {pages}").result()

    allow(1)  # SQLite raises the limit to the present size
    store.put(PODS, tree("small"))
    store.put(PODS, {"metadata": {**tree("large"), "name": "large"}, "data": "x" * 100_000})
    with pytest.raises(CommitError, match=r"not committed: cannot write .*objects\.db: database or disk is full"):
        await store.wait_committed()
    assert (store.version, store.newest_version) == (1, 1)
    assert [each.name for each in store.uncommitted_objects(PODS).entries()] == ["a"]
    allow(1_000_000)
    store.put(PODS, tree("b"))
    await store.wait_committed()
    assert store.failure is None
    await store.close()
    backend.close()
    assert read_versions(path) == {"a": 1, "b": 2}


@async_test
async def test_a_transaction_that_fails_halfway_is_rolled_back(tmp_path: Path) -> None:
    path = tmp_path / "objects.db"
    backend = SqliteBackend(path)

    def change(name: str, raw: object) -> WatchCacheEvent:
        return WatchCacheEvent("ADDED", 1, StoredObject("default", name, 1, raw, {}, {}, name), None)  # type: ignore[arg-type]

    with pytest.raises(StorageBackendError, match="cannot write"):
        await backend.commit(1, [(PODS, change("a", b"{}")), (PODS, change("b", object()))])
    await backend.commit(1, [(PODS, change("c", b'{"metadata":{"name":"c","namespace":"default"}}'))])
    backend.close()
    assert read_versions(path) == {"c": 1}


@async_test
async def test_files_are_private(tmp_path: Path) -> None:
    path = tmp_path / "made" / "objects.db"
    backend = SqliteBackend(path)
    store = Store(backend)
    store.put(PODS, tree("a"))
    await store.wait_committed()
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    assert modes == {"objects.db": 0o600, "objects.db-wal": 0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    backend.close()


@async_test
async def test_files_of_earlier_versions_become_private(tmp_path: Path) -> None:
    path = tmp_path / "objects.db"
    await write_objects(path, "a")
    path.chmod(0o644)
    tmp_path.chmod(0o755)
    backend = SqliteBackend(path)
    assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == {0o600}
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755, "an existing folder keeps its mode"
    backend.close()


def test_a_file_that_is_no_database_keeps_its_mode(tmp_path: Path) -> None:
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
    backend = SqliteBackend(tmp_path / "objects.db")
    with pytest.raises(StorageBackendError, match="is in use by another cluster"):
        SqliteBackend(tmp_path / "objects.db")
    backend.close()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be looked at" * 20)
    with pytest.raises(StorageBackendError, match="cannot be used for objects"):
        SqliteBackend(path)


def test_delete_files_removes_all_files(tmp_path: Path) -> None:
    path = tmp_path / "objects.db"
    SqliteBackend(path).close()
    delete_files(path)
    assert list(tmp_path.iterdir()) == []
