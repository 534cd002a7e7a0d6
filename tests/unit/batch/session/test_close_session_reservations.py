"""Reservations for tasks that a session does not bind are released at its end."""

from __future__ import annotations

import pytest

from bayplan.batch.engine import BatchEngine
from bayplan.objects.core import Pod
from bayplan.testing.builders import CREATED, make_node, make_pv, make_pvc, make_storage_class
from support.builders.batch import make_group, make_member
from support.builders.batch_engines import build_engine
from support.builders.framework import replace_fields
from support.builders.volumes import claim_volume

CLAIM = make_pvc("data", storage_class="slow")
VOLUMES = (
    CLAIM,
    make_pv("disk", storage_class="slow"),
    make_storage_class("slow", provisioner="rancher.io/local-path"),
)
LEAVING = replace_fields(
    make_member("old-w-0", "old", node="n", requests={"cpu": "4"}), metadata={"deletion_timestamp": CREATED}
)


def with_claim(pod: Pod) -> Pod:
    return replace_fields(pod, spec={"volumes": (claim_volume("data"),)})


def engine_with(*pods: Pod, minimum: int = 1) -> BatchEngine:
    groups = (make_group("old"), make_group("job", min_member=minimum))
    return build_engine(nodes=[make_node("n", cpu=4)], pods=pods, objects=[*VOLUMES, *groups])


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_volume_of_a_pipelined_task_is_released(rounds: int) -> None:
    engine = engine_with(LEAVING, with_claim(make_member("job-w-0", requests={"cpu": "2"})))
    for _ in range(rounds):
        outcome = engine.run_session()
        assert outcome.pipelined == {"default/job-w-0": "n"}
        assert outcome.pre_binds == {}
        assert engine.cache.volumes.claims.get(CLAIM.key) == CLAIM
        assert len(engine.cache.volumes.volumes) == 0


def test_a_volume_of_a_bound_task_stays_reserved() -> None:
    engine = engine_with(with_claim(make_member("job-w-0", requests={"cpu": "2"})))
    outcome = engine.run_session()
    assert outcome.binds == {"default/job-w-0": "n"}
    assert list(outcome.pre_binds) == ["pod-job-w-0"]
    assert len(engine.cache.volumes.volumes) == 1


def test_an_aborted_session_releases_its_reservations() -> None:
    engine = engine_with(with_claim(make_member("job-w-0", requests={"cpu": "2"})))
    with engine.session() as session:
        task = session.jobs["default/job"].tasks["pod-job-w-0"]
        session.pre_predicate(task)
        assert session.evaluate_class(task).rows_to_allocate(task).any()
        assert session.statement().allocate(task, "n")
        assert len(engine.cache.volumes.volumes) == 1
    assert len(engine.cache.volumes.volumes) == 0
