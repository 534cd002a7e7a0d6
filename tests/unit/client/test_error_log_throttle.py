"""Faults that last: told once, and again when they are news."""

from __future__ import annotations

import logging

import pytest

from bayplan.client.error_log_throttle import REPEAT_S, SERVER_TOPIC, ErrorLogThrottle
from bayplan.clock import ManualClock
from bayplan.errors import ApiError, Forbidden, TimedOut, Unauthorized, Unreachable


class Told:
    """Faults on a manual clock, and what the log heard of them."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.clock = ManualClock()
        self.faults = ErrorLogThrottle(logging.getLogger("told"), self.clock)
        self._caplog = caplog

    def lines(self) -> list[str]:
        """Since it was asked last."""
        lines = list(self._caplog.messages)
        self._caplog.clear()
        return lines


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    return Told(caplog)


def test_once_and_again_after_minutes_or_another_text_or_a_cure(told: Told) -> None:
    for _ in range(3):
        told.faults.log_error("pods", "bad")
    assert told.lines() == ["bad"]
    told.faults.log_error("pods", "worse")
    told.faults.log_error("pods", "bad")
    assert told.lines() == ["worse"]
    told.clock.advance(REPEAT_S)
    told.faults.log_error("pods", "bad")
    told.faults.log_error("pods", "bad")
    assert told.lines() == ["bad"]
    told.faults.clear("nodes")
    told.faults.log_error("pods", "bad")
    assert told.lines() == []
    told.faults.clear("pods")
    told.faults.log_error("pods", "bad")
    assert told.lines() == ["bad"]


def test_a_server_that_is_away_is_one_fault_of_all(told: Told) -> None:
    told.faults.log_api_error("pods", "pods: cannot list", Unreachable("cannot connect to https://a; is it running?"))
    told.faults.log_api_error("nodes", "nodes: cannot list", Unreachable("cannot connect to https://a; is it running?"))
    told.faults.log_api_error("nodes", "nodes: cannot list", TimedOut("no answer within 5 s"))
    assert told.lines() == [
        "pods: cannot list: cannot connect to https://a; is it running? Trying again until it answers",
        "nodes: cannot list: no answer within 5 s; trying again until it answers",
    ]
    told.faults.clear(SERVER_TOPIC)
    told.faults.log_api_error("pods", "pods: cannot list", Unreachable("cannot connect to https://a; is it running?"))
    assert len(told.lines()) == 1


def test_a_right_that_lacks_is_told_once_for_all_objects(told: Told) -> None:
    for name in ("a", "b"):
        words = (
            f'nodes "{name}" is forbidden: User "me" cannot patch resource "nodes" in API group "" at the cluster scope'
        )
        fault = Forbidden(f"PATCH /api/v1/nodes/{name}: 403 Forbidden: {words}", code=403, details=words)
        told.faults.log_api_error(name, f"node {name}", fault)
    (line,) = told.lines()
    assert line.startswith('node a: nodes "a" is forbidden: User "me" cannot patch')
    assert line.endswith("; let this user do that, or use a kubeconfig of one who may; trying again")
    assert "PATCH" not in line


def test_every_other_fault_is_its_topics_own(told: Told) -> None:
    told.faults.log_api_error("a", "node a", ApiError("odd", code=500))
    told.faults.log_api_error("b", "node b", ApiError("odd", code=500))
    told.faults.log_api_error("b", "node b", Unauthorized("GET /x: 401", code=401, details="Unauthorized"))
    assert told.lines() == [
        "node a: odd; trying again",
        "node b: odd; trying again",
        "node b: Unauthorized; check the user of the kubeconfig: its token or its certificate; trying again",
    ]


def test_what_was_told_does_not_grow_for_ever(told: Told) -> None:
    for number in range(5000):
        told.faults.log_error(number, "bad")
        told.faults.log_error("one", f"bad {number}")
    assert sum(len(texts) for texts in told.faults._told.values()) < 9000
