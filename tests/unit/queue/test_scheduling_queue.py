"""The scheduling queue: order, sub-queues, events and metrics."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from bayplan.clock import ManualClock
from bayplan.framework.api.events import (
    ActionType,
    ClusterEvent,
    ClusterEventWithHint,
    EventResource,
    HintKeyFunction,
    QueueingHint,
    no_hint_key,
)
from bayplan.framework.api.status import SUCCESS, Status, unresolvable
from bayplan.framework.runtime.nominator import Nominator
from bayplan.framework.runtime.object_changes import ASSIGNED_POD_ADD, NODE_ADD, NODE_DELETE
from bayplan.objects.core import DEFAULT_SCHEDULER_NAME, Pod, PodSchedulingGroup
from bayplan.plugins.priority_sort import PrioritySort
from bayplan.queue import (
    QueueCounters,
    QueuedPodInfo,
    QueueProfile,
    QueueSettings,
    SchedulingQueue,
    SubQueue,
    unschedulable_pods,
)
from bayplan.snapshot import PodInfo
from support.builders.framework import make_node, make_pod, replace_fields

EVERYBODY = ClusterEvent(EventResource.ANY, ActionType.ALL, "Everybody")
GENERATED = ClusterEvent(EventResource.RESOURCE_CLAIM, ActionType.UPDATE)


def hint_result(hint: QueueingHint) -> Any:
    return lambda _pod, _old, _new: hint


def reading(label: str) -> HintKeyFunction:
    return lambda pod: pod.labels[label]


class World:
    """A queue with one profile, a clock, the existing pods, and a gate that can be closed."""

    def __init__(
        self, registrations: dict[str, tuple[ClusterEventWithHint, ...]] | None = None, **settings: Any
    ) -> None:
        self.clock = ManualClock()
        self.pods: dict[str, Pod] = {}
        self.nominator = Nominator()
        self.counters = QueueCounters()
        self.closed_gates: dict[str, str] = {}  # pod -> the gating plugin
        self.calls: list[tuple[str, str]] = []
        self.queue = SchedulingQueue(
            {DEFAULT_SCHEDULER_NAME: QueueProfile(registrations or {}, self.gate)},
            PrioritySort().sort_key,
            clock=self.clock,
            pods=self.pods,
            nominations=self.nominator,
            settings=QueueSettings(**settings),
            recorder=self.counters,
        )

    def gate(self, pod: Pod, first: str) -> Status:
        self.calls.append((pod.name, first))
        plugin = self.closed_gates.get(pod.name)
        return SUCCESS if plugin is None else unresolvable("shut").by(plugin)

    def add(self, name: str, **fields: Any) -> Pod:
        pod = make_pod(name, **fields)
        self.pods[pod.uid] = pod
        self.clock.advance(0.001)
        self.queue.add(pod)
        return pod

    def pop(self) -> QueuedPodInfo:
        queued = self.queue.pop()
        assert queued is not None
        return queued

    def fail(self, name: str, *plugins: str, pending: tuple[str, ...] = (), **fields: Any) -> QueuedPodInfo:
        """Add a pod that is popped and rejected."""
        self.add(name, **fields)
        queued = self.pop()
        assert queued.pod.name == name
        self.queue.requeue(queued, plugins, pending)
        return queued

    def where(self, name: str) -> str:
        queued = self.queue.get(f"default/{name}")
        return "" if queued is None or queued.pool is None else queued.pool.value


# order


def test_pods_come_by_priority_then_by_waiting_time() -> None:
    world = World()
    for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5)):
        world.add(name, priority=priority)
    assert [world.pop().pod.name for _ in range(4)] == ["b", "d", "a", "c"]
    assert world.queue.pop() is None


def test_a_returned_pod_is_behind_pods_added_meanwhile() -> None:
    world = World()
    world.add("first")
    queued = world.pop()
    world.add("second")
    world.clock.advance(20)
    world.queue.requeue(queued)
    world.clock.advance(20)
    world.queue.flush()
    assert [world.pop().pod.name for _ in range(2)] == ["second", "first"]
    assert queued.attempts == 2


def test_an_update_may_change_the_position_of_a_pod() -> None:
    world = World()
    world.add("a")
    low = world.add("b")
    high = replace_fields(low, spec={"priority": 9})
    world.pods[high.uid] = high
    world.queue.update(low, high)
    assert world.pop().pod is high


def test_many_deletions_leave_no_stale_entries() -> None:
    world = World()
    pods = [world.add(f"p{number}") for number in range(300)]
    chance = random.Random(1)
    deleted = set(chance.sample(range(300), 280))
    for number in deleted:
        world.queue.delete(pods[number])
    left = [pods[number].name for number in range(300) if number not in deleted]
    assert [world.pop().pod.name for _ in left] == left
    assert world.queue.pop() is None
    assert len(world.queue) == 0


# backoff


@pytest.mark.parametrize(
    ("failures", "ready_after_s"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (9, 10), (80, 10)], ids=str
)
def test_the_backoff_grows_with_failures(failures: int, ready_after_s: int) -> None:
    world = World()
    world.add("pod")
    for _ in range(failures):
        world.clock.advance(30)
        world.queue.flush()
        world.queue.requeue(world.pop())
    until = world.queue.backoff_expires_at(world.queue.pods_in(SubQueue.ERROR_BACKOFF)[0])
    assert until == world.clock.now().replace(microsecond=0) + timedelta(seconds=ready_after_s)


def test_a_pod_is_ready_in_the_second_after_its_backoff() -> None:
    world = World()
    world.add("pod")
    world.clock.advance(0.7 - world.clock.monotonic_s())
    world.queue.requeue(world.pop())
    world.clock.advance(0.3 + 0.999)  # 1.999: its backoff ends at 1.7, which is second 1
    assert world.queue.flush() == 0
    assert world.queue.next_wakeup_s() == 2.0
    world.clock.advance(0.001)
    assert world.queue.flush() == 1


def test_an_error_backs_off_and_is_not_popped_early_while_a_rejected_pod_is() -> None:
    world = World({"P": (ClusterEventWithHint(EventResource.NODE, ActionType.ADD),)})
    world.fail("rejected", "P")
    world.fail("broken")
    world.queue.move_all_on_event(NODE_ADD, None, make_node())
    assert (world.where("rejected"), world.where("broken")) == ("backoff", "errorBackoff")
    assert world.pop().pod.name == "rejected"
    assert world.queue.pop() is None
    assert world.counters.incoming_pods["active", "PopFromBackoffQ"] == 1


def test_without_early_pops_the_backoff_ends_before_a_pop() -> None:
    world = World({"P": (ClusterEventWithHint(EventResource.NODE, ActionType.ADD),)}, pop_from_backoff=False)
    world.fail("pod", "P")
    start = world.clock.monotonic_s()
    world.queue.move_all_on_event(NODE_ADD, None, make_node())
    assert world.queue.pop() is None
    wakeup = world.queue.next_wakeup_s()
    assert wakeup is not None
    assert start + 1.0 < wakeup < start + 1.00001
    world.clock.advance(1.001)
    world.closed_gates["pod"] = "P"  # PreEnqueue has not run before, so it runs now
    assert world.queue.flush() == 0
    assert world.where("pod") == "unschedulable"


def test_a_limit_of_zero_means_no_backoff() -> None:
    world = World(max_backoff_s=0)
    world.fail("pod")
    assert world.where("pod") == "active"


def test_an_error_after_rejections_counts_by_itself_and_ends_with_the_next_rejection() -> None:
    world = World()
    queued = world.fail("pod", "P")
    world.queue.activate([queued.pod])
    world.queue.requeue(world.pop(), ["P"])
    assert (queued.unschedulable_count, queued.consecutive_errors) == (2, 0)
    world.queue.activate([queued.pod])
    world.queue.requeue(world.pop())
    assert (queued.unschedulable_count, queued.consecutive_errors) == (2, 1)
    world.queue.activate([queued.pod])
    world.queue.requeue(world.pop(), ["P"])
    assert (queued.unschedulable_count, queued.consecutive_errors) == (3, 0)


def test_a_pod_comes_back_in_its_newest_version_or_not_at_all() -> None:
    world = World()
    old = world.add("pod")
    queued = world.pop()
    new = replace_fields(old, metadata={"labels": {"a": "b"}})
    world.pods[new.uid] = new
    world.queue.update(old, new)
    assert world.queue.requeue(queued, ["P"]) is SubQueue.UNSCHEDULABLE
    assert queued.pod is new
    world.queue.activate([new])
    popped = world.pop()
    del world.pods[new.uid]
    world.queue.delete(new)
    assert world.queue.requeue(popped, ["P"]) is None
    assert (len(world.queue), world.queue.in_flight()) == (0, [])


def test_a_pod_placed_by_another_scheduler_does_not_return() -> None:
    world = World()
    pod = world.add("pod")
    queued = world.pop()
    world.pods[pod.uid] = pod.bound_to("n")
    assert world.queue.requeue(queued, ["P"]) is None


def test_a_pod_that_is_queued_again_is_not_queued_twice() -> None:
    world = World()
    pod = world.add("pod")
    queued = world.pop()
    world.queue.done(pod.uid)
    world.queue.update(pod, replace_fields(pod, metadata={"labels": {"a": "b"}}))
    assert world.queue.requeue(queued, ["P"]) is None
    assert world.queue.counts() == {"active": 1, "backoff": 0, "unschedulable": 0, "gated": 0}


def test_a_pod_in_flight_is_not_popped_a_second_time() -> None:
    world = World()
    pod = world.add("pod")
    world.pop()
    world.queue.add(pod)
    assert world.queue.pop() is None


# events


def test_an_event_moves_only_pods_that_it_may_help() -> None:
    world = World(
        {
            "Nodes": (ClusterEventWithHint(EventResource.NODE, ActionType.ADD),),
            "Never": (ClusterEventWithHint(EventResource.NODE, ActionType.ADD, hint_result(QueueingHint.SKIP)),),
            "Claims": (ClusterEventWithHint(EventResource.PERSISTENT_VOLUME_CLAIM, ActionType.ADD),),
        }
    )
    for plugin in ("Nodes", "Never", "Claims", "Unheard"):
        world.fail(plugin.lower(), plugin)
    world.clock.advance(5)
    assert world.queue.move_all_on_event(NODE_ADD, None, make_node()) == 1
    assert [each.pod.name for each in world.queue.pods_in(SubQueue.ACTIVE)] == ["nodes"]
    assert world.queue.move_all_on_event(NODE_DELETE, make_node(), None) == 0
    assert world.queue.move_all_on_event(EVERYBODY) == 3


def test_an_event_for_a_pending_plugin_skips_the_backoff() -> None:
    registrations = {
        "Outside": (
            ClusterEventWithHint(
                EventResource.RESOURCE_CLAIM, ActionType.UPDATE, hint_result(QueueingHint.QUEUE), hint_key=no_hint_key
            ),
        ),
        "Inside": (
            ClusterEventWithHint(
                EventResource.RESOURCE_CLAIM, ActionType.UPDATE, hint_result(QueueingHint.QUEUE), hint_key=no_hint_key
            ),
        ),
    }
    for order in (("Inside", "Outside"), ("Outside", "Inside")):
        world = World({name: registrations[name] for name in order})
        world.fail("both", "Inside", "Outside", pending=("Outside",))
        world.fail("inside", "Inside")
        world.queue.move_all_on_event(GENERATED, None, make_node())
        assert (world.where("both"), world.where("inside")) == ("active", "backoff")


def test_pods_above_the_priority_limit_do_not_move() -> None:
    world = World({"P": (ClusterEventWithHint(EventResource.NODE, ActionType.ADD),)})
    world.fail("low", "P", priority=1)
    world.fail("high", "P", priority=2)
    assert world.queue.move_all_on_event(NODE_ADD, None, make_node(), at_most=1) == 1
    assert (world.where("low"), world.where("high")) == ("backoff", "unschedulable")


def test_a_hint_runs_once_for_pods_with_equal_keys() -> None:
    calls: Counter[str] = Counter()

    def hint(pod: Pod, old: Any, new: Any) -> QueueingHint:  # noqa: ARG001
        calls[pod.labels["color"]] += 1
        return QueueingHint.QUEUE if pod.labels["color"] == "red" else QueueingHint.SKIP

    world = World(
        {
            "P": (
                ClusterEventWithHint(
                    EventResource.NODE, ActionType.ADD, hint, hint_key=lambda pod: pod.labels["color"]
                ),
            )
        }
    )
    for number in range(10):
        world.fail(f"p{number}", "P", labels={"color": "red" if number % 2 else "blue"})
    assert world.queue.move_all_on_event(NODE_ADD, None, make_node()) == 5
    assert calls == {"red": 1, "blue": 1}
    old = world.queue.pods_in(SubQueue.UNSCHEDULABLE)[0].pod
    new = replace_fields(old, metadata={"labels": {"color": "red"}})
    world.pods[new.uid] = new
    world.queue.update(old, new)
    assert world.queue.move_all_on_event(NODE_ADD, None, make_node()) == 1


@pytest.mark.parametrize("judged", [False, True], ids=["by-a-pod", "by-what-is-read"])
def test_hints_of_all_rejectors_run_until_one_returns_queue(judged: bool) -> None:
    """Pods of one rejector group: the first hint returns Queue for some pods, the second one for some of the rest."""
    calls: Counter[tuple[str, str]] = Counter()

    def registration(label: str) -> ClusterEventWithHint:
        def judge(key: str, old: Any, new: Any) -> QueueingHint:  # noqa: ARG001
            calls[label, key] += 1
            return QueueingHint.QUEUE if key == "yes" else QueueingHint.SKIP

        def hint(pod: Pod, old: Any, new: Any) -> QueueingHint:
            return judge(pod.labels[label], old, new)

        reads = reading(label)
        if judged:
            return ClusterEventWithHint.with_hint_key(EventResource.NODE, ActionType.ADD, reads, judge)
        return ClusterEventWithHint(EventResource.NODE, ActionType.ADD, hint, hint_key=reads)

    world = World({label: (registration(label),) for label in "PQ"})
    for first in ("yes", "no"):
        for second in ("yes", "no"):
            world.fail(f"{first}-{second}", "P", "Q", labels={"P": first, "Q": second})
    assert world.queue.move_all_on_event(NODE_ADD, None, make_node()) == 3
    assert [each.pod.name for each in world.queue.pods_in(SubQueue.UNSCHEDULABLE)] == ["no-no"]
    assert calls == {("P", "yes"): 1, ("P", "no"): 1, ("Q", "yes"): 1, ("Q", "no"): 1}


@pytest.mark.parametrize("judged", [False, True], ids=["by-a-pod", "by-what-is-read"])
def test_a_hint_runs_separately_for_pods_without_a_key(judged: bool) -> None:
    """`hint_key` returns None for them: they share no result with any other pod."""

    def hint(pod: Pod, old: Any, new: Any) -> QueueingHint:  # noqa: ARG001
        return QueueingHint.QUEUE if pod.name.startswith("yes") else QueueingHint.SKIP

    def judge(key: str, old: Any, new: Any) -> QueueingHint:  # noqa: ARG001
        return QueueingHint.QUEUE if key == "green" else QueueingHint.SKIP

    registration = ClusterEventWithHint(
        EventResource.NODE, ActionType.ADD, hint, lambda pod: pod.labels.get("color"), judge if judged else None
    )
    world = World({"P": (registration,)})
    for name in ("yes-1", "no-1", "yes-2", "no-2"):
        world.fail(name, "P")
    world.fail("no-red", "P", labels={"color": "red"})
    world.fail("yes-green", "P", labels={"color": "green"})
    assert world.queue.move_all_on_event(NODE_ADD, None, make_node()) == 3
    assert sorted(each.pod.name for each in world.queue.pods_in(SubQueue.UNSCHEDULABLE)) == ["no-1", "no-2", "no-red"]


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_the_pod_of_an_event_stays_if_the_event_helps_only_other_pods(name: str) -> None:
    """The result for the other pods is computed from one of them, not from the pod itself."""

    def others(pod: Pod, old: Any, new: Any) -> QueueingHint:  # noqa: ARG001
        return QueueingHint.SKIP if new.uid == pod.uid else QueueingHint.QUEUE

    world = World({"P": (ClusterEventWithHint(EventResource.POD, ActionType.ADD, others, hint_key=no_hint_key),)})
    for each in ("a", "b", "c"):
        world.fail(each, "P")
    assert world.queue.move_all_on_event(ASSIGNED_POD_ADD, None, make_pod(name, node="n")) == 2
    assert [each.pod.name for each in world.queue.pods_in(SubQueue.UNSCHEDULABLE)] == [name]


@pytest.mark.parametrize(
    ("priority", "place"),
    [
        pytest.param(0, "backoff", id="below"),
        pytest.param(1, "backoff", id="at-it"),
        pytest.param(2, "unschedulable", id="above"),
    ],
)
def test_the_priority_limit_holds_for_the_pod_of_the_event(priority: int, place: str) -> None:
    world = World({"P": (ClusterEventWithHint(EventResource.POD, ActionType.ADD, hint_result(QueueingHint.QUEUE)),)})
    own = world.fail("own", "P", priority=priority)
    assert sum(world.queue.move_in_slices(ASSIGNED_POD_ADD, None, own.pod, at_most=1)) == (place == "backoff")
    assert world.where("own") == place


def test_hints_that_return_skip_run_in_slices_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pod moves, but ten thousand results take time: other work runs in between."""
    monkeypatch.setattr(unschedulable_pods, "CLASSES_PER_SLICE", 2)
    world = World(
        {
            "P": (
                ClusterEventWithHint(
                    EventResource.NODE, ActionType.ADD, hint_result(QueueingHint.SKIP), hint_key=lambda pod: pod.name
                ),
            )
        }
    )
    for number in range(6):
        world.fail(f"p{number}", "P")
    assert len(list(world.queue.move_in_slices(NODE_ADD, None, make_node()))) == 3


