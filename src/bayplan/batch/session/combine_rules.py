"""How the answers of several plugins become one: a function a rule.

`points.POINTS` says which rule a point has; `Session` asks through it. Every call of plugin code in a session that is
not about nodes passes here. A plugin that raises, or answers what makes no sense, is named
(`PointFunctions.record_fault`) and counts as one without an opinion; the others decide.

Tiers matter to votes, victims and starving; to orders and to "all must agree" they are one flat list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence, Set
from enum import IntEnum
from numbers import Real
from typing import Any

from bayplan.batch.diagnostics.plugin_faults import InvalidAnswer
from bayplan.batch.model.tasks import Task
from bayplan.framework.runtime.plugin_call import PLUGIN_EXCEPTIONS

Fn = Callable[..., Any]
NamedFn = tuple[str, Fn]


NO_FUNCTION: Any = object()
"""What there is where the first plugin decides and there is none, or none that works."""


class Vote(IntEnum):
    """A plugin's word on a job: Permit decides once its tier is through, Reject at once."""

    PERMIT = 1
    ABSTAIN = 0
    REJECT = -1


class PointFunctions:
    """The functions that answer at one point, in order, and where to complain about them."""

    __slots__ = ("expected_answer", "flat", "is_valid_answer", "record_fault", "tiers", "veto_is_final")

    def __init__(
        self,
        tiers: Sequence[Sequence[NamedFn]],
        blame: Callable[[str, BaseException], None],
        *,
        accepts: Callable[..., bool] | None = None,
        wanted: str = "",
        veto_is_final: bool = False,
    ) -> None:
        self.veto_is_final = veto_is_final  # whether a tier that agrees on no victim has the last word
        self.tiers = tuple(tuple(tier) for tier in tiers if tier)
        self.flat = tuple(named for tier in self.tiers for named in tier)
        self.record_fault = blame  # (plugin, what it raised, or Nonsense)
        self.is_valid_answer = accepts  # (answer, *what was asked), where the rule itself cannot tell what makes sense
        self.expected_answer = wanted

    def reject_answer(self, plugin: str, answer: object, wanted: str) -> None:
        self.record_fault(plugin, InvalidAnswer(answer, wanted))

    def check_answer(self, answer: Any, *args: Any) -> Any:
        """The answer, if it makes sense."""
        if answer is not None and self.is_valid_answer is not None and not self.is_valid_answer(answer, *args):
            raise InvalidAnswer(answer, self.expected_answer)
        return answer


def first_nonzero(asked: PointFunctions, *args: Any) -> int:
    """Orders: negative, the left comes first; 0, nobody cares."""
    for plugin, fn in asked.flat:
        try:
            answer = fn(*args)
        except PLUGIN_EXCEPTIONS as fault:
            asked.record_fault(plugin, fault)
            continue
        if answer is None:
            continue
        if type(answer) is not int and not _is_order(answer):
            asked.reject_answer(plugin, answer, "a number below, above or equal to 0")
        elif answer:
            return -1 if answer < 0 else 1
    return 0


def _is_order(answer: Any) -> bool:
    """No truth, in particular: whoever answers `left < right` has turned the order around."""
    return isinstance(answer, Real) and not isinstance(answer, bool) and not math.isnan(answer)


def unanimous(asked: PointFunctions, *args: Any) -> bool:
    """True unless somebody says no."""
    return _first_matching(False, asked, asked.flat, args) is not False


def any_true(asked: PointFunctions, *args: Any) -> bool:
    """True as soon as somebody says yes."""
    return _first_matching(True, asked, asked.flat, args) is True


def _first_matching(what: bool, asked: PointFunctions, among: Sequence[NamedFn], args: tuple[Any, ...]) -> bool | None:
    """`what`, as soon as somebody says so; else what the others say; None where nobody says anything sensible."""
    said: bool | None = None
    for plugin, fn in among:
        try:
            answer = fn(*args)
        except PLUGIN_EXCEPTIONS as fault:
            asked.record_fault(plugin, fault)
            continue
        if answer is not True and answer is not False:
            is_number = isinstance(answer, int) and answer in (0, 1)
            if type(answer).__name__ != "bool" and not is_number:  # a NumPy boolean, or 0 and 1, will do
                asked.reject_answer(plugin, answer, "True or False")
                continue
            answer = bool(answer)
        if answer is what:
            return what
        said = answer
    return said


