"""Bounds of lengths and counts in validation: the last accepted and the first refused value."""

from __future__ import annotations

from typing import Any

import pytest

from support.builders.recorded_bounds import cases, faults

DEVICE = "gpu.example.com/"
EXACTLY = {"name": "r", "exactly": {"deviceClassName": "gpu"}}
SELECTOR = {"cel": {"expression": "true"}}
IGNORE = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
CONDITION = {"name": "c", "expression": "true"}


def label(count: int) -> str:
    """A name with this number of characters."""
    return "a" * count


def subdomain(count: int) -> str:
    """A DNS subdomain with this number of characters."""
    return ".".join(["a" * 49] * 5 + ["a" * (count - 250)])


def copies(count: int, item: Any) -> list[Any]:
    """This number of copies; texts and names get a number."""
    if isinstance(item, str):
        return [item.format(number) for number in range(count)]
    return [{**item, "name": f"{item['name']}-{number}"} if "name" in item else item for number in range(count)]


BOUNDS: dict[str, list[Any]] = {
    "ConfigMap/settings": [
        ("data", {label(253): ""}, {label(254): ""}, "must be no more than 253", f"data[{label(254)}]"),
        (
            "data",
            {"a": "v" * (1024 * 1024 - 5)},
            {"a": "v" * (1024 * 1024 - 4)},
            "may not be more than 1048576 bytes",
            "[]",
        ),
    ],
    "Pod/rich": [
        ("spec.hostname", label(63), label(64), "must be no more than 63"),
        ("spec.containers.0.ports.0.name", label(15), label(16), "must be no more than 15"),
        ("spec.hostnameOverride", label(63), subdomain(254), "may not be more than 64 bytes"),
        ("spec.volumes.8.csi.driver", label(63), label(64), "may not be more than 63 bytes"),
        (
            "spec.dnsConfig.nameservers",
            copies(3, "10.0.0.{}"),
            copies(4, "10.0.0.{}"),
            "must not have more than 3 nameservers",
        ),
        ("spec.dnsConfig.searches", copies(32, "s{}"), copies(33, "s{}"), "must not have more than 32 search paths"),
    ],
    "CronJob/nightly": [("metadata.name", label(52), label(53), "must be no more than 52 characters")],
    "Job/rich": [
        ("spec.managedBy", f"a.io/{label(58)}", f"a.io/{label(59)}", "may not be more than 63 bytes"),
        ("spec.podFailurePolicy.rules", copies(20, IGNORE), copies(21, IGNORE), "must have at most 20 items"),
        (
            "spec.podFailurePolicy.rules.0.onExitCodes.values",
            list(range(1, 256)),
            list(range(1, 257)),
            "must have at most 255 items",
        ),
    ],
    "IngressClass/nginx": [
        ("spec.controller", f"a.io/{label(245)}", f"a.io/{label(246)}", "may not be more than 250 bytes")
    ],
    "Event/newer": [
        ("reportingInstance", label(128), label(129), "can have at most 128 characters"),
        ("action", label(128), label(129), "can have at most 128 characters"),
        ("reason", label(128), label(129), "can have at most 128 characters"),
        ("note", label(1024), label(1025), "can have at most 1024 characters", "message"),
    ],
    "ResourceClaim/shared": [
        (
            "spec.devices.constraints.0.matchAttribute",
            DEVICE + label(32),
            DEVICE + label(33),
            "may not be more than 32 bytes",
        ),
        (
            "spec.devices",
            {"requests": copies(32, EXACTLY)},
            {"requests": copies(33, EXACTLY)},
            "must have at most 32 items",
            "spec.devices.requests",
        ),
        ("spec.devices.requests.0.exactly.selectors", [SELECTOR] * 32, [SELECTOR] * 33, "must have at most 32 items"),
    ],
    "ResourceSlice/slice": [
        (
            "spec.devices.0.attributes.model.string",
            label(64),
            label(65),
            "may not be more than 64 bytes",
            "spec.devices[0].attributes[model].string",
        ),
        ("spec.pool.name", subdomain(253), subdomain(254), "may not be more than 253 bytes"),
        ("spec.devices", copies(128, {"name": "d"}), copies(129, {"name": "d"}), "must have at most 128 items"),
        (
            "spec.devices.0.attributes",
            {key: {"bool": True} for key in copies(31, "a{}")},
            {key: {"bool": True} for key in copies(32, "a{}")},
            "the total number of attributes and capacities must not exceed 32",
            "spec.devices[0]",
        ),
    ],
    "StorageClass/fast": [
        (
            "parameters",
            dict.fromkeys(copies(512, "p{}"), ""),
            dict.fromkeys(copies(513, "p{}"), ""),
            "may not be more than 512 bytes",
        ),
        ("parameters", {"p": "v" * (256 * 1024 - 1)}, {"p": "v" * 256 * 1024}, "may not be more than 262144 bytes"),
    ],
    "Secret/db": [
        (
            "stringData",
            {"a": "v" * (1024 * 1024 - 5)},
            {"a": "v" * (1024 * 1024 - 4)},
            "may not be more than 1048576 bytes",
            "data",
        )
    ],
    "MutatingWebhookConfiguration/changing": [
        ("webhooks.0.matchConditions", copies(64, CONDITION), copies(65, CONDITION), "must have at most 64 items"),
        ("webhooks.0.name", "a.b.c", "a.b", "at least three segments"),
    ],
    "Node/n1": [
        (
            "spec.podCIDRs",
            ["10.244.0.0/24", "fd00::/64"],
            ["10.244.0.0/24", "fd00::/64", "10.245.0.0/24"],
            "no more than one CIDR for each IP family",
        ),
        (
            "spec.podCIDRs",
            ["10.244.0.0/24"],
            ["10.244.0.0/24", "10.245.0.0/24"],
            "no more than one CIDR for each IP family",
        ),
    ],
}


@pytest.mark.parametrize(("name", "path", "accepted", "refused", "text", "field"), cases(BOUNDS))
def test_the_last_accepted_and_the_first_refused_value(
    name: str, path: str, accepted: Any, refused: Any, text: str, field: str
) -> None:
    assert faults(name, path, accepted) == []
    found = faults(name, path, refused)
    assert any(each == field and text in message for each, message in found), found
