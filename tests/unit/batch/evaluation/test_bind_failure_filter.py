"""Nodes on which the binder failed to bind a pod are excluded in every session, whatever plugins are configured."""

from __future__ import annotations

import random

import pytest

from bayplan.app import build_batch_engine
from bayplan.batch.config.scheduler_conf import load_conf
from bayplan.batch.engine import BatchEngine
from bayplan.batch.session.outcome import SessionResult
from bayplan.cache import Cache
from bayplan.clock import ManualClock
from bayplan.framework.runtime.bind_failures import FAILURES_BEFORE_POD_BACKOFF, INITIAL_EXCLUSION_S
from bayplan.framework.runtime.bind_request_factory import BindRequestFactory
from bayplan.framework.runtime.bind_request_mutation import EXCLUDED_NODE_REASON
from bayplan.objects.core import Pod
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member, make_queue, tasks_of

WITH = "tiers: [{plugins: [{name: gang}, {name: predicates}]}]"
WITHOUT = "tiers: [{plugins: [{name: gang}]}]"
whatever_is_listed = pytest.mark.parametrize("tiers", [WITH, WITHOUT], ids=["with", "without"])
everywhere = pytest.mark.parametrize("action", ["allocate", "backfill"])


class BindFailureCluster:
    """Two nodes on which bindings of these pods failed."""

    def __init__(self, tiers: str, *pods: Pod, action: str = "allocate") -> None:
        self.clock, cache = ManualClock(), Cache()
        for name in ("a", "b"):
            cache.add_node(make_node(name, cpu=2))
        for item in (make_queue(), make_group(phase="Inqueue")):
            cache.upsert(item)
        conf = load_conf(f'actions: "{action}"\n{tiers}')
        self.engine: BatchEngine = build_batch_engine(conf, cache, clock=self.clock, chance=random.Random(0))
        factory = self.engine.handle.bind_request_factory = BindRequestFactory(self.clock)
        self.failures = factory.failures
        for pod in pods:
            self.engine.handle_update(pod)

    def placed(self) -> dict[str, str]:
        """The nodes of the pods bound in one session."""
        outcome = self.engine.run_session()
        assert not outcome.faults
        self.waiting = outcome.waiting
        return {key.partition("/")[2]: node for key, node in outcome.binds.items()}


def pod_for(action: str, name: str = "p") -> Pod:
    return make_member(name, requests={} if action == "backfill" else None)


@pytest.mark.parametrize("left", ["a", "b"])
@everywhere
@whatever_is_listed
def test_a_pod_is_placed_on_the_remaining_node(tiers: str, action: str, left: str) -> None:
    pod = pod_for(action)
    world = BindFailureCluster(tiers, pod, action=action)
    world.failures.record_failure(pod.uid, "b" if left == "a" else "a", "no")
    assert world.placed() == {"p": left}


@everywhere
@whatever_is_listed
def test_without_a_remaining_node_the_pod_waits_until_the_backoff_is_over(tiers: str, action: str) -> None:
    pod = pod_for(action)
    world = BindFailureCluster(tiers, pod, action=action)
    world.failures.record_failure(pod.uid, "a", "no")
    world.failures.record_failure(pod.uid, "b", "no")
    assert world.placed() == {}
    message = world.waiting[pod.key]
    assert EXCLUDED_NODE_REASON in message.message
    assert message.counts == {EXCLUDED_NODE_REASON: 2}
    world.clock.advance(INITIAL_EXCLUSION_S + 1)
    assert set(world.placed()) == {"p"}


@everywhere
@whatever_is_listed
def test_a_pod_with_too_many_failures_waits_with_a_reason(tiers: str, action: str) -> None:
    pod = pod_for(action)
    world = BindFailureCluster(tiers, pod, action=action)
    for _ in range(FAILURES_BEFORE_POD_BACKOFF):
        world.failures.record_failure(pod.uid, "gone", "quota")
    assert world.placed() == {}
    assert world.waiting[pod.key].counts == {
        "plugin BindRequestBinder pre-predicates failed BindFailed: 5 bindings of the pod failed, the last on "
        "node gone: quota; it is retried in 30 s": 2
    }
    world.clock.advance(INITIAL_EXCLUSION_S + 1)
    assert set(world.placed()) == {"p"}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("failed", [0, 1])
@whatever_is_listed
def test_a_pod_with_failures_does_not_share_the_evaluation_of_equal_pods(tiers: str, failed: int, seed: int) -> None:
    twins = [make_member("p-0"), make_member("p-1")]
    world = BindFailureCluster(tiers, *twins)
    world.engine.handle.random.seed(seed)
    world.failures.record_failure(twins[failed].uid, "a", "no")
    found = world.placed()
    assert len(found) == 2
    assert found[twins[failed].name] == "b"


def test_an_action_that_skips_predicates_is_rejected_at_the_commit() -> None:
    pod = make_member("p")
    world = BindFailureCluster(WITHOUT, pod)
    world.failures.record_failure(pod.uid, "a", "no")
    outcome = SessionResult()
    with world.engine.session(outcome) as session:
        (task,) = tasks_of(session, "p")
        statement = session.statement()
        assert statement.allocate(task, "a")
        assert not statement.commit()
        statement.discard()
        statement = session.statement()
        assert statement.allocate(task, "b")
        assert statement.commit()
    assert outcome.binds == {pod.key: "b"}


@whatever_is_listed
def test_the_reason_is_recorded_once(tiers: str) -> None:
    pod = make_member("p")
    world = BindFailureCluster(tiers, pod)
    world.failures.record_failure(pod.uid, "a", "no")
    with world.engine.session() as session:
        (task,) = tasks_of(session, "p")
        node = session.node("a")
        assert node is not None
        assert [reason for status in session.predicate(task, node) for reason in status.reasons] == [
            EXCLUDED_NODE_REASON
        ]