def test_the_pod_of_an_event_is_evaluated_separately() -> None:
    def own(pod: Pod, old: Any, new: Pod) -> QueueingHint:  # noqa: ARG001
        return QueueingHint.QUEUE if new.uid == pod.uid else QueueingHint.SKIP

    world = World({"P": (ClusterEventWithHint(EventResource.POD, ActionType.ADD, own, hint_key=no_hint_key),)})
    for name in ("a", "b", "c"):
        world.fail(name, "P")
    assert world.queue.move_all_on_event(ASSIGNED_POD_ADD, None, make_pod("b", node="n")) == 1
    assert world.where("b") == "backoff"


def test_other_work_runs_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unschedulable_pods, "CLASSES_PER_SLICE", 2)
    world = World(
        {
            "P": (
                ClusterEventWithHint(
                    EventResource.NODE, ActionType.ADD, hint_result(QueueingHint.QUEUE), hint_key=lambda pod: pod.name
                ),
            )
        }
    )
    for number in range(6):
        world.fail(f"p{number}", "P")
    tried = world.add("tried")
    flying = world.pop()
    slices = world.queue.move_in_slices(NODE_ADD, None, make_node())
    world.queue.delete(world.queue.pods_in(SubQueue.UNSCHEDULABLE)[-1].pod)  # deleted before the first slice
    first = next(slices)
    assert 0 < first < 5
    assert world.queue.requeue(flying, ["P"]) is SubQueue.BACKOFF, "the event came while it was tried"
    late = world.fail("late", "Q", "P", priority=9)
    assert first + sum(slices) == 5
    assert late.pool is SubQueue.UNSCHEDULABLE, "its attempt began after the event"
    assert world.where(tried.name) == "backoff"


