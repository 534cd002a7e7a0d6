"""A shipped hint gives the same result for every pod with an equal `HintInput` part.

Compared on the recorded events: every pod of a scenario, also gated and placed ones, stands for a rejected one. The
queue calls the hint once for all pods with an equal part; here it is called for each.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pytest

from bayplan.framework.api.events import ClusterEventWithHint, QueueingHint
from bayplan.framework.runtime.object_changes import cluster_events_of_change
from bayplan.objects.core import Pod
from bayplan.objects.kinds import convert, kinds_by_name
from bayplan.objects.meta import KubeObject
from bayplan.plugins import default_plugins
from bayplan.testing.conformance import read_lines
from bayplan.testing.conformance.scenario_cluster import build_scenario_engine, decode_objects

LINES = [
    line
    for line in read_lines(Path(__file__).parents[1] / "conformance" / "data" / "kube-scheduler-1.36-live.jsonl.gz")
    if line.family == "hints"
]
PARTS = 6
FAILS = "fails"


def said(hint: Any, subject: Any, old: KubeObject | None, new: KubeObject | None) -> str:
    try:
        answer = hint(subject, old, new)
    except Exception:
        return FAILS
    assert isinstance(answer, QueueingHint)
    return answer.value


def part_of(registration: ClusterEventWithHint, pod: Pod) -> Hashable | None:
    assert registration.hint_key is not None
    try:
        return registration.hint_key(pod)
    except Exception:
        return None


def items(event: dict[str, Any]) -> tuple[KubeObject | None, KubeObject | None]:
    struct = kinds_by_name()[event["kind"]].struct
    old, new = (None if event.get(key) is None else convert(event[key], struct) for key in ("old", "new"))
    return old, new


@pytest.mark.parametrize("number", range(PARTS))
def test_a_hint_is_equal_for_all_pods_with_the_same_part(number: int) -> None:
    compared = 0
    for line in LINES[number::PARTS]:
        one = build_scenario_engine(line.scenario, default_plugins())
        pods = [*decode_objects(line.scenario, "pending", Pod), *decode_objects(line.scenario, "pods", Pod)]
        registrations = [
            registration
            for registrations in one.framework(pods[0].scheduler_name).profile.registered_events.values()
            for registration in registrations
        ]
        for old, new in map(items, line.scenario["events"]):
            about = {each.uid for each in (old, new) if isinstance(each, Pod)}
            for event in cluster_events_of_change(old, new):
                for registration in (
                    each for each in registrations if each.matches(event) and each.hint and each.hint_key
                ):
                    answers: dict[Hashable, str] = {}
                    for pod in (each for each in pods if each.uid not in about):
                        part = part_of(registration, pod)
                        if part is None:
                            continue
                        alone = said(registration.hint, pod, old, new)
                        assert answers.setdefault(part, alone) == alone, (line.name, event.name, registration, pod.key)
                        if registration.keyed_hint is not None:
                            assert said(registration.keyed_hint, part, old, new) == alone
                        compared += 1
    assert compared > 200
