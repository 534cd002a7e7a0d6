"""How often is a request tried? Anew when somebody sets it back, and never more often than it says, whoever dies."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from bayplan.binder.live import LiveBinder
from bayplan.binder.plugin import RejectBind
from bayplan.binder.view import Key, View
from bayplan.binder.waiting import Waits
from bayplan.cache import Cache
from bayplan.clock import ManualClock
from bayplan.objects.bind_requests import BindRequest, BindRequestSpec, BindRequestStatus
from bayplan.objects.meta import ObjectMeta
from binder_rig import REQUESTS, BinderRig, Noting, on_rig

KEY: Key = ("default", "web")


def request_at(version: int, phase: str = "", attempts: int = 0) -> BindRequest:
    return BindRequest(
        metadata=ObjectMeta(name="web", namespace="default", uid="u", resource_version=str(version), generation=1),
        spec=BindRequestSpec(pod_name="web", selected_node="n1", backoff_limit=3),
        status=BindRequestStatus(phase, "", attempts),
    )


class Heard:
    """A binder that is told of a request, and does nothing about it; `added`: whether it wants to, each time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        nobody: Any = None
        self.view = View(nobody, Cache())
        self._live = LiveBinder(
            self.view, nobody, nobody, waits=Waits(self.view.is_there), clock=ManualClock(), chance=random.Random(0)
        )
        self._old: BindRequest | None = None
        self._added: list[Key] = []
        monkeypatch.setattr(self._live.requests, "add", self._added.append)

    def added(self, new: BindRequest) -> bool:
        self._added.clear()
        self._live.hear(self._old, new)
        self._old = new
        return self._added == [KEY]


@pytest.mark.parametrize(
    ("was", "now", "wanted"),
    [
        pytest.param(("Failed", 3), ("Pending", 0), True, id="given up"),
        pytest.param(("Failed", 3), ("", 0), True, id="as it was made"),
        pytest.param(("Failed", 3), ("Pending", 3), True, id="its attempts stay counted"),
        pytest.param(("Failed", 3), ("Failed", 0), True, id="its attempts alone"),
        pytest.param(("Failed", 1), ("Pending", 0), True, id="waiting for its next attempt"),
        pytest.param(("Succeeded", 0), ("Pending", 0), True, id="succeeded"),
        pytest.param(("Failed", 1), ("Failed", 2), False, id="a failure more"),
        pytest.param(("Failed", 1), ("Succeeded", 1), False, id="success"),
        pytest.param(("", 0), ("Pending", 0), False, id="said otherwise"),
    ],
)
def test_only_a_request_that_somebody_sets_back_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch, was: tuple[str, int], now: tuple[str, int], *, wanted: bool
) -> None:
    heard = Heard(monkeypatch)
    assert heard.added(request_at(1))
    assert not heard.added(request_at(2, *was))
    assert heard.added(request_at(3, *now)) == wanted


def test_what_the_watch_tells_later_than_our_own_write_sets_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch)
    assert heard.added(request_at(1))
    heard.view.note(request_at(3, "Failed", 3))
    assert not heard.added(request_at(2, "Pending", 1))
    assert not heard.added(request_at(3, "Failed", 3))


def test_a_request_that_was_given_up_and_is_set_back_is_carried_out(tmp_path: Path) -> None:
    plugin = Noting("moody", RejectBind("not yet"))

    async def test(rig: BinderRig) -> None:
        async with rig.at_work():
            await rig.request(await rig.pod())
            await rig.until_phase("Failed")
            await rig.patch(REQUESTS, "web", {"status": {"phase": "Pending", "failedAttempts": 0}}, sub="status")
            assert (await rig.until_phase("Succeeded"))["failedAttempts"] == 0

    on_rig(tmp_path, test, plugin)
    assert plugin.calls == ["moody pre_bind", "moody rollback 1", "moody pre_bind", "moody post_bind"]
