"""Reloads plugins whose files have changed.

`run` checks every few seconds while the process runs. A check costs one stat for each file. Changed files are loaded
and built while the old plugins stay in use. If that fails, they remain in use, and the reason is logged once for each
version of the files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from bayplan.clock import LoopClock
from bayplan.config.model import Configuration
from bayplan.errors import BayplanError
from bayplan.framework.runtime.registry import Registry
from bayplan.scheduler.live.run_loop import LiveScheduler

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 2.0


@dataclass(frozen=True, slots=True)
class PluginSource:
    """Source of plugins: versions of their files, the registry in them, and the configuration that fits it."""

    file_versions: Callable[[], object]
    registry: Callable[[], Registry]
    configured: Callable[[Registry], Configuration]

    def load(self) -> tuple[Configuration, Registry]:
        registry = self.registry()
        return self.configured(registry), registry


@dataclass(slots=True)
class PluginReloader:
    """Keeps the plugins of a live scheduler up to date with their files."""

    live: LiveScheduler
    source: PluginSource
    clock: LoopClock
    every_s: float = CHECK_INTERVAL_S
    fault: str = ""  # why the current files are not in use; empty if they are
    _last_versions: object = field(default=None)

    async def run(self) -> None:
        while True:
            self.check_once()
            await self.clock.sleep(self.every_s)

    def check_once(self) -> None:
        """Load the plugins if their files have changed since the last check."""
        try:
            versions = self.source.file_versions()
            if versions == self._last_versions:
                return
            self._last_versions = versions
            rebuilt = self.live.engine.build_profiles(*self.source.load())
        except Exception as fault:  # a broken plugin file must not stop the process
            message = str(fault) if isinstance(fault, BayplanError | OSError) else f"{type(fault).__name__}: {fault}"
            if message != self.fault:
                log.error("plugins are not reloaded; the previous ones stay in use: %s", message)
            self.fault = message
            return
        self.fault = ""
        if rebuilt.changed:
            log.info("plugins are reloaded: %s", ", ".join(sorted(rebuilt.changed)))
            self.live.replace_profiles(rebuilt)
