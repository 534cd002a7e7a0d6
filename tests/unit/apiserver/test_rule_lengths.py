"""Bounds of lengths and counts in the rules for objects: the last accepted and the first refused value."""

from __future__ import annotations

from typing import Any

import pytest

from support.builders.recorded_bounds import cases, faults

DEVICE = "gpu.example.com/"
EXACTLY = {"name": "r", "exactly": {"deviceClassName": "gpu"}}
SELECTOR = {"cel": {"expression": "true"}}
IGNORE = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
CONDITION = {"name": "c", "expression": "true"}


def labelled(count: int) -> str:
    """A name of so many characters."""
    return "a" * count


def dotted(count: int) -> str:
    """A DNS subdomain of so many characters."""
    return ".".join(["a" * 49] * 5 + ["a" * (count - 250)])


def some(count: int, item: Any) -> list[Any]:
    """So many copies; texts and names get a number."""
    if isinstance(item, str):
        return [item.format(number) for number in range(count)]
    return [{**item, "name": f"{item['name']}-{number}"} if "name" in item else item for number in range(count)]


BOUNDS: dict[str, list[Any]] = {
    "ConfigMap/settings": [
        ("data", {labelled(253): ""}, {labelled(254): ""}, "must be no more than 253", f"data[{labelled(254)}]"),
        (
            "data",
            {"a": "v" * (1024 * 1024 - 5)},
            {"a": "v" * (1024 * 1024 - 4)},
            "may not be more than 1048576 bytes",
            "[]",
        ),
    ],
    "Pod/rich": [
        ("spec.hostname", labelled(63), labelled(64), "must be no more than 63"),
        ("spec.containers.0.ports.0.name", labelled(15), labelled(16), "must be no more than 15"),
        ("spec.hostnameOverride", labelled(63), dotted(254), "may not be more than 64 bytes"),
        ("spec.volumes.8.csi.driver", labelled(63), labelled(64), "may not be more than 63 bytes"),
        (
            "spec.dnsConfig.nameservers",
            some(3, "10.0.0.{}"),
            some(4, "10.0.0.{}"),
            "must not have more than 3 nameservers",
        ),
        ("spec.dnsConfig.searches", some(32, "s{}"), some(33, "s{}"), "must not have more than 32 search paths"),
    ],
    "CronJob/nightly": [
        ("metadata.name", labelled(52), labelled(53), "must be no more than 52 characters"),
    ],
    "Job/rich": [
        ("spec.managedBy", f"a.io/{labelled(58)}", f"a.io/{labelled(59)}", "may not be more than 63 bytes"),
        ("spec.podFailurePolicy.rules", some(20, IGNORE), some(21, IGNORE), "must have at most 20 items"),
        (
            "spec.podFailurePolicy.rules.0.onExitCodes.values",
            list(range(1, 256)),
            list(range(1, 257)),
            "must have at most 255 items",
        ),
    ],
    "IngressClass/nginx": [
        ("spec.controller", f"a.io/{labelled(245)}", f"a.io/{labelled(246)}", "may not be more than 250 bytes"),
    ],
    "Event/newer": [
        ("reportingInstance", labelled(128), labelled(129), "can have at most 128 characters"),
        ("action", labelled(128), labelled(129), "can have at most 128 characters"),
        ("reason", labelled(128), labelled(129), "can have at most 128 characters"),
        ("note", labelled(1024), labelled(1025), "can have at most 1024 characters", "message"),
    ],
    "ResourceClaim/shared": [
        (
            "spec.devices.constraints.0.matchAttribute",
            DEVICE + labelled(32),
            DEVICE + labelled(33),
            "may not be more than 32 bytes",
        ),
        (
            "spec.devices",
            {"requests": some(32, EXACTLY)},
            {"requests": some(33, EXACTLY)},
            "must have at most 32 items",
            "spec.devices.requests",
        ),
        ("spec.devices.requests.0.exactly.selectors", [SELECTOR] * 32, [SELECTOR] * 33, "must have at most 32 items"),
    ],
    "ResourceSlice/slice": [
        (
            "spec.devices.0.attributes.model.string",
            labelled(64),
            labelled(65),
            "may not be more than 64 bytes",
            "spec.devices[0].attributes[model].string",
        ),
        ("spec.pool.name", dotted(253), dotted(254), "may not be more than 253 bytes"),
        ("spec.devices", some(128, {"name": "d"}), some(129, {"name": "d"}), "must have at most 128 items"),
        (
            "spec.devices.0.attributes",
            {key: {"bool": True} for key in some(31, "a{}")},
            {key: {"bool": True} for key in some(32, "a{}")},
            "the total number of attributes and capacities must not exceed 32",
            "spec.devices[0]",
        ),
    ],
    "StorageClass/fast": [
        (
            "parameters",
            dict.fromkeys(some(512, "p{}"), ""),
            dict.fromkeys(some(513, "p{}"), ""),
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
        ),
    ],
    "MutatingWebhookConfiguration/changing": [
        ("webhooks.0.matchConditions", some(64, CONDITION), some(65, CONDITION), "must have at most 64 items"),
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


@pytest.mark.parametrize(("name", "path", "accepted", "refused", "words", "field"), cases(BOUNDS))
def test_the_last_accepted_and_the_first_refused_value(
    name: str, path: str, accepted: Any, refused: Any, words: str, field: str
) -> None:
    assert faults(name, path, accepted) == []
    found = faults(name, path, refused)
    assert any(each == field and words in message for each, message in found), found
