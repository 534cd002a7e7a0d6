"""SQLite file that holds the objects of the embedded API server: the newest state of each.

`Store` hands over one group of changes at a time; a group is one transaction, written in a thread. What "committed"
means is a choice (`DataSync`):

- `full`: the write-ahead log is synced to the disk in every commit. A committed write survives a power loss.
- `normal`: a commit writes to the file and does not wait for the disk. A committed write survives the end of the
  process, also by SIGKILL; a power loss may take the last commits away, and leaves a file that opens.

These are SQLite's `synchronous=FULL` and `NORMAL` in WAL mode. The file is readable by its owner alone.
Cost: about 30 µs of a second thread a write, and one sync a group in `full`; one row an object in the file.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from bayplan.apiserver.storage.store import Changes
from bayplan.errors import BayplanError

FORMAT = 1
DataSync = Literal["full", "normal"]

_SCHEMA = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE objects (
    api_group TEXT NOT NULL, plural TEXT NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, raw BLOB NOT NULL,
    PRIMARY KEY (api_group, plural, key)
);
"""
_PUT = "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)"
_DELETE = "DELETE FROM objects WHERE api_group = ? AND plural = ? AND key = ?"
_FACT = "INSERT OR REPLACE INTO facts VALUES (?, ?)"


class StorageBackendError(BayplanError):
    """The SQLite file of the embedded cluster cannot be used."""


class SqliteBackend:
    """The objects of one cluster in one file, locked for this process."""

    def __init__(self, path: Path, sync: DataSync = "full") -> None:
        self._path = path
        self._sync = sync
        self._thread = ThreadPoolExecutor(1, "journal")
        self._database = self._thread.submit(self._open).result()

    @property
    def version(self) -> int:
        """The version of the last commit; 0 before the first."""
        return self._thread.submit(self._fact, "version").result()

    def objects(self) -> Iterator[tuple[str, str, int, bytes]]:
        """(group, plural, version, text) of every stored object."""
        query = "SELECT api_group, plural, version, raw FROM objects"
        rows = self._thread.submit(lambda: self._database.execute(query).fetchall()).result()
        yield from rows

    def commit(self, version: int, changes: Changes) -> asyncio.Future[None]:
        return asyncio.get_running_loop().run_in_executor(self._thread, self._write, version, changes)

    def close(self) -> None:
        """Close the file after the running commit."""
        self._thread.submit(self._database.close).result()
        self._thread.shutdown()

    # In the writer thread

    def _open(self) -> sqlite3.Connection:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite gives its WAL the same mode
            database = sqlite3.connect(self._path, isolation_level=None, timeout=0.5)
            pragmas = ["locking_mode = EXCLUSIVE", "journal_mode = WAL", f"synchronous = {self._sync}"]
            if self._sync == "full":
                pragmas.append("fullfsync = ON")  # without it macOS does not wait for the disk
            for pragma in pragmas:
                database.execute(f"PRAGMA {pragma}")
            self._check(database)
            self._make_private()
        except (OSError, sqlite3.Error) as error:
            raise StorageBackendError(_cannot_open(self._path, error)) from None
        return database

    def _make_private(self) -> None:
        """Restrict files of earlier versions, which other users could read."""
        for path in database_files(self._path):
            if path.exists() and path.stat().st_mode & 0o077:
                path.chmod(0o600)

    def _check(self, database: sqlite3.Connection) -> None:
        database.execute("BEGIN IMMEDIATE")
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        if not tables:
            for statement in _SCHEMA.split(";"):
                database.execute(statement)
            database.execute(_FACT, ("format", FORMAT))
        found = next(iter(database.execute("SELECT value FROM facts WHERE name = 'format'")), (0,))[0]
        database.execute("COMMIT")
        if found != FORMAT:
            raise StorageBackendError(
                f"{self._path} has format {found}, and this version reads format {FORMAT}; "
                "open it with the version of Bayplan that created it, or use another file"
            )

    def _fact(self, name: str) -> int:
        found = self._database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return int(found[0]) if found else 0

    def _write(self, version: int, changes: Changes) -> None:
        # Of several states of one object in a group only the last is written.
        newest = {(*group_resource, change.entry.key): change for group_resource, change in changes}
        run = self._database.execute
        try:
            run("BEGIN IMMEDIATE")
            for key, change in newest.items():
                if change.after is None:
                    run(_DELETE, key)
                else:
                    run(_PUT, (*key, change.version, change.after.raw))
            run(_FACT, ("version", version))
            run("COMMIT")
        except sqlite3.Error as error:
            if self._database.in_transaction:
                run("ROLLBACK")
            raise StorageBackendError(f"cannot write {self._path}: {error}") from None


def database_files(path: Path) -> Iterator[Path]:
    """The database file and the files that SQLite adds to it."""
    return (path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm"))


def delete_files(path: Path) -> None:
    """Delete the database file and the files that SQLite adds to it."""
    for each in database_files(path):
        each.unlink(missing_ok=True)


def _cannot_open(path: Path, error: Exception) -> str:
    if "locked" in str(error):
        return f"{path} is in use by another cluster; stop that cluster or use another file"
    return f"{path} cannot be used for objects: {error}; use a writable path, or a file that `cluster up` created"
