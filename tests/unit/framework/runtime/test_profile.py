"""Building a profile: expansion, order, weights and errors."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bayplan.config.model import PluginRef, Plugins, PluginSet
from bayplan.config.model import ProfileConfig as ProfileConfig
from bayplan.errors import BayplanError, ConfigError
from bayplan.framework.api.events import ActionType, ClusterEventWithHint, EventResource
from bayplan.framework.api.extension_points import BIND, FILTER, PLACEMENT_SCORE, PRE_FILTER, QUEUE_SORT, SCORE
from bayplan.framework.api.plugin_traits import PluginTraits
from bayplan.framework.runtime.profile import Profile, build_profile
from bayplan.framework.runtime.registry import Registry
from support.builders.framework import FakeHandle


def plugin(name: str, *methods: str, **members: Any) -> type[Any]:
    def method(self: Any, *_: Any) -> None: ...
    async def awaited(self: Any, *_: Any) -> None: ...

    profile = {each: awaited if each == "bind" else method for each in methods}
    return type(name, (), {"name": name, **profile, **members})


SORT, BINDER = plugin("Sort", "less"), plugin("Binder", "bind")
A = plugin("A", "pre_filter", "filter", "score")
B = plugin("B", "filter", "score")
C = plugin("C", "filter")
GENERATE = plugin("Generate", "generate_placements")
REGISTRY = Registry.of(
    SORT, BINDER, A, B, C, GENERATE, plugin("Generate2", "generate_placements"), plugin("Sort2", "less")
)


def refs(text: str) -> tuple[PluginRef, ...]:
    """`A B:3` as references."""
    return tuple(
        PluginRef(name, int(weight or 0)) for name, _, weight in (each.partition(":") for each in text.split())
    )


def config(multi: str, *, config_of: dict[str, Any] | None = None, **points: str | tuple[str, str]) -> ProfileConfig:
    """Each point as its enabled list, or as (enabled, disabled)."""
    sets = {}
    for point, value in {"multi_point": multi, **points}.items():
        enabled, disabled = value if isinstance(value, tuple) else (value, "")
        sets[point] = PluginSet(refs(enabled), refs(disabled))
    return ProfileConfig(scheduler_name="mine", plugins=Plugins(**sets), plugin_config=config_of or {})


def build(configuration: ProfileConfig, registry: Registry = REGISTRY) -> Profile:
    return build_profile(configuration, registry, FakeHandle())


def names(profile: Profile, point: Any) -> list[str]:
    return [each.name for each in profile.at(point)]


@pytest.mark.parametrize(
    ("multi", "named", "order"),
    [
        pytest.param("Compare", "", "", id="nobody-makes-placements"),
        pytest.param("Compare", "Compare", "Compare", id="named"),
        pytest.param("Compare Generate", "", "Compare", id="somebody-does"),
    ],
)
def test_placement_score_plugins_need_a_generate_plugin(multi: str, named: str, order: str) -> None:
    registry = REGISTRY.with_plugins(plugin("Compare", "score_placement"))
    profile = build(config(f"Sort Binder {multi}", placement_score=named), registry)
    assert names(profile, PLACEMENT_SCORE) == order.split()


# order


@pytest.mark.parametrize(
    ("multi", "filter_set", "order"),
    [
        pytest.param("A B C", "", "A B C", id="as-multipoint-lists-them"),
        pytest.param("A B", "C", "A B C", id="only-listed-here-comes-last"),
        pytest.param("A B C", "C", "C A B", id="an-override-comes-first"),
        pytest.param("A B C", "C B", "C B A", id="overrides-in-the-order-of-the-list"),
        pytest.param("A B", "C B", "B A C", id="override-multipoint-rest"),
        pytest.param("A B C", ("", "B"), "A C", id="disabled-here"),
        pytest.param("A B C", ("", "*"), "", id="all-disabled"),
        pytest.param("A B C", ("C", "*"), "C", id="only-what-is-listed"),
        pytest.param("A B", ("B", "B"), "A B", id="disabled-and-listed-moves-to-the-end"),
    ],
)
def test_order_at_a_point(multi: str, filter_set: str | tuple[str, str], order: str) -> None:
    profile = build(config(f"Sort Binder {multi}", filter=filter_set))
    assert names(profile, FILTER) == order.split()


@pytest.mark.parametrize(
    ("multi", "points", "filters"),
    [
        pytest.param("Asking A", {}, "Asking A", id="by-multipoint-as-listed"),
        pytest.param("A", {"bind": "Asking"}, "A Asking", id="at-bind-alone"),
        pytest.param("A", {"bind": "Asking", "filter": ("C", "*")}, "C Asking", id="where-all-filters-are-listed"),
        pytest.param("Asking A", {"filter": ("", "Asking")}, "A Asking", id="not-without-it"),
        pytest.param("A", {"bind": "Asking", "filter": "Asking"}, "A Asking", id="named-at-both"),
        pytest.param("A", {"filter": "Asking"}, "A Asking", id="only-where-it-is-listed"),
    ],
)
def test_a_binder_with_a_filter_also_filters(
    multi: str, points: dict[str, str | tuple[str, str]], filters: str
) -> None:
    asking = plugin("Asking", "pre_filter", "filter", "bind", traits=PluginTraits(filters_before_binding=True))
    profile = build(config(f"Sort Binder {multi}", **points), REGISTRY.with_plugins(asking))
    assert names(profile, FILTER) == filters.split()
    assert ("Asking" in names(profile, PRE_FILTER)) == ("Asking" in names(profile, BIND))


@pytest.mark.parametrize(
    ("multi", "bind", "logged"),
    [
        pytest.param("All Binder", "", "All binds every pod, and Binder behind it never runs", id="by-multipoint"),
        pytest.param("All", "Binder", "All binds every pod, and Binder behind it never runs", id="at-bind"),
        pytest.param("Binder All", "", "", id="last"),
        pytest.param("All Binder", ("Binder All", "All"), "", id="moved-to-the-end"),
        pytest.param("All Binder", ("", "All"), "", id="disabled"),
    ],
)
def test_an_unreachable_binder_is_logged(
    multi: str, bind: str | tuple[str, str], logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = REGISTRY.with_plugins(plugin("All", "bind", traits=PluginTraits(binds_every_pod=True)))
    build(config(f"Sort {multi}", bind=bind), registry)
    assert [each.getMessage() for each in caplog.records] == (
        [f'profile "mine": {logged}; disable All at multiPoint or bind'] if logged else []
    )


def test_multipoint_reaches_every_point_that_a_plugin_extends() -> None:
    profile = build(config("Sort Binder A B"))
    assert names(profile, PRE_FILTER) == ["A"]
    assert names(profile, SCORE) == ["A", "B"]
    assert names(profile, QUEUE_SORT) == ["Sort"]
    assert names(profile, BIND) == ["Binder"]
    assert profile.describe() == {
        "queueSort": ["Sort"],
        "preFilter": ["A"],
        "filter": ["A", "B"],
        "score": ["A:1", "B:1"],
        "bind": ["Binder"],
    }
    assert profile.at(FILTER)[0] is profile.at(PRE_FILTER)[0], "one instance serves all points"


# weights


@pytest.mark.parametrize(
    ("multi", "score", "weights"),
    [
        pytest.param("A:3 B", "", {"A": 3, "B": 1}, id="nothing-means-one"),
        pytest.param("A:3 B:2", "A:5", {"A": 5, "B": 2}, id="the-point-wins"),
        pytest.param("A:3 B:2", "A", {"A": 1, "B": 2}, id="the-point-wins-without-a-weight-too"),
        pytest.param("A:-1", "", {"A": -1}, id="negative-is-taken-as-it-is"),
        pytest.param("A B:-3", "", {"A": 1, "B": -3}, id="negative-at-the-end"),
    ],
)
def test_weights(multi: str, score: str, weights: dict[str, int]) -> None:
    assert build(config(f"Sort Binder {multi}", score=score)).weights == weights


# errors


@pytest.mark.parametrize(
    ("configuration", "text"),
    [
        pytest.param(config("Sort Binder", filter="Unknown"), 'FilterPlugin "Unknown" does not exist', id="unknown"),
        pytest.param(
            config("Sort Binder Unknown"), 'PreFilterPlugin "Unknown" does not exist', id="unknown-in-multipoint"
        ),
        pytest.param(
            config("Sort Binder Unknown", pre_filter=("", "*")),
            'FilterPlugin "Unknown" does not exist',
            id="unknown-in-multipoint-first-point-that-expands",
        ),
        pytest.param(
            config("Sort Binder", score="C"), 'plugin "C" does not extend ScorePlugin plugin', id="wrong-point"
        ),
        pytest.param(
            config("Sort Binder", filter="C C"),
            'plugin "C" already registered as "FilterPlugin"',
            id="twice-at-a-point",
        ),
        pytest.param(
            config("Sort Binder C C"), 'plugin "C" already registered as "FilterPlugin"', id="twice-in-multipoint"
        ),
        pytest.param(
            config("Binder"),
            'only one queue sort plugin required for profile with scheduler name "mine", but got 0',
            id="no-queue-sort",
        ),
        pytest.param(
            config("Sort Sort2 Binder"),
            'only one queue sort plugin required for profile with scheduler name "mine", but got 2',
            id="two-queue-sorts",
        ),
        pytest.param(
            config("Sort"), 'at least one bind plugin is needed for profile with scheduler name "mine"', id="no-bind"
        ),
        pytest.param(
            config("Sort Binder Generate Generate2"),
            'at most one placement generate plugin is allowed for profile with scheduler name "mine"',
            id="two-generators",
        ),
        pytest.param(
            config("Sort Binder A:-1 B"),
            "score plugins: total score of Score plugins could overflow",
            id="negative-before-another",
        ),
    ],
)
def test_refusals(configuration: ProfileConfig, text: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        build(configuration)
    assert str(refusal.value) == text
    assert refusal.value.stage == "profile"


def test_explicit_lists_of_all_points_are_checked_before_any_is_expanded() -> None:
    with pytest.raises(ConfigError, match='ScorePlugin "Unknown" does not exist'):
        build(config("Unknown", score="Unknown"))


def test_counts_are_checked_before_weights() -> None:
    with pytest.raises(ConfigError, match="at least one bind plugin"):
        build(config("Sort A:-1 B"))


def test_weights_that_overflow() -> None:
    many = [plugin(f"P{number}", "score") for number in range(3)]
    # int32 weights cannot overflow with three plugins; a larger number can only come from code
    huge = msgspec.structs.replace(PluginRef("P0"), weight=2**62 // 100)
    lists = Plugins(
        multi_point=PluginSet((*refs("Sort Binder"), huge, PluginRef("P1", 2**62 // 100), PluginRef("P2", 2)))
    )
    with pytest.raises(ConfigError, match="score plugins: total score of Score plugins could overflow"):
        build(ProfileConfig(scheduler_name="mine", plugins=lists), Registry.of(SORT, BINDER, *many))


# construction


class Broken:
    name = "Broken"

    def __init__(self, fault: Exception) -> None:
        raise fault

    @classmethod
    def factory(cls, args: Any, handle: Any) -> Any:
        assert handle is not None
        return cls(args)

    def filter(self, *_: Any) -> None: ...


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        pytest.param(BayplanError("say which rack"), 'initializing plugin "Broken": say which rack', id="mendable"),
        pytest.param(ValueError("3"), 'initializing plugin "Broken": ValueError: 3', id="bug"),
    ],
)
def test_a_plugin_that_cannot_be_built(fault: Exception, text: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        build(config("Sort Binder Broken", config_of={"Broken": fault}), REGISTRY.with_plugins(Broken))
    assert str(refusal.value) == text


def test_an_unlisted_plugin_is_not_built() -> None:
    profile = build(config("Sort Binder"), REGISTRY.with_plugins(Broken))
    assert set(profile.instances) == {"Sort", "Binder"}


def test_registered_events_are_completed_when_the_profile_is_built() -> None:
    waiting = plugin(
        "Waiting", "filter", events_to_register=(ClusterEventWithHint(EventResource.NODE, ActionType.ADD),)
    )
    profile = build(config("Sort Binder Waiting"), REGISTRY.with_plugins(waiting))
    assert profile.registered_events["Waiting"] == (
        ClusterEventWithHint(EventResource.NODE, ActionType.ADD),
        ClusterEventWithHint(EventResource.NODE, ActionType.UPDATE_NODE_TAINT),
    )
    assert profile.registered_events["Sort"] == ()
    wrong = plugin("Wrong", "filter", events_to_register=("Node",))
    with pytest.raises(ConfigError, match='plugin "Wrong": events_to_register holds'):
        build(config("Sort Binder Wrong"), REGISTRY.with_plugins(wrong))


def test_closing_a_profile_closes_its_plugins() -> None:
    closed: list[str] = []

    def close(self: Any) -> None:
        closed.append(self.name)

    holder = plugin("Holder", "filter", close=close)
    build(config("Sort Binder Holder"), REGISTRY.with_plugins(holder)).close()
    assert closed == ["Holder"]
