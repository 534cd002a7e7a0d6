"""Settings of the GPU reservation pods: the key `resourceReservation` of `--settings`.

The binder creates the pods, and the scheduler's GpuSharing needs their namespace. Names are those of KAI-Scheduler's
Config; an image is one string, as in a pod.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from bayplan.codec.quantity import parse_quantity
from bayplan.errors import ObjectError
from bayplan.objects.kai.gpu_sharing import GPU, RESERVATION_NAMESPACE
from bayplan.objects.name_validation import dns_label_problems, dns_subdomain_problems, label_value_problems

ResourceAmounts = dict[str, str | int | float]


class PodResources(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Further requests and limits of a reservation pod."""

    requests: ResourceAmounts = {}
    limits: ResourceAmounts = {}


class ReservationSettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """How the binder creates reservation pods."""

    namespace: str = RESERVATION_NAMESPACE
    """Their namespace. It contains no other pods: every pod in it with the label of a GPU group counts as one."""
    service_account_name: str = RESERVATION_NAMESPACE
    """Their service account. It exists, may get and patch pods in the namespace, and has the image's pull secrets."""
    app_label: str = RESERVATION_NAMESPACE
    """The value of their label `app`."""
    image: str = "ghcr.io/kai-scheduler/kai-scheduler/resourcereservation:v0.17.0"
    """The program that reports its device: KAI-Scheduler's image, a mirror of it, or a program of your own."""
    runtime_class_name: str = ""
    """The RuntimeClass that gives containers access to GPUs, such as nvidia. Empty: the node's default."""
    allocation_timeout: Annotated[float, Meta(gt=0, le=3600)] = 40
    """Seconds that the binder waits for a pod's report of its device, including the pull of the image."""
    scaling_pod_namespace: str = "kai-scale-adjust"
    """The namespace of KAI-Scheduler's node-scale-adjuster. While a pod in it is pending, nothing is reserved."""
    pod_resources: PodResources = PodResources()
    """Requests and limits beside the device, such as {requests: {cpu: 1m}}, where a quota requires them."""

    @property
    def timeout_s(self) -> float:
        return self.allocation_timeout

    def validate(self) -> Iterator[tuple[str, str]]:
        """The invalid keys, each with an error."""
        names = (
            ("namespace", self.namespace, dns_label_problems),
            ("serviceAccountName", self.service_account_name, dns_subdomain_problems),
            ("appLabel", self.app_label, label_value_problems),
            ("runtimeClassName", self.runtime_class_name, _check_optional_subdomain),
            ("scalingPodNamespace", self.scaling_pod_namespace, dns_label_problems),
        )
        for key, value, problems_of in names:
            yield from ((key, each) for each in problems_of(value))
        if not self.image or any(letter.isspace() for letter in self.image):
            yield "image", "an image must have a name without spaces"
        for kind, amounts in (("requests", self.pod_resources.requests), ("limits", self.pod_resources.limits)):
            yield from _validate_amounts(f"podResources.{kind}", amounts)


def _check_optional_subdomain(text: str) -> list[str]:
    return dns_subdomain_problems(text) if text else []


def _validate_amounts(place: str, amounts: Mapping[str, str | int | float]) -> Iterator[tuple[str, str]]:
    for name, amount in amounts.items():
        if name == GPU:
            yield f"{place}.{name}", "each reservation pod requests one device; remove this key"
            continue
        try:
            is_negative = parse_quantity(amount) < parse_quantity(0)
        except ObjectError as fault:
            yield f"{place}.{name}", str(fault)
        else:
            if is_negative:
                yield f"{place}.{name}", "an amount must not be negative"