def test_an_event_that_comes_during_an_attempt_is_replayed() -> None:
    world = World(
        {
            "P": (
                ClusterEventWithHint(
                    EventResource.NODE, ActionType.ADD, hint_key=no_hint_key, hint=hint_result(QueueingHint.QUEUE)
                ),
            )
        }
    )
    world.add("a")
    world.add("b")
    first, second = world.pop(), None
    world.queue.move_all_on_event(NODE_ADD, None, make_node())
    second = world.pop()
    assert world.queue.requeue(first, ["P"]) is SubQueue.BACKOFF
    assert world.queue.requeue(second, ["P"]) is SubQueue.UNSCHEDULABLE
    assert world.counters.in_flight_events == {"PodPopped": 0, "NodeAdd": 0}


def test_a_change_of_the_pod_during_its_attempt_is_replayed() -> None:
    world = World({"P": (ClusterEventWithHint(EventResource.POD, ActionType.UPDATE_POD_TOLERATION),)})
    old = world.add("pod")
    queued = world.pop()
    new = make_pod("pod", tolerations=["t"])
    world.pods[new.uid] = new
    world.queue.update(old, new)
    assert world.queue.requeue(queued, ["P"]) is SubQueue.BACKOFF


def test_after_done_a_rejection_counts_as_if_anything_had_happened() -> None:
    world = World()
    world.add("pod")
    queued = world.pop()
    world.queue.done(queued.uid)
    assert world.queue.requeue(queued, ["P"]) is SubQueue.BACKOFF


