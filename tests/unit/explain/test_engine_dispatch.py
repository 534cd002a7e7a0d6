"""Binder status in answers of `why`: the current request and the holder of the lease, read from an API server."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.client import LEASES, Client, ConnectionConfig
from bayplan.clock import SystemClock
from bayplan.config.bayplan_settings import BayplanSettings
from bayplan.config.model import LeaderElection
from bayplan.explain.engine_dispatch import BinderStatusReader
from bayplan.objects.kai.bind_request import HANDLED_BY_BAYPLAN, HANDLED_BY_LABEL
from bayplan.objects.meta import format_micro_time
from bayplan.telemetry.answers import Answer, BindRequestProgress
from support.fakes.http_server import FakeHttpServer, status
from support.harness.async_tests import async_test
from support.harness.reconciler import REQUESTS, FailingPlugin, ReconcilerHarness, run_with_reconciler

ASKED = BindRequestProgress(name="default/web", node="n1", phase="Pending", is_ours=True)
ANSWER = Answer(pod="default/web", state="binding", node="n1", waits_for="something", request=ASKED)


def lease(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": {"name": "bayplan-binder"}, "spec": spec}


@pytest.mark.parametrize(
    ("holder", "renewed_s_ago", "state", "words"),
    [
        pytest.param("", 0, "free", "no binder holds the lease default/bayplan-binder; see whether", id="free"),
        pytest.param("b-1", 1, "held", "b-1 holds the lease default/bayplan-binder", id="held"),
        pytest.param("b-1", 86400, "expired", "b-1 no longer holds the lease default/bayplan-binder: ", id="expired"),
    ],
)
def test_the_holder_of_the_lease(tmp_path: Path, holder: str, renewed_s_ago: int, state: str, words: str) -> None:
    async def run(harness: ReconcilerHarness) -> None:
        renewed = format_micro_time(datetime.now(UTC) - timedelta(seconds=renewed_s_ago))
        tree = lease(holderIdentity=holder, leaseDurationSeconds=3600, renewTime=renewed)
        await harness.client.create(LEASES, tree, namespace="default")
        answer = await BinderStatusReader(harness.client, "default").add_binder_status(ANSWER)
        assert answer.binder is not None
        assert (answer.binder.state, answer.binder.holder) == (state, holder)
        assert answer.binder.sentence.startswith(words)

    run_with_reconciler(tmp_path, run)


def test_a_missing_lease_is_reported_and_pods_without_an_own_request_are_unchanged(tmp_path: Path) -> None:
    async def run(harness: ReconcilerHarness) -> None:
        look = BinderStatusReader(harness.client, "default")
        answer = await look.add_binder_status(ANSWER)
        assert answer.binder is not None
        assert answer.binder.state == "absent"
        assert answer.binder.sentence.startswith("there is no lease default/bayplan-binder: no binder runs, or one ")
        theirs = replace(ANSWER, request=replace(ASKED, is_ours=False))
        assert await look.add_binder_status(theirs) == theirs
        placed = replace(ANSWER, request=None)
        assert await look.add_binder_status(placed) == placed

    run_with_reconciler(tmp_path, run)


def test_the_answer_has_the_request_of_the_server(tmp_path: Path) -> None:
    async def run(harness: ReconcilerHarness) -> None:
        pod = await harness.pod()
        await harness.request(pod)
        await harness.patch(REQUESTS, "web", {"metadata": {"labels": {HANDLED_BY_LABEL: HANDLED_BY_BAYPLAN}}})
        await harness.sync()
        answer = await BinderStatusReader(harness.client, "default").add_binder_status(
            replace(ANSWER, uid=pod["metadata"]["uid"])
        )
        assert answer.request is not None
        assert (answer.request.phase, answer.request.failed_attempts) == ("Failed", 1)
        assert answer.request.reason
        assert answer.waits_for == "the binder to try the bind request default/web again"
        of_another = await BinderStatusReader(harness.client, "default").add_binder_status(
            replace(ANSWER, uid="another")
        )
        assert of_another.request == ASKED

    run_with_reconciler(tmp_path, run, FailingPlugin())


@async_test
async def test_a_forbidden_read_of_the_lease_is_reported() -> None:
    async with FakeHttpServer(lambda _: status(403, "Forbidden", "not yours")) as server:
        async with server.client(SystemClock()) as client:
            answer = await BinderStatusReader(client, "default").add_binder_status(ANSWER)
        assert answer.binder is not None
        assert answer.binder.state == "unknown"
        assert answer.binder.sentence.endswith("403 Forbidden: not yours")
        assert answer.request == ASKED


def test_the_namespace_of_the_lease_is_that_of_the_engines_lease_by_default() -> None:
    client = Client(ConnectionConfig(server="http://none.invalid"), clock=SystemClock(), chance=random.Random())
    own, lease_of_engine = BayplanSettings(), LeaderElection(resource_namespace="bayplan-system")
    assert BinderStatusReader.for_engine(client, own, lease_of_engine).namespace == "bayplan-system"
    assert BinderStatusReader.for_engine(client, own).namespace == "kube-system"
    assert (
        BinderStatusReader.for_engine(client, BayplanSettings(binder_lease_namespace="ours"), lease_of_engine).namespace
        == "ours"
    )
