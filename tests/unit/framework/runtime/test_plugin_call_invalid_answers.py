"""A plugin with an invalid result is named, fails one attempt of the pod, and never stops the process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bayplan.app import configured, filled_cache, known_plugins
from bayplan.clock import ManualClock
from bayplan.errors import ConfigError, PluginError
from bayplan.framework import (
    SKIP,
    Code,
    PermitWait,
    PostFilterResult,
    PreFilterResult,
    Registry,
    Rejection,
    Status,
    unschedulable,
)
from bayplan.scheduler.cycle.schedule_result import ScheduleResult
from bayplan.scheduler.engine import PodEngine
from support.builders.framework import make_node, make_pod

CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {multiPoint: {enabled: [{name: Odd}]}}
"""


def plugin(**methods: Any) -> type[Any]:
    return type("Odd", (), {"name": "Odd", **methods})


def place(odd: type[Any], *, cpu: str = "1") -> tuple[ScheduleResult, PodEngine]:
    registry = known_plugins().with_plugins(odd)
    cache = filled_cache([make_node(name, cpu="4") for name in "ab"])
    engine = PodEngine(configured(CONFIG, registry), registry, cache, clock=ManualClock(), chance=random.Random(0))
    return engine.place(make_pod("p", requests={"cpu": cpu})), engine


def returning(make: Callable[[], Any]) -> Callable[..., Any]:
    return lambda *_: make()


def yielding(make: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda _self, _cycle, nodes: [make(np.ones(len(nodes), np.bool_))]


def leave(*_: Any) -> Any:
    raise SystemExit(3)


def give_up(*_: Any) -> Any:
    raise asyncio.CancelledError


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def choke(*_: Any) -> Any:
    raise Speechless


NONSENSE = [
    pytest.param("pre_filter", returning(lambda: 5), id="pre-filter-number"),
    pytest.param("pre_filter", returning(lambda: PreFilterResult("a")), id="pre-filter-narrows-to-a-text"),  # type: ignore[arg-type]
    pytest.param("pre_filter", returning(lambda: PreFilterResult(5)), id="pre-filter-narrows-to-a-number"),  # type: ignore[arg-type]
    pytest.param("pre_filter", leave, id="pre-filter-leaves"),
    pytest.param("pre_filter", give_up, id="pre-filter-cancelled"),
    pytest.param("pre_filter", choke, id="pre-filter-speechless"),
    pytest.param("filter", returning(lambda: True), id="filter-bool"),
    pytest.param("filter", give_up, id="filter-cancelled"),
    pytest.param("filter_nodes", give_up, id="filter-nodes-cancelled"),
    pytest.param("score_nodes", give_up, id="score-nodes-cancelled"),
    pytest.param("filter", returning(lambda: unschedulable(5)), id="filter-reason-number"),  # type: ignore[arg-type]
    pytest.param("filter", returning(lambda: Status(99)), id="filter-code"),  # type: ignore[arg-type]
    pytest.param("filter", returning(lambda: Status(Code.SKIP)), id="filter-skip"),
    pytest.param("filter_nodes", yielding(lambda _: 5), id="filter-nodes-number"),
    pytest.param("filter_nodes", yielding(lambda _: Rejection(np.ones(9, np.bool_), "x")), id="filter-nodes-length"),
    pytest.param(
        "filter_nodes", yielding(lambda n: Rejection(np.ones(len(n), np.bool_), None)), id="filter-nodes-reason"
    ),  # type: ignore[arg-type]
    pytest.param(
        "filter_nodes", yielding(lambda all_: Rejection(all_, "x", code=Code.SUCCESS)), id="filter-nodes-success"
    ),
    pytest.param("filter_nodes", yielding(lambda all_: Rejection(all_, "x", code=Code.WAIT)), id="filter-nodes-wait"),
    pytest.param("pre_score", returning(lambda: "no"), id="pre-score-text"),
    pytest.param("score", returning(lambda: 1.5), id="score-fraction"),
    pytest.param("score", returning(lambda: 10**30), id="score-huge"),
    pytest.param("score", returning(lambda: 101), id="score-above"),
    pytest.param("score_nodes", returning(lambda: np.array([np.nan, 1.0])), id="scores-nan"),
    pytest.param("score_nodes", returning(lambda: np.array([1])), id="scores-length"),
    pytest.param("permit", returning(lambda: PermitWait("x")), id="permit-waits-for-a-text"),  # type: ignore[arg-type]
    pytest.param("permit", returning(lambda: PermitWait(float("nan"))), id="permit-waits-for-nan"),
    pytest.param("permit", returning(lambda: PermitWait(-1)), id="permit-waits-backwards"),
    pytest.param("permit", leave, id="permit-leaves"),
    pytest.param("permit", give_up, id="permit-cancelled"),
    pytest.param("permit", choke, id="permit-speechless"),
]


@pytest.mark.parametrize(("method", "body"), NONSENSE)
def test_an_invalid_result_is_named_and_fails_one_attempt(method: str, body: Any) -> None:
    placed, engine = place(plugin(**{method: body}))
    assert placed.node is None
    assert placed.status.code is Code.ERROR
    assert "Odd" in placed.status.message or placed.status.plugin == "Odd"
    assert engine.cache.pod_count == 0
    assert sum(stats.failed for name, _, stats in engine.timings.rows() if name == "Odd") <= 2


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(returning(lambda: PostFilterResult(5)), id="status"),  # type: ignore[arg-type]
        pytest.param(returning(lambda: PostFilterResult(Status(Code.UNSCHEDULABLE), victims=("a",))), id="victims"),  # type: ignore[arg-type]
        pytest.param(
            returning(lambda: PostFilterResult(Status(Code.UNSCHEDULABLE), nominated_node_name=5)), id="nominate"
        ),  # type: ignore[arg-type]
        pytest.param(returning(lambda: 7), id="number"),
    ],
)
def test_a_post_filter_with_an_invalid_result_is_named_in_the_message(body: Any) -> None:
    placed, _ = place(plugin(post_filter=body), cpu="64")
    assert 'running PostFilter plugin "Odd"' in placed.status.message or "Odd" in placed.status.message
    assert placed.status.code is Code.UNSCHEDULABLE


