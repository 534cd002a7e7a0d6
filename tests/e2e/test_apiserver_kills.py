"""The embedded API server is killed at random times: every acknowledged or visible write exists after the restart."""

from __future__ import annotations

import http.client
import json
import random
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from cluster.api import Api, Refused
from cluster.embedded import API_SERVER, Embedded
from cluster.run import ADMIN
from support.harness.deadlines import DEADLINE_S

WRITERS, KILLS = 4, 3
Tree = dict[str, Any]


@dataclass
class Seen:
    """The guaranteed state, as seen by one client of the API server."""

    states: dict[str, tuple[int, str]] = field(default_factory=dict)
    """The newest version of each object, and its content in it."""
    gone: set[str] = field(default_factory=set)
    """Objects whose deletion was acknowledged or visible."""
    version: int = 0
    """The highest resource version, of an object, a list or a bookmark."""

    def note(self, tree: Tree) -> None:
        metadata = tree["metadata"]
        version = int(metadata["resourceVersion"])
        self.version = max(self.version, version)
        if version >= self.states.get(metadata["name"], (0, ""))[0]:
            self.states[metadata["name"]] = (version, tree["spec"]["holderIdentity"])

    def note_gone(self, name: str) -> None:
        self.gone.add(name)
        self.states.pop(name, None)

    def add(self, other: Seen) -> None:
        self.version = max(self.version, other.version)
        self.gone |= other.gone
        for name, state in other.states.items():
            self.states[name] = max(state, self.states.get(name, state))


class Work:
    """Started writes of the writers, as keys for readers."""

    def __init__(self) -> None:
        self.names = ["none-yet"]
        self.deletions: set[str] = set()
        """Objects whose deletion was sent; its outcome may be unknown."""


class Client(threading.Thread):
    """Repeats a step until the server is killed."""

    def __init__(self, cluster: Embedded, work: Work, prefix: str = "") -> None:
        super().__init__()
        self.seen = Seen()
        self.refused: Refused | None = None
        self.prefix = prefix
        self.work = work
        self.api = Api(cluster, "default")

    def run(self) -> None:
        try:
            for number in range(1_000_000):
                self.turn(number)
        except (OSError, ValueError, HTTPException):
            return  # the server was killed, as intended
        except Refused as refused:
            self.refused = refused

    def turn(self, number: int) -> None:
        raise NotImplementedError


class Writer(Client):
    """Creates objects, changes each, deletes every third."""

    def turn(self, number: int) -> None:
        name = f"{self.prefix}-{number}"
        self.work.names.append(name)
        self.seen.note(self.api.create(lease(name, "first"))[0])
        self.seen.note(self.api.patch("Lease", name, {"spec": {"holderIdentity": "second"}}))
        if number % 3 == 0:
            self.work.deletions.add(name)
            self.api.delete("Lease", name)
            self.seen.note_gone(name)


class Getter(Client):
    """Reads the latest written object."""

    def turn(self, number: int) -> None:
        try:
            self.seen.note(self.api.get("Lease", self.work.names[-1 - number % min(WRITERS, len(self.work.names))]))
        except Refused as refused:
            if refused.code != 404:
                raise


class Lister(Client):
    def turn(self, number: int) -> None:
        del number
        found = self.api._ask("GET", self.api.path("Lease"))
        self.seen.version = max(self.seen.version, int(found["metadata"]["resourceVersion"]))
        for each in found["items"]:
            self.seen.note(each)


class Watcher(Client):
    def turn(self, number: int) -> None:
        del number
        for event in watched(self.api):
            if event["type"] == "DELETED":
                self.seen.note(event["object"])
                self.seen.note_gone(event["object"]["metadata"]["name"])
            else:
                self.seen.note(event["object"])
        raise OSError("the watch has ended")


def watched(api: Api) -> Iterator[Tree]:
    cluster = api.cluster
    host, _, port = cluster.url.removeprefix("https://").partition(":")
    trusted = ssl.create_default_context(cafile=str(cluster.ca_file))
    trusted.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
    connection = http.client.HTTPSConnection(host, int(port), context=trusted, timeout=DEADLINE_S)
    headers = {"Authorization": f"Bearer {cluster.tokens[ADMIN]}"}
    connection.request("GET", f"{api.path('Lease')}?watch=true", headers=headers)
    answer = connection.getresponse()
    while line := answer.readline():
        yield json.loads(line)


def lease(name: str, holder: str) -> Tree:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": {"holderIdentity": holder},
    }


@pytest.mark.parametrize("sync", ["full", "normal"])
def test_nothing_that_was_acknowledged_or_shown_is_lost(
    tmp_path: Path, request: pytest.FixtureRequest, sync: str
) -> None:
    chance = random.Random(7)
    seen, work = Seen(), Work()
    with Embedded(tmp_path, flags=[f"--data-sync={sync}"]) as cluster:
        for turn in range(request.config.getoption("--kills") or KILLS):
            clients: list[Client] = [Writer(cluster, work, f"w{number}-{turn}") for number in range(WRITERS)]
            clients += [kind(cluster, work) for kind in (Getter, Getter, Lister, Watcher)]
            for each in clients:
                each.start()
            time.sleep(chance.uniform(0.05, 1.0))  # the load runs meanwhile
            cluster.end(API_SERVER, kill=True)
            for each in clients:
                each.join()
                assert each.refused is None
                seen.add(each.seen)
            cluster.start_api_server()
            _check(Api(cluster, "default"), seen, work)
    assert len(seen.states) > WRITERS


def _check(api: Api, seen: Seen, work: Work) -> None:
    found = api._ask("GET", api.path("Lease"))
    kept = {each["metadata"]["name"]: each for each in found["items"]}
    assert seen.gone.isdisjoint(kept)
    for name in seen.gone:
        seen.states.pop(name, None)
    for name, (version, holder) in seen.states.items():
        if name not in kept and name in work.deletions:
            continue  # the last write of a killed writer may be stored without a response
        there = int(kept[name]["metadata"]["resourceVersion"])
        assert there >= version, name
        assert there > version or kept[name]["spec"]["holderIdentity"] == holder, name
    assert int(found["metadata"]["resourceVersion"]) >= seen.version
