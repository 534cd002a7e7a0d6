"""Extender client: the requests, binding by an extender, and failing services."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bayplan.client import ServiceCallError
from bayplan.clock import ManualClock
from bayplan.codec.go_duration import parse_duration
from bayplan.config.model import ExtenderConfig as ExtenderConfig
from bayplan.config.model import ExtenderManagedResource, ExtenderTLSConfig
from bayplan.errors import ApiError, ConfigError, LeaseLost
from bayplan.framework.api.status import SUCCESS, Status, error
from bayplan.intents.pod_intents import BindPod
from bayplan.objects.core import Pod
from bayplan.scheduler.cycle.extender_client import ExtenderClient, _tls_settings, extender_transports
from bayplan.scheduler.cycle.http_extender import ExtenderReply, HttpExtender
from support.builders.framework import make_pod
from support.fakes.certificates import Authority
from support.harness.async_tests import async_test

URL = "http://binder"


class Posted:
    def __init__(self, status: int, body: bytes) -> None:
        self.status, self.body = status, body


class Fake:
    """A fake service with its answers."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[str, Any, float]] = []

    async def post(self, url: str, body: bytes, timeout_s: float) -> Posted:
        self.requests.append((url, json.loads(body), timeout_s))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Posted(200, json.dumps(answer).encode())


def binder(**fields: Any) -> ExtenderConfig:
    return ExtenderConfig(**{"url_prefix": URL, "bind_verb": "bind", **fields})


async def always() -> None:
    """For a process without a lease."""


def bound(
    services: dict[ExtenderConfig, Any], pod: Pod | None = None, may_write: Callable[[], Awaitable[None]] = always
) -> Status | None:
    """The result if the pod is not on its node after an error."""
    found: list[Status | None] = []

    async def is_not_bound(_: BindPod, __: ApiError) -> bool:
        return False

    @async_test
    async def binding() -> None:
        extenders = ExtenderClient(services, may_write)
        found.append(await extenders.bind(pod or make_pod("web"), "n1", await_binding=is_not_bound))

    binding()
    return found[0]


def test_the_bind_request_names_the_pod_and_its_node() -> None:
    service = Fake({"Error": ""})
    assert bound({binder(): service}) is SUCCESS
    pod = make_pod("web")
    arguments = {"PodName": "web", "PodNamespace": "default", "PodUID": pod.uid, "Node": "n1"}
    assert service.requests == [(f"{URL}/bind", arguments, 5.0)]


@pytest.mark.parametrize(
    ("fields", "answer", "status"),
    [
        pytest.param({}, {"Error": "no room"}, error("no room"), id="its-error-is-final"),
        pytest.param({}, ServiceCallError("down"), error("down"), id="no-answer-is-final"),
        pytest.param({"ignorable": True}, {"error": "no room"}, None, id="ignorable-error"),
        pytest.param({"ignorable": True}, ServiceCallError("down"), None, id="ignorable-without-answer"),
        pytest.param({}, {}, SUCCESS, id="empty-answer"),
    ],
)
def test_results_of_a_binding_extender(fields: Any, answer: Any, status: Status | None) -> None:
    assert bound({binder(**fields): Fake(answer)}) == status


@pytest.mark.parametrize(
    ("fields", "answer", "unknown"),
    [
        pytest.param({}, {"Error": "it broke"}, True, id="an-error"),
        pytest.param({}, [], True, id="an-invalid-answer"),
        pytest.param({}, ServiceCallError("cut", sent=True), True, id="a-lost-answer"),
        pytest.param({}, ServiceCallError("connection refused"), False, id="not-sent"),
        pytest.param({"ignorable": True}, {"Error": "it broke"}, False, id="an-error-and-ignorable"),
        pytest.param({"ignorable": True}, ServiceCallError("cut", sent=True), True, id="a-lost-answer-and-ignorable"),
    ],
)
@async_test
async def test_a_failed_binder_may_have_sent_the_binding(fields: Any, answer: Any, unknown: bool) -> None:
    found: list[bool] = []

    async def await_binding(intent: BindPod, refusal: ApiError) -> bool:
        assert intent.node_name == "n1"
        found.append(refusal.outcome_unknown)
        return True

    extenders = ExtenderClient({binder(**fields): Fake(answer)}, always)  # type: ignore[dict-item]
    assert await extenders.bind(make_pod("web"), "n1", await_binding=await_binding) is SUCCESS
    assert found == [unknown]


def test_uninterested_extenders_do_not_bind() -> None:
    gpu = (ExtenderManagedResource(name="x.io/gpu"),)
    for config in (binder(managed_resources=gpu), binder(bind_verb="", filter_verb="filter")):
        assert bound({config: Fake()}) is None


def test_an_ignorable_binder_comes_last_and_need_not_bind() -> None:
    first, second = Fake({}), Fake()
    assert bound({binder(ignorable=True, url_prefix="http://maybe"): second, binder(): first}) is SUCCESS
    assert second.requests == []


def test_no_extender_binds_after_the_lease_is_lost() -> None:
    async def may_not() -> None:
        raise LeaseLost("another process leads")

    service = Fake()
    assert bound({binder(): service}, may_write=may_not) == error("another process leads")
    assert service.requests == []


@async_test
async def test_a_failing_extender_is_logged_once_and_its_recovery_too(caplog: pytest.LogCaptureFixture) -> None:
    config = ExtenderConfig(url_prefix=URL, filter_verb="filter", http_timeout=parse_duration("250ms"))
    service = Fake(ServiceCallError("down"), ServiceCallError("down"), {}, {})
    extenders = ExtenderClient({config: service}, always)  # type: ignore[dict-item]
    call = HttpExtender(config).bind_call(make_pod(), "n1")
    with caplog.at_level(logging.INFO):
        replies = [await extenders.call(call) for _ in range(4)]
    assert replies == [ExtenderReply(failure="down")] * 2 + [ExtenderReply(200, b"{}")] * 2
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert service.requests[0][2] == 0.25


@pytest.mark.parametrize(
    ("tls", "words"),
    [
        pytest.param({"insecure": True, "ca_data": b"x"}, "with the insecure flag is not allowed", id="both"),
        pytest.param({"ca_file": "missing.pem"}, "cannot read missing.pem", id="no-file"),
        pytest.param({"cert_data": b"x", "key_data": b"y"}, "cannot be used", id="no-pair"),
    ],
)
def test_certificates_that_cannot_be_used_are_found_at_start(tls: Any, words: str) -> None:
    config = ExtenderConfig(url_prefix="https://x", tls_config=ExtenderTLSConfig(**tls))
    with pytest.raises(ConfigError, match="couldn't build extenders: .*" + words):
        extender_transports([config], ManualClock(), user_agent="bayplan")


def test_data_wins_over_files(tmp_path: Path) -> None:
    """The named files do not exist."""
    authority = Authority()
    user = authority.user("me")
    missing = str(tmp_path / "missing.pem")
    tls = ExtenderTLSConfig(
        ca_file=missing,
        ca_data=authority.certificate.encode(),
        cert_file=missing,
        cert_data=user.certificate.encode(),
        key_file=missing,
        key_data=user.key.encode(),
    )
    config = ExtenderConfig(url_prefix="https://x", tls_config=tls)
    assert list(extender_transports([config], ManualClock(), user_agent="bayplan")) == [config]


def test_https_without_an_authority_does_not_verify() -> None:
    assert _tls_settings(ExtenderConfig(url_prefix="https://x", enable_https=True)).verify is False
    assert _tls_settings(ExtenderConfig(url_prefix="https://x")).verify is True