def test_pods_of_a_group_return_after_their_backoff() -> None:
    group = PodSchedulingGroup(pod_group_name="g")
    for pod_groups, where in ((True, SubQueue.ERROR_BACKOFF), (False, SubQueue.UNSCHEDULABLE)):
        assert World(pod_groups=pod_groups).fail("pod", "P", scheduling_group=group).pool is where


# gates


def test_only_events_of_the_gating_plugin_reach_a_gated_pod() -> None:
    world = World(
        {
            "Gate": (ClusterEventWithHint(EventResource.POD, ActionType.ADD),),
            "P": (ClusterEventWithHint(EventResource.NODE, ActionType.ADD),),
        }
    )
    world.closed_gates["pod"] = "Gate"
    world.add("pod")
    assert world.queue.counts()["gated"] == 1
    world.calls.clear()
    world.queue.move_all_on_event(NODE_ADD, None, make_node())
    assert world.calls == []
    world.queue.move_all_on_event(ASSIGNED_POD_ADD, None, make_pod("other", node="n"))
    assert world.calls == [("pod", "Gate")], "who keeps it out is asked first"
    assert world.where("pod") == "unschedulable"
    del world.closed_gates["pod"]
    world.queue.move_all_on_event(ASSIGNED_POD_ADD, None, make_pod("other", node="n"))
    queued = world.pop()
    assert (queued.gated_by, queued.unschedulable_plugins) == ("", {"Gate"})
    assert queued.first_attempt == world.clock.now(), "time behind the gate is no time in the queue"


