from __future__ import annotations

import pytest

from bayplan.objects.core import Container, Pod, PodSpec
from bayplan.objects.images import container_count, normalized_image_name, pod_images
from bayplan.objects.volumes import ImageVolume, Volume


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nginx", "nginx:latest"),
        ("nginx:1.25", "nginx:1.25"),
        ("reg.io:5000/nginx", "reg.io:5000/nginx:latest"),
        ("reg.io:5000/nginx:1", "reg.io:5000/nginx:1"),
        ("reg.io/nginx@sha256:abc", "reg.io/nginx@sha256:abc"),
        ("", ":latest"),
    ],
)
def test_names(name: str, expected: str) -> None:
    assert normalized_image_name(name) == expected


def test_images_of_a_pod() -> None:
    pod = Pod(
        spec=PodSpec(
            containers=(Container(image="web"), Container(image="web")),
            init_containers=(Container(image="setup:1"),),
            volumes=(Volume(name="v"), Volume(name="m", image=ImageVolume(reference="model"))),
        )
    )
    assert pod_images(pod) == ("setup:1", "web:latest", "web:latest", "model:latest")
    assert container_count(pod) == 3
