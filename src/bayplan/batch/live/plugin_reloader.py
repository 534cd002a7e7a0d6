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
from bayplan.batch.registry import ActionSet, BatchPluginSet
from bayplan.errors import BayplanError

log = logging.getLogger(__name__)


@dataclass(slots=True)
class BatchPluginReloader:
    """Keeps the plugins and actions of an engine in step with their files."""

    engine: BatchEngine
    read_version: Callable[[], object]
    load: Callable[[], tuple[BatchPluginSet, ActionSet]]
    fault: str = ""
    """Why the files of now are not in use; empty where they are."""
    _loaded_version: object = field(init=False)

    def __post_init__(self) -> None:
        self._loaded_version = self.read_version()

    def reload_if_changed(self) -> None:
        """Take over what has changed since the last look."""
        try:
            seen = self.read_version()
            if seen == self._loaded_version:
                return
            self._loaded_version = seen
            self.engine.replace_plugins(*self.load())
        except Exception as fault:  # whatever somebody's file does, the process goes on
            told = str(fault) if isinstance(fault, BayplanError | OSError) else f"{type(fault).__name__}: {fault}"
            if told != self.fault:
                log.error("plugins are not reloaded, and those loaded before go on: %s", told)
            self.fault = told
            return
        self.fault = ""
        log.info("plugins are reloaded")
