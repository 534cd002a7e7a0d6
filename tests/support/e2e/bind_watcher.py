"""Watches bindings as they happen, to find errors that the final state no longer shows, such as a second node.

Reads the watches of pods and of bind requests from its start, and the notes that a plugin of the binder writes about
each attempt, because the binder may be killed before it reports one. It also plays the node: it sets the device
annotation of a new reservation pod, and ends a reservation pod that is deleted.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from cluster.api import Api, Refused, Tree
from cluster.run import ADMIN, Cluster
from support.e2e.batch_harness import BatchApi
from support.e2e.binder_invariants import max_attempts, pod_uid
from support.e2e.scheduler_process import node_name

RESERVATIONS = "kai-resource-reservation"
DEVICE = "run.ai/reserve_for_gpu_index"
_TIMEOUT_S = 60
RECORDING_PLUGIN = '''
import os, pathlib


class Attempts:
    """Notes each request whose pod is to be prepared, whatever becomes of the process after that."""

    name = "attempts"

    async def pre_bind(self, ctx, pod, node, bind_request, state):
        noted = os.open(pathlib.Path(__file__).with_suffix(".noted"), os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
        os.write(noted, f"{bind_request.metadata.uid} ".encode())
        os.close(noted)
'''


class WatchThread(threading.Thread):
    """Records all watch events of one kind in one namespace, in order, until `end`."""

    def __init__(self, cluster: Cluster, path: str, since: str, hear: Callable[[str, Tree], None]) -> None:
        super().__init__(daemon=True)
        self._cluster, self._path, self._since, self._hear = cluster, path, since, hear
        self._tls = ssl.create_default_context(cafile=str(cluster.ca_file))
        self._tls.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
        self._connection: http.client.HTTPSConnection | None = None
        self._over = False
        self.faults: list[str] = []

    def run(self) -> None:
        while not self._over and not self.faults:
            with suppress(OSError, http.client.HTTPException, ValueError, AttributeError):  # closed by either side
                self._listen()

    def _listen(self) -> None:
        host, _, port = self._cluster.url.removeprefix("https://").partition(":")
        wanted = {"watch": "1", "resourceVersion": self._since, "allowWatchBookmarks": "true"}
        self._connection = http.client.HTTPSConnection(host, int(port), context=self._tls, timeout=10 * _TIMEOUT_S)
        query = urlencode({**wanted, "timeoutSeconds": str(5 * _TIMEOUT_S)})
        self._connection.request(
            "GET", f"{self._path}?{query}", headers={"Authorization": f"Bearer {self._cluster.tokens[ADMIN]}"}
        )
        answer = self._connection.getresponse()
        while not self._over and (line := answer.readline()):
            told = json.loads(line)
            if told["type"] == "ERROR":
                self.faults.append(f"the watch of {self._path} missed something: {told['object']}")
                return
            self._since = told["object"]["metadata"]["resourceVersion"]
            if told["type"] != "BOOKMARK":
                self._hear(told["type"], told["object"])

    def end(self) -> None:
        self._over = True
        made = self._connection
        if made is not None and made.sock is not None:
            with suppress(OSError):
                made.sock.shutdown(socket.SHUT_RDWR)
        self.join(_TIMEOUT_S)


@dataclass
class SeenRequest:
    """One request, as it was created, and the highest attempt count that a binder reported."""

    tree: Tree
    made: int
    said: int = 0


@dataclass
class BindWatcher:
    """Watches one namespace, from `with` on."""

    cluster: Cluster
    namespace: str
    notes: Path | None = None  # the file to which NOTING writes attempts
    nodes: dict[str, dict[str, int]] = field(default_factory=dict)  # by uid of the pod: resource version of its binding
    requests: dict[str, SeenRequest] = field(default_factory=dict)  # by their own uid
    reserved: set[str] = field(default_factory=set)  # every reservation pod seen so far
    _faults: list[str] = field(default_factory=list)

    def __enter__(self) -> BindWatcher:
        mine, theirs = BatchApi(self.cluster, self.namespace), Api(self.cluster, RESERVATIONS)
        self._reservations = theirs
        self._watches = []
        for api, kind, hear in (
            (mine, "Pod", self._hear_pod),
            (mine, "BindRequest", self._hear_request),
            (theirs, "Pod", self._hear_reservation),
        ):
            found = api._ask("GET", api.path(kind))
            for each in found["items"]:
                hear("ADDED", each)
            watch = WatchThread(self.cluster, api.path(kind), found["metadata"]["resourceVersion"], hear)
            self._watches.append(watch)
            watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._watches:
            each.end()

    def has_seen(self, pods: dict[str, Tree]) -> bool:
        """Whether the watches have delivered the nodes of these pods, and their requests."""
        bound = {each["metadata"]["uid"]: node_name(each) for each in pods.values() if node_name(each)}
        asked = {pod_uid(each.tree) for each in [*self.requests.values()]}
        return all(uid in asked and node in self.nodes.get(uid, {}) for uid, node in bound.items())

    def faults(self) -> list[str]:
        """Errors during the run, whatever the final state is."""
        found = [*self._faults, *(fault for each in self._watches for fault in each.faults)]
        for uid, nodes in self.nodes.items():
            if len(nodes) > 1:
                found.append(f"pod {uid} was on {sorted(nodes)}, one after the other")
            for node, version in nodes.items():
                asked = [each for each in self.requests.values() if pod_uid(each.tree) == uid and each.made < version]
                wanted = max(asked, key=lambda each: each.made).tree["spec"]["selectedNode"] if asked else "nobody"
                if node != wanted:
                    found.append(f"pod {uid} came to {node}; the request of that time said {wanted}")
        tried = self.tried()
        for uid, each in self.requests.items():
            name, most = each.tree["metadata"]["name"], max_attempts(each.tree)
            if tried[uid] > most or each.said > most:
                found.append(f"request {name} was tried {tried[uid]} times, of {most}, and speaks of {each.said}")
        return found

    def tried(self) -> Counter[str]:
        """By the uid of the request: how often plugins ran PreBind for its pod."""
        if self.notes is None or not self.notes.exists():
            return Counter()
        return Counter(self.notes.read_text().split())

    # watch events

    def _hear_pod(self, _: str, pod: Tree) -> None:
        if node := node_name(pod):
            version = int(pod["metadata"]["resourceVersion"])
            self.nodes.setdefault(pod["metadata"]["uid"], {}).setdefault(node, version)

    def _hear_request(self, _: str, request: Tree) -> None:
        meta = request["metadata"]
        known = self.requests.setdefault(meta["uid"], SeenRequest(request, int(meta["resourceVersion"])))
        known.said = max(known.said, request.get("status", {}).get("failedAttempts", 0))
        before, now = (each["metadata"].get("annotations", {}) for each in (known.tree, request))
        if (known.tree["spec"], before) != (request["spec"], now):
            self._faults.append(f"request {meta['name']} was changed after it was made")

    def _hear_reservation(self, kind: str, pod: Tree) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        self.reserved.add(uid)
        with suppress(Refused):  # already deleted, or another pod has its name
            if kind == "DELETED":
                return
            if "deletionTimestamp" in pod["metadata"]:
                self._reservations._ask(
                    "DELETE",
                    self._reservations.path("Pod", name),
                    {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}},
                )
            elif DEVICE not in pod["metadata"].get("annotations", {}):
                told = {"metadata": {"uid": uid, "annotations": {DEVICE: f"GPU-{uid[:8]}"}}}
                self._reservations.patch("Pod", name, told)
