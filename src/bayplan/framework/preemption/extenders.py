"""Calls the extenders of a preemption, which remove candidates or change their victims.

Runs between the dry run and the choice of a node. An extender is any object that matches the protocol; its transport is
unknown here. `extender_steps` yields a question for each extender, and the caller may await the answer. `run_extenders`
is for synchronous extenders. Cost: that of the extenders.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from bayplan.codec.go_text import quote
from bayplan.errors import BayplanError
from bayplan.framework.api.preemption_extender import NamedVictims, PreemptionExtender
from bayplan.framework.api.status import Status, error
from bayplan.framework.preemption.victims import Victims, no_victims_status
from bayplan.objects.core import Pod
from bayplan.snapshot import NodeColumns

T = TypeVar("T")


ExtenderAnswer = Mapping[str, NamedVictims] | BayplanError
"""The answer of an extender, or its error."""


@dataclass(frozen=True, slots=True)
class ExtenderQuestion:
    """A request to an extender to select the remaining candidates."""

    extender: PreemptionExtender
    pod: Pod
    candidates: Mapping[str, Victims]

    def call(self) -> ExtenderAnswer:
        """Call a synchronous extender."""
        try:
            return self.extender.process_preemption(self.pod, self.candidates)
        except BayplanError as fault:
            return fault


RemainingCandidates = Mapping[str, Victims] | Status
"""The remaining candidates, or an error."""


def extender_steps(
    candidates: Mapping[str, Victims], pod: Pod, extenders: Iterable[PreemptionExtender], nodes: NodeColumns
) -> Generator[ExtenderQuestion, ExtenderAnswer, RemainingCandidates]:
    """Pass the candidates through all extenders in order. Each gets the candidates that the previous ones left."""
    for extender in extenders:
        if not candidates:
            break
        if not extender.supports_preemption(pod):
            continue
        answer = yield ExtenderQuestion(extender, pod, candidates)
        remaining = apply_extender_answer(answer, extender, candidates, nodes)
        if isinstance(remaining, Status):
            return remaining
        candidates = remaining
    return candidates


def run_extenders(
    candidates: Mapping[str, Victims], pod: Pod, extenders: Iterable[PreemptionExtender], nodes: NodeColumns
) -> RemainingCandidates:
    """Run all extenders synchronously."""
    return run_steps(extender_steps(candidates, pod, extenders, nodes))


def run_steps(steps: Generator[ExtenderQuestion, ExtenderAnswer, T]) -> T:
    """Run a generator of questions to the end with synchronous answers."""
    try:
        question = next(steps)
        while True:
            question = steps.send(question.call())
    except StopIteration as stop:
        outcome: T = stop.value
        return outcome


def apply_extender_answer(
    answer: ExtenderAnswer, extender: PreemptionExtender, candidates: Mapping[str, Victims], nodes: NodeColumns
) -> RemainingCandidates:
    """Apply one extender's answer. A failure ends preemption, unless the extender is ignorable."""
    try:
        if isinstance(answer, BayplanError):
            raise answer
        remaining = _victims_by_uid(answer, extender.name, nodes)
    except BayplanError as fault:
        return candidates if extender.ignorable else error(str(fault))
    empty = [name for name, victims in remaining.items() if not victims.pods]
    if empty and not extender.ignorable:
        return no_victims_status(empty[0])
    return {name: victims for name, victims in remaining.items() if victims.pods}


class UnknownVictim(BayplanError):
    """An extender returned a node or a pod that does not exist."""


def _victims_by_uid(answer: Mapping[str, NamedVictims], extender: str, nodes: NodeColumns) -> dict[str, Victims]:
    """Convert an extender's answer from uids to pods. Raises `UnknownVictim` if a pod is not on its node."""
    found: dict[str, Victims] = {}
    for node_name, named in answer.items():
        row = nodes.index.get(node_name)
        if row is None:
            raise UnknownVictim(f"nodeinfo not found for node name {quote(node_name)}")
        pods_by_uid = {info.uid: info.pod for info in nodes.pods[row]}
        for uid in named.uids:
            if uid not in pods_by_uid:
                raise UnknownVictim(
                    f"extender: {extender} claims to preempt pod (UID: &{{{uid}}}) on node: {node_name}, "
                    "but the pod is not found on that node"
                )
        found[node_name] = Victims(tuple(pods_by_uid[uid] for uid in named.uids), named.violations)
    return found