def test_pre_enqueue_runs_before_the_backoff_and_not_after_it() -> None:
    world = World({"P": (ClusterEventWithHint(EventResource.NODE, ActionType.ADD),)})
    world.fail("pod", "P")
    world.calls.clear()
    world.queue.move_all_on_event(NODE_ADD, None, make_node())
    assert len(world.calls) == 1
    world.closed_gates["pod"] = "P"
    world.clock.advance(3)
    assert world.queue.flush() == 1


def test_a_pod_gated_on_return_keeps_its_backoff() -> None:
    world = World({"Gate": (ClusterEventWithHint(EventResource.NODE, ActionType.ADD),)})
    world.add("pod")
    queued = world.pop()
    world.closed_gates["pod"] = "Gate"
    assert world.queue.requeue(queued) is SubQueue.UNSCHEDULABLE
    del world.closed_gates["pod"]
    world.queue.move_all_on_event(NODE_ADD, None, make_node())
    assert world.where("pod") == "backoff"


def test_an_update_that_opens_the_gate_lets_the_pod_in() -> None:
    world = World({"Gate": (ClusterEventWithHint(EventResource.POD, ActionType.UPDATE_POD_LABEL),)})
    world.closed_gates["pod"] = "Gate"
    old = world.add("pod")
    new = make_pod("pod", labels={"a": "b"})
    world.pods[new.uid] = new
    world.queue.update(old, new)
    assert world.where("pod") == "unschedulable"
    del world.closed_gates["pod"]
    newer = make_pod("pod", labels={"a": "c"})
    world.pods[new.uid] = newer
    world.queue.update(new, newer)
    assert world.where("pod") == "active"


