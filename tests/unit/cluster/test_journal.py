"""Objects that outlive the process, in a file that says what it is."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from bayplan.cluster.journal import GAP, JournalError, SqliteJournal, remove
from bayplan.cluster.store import Store
from wire_server import on_loop

PODS = ("", "pods")


def tree(name: str) -> dict[str, object]:
    return {"metadata": {"name": name, "namespace": "default", "uid": name}}


async def written(path: Path, *names: str, deleted: str = "") -> int:
    journal = SqliteJournal(path)
    store = Store(journal, version=journal.version)
    place = store.place(PODS)
    for name in names:
        store.put(place, tree(name))
    await store.settled()
    if deleted:
        entry = place.get("default", deleted)
        assert entry is not None
        store.delete(place, entry)
        await store.settled()
    await asyncio.to_thread(journal.close)
    return store.version


def kept(path: Path) -> dict[str, int]:
    journal = SqliteJournal(path)
    store = Store()
    for group, plural, version, raw in journal.objects():
        store.restore((group, plural), raw, version)
    journal.close()
    return {entry.name: entry.version for entry in store.place(PODS).entries()}


@on_loop
async def test_what_was_settled_is_there_after_an_opening(tmp_path: Path) -> None:
    path = tmp_path / "objects.db"
    await written(path, "a", "b", "c", deleted="b")
    assert kept(path) == {"a": 1, "c": 3}


@on_loop
async def test_versions_go_on_well_behind_those_that_may_have_been_seen(tmp_path: Path) -> None:
    path = tmp_path / "objects.db"
    last = await written(path, "a", deleted="a")
    journal = SqliteJournal(path)
    assert journal.version == last + GAP
    journal.close()


@on_loop
async def test_what_was_settled_survives_a_process_that_never_closes(tmp_path: Path) -> None:
    path = tmp_path / "objects.db"
    journal = SqliteJournal(path)
    store = Store(journal)
    store.put(store.place(PODS), tree("a"))
    await store.settled()
    copies = [path.with_name(path.name + suffix) for suffix in ("", "-wal")]
    other = tmp_path / "copy"
    other.mkdir()
    for each in copies:  # what a kill would leave
        (other / each.name).write_bytes(each.read_bytes())
    assert kept(other / "objects.db") == {"a": 1}
    journal.close()


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "objects.db"
    SqliteJournal(path).close()
    with sqlite3.connect(path) as database:
        database.execute("UPDATE facts SET value = 99 WHERE name = 'format'")
    database.close()
    with pytest.raises(JournalError, match=r"has format 99, and this version reads format 1; open it with"):
        SqliteJournal(path)


def test_a_file_in_use_is_refused(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "objects.db")
    with pytest.raises(JournalError, match="is in use by another cluster"):
        SqliteJournal(tmp_path / "objects.db")
    journal.close()


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to be looked at" * 20)
    with pytest.raises(JournalError, match="cannot be used for objects"):
        SqliteJournal(path)


def test_removing_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "objects.db"
    SqliteJournal(path).close()
    remove(path)
    assert list(tmp_path.iterdir()) == []
