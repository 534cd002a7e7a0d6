"""What can go wrong while devices are looked for, as opposed to not finding any.

"No devices here" is an answer (`Refusal`). These are the cases in which the search cannot answer: a claim, class or
slice that makes no sense, or no time left. kube-scheduler ends the attempt with the same sentence.
"""

from __future__ import annotations

from bayplan.errors import BayplanError


class AllocationError(BayplanError):
    """A claim, a class or a slice is such that no search can be made; the message names the object to mend."""


class AllocationTimeout(BayplanError):
    """The search took longer than it may. Fewer alternatives in the claims, or a longer `filterTimeout`, help."""

    def __init__(self, node: str) -> None:
        super().__init__(f"node {node}: timed out trying to allocate devices")
        self.node = node
