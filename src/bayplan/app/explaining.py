"""Which engine says why? The one that serves the pod; of pods that nobody here serves, whoever knows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bayplan.objects.core import Pod
from bayplan.telemetry.answers import Answer

NOT_LEADING = "this instance does not lead, and has decided nothing; ask the one that does"


class Explainer(Protocol):
    """Explains the pods of one engine."""

    def serves(self, pod: Pod) -> bool: ...
    def find(self, namespace: str, name: str) -> Pod | None: ...
    async def answer(self, pod: Pod, *, now: bool = False) -> Answer: ...


async def why_of(explainers: Sequence[Explainer], namespace: str, name: str, *, now: bool) -> Answer | None:
    """The answer; None where no engine knows the pod."""
    known = [(each, pod) for each in explainers if (pod := each.find(namespace, name)) is not None]
    if not known:
        return None
    explainer, pod = next((each for each in known if each[0].serves(each[1])), known[0])
    return await explainer.answer(pod, now=now)
