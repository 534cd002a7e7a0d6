"""Rules that combine the answers of several plugins: one function per rule.

`extension_points.POINTS` assigns a rule to each point; `Session` calls it. Every call of plugin code in a session
passes here, except calls about nodes. A plugin that raises or returns an invalid answer is reported
(`PointFunctions.record_fault`) and counts as abstaining.

Votes, victims and starving evaluate tier by tier; orders and "all must agree" use one flat list.
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
"""Result of `first_registered` when no plugin has a working function."""


class Vote(IntEnum):
    """A plugin's vote on a job: a Permit decides after its tier, a Reject at once."""

    PERMIT = 1
    ABSTAIN = 0
    REJECT = -1


class PointFunctions:
    """The functions of one point, in order, and the recorder of their faults."""

    __slots__ = ("expected_answer", "flat", "is_valid_answer", "record_fault", "tiers", "veto_is_final")

    def __init__(
        self,
        tiers: Sequence[Sequence[NamedFn]],
        record_fault: Callable[[str, BaseException], None],
        *,
        is_valid_answer: Callable[..., bool] | None = None,
        expected_answer: str = "",
        veto_is_final: bool = False,
    ) -> None:
        self.veto_is_final = veto_is_final  # whether a tier that agrees on no victim decides
        self.tiers = tuple(tuple(tier) for tier in tiers if tier)
        self.flat = tuple(named for tier in self.tiers for named in tier)
        self.record_fault = record_fault  # (plugin, exception)
        self.is_valid_answer = is_valid_answer  # (answer, *arguments), for rules that do not check answers themselves
        self.expected_answer = expected_answer

    def reject_answer(self, plugin: str, answer: object, wanted: str) -> None:
        self.record_fault(plugin, InvalidAnswer(answer, wanted))

    def check_answer(self, answer: Any, *args: Any) -> Any:
        if answer is not None and self.is_valid_answer is not None and not self.is_valid_answer(answer, *args):
            raise InvalidAnswer(answer, self.expected_answer)
        return answer


def first_nonzero(functions: PointFunctions, *args: Any) -> int:
    """Order: negative if the left comes first, 0 if no plugin decides."""
    for plugin, fn in functions.flat:
        try:
            answer = fn(*args)
        except PLUGIN_EXCEPTIONS as fault:
            functions.record_fault(plugin, fault)
            continue
        if answer is None:
            continue
        if type(answer) is not int and not _is_order(answer):
            functions.reject_answer(plugin, answer, "a number below, above or equal to 0")
        elif answer:
            return -1 if answer < 0 else 1
    return 0


def _is_order(answer: Any) -> bool:
    """Booleans are rejected: a function that returns `left < right` would reverse the order."""
    return isinstance(answer, Real) and not isinstance(answer, bool) and not math.isnan(answer)


def unanimous(functions: PointFunctions, *args: Any) -> bool:
    """True unless a plugin returns False."""
    return _first_matching(False, functions, functions.flat, args) is not False


def any_true(functions: PointFunctions, *args: Any) -> bool:
    """True as soon as a plugin returns True."""
    return _first_matching(True, functions, functions.flat, args) is True


def _first_matching(
    wanted: bool, functions: PointFunctions, among: Sequence[NamedFn], args: tuple[Any, ...]
) -> bool | None:
    """`wanted`, as soon as a plugin returns it; else the last valid answer; None without a valid answer."""
    last_answer: bool | None = None
    for plugin, fn in among:
        try:
            answer = fn(*args)
        except PLUGIN_EXCEPTIONS as fault:
            functions.record_fault(plugin, fault)
            continue
        if answer is not True and answer is not False:
            is_number = isinstance(answer, int) and answer in (0, 1)
            if type(answer).__name__ != "bool" and not is_number:  # NumPy booleans, 0 and 1 are accepted
                functions.reject_answer(plugin, answer, "True or False")
                continue
            answer = bool(answer)
        if answer is wanted:
            return wanted
        last_answer = answer
    return last_answer


def vote(functions: PointFunctions, *args: Any) -> bool:
    """False at the first Reject. A tier with a Permit decides; without a Reject the result is True."""
    for tier in functions.tiers:
        permitted = False
        for plugin, fn in tier:
            try:
                answer = fn(*args)
            except PLUGIN_EXCEPTIONS as fault:
                functions.record_fault(plugin, fault)
                continue
            if not isinstance(answer, int) or isinstance(answer, bool):
                functions.reject_answer(plugin, answer, "a Vote")
            elif answer < 0:
                return False
            elif answer > 0:
                permitted = True
        if permitted:
            return True
    return True


