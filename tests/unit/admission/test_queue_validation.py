"""What is wrong with a Queue, by itself and among the others."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.admission.queue_validation import QueueValidationRules, queue_deletion_error, queue_error
from bayplan.admission.volcano_defaults import with_queue_defaults
from support.builders.volcano_manifests import queue

RULES = QueueValidationRules()
OTHERS = {
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
    ("given", "fault"),
    [
        pytest.param(queue("a", parent="dept", deserved={"cpu": "1"}), "", id="sound"),
        pytest.param(
            queue("a", capability={"cpu": "-1"}),
            'requestBody.spec.capability.cpu: Invalid value: "-1": must be greater than or equal to 0',
            id="less than nothing",
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
            id="deserved more than it can have",
        ),
        pytest.param(
            queue("a", state="Ajar"),
            'requestBody.spec.state: Invalid value: "Ajar": queue state must be in [Open Closed]',
            id="a state of its own",
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
            id="no weight",
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
            id="siblings deserve more than there is",
        ),
    ],
)
def test_new_queues(given: dict[str, Any], fault: str) -> None:
    assert queue_error(given, OTHERS, rules=RULES) == fault


def test_queues_stand_only_so_deep() -> None:
    chain = {"q0": queue("q0", parent="root")} | {f"q{n}": queue(f"q{n}", parent=f"q{n - 1}") for n in range(1, 5)}
    assert queue_error(queue("q4", parent="q3"), chain, rules=RULES) == ""
    assert (
        queue_error(queue("q5", parent="q4"), chain, rules=RULES) == "queue q5 exceeds the maximum allowed depth of 5"
    )


def test_a_circle_of_queues_ends_the_walk_and_is_refused() -> None:
    circle = {"a": queue("a", parent="b"), "b": queue("b", parent="a")}
    assert "maximum allowed depth" in queue_error(queue("a", parent="b"), circle, rules=RULES)


def test_a_queue_with_pods_does_not_become_a_parent() -> None:
    busy = queue("busy")
    busy["status"]["allocated"] = {"pods": "3"}
    fault = queue_error(queue("a", parent="busy"), {"busy": busy}, rules=RULES)
    assert fault == "queue busy cannot be the parent queue of queue a because it has allocated Pods: 3"


def test_a_parent_does_not_shrink_below_its_children() -> None:
    old = OTHERS["dept"]
    less = {**old, "spec": {**old["spec"], "capability": {"cpu": "5"}, "deserved": {"cpu": "3"}}}
    fault = queue_error(less, OTHERS, old=old, rules=RULES)
    assert fault == "queue dept capability[cpu]=5 is smaller than its descendants' max capability=6"


def test_roots_shares_stay() -> None:
    old = OTHERS["root"]
    fault = queue_error({**old, "spec": {"capability": {"cpu": "1"}}}, OTHERS, old=old, rules=RULES)
    assert fault == "root queue's resource attributes (capability, deserved, guarantee) cannot be modified"
    free = QueueValidationRules(protect_root=False)
    assert queue_error({**old, "spec": {"capability": {"cpu": "1"}}}, OTHERS, old=old, rules=free) == ""


def test_a_queue_that_is_closing_can_be_changed_otherwise() -> None:
    old = queue("a", state="Closing", weight=1)
    assert queue_error({**old, "spec": {"weight": 2}}, OTHERS, old=old, rules=RULES) == ""


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("team", ""),
        ("default", "`default` queue can not be deleted"),
        ("root", "`root` queue can not be deleted"),
        ("dept", "queue dept can not be deleted because it has 1 child queues: team"),
    ],
)
def test_deletions(name: str, fault: str) -> None:
    assert queue_deletion_error(name, OTHERS, rules=RULES) == fault


def test_a_queue_with_pods_stays_if_that_is_wanted() -> None:
    busy = queue("busy")
    busy["status"]["allocated"] = {"pods": "3"}
    strict = QueueValidationRules(check_allocated_pods=True)
    assert queue_deletion_error("busy", {"busy": busy}, rules=RULES) == ""
    fault = queue_deletion_error("busy", {"busy": busy}, rules=strict)
    assert fault == "queue busy cannot be deleted because it has allocated Pods: 3"


def test_defaults() -> None:
    filled = with_queue_defaults(queue("a", annotations=paths("sci/dev", "2/3")))
    assert filled["metadata"]["annotations"] == paths("root/sci/dev", "1/2/3")
    assert filled["spec"] == {"reclaimable": True, "weight": 1}
    kept = queue("a", reclaimable=False, weight=4)
    assert with_queue_defaults(kept) == kept