# activation


def test_activation_skips_backoff_but_not_gates() -> None:
    world = World()
    parked_pod, backing = world.fail("parked", "P"), world.fail("backing")
    world.closed_gates["gated"] = "Gate"
    gated = world.add("gated")
    world.queue.activate([parked_pod.pod, backing.pod, gated, make_pod("unknown")])
    assert [each.pod.name for each in world.queue.pods_in(SubQueue.ACTIVE)] == ["parked", "backing"]
    assert world.where("gated") == "unschedulable"
    assert world.counters.incoming_pods["active", "ForceActivate"] == 2


def test_an_activated_pod_is_in_one_sub_queue() -> None:
    world = World()
    backing = world.fail("backing")
    world.queue.activate([backing.pod])
    assert (len(world.queue), world.queue.pods_in(SubQueue.ERROR_BACKOFF)) == (1, [])
    assert world.pop().pod.name == "backing"
    world.clock.advance(100)
    assert world.queue.flush() == 0, "its backoff has ended with the activation"
    assert (len(world.queue), world.queue.pods_in(SubQueue.ACTIVE)) == (0, [])


def test_activation_during_an_attempt_affects_only_that_pod() -> None:
    world = World()
    world.add("a")
    world.add("b")
    first, second = world.pop(), world.pop()
    world.queue.activate([first.pod])
    assert world.queue.requeue(first, ["P"]) is SubQueue.BACKOFF
    assert world.queue.requeue(second, ["P"]) is SubQueue.UNSCHEDULABLE


def test_a_single_pod_can_be_popped_out_of_order() -> None:
    world = World()
    for name in ("a", "b"):
        world.add(name)
    parked_pod = world.fail("c", "P", priority=9)
    assert world.queue.pop_pod(parked_pod.pod) is parked_pod
    world.closed_gates["d"] = "Gate"
    assert world.queue.pop_pod(world.add("d")) is None
    assert [each.pod.name for each in world.queue.pods_in(SubQueue.ACTIVE)] == ["a", "b"]
    assert parked_pod.attempts == 2


# time


def test_unschedulable_pods_are_flushed_after_a_timeout() -> None:
    world = World()
    world.closed_gates["gated"] = "Gate"
    world.add("gated")
    queued = world.fail("pod", "P")
    world.clock.advance(299)
    assert world.queue.flush() == 0
    world.clock.advance(31)
    assert world.queue.flush() == 1
    assert (queued.pool, queued.is_flushed) == (SubQueue.ACTIVE, True)
    assert world.where("gated") == "unschedulable"
    assert world.counters.incoming_pods["active", "UnschedulableTimeout"] == 1
    world.queue.requeue(world.pop(), ["P"])
    assert not queued.is_flushed


def test_expired_unschedulable_pods_are_flushed_in_slices() -> None:
    world = World()
    queued = [world.fail(f"p{number}", "P") for number in range(1_000)]
    world.clock.advance(299)
    world.fail("late", "P")
    world.clock.advance(2)
    slices = world.queue.flush_unschedulable()
    moved = [next(slices)]
    world.queue.delete(queued[-1].pod)
    moved += slices
    assert sum(moved) == 999
    assert max(moved) <= unschedulable_pods.CLASSES_PER_SLICE // unschedulable_pods.REQUEUE_COST
    assert world.where("late") == "unschedulable"
    assert world.counters.incoming_pods["active", "UnschedulableTimeout"] == 999


def test_the_next_wakeup_is_the_next_deadline() -> None:
    world = World()
    assert world.queue.next_wakeup_s() is None
    world.fail("pod", "P")
    assert world.queue.next_wakeup_s() == 30.0
    world.clock.advance(40)
    assert world.queue.flush() == 0
    assert world.queue.next_wakeup_s() == pytest.approx(70.001)


