"""Which candidates for preemption are left when those outside have had their say?

Asked between the dry run and the choice. An extender is anything of the protocol's shape; how it is reached is not
known here: `extender_steps` yields a question for each, and whoever drives it may await the answer. `run_extenders` is
for those that answer at once. Cost: that of the extenders."""

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
"""What an extender said, or why it said nothing."""


@dataclass(frozen=True, slots=True)
class ExtenderQuestion:
    """An extender is to say which of these candidates remain."""

    extender: PreemptionExtender
    pod: Pod
    candidates: Mapping[str, Victims]

    def answer_sync(self) -> ExtenderAnswer:
        """What an extender says that answers at once."""
        try:
            return self.extender.process_preemption(self.pod, self.candidates)
        except BayplanError as fault:
            return fault


RemainingCandidates = Mapping[str, Victims] | Status
"""The candidates that remain, or what went wrong."""


def extender_steps(
    candidates: Mapping[str, Victims], pod: Pod, extenders: Iterable[PreemptionExtender], nodes: NodeColumns
) -> Generator[ExtenderQuestion, ExtenderAnswer, RemainingCandidates]:
    """The candidates that every extender leaves, each asked about what the ones before have left."""
    for extender in extenders:
        if not candidates:
            break
        if not extender.supports_preemption(pod):
            continue
        answer = yield ExtenderQuestion(extender, pod, candidates)
        left = apply_extender_answer(answer, extender, candidates, nodes)
        if isinstance(left, Status):
            return left
        candidates = left
    return candidates


def run_extenders(
    candidates: Mapping[str, Victims], pod: Pod, extenders: Iterable[PreemptionExtender], nodes: NodeColumns
) -> RemainingCandidates:
    """The same where every extender answers at once."""
    return run_steps(extender_steps(candidates, pod, extenders, nodes))


def run_steps(steps: Generator[ExtenderQuestion, ExtenderAnswer, T]) -> T:
    """What comes out where every question is answered at once."""
    try:
        question = next(steps)
        while True:
            question = steps.send(question.answer_sync())
    except StopIteration as done:
        outcome: T = done.value
        return outcome


def apply_extender_answer(
    answer: ExtenderAnswer, extender: PreemptionExtender, candidates: Mapping[str, Victims], nodes: NodeColumns
) -> RemainingCandidates:
    """The candidates after one extender's answer. One that fails ends it, unless it may be ignored."""
    try:
        if isinstance(answer, BayplanError):
            raise answer
        left = _victims_by_uid(answer, extender.name, nodes)
    except BayplanError as fault:
        return candidates if extender.ignorable else error(str(fault))
    empty = [name for name, victims in left.items() if not victims.pods]
    if empty and not extender.ignorable:
        return no_victims_status(empty[0])
    return {name: victims for name, victims in left.items() if victims.pods}


class UnknownVictim(BayplanError):
    """An extender named a node or a pod that is not there."""


def _victims_by_uid(answer: Mapping[str, NamedVictims], extender: str, nodes: NodeColumns) -> dict[str, Victims]:
    """An extender's answer with pods instead of uids; `UnknownVictim` if one is not on its node."""
    found: dict[str, Victims] = {}
    for node_name, named in answer.items():
        row = nodes.index.get(node_name)
        if row is None:
            raise UnknownVictim(f"nodeinfo not found for node name {quote(node_name)}")
        there = {info.uid: info.pod for info in nodes.pods[row]}
        for uid in named.uids:
            if uid not in there:
                raise UnknownVictim(
                    f"extender: {extender} claims to preempt pod (UID: &{{{uid}}}) on node: {node_name}, "
                    "but the pod is not found on that node"
                )
        found[node_name] = Victims(tuple(there[uid] for uid in named.uids), named.violations)
    return found
