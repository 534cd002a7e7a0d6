"""Validation of a Queue, alone and with the other queues."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.admission.queue_validation import QueueValidationRules, queue_deletion_error, queue_error
from bayplan.admission.volcano_defaults import with_queue_defaults
from support.builders.volcano_manifests import queue

RULES = QueueValidationRules()
QUEUES = {
    each["metadata"]["name"]: each
    for each in (
        queue("root"),
        queue("default", parent="root"),
        queue("dept", parent="root", capability={"cpu": "8"}, deserved={"cpu": "4"}),
        queue("team", parent="dept", deserved={"cpu": "3"}, capability={"cpu": "6"}),
        queue("tree", annotations={"volcano.sh/hierarchy": "root/sci/dev"}),
    )
}


def paths(hierarchy: str, weights: str) -> dict[str, str]:
    return {"volcano.sh/hierarchy": hierarchy, "volcano.sh/hierarchy-weights": weights}


@pytest.mark.parametrize(
    ("new_queue", "error"),
    [
        pytest.param(queue("a", parent="dept", deserved={"cpu": "1"}), "", id="valid"),
        pytest.param(
            queue("a", capability={"cpu": "-1"}),
            'requestBody.spec.capability.cpu: Invalid value: "-1": must be greater than or equal to 0',
            id="a negative capability",
        ),
        pytest.param(
            queue("a", guarantee={"resource": {"cpu": "2"}}),
            'requestBody.spec.deserved.cpu: Invalid value: "<nil>": deserved[cpu] must be >= guarantee[cpu]=2',
            id="guaranteed but not deserved",
        ),
        pytest.param(
            queue("a", guarantee={"resource": {"cpu": "2"}}, deserved={"cpu": "1"}),
            'requestBody.spec.deserved.cpu: Invalid value: "1": deserved[cpu]=1 must be >= guarantee[cpu]=2',
            id="deserved less than guaranteed",
        ),
        pytest.param(
            queue("a", deserved={"cpu": "3"}, capability={"cpu": "2"}),
            'requestBody.spec.deserved.cpu: Invalid value: "3": deserved[cpu]=3 must be <= capability[cpu]=2',
            id="deserved more than its capability",
        ),
        pytest.param(
            queue("a", state="Ajar"),
            'requestBody.spec.state: Invalid value: "Ajar": queue state must be in [Open Closed]',
            id="an unknown state",
        ),
        pytest.param(
            queue("a", annotations=paths("root/a", "1")),
            'requestBody.metadata.annotations: Invalid value: "root/a": volcano.sh/hierarchy must have the same length '
            "with volcano.sh/hierarchy-weights",
            id="a path with too few weights",
        ),
        pytest.param(
            queue("a", annotations=paths("root/a", "1/0")),
            'requestBody.metadata.annotations: Invalid value: "1/0": 0 in the 1/0 must be larger than 0',
            id="a weight of zero",
        ),
        pytest.param(
            queue("a", annotations=paths("root/sci", "1/1")),
            'requestBody.metadata.annotations: Invalid value: "root/sci": root/sci is not allowed to be in the sub '
            "path of root/sci/dev of queue tree",
            id="a path through another queue",
        ),
        pytest.param(queue("a", parent="a"), "queue a cannot use itself as parent", id="its own parent"),
        pytest.param(
            queue("a", parent="gone"),
            'failed to get parent queue gone of queue a: queue.scheduling.volcano.sh "gone" not found',
            id="an unknown parent",
        ),
        pytest.param(
            queue("a", parent="team", capability={"cpu": "7"}),
            "queue a capability[cpu]=7 exceeds its ancestor's capability=6",
            id="more than its ancestor",
        ),
        pytest.param(
            queue("a", parent="dept", deserved={"cpu": "2"}),
            "parent queue dept validation failed: sum of children's deserved (cpu 5) exceeds parent's deserved limit "
            "(cpu 4)",
            id="siblings deserve more than the parent",
        ),
    ],
)
def test_new_queues(new_queue: dict[str, Any], error: str) -> None:
    assert queue_error(new_queue, QUEUES, rules=RULES) == error


def test_the_depth_of_the_queue_tree_is_limited() -> None:
    chain = {"q0": queue("q0", parent="root")} | {f"q{n}": queue(f"q{n}", parent=f"q{n - 1}") for n in range(1, 5)}
    assert queue_error(queue("q4", parent="q3"), chain, rules=RULES) == ""
    assert (
        queue_error(queue("q5", parent="q4"), chain, rules=RULES) == "queue q5 exceeds the maximum allowed depth of 5"
    )


def test_a_cycle_of_queues_is_refused() -> None:
    cycle = {"a": queue("a", parent="b"), "b": queue("b", parent="a")}
    assert "maximum allowed depth" in queue_error(queue("a", parent="b"), cycle, rules=RULES)


def test_a_queue_with_pods_cannot_become_a_parent() -> None:
    busy = queue("busy")
    busy["status"]["allocated"] = {"pods": "3"}
    error = queue_error(queue("a", parent="busy"), {"busy": busy}, rules=RULES)
    assert error == "queue busy cannot be the parent queue of queue a because it has allocated Pods: 3"


def test_a_parent_cannot_shrink_below_its_children() -> None:
    old = QUEUES["dept"]
    reduced = {**old, "spec": {**old["spec"], "capability": {"cpu": "5"}, "deserved": {"cpu": "3"}}}
    error = queue_error(reduced, QUEUES, old=old, rules=RULES)
    assert error == "queue dept capability[cpu]=5 is smaller than its descendants' max capability=6"


def test_the_shares_of_the_root_queue_are_immutable() -> None:
    old = QUEUES["root"]
    error = queue_error({**old, "spec": {"capability": {"cpu": "1"}}}, QUEUES, old=old, rules=RULES)
    assert error == "root queue's resource attributes (capability, deserved, guarantee) cannot be modified"
    free = QueueValidationRules(protect_root=False)
    assert queue_error({**old, "spec": {"capability": {"cpu": "1"}}}, QUEUES, old=old, rules=free) == ""


def test_a_closing_queue_can_be_updated() -> None:
    old = queue("a", state="Closing", weight=1)
    assert queue_error({**old, "spec": {"weight": 2}}, QUEUES, old=old, rules=RULES) == ""


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("team", ""),
        ("default", "`default` queue can not be deleted"),
        ("root", "`root` queue can not be deleted"),
        ("dept", "queue dept can not be deleted because it has 1 child queues: team"),
    ],
)
def test_deletions(name: str, error: str) -> None:
    assert queue_deletion_error(name, QUEUES, rules=RULES) == error


def test_a_queue_with_pods_is_not_deleted_if_the_rules_say_so() -> None:
    busy = queue("busy")
    busy["status"]["allocated"] = {"pods": "3"}
    strict = QueueValidationRules(check_allocated_pods=True)
    assert queue_deletion_error("busy", {"busy": busy}, rules=RULES) == ""
    error = queue_deletion_error("busy", {"busy": busy}, rules=strict)
    assert error == "queue busy cannot be deleted because it has allocated Pods: 3"


def test_defaults() -> None:
    defaulted = with_queue_defaults(queue("a", annotations=paths("sci/dev", "2/3")))
    assert defaulted["metadata"]["annotations"] == paths("root/sci/dev", "1/2/3")
    assert defaulted["spec"] == {"reclaimable": True, "weight": 1}
    complete = queue("a", reclaimable=False, weight=4)
    assert with_queue_defaults(complete) == complete
