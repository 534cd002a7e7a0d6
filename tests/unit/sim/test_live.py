"""`read_cluster`: times of bindings, from events of both API groups."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from bayplan.client import Client
from bayplan.sim.recordings.cluster_reader import read_cluster

SECOND = datetime(2026, 3, 1, 12, tzinfo=UTC)
EXACT = SECOND.replace(microsecond=250_000)
NAMED = f"web.{int(EXACT.timestamp() * 1_000_000) * 1000:x}"


class EventServer:
    """A client of a server that has only one page of events."""

    def __init__(self, *events: Mapping[str, Any]) -> None:
        self._body = msgspec.json.encode({"items": events})
        self.transport = self

    async def discover(self, _: object) -> dict[object, object]:
        return {}

    async def request(self, _method: str, _path: str) -> SimpleNamespace:
        return SimpleNamespace(body=self._body)


def event(name: str, reason: str = "Scheduled", **times: datetime) -> dict[str, Any]:
    return {"metadata": {"name": name}, "reason": reason, "regarding": {"uid": "uid-web"}, **times}


@pytest.mark.parametrize(
    ("events", "at"),
    [
        pytest.param([event("web.1", eventTime=EXACT)], EXACT, id="event of events.k8s.io"),
        pytest.param([event(NAMED, deprecatedFirstTimestamp=SECOND)], EXACT, id="core event with the time in its name"),
        pytest.param([event("web.1", deprecatedFirstTimestamp=SECOND)], SECOND, id="the name has another time"),
        pytest.param([event("web.zz", deprecatedFirstTimestamp=SECOND)], SECOND, id="the name has no time"),
        pytest.param(
            [event("web." + "f" * 40, deprecatedFirstTimestamp=SECOND)], SECOND, id="the name has a huge time"
        ),
        pytest.param([event("web.1")], None, id="no time"),
        pytest.param([event("web.1", "Pulled", eventTime=EXACT)], None, id="another reason"),
        pytest.param([event("a.1", eventTime=EXACT), event("b.1", eventTime=SECOND)], EXACT, id="the later of two"),
    ],
)
def test_time_of_binding_from_events(events: list[dict[str, Any]], at: datetime | None) -> None:
    found = asyncio.run(read_cluster(cast("Client", EventServer(*events))))
    assert found.bound_at == ({} if at is None else {"uid-web": at})