def vote(asked: PointFunctions, *args: Any) -> bool:
    """A Reject ends it; a tier in which somebody permits ends it too; nobody against it is a yes."""
    for tier in asked.tiers:
        permitted = False
        for plugin, fn in tier:
            try:
                answer = fn(*args)
            except PLUGIN_EXCEPTIONS as fault:
                asked.record_fault(plugin, fault)
                continue
            if not isinstance(answer, int) or isinstance(answer, bool):
                asked.reject_answer(plugin, answer, "a Vote")
            elif answer < 0:
                return False
            elif answer > 0:
                permitted = True
        if permitted:
            return True
    return True


def unanimous_in_first_tier(asked: PointFunctions, *args: Any) -> bool:
    """All plugins of the first tier that says anything must say yes; False where nobody does."""
    for tier in asked.tiers:
        said = _first_matching(False, asked, tier, args)
        if said is not None:
            return said
    return False


def victims_of_tier(asked: PointFunctions, *args: Any) -> list[Task]:
    """Victims on which the plugins of a tier agree; the first tier that has some decides.

    Upstream's corners are kept unless a veto is to be final: an empty list vetoes its own tier only; an intersection
    that becomes empty counts as "nobody spoke yet"; every plugin sees all candidates. None abstains.
    """
    known = {task.uid for task in args[-1]}
    for tier in asked.tiers:
        victims: list[Task] | None = None
        for plugin, fn in tier:
            try:
                answer = fn(*args)
                found = None if answer is None else _check_victims(answer, known)
            except PLUGIN_EXCEPTIONS as fault:
                asked.record_fault(plugin, fault)
                continue
            if found is None:
                continue
            if not found:
                if asked.veto_is_final:
                    return []
                victims = None
                break
            if victims is None:
                victims = found
            else:
                named = {task.uid for task in found}
                victims = [task for task in victims if task.uid in named] or None
                if victims is None and asked.veto_is_final:
                    return []
        if victims is not None:
            return victims
    return []


def _check_victims(answer: Any, known: Set[str]) -> list[Task]:
    """A plugin's answer, if it is some of the candidates: anybody else may be where nobody wants to evict."""
    found = _tasks(answer)
    if not all(task.uid in known for task in found):
        raise InvalidAnswer(found, "a list of some of the candidates, or None to abstain,")
    return found


def _tasks(answer: Any) -> list[Task]:
    found = list(answer) if isinstance(answer, Iterable) else [answer]
    if not all(isinstance(task, Task) for task in found):
        raise InvalidAnswer(answer, "a list of tasks")
    return found


def union_of_tier(asked: PointFunctions, *args: Any) -> list[Task]:
    """All tasks that the plugins of a tier name, each once; the first tier that names any decides."""
    for tier in asked.tiers:
        found: dict[str, Task] = {}
        for plugin, fns in tier:
            for fn in _as_list(fns):
                try:
                    found.update((task.uid, task) for task in _tasks(fn(*args)))
                except PLUGIN_EXCEPTIONS as fault:
                    asked.record_fault(plugin, fault)
        if found:
            return list(found.values())
    return []


def _as_list(fns: Any) -> Sequence[Fn]:
    return fns if isinstance(fns, (list, tuple)) else (fns,)


def first_answer(asked: PointFunctions, *args: Any) -> Any:
    """The first answer that is not None."""
    for plugin, fn in asked.flat:
        try:
            answer = asked.check_answer(fn(*args), *args)
        except PLUGIN_EXCEPTIONS as fault:
            asked.record_fault(plugin, fault)
            continue
        if answer is not None:
            return answer
    return None


def first_registered(asked: PointFunctions, *args: Any) -> Any:
    """What the first plugin says, be it None; the next is asked only if that one breaks. NOBODY: there is no other."""
    for plugin, fn in asked.flat:
        try:
            return asked.check_answer(fn(*args), *args)
        except PLUGIN_EXCEPTIONS as fault:
            asked.record_fault(plugin, fault)
    return NO_FUNCTION


def call_all(asked: PointFunctions, *args: Any) -> None:
    """Tell all of them."""
    for plugin, fn in asked.flat:
        try:
            fn(*args)
        except PLUGIN_EXCEPTIONS as fault:
            asked.record_fault(plugin, fault)


def answers_by_plugin(asked: PointFunctions, *args: Any) -> dict[str, Any]:
    """Every plugin's own answer; whoever asked adds them up."""
    answers: dict[str, Any] = {}
    for plugin, fn in asked.flat:
        try:
            answer = asked.check_answer(fn(*args), *args)
        except PLUGIN_EXCEPTIONS as fault:
            asked.record_fault(plugin, fault)
            continue
        if answer is not None:
            answers[plugin] = answer
    return answers
