"""Services and who serves them: slices with the pods that are ready, under the ports that they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bayplan.controllers.endpoint_sums import MOST, slice_bodies
from bayplan.controllers.seen import PODS, SERVICES, SLICES, SeenPod, SeenPodStatus, Tree, Whole
from bayplan.objects.meta import ObjectMeta
from controlled import controlled
from wire_server import on_loop

ONLY = ("endpointslice-controller",)


def pod(name: str, *, port: int = 8080, **labels: str) -> Tree:
    container = {"name": "c", "image": "i", "ports": [{"name": "http", "containerPort": port}]}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [container]}}


def service(app: str, **port: Any) -> Tree:
    return {"metadata": {"name": app}, "spec": {"selector": {"app": app}, "ports": [{"port": 80, **port}]}}


@on_loop
async def test_a_service_has_the_pods_that_are_ready(tmp_path: Path) -> None:
    async with controlled(tmp_path, only=ONLY) as world:
        await world.make(SERVICES, service("web", targetPort="http", name="http"))
        for name in ("a", "b"):
            await world.make(PODS, pod(name, app="web"))
        await world.make(PODS, pod("other", app="db"))

        async def slices(ready: int) -> Tree | None:
            found = await world.list(SLICES, labels="kubernetes.io/service-name=web")
            serving = [e for each in found for e in each["endpoints"] or () if e["conditions"]["ready"]]
            return found[0] if len(serving) == ready and len(found) == 1 else None

        found = await world.until(lambda: slices(2))
        assert found["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]
        assert sorted(each["targetRef"]["name"] for each in found["endpoints"]) == ["a", "b"]
        assert found["metadata"]["ownerReferences"][0]["kind"] == "Service"
        await world.delete(PODS, "a")
        await world.until(lambda: slices(1))
        await world.delete(SLICES, found["metadata"]["name"])
        await world.until(lambda: slices(1))


def seen(number: int) -> SeenPod:
    return SeenPod(metadata=ObjectMeta(name=f"p{number:03}"), status=SeenPodStatus(phase="Running", pod_ip="10.0.0.1"))


def test_many_pods_make_several_slices_and_none_make_an_empty_one() -> None:
    found = Whole(metadata=ObjectMeta(name="web"), spec={"ports": [{"port": 80}]})
    bodies = slice_bodies(found, [seen(number) for number in range(2 * MOST + 1)], lambda _: None)
    assert [len(each["endpoints"]) for each in bodies] == [MOST, MOST, 1]
    assert slice_bodies(found, [], lambda _: None) == [{"addressType": "IPv4", "endpoints": [], "ports": []}]
