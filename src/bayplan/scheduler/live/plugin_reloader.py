"""Have the files of plugins changed, and can what they hold now be used?

Asked every few seconds while the process runs. A look costs a stat a file. What changed is loaded and built while the
old plugins go on; if that fails they go on for good, and the reason is told once for each state of the files.
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
    """Where plugins come from: how their files look from outside, what is in them, and what is made of it."""

    file_versions: Callable[[], object]
    registry: Callable[[], Registry]
    configured: Callable[[Registry], Configuration]

    def load(self) -> tuple[Configuration, Registry]:
        registry = self.registry()
        return self.configured(registry), registry


@dataclass(slots=True)
class PluginReloader:
    """Keeps the plugins of a live scheduler in step with their files."""

    live: LiveScheduler
    source: PluginSource
    clock: LoopClock
    every_s: float = CHECK_INTERVAL_S
    fault: str = ""  # why the files of now are not in use; empty where they are
    _last_versions: object = field(default=None)

    async def run(self) -> None:
        while True:
            self.check_once()
            await self.clock.sleep(self.every_s)

    def check_once(self) -> None:
        """Take over what has changed since the last look."""
        try:
            seen = self.source.file_versions()
            if seen == self._last_versions:
                return
            self._last_versions = seen
            rebuilt = self.live.engine.build_profiles(*self.source.load())
        except Exception as fault:  # whatever somebody's file does, the process goes on
            told = str(fault) if isinstance(fault, BayplanError | OSError) else f"{type(fault).__name__}: {fault}"
            if told != self.fault:
                log.error("plugins are not reloaded, and those loaded before go on: %s", told)
            self.fault = told
            return
        self.fault = ""
        if rebuilt.changed:
            log.info("plugins are reloaded: %s", ", ".join(sorted(rebuilt.changed)))
            self.live.replace_profiles(rebuilt)
