"""Objects that are cast: the same in every byte as if each had been made, whatever happens in between."""

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


def pod(name: str, *, main: str = "main", labels: Tree | None = None, said: str = "", **spec: Any) -> Tree:
    containers = [{"name": main, "image": "example.com/a:1", "resources": {"requests": {"cpu": "100m"}}}]
    metadata = {"name": name, "labels": labels or {}, "annotations": {"say": said}}
    return {"metadata": metadata, "spec": {"containers": containers, **spec}}


def event(name: str, *, about: str = "web", note: str = "told", **more: Any) -> Tree:
    regarding = {"kind": "Pod", "namespace": "default", "name": about, "uid": f"uid-of-{about}", "apiVersion": "v1"}
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
PODS_LIKE: st.SearchStrategy[Callable[[str], Tree]] = st.sampled_from(
    [
        pod,
        partial(pod, said="100% %(uid)b %s"),
        partial(pod, said="\ue000name\ue000"),
        partial(pod, labels={"app": "web", "é": "no"}),
        partial(pod, schedulingGates=[{"name": "example.com/wait"}]),
        partial(pod, priorityClassName="high"),
        partial(pod, hostname="%(name)b"),
        partial(pod, main="a"),
        partial(pod, strange=1),
    ]
)
NOTES = st.sampled_from(["told", 'with "quotes"', "100%", "é", "x" * 1025, "2020-01-01T00:00:00Z", ""])
TIMES = st.sampled_from(["2026-01-01T00:00:00.000002Z", "2026-01-01T01:00:00.000000+01:00", "2026-13-01T00:00:00Z", ""])


@st.composite
def pods(draw: st.DrawFn) -> list[Request]:
    """Some of one kind, and perhaps one of another among them."""
    make, other = draw(PODS_LIKE), draw(PODS_LIKE)
    names = draw(st.lists(NAMES, min_size=3, max_size=8, unique=True))
    makes = [other if draw(st.integers(0, 9)) == 0 else make for _ in names]
    return [("POST", PODS, body(each(name))) for each, name in zip(makes, names, strict=True)]


@st.composite
def events(draw: st.DrawFn) -> list[Request]:
    """Events with something to say, now and then something odd."""
    versions = draw(st.booleans())
    found: list[Request] = []
    for name in draw(st.lists(NAMES, min_size=3, max_size=8, unique=True)):
        made = event(f"{name}.17", about=name, note=f"told of {name}")
        if versions:
            made["regarding"]["resourceVersion"] = draw(st.sampled_from(["7", "8", "v1"]))
        if draw(st.integers(0, 4)) == 0:
            made |= draw(st.sampled_from(["note", "eventTime"]).flatmap(odd_text))
        found.append(("POST", EVENTS, body(made)))
    return found


def odd_text(field: str) -> st.SearchStrategy[Tree]:
    return (NOTES if field == "note" else TIMES).map(lambda text: {field: text})


def others() -> st.SearchStrategy[Request]:
    """What may happen in between: the rules then see something else."""
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
    return st.one_of(pods(), events(), others().map(lambda each: [each]), st.sampled_from([0.4, 1.0]))


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(asked=st.lists(requests(), max_size=12))
def test_what_is_cast_is_what_would_have_been_made(
    credentials: ClusterCredentials, asked: list[list[Request] | float]
) -> None:
    steps = [[each] if isinstance(each, float) else each for each in asked]
    cast, made = run_twins(credentials, chain.from_iterable(steps))
    assert cast.everything() == made.everything()


@pytest.mark.parametrize(
    ("path", "make"),
    [
        pytest.param(PODS, pod, id="pods"),
        pytest.param(PODS, partial(pod, said="100% %(uid)b"), id="pods-with-percents"),
        pytest.param(EVENTS, lambda name: event(f"{name}.1", about=name, note=f"about {name}"), id="events"),
    ],
)
def test_from_the_fourth_on_all_are_cast(
    credentials: ClusterCredentials, path: str, make: Callable[[str], Tree]
) -> None:
    cast, made = TemplateTwin(credentials), TemplateTwin(credentials, naive=True)
    for number in range(103):
        asked = ("POST", path, body(make(f"one-{number}")))
        assert cast.ask(*asked) == made.ask(*asked)
        for each in (cast, made):
            each.clock.advance(0.3)
    assert cast.moulds.count == 100
    assert cast.everything() == made.everything()


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
def test_what_the_rules_went_by_breaks_a_mould_when_it_changes(
    credentials: ClusterCredentials, between: Request
) -> None:
    world = TemplateTwin(credentials)
    for number in range(5):
        assert world.ask("POST", PODS, body(pod(f"one-{number}")))[0] == 201
    assert world.moulds.count == 2
    assert world.ask(*between)[0] in (200, 201)
    assert world.ask("POST", PODS, body(pod("two")))[0] == 201
    assert world.moulds.count == 2


def test_a_pod_that_waits_behind_a_gate_has_its_time_in_two_places_and_is_made(credentials: ClusterCredentials) -> None:
    world = TemplateTwin(credentials)
    for number in range(6):
        made = pod(f"one-{number}", schedulingGates=[{"name": "example.com/wait"}])
        answer = json.loads(world.ask("POST", PODS, body(made))[2])
        told = answer["status"]["conditions"][0]["lastTransitionTime"]
        assert told == answer["metadata"]["creationTimestamp"]
        world.clock.advance(1.0)
    assert world.moulds.count == 0


def gone(name: str) -> Request:
    return ("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0", b"")


def posts(path: str, *trees: Tree) -> list[Request | float]:
    return [("POST", path, body(each)) for each in trees]


GATE = {"schedulingGates": [{"name": "example.com/wait"}]}
SAME = posts(PODS, pod("a", main="a"))


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(
            [*posts(PODS, *(pod(f"p-{n}", **GATE) for n in range(3))), 1.0, *posts(PODS, pod("p-3", **GATE))],
            id="a-time-that-stands-elsewhere-too",
        ),
        pytest.param(posts(PODS, *(pod(name) for name in ("a", "b", "c", "x.y", "UP"))), id="names-that-are-warned-of"),
        pytest.param(
            [*SAME, gone("a"), *SAME, gone("a"), *SAME, gone("a"), *posts(PODS, pod("b", main="b"))],
            id="a-container-that-is-called-as-its-pod",
        ),
        pytest.param(
            posts(EVENTS, *(event(f"e.{n}", note=f"{n}") for n in range(4)), event("e.4", note="x" * 1025)),
            id="a-note-that-is-too-long",
        ),
    ],
)
def test_what_looks_like_others_and_is_not_is_made(
    credentials: ClusterCredentials, asked: list[Request | float]
) -> None:
    cast, made = run_twins(credentials, asked)
    assert cast.everything() == made.everything()
