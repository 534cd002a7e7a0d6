"""How do the objects outlive the process? One SQLite file holds the newest state of each, in the order of commits.

The store hands over every change; whatever has gathered while the last transaction was under way is committed as one,
in a thread, and the store is told the version up to which nothing can be lost. A process that is killed at any moment
leaves a file that opens again (write-ahead log). After an opening the counter starts well beyond all that a client can
have seen, so that no version ever means two things.
Cost: about 30 µs of a second thread a write; one row an object in the file.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bayplan.cluster.ring import Change
from bayplan.errors import BayplanError

FORMAT = 1
GAP = 1_000
"""Versions that may have been seen and not committed when the process ended; the next one starts behind them."""

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

Row = tuple[str, str, str, int, bytes | None]
"""A state of an object; without a text it is gone."""


class JournalError(BayplanError):
    """The file of the embedded cluster cannot be used."""


class SqliteJournal:
    """The objects of one cluster in one file. Nobody else may have it open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, "journal")
        self._rows: list[Row] = []
        self._busy = False
        self._told: Callable[[int], None] = lambda _: None
        self._failed: Callable[[Exception], None] = lambda _: None
        self._database = self._thread.submit(self._open).result()

    @property
    def version(self) -> int:
        """Where the counter goes on."""
        known = self._thread.submit(self._fact, "version").result()
        return known + GAP if known else 0

    def objects(self) -> Iterator[tuple[str, str, int, bytes]]:
        """(group, plural, version, text) of everything that was kept."""
        query = "SELECT api_group, plural, version, raw FROM objects"
        rows = self._thread.submit(lambda: self._database.execute(query).fetchall()).result()
        yield from rows

    def on_commit(self, told: Callable[[int], None]) -> None:
        self._told = told

    def on_failure(self, told: Callable[[Exception], None]) -> None:
        self._failed = told

    def record(self, place: tuple[str, str], change: Change) -> None:
        gone = change.type == "DELETED"
        self._rows.append((*place, change.entry.key, change.version, None if gone else change.entry.raw))
        if not self._busy:
            self._busy = True
            asyncio.get_running_loop().call_soon(self._flush)

    def close(self) -> None:
        """Commit what is left and let go of the file."""
        rows, self._rows = self._rows, []
        try:
            if rows:
                self._thread.submit(self._write, rows).result()
        finally:
            self._thread.submit(self._database.close).result()
            self._thread.shutdown()

    # On the loop.

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        if not rows:  # it was closed meanwhile
            self._busy = False
            return
        task = asyncio.get_running_loop().run_in_executor(self._thread, self._write, rows)
        task.add_done_callback(lambda done: self._flushed(rows[-1][3], done.exception()))

    def _flushed(self, version: int, error: BaseException | None) -> None:
        if error is not None:
            self._failed(JournalError(f"{self._path} cannot be written: {error}; make room there and start anew"))
            return
        self._told(version)
        if self._rows:
            self._flush()
        else:
            self._busy = False

    # In the thread.

    def _open(self) -> sqlite3.Connection:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(self._path, isolation_level=None, timeout=0.5)
            for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = NORMAL"):
                database.execute(f"PRAGMA {pragma}")
            self._check(database)
        except (OSError, sqlite3.Error) as fault:
            raise JournalError(_cannot_open(self._path, fault)) from None
        return database

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
            raise JournalError(
                f"{self._path} has format {found}, and this version reads format {FORMAT}; "
                "open it with the version of Bayplan that made it, or name another file"
            )

    def _fact(self, name: str) -> int:
        found = self._database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return int(found[0]) if found else 0

    def _write(self, rows: list[Row]) -> None:
        newest = {row[:3]: row for row in rows}  # of several states of one object in a batch the last is enough
        run = self._database.execute
        run("BEGIN IMMEDIATE")
        try:
            for row in newest.values():
                if row[4] is None:
                    run(_DELETE, row[:3])
                else:
                    run(_PUT, row)
            run(_FACT, ("version", rows[-1][3]))
            run("COMMIT")
        except sqlite3.Error:
            if self._database.in_transaction:
                run("ROLLBACK")
            raise


def remove(path: Path) -> None:
    """Delete the file, and what SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _cannot_open(path: Path, fault: Exception) -> str:
    if "locked" in str(fault):
        return f"{path} is in use by another cluster; end that one or name another file"
    return f"{path} cannot be used for objects: {fault}; name a file that can be written, or one that `cluster up` made"
