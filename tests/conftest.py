"""Hypothesis settings: deterministic examples, so that a failing run can be repeated on every machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from support.harness.logging_state import restore_logging
from support.harness.pytest_reporting import ImmediateFailures, TimeLimit

settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _logging_stays() -> Iterator[None]:
    with restore_logging():
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cluster",
        choices=("embedded", "real", "both"),
        default="embedded",
        help="What the end-to-end suite runs on: Bayplan's own API server, a real kube-apiserver, or both.",
    )
    parser.addoption("--kills", type=int, help="How often a process is killed in the tests of that.")
    parser.addoption("--within", type=float, metavar="MINUTES", help="Begin no further test once so much time is over.")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if terminal := config.pluginmanager.get_plugin("terminalreporter"):
        config.pluginmanager.register(ImmediateFailures(terminal))
    if (minutes := config.getoption("--within")) is not None:
        config.pluginmanager.register(TimeLimit(config, minutes))
