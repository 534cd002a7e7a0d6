"""Volcano's feature gates: known gates, the one with an effect, and errors."""

from __future__ import annotations

import re

import pytest

from bayplan.config.feature_gates import DISABLED_GATES, ENABLED_GATES, LOCKED_GATES
from bayplan.config.volcano_feature_gates import (
    QUEUE_ADMISSION_GATE,
    ignored_gate_messages,
    is_queue_admission_enabled,
    parse_volcano_gates,
)


def test_queue_admission_is_off_by_default() -> None:
    assert not is_queue_admission_enabled(())
    assert is_queue_admission_enabled(parse_volcano_gates(f"VolcanoJobSupport=true, {QUEUE_ADMISSION_GATE}=true"))
    assert not is_queue_admission_enabled(
        parse_volcano_gates(f"{QUEUE_ADMISSION_GATE}=true,{QUEUE_ADMISSION_GATE}=false")
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("Bogus=true", "unrecognized feature gate: Bogus", id="nobody's"),
        pytest.param("CSIStorage", "missing bool value for CSIStorage", id="no value"),
        pytest.param(
            "CSIStorage=yes",
            'invalid value of CSIStorage=yes, err: strconv.ParseBool: parsing "yes": invalid syntax',
            id="no bool",
        ),
        pytest.param(
            "DRAAdminAccess=false",
            "cannot set feature gate DRAAdminAccess to false, feature is locked to true",
            id="locked",
        ),
    ],
)
def test_invalid_gates_are_refused_with_volcanos_message(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as fault:
        parse_volcano_gates(text)
    assert str(fault.value) == message


def test_the_gates_of_kubernetes_are_known() -> None:
    names = ENABLED_GATES | DISABLED_GATES | LOCKED_GATES
    assert {name for name, _ in parse_volcano_gates(",".join(f"{name}=true" for name in sorted(names)))} == names


def test_changed_gates_without_effect_are_reported() -> None:
    given = parse_volcano_gates(f"CSIStorage=true,WorkLoadSupport=true,PriorityClass=false,{QUEUE_ADMISSION_GATE}=true")
    messages = ["feature gate CSIStorage has no effect here", "feature gate PriorityClass has no effect here"]
    assert list(ignored_gate_messages(given)) == messages
    assert list(ignored_gate_messages(given, none=True)) == [
        *messages,
        f"feature gate {QUEUE_ADMISSION_GATE} has no effect here",
    ]
