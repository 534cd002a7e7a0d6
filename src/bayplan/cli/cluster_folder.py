"""Folder of an embedded cluster: certificate, token, kubeconfig, log and the record of the running process.

The log exists if the cluster runs detached. `running.json` is valid as long as a process holds the lock next to it. A
process that is killed loses the lock, so the record is never stale.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from bayplan.errors import BayplanError, UsageError

DEFAULT_NAME = "bayplan"
_POLL_S = 0.05


class ClusterFolderError(BayplanError):
    """The cluster is not in the state that the command needs."""


@dataclass(frozen=True, slots=True)
class RunningCluster:
    pid: int
    url: str
    data: str = ""
    starts: int = 1
    """Number of starts in this process; a reset is one."""
    page: str = ""
    """The URL of its page."""


@dataclass(frozen=True, slots=True)
class ClusterFolder:
    path: Path
    name: str = DEFAULT_NAME

    @classmethod
    def of_name(cls, name: str, env: Mapping[str, str]) -> ClusterFolder:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", name):
            raise UsageError(f'invalid cluster name "{name}"; use letters, digits, "-", "_" and "."')
        state = env.get("XDG_STATE_HOME") or str(Path(env.get("HOME") or "~").expanduser() / ".local" / "state")
        return cls(Path(state) / "bayplan" / "clusters" / name, name)

    @classmethod
    def serving(cls, url: str, env: Mapping[str, str]) -> RunningCluster | None:
        """This user's running cluster at an address, if there is one."""
        folders = cls.of_name(DEFAULT_NAME, env).path.parent.glob("*")
        known = (cls(folder, folder.name).running() for folder in folders)
        return next((each for each in known if each is not None and each.url == url), None)

    @property
    def kubeconfig(self) -> Path:
        return self.path / "kubeconfig"

    @property
    def log(self) -> Path:
        return self.path / "cluster.log"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of the process that runs this cluster."""
        with self._writable():
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = (self.path / "lock").open("w")
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                known = self.running()
                where = f" at {known.url}" if known else ""
                raise ClusterFolderError(
                    f'the cluster "{self.name}" is up already{where}; stop it with `bayplan cluster down`, '
                    "or start another one with --name"
                ) from None
            try:
                yield
            finally:
                self._record.unlink(missing_ok=True)

    def write_record(self, running: RunningCluster) -> None:
        new = self._record.with_suffix(".new")
        with self._writable():
            new.write_text(json.dumps(asdict(running)))
            new.replace(self._record)

    def running(self) -> RunningCluster | None:
        try:
            with (self.path / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return None
        except BlockingIOError:
            with contextlib.suppress(OSError, ValueError, TypeError):
                return RunningCluster(**json.loads(self._record.read_text()))
        except OSError as fault:
            raise self._folder_error(fault) from None
        return None

    def require_running(self) -> RunningCluster:
        found = self.running()
        if found is None:
            raise ClusterFolderError(f'the cluster "{self.name}" is not up; start it with `bayplan cluster up`')
        return found

    def stop(self, wait_s: float = 60.0) -> bool:
        """Stop the cluster. Returns whether it was running."""
        found = self.running()
        if found is None:
            return False
        os.kill(found.pid, signal.SIGTERM)
        self._wait_until(lambda: self.running() is None, wait_s, f"did not stop within {wait_s:g} s; see {self.log}")
        return True

    def reset(self, wait_s: float = 300.0) -> RunningCluster:
        """Restart the running cluster without its objects."""
        before = self.require_running()
        os.kill(before.pid, signal.SIGHUP)

        def has_restarted() -> bool:
            now = self.running()
            return now is not None and now.starts > before.starts

        self._wait_until(has_restarted, wait_s, f"did not restart within {wait_s:g} s; see {self.log}")
        return self.require_running()

    def _wait_until(self, done: Callable[[], bool], wait_s: float, complaint: str) -> None:
        deadline = time.monotonic() + wait_s
        while not done():
            if time.monotonic() > deadline:
                raise ClusterFolderError(f'the cluster "{self.name}" {complaint}')
            time.sleep(_POLL_S)

    @contextlib.contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as fault:
            raise self._folder_error(fault) from None

    def _folder_error(self, fault: OSError) -> ClusterFolderError:
        """An error of the folder, with its path and the way to choose another one."""
        return ClusterFolderError(
            f"cannot use {fault.filename or self.path} for the clusters of this user: {fault.strerror}; "
            "set XDG_STATE_HOME to a writable folder"
        )

    @property
    def _record(self) -> Path:
        return self.path / "running.json"
