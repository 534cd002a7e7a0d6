"""Volume decisions: assumptions, writes and completion."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.objects.core import Node
from bayplan.objects.meta import ObjectMeta
from bayplan.objects.storage import ClaimReference, PersistentVolume
from bayplan.snapshot import Catalog
from bayplan.volumes.assumptions import VolumeAssumptions
from bayplan.volumes.binding import PodVolumes, StaticVolumeBinding
from bayplan.volumes.claims import SELECTED_NODE
from bayplan.volumes.errors import VolumeError
from bayplan.volumes.volume_intents import (
    BOUND_BY_CONTROLLER,
    SetSelectedNode,
    SetVolumeClaimRef,
    assume_pod_volumes,
    bindings_complete,
    pod_deleted_error,
    revert_assumed_pod_volumes,
    with_claim_ref,
)
from support.builders.volumes import ZONE, at_version, catalog, claim_reference, make_claim, make_volume, volume_pod

CLAIM = make_claim("mine", version="5")
OTHER = make_claim("other", version="6")
VOLUME = make_volume("pv", version="7")
INFO = PodVolumes((StaticVolumeBinding(CLAIM, VOLUME),), (OTHER,))
REF = ClaimReference("PersistentVolumeClaim", "default", "mine", "uid-default-mine", "v1", "5")


@pytest.mark.parametrize(
    ("volume", "ref", "annotated"),
    [
        pytest.param(VOLUME, REF, True, id="free"),
        pytest.param(make_volume(claim=claim_reference(CLAIM, uid="")), REF, False, id="promised by a person, by name"),
        pytest.param(
            make_volume(claim=claim_reference(CLAIM)), claim_reference(CLAIM), False, id="promised altogether"
        ),
        pytest.param(make_volume(annotations={BOUND_BY_CONTROLLER: "x"}), REF, True, id="annotated before"),
    ],
)
def test_with_claim_ref(volume: PersistentVolume, ref: ClaimReference, annotated: bool) -> None:
    bound = with_claim_ref(volume, CLAIM)
    assert bound.spec.claim_ref == ref
    assert (BOUND_BY_CONTROLLER in bound.metadata.annotations) is annotated
    assert bound.metadata.resource_version == volume.metadata.resource_version


def test_a_reserved_volume_is_not_changed() -> None:
    volume = make_volume(claim=claim_reference(CLAIM))
    assert with_claim_ref(volume, CLAIM) is volume


def test_assume_and_revert() -> None:
    assumptions = VolumeAssumptions(catalog(CLAIM, OTHER, VOLUME))
    assumed = assume_pod_volumes(INFO, "n1", assumptions)
    volume = assumptions.volumes.get("pv")
    claim = assumptions.claims.get("default/other")
    assert volume is assumed.bindings[0].volume
    assert claim is assumed.provisions[0]
    assert claim is not None
    assert claim.metadata.annotations == {SELECTED_NODE: "n1"}
    revert_assumed_pod_volumes(assumed, assumptions)
    assert assumptions.volumes.get("pv") is VOLUME
    assert assumptions.claims.get("default/other") is OTHER


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param([CLAIM, OTHER], id="volume gone"),
        pytest.param([CLAIM, VOLUME, at_version(OTHER, "9")], id="claim changed"),
    ],
)
def test_nothing_stays_assumed_if_one_object_has_changed(stored: list[Any]) -> None:
    assumptions = VolumeAssumptions(catalog(*stored))
    with pytest.raises(VolumeError):
        assume_pod_volumes(INFO, "n1", assumptions)
    assert (len(assumptions.volumes), len(assumptions.claims)) == (0, 0)


def test_writes_carry_the_version_they_were_decided_on() -> None:
    assumptions = VolumeAssumptions(catalog(CLAIM, OTHER, VOLUME))
    assumed = assume_pod_volumes(INFO, "n1", assumptions)
    assert SetVolumeClaimRef(assumed.bindings[0].volume).patch() == {
        "metadata": {"resourceVersion": "7", "annotations": {BOUND_BY_CONTROLLER: "yes"}},
        "spec": {
            "claimRef": {
                "kind": "PersistentVolumeClaim",
                "namespace": "default",
                "name": "mine",
                "uid": "uid-default-mine",
                "apiVersion": "v1",
                "resourceVersion": "5",
            }
        },
    }
    assert SetSelectedNode(assumed.provisions[0]).patch() == {
        "metadata": {"resourceVersion": "6", "annotations": {SELECTED_NODE: "n1"}}
    }


# Waiting.

NODE = Node(ObjectMeta(name="n1", labels={ZONE: "a"}))
WRITTEN_VOLUME = at_version(with_claim_ref(VOLUME, CLAIM), "20")
WRITTEN_CLAIM = make_claim("other", version="21", annotations={SELECTED_NODE: "n1"})
WRITTEN = PodVolumes((StaticVolumeBinding(CLAIM, WRITTEN_VOLUME),), (WRITTEN_CLAIM,))
BOUND_CLAIM = make_claim("mine", version="22", volume="pv")
BOUND_OTHER = make_claim("other", version="23", volume="made", annotations={SELECTED_NODE: "n1"})
MADE = make_volume("made", version="24", near={ZONE: ["a"]})
DONE = {item.key: item for item in (WRITTEN_VOLUME, BOUND_CLAIM, BOUND_OTHER, MADE)}


def complete(*changes: Any, without: str = "", node: Node | None = NODE) -> bool:
    objects = {**DONE, **{item.key: item for item in changes}}
    objects.pop(without, None)
    return bindings_complete(WRITTEN, "n1", node, None, VolumeAssumptions(Catalog(objects.values())))


def test_done_when_everything_is_bound() -> None:
    assert complete()


@pytest.mark.parametrize(
    ("changes", "without"),
    [
        pytest.param([VOLUME], "", id="our write of the volume is not back"),
        pytest.param([at_version(BOUND_OTHER, "20")], "", id="our write of the claim is not back"),
        pytest.param([make_claim("mine", version="22")], "", id="claim not bound"),
        pytest.param([make_claim("mine", version="22", volume="pv", bound=False)], "", id="claim half bound"),
        pytest.param([WRITTEN_CLAIM], "", id="nothing made yet"),
        pytest.param([], "made", id="the new volume is not seen yet"),
    ],
)
def test_incomplete_bindings(changes: list[Any], without: str) -> None:
    assert complete(*changes, without=without) is False


@pytest.mark.parametrize(
    ("changes", "without", "node", "fault"),
    [
        pytest.param([], "", None, 'failed to get node "n1": node "n1" not found', id="no node"),
        pytest.param([], "pv", NODE, 'failed to check binding: persistentvolumes "pv" not found', id="no volume"),
        pytest.param(
            [],
            "default/mine",
            NODE,
            'failed to check binding: persistentvolumeclaims "default/mine" not found',
            id="no claim",
        ),
        pytest.param(
            [],
            "default/other",
            NODE,
            'failed to check provisioning pvc: persistentvolumeclaims "default/other" not found',
            id="no claim to make a volume for",
        ),
        pytest.param(
            [make_volume("pv", version="30")], "", NODE, 'ClaimRef got reset for pv "pv"', id="promise broken"
        ),
        pytest.param(
            [make_claim("mine", version="30", volume="elsewhere")],
            "",
            NODE,
            'PVC "mine" got bound to pv "elsewhere", not to "pv"',
            id="claim got another volume",
        ),
        pytest.param(
            [make_volume("pv", version="30", claim=claim_reference(CLAIM), near={ZONE: ["b"]})],
            "",
            NODE,
            'pv "pv" node affinity doesn\'t match node "n1": no matching NodeSelectorTerms',
            id="volume out of reach",
        ),
        pytest.param(
            [make_claim("other", version="30")], "", NODE, 'selectedNode annotation reset for PVC "other"', id="reset"
        ),
        pytest.param(
            [make_claim("other", version="30", annotations={"x": "y"})],
            "",
            NODE,
            'provisioning failed for PVC "other"',
            id="provisioner gave up",
        ),
        pytest.param(
            [make_claim("other", version="30", annotations={SELECTED_NODE: "n2"})],
            "",
            NODE,
            'provisioning failed for PVC "other"',
            id="another node",
        ),
        pytest.param(
            [make_volume("made", near={ZONE: ["b"]})],
            "",
            NODE,
            'pv "made" node affinity doesn\'t match node "n1": no matching NodeSelectorTerms',
            id="made out of reach",
        ),
    ],
)
def test_bindings_that_fail(changes: list[Any], without: str, node: Node | None, fault: str) -> None:
    with pytest.raises(VolumeError) as caught:
        complete(*changes, without=without, node=node)
    assert str(caught.value) == fault


def test_the_error_of_a_deleted_pod() -> None:
    assert str(pod_deleted_error(volume_pod(name="web"))) == 'pod does not exist any more: pod "web" not found'
