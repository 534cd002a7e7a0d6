"""What does the file say now? The configuration that follows a volcano-scheduler.conf while the engine runs.

Asked when a session opens: a stat a session, and a load where the file is another one than last time. A ConfigMap's
file is a link into a folder that is replaced, so another inode counts as another file. A file that cannot be read or is
refused leaves the last good configuration in force (the built-in one to begin with), and says why until it is mended.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from bayplan.batch.config.scheduler_conf import BUILT_IN_ACTIONS, BatchConfiguration, SchedulerConfLoader

log = logging.getLogger(__name__)


class ConfFile:
    """A configuration that is read again whenever its file has changed."""

    def __init__(self, path: Path, *, actions: Collection[str] = BUILT_IN_ACTIONS) -> None:
        self.path = path
        self._loader = SchedulerConfLoader(actions=actions)
        self._loaded_version: object = None
        self.check()

    def set_actions(self, actions: Collection[str]) -> None:
        """Other actions can be named from now on; what the file says is read again for that."""
        self._loader.set_actions(actions)
        self._loaded_version = None

    @property
    def current(self) -> BatchConfiguration:
        return self._loader.current

    @property
    def fault(self) -> str:
        """Why what the file says now is not in force; nothing where it is."""
        return self._loader.error or ""

    def check(self) -> BatchConfiguration:
        """What is in force, now that the file has been looked at."""
        seen = self._version()
        if seen is None or seen != self._loaded_version:
            self._loaded_version = seen
            before, told = self.current, self.fault
            self._loader.apply_file(self.path)
            if self.fault and self.fault != told:
                log.error("%s", self.fault)
            elif not self.fault and (told or self.current != before):
                log.info("%s is in force", self.path)
        return self.current

    def _version(self) -> object:
        """Which version of the file this is; None where there is none to be seen."""
        try:
            seen = self.path.stat()
        except OSError:
            return None
        return seen.st_mtime_ns, seen.st_size, seen.st_ino, seen.st_dev
