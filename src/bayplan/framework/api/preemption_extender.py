"""Protocol of an extender that takes part in preemption."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from bayplan.framework.preemption.victims import Victims
from bayplan.objects.core import Pod


@dataclass(frozen=True, slots=True)
class NamedVictims:
    """Victims on one node as an extender returns them: by uid."""

    uids: tuple[str, ...]
    violations: int = 0


class PreemptionExtender(Protocol):
    """An extender that can remove preemption candidates, or change the victims of one."""

    @property
    def name(self) -> str: ...
    @property
    def ignorable(self) -> bool: ...

    def supports_preemption(self, pod: Pod) -> bool:
        """Whether the extender takes part in preemption and is interested in this pod."""
        ...

    def process_preemption(self, pod: Pod, candidates: Mapping[str, Victims]) -> Mapping[str, NamedVictims]:
        """Return the remaining candidates. Raises `BayplanError` if the extender fails."""
        ...
