"""The contract of plugin classes: errors of invalid classes with suggestions, and valid classes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bayplan.app import known_plugins
from bayplan.errors import PluginError
from bayplan.framework import PluginTraits, row_local
from bayplan.framework.api.extension_points import ATTEMPT_ORDER
from bayplan.framework.runtime import plugin_contract
from bayplan.framework.runtime.plugin_contract import METHOD_SIGNATURES, check_plugin
from bayplan.framework.runtime.plugin_discovery import with_plugins_from
from bayplan.framework.runtime.registry import Registry


def plugin_class(**members: Any) -> type[Any]:
    return type("Made", (), {"name": "Mine", "filter": one_node, **members})


def one_node(self: Any, cycle: Any, node: Any) -> None: ...
def anything(self: Any, *_: Any) -> None: ...
async def awaited(self: Any, cycle: Any, node_name: Any) -> None: ...
def yielding(*_: Any) -> Iterator[None]:
    yield None


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """A typical decorator."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


MISSPELT = [
    pytest.param(
        plugin_class(looks_at_pods=False),
        r"has an attribute looks_at_pods; is traits = PluginTraits\(looks_at_pods=\.\.\.\) meant\?",
        id="trait-outside-of-traits",
    ),
    pytest.param(
        plugin_class(depends_on=row_local),
        r"has a method depends_on; is traits = PluginTraits\(depends_on=\.\.\.\) meant\?",
        id="function-outside-of-traits",
    ),
    pytest.param(
        type("Made", (plugin_class(traits=PluginTraits(depends_on=row_local)),), {"depends_on": anything}),
        r"has a method depends_on; is traits = PluginTraits\(depends_on=\.\.\.\) meant\?",
        id="overridden-function",
    ),
    pytest.param(
        plugin_class(compare_candidates=True),
        r"compare_candidates; is traits = PluginTraits\(compares_candidates=\.\.\.\) meant\?",
        id="another-letter",
    ),
    pytest.param(plugin_class(trait=PluginTraits()), "has an attribute trait; is traits meant?", id="traits"),
    pytest.param(
        plugin_class(event_to_register=()),
        "has an attribute event_to_register; is events_to_register meant?",
        id="events",
    ),
    pytest.param(plugin_class(signatur=anything), "has a method signatur; is signature meant?", id="signature"),
    pytest.param(plugin_class(filter=None, flter=one_node), "has filter = None; it takes a method", id="none"),
    pytest.param(type("Made", (), {"name": "Mine", "flter": one_node}), "flter; is filter meant", id="nothing-else"),
    pytest.param(
        type("Made", (plugin_class(),), {"normalise": anything, "score": one_node}),
        "normalise; is normalize",
        id="below",
    ),
    pytest.param(type("Made", (plugin_class(scor=one_node),), {}), "scor; is score meant?", id="inherited"),
]

OF_ANOTHER_KIND = [
    pytest.param(
        plugin_class(traits=PluginTraits(depends_on="row")),  # type: ignore[arg-type]
        "has a trait depends_on='row'; it takes a function, or leave it out",
        id="depends",
    ),
    pytest.param(plugin_class(signature=5), "has signature = 5; it takes a method", id="signature"),
    pytest.param(plugin_class(score=7), "has score = 7; it takes a method", id="score"),
    pytest.param(
        plugin_class(traits=PluginTraits(looks_at_pods="no")),  # type: ignore[arg-type]
        "has a trait looks_at_pods='no'; it takes True or False",
        id="text-for-a-flag",
    ),
    pytest.param(
        plugin_class(traits=PluginTraits(looks_at_pods=anything)),  # type: ignore[arg-type]
        "has a trait looks_at_pods=a method; it takes True or False",
        id="function-for-a-flag",
    ),
    pytest.param(
        plugin_class(traits=PluginTraits(loops_over_rows=1)),  # type: ignore[arg-type]
        "has a trait loops_over_rows=1; it takes True or False",
        id="number-for-a-flag",
    ),
    pytest.param(plugin_class(traits={}), r"has traits = {}; it takes a PluginTraits", id="dict-for-traits"),
    pytest.param(plugin_class(traits=property(anything)), "has traits = a method; it takes a Plugin", id="property"),
    pytest.param(plugin_class(ARGS="x" * 99), r"has ARGS = 'x+\.\.\.; it takes an ArgsKind or nothing", id="args"),
]

OTHER_PARAMETERS = [
    pytest.param(
        plugin_class(filter=lambda self, cycle: None),  # noqa: ARG005
        r"has a method filter\(self, cycle\); it is called as filter\(self, cycle, node\)",
        id="too-few",
    ),
    pytest.param(
        plugin_class(filter=lambda self, cycle, node, more: None),  # noqa: ARG005
        r"filter\(self, cycle, node, more\); it is called as",
        id="too-many",
    ),
    pytest.param(
        plugin_class(traits=PluginTraits(depends_on=lambda cycle: 0)),  # type: ignore[arg-type,misc] # noqa: ARG005
        r"has a trait depends_on\(cycle\); it is called as depends_on\(plugin, cycle\)",
        id="no-plugin",
    ),
    pytest.param(plugin_class(signature=lambda self, *, pod: 0), r"signature\(self, pod\); it is", id="by-keyword"),  # noqa: ARG005
    pytest.param(
        plugin_class(score=staticmethod(one_node)),
        r"has a method score\(self, cycle, node\); it is called as score\(cycle, node\)",
        id="static-with-self",
    ),
    pytest.param(
        plugin_class(factory=lambda cls, args, handle: cls()),  # noqa: ARG005
        r"has factory\(cls, args, handle\); it is called on the class as factory\(args, handle\)",
        id="factory-that-is-no-class-method",
    ),
    pytest.param(
        plugin_class(close=one_node), r"close\(self, cycle, node\); it is called as close\(self\)", id="close"
    ),
]

