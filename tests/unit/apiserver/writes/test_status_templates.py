"""Bindings of pods and first reports about them that are cast: the same in every byte as if each had been made."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayplan.apiserver.auth.credentials import ClusterCredentials
from bayplan.apiserver.embedded import credentials_for
from support.harness.create_template_twins import TemplateTwin

Tree = dict[str, Any]
Report = tuple[str, Tree]

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> ClusterCredentials:
    return credentials_for(tmp_path_factory.mktemp("credentials"), "127.0.0.1")


def body(tree: Tree) -> bytes:
    return json.dumps(tree).encode()


def written(now: datetime, delay_s: float = 0.0) -> str:
    return (now + timedelta(seconds=delay_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def running(uid: str, now: str, *, address: str, containers: int = 1, main: str = "main") -> Tree:
    """What a kubelet says of a pod that has started."""
    statuses = [
        {
            "name": f"{main}-{number}",
            "image": "example.com/a:1",
            "imageID": "",
            "containerID": f"fake://{uid}/{main}-{number}",
            "ready": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": now}},
        }
        for number in range(containers)
    ]
    conditions = [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in ("Initialized", "Ready")]
    status = {"phase": "Running", "startTime": now, "hostIP": "10.0.0.1", "hostIPs": [{"ip": "10.0.0.1"}]}
    status |= {"podIP": address, "podIPs": [{"ip": address}], "conditions": conditions}
    return {"metadata": {"uid": uid}, "status": {**status, "containerStatuses": statuses}}


class Twins:
    """A cluster that casts and one that does not, who are asked the same and answer the same."""

    def __init__(self, credentials: ClusterCredentials) -> None:
        self.cast, self.made = TemplateTwin(credentials), TemplateTwin(credentials, naive=True)

    @property
    def now(self) -> datetime:
        return self.made.clock.now()

    def wait(self, seconds: float) -> None:
        for world in (self.cast, self.made):
            world.clock.advance(max(seconds, 0.0))
            world.clock.set_back(max(-seconds, 0.0))

    def ask(self, method: str, path: str, tree: Tree) -> Tree:
        found = self.cast.ask(method, path, body(tree))
        assert found == self.made.ask(method, path, body(tree))
        answer: Tree = json.loads(found[2])
        return answer

    def bound(
        self,
        name: str,
        node: str,
        *,
        containers: int = 1,
        said: str = "",
        wait_s: float = 0.0,
        odd: Tree | None = None,
        main: str = "main",
    ) -> str:
        """A new pod with a node: its uid. `odd`: what is unusual about the binding."""
        listed = [{"name": f"{main}-{number}", "image": "example.com/a:1"} for number in range(containers)]
        made = {"metadata": {"name": name, "annotations": {"say": said}}, "spec": {"containers": listed}}
        uid: str = self.ask("POST", PODS, made).get("metadata", {}).get("uid", "")
        self.wait(wait_s)
        binding = {"metadata": {"name": name, "uid": uid}, "target": {"kind": "Node", "name": node}}
        self.ask("POST", f"{PODS}/{name}/binding", {**binding, **(odd or {})})
        return uid


UNPLACED = {"type": "PodScheduled", "status": "False", "lastTransitionTime": "2020-01-01T00:00:00Z"}
WAITS = st.sampled_from([0.0, 0.0, 0.0, 0.5, 1.0, 2.0])
ODD_BINDINGS: list[Tree] = [
    {},
    {},
    {},
    {"metadata": {}},
    {"metadata": {"name": "pod-0"}},
    {"metadata": {"name": "pod-0", "uid": "other"}},
    {"metadata": {"name": "pod-0", "annotations": {"a": "100%"}}},
    {"target": {"kind": "Service", "name": "n-0"}},
    {"target": {"name": ""}},
    {"target": {"name": "n-\u00e9"}},
    {"strange": 1},
]
ODD: list[Tree] = [
    {},
    {"reason": "2020-01-01T00:00:00Z"},
    {"startTime": "2020-01-01T01:00:00+01:00"},
    {"startTime": None},
    {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]},
    {"podIPs": [{"ip": "10.1.0.1"}, {"ip": "10.1.0.2"}]},
    {"podIP": "nowhere", "podIPs": [{"ip": "nowhere"}]},
    {"message": "100% %(uid)b"},
    {"qosClass": "Guaranteed"},
    {"phase": "Pending"},
    {"strange": 1},
    {"conditions": [UNPLACED]},
]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_is_cast_is_what_would_have_been_made(credentials: ClusterCredentials, data: st.DataObject) -> None:
    twins = Twins(credentials)
    containers, said = data.draw(st.integers(1, 2)), data.draw(st.sampled_from(["", "%s", "2020-01-01T00:00:00Z"]))
    steady = data.draw(st.booleans())
    for number in range(data.draw(st.integers(1, 12))):
        name = data.draw(st.sampled_from([f"pod-{number}"] * 6 + ["pod-0", "main-0", f"n-{number % 2}"]))
        node = data.draw(st.sampled_from(["n-0", "n-1", "n-0", name]))
        waited = 0.0 if steady else data.draw(WAITS)
        odd = data.draw(st.sampled_from(ODD_BINDINGS)) if data.draw(st.integers(0, 5)) == 0 else {}
        if data.draw(st.integers(0, 9)) == 0:  # somebody said before that there is no place for it
            twins.ask("PATCH", f"{PODS}/pod-{number - 1}/status", {"status": {"conditions": [UNPLACED]}})
        uid = twins.bound(name, node, containers=containers, said=said, wait_s=waited, odd=odd)
        told = written(twins.now, 0.0 if steady else data.draw(st.sampled_from([0.0, 0.0, -1.0, 1.0])))
        twins.wait(0.0 if steady else data.draw(WAITS))
        report = running(uid, told, address=f"10.1.0.{number}", containers=containers)
        if data.draw(st.integers(0, 5)) == 0:
            report["status"] |= data.draw(st.sampled_from(ODD))
        if data.draw(st.integers(0, 9)) == 0:
            report["metadata"] = data.draw(st.sampled_from([{}, {"uid": "other"}, {"uid": uid, "labels": {"a": "b"}}]))
        for _ in range(data.draw(st.sampled_from([1, 1, 1, 2]))):
            twins.ask("PATCH", f"{PODS}/{name}/status", report)
    assert twins.cast.everything() == twins.made.everything()


def test_a_pod_that_waited_for_a_place_is_bound_as_others_are(credentials: ClusterCredentials) -> None:
    """Its condition has a time of its own, which the binding takes away."""
    twins = Twins(credentials)
    for number in range(8):
        name = f"pod-{number}"
        made = {"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": "example.com/a:1"}]}}
        uid = twins.ask("POST", PODS, made)["metadata"]["uid"]
        told = {**UNPLACED, "lastTransitionTime": written(twins.now)}
        twins.ask("PATCH", f"{PODS}/{name}/status", {"status": {"conditions": [told]}})
        twins.wait(1.0 + number % 2)
        binding = {"metadata": {"name": name, "uid": uid}, "target": {"kind": "Node", "name": "n"}}
        twins.ask("POST", f"{PODS}/{name}/binding", binding)
    assert twins.cast.everything() == twins.made.everything()
    assert twins.cast.states.counts == {"binding": 5}


@pytest.mark.parametrize("containers", [1, 2])
def test_of_a_hundred_states_of_one_moment_all_but_three_are_cast(
    credentials: ClusterCredentials, containers: int
) -> None:
    twins = Twins(credentials)
    for number in range(100):
        uid = twins.bound(f"pod-{number}", f"n-{number % 7}", containers=containers)
        report = running(uid, written(twins.now), address=f"10.1.0.{number + 2}", containers=containers)
        assert twins.ask("PATCH", f"{PODS}/pod-{number}/status", report)["status"]["phase"] == "Running"
        twins.wait(1.0)
    assert twins.cast.everything() == twins.made.everything()
    assert twins.cast.states.counts == {"binding": 97, "status": 97}


@pytest.mark.parametrize(
    ("bound_after_s", "told_after_s", "heard_after_s"),
    [
        pytest.param(1.0, 0.0, 0.0, id="bound-later"),
        pytest.param(0.0, 1.0, 0.0, id="told-later"),
        pytest.param(0.0, 0.0, 1.0, id="heard-later"),
        pytest.param(1.0, 1.0, 1.0, id="all-later"),
    ],
)
def test_times_that_differ_are_no_others_than_those_that_are_equal(
    credentials: ClusterCredentials, bound_after_s: float, told_after_s: float, heard_after_s: float
) -> None:
    """A mould that was made of times in one order is not used for another one."""
    twins = Twins(credentials)
    for number in range(10):
        late = number >= 5
        uid = twins.bound(f"pod-{number}", "n", wait_s=bound_after_s * late)
        twins.wait(told_after_s * late)
        report = running(uid, written(twins.now), address=f"10.1.0.{number + 2}")
        twins.wait(heard_after_s * late)
        twins.ask("PATCH", f"{PODS}/pod-{number}/status", report)
    assert twins.cast.everything() == twins.made.everything()
    assert twins.cast.states.counts["status"] == 4


def test_managers_stand_in_the_order_of_their_times_also_after_a_clock_was_set_back(
    credentials: ClusterCredentials,
) -> None:
    twins = Twins(credentials)
    orders = set()
    for number in range(10):
        uid = twins.bound(f"pod-{number}", "n")
        report = running(uid, written(twins.now), address=f"10.1.0.{number + 2}")
        twins.wait(1.0 if number < 5 else -1.0)
        answer = twins.ask("PATCH", f"{PODS}/pod-{number}/status", report)
        orders.add(tuple(each.get("subresource", "") for each in answer["metadata"]["managedFields"]))
    assert twins.cast.everything() == twins.made.everything()
    assert orders == {("", "status"), ("status", "")}
    assert twins.cast.states.counts["status"] == 4


def test_a_time_that_its_author_wrote_into_a_pod_stays_what_it_was(credentials: ClusterCredentials) -> None:
    twins = Twins(credentials)
    for number in range(6):
        uid = twins.bound(f"pod-{number}", "n", said=written(twins.now))
        report = running(uid, written(twins.now), address=f"10.1.0.{number + 2}")
        twins.ask("PATCH", f"{PODS}/pod-{number}/status", report)
        twins.wait(1.0 if number > 2 else 0.0)
    assert twins.cast.everything() == twins.made.everything()
    assert twins.cast.states.counts["status"] == 0


def test_a_pod_that_is_called_as_its_container_is_not_taken_for_another(credentials: ClusterCredentials) -> None:
    twins = Twins(credentials)
    for main in ("a", "a", "a", "b"):
        name = f"{main}-0"
        uid = twins.bound(name, "n", main=main)
        report = running(uid, written(twins.now), address="10.1.0.2", main=main)
        twins.ask("PATCH", f"{PODS}/{name}/status", report)
        twins.ask("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0", {})
    assert twins.cast.everything() == twins.made.everything()
    assert twins.cast.states.counts["status"] == 0
