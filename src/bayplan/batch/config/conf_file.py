"""A configuration that follows a volcano-scheduler.conf while the engine runs.

Checked when a session opens: one stat per session, and a load when the file changed. A ConfigMap's file is a link into
a folder that is replaced, so a new inode counts as a change. If the file is unreadable or invalid, the last valid
configuration (initially the built-in one) stays in force, and the error is reported until the file is corrected.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from bayplan.batch.config.scheduler_conf import BUILT_IN_ACTIONS, BatchConfiguration, SchedulerConfLoader

log = logging.getLogger(__name__)


class ConfFile:
    """A configuration that is read again whenever its file changes."""

    def __init__(self, path: Path, *, actions: Collection[str] = BUILT_IN_ACTIONS) -> None:
        self.path = path
        self._loader = SchedulerConfLoader(actions=actions)
        self._loaded_version: object = None
        self.check()

    def set_actions(self, actions: Collection[str]) -> None:
        """Change the known actions; the next check reads the file again."""
        self._loader.set_actions(actions)
        self._loaded_version = None

    @property
    def current(self) -> BatchConfiguration:
        return self._loader.current

    @property
    def fault(self) -> str:
        """Why the current file content is not in force; "" if it is."""
        return self._loader.error or ""

    def check(self) -> BatchConfiguration:
        """Check the file and return the configuration in force."""
        version = self._version()
        if version is None or version != self._loaded_version:
            self._loaded_version = version
            before, reported = self.current, self.fault
            self._loader.apply_file(self.path)
            if self.fault and self.fault != reported:
                log.error("%s", self.fault)
            elif not self.fault and (reported or self.current != before):
                log.info("%s is in force", self.path)
        return self.current

    def _version(self) -> object:
        """The version of the file; None if it cannot be read."""
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino, stat.st_dev
