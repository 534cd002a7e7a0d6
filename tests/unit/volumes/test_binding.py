"""Volume decisions for one node."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.objects.storage import PersistentVolumeClaim
from bayplan.objects.volumes import AwsElasticBlockStore, AzureDisk
from bayplan.volumes.assumptions import VolumeAssumptions
from bayplan.volumes.binding import BIND_CONFLICT, NOT_ENOUGH_SPACE, PodVolumes, VolumeFinder
from bayplan.volumes.claims import SELECTED_NODE, classify_claims
from bayplan.volumes.errors import VolumeError
from support.builders.volumes import (
    HOST,
    ZONE,
    at_version,
    catalog,
    claim_reference,
    claim_volume,
    make_claim,
    make_class,
    make_driver,
    make_storage_capacity,
    make_volume,
    volume_pod,
)

NODE = {ZONE: "a", HOST: "n1"}
STATIC = make_class(provisioner="kubernetes.io/no-provisioner")


def make_finder(*objects: Any) -> VolumeFinder:
    lookup = catalog(*objects)
    assumptions = VolumeAssumptions(lookup)
    claims = [item for item in objects if isinstance(item, PersistentVolumeClaim)]
    pod = volume_pod(*(claim_volume(claim.name, f"v{number}") for number, claim in enumerate(claims)))
    return VolumeFinder(classify_claims(pod, assumptions.claims, lookup), assumptions, lookup)


def shown(info: PodVolumes) -> tuple[dict[str, str], list[str]]:
    return {item.claim.name: item.volume.name for item in info.bindings}, [claim.name for claim in info.provisions]


def test_small_claims_get_small_volumes_in_any_order() -> None:
    objects = [make_claim("large", size="2Gi"), make_claim("small", size="1Gi"), STATIC]
    objects += [make_volume("v1", size="1Gi"), make_volume("v2", size="2Gi")]
    reason, info = make_finder(*objects).find_pod_volumes("n1", NODE)
    assert (reason, shown(info)) == (None, ({"large": "v2", "small": "v1"}, []))


def test_a_volume_is_used_once() -> None:
    reason, _ = make_finder(make_claim("a"), make_claim("b"), make_volume(), STATIC).find_pod_volumes("n1", NODE)
    assert reason == BIND_CONFLICT


def test_missing_volumes_are_provisioned_if_possible() -> None:
    decider = make_finder(make_claim("a"), make_claim("b"), make_volume(), make_class())
    reason, info = decider.find_pod_volumes("n1", NODE)
    assert (reason, shown(info)) == (None, ({"a": "volume"}, ["b"]))


def test_a_selected_node_is_the_only_one_and_goes_straight_to_provisioning() -> None:
    claim = make_claim(annotations={SELECTED_NODE: "n1"})
    decider = make_finder(claim, make_volume(), make_class())
    assert decider.selected_nodes == {"n1"}
    assert decider.only_delayed_claims is None
    assert decider.find_pod_volumes("n2", NODE) == (BIND_CONFLICT, PodVolumes())
    reason, info = decider.find_pod_volumes("n1", NODE)
    assert (reason, shown(info)) == (None, ({}, ["claim"]))


def test_two_selected_nodes_exclude_all_nodes() -> None:
    claims = [make_claim(name, annotations={SELECTED_NODE: name}) for name in ("n1", "n2")]
    decider = make_finder(*claims, make_class())
    assert [decider.find_pod_volumes(name, NODE)[0] for name in ("n1", "n2")] == [BIND_CONFLICT, BIND_CONFLICT]


def test_the_first_claim_that_cannot_be_provisioned_gives_the_reason() -> None:
    selected = make_claim("big", size="9Gi", annotations={SELECTED_NODE: "n1"})
    waiting = make_claim("static", storage_class="static")
    classes = (make_class(), make_class("static", provisioner="kubernetes.io/no-provisioner"))
    decider = make_finder(waiting, selected, *classes, make_driver(), make_storage_capacity(capacity="1Gi"))
    assert decider.find_pod_volumes("n1", NODE)[0] == NOT_ENOUGH_SPACE


def test_a_claim_named_twice_does_not_get_its_reserved_volume_twice() -> None:
    claim = make_claim()
    lookup = catalog(claim, STATIC, make_volume("mine", claim=claim_reference(claim)), make_volume("free"))
    assumptions = VolumeAssumptions(lookup)
    pod = volume_pod(claim_volume("claim", "v0"), claim_volume("claim", "v1"))
    decider = VolumeFinder(classify_claims(pod, assumptions.claims, lookup), assumptions, lookup)
    _, info = decider.find_pod_volumes("n1", NODE)
    assert [binding.volume.name for binding in info.bindings] == ["mine", "free"]


def test_assumed_volumes_are_no_longer_free() -> None:
    lookup = catalog(make_claim(), make_volume(), STATIC)
    assumptions = VolumeAssumptions(lookup)
    assumptions.volumes.assume(make_volume(claim=claim_reference(make_claim("other"))))
    decider = VolumeFinder(
        classify_claims(volume_pod(claim_volume("claim")), assumptions.claims, lookup), assumptions, lookup
    )
    assert decider.find_pod_volumes("n1", NODE)[0] == BIND_CONFLICT


def test_label_keys() -> None:
    decider = make_finder(
        make_claim("a"),
        make_volume(near={HOST: ["n1"]}),
        make_class(topologies=[{ZONE: ["a"]}]),
        make_driver(),
        make_storage_capacity(capacity="1Gi", near={"rack": "r"}),
    )
    assert decider.label_keys() == {HOST, ZONE, "rack"}
    assert decider.only_delayed_claims is not None


@pytest.mark.parametrize(
    ("migrated", "labels", "expected"),
    [
        pytest.param(frozenset(), {ZONE: "a"}, True, id="in-tree words"),
        pytest.param(frozenset({"kubernetes.io/aws-ebs"}), {ZONE: "a"}, False, id="migrated, but no driver label"),
        pytest.param(
            frozenset({"kubernetes.io/aws-ebs"}), {"topology.ebs.csi.aws.com/zone": "a"}, True, id="driver's words"
        ),
        pytest.param(frozenset({"kubernetes.io/gce-pd"}), {ZONE: "a"}, True, id="another plugin is migrated"),
    ],
)
def test_bound_in_tree_volumes(migrated: frozenset[str], labels: dict[str, str], expected: bool) -> None:
    volume = make_volume("pv", near={ZONE: ["a"]}, aws_elastic_block_store=AwsElasticBlockStore("vol-1"))
    (bound,) = make_finder(make_claim(volume="pv"), volume).bound
    assert bound.reachable(labels, migrated) is expected


def test_missing_or_invalid_bound_volumes() -> None:
    (missing,) = make_finder(make_claim(volume="pv")).bound
    assert missing.missing
    assert not missing.reachable(NODE, frozenset())
    disk = make_volume("pv", azure_disk=AzureDisk("d", "u", "Shared"))
    (broken,) = make_finder(make_claim(volume="pv"), disk).bound
    assert broken.reachable(NODE, frozenset())
    with pytest.raises(VolumeError, match=r"^could not translate pv: kind\(Shared\) is not supported"):
        broken.reachable(NODE, frozenset({"kubernetes.io/azure-disk"}))


def test_the_finder_uses_stored_volumes_of_a_newer_version() -> None:
    lookup = catalog(make_claim(), make_volume(), STATIC)
    assumptions = VolumeAssumptions(lookup)
    assumptions.volumes.assume(make_volume(claim=claim_reference(make_claim("other"))))
    lookup.upsert(at_version(make_volume(), "2"))
    decider = VolumeFinder(
        classify_claims(volume_pod(claim_volume("claim")), assumptions.claims, lookup), assumptions, lookup
    )
    assert decider.find_pod_volumes("n1", NODE)[0] is None
