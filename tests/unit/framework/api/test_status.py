"""Statuses as values, and the cycle state."""

from __future__ import annotations

import pytest

from bayplan.framework.api.cycle import Cycle, StateKey
from bayplan.framework.api.status import SKIP, SUCCESS, Code, Status, error, pending, unresolvable, unschedulable
from support.builders.framework import make_cycle, make_pod


@pytest.mark.parametrize(
    ("code", "number", "label", "rejects"),
    [
        (Code.SUCCESS, 0, "Success", False),
        (Code.ERROR, 1, "Error", False),
        (Code.UNSCHEDULABLE, 2, "Unschedulable", True),
        (Code.UNRESOLVABLE, 3, "UnschedulableAndUnresolvable", True),
        (Code.WAIT, 4, "Wait", False),
        (Code.SKIP, 5, "Skip", False),
        (Code.PENDING, 6, "Pending", True),
    ],
)
def test_codes_are_kube_schedulers(code: Code, number: int, label: str, rejects: bool) -> None:
    assert (int(code), code.label, code.rejects) == (number, label, rejects)


def test_the_message_joins_the_reasons() -> None:
    status = unschedulable("Insufficient cpu", "Insufficient memory")
    assert status.message == "Insufficient cpu, Insufficient memory"
    assert status.rejected
    assert not status.ok
    assert SUCCESS.message == ""


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (unschedulable("x"), Code.UNSCHEDULABLE),
        (unresolvable("x"), Code.UNRESOLVABLE),
        (pending("x"), Code.PENDING),
        (error("x"), Code.ERROR),
        (SKIP, Code.SKIP),
    ],
    ids=lambda value: value.label if isinstance(value, Code) else "",
)
def test_status_constructors(status: Status, code: Code) -> None:
    assert status.code is code
    assert not status.ok


def test_the_plugin_name_of_a_status_is_set_once() -> None:
    signed = unschedulable("x").by("First")
    assert signed.plugin == "First"
    assert signed.by("Second") is signed


def test_statuses_are_values() -> None:
    assert unschedulable("x") == unschedulable("x")
    assert len({unschedulable("x"), unschedulable("x"), unresolvable("x"), unschedulable("x").by("P")}) == 3
    assert unschedulable("x") != "x"
    assert repr(unschedulable("x").by("P")) == "Status(Unschedulable, ['x'], plugin='P')"


# cycle state

COUNTS: StateKey[list[int]] = StateKey("Counts", clone=list)
SHARED: StateKey[list[int]] = StateKey("Shared")


def test_state_is_stored_by_key_not_by_name() -> None:
    cycle = make_cycle(make_pod())
    cycle.put(COUNTS, [1])
    assert cycle.get(COUNTS) == [1]
    assert cycle.find(StateKey("Counts")) is None
    assert repr(COUNTS) == "Key('Counts')"


def test_a_missing_key_is_named() -> None:
    cycle = make_cycle(make_pod())
    assert cycle.find(COUNTS) is None
    with pytest.raises(LookupError, match='reading "Counts" from cycleState: not found'):
        cycle.get(COUNTS)


def test_a_clone_has_changeable_state_of_its_own() -> None:
    cycle = make_cycle(make_pod())
    cycle.put(COUNTS, [1])
    cycle.put(SHARED, [1])
    cycle.skip_filter.add("Skipper")
    twin: Cycle = cycle.clone()
    twin.get(COUNTS).append(2)
    twin.get(SHARED).append(2)
    twin.put(StateKey("more"), 3)
    assert cycle.get(COUNTS) == [1]
    assert cycle.get(SHARED) == [1, 2]
    assert twin.skip_filter == {"Skipper"}
    assert (twin.pod, twin.snapshot) == (cycle.pod, cycle.snapshot)
