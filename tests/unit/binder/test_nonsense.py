"""Classes that look like plugins of the binder, and would do less than their authors think: each is refused."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.app.binding import BinderSettings
from bayplan.binder.plugins import default_binder_plugins
from bayplan.errors import BayplanError


class Good:
    name = "mine"

    async def post_bind(self, ctx: Any, pod: Any, node: Any, bind_request: Any, state: Any) -> None:
        pass


def refusal(settings: dict[str, Any], **members: Any) -> str:
    """What is said of a good plugin that has these besides, when a configuration with it is read."""
    plugin = type("Mine", (Good,), members)
    with pytest.raises(BayplanError) as told:
        BinderSettings.read(settings, "s.yaml", default_binder_plugins().with_plugins(plugin))
    return str(told.value)


@pytest.mark.parametrize("made", [None, "mine", object], ids=["nothing", "a text", "a class of another name"])
def test_a_factory_that_makes_no_such_plugin_is_told(made: Any) -> None:
    told = refusal({}, factory=classmethod(lambda *_: made))
    assert told == (
        f'binder plugin "mine" cannot be made: its factory returned {made!r}, which is no plugin called "mine"'
    )
