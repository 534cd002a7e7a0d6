"""Claims of a pod, and claims that reject it."""

from __future__ import annotations

import pytest

from bayplan.objects.core import Pod
from bayplan.objects.meta import KubeObject
from bayplan.objects.volumes import Volume
from bayplan.volumes.assumptions import VolumeAssumptions
from bayplan.volumes.claims import (
    CLASS_ANNOTATION,
    PodClaims,
    all_bound,
    claim_uses,
    claims_by_name,
    claims_error,
    classify_claims,
    storage_class_of_claim,
    storage_class_of_volume,
    used_claims,
)
from bayplan.volumes.errors import VolumeError
from support.builders.volumes import (
    catalog,
    claim_volume,
    ephemeral,
    make_claim,
    make_class,
    make_volume,
    owner_references,
    volume_pod,
)

POD = volume_pod(claim_volume("claim"))
OWNER = volume_pod(ephemeral("tmp"), name="web")


def test_claims_come_in_the_order_of_volumes_and_other_volumes_do_not_count() -> None:
    pod = volume_pod(
        ephemeral("tmp"), Volume(name="token"), claim_volume("b"), claim_volume("a"), claim_volume("b"), name="web"
    )
    assert [tuple(use) for use in claim_uses(pod)] == [("web-tmp", True), ("b", False), ("a", False), ("b", False)]


@pytest.mark.parametrize(
    ("annotation", "spec", "expected"),
    [
        pytest.param(None, "slow", "slow", id="field"),
        pytest.param("fast", "slow", "fast", id="annotation first"),
        pytest.param("", "slow", "", id="even an empty annotation"),
        pytest.param(None, None, "", id="nothing"),
    ],
)
def test_class(annotation: str | None, spec: str | None, expected: str) -> None:
    notes = {} if annotation is None else {CLASS_ANNOTATION: annotation}
    assert storage_class_of_claim(make_claim(storage_class=spec, annotations=notes)) == expected
    assert storage_class_of_volume(make_volume(storage_class=spec or "", annotations=notes)) == expected


@pytest.mark.parametrize(
    ("pod", "objects", "reason"),
    [
        pytest.param(volume_pod(Volume(name="token")), [], None, id="no claims"),
        pytest.param(POD, [make_claim()], None, id="there"),
        pytest.param(POD, [], 'persistentvolumeclaim "claim" not found', id="missing"),
        pytest.param(POD, [make_claim(namespace="ml")], 'persistentvolumeclaim "claim" not found', id="elsewhere"),
        pytest.param(
            OWNER,
            [],
            'waiting for ephemeral volume controller to create the persistentvolumeclaim "web-tmp"',
            id="ephemeral missing",
        ),
        pytest.param(
            POD,
            [make_claim(phase="Lost", volume="pv", deleted=True)],
            'persistentvolumeclaim "claim" bound to non-existent persistentvolume "pv"',
            id="lost, before deleted",
        ),
        pytest.param(POD, [make_claim(deleted=True)], 'persistentvolumeclaim "claim" is being deleted', id="deleted"),
        pytest.param(
            OWNER,
            [make_claim("web-tmp")],
            "PVC default/web-tmp was not created for pod default/web (pod is not owner)",
            id="another owner's",
        ),
        pytest.param(OWNER, [make_claim("web-tmp", owners=owner_references(OWNER))], None, id="own ephemeral"),
        pytest.param(
            volume_pod(claim_volume("a"), claim_volume("b")),
            [make_claim("b", deleted=True)],
            'persistentvolumeclaim "a" not found',
            id="the first volume decides",
        ),
    ],
)
def test_refusal(pod: Pod, objects: list[KubeObject], reason: str | None) -> None:
    assert claims_error(pod, catalog(*objects)) == reason


def sorted_claims(pod: Pod, *objects: KubeObject) -> PodClaims:
    lookup = catalog(*objects)
    return classify_claims(pod, VolumeAssumptions(lookup).claims, lookup)


@pytest.mark.parametrize(
    ("claim", "mode", "kind"),
    [
        pytest.param(make_claim(volume="pv"), "Immediate", "bound", id="bound"),
        pytest.param(make_claim(bound=True), "WaitForFirstConsumer", "delayed", id="completed without a volume"),
        pytest.param(make_claim(), "WaitForFirstConsumer", "delayed", id="waits"),
        pytest.param(make_claim(), "Immediate", "immediate", id="immediate"),
        pytest.param(make_claim(storage_class=""), "WaitForFirstConsumer", "immediate", id="no class"),
        pytest.param(make_claim(storage_class="gone"), "WaitForFirstConsumer", "immediate", id="unknown class"),
        pytest.param(make_claim(volume="pv", bound=False), "WaitForFirstConsumer", "immediate", id="half bound"),
    ],
)
def test_classify(claim: KubeObject, mode: str, kind: str) -> None:
    found = sorted_claims(POD, claim, make_class(mode=mode))
    assert {name: len(getattr(found, name)) for name in ("bound", "delayed", "immediate") if getattr(found, name)} == {
        kind: 1
    }


def test_a_class_without_binding_mode_is_an_error_for_unbound_claims_only() -> None:
    assert sorted_claims(POD, make_claim(volume="pv"), make_class(mode=None)).bound
    with pytest.raises(VolumeError, match=r'^VolumeBindingMode not set for StorageClass "slow"$'):
        sorted_claims(POD, make_claim(), make_class(mode=None))


@pytest.mark.parametrize(
    ("pod", "objects", "expected"),
    [
        pytest.param(volume_pod(), [], True, id="nothing to bind"),
        pytest.param(POD, [make_claim(volume="pv")], True, id="bound"),
        pytest.param(POD, [make_claim()], False, id="unbound"),
        pytest.param(POD, [], False, id="gone"),
        pytest.param(OWNER, [make_claim("web-tmp", volume="pv")], False, id="another owner's"),
    ],
)
def test_all_bound(pod: Pod, objects: list[KubeObject], expected: bool) -> None:
    assert all_bound(pod, VolumeAssumptions(catalog(*objects)).claims) is expected


def test_an_ephemeral_claim_is_used_but_not_named() -> None:
    claim = make_claim("web-tmp")
    assert used_claims(OWNER).include(claim)
    assert not claims_by_name(OWNER).include(claim)
    assert claims_by_name(POD).include(make_claim())
    assert not used_claims(POD).include(make_claim(namespace="ml"))
