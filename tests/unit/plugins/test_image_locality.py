"""Images on nodes."""

from __future__ import annotations

import pytest

from bayplan.objects.core import Pod
from bayplan.objects.volumes import ImageVolume, Volume
from bayplan.plugins.image_locality import ImageLocality
from support.builders.framework import from_api, make_container, make_node, make_pod, run_score

MIB = 1024 * 1024


def of_images(*names: str) -> Pod:
    return make_pod(containers=tuple(make_container(f"c{number}", image=name) for number, name in enumerate(names)))


@pytest.mark.parametrize(
    ("image", "present", "expected"),
    [
        pytest.param("app:v1", {"app:v1": 1000 * MIB}, {"a": 48, "b": 0}, id="half of the nodes have it"),
        pytest.param("app", {"app:latest": 1000 * MIB}, {"a": 48, "b": 0}, id="latest is the default tag"),
        pytest.param("host:5000/app", {"host:5000/app:latest": 1000 * MIB}, {"a": 48, "b": 0}, id="a port is no tag"),
        pytest.param("app:v1", {"app:v2": 1000 * MIB}, {"a": 0, "b": 0}, id="another tag"),
        pytest.param("app:v1", {"app:v1": 46 * MIB}, {"a": 0, "b": 0}, id="no more than the threshold"),
        pytest.param("app:v1", {"app:v1": 9000 * MIB}, {"a": 100, "b": 0}, id="no more than 100"),
    ],
)
def test_one_image(image: str, present: dict[str, int], expected: dict[str, int]) -> None:
    assert run_score(ImageLocality, of_images(image), make_node("a", images=present), make_node("b")) == expected


def test_images_on_all_nodes_count_in_full() -> None:
    nodes = [make_node(name, images={"app:v1": 500 * MIB}) for name in "ab"]
    share = 100 * (500 - 23) // (1000 - 23)
    assert run_score(ImageLocality, of_images("app:v1"), *nodes) == {"a": share, "b": share}


def test_containers_of_both_kinds_and_repetitions_count() -> None:
    init = make_container("init", image="app:v1")
    pod = make_pod(containers=(make_container(image="app:v1"),), init_containers=(init,))
    share = 100 * (2 * 400 - 23) // (2 * 1000 - 23)
    assert run_score(ImageLocality, pod, make_node("a", images={"app:v1": 400 * MIB})) == {"a": share}


def test_image_volumes_add_bytes_but_not_room() -> None:
    volume = Volume(name="data", image=ImageVolume(reference="data:v1"))
    pod = make_pod(volumes=(volume,), image="app:v1")
    node = make_node("a", images={"app:v1": 100 * MIB, "data:v1": 400 * MIB})
    assert run_score(ImageLocality, pod, node) == {"a": 100 * (500 - 23) // (1000 - 23)}


def test_the_product_is_truncated_to_whole_bytes() -> None:
    size = 300 * MIB + 1
    nodes = [make_node("a", images={"x:1": size}), make_node("b", images={"x:1": size}), make_node("c")]
    scaled = int(size * (2 / 3))
    assert run_score(ImageLocality, of_images("x:1"), *nodes)["a"] == 100 * (scaled - 23 * MIB) // (977 * MIB)


def test_a_pod_without_containers_gets_0() -> None:
    assert run_score(ImageLocality, make_pod(containers=()), make_node("a")) == {"a": 0}


def test_it_never_rejects_and_registers_no_events() -> None:
    assert not hasattr(ImageLocality, "events_to_register")


def test_signatures() -> None:
    sign = ImageLocality().signature
    assert sign(of_images("a", "b")) == sign(of_images("b", "a:latest"))
    assert sign(of_images("a")) != sign(of_images("a", "a"))
    with_volume = from_api(Pod, {"spec": {"containers": [{"image": "a"}], "volumes": [{"image": {"reference": "b"}}]}})
    assert sign(of_images("a")) != sign(with_volume)
