"""Diagnosis: statuses by node, counts by reason, and the FailedScheduling message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.clock import ManualClock
from bayplan.framework.api.cycle import Cycle
from bayplan.framework.api.diagnosis import Diagnosis, FilterReasonRows, FilterResults, combination_numbers
from bayplan.framework.api.extension_points import POST_FILTER, PRE_ENQUEUE, ExtensionPoint
from bayplan.framework.api.plugin import PostFilterResult
from bayplan.framework.api.status import SKIP, SUCCESS, Code, Status, error, unresolvable, unschedulable
from bayplan.framework.runtime.framework import Framework
from bayplan.framework.runtime.plugin_call import PluginCaller
from bayplan.framework.runtime.profile import Profile
from bayplan.telemetry.plugin_timings import PluginTimings
from support.builders.framework import FakeHandle, make_cycle, make_pod


def diagnosis_of(*statuses: Status | None) -> Diagnosis:
    """A diagnosis with one node for each status; None: not evaluated."""
    diagnosis = Diagnosis([f"n{number}" for number in range(len(statuses))])
    for row, status in enumerate(statuses):
        if status is not None:
            diagnosis.override(row, status)
    return diagnosis


def no(*reasons: str) -> Status:
    return unschedulable(*reasons).by("P")


# message


def test_reasons_are_counted_and_sorted_as_text() -> None:
    statuses = [no("x")] * 10 + [no("y")] * 2 + [no("z", "a")]
    assert diagnosis_of(*statuses).sentence() == "0/13 nodes are available: 1 a, 1 z, 10 x, 2 y."


def test_the_documented_message() -> None:
    diagnosis = diagnosis_of(
        unresolvable("node(s) had untolerated taint(s)"), no("Insufficient cpu"), no("Insufficient cpu")
    )
    diagnosis.post_filter_message = (
        "no new claims to deallocate, preemption: 0/3 nodes are available: 1 Preemption is not helpful for "
        "scheduling, 2 No preemption victims found for incoming pod."
    )
    assert diagnosis.sentence() == (
        "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu. no new claims to deallocate, "
        "preemption: 0/3 nodes are available: 1 Preemption is not helpful for scheduling, 2 No preemption victims "
        "found for incoming pod."
    )


def test_a_prefilter_rejection_is_the_only_message() -> None:
    diagnosis = diagnosis_of(None, None)
    diagnosis.absent = unresolvable("pod has unbound immediate PersistentVolumeClaims")
    diagnosis.pre_filter_message = diagnosis.absent.message
    diagnosis.post_filter_message = "not found"
    expected = "0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"
    assert diagnosis.sentence() == expected


def test_nodes_that_were_not_evaluated_have_the_absent_status() -> None:
    diagnosis = diagnosis_of(no("full"), None, None)
    diagnosis.absent = unresolvable("not mine")
    assert diagnosis.histogram() == {"full": 1, "not mine": 2}
    assert diagnosis.status(2) == unresolvable("not mine")
    assert [name for name, _ in diagnosis.by_node()] == ["n0"]
    assert diagnosis.rows_with(Code.UNRESOLVABLE).tolist() == [False, True, True]
    assert diagnosis.rows_with(Code.UNSCHEDULABLE).tolist() == [True, False, False]


def test_a_node_that_an_extender_left_out_counts_as_not_evaluated() -> None:
    diagnosis = diagnosis_of(no("full"), None, None)
    diagnosis.verdicts.codes[1] = Code.SUCCESS
    diagnosis.absent = unresolvable("not mine")
    assert diagnosis.histogram() == {"full": 1, "not mine": 2}


def test_no_reasons_no_colon_part() -> None:
    assert diagnosis_of(None, None).sentence() == "0/2 nodes are available:"
    assert diagnosis_of(unschedulable()).sentence() == "0/1 nodes are available:"


# statuses


def common(codes: list[int], *reasons: tuple[str, str, list[bool]]) -> Diagnosis:
    diagnosis = Diagnosis([f"n{number}" for number in range(len(codes))])
    diagnosis.verdicts = FilterResults(np.array(codes, dtype=np.int8))
    for plugin, text, mask in reasons:
        diagnosis.verdicts.reasons.append(FilterReasonRows(plugin, text, np.array(mask)))
        before = diagnosis.verdicts.plugins.get(plugin, np.zeros(len(codes), dtype=np.bool_))
        diagnosis.verdicts.plugins[plugin] = before | np.array(mask)
    return diagnosis


def test_statuses_come_from_masks() -> None:
    diagnosis = common([2, 0, 3], ("A", "x", [True, False, False]), ("B", "y", [False, False, True]))
    assert diagnosis.status(0) == unschedulable("x").by("A")
    assert diagnosis.status(1) == SUCCESS
    assert diagnosis.status(2) == unresolvable("y").by("B")
    assert diagnosis.verdicts.feasible.tolist() == [False, True, False]


def test_an_override_replaces_the_status_of_the_common_pass() -> None:
    diagnosis = common([0, 2], ("A", "x", [False, True]))
    diagnosis.override(0, no("guests"))
    diagnosis.override(1, no("other"))
    diagnosis.record_rejectors()
    assert diagnosis.histogram() == {"guests": 1, "other": 1}
    assert diagnosis.rows_with(Code.SUCCESS).tolist() == [False, False]
    assert diagnosis.unschedulable_plugins == {"P"}


def test_rejectors_are_recorded_for_the_queue() -> None:
    diagnosis = common([2, 6, 1], ("A", "x", [True, False, False]), ("B", "y", [False, True, False]))
    diagnosis.verdicts.plugins["C"] = np.array([False, False, True])
    diagnosis.record_rejectors()
    diagnosis.record(error("broke").by("D"))
    assert diagnosis.unschedulable_plugins == {"A", "B"}
    assert diagnosis.pending_plugins == {"B"}


# PostFilter and PreEnqueue


class Answers:
    def __init__(self, name: str, answer: Any) -> None:
        self.name = name
        self.answer = answer
        self.asked = 0

    def _say(self) -> Any:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def post_filter(self, cycle: Cycle, diagnosis: Diagnosis) -> Any:  # noqa: ARG002
        return self._say()

    def pre_enqueue(self, pod: Any) -> Any:  # noqa: ARG002
        return self._say()


def framework(point: ExtensionPoint, *plugins: Any) -> Framework:
    profile = Profile("mine", {point: plugins}, {}, {}, {}, {})
    return Framework(profile, FakeHandle())  # type: ignore[arg-type]


def post_filter(*answers: Any) -> PostFilterResult:
    plugins = [Answers(f"P{number}", answer) for number, answer in enumerate(answers)]
    return framework(POST_FILTER, *plugins).post_filter(make_cycle(make_pod()), diagnosis_of())


def test_postfilter_collects_reasons() -> None:
    answer = post_filter(unschedulable("one"), unschedulable("two", "three"))
    assert answer.status == Status(Code.UNSCHEDULABLE, ("one", "two", "three"), plugin="P0")
    assert answer.nominated_node_name is None


def test_postfilter_success_ends_it_and_drops_earlier_reasons() -> None:
    victim = make_pod("victim")
    found = PostFilterResult(SUCCESS, "n1", (victim,), ("evict",))
    answer = post_filter(
        PostFilterResult(unschedulable("one"), writes=("deallocate",)), found, ValueError("never asked")
    )
    assert answer == PostFilterResult(SUCCESS, "n1", (victim,), ("deallocate", "evict"))


def test_postfilter_unresolvable_ends_it() -> None:
    answer = post_filter(unschedulable("one"), unresolvable("never"), unschedulable("two"))
    assert answer.status == unresolvable("never").by("P1")


@pytest.mark.parametrize("broken", [error("broke"), Status(Code.SKIP, ("broke",))], ids=lambda s: s.code.label)
def test_a_failing_postfilter_ends_the_point(broken: Status) -> None:
    assert post_filter(unschedulable("one"), broken).status == error("broke").by("P1")


def test_skip_is_invalid_at_postfilter() -> None:
    assert post_filter(SKIP).status == error("returned Skip, which is not allowed here").by("P0")


def test_the_last_nomination_counts() -> None:
    answer = post_filter(
        PostFilterResult(unschedulable("one"), ""), PostFilterResult(unschedulable("two"), "n3"), unschedulable("three")
    )
    assert answer.nominated_node_name == "n3"


def test_postfilter_that_raises_is_named() -> None:
    answer = post_filter(KeyError("x"))
    assert answer.status.code is Code.ERROR
    assert answer.status.plugin == "P0"
    assert answer.status.message.startswith("running PostFilter plugin \"P0\": KeyError: 'x' (test_diagnosis.py:")


def test_the_first_gate_that_rejects_is_named() -> None:
    plugins = [
        Answers("Open", None),
        Answers("Gate", unresolvable("waiting for scheduling gates")),
        Answers("Late", None),
    ]
    status = framework(PRE_ENQUEUE, *plugins).pre_enqueue(make_pod())
    assert status == unresolvable("waiting for scheduling gates").by("Gate")
    assert plugins[2].asked == 0
    assert framework(PRE_ENQUEUE, plugins[0]).pre_enqueue(make_pod()) == SUCCESS
    broken = framework(PRE_ENQUEUE, Answers("Broken", ValueError("x"))).pre_enqueue(make_pod())
    assert (broken.code, broken.plugin) == (Code.ERROR, "Broken")


def test_timings_are_shared() -> None:
    timings = PluginTimings()
    profile = Profile("mine", {PRE_ENQUEUE: (Answers("A", None),)}, {}, {}, {}, {})
    Framework(profile, FakeHandle(), timings).pre_enqueue(make_pod())  # type: ignore[arg-type]
    assert timings.of("A", "preEnqueue").calls == 1
    assert PluginCaller(ManualClock(), timings).timings is timings


@given(st.integers(1, 80), st.lists(st.integers(0, 7), min_size=1, max_size=12))
def test_rows_in_the_same_masks_have_the_same_key(masks: int, kinds: list[int]) -> None:
    columns = [np.array([bool(kind >> (number % 3) & 1) for kind in kinds]) for number in range(masks)]
    keys = combination_numbers(columns, len(kinds)).tolist()
    for one in range(len(kinds)):
        for other in range(len(kinds)):
            alike = all(column[one] == column[other] for column in columns)
            assert (keys[one] == keys[other]) is alike


@pytest.mark.parametrize("reasons", [3, 70])
def test_statuses_equal_those_of_single_rows(reasons: int) -> None:
    results = FilterResults(np.array([0, 2, 3, 2], dtype=np.int8), plugins={"p": np.array([False, True, True, True])})
    for number in range(reasons):
        mask = np.array([False, number % 2 == 0, number % 3 == 0, number % 2 == 0])
        results.reasons.append(FilterReasonRows("p", f"reason {number}", mask))
    found = results.statuses()
    assert [(each.code, each.reasons) for each in found] == [
        (each.code, each.reasons) for each in map(results.status, range(4))
    ]
    assert found[1] is found[3]
