"""Additional output of a test run: each failure at once, and the tests that a time limit skipped."""

from __future__ import annotations

import time
from typing import Any

import pytest

_OUTPUT = "left_out"


class ImmediateFailures:
    """Prints failures immediately, so that an aborted run has reported them."""

    def __init__(self, terminal: Any) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            words = str(crash.message if crash else report.longrepr).strip().splitlines() or [""]
            self._terminal.write_line("")
            self._terminal.write_line(
                f"FAILED {report.nodeid} at {report.when} after {report.duration:.0f} s: {words[0]}"
            )


class TimeLimit:
    """Starts no test after the time limit. The skipped tests are counted, and the end of the run reports them."""

    def __init__(self, config: pytest.Config, minutes: float) -> None:
        self._minutes = minutes
        self._ends_s = time.monotonic() + minutes * 60
        self._output: dict[str, Any] = getattr(config, "workeroutput", {})
        self._left_out = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> bool | None:
        if time.monotonic() < self._ends_s:
            return None
        self._left_out += 1
        return True  # handled

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        self._output[_OUTPUT] = self._left_out

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._left_out += getattr(node, "workeroutput", {}).get(_OUTPUT, 0)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._left_out:
            words = f"{self._left_out} tests were LEFT OUT: the {self._minutes:g} minutes were over"
            terminalreporter.write_line(words, red=True)
