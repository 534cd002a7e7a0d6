"""The `rescheduling` plugin: proposes running tasks for eviction to the action `shuffle`, once per interval.

A strategy selects the tasks; `lowNodeUtilization` is the only one. It needs real usage of nodes, collected for the
period that `metricsPeriod` names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar

from bayplan.batch.config.argument_specs import Argument
from bayplan.batch.config.arguments import Arguments
from bayplan.batch.handle import BatchHandle
from bayplan.batch.plugins.rescheduling.low_node_utilization import LowNodeUtilization, Thresholds
from bayplan.batch.session.session import Session
from bayplan.codec.go_duration import DurationError, parse_duration

DEFAULT_INTERVAL = timedelta(minutes=5)
DEFAULT_PERIOD = "5m"


@dataclass(slots=True)
class ReschedulingState:
    """State that outlives sessions: when the last round was, and which averages it reads."""

    last: datetime
    period: str = DEFAULT_PERIOD

    def is_due(self, now: datetime, interval: timedelta) -> bool:
        """Whether the interval is over; if so, the next interval starts now."""
        if self.last + interval >= now:
            return False
        self.last = now
        return True


@dataclass(frozen=True, slots=True)
class LowNodeUtilizationParams:
    thresholds: dict[str, int] = field(default_factory=dict)
    target_thresholds: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StrategyEntry:
    name: str = ""
    params: LowNodeUtilizationParams = field(default_factory=LowNodeUtilizationParams)


class ReschedulingPlugin:
    """Registers the victims of its strategies; the first interval starts with the process."""

    name = "rescheduling"
    also_at: ClassVar[tuple[str, ...]] = ("victim_tasks",)
    takes: ClassVar[tuple[Argument, ...]] = (
        Argument("interval", timedelta, "5m"),
        Argument("metricsPeriod", str, DEFAULT_PERIOD),
        Argument("strategies", list[StrategyEntry]),
    )

    def __init__(self, arguments: Arguments, state: ReschedulingState) -> None:
        self._state = state
        self._interval = _interval(arguments)
        state.period = _text(arguments, "metricsPeriod", state.period) or DEFAULT_PERIOD
        self._strategies = dict(_strategies(arguments))

    @classmethod
    def factory(cls, arguments: Arguments, handle: BatchHandle) -> ReschedulingPlugin:
        return cls(arguments, handle.keep(cls.name, lambda: ReschedulingState(handle.clock.now())))

    def on_session_open(self, session: Session) -> None:
        if not self._state.is_due(session.clock.now(), self._interval):
            return
        fns = [
            LowNodeUtilization(session, thresholds, self._state.period).victims
            for name, thresholds in self._strategies.items()
            if name == LowNodeUtilization.name
        ]
        session.add_victim_tasks_fns(self.name, fns)


def _text(arguments: Arguments, key: str, default: str) -> str:
    if key in arguments and not isinstance(arguments[key], str):
        raise ValueError(f"argument {key} must be a text such as 5m, not {arguments[key]!r}")
    return arguments.get_str(key, default)


def _interval(arguments: Arguments) -> timedelta:
    text = _text(arguments, "interval", "")
    try:
        return timedelta(seconds=parse_duration(text).seconds)
    except DurationError as fault:
        if text:
            arguments.warn(f"interval: {fault}; 5m is used")
        return DEFAULT_INTERVAL


def _strategies(arguments: Arguments) -> Iterator[tuple[str, Thresholds]]:
    """The configured strategies with their parameters; without any, `lowNodeUtilization` with its defaults."""
    listed = arguments.get("strategies", object)
    if not isinstance(listed, list) or not listed:
        yield LowNodeUtilization.name, Thresholds()
        return
    for item in listed:
        found = _strategy(item)
        if found is None:
            arguments.warn(f"strategies: {item!r} is not a strategy; write `name` and `params`")
            continue
        name, params = found
        yield name, Thresholds.of(params, arguments)


def _strategy(item: Any) -> tuple[str, Mapping[str, Any]] | None:
    if not isinstance(item, Mapping | None):
        return None
    given = {str(key).lower(): value for key, value in (item or {}).items()}
    name, params = given.get("name"), given.get("params")
    if not isinstance(name, str | None) or not isinstance(params, Mapping | None):
        return None
    return name or "", params or {}
