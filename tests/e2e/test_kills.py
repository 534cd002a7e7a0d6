"""Our API server is killed at random moments: whatever it had acknowledged is there when it comes back."""

from __future__ import annotations

import random
import threading
import time
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from cluster.api import Api, Refused
from cluster.embedded import API_SERVER, Embedded

WRITERS, KILLS = 4, 3


class Writer(threading.Thread):
    """Writes one object after the other, and each again, and notes down what was answered."""

    def __init__(self, cluster: Embedded, number: int, turn: int) -> None:
        super().__init__()
        self._api = Api(cluster, "default")
        self._prefix = f"w{number}-{turn}"
        self.acknowledged: dict[str, tuple[str, int]] = {}
        self.gone: set[str] = set()

    def run(self) -> None:
        number = 0
        try:
            while True:
                number += 1
                name = f"{self._prefix}-{number}"
                self._note(self._api.create(lease(name, "first"))[0])
                self._note(self._api.patch("Lease", name, {"spec": {"holderIdentity": "second"}}))
                if number % 3 == 0:
                    del self.acknowledged[name]  # until it is answered, both would be right
                    self._api.delete("Lease", name)
                    self.gone.add(name)
        except (OSError, ValueError, HTTPException, Refused):
            return  # the server was killed: that is the point

    def _note(self, tree: dict[str, Any]) -> None:
        metadata = tree["metadata"]
        self.acknowledged[metadata["name"]] = (tree["spec"]["holderIdentity"], int(metadata["resourceVersion"]))


def lease(name: str, holder: str) -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": {"holderIdentity": holder},
    }


def test_nothing_that_was_acknowledged_is_lost(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    chance = random.Random(7)
    acknowledged: dict[str, tuple[str, int]] = {}
    gone: set[str] = set()
    with Embedded(tmp_path) as cluster:
        for turn in range(request.config.getoption("--kills") or KILLS):
            writers = [Writer(cluster, number, turn) for number in range(WRITERS)]
            for writer in writers:
                writer.start()
            time.sleep(chance.uniform(0.05, 1.0))
            cluster.end(API_SERVER, kill=True)
            for writer in writers:
                writer.join()
                acknowledged |= writer.acknowledged
                gone |= writer.gone
            cluster.start_api_server()
            _check(Api(cluster, "default"), acknowledged, gone)
    assert len(acknowledged) > WRITERS


def _check(api: Api, acknowledged: dict[str, tuple[str, int]], gone: set[str]) -> None:
    found = {each["metadata"]["name"]: each for each in api.list("Lease")}
    assert gone.isdisjoint(found)
    for name, (holder, version) in acknowledged.items():
        kept = found[name]
        # The last write of a killed writer may have been done and not been answered.
        assert kept["spec"]["holderIdentity"] in (holder, "second"), name
        assert int(kept["metadata"]["resourceVersion"]) >= version, name
    newest = api.create(lease(f"after-{len(acknowledged)}-{len(found)}", "check"))[0]
    highest = max((version for _, version in acknowledged.values()), default=0)
    assert int(newest["metadata"]["resourceVersion"]) > highest
