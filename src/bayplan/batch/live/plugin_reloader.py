"""Reload of changed plugin and action files.

Called before every session: one stat per file. Changed files are loaded, built once as a test, and activated before the
session opens, so that no session is lost and none runs with a partial load. If that fails, the previous plugins stay in
use, and the reason is logged once per state of the files.
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
    """Reloads the plugins and actions of an engine when their files change."""

    engine: BatchEngine
    read_version: Callable[[], object]
    load: Callable[[], tuple[BatchPluginSet, ActionSet]]
    fault: str = ""
    """Why the current files are not in use; "" if they are."""
    _loaded_version: object = field(init=False)

    def __post_init__(self) -> None:
        self._loaded_version = self.read_version()

    def reload_if_changed(self) -> None:
        try:
            version = self.read_version()
            if version == self._loaded_version:
                return
            self._loaded_version = version
            self.engine.replace_plugins(*self.load())
        except Exception as fault:  # errors in plugin files must not stop the process
            message = str(fault) if isinstance(fault, BayplanError | OSError) else f"{type(fault).__name__}: {fault}"
            if message != self.fault:
                log.error("plugins are not reloaded; the previous ones stay in use: %s", message)
            self.fault = message
            return
        self.fault = ""
        log.info("plugins are reloaded")
