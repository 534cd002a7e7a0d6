"""Names of the images of a pod, as nodes report them.

Used by ImageLocality for the incoming pod. Nodes list images with a tag; manifests often omit it.
"""

from __future__ import annotations

from bayplan.objects.core import Pod


def normalized_image_name(name: str) -> str:
    """The name with `:latest` added unless a tag follows the last slash. A digest's colon counts as a tag's."""
    return name if name.rfind(":") > name.rfind("/") else f"{name}:latest"


def pod_images(pod: Pod) -> tuple[str, ...]:
    """Normalised names in order: init containers, containers, image volumes. Repeated images are repeated."""
    spec = pod.spec
    names = [container.image for container in (*spec.init_containers, *spec.containers)]
    names += [volume.image.reference for volume in spec.volumes if volume.image is not None]
    return tuple(normalized_image_name(name) for name in names)


def container_count(pod: Pod) -> int:
    """The number of containers for ImageLocality's upper threshold; image volumes do not count."""
    return len(pod.spec.init_containers) + len(pod.spec.containers)
