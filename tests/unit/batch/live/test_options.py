"""Validation of the options of a live batch engine."""

from __future__ import annotations

import pytest

from bayplan.batch.live.multi_scheduler import MultiScheduler
from bayplan.batch.live.options import BatchOptions
from bayplan.testing.builders import make_node


@pytest.mark.parametrize(
    ("options", "text"),
    [
        pytest.param(BatchOptions(scheduler_name=("",)), "--scheduler-name must not be empty", id="no name"),
        pytest.param(BatchOptions(sharding_mode="odd"), "use none, hard or soft", id="no such mode"),
        pytest.param(BatchOptions(sharding_mode="hard", sharding_name=""), "name of a NodeShard", id="no shard"),
        pytest.param(
            BatchOptions(multi_scheduler=MultiScheduler("solo", 2)), "SCHEDULER_POD_NAME is 'solo'", id="no number"
        ),
        pytest.param(
            BatchOptions(multi_scheduler=MultiScheduler("s-2", 2)), "below SCHEDULER_NUM (2)", id="no such number"
        ),
        pytest.param(BatchOptions(node_selector=("pool",)), "is not label:value", id="no selector"),
    ],
)
def test_invalid_options(options: BatchOptions, text: str) -> None:
    assert any(text in fault for fault in options.validation_errors())


def test_the_defaults_are_valid() -> None:
    assert list(BatchOptions().validation_errors()) == []
    assert list(BatchOptions(sharding_mode="soft", multi_scheduler=MultiScheduler("s-1", 2)).validation_errors()) == []
    assert BatchOptions().node_sampling is None


def test_the_lease_has_the_name_of_the_only_scheduler() -> None:
    assert BatchOptions(scheduler_name=("mine",)).lock_name == "mine"
    assert BatchOptions(scheduler_name=("mine", "yours")).lock_name == "volcano"


def test_a_node_needs_to_match_one_selector() -> None:
    options = BatchOptions(node_selector=("pool:a", "pool:b"))
    chosen = [options.manages(make_node("n", labels={"pool": pool})) for pool in ("a", "b", "c")]
    assert chosen == [True, True, False]
    assert BatchOptions().manages(make_node("n"))
