"""A test's changes of the logging configuration do not affect the next test."""

from __future__ import annotations

import logging
import logging.config
from collections.abc import Callable

import pytest

from bayplan.clock import ManualClock
from bayplan.telemetry.logs import LogOptions, start_logs
from support.harness.logging_state import restore_logging

NAME = "bayplan.framework.runtime.plugin_call"


def own_logger() -> logging.Logger:
    return logging.getLogger(NAME)


DISTURBANCES: dict[str, Callable[[], object]] = {
    "a configuration that disables existing loggers": lambda: logging.config.dictConfig({"version": 1}),
    "everything is off": lambda: logging.disable(logging.CRITICAL),
    "a level of its own": lambda: own_logger().setLevel(logging.CRITICAL),
    "a level for all that have none": lambda: logging.getLogger("bayplan").setLevel(logging.CRITICAL),
    "no way up": lambda: setattr(own_logger(), "propagate", False),
    "a filter": lambda: own_logger().addFilter(lambda _: False),
    "logs that are not closed": lambda: start_logs(LogOptions(verbosity=9), ManualClock()),
}


@pytest.mark.parametrize("what", DISTURBANCES)
def test_a_disturbance_ends_with_its_test(what: str, caplog: pytest.LogCaptureFixture) -> None:
    handlers, level = [*logging.root.handlers], logging.root.level
    with restore_logging():
        own_logger().warning("before")
        DISTURBANCES[what]()
        own_logger().warning("meanwhile")
    own_logger().warning("afterwards")
    assert (caplog.messages[0], caplog.messages[-1]) == ("before", "afterwards")
    assert (logging.root.handlers, logging.root.level) == (handlers, level)


def test_a_logger_created_meanwhile_is_reset(caplog: pytest.LogCaptureFixture) -> None:
    with restore_logging():
        late = logging.getLogger("bayplan.tests.late")
        late.disabled = True
    late.warning("heard")
    assert caplog.messages == ["heard"]