def test_a_wall_clock_that_jumps_changes_nothing() -> None:
    class Jumping(ManualClock):
        jump = timedelta()

        def now(self) -> Any:
            return super().now() + self.jump

    world = World()
    world.clock = clock = Jumping()
    world.queue = SchedulingQueue(
        {}, PrioritySort().sort_key, clock=clock, pods=world.pods, nominations=world.nominator
    )
    world.fail("pod")
    Jumping.jump = timedelta(hours=-5)
    clock.advance(2.5)
    assert world.queue.flush() == 1


# nominations


def test_a_nomination_follows_the_pod_status_unless_it_is_not_written_yet() -> None:
    world = World()
    pod = world.add("pod", nominated="n1")
    assert world.nominator.node_of(pod.uid) == "n1"
    cleared = make_pod("pod")
    world.pods[pod.uid] = cleared
    world.queue.update(pod, cleared)
    assert world.nominator.node_of(pod.uid) is None
    world.queue.nominate(PodInfo(cleared), "n2")
    labelled = make_pod("pod", labels={"a": "b"})
    world.pods[pod.uid] = labelled
    world.queue.update(cleared, labelled)
    assert world.nominator.node_of(pod.uid) == "n2"
    assert [info.pod for info in world.nominator.on_node("n2")] == [labelled]
    world.queue.nominate(PodInfo(labelled), "")
    assert world.nominator.node_of(pod.uid) is None


def test_a_deleted_or_placed_pod_is_not_nominated() -> None:
    world = World()
    pod = world.add("pod", nominated="n1")
    world.queue.delete(pod)
    assert world.nominator.node_of(pod.uid) is None
    del world.pods[pod.uid]
    world.queue.nominate(PodInfo(pod), "n1")
    world.pods[pod.uid] = pod.bound_to("n3")
    world.queue.nominate(PodInfo(pod), "n1")
    assert list(world.nominator.nodes()) == []


def test_a_gated_pod_is_not_nominated() -> None:
    world = World()
    world.closed_gates["pod"] = "Gate"
    assert world.nominator.node_of(world.add("pod", nominated="n1").uid) is None


# names and counters


def test_a_pod_replaces_an_older_pod_of_the_same_name() -> None:
    world = World()
    world.fail("pod", "P")
    newer = make_pod("pod", uid="another")
    world.pods["another"] = newer
    world.queue.add(newer)
    assert world.pop().pod is newer
    assert len(world.queue) == 0
    assert +world.counters.unschedulable_pods == Counter()


def test_the_counters_are_those_of_kube_schedulers_metrics() -> None:
    world = World({"P": (ClusterEventWithHint(EventResource.NODE, ActionType.ADD),)})
    world.fail("pod", "P", "Q")
    world.fail("broken")
    assert world.queue.counts() == {"active": 0, "backoff": 1, "unschedulable": 1, "gated": 0}
    assert world.counters.unschedulable_pods == {("P", "default-scheduler"): 1, ("Q", "default-scheduler"): 1}
    world.queue.move_all_on_event(NODE_ADD, None, make_node())
    assert world.counters.incoming_pods == {
        ("active", "UnschedulablePodAdd"): 2,
        ("unschedulable", "ScheduleAttemptFailure"): 1,
        ("backoff", "ScheduleAttemptFailure"): 1,
        ("backoff", "NodeAdd"): 1,
    }
    world.pop()
    assert +world.counters.unschedulable_pods == Counter()
    assert world.counters.in_flight_events["PodPopped"] == 1
    world.queue.close()
    assert world.counters.in_flight_events["PodPopped"] == 0


def test_deleting_an_unschedulable_pod_updates_the_counters() -> None:
    world = World()
    queued = world.fail("pod", "P")
    world.queue.delete(queued.pod)
    assert world.queue.counts()["unschedulable"] == 0
    assert +world.counters.unschedulable_pods == Counter()


# profiles


def test_new_profiles_move_pods_that_changed_plugins_rejected() -> None:
    world = World(
        {
            "P": (ClusterEventWithHint(EventResource.NODE, ActionType.ADD),),
            "Q": (ClusterEventWithHint(EventResource.NODE, ActionType.ADD),),
        }
    )
    world.fail("p", "P")
    world.fail("q", "Q")
    world.clock.advance(5)
    registrations = {
        "P": (ClusterEventWithHint(EventResource.NODE, ActionType.DELETE),),
        "Q": (ClusterEventWithHint(EventResource.NODE, ActionType.DELETE),),
    }
    assert (
        sum(world.queue.install_profiles({DEFAULT_SCHEDULER_NAME: QueueProfile(registrations, world.gate)}, ["P"])) == 1
    )
    assert (world.where("p"), world.where("q")) == ("active", "unschedulable")
    assert world.queue.move_all_on_event(NODE_ADD, None, make_node()) == 0
    assert world.queue.move_all_on_event(NODE_DELETE, make_node(), None) == 1


