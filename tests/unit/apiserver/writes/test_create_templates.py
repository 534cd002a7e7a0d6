"""Creates from templates: byte for byte the same as normal creates, whatever happens in between."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayplan.apiserver.auth.credentials import ClusterCredentials
from bayplan.apiserver.embedded import credentials_for
from support.harness.create_template_twins import Request, TemplateTwin, run_twins

Tree = dict[str, Any]

PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
RANGES = "/api/v1/namespaces/default/limitranges"
QUOTAS = "/api/v1/namespaces/default/resourcequotas"


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> ClusterCredentials:
    folder: Path = tmp_path_factory.mktemp("credentials")
    return credentials_for(folder, "127.0.0.1")


def pod(name: str, *, main: str = "main", labels: Tree | None = None, note_text: str = "", **spec: Any) -> Tree:
    containers = [{"name": main, "image": "example.com/a:1", "resources": {"requests": {"cpu": "100m"}}}]
    metadata = {"name": name, "labels": labels or {}, "annotations": {"say": note_text}}
    return {"metadata": metadata, "spec": {"containers": containers, **spec}}


def event(name: str, *, subject: str = "web", note: str = "text", **more: Any) -> Tree:
    regarding = {"kind": "Pod", "namespace": "default", "name": subject, "uid": f"uid-of-{subject}", "apiVersion": "v1"}
    return {
        "metadata": {"name": name},
        "eventTime": "2026-01-01T00:00:00.000001Z",
        "reportingController": "x",
        "reportingInstance": "x-1",
        "action": "Binding",
        "reason": "Scheduled",
        "regarding": regarding,
        "note": note,
        "type": "Normal",
        **more,
    }


def body(tree: Tree) -> bytes:
    return json.dumps(tree).encode()


ODD_NAMES = ["x.y", "UP", "", "main", "z" * 64, "é"]
NAMES = st.sampled_from(["a", "b", "c", *(f"d-{number}" for number in range(40)), *ODD_NAMES])
POD_FORMS: st.SearchStrategy[Callable[[str], Tree]] = st.sampled_from(
    [
        pod,
        partial(pod, note_text="100% %(uid)b %s"),
        partial(pod, note_text="\ue000name\ue000"),
        partial(pod, labels={"app": "web", "é": "no"}),
        partial(pod, schedulingGates=[{"name": "example.com/wait"}]),
        partial(pod, priorityClassName="high"),
        partial(pod, hostname="%(name)b"),
        partial(pod, main="a"),
        partial(pod, strange=1),
    ]
)
NOTES = st.sampled_from(["text", 'with "quotes"', "100%", "é", "x" * 1025, "2020-01-01T00:00:00Z", ""])
TIMES = st.sampled_from(["2026-01-01T00:00:00.000002Z", "2026-01-01T01:00:00.000000+01:00", "2026-13-01T00:00:00Z", ""])


@st.composite
def pods(draw: st.DrawFn) -> list[Request]:
    """Creates of pods of one form, sometimes with another form among them."""
    make, other = draw(POD_FORMS), draw(POD_FORMS)
    names = draw(st.lists(NAMES, min_size=3, max_size=8, unique=True))
    makes = [other if draw(st.integers(0, 9)) == 0 else make for _ in names]
    return [("POST", PODS, body(each(name))) for each, name in zip(makes, names, strict=True)]


@st.composite
def events(draw: st.DrawFn) -> list[Request]:
    """Creates of events, sometimes with an unusual field."""
    versions = draw(st.booleans())
    found: list[Request] = []
    for name in draw(st.lists(NAMES, min_size=3, max_size=8, unique=True)):
        normal = event(f"{name}.17", subject=name, note=f"note of {name}")
        if versions:
            normal["regarding"]["resourceVersion"] = draw(st.sampled_from(["7", "8", "v1"]))
        if draw(st.integers(0, 4)) == 0:
            normal |= draw(st.sampled_from(["note", "eventTime"]).flatmap(unusual_text))
        found.append(("POST", EVENTS, body(normal)))
    return found


def unusual_text(field: str) -> st.SearchStrategy[Tree]:
    return (NOTES if field == "note" else TIMES).map(lambda text: {field: text})


def other_requests() -> st.SearchStrategy[Request]:
    """Requests in between, after which the rules read other objects."""
    high = {"metadata": {"name": "high"}, "value": 7}
    default = {"metadata": {"name": "usual"}, "value": 3, "globalDefault": True}
    limits = {"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Container", "default": {"memory": "1Gi"}}]}}
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "3"}}}
    return st.sampled_from(
        [
            *(("POST", CLASSES, body(each)) for each in (high, default)),
            *(("DELETE", f"{CLASSES}/{name}", b"") for name in ("high", "usual")),
            ("POST", RANGES, body(limits)),
            ("DELETE", f"{RANGES}/l", b""),
            ("POST", QUOTAS, body(quota)),
            ("DELETE", f"{QUOTAS}/q", b""),
            *(("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0", b"") for name in ("a", "b", "d-1")),
            ("DELETE", "/api/v1/namespaces/default", b""),
            ("POST", f"{PODS}?dryRun=All", body(pod("c"))),
            ("POST", PODS, body(pod("a")).replace(b'"name": "a"', b'"name": "b", "name": "a"')),
        ]
    )


def requests() -> st.SearchStrategy[list[Request] | float]:
    return st.one_of(pods(), events(), other_requests().map(lambda each: [each]), st.sampled_from([0.4, 1.0]))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(sent=st.lists(requests(), max_size=12))
def test_random_creates_give_the_same_bytes_as_the_normal_path(
    credentials: ClusterCredentials, sent: list[list[Request] | float]
) -> None:
    steps = [[each] if isinstance(each, float) else each for each in sent]
    templated, normal = run_twins(credentials, chain.from_iterable(steps))
    assert templated.everything() == normal.everything()


@pytest.mark.parametrize(
    ("path", "make"),
    [
        pytest.param(PODS, pod, id="pods"),
        pytest.param(PODS, partial(pod, note_text="100% %(uid)b"), id="pods-with-percents"),
        pytest.param(EVENTS, lambda name: event(f"{name}.1", subject=name, note=f"about {name}"), id="events"),
    ],
)
def test_the_fourth_and_later_creates_use_the_template(
    credentials: ClusterCredentials, path: str, make: Callable[[str], Tree]
) -> None:
    templated, normal = TemplateTwin(credentials), TemplateTwin(credentials, naive=True)
    for number in range(103):
        sent = ("POST", path, body(make(f"one-{number}")))
        assert templated.ask(*sent) == normal.ask(*sent)
        for each in (templated, normal):
            each.clock.advance(0.3)
    assert templated.moulds.count == 100
    assert templated.everything() == normal.everything()


@pytest.mark.parametrize(
    "between",
    [
        pytest.param(
            ("POST", CLASSES, body({"metadata": {"name": "d"}, "value": 3, "globalDefault": True})), id="class"
        ),
        pytest.param(("POST", QUOTAS, body({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "9"}}})), id="quota"),
        pytest.param(("PATCH", "/api/v1/namespaces/default", b'{"metadata":{"labels":{"a":"b"}}}'), id="namespace"),
    ],
)
def test_a_change_of_a_kind_that_the_rules_read_invalidates_the_template(
    credentials: ClusterCredentials, between: Request
) -> None:
    twin = TemplateTwin(credentials)
    for number in range(5):
        assert twin.ask("POST", PODS, body(pod(f"one-{number}")))[0] == 201
    assert twin.moulds.count == 2
    assert twin.ask(*between)[0] in (200, 201)
    assert twin.ask("POST", PODS, body(pod("two")))[0] == 201
    assert twin.moulds.count == 2


def test_a_gated_pod_uses_no_template_because_its_time_occurs_twice(credentials: ClusterCredentials) -> None:
    twin = TemplateTwin(credentials)
    for number in range(6):
        normal = pod(f"one-{number}", schedulingGates=[{"name": "example.com/wait"}])
        answer = json.loads(twin.ask("POST", PODS, body(normal))[2])
        transition_time = answer["status"]["conditions"][0]["lastTransitionTime"]
        assert transition_time == answer["metadata"]["creationTimestamp"]
        twin.clock.advance(1.0)
    assert twin.moulds.count == 0


def delete(name: str) -> Request:
    return ("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0", b"")


def posts(path: str, *trees: Tree) -> list[Request | float]:
    return [("POST", path, body(each)) for each in trees]


GATE = {"schedulingGates": [{"name": "example.com/wait"}]}
SAME = posts(PODS, pod("a", main="a"))


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(
            [*posts(PODS, *(pod(f"p-{n}", **GATE) for n in range(3))), 1.0, *posts(PODS, pod("p-3", **GATE))],
            id="a-time-that-occurs-elsewhere",
        ),
        pytest.param(posts(PODS, *(pod(name) for name in ("a", "b", "c", "x.y", "UP"))), id="names-with-warnings"),
        pytest.param(
            [*SAME, delete("a"), *SAME, delete("a"), *SAME, delete("a"), *posts(PODS, pod("b", main="b"))],
            id="a-container-with-the-name-of-its-pod",
        ),
        pytest.param(
            posts(EVENTS, *(event(f"e.{n}", note=f"{n}") for n in range(4)), event("e.4", note="x" * 1025)),
            id="a-note-that-is-too-long",
        ),
    ],
)
def test_creates_that_only_look_alike_take_the_normal_path(
    credentials: ClusterCredentials, sent: list[Request | float]
) -> None:
    templated, normal = run_twins(credentials, sent)
    assert templated.everything() == normal.everything()
