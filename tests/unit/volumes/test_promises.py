"""From a decision to what is assumed, written and waited for."""

from __future__ import annotations

from typing import Any

import pytest

from bayplan.objects.core import Node
from bayplan.objects.meta import ObjectMeta
from bayplan.objects.storage import ClaimReference, PersistentVolume
from bayplan.snapshot import Catalog
from bayplan.volumes.assumptions import VolumeAssumptions
from bayplan.volumes.binding import BindingInfo, StaticBinding
from bayplan.volumes.claims import SELECTED_NODE
from bayplan.volumes.faults import VolumeError
from bayplan.volumes.promises import (
    BOUND_BY_CONTROLLER,
    PromiseVolume,
    SelectNode,
    assume,
    bindings_complete,
    pod_gone,
    promised_to,
    revert,
)
from volume_builders import ZONE, at_version, catalog, make_claim, make_volume, promise, volume_pod

CLAIM = make_claim("mine", version="5")
OTHER = make_claim("other", version="6")
VOLUME = make_volume("pv", version="7")
INFO = BindingInfo((StaticBinding(CLAIM, VOLUME),), (OTHER,))
REF = ClaimReference("PersistentVolumeClaim", "default", "mine", "uid-default-mine", "v1", "5")


@pytest.mark.parametrize(
    ("volume", "ref", "annotated"),
    [
        pytest.param(VOLUME, REF, True, id="free"),
        pytest.param(make_volume(claim=promise(CLAIM, uid="")), REF, False, id="promised by a person, by name"),
        pytest.param(make_volume(claim=promise(CLAIM)), promise(CLAIM), False, id="promised altogether"),
        pytest.param(make_volume(annotations={BOUND_BY_CONTROLLER: "x"}), REF, True, id="annotated before"),
    ],
)
def test_a_promise(volume: PersistentVolume, ref: ClaimReference, annotated: bool) -> None:
    bound = promised_to(volume, CLAIM)
    assert bound.spec.claim_ref == ref
    assert (BOUND_BY_CONTROLLER in bound.metadata.annotations) is annotated
    assert bound.metadata.resource_version == volume.metadata.resource_version


def test_what_is_promised_already_is_not_touched() -> None:
    volume = make_volume(claim=promise(CLAIM))
    assert promised_to(volume, CLAIM) is volume


def test_assume_and_revert() -> None:
    assumptions = VolumeAssumptions(catalog(CLAIM, OTHER, VOLUME))
    assumed = assume(INFO, "n1", assumptions)
    volume = assumptions.volumes.get("pv")
    claim = assumptions.claims.get("default/other")
    assert volume is assumed.bindings[0].volume
    assert claim is assumed.provisions[0]
    assert claim is not None
    assert claim.metadata.annotations == {SELECTED_NODE: "n1"}
    revert(assumed, assumptions)
    assert assumptions.volumes.get("pv") is VOLUME
    assert assumptions.claims.get("default/other") is OTHER


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param([CLAIM, OTHER], id="volume gone"),
        pytest.param([CLAIM, VOLUME, at_version(OTHER, "9")], id="claim changed"),
    ],
)
def test_nothing_stays_assumed_when_one_thing_has_changed(stored: list[Any]) -> None:
    assumptions = VolumeAssumptions(catalog(*stored))
    with pytest.raises(VolumeError):
        assume(INFO, "n1", assumptions)
    assert (len(assumptions.volumes), len(assumptions.claims)) == (0, 0)


def test_writes_carry_the_version_they_were_decided_on() -> None:
    assumptions = VolumeAssumptions(catalog(CLAIM, OTHER, VOLUME))
    assumed = assume(INFO, "n1", assumptions)
    assert PromiseVolume(assumed.bindings[0].volume).patch() == {
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
    assert SelectNode(assumed.provisions[0]).patch() == {
        "metadata": {"resourceVersion": "6", "annotations": {SELECTED_NODE: "n1"}}
    }


# waiting

NODE = Node(ObjectMeta(name="n1", labels={ZONE: "a"}))
WRITTEN_VOLUME = at_version(promised_to(VOLUME, CLAIM), "20")
WRITTEN_CLAIM = make_claim("other", version="21", annotations={SELECTED_NODE: "n1"})
WRITTEN = BindingInfo((StaticBinding(CLAIM, WRITTEN_VOLUME),), (WRITTEN_CLAIM,))
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
def test_not_yet(changes: list[Any], without: str) -> None:
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
            [make_volume("pv", version="30", claim=promise(CLAIM), near={ZONE: ["b"]})],
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
def test_never(changes: list[Any], without: str, node: Node | None, fault: str) -> None:
    with pytest.raises(VolumeError) as caught:
        complete(*changes, without=without, node=node)
    assert str(caught.value) == fault


def test_a_pod_that_is_gone() -> None:
    assert str(pod_gone(volume_pod(name="web"))) == 'pod does not exist any more: pod "web" not found'
