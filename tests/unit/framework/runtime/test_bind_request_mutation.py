"""Annotations that plugins add to a BindRequest, rule by rule; and the records of failed bindings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from bayplan.clock import ManualClock
from bayplan.errors import PluginError
from bayplan.framework.runtime.bind_failures import BindFailures
from bayplan.framework.runtime.bind_request_mutation import (
    FAIL,
    SKIP,
    BindRequestMutation,
    MutateBindRequestError,
    Mutator,
)
from bayplan.objects.kai.bind_request import annotation_key

KEY = "one.kai.scheduler/x"


def mutator(plugin: str, *answers: Any, on_error: str = "skip") -> Mutator:
    """A plugin that returns these results in order, then repeats the last one. Exceptions are raised."""
    left = list(answers)

    def fn(task: str, node_name: str) -> Any:
        assert (task, node_name) == ("task", "n1")
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return Mutator(plugin, fn, on_error)


def merged(*mutators: Mutator, mutation: BindRequestMutation | None = None) -> dict[str, str]:
    mutation = mutation or BindRequestMutation(ManualClock())
    return mutation.annotations(mutators, "default/web", "task", "n1")


def test_no_function_gives_no_annotations_and_never_none() -> None:
    assert merged() == {}


def test_one_function_returns_its_annotations() -> None:
    assert merged(mutator("one", {KEY: "1"})) == {KEY: "1"}


def test_functions_with_distinct_keys_add_up() -> None:
    other = annotation_key("two", "y")
    assert merged(mutator("one", {KEY: "1"}), mutator("two", {other: "2"})) == {KEY: "1", other: "2"}


def test_the_later_of_two_functions_with_one_key_wins_and_is_counted() -> None:
    mutation = BindRequestMutation(ManualClock())
    assert merged(mutator("one", {KEY: "1"}), mutator("two", {KEY: "2"}), mutation=mutation) == {KEY: "2"}
    assert mutation.conflicts.labels(KEY).value == 1


@pytest.mark.parametrize(("later", "conflicts"), [("one", 0), ("two", 1)], ids=["the same plugin", "another plugin"])
def test_only_keys_of_another_plugin_conflict(later: str, conflicts: int, caplog: pytest.LogCaptureFixture) -> None:
    """A plugin that is registered twice may overwrite its own keys."""
    mutation = BindRequestMutation(ManualClock())
    with caplog.at_level(logging.DEBUG):
        assert merged(mutator("one", {KEY: "1"}), mutator(later, {KEY: "2"}), mutation=mutation) == {KEY: "2"}
    assert len(mutation.conflicts) == conflicts
    logged = [each.message for each in caplog.records if each.levelno == logging.DEBUG]
    assert logged == ['plugin "two" overwrites one.kai.scheduler/x of plugin "one"'] * conflicts


def test_the_last_plugin_owns_a_key() -> None:
    mutation = BindRequestMutation(ManualClock())
    merged(
        *(mutator(plugin, {KEY: value}) for plugin, value in (("one", "1"), ("two", "2"), ("two", "3"))),
        mutation=mutation,
    )
    assert mutation.conflicts.labels(KEY).value == 1


def test_an_equal_value_is_no_conflict() -> None:
    mutation = BindRequestMutation(ManualClock())
    merged(mutator("one", {KEY: "1"}), mutator("two", {KEY: "1"}), mutation=mutation)
    assert len(mutation.conflicts) == 0


@pytest.mark.parametrize("nothing", [None, {}], ids=["none", "empty"])
def test_no_answer_changes_nothing(nothing: Any) -> None:
    assert merged(mutator("one", {KEY: "1"}), mutator("two", nothing)) == {KEY: "1"}


class Lazy(Mapping[str, str]):
    """A mapping that fails when it is read."""

    def __getitem__(self, key: str) -> str:
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter([KEY])

    def __len__(self) -> int:
        return 1


class Wordless(Exception):
    """An exception whose text cannot be computed."""

    def __str__(self) -> str:
        raise ValueError("no words")


class Unseemly:
    def __repr__(self) -> str:
        raise ValueError("nothing to be seen")


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Lazy(), id="a mapping that breaks when it is read"),
        pytest.param(asyncio.CancelledError(), id="cancelled"),
        pytest.param(Wordless(), id="no words for it"),
        pytest.param(ValueError("\udcff"), id="words that cannot be written"),
        pytest.param(Unseemly(), id="what cannot be shown"),
        pytest.param({"\udcff": "1"}, id="a key that cannot be written"),
        pytest.param({KEY: "\udcff"}, id="a value that cannot be written"),
    ],
)
@pytest.mark.parametrize("on_error", [SKIP, FAIL])
def test_every_failure_of_a_plugin_is_its_fault(answer: Any, on_error: str, caplog: pytest.LogCaptureFixture) -> None:
    mutation, good = BindRequestMutation(ManualClock()), {annotation_key("good", "y"): "2"}
    calls = mutator("bad", answer, on_error=on_error), mutator("good", good)
    if on_error == FAIL:
        with pytest.raises(MutateBindRequestError, match='plugin "bad" at mutate_bind_request') as raised:
            merged(*calls, mutation=mutation)
        assert msgspec.json.encode(str(raised.value))  # the text goes into the status of the pod
    else:
        assert merged(*calls, mutation=mutation) == good
    assert mutation.errors.labels("bad").value == 1
    assert 'plugin "bad" and the bind request of pod default/web' in caplog.text


@pytest.mark.parametrize("fault", [ValueError("oops"), SystemExit(1)], ids=["exception", "exit"])
def test_a_function_that_raises_is_left_out_and_counted(fault: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    mutation = BindRequestMutation(ManualClock())
    assert merged(mutator("bad", fault), mutator("one", {KEY: "1"}), mutation=mutation) == {KEY: "1"}
    assert mutation.errors.labels("bad").value == 1
    assert 'plugin "bad" and the bind request of pod default/web' in caplog.text


def test_a_failing_required_function_ends_the_binding() -> None:
    with pytest.raises(MutateBindRequestError, match='plugin "bad" at mutate_bind_request: ValueError: oops'):
        merged(mutator("bad", ValueError("oops"), on_error=FAIL), mutator("one", AssertionError("no further call")))


def test_another_policy_is_refused() -> None:
    with pytest.raises(PluginError, match='set it to "skip" or "fail"'):
        mutator("one", None, on_error="retry")


def test_a_reused_dictionary_is_copied() -> None:
    shared = {KEY: "1"}
    found = merged(mutator("one", shared))
    found[KEY] = "changed"
    assert shared == {KEY: "1"}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        pytest.param({"a b": "1"}, "is not a valid annotation name", id="no qualified name"),
        pytest.param({"x/y/z": "1"}, "is not a valid annotation name", id="two slashes"),
        pytest.param({f"{'d' * 254}/y": "1"}, "is not a valid annotation name", id="long domain"),
        pytest.param({f"p.kai.scheduler/{'n' * 64}": "1"}, "is not a valid annotation name", id="long name"),
        pytest.param({1: "1"}, "the key 1 is not a string", id="key is not a string"),
        pytest.param({KEY: 1}, "is 1, which is not a string", id="value is not a string"),
        pytest.param({"kubernetes.io/x": "1"}, "belongs to Kubernetes", id="reserved"),
        pytest.param({"node.k8s.io/x": "1"}, "belongs to Kubernetes", id="reserved below"),
        pytest.param("text", "which is not a mapping", id="no mapping"),
    ],
)
def test_invalid_annotations_are_refused(answer: Any, problem: str, caplog: pytest.LogCaptureFixture) -> None:
    mutation = BindRequestMutation(ManualClock())
    good = annotation_key("bad", "good")
    mixed = {**answer, good: "kept"} if isinstance(answer, dict) else answer
    found = merged(mutator("bad", mixed), mutator("two", {"two.kai.scheduler/y": "2"}), mutation=mutation)
    exclusions = {good: "kept"} if isinstance(answer, dict) else {}
    assert found == {**exclusions, "two.kai.scheduler/y": "2"}
    assert problem in caplog.text
    assert mutation.errors.labels("bad").value == 1


def test_more_than_a_request_can_hold_is_refused() -> None:
    mutation = BindRequestMutation(ManualClock())
    large = {annotation_key("large", "x"): "x" * 200_000}
    more = {annotation_key("more", "y"): "y" * 100_000}
    assert merged(mutator("large", large), mutator("more", more), mutation=mutation) == large
    assert mutation.errors.labels("more").value == 1


@pytest.mark.parametrize(("over", "refused"), [(-1, 0), (0, 0), (1, 1)], ids=["one less", "as much", "one more"])
@pytest.mark.parametrize("letter", ["x", "é"], ids=["one byte a letter", "two"])
def test_a_request_holds_256_kib_of_keys_and_values_together_to_the_byte(
    letter: str, over: int, refused: int, caplog: pytest.LogCaptureFixture
) -> None:
    mutation, other = BindRequestMutation(ManualClock()), annotation_key("two", "y")
    before = {KEY: letter * 1000}
    left = 256 * 1024 + over - len(KEY) - len(other) - 1000 * len(letter.encode())
    more = {other: letter * (left // len(letter.encode())) + "x" * (left % len(letter.encode()))}
    found = merged(mutator("one", before), mutator("two", more), mutation=mutation)
    assert found == (before if refused else {**before, **more})
    assert len(mutation.errors) == refused
    assert ("262145 bytes; at most 262144 are allowed" in caplog.text) == refused


def test_an_overwritten_value_does_not_count_for_the_size() -> None:
    half = {KEY: "x" * 200_000}
    assert merged(mutator("one", half), mutator("two", {KEY: "y" * 200_000})) == {KEY: "y" * 200_000}


def test_an_unconventional_key_is_accepted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    mutation = BindRequestMutation(ManualClock())
    for _ in range(3):
        assert merged(mutator("one", {"example.com/x": "1"}), mutation=mutation) == {"example.com/x": "1"}
    assert caplog.text.count("uses the annotation key example.com/x") == 1


def test_each_call_is_timed_and_a_slow_one_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    mutation = BindRequestMutation(clock)

    def slow(task: str, node_name: str) -> None:  # noqa: ARG001
        clock.advance(0.06)

    with caplog.at_level(logging.WARNING):
        assert mutation.annotations([Mutator("slow", slow)], "default/web", "task", "n1") == {}
    assert 'plugin "slow" took 60 ms' in caplog.text
    assert mutation.seconds.labels("slow").count == 1


@pytest.mark.parametrize(("seconds", "logged"), [(0.0498, False), (0.0502, True)], ids=["below", "above"])
@pytest.mark.parametrize("raises", [False, True], ids=["answers", "raises"])
def test_a_call_is_slow_above_fifty_milliseconds(
    seconds: float, logged: bool, raises: bool, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()

    def fn(task: str, node_name: str) -> None:  # noqa: ARG001
        clock.advance(seconds)
        if raises:
            raise ValueError("oops")

    mutation = BindRequestMutation(clock)
    with caplog.at_level(logging.WARNING):
        mutation.annotations([Mutator("slow", fn)], "default/web", "task", "n1")
    assert ('plugin "slow" took 50 ms for the bind request of default/web' in caplog.text) == logged
    assert mutation.seconds.labels("slow").total == pytest.approx(seconds)


# failed bindings


def test_the_exclusion_of_a_node_grows_with_failures() -> None:
    clock = ManualClock()
    failures = BindFailures(clock)
    pauses = []
    for _ in range(4):
        pauses.append(failures.record_failure("u", "n1", "no"))
        assert failures.excluded_nodes("u") == {"n1"}
        clock.advance(pauses[-1])
        assert failures.excluded_nodes("u") == frozenset()
    assert pauses == [30, 60, 120, 240]
    assert failures.backoff_message("u") == ""


def test_after_five_failures_on_any_nodes_the_pod_waits() -> None:
    clock = ManualClock()
    failures = BindFailures(clock)
    for number in range(4):
        failures.record_failure("u", f"n{number}", "no")
    assert failures.backoff_message("u") == ""
    failures.record_failure("u", "n4", "quota")
    assert failures.backoff_message("u") == (
        "BindFailed: 5 bindings of the pod failed, the last on node n4: quota; it is retried in 30 s"
    )
    clock.advance(30)
    assert failures.backoff_message("u") == ""
    assert failures.backoff_message("other") == ""


def test_a_pod_is_retried_after_its_backoff_while_nodes_are_still_excluded() -> None:
    """There may be other nodes; the excluded ones follow later."""
    clock = ManualClock()
    failures = BindFailures(clock)
    for _ in range(5):
        failures.record_failure("u", "n1", "no")
    assert failures.retry_in_s("u") == 30
    clock.advance(30)
    assert failures.retry_in_s("u") == 450
    clock.advance(450)
    assert failures.retry_in_s("u") is None


def test_no_backoff_exceeds_ten_minutes() -> None:
    """Neither that of a node, which doubles with each failure there, nor that of the pod, which starts later."""
    failures = BindFailures(ManualClock())
    nodes, own = [], []
    for _ in range(20):
        nodes.append(failures.record_failure("u", "n1", "no"))
        own.append(failures.backoff_left_s("u"))
    assert nodes == [30, 60, 120, 240, 480, *[600] * 15]
    assert own == [0, 0, 0, 0, 30, 60, 120, 240, 480, *[600] * 11]
    assert [each.left_s for each in failures.exclusions("u")] == [600]


def test_the_record_of_a_bound_pod_is_dropped() -> None:
    failures = BindFailures(ManualClock())
    failures.record_failure("u", "n1", "no")
    failures.forget("u")
    assert "u" not in failures.records
    assert failures.excluded_nodes("u") == frozenset()
