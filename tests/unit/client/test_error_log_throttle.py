"""Persistent faults are logged once, and again when they change or recur."""

from __future__ import annotations

import logging

import pytest

from bayplan.client.error_log_throttle import REPEAT_S, SERVER_TOPIC, ErrorLogThrottle
from bayplan.clock import ManualClock
from bayplan.errors import ApiError, Forbidden, TimedOut, Unauthorized, Unreachable

NO_CONNECTION = Unreachable("cannot connect to https://a; is it running?")


class ThrottledLog:
    """An `ErrorLogThrottle` on a manual clock, and its log."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.clock = ManualClock()
        self.faults = ErrorLogThrottle(logging.getLogger("throttle"), self.clock)
        self._caplog = caplog

    def lines(self) -> list[str]:
        """Lines since the last call."""
        lines = list(self._caplog.messages)
        self._caplog.clear()
        return lines


@pytest.fixture
def throttled(caplog: pytest.LogCaptureFixture) -> ThrottledLog:
    return ThrottledLog(caplog)


def test_a_fault_is_logged_again_after_minutes_a_change_or_a_recovery(throttled: ThrottledLog) -> None:
    for _ in range(3):
        throttled.faults.log_error("pods", "bad")
    assert throttled.lines() == ["bad"]
    throttled.faults.log_error("pods", "worse")
    throttled.faults.log_error("pods", "bad")
    assert throttled.lines() == ["worse"]
    throttled.clock.advance(REPEAT_S)
    throttled.faults.log_error("pods", "bad")
    throttled.faults.log_error("pods", "bad")
    assert throttled.lines() == ["bad"]
    throttled.faults.clear("nodes")
    throttled.faults.log_error("pods", "bad")
    assert throttled.lines() == []
    throttled.faults.clear("pods")
    throttled.faults.log_error("pods", "bad")
    assert throttled.lines() == ["bad"]


def test_an_unavailable_server_is_one_fault_for_all_topics(throttled: ThrottledLog) -> None:
    throttled.faults.log_api_error("pods", "pods: cannot list", NO_CONNECTION)
    throttled.faults.log_api_error("nodes", "nodes: cannot list", NO_CONNECTION)
    throttled.faults.log_api_error("nodes", "nodes: cannot list", TimedOut("no answer within 5 s"))
    assert throttled.lines() == [
        "pods: cannot list: cannot connect to https://a; is it running? Trying again until it answers",
        "nodes: cannot list: no answer within 5 s; trying again until it answers",
    ]
    throttled.faults.clear(SERVER_TOPIC)
    throttled.faults.log_api_error("pods", "pods: cannot list", NO_CONNECTION)
    assert len(throttled.lines()) == 1


def test_a_missing_permission_is_logged_once_for_all_objects(throttled: ThrottledLog) -> None:
    for name in ("a", "b"):
        words = (
            f'nodes "{name}" is forbidden: User "me" cannot patch resource "nodes" in API group "" at the cluster scope'
        )
        fault = Forbidden(f"PATCH /api/v1/nodes/{name}: 403 Forbidden: {words}", code=403, details=words)
        throttled.faults.log_api_error(name, f"node {name}", fault)
    (line,) = throttled.lines()
    assert line.startswith('node a: nodes "a" is forbidden: User "me" cannot patch')
    assert line.endswith("; grant this user the right, or use another kubeconfig; trying again")
    assert "PATCH" not in line


def test_every_other_fault_is_logged_per_topic(throttled: ThrottledLog) -> None:
    throttled.faults.log_api_error("a", "node a", ApiError("odd", code=500))
    throttled.faults.log_api_error("b", "node b", ApiError("odd", code=500))
    throttled.faults.log_api_error("b", "node b", Unauthorized("GET /x: 401", code=401, details="Unauthorized"))
    assert throttled.lines() == [
        "node a: odd; trying again",
        "node b: odd; trying again",
        "node b: Unauthorized; check the user of the kubeconfig: its token or its certificate; trying again",
    ]


def test_the_number_of_remembered_texts_is_limited(throttled: ThrottledLog) -> None:
    for number in range(5000):
        throttled.faults.log_error(number, "bad")
        throttled.faults.log_error("one", f"bad {number}")
    assert sum(len(texts) for texts in throttled.faults._logged.values()) < 9000
