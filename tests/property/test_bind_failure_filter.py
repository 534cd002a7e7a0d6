"""Nodes of failed bindings are excluded for a while: the plugin against a naive twin."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from bayplan.clock import ManualClock
from bayplan.framework.api.status import Code
from bayplan.framework.runtime.bind_failures import FAILURES_BEFORE_POD_BACKOFF, INITIAL_EXCLUSION_S, MAX_EXCLUSION_S
from bayplan.framework.runtime.bind_request_factory import BindRequestFactory
from bayplan.framework.runtime.bind_request_mutation import EXCLUDED_NODE_REASON
from bayplan.plugins.bind_request_binder import BindRequestBinder
from support.builders.framework import (
    FEASIBLE,
    FakeHandle,
    filter_result,
    make_cycle,
    make_filtering,
    make_node,
    make_pod,
    make_snapshot,
    unresolvable,
)

NAMES = ["a", "b", "c", "d"]
failures = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 40)), max_size=FAILURES_BEFORE_POD_BACKOFF - 1)


@given(failures, st.integers(0, 200))
def test_a_node_is_excluded_until_its_backoff_is_over(given_up: list[tuple[str, int]], later_s: int) -> None:
    clock = ManualClock()
    desk, pod = BindRequestFactory(clock), make_pod("p")
    until_s: dict[str, float] = {}
    count = dict.fromkeys(NAMES, 0)
    for node, pause_s in given_up:
        clock.advance(pause_s)
        desk.failures.record_failure(pod.uid, node, "no")
        until_s[node] = clock.monotonic_s() + min(INITIAL_EXCLUSION_S * 2 ** count[node], MAX_EXCLUSION_S)
        count[node] += 1
    clock.advance(later_s)
    snapshot = make_snapshot([make_node(name) for name in NAMES])
    handle = FakeHandle(snapshot.catalog)
    handle.bind_requests = SimpleNamespace(factory=desk)
    filtering, cycle = make_filtering(BindRequestBinder.factory(None, handle)), make_cycle(pod, snapshot)
    outcome = filtering.pre_filter(cycle)
    assert outcome.status.code is not Code.ERROR
    diagnosis = filtering.run_filters(cycle, outcome)
    found = {name: filter_result(diagnosis.status(row)) for row, name in enumerate(snapshot.nodes.names)}
    left_out = {name for name in NAMES if until_s.get(name, 0.0) > clock.monotonic_s()}
    assert found == {name: unresolvable(EXCLUDED_NODE_REASON) if name in left_out else FEASIBLE for name in NAMES}
