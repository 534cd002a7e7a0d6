"""Log lines in klog's format and as JSON, verbosity, and redaction of credentials."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bayplan.client import Secret
from bayplan.clock import ManualClock
from bayplan.errors import UsageError
from bayplan.telemetry.logs import (
    LogControl,
    LogOptions,
    ObjectRef,
    StructuredLog,
    klog_verbosity,
    logging_level,
    redact,
    start_logs,
)

NOW = datetime(2026, 11, 15, 11, 39, 13, 355847, tzinfo=UTC)
LOG = StructuredLog("bayplan.tests.logs")
PLAIN = logging.getLogger("another.library")
HEAD = f"1115 11:39:13.355847 {os.getpid():7d} test_logs.py:"


@contextmanager
def logs(**options: Any) -> Iterator[tuple[io.StringIO, io.StringIO, LogControl]]:
    out, err = io.StringIO(), io.StringIO()
    control = start_logs(LogOptions(**options), ManualClock(NOW), out=out, err=err, zone=UTC)
    try:
        yield out, err, control
    finally:
        control.close()


def log_line(err: io.StringIO) -> str:
    """The log line without the line number of the source file."""
    head, _, rest = err.getvalue().partition("] ")
    assert head[1:].startswith(HEAD)
    return f"{head[0]} {rest}"


@pytest.mark.parametrize(
    ("values", "written"),
    [
        ({}, '"Message"'),
        ({"pod": ObjectRef("default/web"), "node": "n1"}, '"Message" pod="default/web" node="n1"'),
        ({"count": 3, "share": 0.5, "on": True, "none": None}, '"Message" count=3 share=0.5 on=true none=null'),
        ({"text": 'a "b"\t'}, '"Message" text="a \\"b\\"\\t"'),
        ({"names": ["a", "b"], "map": {"k": 1}}, '"Message" names=["a","b"] map={"k":1}'),
        ({"err": ValueError("no")}, '"Message" err="no"'),
        ({"config": "a: 1\nb: 2\n"}, '"Message" config=<\n\ta: 1\n\tb: 2\n >'),
        ({"config": "a\nb"}, '"Message" config=<\n\ta\n\tb\n >'),
        ({"odd": {1, 2} - {1}}, '"Message" odd="{2}"'),
    ],
)
def test_structured_lines(values: dict[str, Any], written: str) -> None:
    with logs() as (_, err, _):
        LOG.info("Message", **values)
        assert log_line(err) == f"I {written}\n"


def test_severities() -> None:
    with logs() as (_, err, _):
        LOG.warning("Careful", a=1)
        LOG.error(ValueError("broken"), "Failed", pod=ObjectRef("a/b"))
        LOG.error(None, "Leaderelection lost")
        PLAIN.critical("the end")
        lines = [f"{line[0]} {line.partition('] ')[2]}" for line in err.getvalue().splitlines()]
        assert lines == ['W "Careful" a=1', 'E "Failed" err="broken" pod="a/b"', 'E "Leaderelection lost"', "F the end"]


def test_plain_messages_and_tracebacks() -> None:
    with logs() as (_, err, _):
        PLAIN.info("Serving securely on %s", "127.0.0.1:10259")
        assert log_line(err) == "I Serving securely on 127.0.0.1:10259\n"
    with logs() as (_, err, _):
        try:
            raise RuntimeError("why")
        except RuntimeError:
            PLAIN.exception("it failed")
        first, *rest = err.getvalue().splitlines()
        assert first.endswith("] it failed")
        assert rest[0] == "\tTraceback (most recent call last):"
        assert all(line.startswith("\t") for line in rest)


def test_a_value_with_a_newline_cannot_forge_a_line() -> None:
    with logs() as (_, err, _):
        PLAIN.info("pod %s", "a\nI1115 11:39:13.000000       1 fake.go:1] all is well\r")
        assert err.getvalue().count("\n") == 2
        assert "\n\tI1115" in err.getvalue()
        assert "\r" not in err.getvalue()


def test_json_lines() -> None:
    with logs(format="json", verbosity=3) as (_, err, _):
        LOG.info("Add event", v=3, pod=ObjectRef("default/web"), node=ObjectRef("n1"), odd=Path("x"), names=["a"])
        found = json.loads(err.getvalue())
        assert list(found) == ["ts", "caller", "msg", "v", "pod", "node", "odd", "names"]
        assert found["ts"] == 1794742753355.847
        assert found["caller"].startswith("telemetry/test_logs.py:")
        assert found["v"] == 3
        assert found["pod"] == {"name": "web", "namespace": "default"}
        assert found["node"] == {"name": "n1"}
        assert found["odd"] == "x"


def test_json_errors_have_no_verbosity() -> None:
    with logs(format="json") as (_, err, _):
        LOG.error(ValueError("broken"), "Failed")
        try:
            raise RuntimeError("why")
        except RuntimeError:
            PLAIN.exception("it\nfailed")
        first, second = map(json.loads, err.getvalue().splitlines())
        assert (first["msg"], first["err"], "v" in first) == ("Failed", "broken", False)
        assert second["msg"] == "it\nfailed"
        assert "RuntimeError: why" in second["stacktrace"]


@pytest.mark.parametrize(("verbosity", "is_logged"), [(0, 1), (1, 2), (3, 4), (4, 6), (6, 8)])
def test_verbosity(verbosity: int, is_logged: int) -> None:
    with logs(verbosity=verbosity) as (_, err, _):
        for v in range(7):
            LOG.info("Message", v=v)
        PLAIN.debug("in detail")
        assert len(err.getvalue().splitlines()) == is_logged
        assert LOG.enabled(verbosity)
        assert not LOG.enabled(verbosity + 1)


def test_verbosity_while_running() -> None:
    with logs() as (_, err, control):
        LOG.info("Message", v=5)
        control.set_verbosity(5)
        LOG.info("Message", v=5)
        control.set_verbosity(0)
        LOG.info("Message", v=5)
        assert len(err.getvalue().splitlines()) == 1


@pytest.mark.parametrize(("vmodule", "is_logged"), [("test_lo*=5", True), ("other=9,test_logs=4", False), ("", False)])
def test_vmodule_sets_the_verbosity_of_single_files(vmodule: str, is_logged: bool) -> None:
    with logs(vmodule=vmodule) as (_, err, _):
        LOG.info("Message", v=5)
        assert bool(err.getvalue()) is is_logged


@pytest.mark.parametrize("verbosity", range(12))
def test_levels_and_verbosities_are_one_scale(verbosity: int) -> None:
    assert klog_verbosity(logging_level(verbosity)) == verbosity


def test_split_stream_writes_errors_to_the_standard_error() -> None:
    with logs(split_stream=True) as (out, err, _):
        LOG.info("Fine")
        LOG.error(None, "Not fine")
        assert ("Fine" in out.getvalue(), "Not" in out.getvalue()) == (True, False)
        assert ("Fine" in err.getvalue(), "Not" in err.getvalue()) == (False, True)


@pytest.mark.parametrize(
    "options", [{"format": "xml"}, {"verbosity": -1}, {"vmodule": "queue"}, {"vmodule": "queue=x"}], ids=str
)
def test_invalid_options_are_usage_errors(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        start_logs(LogOptions(**options), ManualClock(NOW))


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("GET with Authorization: Bearer abc.def-123 failed", "GET with Authorization: Bearer <redacted> failed"),
        ("authorization: Basic dXNlcjpwYXNz", "authorization: Basic <redacted>"),
        ("token eyJhbGciOiJSUzI1.eyJzdWIiOiJhYmM.c2lnbmF0dXJl end", "token <redacted> end"),
        ("the bearer of bad news", "the bearer of bad news"),
        ("a basic understanding", "a basic understanding"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_credentials_are_redacted(text: str, kept: str) -> None:
    assert redact(text) == kept


@pytest.mark.parametrize("form", ["text", "json"])
def test_secrets_do_not_reach_a_line(form: str) -> None:
    token = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW0ifQ.c2VjcmV0LXNpZ25hdHVyZQ"
    with logs(format=form) as (_, err, _):
        LOG.info("Token", token=Secret(token), header=f"Bearer {token}")
        PLAIN.warning("sent %s with %r", f"Bearer {token}", Secret(token))
        LOG.error(ValueError(f"cannot use {token}"), "Failed")
        assert "c2VjcmV0" not in err.getvalue()
        assert err.getvalue().count("<redacted>") == 3


def test_close_restores_the_loggers() -> None:
    before = (logging.root.level, list(logging.root.handlers))
    with logs(verbosity=9):
        assert logging.root.handlers != before[1]
    assert (logging.root.level, list(logging.root.handlers)) == before