WITH_CAPITALS = [
    pytest.param(plugin_class(score=one_node, Filter=one_node), "has a method Filter; is filter meant?", id="capital"),
    pytest.param(
        plugin_class(score=one_node, preFilter=anything), "has a method preFilter; is pre_filter meant?", id="camel"
    ),
    pytest.param(plugin_class(score=one_node, args=5), "has an attribute args; is ARGS meant?", id="args"),
]

OF_ANOTHER_MANNER = [
    pytest.param(
        plugin_class(bind=anything), "has a plain bind; this method is awaited, so define it with async def", id="bind"
    ),
    pytest.param(plugin_class(pre_bind=anything), "has a plain pre_bind", id="pre-bind"),
    pytest.param(plugin_class(post_bind=traced(anything)), "has a plain post_bind", id="decorated"),
    pytest.param(plugin_class(filter=awaited), "has an async filter; this method is not awaited", id="filter"),
    pytest.param(plugin_class(permit=awaited), "has an async permit", id="permit"),
    pytest.param(
        plugin_class(traits=PluginTraits(score_groups=awaited)),  # type: ignore[arg-type]
        "has an async score_groups; this",
        id="trait",
    ),
    pytest.param(
        plugin_class(score_nodes=yielding), "has a score_nodes with a yield; it must return its result", id="yield"
    ),
]

ALONE = [
    pytest.param(plugin_class(normalize=anything), "has normalize but not score_nodes or score", id="normalize"),
    pytest.param(plugin_class(add_pod=anything, remove_pod=anything), "has add_pod but not pre_filter", id="pods"),
]


@pytest.mark.parametrize(
    ("plugin", "text"), [*MISSPELT, *WITH_CAPITALS, *OF_ANOTHER_KIND, *OTHER_PARAMETERS, *OF_ANOTHER_MANNER, *ALONE]
)
def test_an_invalid_class_is_refused_with_a_suggestion(plugin: type[Any], text: str) -> None:
    with pytest.raises(PluginError, match=f'plugin "Mine" .*{text}'):
        Registry.of(plugin)


@pytest.mark.parametrize(
    "plugin",
    [
        pytest.param(plugin_class(scores={"a": 1}, names=["a"]), id="data-that-is-called-like-a-method"),
        pytest.param(plugin_class(node_price=anything, reserved=()), id="own-names"),
        pytest.param(plugin_class(_look_at_pods=False), id="private"),
        pytest.param(plugin_class(filter_nodes=yielding), id="filter-nodes-yields"),
        pytest.param(plugin_class(filter_nodes=anything), id="filter-nodes-returns"),
        pytest.param(plugin_class(bind=awaited), id="async-bind"),
        pytest.param(plugin_class(bind=traced(awaited)), id="decorated-async-bind"),
        pytest.param(plugin_class(bind=functools.partial(awaited, None)), id="partial"),
        pytest.param(plugin_class(filter=traced(one_node)), id="decorated"),
        pytest.param(plugin_class(filter=lambda *_: None), id="any-arguments"),
        pytest.param(plugin_class(filter=lambda _self, _cycle, _node, more=3: more), id="one-more-with-a-default"),
        pytest.param(plugin_class(score=staticmethod(lambda _cycle, _node: 1)), id="static"),
        pytest.param(plugin_class(score=classmethod(one_node)), id="class-method"),
        pytest.param(plugin_class(signature=str), id="a-class-as-a-function"),
        pytest.param(plugin_class(traits=PluginTraits(depends_on=row_local, looks_at_pods=False)), id="traits"),
        pytest.param(
            plugin_class(not_applicable=anything, traits=PluginTraits(not_applicable=anything)),  # type: ignore[arg-type]
            id="a-method-that-is-a-trait",
        ),
        pytest.param(plugin_class(factory=classmethod(lambda cls, _args, _handle: cls())), id="factory"),
        pytest.param(plugin_class(factory=staticmethod(lambda _args, _handle: None)), id="static-factory"),
    ],
)
def test_a_valid_class_is_accepted(plugin: type[Any]) -> None:
    assert "Mine" in Registry.of(plugin)


def test_every_method_of_a_point_has_a_signature() -> None:
    assert {method for point in ATTEMPT_ORDER for method in point.methods} <= set(METHOD_SIGNATURES)
    assert {name for name, shape in METHOD_SIGNATURES.items() if shape.awaited} == {"pre_bind", "bind", "post_bind"}


def test_all_shipped_plugins_are_valid() -> None:
    shipped = {entry.plugin for entry in known_plugins()}
    plugin_contract._checked_classes.clear()
    for plugin in shipped:
        check_plugin(plugin)
    assert set(plugin_contract._checked_classes) == shipped != set()


def test_a_file_whose_only_method_is_misspelled_is_reported(tmp_path: Path) -> None:
    (tmp_path / "typo.py").write_text('class Typo:\n    name = "Typo"\n    def flter(self, cycle, node): ...\n')
    tmp_path.chmod(0o755)
    (tmp_path / "typo.py").chmod(0o644)
    with pytest.raises(PluginError, match=r"typo\.py defines no plugin: Typo has a method flter; is filter meant\?"):
        with_plugins_from(Registry(), tmp_path)