def test_pods_that_changed_plugins_rejected_move_in_slices() -> None:
    world = World({"P": (ClusterEventWithHint(EventResource.NODE, ActionType.ADD),)})
    for number in range(200):
        world.fail(f"p{number}", "P")
    moved = list(world.queue.install_profiles({DEFAULT_SCHEDULER_NAME: QueueProfile({}, world.gate)}, ["P"]))
    assert sum(moved) == 200
    assert max(moved) <= unschedulable_pods.CLASSES_PER_SLICE // unschedulable_pods.REQUEUE_COST


def test_a_pod_deleted_between_two_slices_is_skipped() -> None:
    world = World({"P": (ClusterEventWithHint(EventResource.NODE, ActionType.ADD),)})
    queued = [world.fail(f"p{number}", "P") for number in range(200)]
    waking = world.queue.install_profiles({DEFAULT_SCHEDULER_NAME: QueueProfile({}, world.gate)}, ["P"])
    first = next(waking)
    world.queue.delete(queued[-1].pod)
    assert first + sum(waking) == 199
    assert world.where("p199") == ""


def test_unschedulable_pods_are_regrouped_in_slices_while_the_queue_is_used() -> None:
    """Ten thousand pods take almost a second to regroup. An event between two slices finds each pod once, be
    it regrouped or not. Pods that are added or removed meanwhile are neither lost nor counted twice."""
    read: Counter[str] = Counter()

    def name(pod: Pod) -> str:
        read[pod.name] += 1
        return pod.name

    def hint(pod: Pod, old: Any, new: Any) -> QueueingHint:  # noqa: ARG001
        return QueueingHint.QUEUE if pod.name in ("p0", "p199") else QueueingHint.SKIP

    world = World(
        {
            "P": (
                ClusterEventWithHint(
                    EventResource.NODE, ActionType.ADD, hint_result(QueueingHint.QUEUE), hint_key=lambda _: "all alike"
                ),
            )
        }
    )
    queued = [world.fail(f"p{number}", "P") for number in range(200)]
    profile = QueueProfile(
        {"P": (ClusterEventWithHint(EventResource.NODE, ActionType.ADD, hint, hint_key=name),)}, world.gate
    )
    slices = world.queue.install_profiles({DEFAULT_SCHEDULER_NAME: profile})
    assert not read
    next(slices)
    assert 0 < len(read) <= unschedulable_pods.CLASSES_PER_SLICE // unschedulable_pods.REQUEUE_COST
    world.queue.delete(queued[198].pod)
    newcomer = world.fail("newcomer", "P")
    world.clock.advance(5)
    assert world.queue.move_all_on_event(NODE_ADD, None, make_node()) == 2
    assert (world.where("p0"), world.where("p199"), world.where("p198")) == ("active", "active", "")
    again = world.pop()
    world.queue.requeue(again, ["P"])
    assert sum(slices) == 0
    assert world.queue.counts() == {"active": 1, "backoff": 0, "unschedulable": 199, "gated": 0}
    assert sorted(each.key for each in world.queue.pods_in(SubQueue.UNSCHEDULABLE)) == sorted(
        each.key for each in (*queued[1:198], again, newcomer)
    )
    assert read == Counter(f"p{number}" for number in range(198)) + Counter({"newcomer": 1})
    world.clock.advance(5)
    assert world.queue.move_all_on_event(NODE_ADD, None, make_node()) == 1  # the returned pod


@pytest.mark.parametrize(
    ("changed_plugins", "place"),
    [pytest.param(["P"], "backoff", id="changed"), pytest.param([], "unschedulable", id="nothing-changed")],
)
def test_a_pod_that_a_replaced_plugin_rejects_later_is_retried(changed_plugins: list[str], place: str) -> None:
    """For example at Permit, with the old plugin: no other event would retry it with the new one."""
    world = World({"P": ()})
    world.add("pod")
    queued = world.pop()
    for _ in world.queue.install_profiles(
        {DEFAULT_SCHEDULER_NAME: QueueProfile({"P": ()}, world.gate)}, changed_plugins
    ):
        pass
    world.queue.requeue(queued, ["P"])
    assert world.where("pod") == place


def test_a_pod_of_an_unknown_profile_stays_in_the_queue() -> None:
    world = World({"P": (ClusterEventWithHint(EventResource.NODE, ActionType.ADD, hint_result(QueueingHint.SKIP)),)})
    world.fail("pod", "P", scheduler_name="other")
    assert world.queue.move_all_on_event(NODE_ADD, None, make_node()) == 1
