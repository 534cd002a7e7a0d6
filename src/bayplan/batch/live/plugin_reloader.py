"""Have the files of plugins and actions changed, and can what they hold now be used?

Asked before every session: a stat a file. What changed is loaded, built once to see that it can be, and put in force
before the session opens, so that no session is lost and none runs on half of it. If that fails, what was loaded before
goes on, and the reason is told once for each state of the files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from bayplan.batch.engine import BatchEngine
from bayplan.batch.registry import ActionSet, PluginSet
from bayplan.errors import BayplanError

log = logging.getLogger(__name__)


@dataclass(slots=True)
class BatchReloading:
    """Keeps the plugins and actions of an engine in step with their files."""

    engine: BatchEngine
    looks: Callable[[], object]
    load: Callable[[], tuple[PluginSet, ActionSet]]
    fault: str = ""
    """Why the files of now are not in use; empty where they are."""
    _seen: object = field(init=False)

    def __post_init__(self) -> None:
        self._seen = self.looks()

    def look(self) -> None:
        """Take over what has changed since the last look."""
        try:
            seen = self.looks()
            if seen == self._seen:
                return
            self._seen = seen
            self.engine.renew(*self.load())
        except Exception as fault:  # whatever somebody's file does, the process goes on
            told = str(fault) if isinstance(fault, BayplanError | OSError) else f"{type(fault).__name__}: {fault}"
            if told != self.fault:
                log.error("plugins are not reloaded, and those loaded before go on: %s", told)
            self.fault = told
            return
        self.fault = ""
        log.info("plugins are reloaded")
