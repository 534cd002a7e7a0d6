"""Reload of plugins and actions between sessions."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.batch.actions import default_actions
from bayplan.batch.engine import BatchEngine, SessionAlreadyOpen
from bayplan.batch.live.plugin_reloader import BatchPluginReloader
from bayplan.batch.plugins import default_batch_plugins
from bayplan.batch.registry import ActionSet, BatchPluginSet
from bayplan.errors import PluginError
from bayplan.testing.builders import make_node
from support.builders.batch import make_group, make_member
from support.builders.batch_engines import GANGS, build_engine


def plugin_preferring(node_name: str) -> type[Any]:
    class PreferringPlugin:
        name = "favourite"

        def __init__(self, arguments: Any) -> None:
            pass

        def on_session_open(self, session: Any) -> None:
            session.add_node_order_fn(self.name, lambda _, node: 100.0 if node.name == node_name else 0.0)

    return PreferringPlugin


class CountingAction:
    name = "step"

    def __init__(self) -> None:
        self.calls: list[str] = []

    def initialize(self) -> None:
        self.calls.append("initialize")

    def execute(self, session: Any) -> None: ...

    def uninitialize(self) -> None:
        self.calls.append("uninitialize")


class FailingAction(CountingAction):
    def initialize(self) -> None:
        raise RuntimeError("cannot begin")


def engine() -> BatchEngine:
    conf = GANGS.replace("  - name: nodeorder\n", "  - name: favourite\n")
    return build_engine(
        conf=conf,
        nodes=[make_node("a", cpu=4), make_node("b", cpu=4)],
        pods=[make_member("job-w-0", requests={"cpu": "1"})],
        objects=[make_group()],
        plugins=with_plugin("a"),
    )


def with_plugin(node_name: str) -> BatchPluginSet:
    return default_batch_plugins().with_plugins(plugin_preferring(node_name))


def test_the_next_session_uses_the_new_plugin() -> None:
    one, files = engine(), {"version": 1}
    reloading = BatchPluginReloader(one, lambda: dict(files), lambda: (with_plugin("b"), default_actions()))
    reloading.reload_if_changed()
    assert one.run_session().binds == {"default/job-w-0": "a"}
    one = engine()
    reloading = BatchPluginReloader(one, lambda: dict(files), lambda: (with_plugin("b"), default_actions()))
    files["version"] = 2
    reloading.reload_if_changed()
    assert reloading.fault == ""
    assert one.run_session().binds == {"default/job-w-0": "b"}


def test_a_plugin_that_cannot_be_built_does_not_replace_a_working_one() -> None:
    class FailingPlugin:
        name = "favourite"

        def __init__(self, arguments: Any) -> None:
            raise ValueError(f"no such rack: {arguments!r}")

        def on_session_open(self, session: Any) -> None: ...

    one, files = engine(), {"version": 1}
    fresh = default_batch_plugins().with_plugins(FailingPlugin)
    reloading = BatchPluginReloader(one, lambda: dict(files), lambda: (fresh, default_actions()))
    files["version"] = 2
    reloading.reload_if_changed()
    assert reloading.fault.startswith('plugin "favourite" cannot be built: ValueError: no such rack: ')
    assert one.run_session().binds == {"default/job-w-0": "a"}


def test_a_broken_file_changes_nothing_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    one, files = engine(), {"version": 1}

    def fail_to_load() -> tuple[BatchPluginSet, ActionSet]:
        raise PluginError("x.py cannot be read")

    reloading = BatchPluginReloader(one, lambda: dict(files), fail_to_load)
    for version in (2, 3):
        files["version"] = version
        reloading.reload_if_changed()
    assert reloading.fault == "x.py cannot be read"
    assert caplog.text.count("x.py cannot be read") == 1
    assert one.run_session().binds == {"default/job-w-0": "a"}


def test_replaced_actions_are_uninitialized_and_unchanged_ones_continue() -> None:
    one = engine()
    first, second = CountingAction(), CountingAction()
    shipped = default_actions()
    one.replace_plugins(with_plugin("a"), shipped.with_actions(first))
    one.replace_plugins(with_plugin("a"), shipped.with_actions(first))
    assert first.calls == ["initialize"]
    one.replace_plugins(with_plugin("a"), shipped.with_actions(second))
    assert (first.calls, second.calls) == (["initialize", "uninitialize"], ["initialize"])


def test_a_failing_action_that_is_not_configured_is_ignored() -> None:
    one = engine()
    one.replace_plugins(with_plugin("a"), default_actions().with_actions(FailingAction()))
    assert one.run_session().binds == {"default/job-w-0": "a"}


def test_plugins_cannot_be_replaced_while_a_session_is_open() -> None:
    one = engine()
    with one.session(), pytest.raises(SessionAlreadyOpen):
        one.replace_plugins(with_plugin("b"), default_actions())
