"""Invalid binder plugins that would be ignored in part: each is refused."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.app.binder import BinderSettings
from bayplan.binder.plugins import default_binder_plugins
from bayplan.errors import BayplanError


class Good:
    name = "mine"

    async def post_bind(self, ctx: Any, pod: Any, node: Any, bind_request: Any, state: Any) -> None:
        pass


def refusal(settings: dict[str, Any], **members: Any) -> str:
    """The error of a valid plugin with these additional members, when its configuration is read."""
    plugin = type("Mine", (Good,), members)
    with pytest.raises(BayplanError) as refused:
        BinderSettings.from_tree(settings, "s.yaml", default_binder_plugins().with_plugins(plugin))
    return str(refused.value)


@pytest.mark.parametrize("built", [None, "mine", object], ids=["nothing", "a text", "a class of another name"])
def test_a_factory_that_returns_another_object_is_refused(built: Any) -> None:
    message = refusal({}, factory=classmethod(lambda *_: built))
    assert message == (
        f'binder plugin "mine" cannot be built: its factory returned {built!r}, which is no plugin called "mine"'
    )


async def leave(*_: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("members", "words"),
    [
        pytest.param({"prebind": leave}, "has prebind; is pre_bind meant?", id="a stage beside a good one"),
        pytest.param({"roll_back": leave}, "has roll_back; is rollback meant?", id="another stage"),
        pytest.param({"run_after": ("gpusharing",)}, "has run_after; is runs_after meant?", id="an attribute"),
        pytest.param(
            {"runs_after": "gpusharing"},
            'has runs_after = "gpusharing"; it takes several names, as in runs_after = ("gpusharing",)',
            id="a text for names",
        ),
        pytest.param(
            {"argument_names": ("limit",)},
            "names arguments and has no factory(arguments, handle) that takes them",
            id="arguments without a factory",
        ),
    ],
)
def test_members_that_would_be_ignored_are_refused(members: dict[str, Any], words: str) -> None:
    assert refusal({}, **members) == f'binder plugin "mine" {words}'


def test_arguments_need_a_factory_that_takes_them() -> None:
    given = {"mine": {"arguments": {"limit": 3}}}
    assert refusal(given) == 'binder plugin "mine" has no argument "limit"; known are: none'
    taken: list[Any] = []

    def factory(cls: type[Any], arguments: Any, _: Any) -> Any:
        taken.append(arguments)
        return cls()

    taking = type("Mine", (Good,), {"factory": classmethod(factory)})
    BinderSettings.from_tree(given, "s.yaml", default_binder_plugins().with_plugins(taking))
    assert taken == [{"limit": 3}]
