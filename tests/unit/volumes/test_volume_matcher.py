"""Volumes for a claim, and nodes on which one can be provisioned."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.objects.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from bayplan.objects.meta import LabelSelector, LabelSelectorRequirement
from bayplan.objects.storage import PersistentVolume, PersistentVolumeClaim, VolumeNodeAffinity
from bayplan.volumes.errors import VolumeError
from bayplan.volumes.volume_matcher import (
    CandidateVolumes,
    ProvisioningCheck,
    is_reserved_for,
    largest_volume,
    reachable,
)
from support.builders.volumes import (
    HOST,
    ZONE,
    affinity,
    catalog,
    claim_reference,
    make_claim,
    make_class,
    make_driver,
    make_storage_capacity,
    make_volume,
)

NODE = {ZONE: "a", HOST: "n1"}
CLAIM = make_claim()


def found(claim: PersistentVolumeClaim, *volumes: PersistentVolume, taken: tuple[str, ...] = ()) -> str | None:
    """The result of the first call and of a later one, which uses an index."""
    candidates = CandidateVolumes(claim, volumes)
    answers = {volume.name if (volume := candidates.find(NODE, taken)) else None for _ in range(3)}
    (answer,) = answers
    return answer


@pytest.mark.parametrize(
    ("volume", "fits"),
    [
        pytest.param({}, True, id="plain"),
        pytest.param({"size": "1023Mi"}, False, id="too small"),
        pytest.param({"size": "1073741824"}, True, id="the same size, spelled otherwise"),
        pytest.param({"size": None}, False, id="no size"),
        pytest.param({"volume_mode": "Block"}, False, id="block"),
        pytest.param({"volume_mode": "Filesystem"}, True, id="file system is the default"),
        pytest.param({"volume_attributes_class_name": "gold"}, False, id="other attributes"),
        pytest.param({"volume_attributes_class_name": ""}, True, id="no attributes"),
        pytest.param({"deleted": True}, False, id="going"),
        pytest.param({"phase": "Released"}, False, id="not available"),
        pytest.param({"modes": ("ReadOnlyMany",)}, False, id="other access"),
        pytest.param({"modes": ("ReadOnlyMany", "ReadWriteOnce")}, True, id="more access"),
        pytest.param({"near": {ZONE: ["a", "b"]}}, True, id="near"),
        pytest.param({"near": {ZONE: ["b"]}}, False, id="far"),
        pytest.param({"claim": claim_reference(make_claim("other"))}, False, id="promised to another"),
        pytest.param({"claim": claim_reference(CLAIM, uid="older")}, False, id="promised to a predecessor"),
        pytest.param({"claim": claim_reference(CLAIM)}, True, id="promised"),
        pytest.param({"claim": claim_reference(CLAIM, uid="")}, True, id="promised by name"),
        pytest.param(
            {"claim": claim_reference(CLAIM), "phase": "Bound", "modes": (), "labels": {}},
            True,
            id="promises win over access",
        ),
        pytest.param({"claim": claim_reference(CLAIM), "near": {ZONE: ["b"]}}, False, id="promised but far"),
        pytest.param({"claim": claim_reference(CLAIM), "size": "1"}, False, id="promised but too small"),
    ],
)
def test_one_volume(volume: dict[str, Any], fits: bool) -> None:
    assert found(CLAIM, make_volume(**volume)) == ("volume" if fits else None)


def test_a_claim_without_a_size_matches_any_volume() -> None:
    assert found(make_claim(size=None), make_volume(size=None)) == "volume"


def test_the_smallest_fitting_volume_is_used() -> None:
    volumes = [make_volume(f"v{size}", size=f"{size}Gi") for size in (5, 3, 9)]
    far = make_volume("far", size="2Gi", near={HOST: ["n2"]})
    assert found(make_claim(size="2Gi"), *volumes, far) == "v3"
    assert found(make_claim(size="2Gi"), *volumes, far, taken=("v3",)) == "v5"


def test_a_reserved_volume_excludes_other_volumes() -> None:
    claim = make_claim()
    free = make_volume("free")
    assert found(claim, free, make_volume("mine", size="9Gi", claim=claim_reference(claim))) == "mine"
    far = make_volume("mine", near={ZONE: ["b"]}, claim=claim_reference(claim))
    assert found(claim, free, far) is None
    assert found(claim, free, far, taken=("mine",)) == "free"


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        pytest.param(None, True, id="none"),
        pytest.param(LabelSelector(), True, id="empty selects all"),
        pytest.param(LabelSelector({"tier": "a"}), True, id="match"),
        pytest.param(LabelSelector({"tier": "b"}), False, id="no match"),
    ],
)
def test_selectors(selector: LabelSelector | None, fits: bool) -> None:
    volume = make_volume(labels={"tier": "a"})
    assert found(make_claim(selector=selector), volume) == ("volume" if fits else None)


def test_a_malformed_selector_is_an_error_even_without_volumes() -> None:
    selector = LabelSelector(match_expressions=(LabelSelectorRequirement("tier", "Like", ("a",)),))
    candidates = CandidateVolumes(make_claim(selector=selector), [])
    with pytest.raises(VolumeError) as caught:
        candidates.find(NODE)
    assert str(caught.value) == (
        'error creating internal label selector for claim: default/claim: "Like" is not a valid label selector operator'
    )


def test_a_reservation_matches_by_namespace_name_and_uid() -> None:
    claim = make_claim(uid="u")
    assert is_reserved_for(make_volume(claim=claim_reference(claim)), claim)
    assert not is_reserved_for(make_volume(), claim)
    assert not is_reserved_for(make_volume(claim=claim_reference(make_claim(namespace="ml", uid="u"))), claim)


@pytest.mark.parametrize(
    ("node_affinity", "expected"),
    [
        pytest.param(None, True, id="no affinity"),
        pytest.param(VolumeNodeAffinity(), True, id="empty affinity"),
        pytest.param(affinity(), False, id="no terms"),
        pytest.param(affinity({}), False, id="an empty term"),
        pytest.param(affinity({ZONE: ["b"]}, {HOST: ["n1"]}), True, id="any term"),
        pytest.param(affinity({ZONE: ["a"], HOST: ["n2"]}), False, id="all expressions"),
        pytest.param(affinity({ZONE: ["not a label!"]}, {HOST: ["n1"]}), True, id="a faulty term is passed over"),
        pytest.param(affinity({ZONE: ["not a label!", "a"]}), False, id="a faulty term matches nothing"),
    ],
)
def test_reachable(node_affinity: VolumeNodeAffinity | None, expected: bool) -> None:
    assert reachable(node_affinity, NODE) is expected


def test_field_requirements_are_ignored_but_must_be_valid() -> None:
    def by_field(operator: str) -> VolumeNodeAffinity:
        fields = (NodeSelectorRequirement("metadata.name", operator, ("elsewhere",)),)
        return VolumeNodeAffinity(NodeSelector((NodeSelectorTerm(match_fields=fields),)))

    assert reachable(by_field("In"), NODE)
    assert not reachable(by_field("Exists"), NODE)


# Provisioning.


def provisioning(claim: PersistentVolumeClaim, *objects: Any) -> ProvisioningCheck:
    return ProvisioningCheck(claim, "slow", catalog(*objects))


@pytest.mark.parametrize(
    ("storage_class", "expected"),
    [
        pytest.param(make_class(), True, id="anywhere"),
        pytest.param(make_class(provisioner=""), False, id="no provisioner"),
        pytest.param(make_class(provisioner="kubernetes.io/no-provisioner"), False, id="static only"),
        pytest.param(make_class(topologies=[{ZONE: ["b"]}, {ZONE: ["a"]}]), True, id="any topology"),
        pytest.param(make_class(topologies=[{ZONE: ["a"], HOST: ["n2"]}]), False, id="all of a topology"),
        pytest.param(make_class(topologies=[{}]), False, id="an empty topology allows nothing"),
        pytest.param(make_class("other"), False, id="no such class"),
    ],
)
def test_topology_of_provisioning(storage_class: Any, expected: bool) -> None:
    assert provisioning(CLAIM, storage_class).allowed(NODE) is expected


@pytest.mark.parametrize(
    ("claim", "objects", "expected"),
    [
        pytest.param(CLAIM, [], True, id="no driver object"),
        pytest.param(CLAIM, [make_driver(capacity=None)], True, id="not published"),
        pytest.param(CLAIM, [make_driver(capacity=False)], True, id="not tracked"),
        pytest.param(CLAIM, [make_driver()], False, id="no pool"),
        pytest.param(make_claim(size=None), [make_driver()], True, id="no size"),
        pytest.param(CLAIM, [make_driver(), make_storage_capacity(capacity="1Gi")], True, id="enough"),
        pytest.param(
            CLAIM, [make_driver(), make_storage_capacity(capacity="1Gi", largest="1Mi")], False, id="largest counts"
        ),
        pytest.param(
            CLAIM,
            [make_driver(), make_storage_capacity(capacity="1Mi", largest="1Gi")],
            True,
            id="largest alone counts",
        ),
        pytest.param(CLAIM, [make_driver(), make_storage_capacity()], False, id="says nothing"),
        pytest.param(
            CLAIM, [make_driver(), make_storage_capacity(capacity="9Gi", reachable=False)], False, id="for no node"
        ),
        pytest.param(
            CLAIM, [make_driver(), make_storage_capacity(capacity="9Gi", near={ZONE: "b"})], False, id="elsewhere"
        ),
        pytest.param(CLAIM, [make_driver(), make_storage_capacity(capacity="9Gi", near={ZONE: "a"})], True, id="near"),
        pytest.param(
            CLAIM, [make_driver(), make_storage_capacity(capacity="9Gi", storage_class="x")], False, id="other class"
        ),
        pytest.param(
            CLAIM,
            [make_driver(), make_storage_capacity("p", capacity="512Mi"), make_storage_capacity("q", capacity="512Mi")],
            False,
            id="no sum",
        ),
    ],
)
def test_capacity(claim: PersistentVolumeClaim, objects: list[Any], expected: bool) -> None:
    assert provisioning(claim, make_class(), *objects).has_room(NODE) is expected


def test_largest_volume() -> None:
    assert largest_volume(make_storage_capacity()) is None
    limit = largest_volume(make_storage_capacity(capacity="2Gi", largest="1Gi"))
    assert limit is not None
    assert limit.value() == 1 << 30