def test_a_factory_must_return_the_plugin() -> None:
    odd = plugin(filter=returning(lambda: None), factory=classmethod(lambda *_: None))
    with pytest.raises(ConfigError, match='initializing plugin "Odd": its factory returned None'):
        place(odd)


def test_registered_events_must_be_registrations() -> None:
    with pytest.raises(ConfigError, match="events_to_register holds 5"):
        place(plugin(filter=returning(lambda: None), events_to_register=5))


@pytest.mark.parametrize(
    ("methods", "text"),
    [
        pytest.param({"filter": leave, "normalise": leave}, "normalise; is normalize meant", id="misspelt"),
        pytest.param({"prefilter": leave, "score": leave}, "prefilter; is pre_filter meant", id="missing-underscore"),
        pytest.param({"filter": leave, "ARGS": 5}, "ARGS = 5", id="args"),
    ],
)
def test_an_invalid_class_is_refused_at_registration(methods: dict[str, Any], text: str) -> None:
    with pytest.raises(PluginError, match=text):
        Registry.of(plugin(**methods))


def test_columns_are_read_only() -> None:
    def overwrite(_self: Any, _cycle: Any, nodes: Any) -> Any:
        nodes.allocatable("cpu")[:] = 0
        return ()

    placed, engine = place(plugin(filter_nodes=overwrite))
    assert "read-only" in placed.status.message
    assert engine.snapshot().table[0].allocatable("cpu") == 4000


def test_closing_continues_after_a_failure() -> None:
    closed = []
    odd = plugin(filter=returning(lambda: None), close=leave)
    other = type("Other", (), {"name": "Other", "filter": lambda *_: None, "close": lambda _: closed.append(1)})
    registry = known_plugins().with_plugins(odd, other)
    text = CONFIG.replace("{name: Odd}", "{name: Odd}, {name: Other}")
    PodEngine(
        configured(text, registry), registry, filled_cache([]), clock=ManualClock(), chance=random.Random(0)
    ).close()
    assert closed == [1]


@pytest.mark.parametrize("method", ["score", "score_nodes"])
def test_skip_is_not_a_score(method: str) -> None:
    placed, _ = place(plugin(**{method: returning(lambda: SKIP)}))
    assert placed.status.message == (
        'running Score plugins: plugin "Odd" failed with: returned Skip, which is not allowed here'
    )
