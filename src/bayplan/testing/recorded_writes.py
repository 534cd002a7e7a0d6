"""Writes of plugins in tests: intents are recorded instead of performed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bayplan.framework.api.handle import Handle
from bayplan.framework.runtime.registry import RegisteredPlugin, Registry
from bayplan.scheduler.plugin_handle import EngineHandle, NoWrites


class RecordedWrites(NoWrites):
    """Records intents. `perform` raises `failure` if it is set, else it returns `answer`."""

    def __init__(self) -> None:
        self.performed: list[object] = []
        self.submitted: list[object] = []
        self.failure: Exception | None = None
        self.answer: Any = None

    async def perform(self, intent: object) -> Any:
        if self.failure is not None:
            raise self.failure
        self.performed.append(intent)
        return self.answer

    def submit(self, intent: object) -> None:
        self.submitted.append(intent)


@dataclass(frozen=True, slots=True)
class _RecordingEntry(RegisteredPlugin):
    """Builds its plugin with a handle that records writes; plugins may read `writes` during construction."""

    writes: RecordedWrites | None = None

    def build(self, args: Any, handle: Handle) -> Any:
        if isinstance(handle, EngineHandle) and self.writes is not None:
            handle.writes = self.writes
        return RegisteredPlugin.build(self, args, handle)


def with_recorded_writes(writes: RecordedWrites, registry: Registry) -> Registry:
    """The same plugins, with `writes` in their handle."""
    entries: Mapping[str, RegisteredPlugin] = {
        entry.name: _RecordingEntry(entry.name, entry.plugin, entry.args, writes) for entry in registry
    }
    return Registry(entries)
