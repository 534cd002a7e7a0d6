"""`bayplan why`: in files, through the API server, and by address."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from bayplan.cli.commands.objects.why import SchedulerAddress, command, fetch_answer
from bayplan.cli.output.why_printer import print_answer
from bayplan.client import ConnectionConfig, Secret, leader_annotations
from bayplan.errors import ApiError, Forbidden, UsageError
from bayplan.objects.pod_relaxations import SuggestedChange
from bayplan.telemetry.answers import (
    Answer,
    BinderLease,
    BindRequestProgress,
    BorrowingQueue,
    ExcludedNode,
    GangMemberStatus,
    GangStatus,
    NodeRejection,
    QueueShare,
    RankedNode,
    ScoreMargin,
)
from support.fakes.http_server import FakeHttpServer, Reply, Request, status
from support.harness.async_tests import async_test

EXAMPLES = Path(__file__).parents[5] / "examples" / "cluster"
PLUGINS = EXAMPLES.parent / "plugins"
NAMES = [f"n{number}" for number in range(7)]
MEMBER, GREEDY = GangMemberStatus(pod="shop/b", reason="full"), BorrowingQueue(queue="greedy", over={"cpu": "1"})
ANSWER = Answer(
    pod="shop/web-0",
    sentence="shop/web-0 stays pending: it is large",
    attempts=2,
    waits_for="its turn",
    closest="n1",
    reasons=(
        NodeRejection(
            plugin="NodeResourcesFit", text="Insufficient cpu", nodes=7, names=tuple(f"n{n}" for n in range(7))
        ),
    ),
    changes=(SuggestedChange(kind="requests", less={"cpu": 500}, node="n1", text="ask for 500m less CPU"),),
    gang=GangStatus(
        name="shop/g",
        phase="Inqueue",
        least=2,
        ready=1,
        tasks=3,
        holding_back=(GangMemberStatus(pod="shop/b", reason="full"),),
    ),
    queue=QueueShare(
        name="q", share=0.5, deserved={"cpu": "4"}, borrowers=(BorrowingQueue(queue="greedy", over={"cpu": "1"}),)
    ),
)


def run_why(*arguments: str, raises: type[Exception] | None = None) -> str:
    outcome = CliRunner().invoke(command, [*arguments])
    if raises is not None:
        assert isinstance(outcome.exception, raises), outcome.output
        return str(outcome.exception)
    assert outcome.exception is None, (outcome.output, outcome.exception)
    return outcome.output


# A cluster in files.


def test_a_placed_pod_in_files() -> None:
    text = run_why("-f", str(EXAMPLES), "web-0")
    assert text.startswith("default/web-0 is on web-a: best of 4 with ")
    assert "9 ahead of web-b; ImageLocality decided, +9" in text


def test_a_pending_pod_in_files_as_text_and_as_data() -> None:
    assert "  - remove scheduling gate example.com/after-backup (then it fits " in run_why(
        "-f", str(EXAMPLES), "migration"
    )
    answer = json.loads(run_why("-f", str(EXAMPLES), "giant", "-o", "json"))
    assert msgspec.convert(answer, Answer).changes[0].kind == "requests"
    assert yaml.safe_load(run_why("-f", str(EXAMPLES), "giant", "--now", "-o", "yaml"))["source"] == "now"


def test_a_missing_pod_is_an_error() -> None:
    assert "there is no pod default/unknown in these files" in run_why(
        "-f", str(EXAMPLES), "unknown", raises=UsageError
    )
    assert "--config needs a cluster in files" in run_why("web-0", "--config", "x.yaml", raises=UsageError)


def test_plugin_folders_are_used_for_files() -> None:
    own = ("--config", str(EXAMPLES.parent / "config" / "fast-disks.yaml"), "--plugins-dir", str(PLUGINS))
    text = run_why("-f", str(EXAMPLES), "web-0", *own, "--trust-writable-plugins")
    assert "FastDisks=" in text
    output = run_why("web-0", "--plugins-dir", str(PLUGINS), raises=UsageError)
    assert output == "--plugins-dir needs a cluster in files (-f); a running scheduler has its own configuration"


# A running scheduler.


PROXY = "/api/v1/namespaces/kube-system/pods/https:bayplan-7:10259/proxy"
ADDRESS = SchedulerAddress(url="", lease="kube-system/kube-scheduler", authority="", verify=True)


def api_server(request: Request) -> Reply:
    """The lease, and a proxy to the leader."""
    if request.path.endswith("/leases/kube-scheduler"):
        annotations = leader_annotations("me", 10259, {"POD_NAMESPACE": "kube-system", "POD_NAME": "bayplan-7"})
        return Reply(200, {"metadata": {"annotations": annotations}, "spec": {"holderIdentity": "me"}})
    assert request.path == f"{PROXY}/why/shop/web-0"
    return Reply(200, msgspec.json.encode(ANSWER))


@async_test
async def test_the_leader_is_asked_through_the_proxy_with_the_users_token() -> None:
    async with FakeHttpServer(api_server) as server:
        assert await fetch_answer(server.target(token=Secret("mine")), ADDRESS, "/why/shop/web-0?now=true") == ANSWER
        last = server.requests[-1]
        assert last.headers["x-bayplan-token"] == "mine"
        assert last.query == "now=true"


@async_test
async def test_a_kubeconfig_without_a_token_is_an_error() -> None:
    async with FakeHttpServer(api_server) as server:
        with pytest.raises(UsageError, match="use a context with a token, or give the scheduler's address with --url"):
            await fetch_answer(server.target(), ADDRESS, "/why/shop/web-0")
        with pytest.raises(UsageError, match='--lease "nonsense" is not NAMESPACE/NAME'):
            await fetch_answer(server.target(token=Secret("t")), replace(ADDRESS, lease="nonsense"), "/why/shop/web-0")


@async_test
async def test_the_scheduler_is_asked_at_its_address() -> None:
    async with FakeHttpServer(lambda _: Reply(200, msgspec.json.encode(ANSWER))) as scheduler:
        target = ConnectionConfig(server="http://127.0.0.1:1", token=Secret("mine"))
        assert await fetch_answer(target, replace(ADDRESS, url=scheduler.url), "/why/shop/web-0") == ANSWER
        assert scheduler.requests[0].headers["authorization"] == "Bearer mine"


@async_test
async def test_a_refusal_and_an_unknown_response_are_errors() -> None:
    async with FakeHttpServer(script=[status(403, "Forbidden"), Reply(200, {"kind": "Status"})]) as scheduler:
        address = replace(ADDRESS, url=scheduler.url)
        with pytest.raises(Forbidden):
            await fetch_answer(scheduler.target(), address, "/why/shop/web-0")
        with pytest.raises(ApiError, match="check that Bayplan serves this address"):
            await fetch_answer(scheduler.target(), address, "/why/shop/web-0")


# Terminal output.


@pytest.fixture
def print_to_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], str]:
    """The output of a wide terminal, with single spaces."""
    monkeypatch.setenv("COLUMNS", "200")

    def print_and_read(answer: Answer) -> str:
        print_answer(answer)
        return " ".join(capsys.readouterr().out.split())

    return print_and_read


def test_all_parts_of_an_answer_are_printed(print_to_text: Callable[[Answer], str]) -> None:
    output = print_to_text(ANSWER)
    for words in (
        "shop/web-0 stays pending: it is large",
        "waits for its turn",
        "tried 2 times",
        "7 Insufficient cpu NodeResourcesFit n0, n1, n2, n3, n4 and 2 more",
        "the closest node is n1: - ask for 500m less CPU (then it fits n1)",
        "Gang shop/g: 1 of 3 have a node, 2 must (Inqueue). - shop/b: full",
        "Queue q, share 0.50: deserved cpu 4 - greedy holds more than it deserves: cpu 1",
    ):
        assert words in output


def test_the_binder_and_failed_bindings_are_printed(print_to_text: Callable[[Answer], str]) -> None:
    until = datetime(2026, 11, 18, 9, 0, tzinfo=UTC)
    excluded = (
        ExcludedNode(node="n2", times=2, error="no quota", until=until),
        ExcludedNode(node="n3", times=1, error="gone"),
    )
    request = BindRequestProgress(name="d/p", node="n1", phase="Failed", failed_attempts=1, limit=3, reason="no volume")
    lease = BinderLease(lease="l/b", state="free", sentence="no binder holds the lease l/b")
    answer = Answer(pod="d/p", state="binding", request=request, binder=lease, excluded_nodes=excluded)
    output = print_to_text(answer)
    for words in (
        "request d/p to n1: Failed, 1 of 3 attempts failed",
        "last error no volume",
        "binder no binder holds the lease l/b",
        "Nodes with failed bindings: NODE TIMES TRIED AGAIN REASON n2 2 2026-11-18 09:00:00 UTC no quota",
        "n3 1 at once gone",
    ):
        assert words in output
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Answer) == answer


def test_ties_and_combined_changes_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    best = (RankedNode(node="a", total=3, by_plugin={"P": 3}), RankedNode(node="b", total=3, by_plugin={"P": 3}))
    print_answer(
        Answer(pod="d/p", state="placed", feasible=2, nodes=2, best=best, choice=ScoreMargin(second="b", ahead=0))
    )
    assert "as good as b" in capsys.readouterr().out
    together = (SuggestedChange(kind="gate", drop=("g",), node="a", text="remove scheduling gate g"),)
    print_answer(Answer(pod="d/p", closest="a", together=together, no_change="no single change is enough"))
    assert "No single change is enough. For a, together:" in capsys.readouterr().out
    print_answer(Answer(pod="d/p", no_change="there is no node in the cluster"))
    assert "What would have to change: there is no node in the cluster." in capsys.readouterr().out
