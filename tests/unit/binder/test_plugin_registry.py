"""Registry of binder plugins: which run, in which order, and errors at start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bayplan.app.binder import BinderSettings, known_binder_plugins
from bayplan.binder.plugin_registry import PluginChange, PluginChoice, read_choices
from bayplan.binder.plugins import default_binder_plugins
from bayplan.errors import ConfigError, PluginError

OWN = """
class Own:
    name = "own"

    async def pre_bind(self, ctx, pod, node, bind_request, state):
        pass


class ForThePodEngine:
    name = "ForThePodEngine"

    async def pre_bind(self, cycle, node_name):
        pass
"""


def order(**configured: dict[str, Any]) -> list[str]:
    return [name for name, _ in default_binder_plugins().choices(read_choices(configured, "s.yaml"))]


def test_higher_priority_comes_first_and_hamicore_is_disabled_by_default() -> None:
    assert order() == ["volumebinding", "dynamicresources", "gpusharing"]
    assert order(hamicore={"enabled": True})[-1] == "hamicore"
    assert order(hamicore={"enabled": True, "priority": 100})[-2:] == ["gpusharing", "hamicore"]
    assert order(hamicore={"enabled": True, "priority": 400}, gpusharing={"priority": 500})[0] == "gpusharing"
    assert "hamicore" not in order(hamicore={"priority": 400})
    assert order(volumebinding={"enabled": False}) == ["dynamicresources", "gpusharing"]


def test_equal_priorities_are_ordered_by_name() -> None:
    equal = order(gpusharing={"priority": 7}, dynamicresources={"priority": 7})
    assert equal == ["volumebinding", "dynamicresources", "gpusharing"]


SHIPPED = dict(default_binder_plugins().choices())


@pytest.mark.parametrize(
    ("name", "change", "wanted"),
    [
        pytest.param("dynamicresources", {"enabled": True}, SHIPPED["dynamicresources"], id="nothing new"),
        pytest.param("volumebinding", {}, SHIPPED["volumebinding"], id="nothing"),
        pytest.param(
            "gpusharing",
            {"arguments": {"cdiEnabled": True}},
            PluginChoice(priority=100, arguments={"cdiEnabled": True}),
            id="arguments",
        ),
        pytest.param(
            "volumebinding",
            {"priority": 5},
            PluginChoice(priority=5, arguments={"bindTimeoutSeconds": 120}),
            id="priority",
        ),
        pytest.param("volumebinding", {"arguments": {}}, PluginChoice(priority=300), id="arguments as a whole"),
    ],
)
def test_unnamed_settings_keep_their_defaults(name: str, change: dict[str, Any], wanted: PluginChoice) -> None:
    assert dict(default_binder_plugins().choices(read_choices({name: change}, "s.yaml")))[name] == wanted


@pytest.mark.parametrize(
    ("configured", "words"),
    [
        pytest.param(
            {"gpushraing": {}}, 'there is no binder plugin "gpushraing"; did you mean "gpusharing"?', id="name"
        ),
        pytest.param({"gpusharing": 3}, "gpusharing is not an object", id="no object"),
        pytest.param({"gpusharing": {"prio": 3}}, 'gpusharing has no "prio"', id="key"),
        pytest.param({"gpusharing": {"priority": "high"}}, "gpusharing.priority is 'high'", id="type"),
        pytest.param(
            {"volumebinding": {"arguments": {"bindTimeoutSecond": 3}}},
            'binder plugin "volumebinding" has no argument "bindTimeoutSecond"; did you mean "bindTimeoutSeconds"?',
            id="argument",
        ),
        pytest.param(
            {"gpusharing": {"arguments": {"xyz": 3}}},
            'binder plugin "gpusharing" has no argument "xyz"; known are: cdiEnabled',
            id="argument like no other",
        ),
        pytest.param(
            {"hamicore": {"arguments": {"limit": 3}}},
            'binder plugin "hamicore" has no argument "limit"; known are: none',
            id="argument of a plugin without arguments",
        ),
        pytest.param(
            {"hamicore": {"enabled": True}, "gpusharing": {"enabled": False}},
            'binder plugin "hamicore" builds on "gpusharing", which is not enabled; '
            "enable gpusharing, or disable hamicore",
            id="without what it builds on",
        ),
        pytest.param(
            {"hamicore": {"enabled": True, "priority": 400}},
            r'binder plugin "hamicore" \(priority 400\) has to run after "gpusharing" \(priority 100\); '
            "give hamicore a lower priority",
            id="before what it builds on",
        ),
        pytest.param({"gpusharing": {"priority": True}}, "gpusharing.priority is True", id="no number"),
    ],
)
def test_configurations_that_are_refused_at_start(configured: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("?", r"\?")):
        default_binder_plugins().choices(read_choices(configured, "s.yaml"))


def test_the_order_of_plugins_is_checked_when_the_configuration_is_read() -> None:
    alone = {"hamicore": {"enabled": True}, "gpusharing": {"enabled": False}}
    with pytest.raises(ConfigError, match='"hamicore" builds on "gpusharing"'):
        BinderSettings.from_tree(alone, "s.yaml", default_binder_plugins())
    neither = {"hamicore": {"enabled": False}, "gpusharing": {"enabled": False}}
    assert BinderSettings.from_tree(neither, "s.yaml", default_binder_plugins()).plugin_changes.keys() == neither.keys()


def test_the_error_of_an_invalid_argument_names_the_plugin() -> None:
    choices = {"volumebinding": PluginChange(arguments={"bindTimeoutSeconds": "long"})}
    with pytest.raises(PluginError, match=r'binder plugin "volumebinding" cannot be built: .*bindTimeoutSeconds'):
        default_binder_plugins().build(None, choices)  # type: ignore[arg-type]


def test_binder_plugins_of_a_folder_are_separated_from_those_of_the_pod_engine(tmp_path: Path) -> None:
    (tmp_path / "own_binder_plugin.py").write_text(OWN)
    found = known_binder_plugins([tmp_path], trust_writable=True)
    assert found.classes["own"].__name__ == "Own"
    assert "ForThePodEngine" not in found.classes
    assert [name for name, _ in found.choices()][-1] == "own"  # priority 0


class Plain:
    name = "plain"

    def pre_bind(self, ctx: Any, pod: Any, node: Any, bind_request: Any, state: Any) -> None:
        pass


class Short:
    name = "short"

    async def rollback(self, ctx: Any) -> None:
        pass


class Nothing:
    name = "nothing"


@pytest.mark.parametrize(
    ("plugin", "words"),
    [
        pytest.param(Plain, "has a plain pre_bind; it is awaited, so it is an async def", id="plain"),
        pytest.param(Short, "has another rollback than rollback\\(self, ctx, pod, node", id="short"),
        pytest.param(Nothing, "has no stage; it needs one of: pre_bind, post_bind, rollback", id="nothing"),
    ],
)
def test_a_class_that_cannot_work_is_refused(plugin: type[Any], words: str) -> None:
    with pytest.raises(PluginError, match=words):
        default_binder_plugins().with_plugins(plugin)


def test_a_name_can_be_used_only_once() -> None:
    with pytest.raises(PluginError, match='two binder plugins are called "gpusharing"'):
        default_binder_plugins().with_plugins(default_binder_plugins().classes["gpusharing"])
