"""What the queue takes from an engine: PreEnqueue with the gating plugin first, events, order, backoff."""

from __future__ import annotations

import random
from typing import Any

from bayplan.app import known_plugins
from bayplan.cache import Cache
from bayplan.clock import ManualClock
from bayplan.config.load import load
from bayplan.framework.api.status import Code, Status, unresolvable
from bayplan.framework.runtime.event_registrations import ALL_EVENTS
from bayplan.objects.core import Pod
from bayplan.queue import SchedulingQueue
from bayplan.scheduler.engine import PodEngine
from bayplan.scheduler.live.queue_factory import new_queue, queue_profiles
from support.builders.framework import make_pod

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
ASKED: list[str] = []


class Early:
    name = "Early"

    def pre_enqueue(self, pod: Pod) -> Status | None:
        ASKED.append(self.name)
        return unresolvable("too early") if pod.labels.get("early") else None


class Late(Early):
    name = "Late"

    def pre_enqueue(self, pod: Pod) -> Status | None:
        ASKED.append(self.name)
        if pod.labels.get("broken"):
            raise KeyError("broken")
        return unresolvable("too late") if pod.labels.get("late") else None


def engine(text: str = "", *plugins: Any) -> PodEngine:
    registry = known_plugins().with_plugins(*plugins)
    names = "".join(f"\n      - name: {plugin.name}" for plugin in plugins)
    profiles = f"profiles:\n- plugins:\n    multiPoint:\n      enabled:{names}\n" if plugins else ""
    configuration = load(HEAD + text + profiles, args_kinds=registry.args_kinds)
    return PodEngine(configuration, registry, Cache(), clock=ManualClock(), chance=random.Random(0))


def test_the_gating_plugin_is_called_first() -> None:
    (profile,) = queue_profiles(engine("", Early, Late)).values()
    both = make_pod(labels={"early": "yes", "late": "yes"})
    for first, plugin in (("", "Early"), ("Late", "Late"), ("Early", "Early"), ("Unknown", "Early")):
        ASKED.clear()
        status = profile.pre_enqueue(both, first)
        assert (status.plugin, ASKED) == (plugin, [plugin])


def test_a_failing_gate_keeps_the_pod_out_and_is_named_every_time() -> None:
    (profile,) = queue_profiles(engine("", Early, Late)).values()
    for _ in range(12):  # some of the calls are timed, most are not
        status = profile.pre_enqueue(make_pod(labels={"broken": "yes"}), "")
        assert (status.code, status.plugin) == (Code.ERROR, "Late")
        assert "KeyError" in status.message


def test_every_event_counts_for_a_pod_that_an_extender_rejected() -> None:
    (plain,) = queue_profiles(engine()).values()
    (extended,) = queue_profiles(engine("extenders:\n- urlPrefix: http://localhost:1\n  filterVerb: filter\n")).values()
    assert "Extender" not in plain.registered_events
    assert extended.registered_events["Extender"] == ALL_EVENTS


def test_the_configuration_sets_the_backoff() -> None:
    clock = ManualClock()
    one = engine("podInitialBackoffSeconds: 3\npodMaxBackoffSeconds: 5\n")
    queue = new_queue(one, SchedulingQueue, clock=clock)
    pod = make_pod()
    one.pending[pod.uid] = pod
    queue.add(pod)
    waits = []
    for _ in range(3):
        queued = queue.pop()
        assert queued is not None
        queue.requeue(queued)
        waits.append((queue.backoff_expires_at(queued) - clock.now()).total_seconds())
        clock.advance(10)
        queue.flush()
    assert waits == [3, 5, 5]