def unanimous_in_first_tier(functions: PointFunctions, *args: Any) -> bool:
    """All plugins of the first tier with a valid answer must return True; False without any answer."""
    for tier in functions.tiers:
        answer = _first_matching(False, functions, tier, args)
        if answer is not None:
            return answer
    return False


def victims_of_tier(functions: PointFunctions, *args: Any) -> list[Task]:
    """Victims that all plugins of a tier agree on; the first tier with victims decides.

    Keeps Volcano's edge cases unless vetoes are final: an empty list vetoes its own tier only; an intersection that
    becomes empty counts as no answer yet; every plugin gets all candidates. None abstains.
    """
    known = {task.uid for task in args[-1]}
    for tier in functions.tiers:
        victims: list[Task] | None = None
        for plugin, fn in tier:
            try:
                answer = fn(*args)
                found = None if answer is None else _check_victims(answer, known)
            except PLUGIN_EXCEPTIONS as fault:
                functions.record_fault(plugin, fault)
                continue
            if found is None:
                continue
            if not found:
                if functions.veto_is_final:
                    return []
                victims = None
                break
            if victims is None:
                victims = found
            else:
                uids = {task.uid for task in found}
                victims = [task for task in victims if task.uid in uids] or None
                if victims is None and functions.veto_is_final:
                    return []
        if victims is not None:
            return victims
    return []


def _check_victims(answer: Any, known: Set[str]) -> list[Task]:
    """A plugin's answer, if it contains only candidates: other tasks can be outside the scope of the eviction."""
    found = _tasks(answer)
    if not all(task.uid in known for task in found):
        raise InvalidAnswer(found, "a list of some of the candidates, or None to abstain,")
    return found


def _tasks(answer: Any) -> list[Task]:
    found = list(answer) if isinstance(answer, Iterable) else [answer]
    if not all(isinstance(task, Task) for task in found):
        raise InvalidAnswer(answer, "a list of tasks")
    return found


def union_of_tier(functions: PointFunctions, *args: Any) -> list[Task]:
    """All tasks that the plugins of a tier return, each once; the first tier with tasks decides."""
    for tier in functions.tiers:
        found: dict[str, Task] = {}
        for plugin, fns in tier:
            for fn in _as_list(fns):
                try:
                    found.update((task.uid, task) for task in _tasks(fn(*args)))
                except PLUGIN_EXCEPTIONS as fault:
                    functions.record_fault(plugin, fault)
        if found:
            return list(found.values())
    return []


def _as_list(fns: Any) -> Sequence[Fn]:
    return fns if isinstance(fns, (list, tuple)) else (fns,)


def first_answer(functions: PointFunctions, *args: Any) -> Any:
    """The first answer that is not None."""
    for plugin, fn in functions.flat:
        try:
            answer = functions.check_answer(fn(*args), *args)
        except PLUGIN_EXCEPTIONS as fault:
            functions.record_fault(plugin, fault)
            continue
        if answer is not None:
            return answer
    return None


def first_registered(functions: PointFunctions, *args: Any) -> Any:
    """The answer of the first plugin, even None; the next is called only after a fault. `NO_FUNCTION` if none works."""
    for plugin, fn in functions.flat:
        try:
            return functions.check_answer(fn(*args), *args)
        except PLUGIN_EXCEPTIONS as fault:
            functions.record_fault(plugin, fault)
    return NO_FUNCTION


def call_all(functions: PointFunctions, *args: Any) -> None:
    for plugin, fn in functions.flat:
        try:
            fn(*args)
        except PLUGIN_EXCEPTIONS as fault:
            functions.record_fault(plugin, fault)


def answers_by_plugin(functions: PointFunctions, *args: Any) -> dict[str, Any]:
    """Every plugin's own answer; the caller combines them."""
    answers: dict[str, Any] = {}
    for plugin, fn in functions.flat:
        try:
            answer = functions.check_answer(fn(*args), *args)
        except PLUGIN_EXCEPTIONS as fault:
            functions.record_fault(plugin, fault)
            continue
        if answer is not None:
            answers[plugin] = answer
    return answers
