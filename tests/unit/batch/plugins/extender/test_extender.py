from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pytest

from bayplan.batch.handle import HttpReply
from bayplan.batch.plugins.extender.plugin import MAX_ANSWER_BYTES, ExtenderPlugin
from bayplan.batch.session.combine_rules import Vote
from bayplan.batch.session.session import Session
from bayplan.framework.api.status import Code
from bayplan.objects.core import Pod, ResourceQuota, ResourceQuotaStatus
from bayplan.objects.meta import ObjectMeta
from bayplan.testing.builders import make_node
from support.builders.batch import make_engine, make_group, make_member, task_names, tasks_of
from support.builders.batch_scores import predicate_rejections, scores

NODES = [make_node("n1"), make_node("n2", labels={"volcano.sh/revocable-zone": "z"})]
POINTS = (
    "predicate",
    "prioritize",
    "preemptable",
    "reclaimable",
    "queueOverused",
    "jobEnqueueable",
    "jobReady",
    "allocateFunc",
    "deallocateFunc",
)


class Service:
    """An extender with configured answers by verb, which records its requests."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.requests: list[tuple[str, dict[str, Any], float]] = []

    def post(self, url: str, body: bytes, timeout_s: float) -> HttpReply:
        self.requests.append((url, msgspec.json.decode(body), timeout_s))
        answer = self.answers.get(url.rpartition("/")[2])
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, HttpReply):
            return answer
        return HttpReply(200, answer if isinstance(answer, bytes) else msgspec.json.encode(answer))

    def body(self, verb: str) -> dict[str, Any]:
        return next(body for url, body, _ in self.requests if url.endswith(f"/{verb}"))


@contextmanager
def session_with(
    service: Service, *points: str, pods: tuple[Pod, ...] = (make_member("p"),), **arguments: Any
) -> Iterator[Session]:
    """A session with the extender at these points; each verb is the name of its point."""
    verbs = {f"extender.{point}Verb": point for point in points}
    settings = {
        "extender.urlPrefix": "http://x/ext/",
        **verbs,
        **{f"extender.{key}": arguments[key] for key in arguments},
    }
    quota = ResourceQuota(
        metadata=ObjectMeta(name="rq", namespace="default"), status=ResourceQuotaStatus(hard={"cpu": "1"})
    )
    engine = make_engine(ExtenderPlugin, arguments=settings, nodes=NODES, pods=pods, objects=[make_group(), quota])
    engine.handle.http_post = service.post
    with engine.session() as session:
        yield session


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param({}, None, id="empty-answer"),
        pytest.param(None, None, id="null"),
        pytest.param({"status": "", "code": 3}, None, id="code-without-status"),
        pytest.param({"status": "no", "code": 2}, (Code.UNSCHEDULABLE, "no"), id="not-now"),
        pytest.param({"Status": "no", "CODE": 3}, (Code.UNRESOLVABLE, "no"), id="keys-in-any-case"),
        pytest.param({"status": "no"}, (Code.ERROR, "no"), id="no-code-is-an-error"),
        pytest.param({"status": "no", "code": 99}, (Code.PENDING, "no"), id="unknown-code"),
    ],
)
def test_predicate(answer: Any, expected: tuple[Code, str] | None) -> None:
    service = Service(predicate=answer)
    with session_with(service, "predicate") as session:
        assert predicate_rejections(session, "p") == (dict.fromkeys(("n1", "n2"), expected) if expected else {})
        (task,) = tasks_of(session, "p")
        all_allowed = bool(session.evaluate_class(task).rows_to_allocate(task).all())
        assert all_allowed is (expected is None or expected[0] is Code.PENDING)
        url, body, timeout_s = service.requests[0]
        assert (url, timeout_s) == ("http://x/ext/predicate", 1.0)
        assert (body["task"]["Name"], body["task"]["Status"]) == ("p", 1)
        assert body["task"]["Resreq"]["MilliCPU"] == 1000
        assert (body["node"]["Name"], body["node"]["Idle"]["MilliCPU"]) == ("n1", 8000)
        assert body["node"]["Node"]["metadata"]["name"] == "n1"


BROKEN = [
    pytest.param(OSError("connection refused"), "connection refused", id="no-answer"),
    pytest.param(HttpReply(503, b"{}"), "/ext/predicate answered with HTTP status 503 where 200", id="http-503"),
    pytest.param(HttpReply(404, b""), "HTTP status 404", id="http-404"),
    pytest.param(b"<html>", "an invalid body", id="no-json"),
    pytest.param({"status": []}, "an invalid body", id="wrong-type"),
    pytest.param(b" " * (MAX_ANSWER_BYTES + 1), "more than 10 MiB", id="too-much"),
]


@pytest.mark.parametrize(("answer", "message"), BROKEN)
@pytest.mark.parametrize("ignorable", [True, False])
def test_a_failing_service_rejects_or_is_ignored(answer: Any, message: str, ignorable: bool) -> None:
    with session_with(Service(predicate=answer), "predicate", ignorable=ignorable) as session:
        found = predicate_rejections(session, "p")
        assert (not found) is ignorable
        assert all(code is Code.ERROR and message in text for code, text in found.values())


@pytest.mark.parametrize(
    ("answer", "ignorable", "expected"),
    [
        pytest.param({"nodeScore": {"n1": 3, "n9": 9}}, False, {"n1": 3.0, "n2": 0.0}, id="scores"),
        pytest.param({"nodeScore": {"n1": 3}, "errorMessage": "bad"}, False, None, id="error"),
        pytest.param({}, True, None, id="no-scores-are-an-error-even-if-ignorable"),
        pytest.param(OSError("gone"), False, None, id="no-answer"),
        pytest.param(OSError("gone"), True, {"n1": 0.0, "n2": 0.0}, id="no-answer-ignored"),
    ],
)
def test_prioritize(answer: Any, ignorable: bool, expected: dict[str, float] | None) -> None:
    service = Service(prioritize=answer)
    with session_with(service, "prioritize", ignorable=ignorable) as session:
        if expected is not None:
            assert scores(session, "p") == expected
        else:
            (task,) = tasks_of(session, "p")
            assert session.scores(task, np.ones(2, dtype=np.bool_)) is None
        assert [node["Name"] for node in service.body("prioritize")["nodes"]] == ["n1", "n2"]


@pytest.mark.parametrize(
    ("answer", "victims"),
    [
        pytest.param(
            {"status": 1, "victims": [{"UID": "pod-v2"}, {"uid": "pod-v1"}, {"UID": "x"}]}, {"v1", "v2"}, id="yes"
        ),
        pytest.param({"status": -1, "victims": [{"UID": "pod-v1"}]}, {"v1"}, id="a-vote-against-counts-as-one-for"),
        pytest.param({"status": 0, "victims": [{"UID": "pod-v1"}]}, None, id="abstains"),
        pytest.param({"status": 1}, set(), id="no-victims"),
        pytest.param(OSError("gone"), set(), id="no-answer-is-a-veto"),
    ],
)
@pytest.mark.parametrize("point", ["preemptable", "reclaimable"])
def test_victims(point: str, answer: Any, victims: set[str] | None) -> None:
    pods = (make_member("p"), make_member("v1", node="n1"), make_member("v2", node="n1"))
    service = Service(**{point: answer})
    with session_with(service, point, pods=pods, ignorable=True) as session:
        evictor, *evictees = tasks_of(session, "p", "v1", "v2")
        found = session.plugins["extender"]._evictable(point)(evictor, evictees)
        assert (None if found is None else set(task_names(found))) == victims
        assert task_names(getattr(session, point)(evictor, evictees)) == task_names(found or ())
        assert [task["Name"] for task in service.body(point)["evictees"]] == ["v1", "v2"]


@pytest.mark.parametrize(
    ("answer", "ignorable", "vote", "overused", "ready"),
    [
        pytest.param({"status": 1}, False, Vote.PERMIT, False, None, id="permit"),
        pytest.param({"status": -7}, False, Vote.REJECT, False, None, id="reject"),
        pytest.param({}, False, Vote.ABSTAIN, False, False, id="empty-answer"),
        pytest.param({"overused": True}, False, Vote.ABSTAIN, True, False, id="overused"),
        pytest.param({"status": True}, False, None, False, True, id="ready"),
        pytest.param(OSError("gone"), False, Vote.REJECT, True, True, id="no-answer"),
        pytest.param(OSError("gone"), True, Vote.PERMIT, False, False, id="no-answer-ignored-is-not-ready"),
    ],
)
def test_jobs_and_queues(answer: Any, ignorable: bool, vote: Vote | None, overused: bool, ready: bool | None) -> None:
    service = Service(jobEnqueueable=answer, queueOverused=answer, jobReady=answer)
    with session_with(service, "jobEnqueueable", "queueOverused", "jobReady", ignorable=ignorable) as session:
        job, plugin = session.jobs["default/job"], session.plugins["extender"]
        if vote is not None:
            assert plugin._job_enqueueable(job) is vote
        if ready is not None:
            assert plugin._job_ready(job) is ready
        assert session.overused(session.queues["q"]) is overused
        assert service.body("queueOverused")["queue"]["Queue"]["metadata"] == {"name": "q"}


def test_body_of_a_job() -> None:
    service = Service()
    pods = (make_member("p"), make_member("r", node="n1"))
    with session_with(service, "jobReady", pods=pods) as session:
        session.job_ready(session.jobs["default/job"])
        body = service.body("jobReady")["job"]
        assert (body["UID"], body["MinAvailable"], body["Queue"]) == ("default/job", 1, "q")
        assert body["TaskStatusIndex"] == {
            "1": {"pod-p": body["Tasks"]["pod-p"]},
            "32": {"pod-r": body["Tasks"]["pod-r"]},
        }
        assert body["Allocated"]["MilliCPU"] == 1000
        assert body["PodGroup"]["metadata"]["name"] == "job"


@pytest.mark.parametrize(
    ("answer", "ignorable", "placed"),
    [
        pytest.param({}, False, True, id="accepts"),
        pytest.param({"errorMessage": "no"}, True, False, id="error-message-is-never-ignored"),
        pytest.param(OSError("gone"), False, False, id="no-answer"),
        pytest.param(OSError("gone"), True, True, id="no-answer-ignored"),
    ],
)
def test_events(answer: Any, ignorable: bool, placed: bool) -> None:
    service = Service(allocateFunc=answer, deallocateFunc={"errorMessage": "too late"})
    with session_with(service, "allocateFunc", "deallocateFunc", ignorable=ignorable) as session:
        (task,) = tasks_of(session, "p")
        with session.statement() as trial:
            assert trial.allocate(task, session.nodes[0]) is placed
        verbs = [url.rpartition("/")[2] for url, _, _ in service.requests]
        assert verbs == ["allocateFunc", "deallocateFunc"]


@pytest.mark.parametrize(
    ("answer", "ignorable", "called"),
    [
        pytest.param({}, False, True, id="answered"),
        pytest.param(OSError("gone"), False, False, id="no-answer-disables-the-plugin"),
        pytest.param(OSError("gone"), True, True, id="no-answer-ignored"),
    ],
)
def test_opening_and_closing(answer: Any, ignorable: bool, called: bool) -> None:
    service = Service(onSessionOpen=answer, onSessionClose=OSError("gone"), predicate={"status": "no"})
    with session_with(service, "onSessionOpen", "onSessionClose", "predicate", ignorable=ignorable) as session:
        assert bool(predicate_rejections(session, "p")) is called
        session.plugins["extender"].on_session_close(session)
    body = service.body("onSessionOpen")
    assert (set(body["Jobs"]), set(body["Nodes"]), set(body["Queues"])) == ({"default/job"}, {"n1", "n2"}, {"q"})
    assert set(body["RevocableNodes"]) == {"n2"}
    assert body["NamespaceInfo"]["default"]["QuotaStatus"]["rq"] == {"hard": {"cpu": "1"}}
    assert service.body("onSessionClose") == {}


def test_without_verbs_no_request_is_sent() -> None:
    service = Service()
    with session_with(service) as session:
        assert not predicate_rejections(session, "p")
        assert session.job_ready(session.jobs["default/job"])
    assert not service.requests


GPU = "nvidia.com/gpu"


def test_only_tasks_with_managed_resources_are_sent() -> None:
    pods = (make_member("p"), make_member("g", requests={GPU: 1}))
    service = Service(predicate={"status": "no"}, preemptable={"status": 1}, allocateFunc={"errorMessage": "no"})
    with session_with(service, *POINTS, pods=pods, managedResources=[GPU]) as session:
        assert set(predicate_rejections(session, "g")) == {"n1", "n2"}
        assert not predicate_rejections(session, "p")
        (task,) = tasks_of(session, "p")
        assert session.plugins["extender"]._evictable("preemptable")(task, []) is None
        with session.statement() as trial:
            assert trial.allocate(task, session.nodes[0])


def test_a_predicate_without_managed_tasks_is_not_registered() -> None:
    with session_with(Service(), *POINTS, managedResources=[GPU]) as session:
        assert not session.evaluate_class(*tasks_of(session, "p")).predicates


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("100ms", 0.1, id="own"),
        pytest.param("", 1.0, id="none"),
        pytest.param("soon", 1.0, id="no-duration"),
        pytest.param(5, 1.0, id="no-text"),
    ],
)
def test_timeout(text: Any, expected: float) -> None:
    service = Service(predicate={})
    with session_with(service, "predicate", httpTimeout=text) as session:
        predicate_rejections(session, "p")
        assert bool(session.faults) is (text in ("soon", 5))
    assert service.requests[0][2] == expected
