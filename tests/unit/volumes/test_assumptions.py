"""Assumptions about volumes and claims, and their end."""

from __future__ import annotations

import pytest

from bayplan.objects.meta import KubeObject
from bayplan.objects.storage import PersistentVolumeClaim
from bayplan.volumes.assumptions import VolumeAssumptions
from bayplan.volumes.errors import VolumeError
from support.builders.volumes import at_version, catalog, claim_reference, make_claim, make_volume

STORED = make_volume("pv", version="7")
ASSUMED = make_volume("pv", version="7", phase="Bound")


def test_an_assumed_volume_takes_precedence_over_the_stored_one() -> None:
    assumptions = VolumeAssumptions(catalog(STORED))
    assumptions.volumes.assume(ASSUMED)
    assert assumptions.volumes.get("pv") is ASSUMED
    assert assumptions.volumes.get_stored("pv") is STORED
    assert assumptions.volumes_of_class("slow") == [ASSUMED]


def test_restore_returns_to_the_stored_volume() -> None:
    assumptions = VolumeAssumptions(catalog(STORED))
    assumptions.volumes.assume(ASSUMED)
    assumptions.volumes.restore(STORED)
    assert assumptions.volumes.get("pv") is STORED
    assumptions.volumes.restore(STORED)


def test_restore_of_another_version_changes_nothing() -> None:
    assumptions = VolumeAssumptions(catalog(STORED))
    assumptions.volumes.assume(ASSUMED)
    assumptions.volumes.restore(at_version(ASSUMED, "8"))
    assert assumptions.volumes.get("pv") is ASSUMED


def test_a_newer_stored_version_ends_the_assumption_before_it_is_observed() -> None:
    lookup = catalog(STORED)
    assumptions = VolumeAssumptions(lookup)
    assumptions.volumes.assume(ASSUMED)
    newer = at_version(STORED, "8")
    lookup.upsert(newer)
    assert assumptions.volumes.get("pv") is newer
    assumptions.observe(newer)
    assert len(assumptions.volumes) == 0


def test_a_resync_of_the_same_version_leaves_the_assumption() -> None:
    lookup = catalog(STORED)
    assumptions = VolumeAssumptions(lookup)
    assumptions.volumes.assume(ASSUMED)
    lookup.upsert(STORED)
    assumptions.observe(STORED)
    assert assumptions.volumes.get("pv") is ASSUMED


def test_a_deleted_object_has_no_assumption() -> None:
    lookup = catalog(make_claim())
    assumptions = VolumeAssumptions(lookup)
    assumptions.claims.assume(make_claim(annotations={"a": "b"}))
    lookup.delete(make_claim())
    assumptions.observe(make_claim())
    assert assumptions.claims.get("default/claim") is None
    assert len(assumptions.claims) == 0


@pytest.mark.parametrize(
    ("now", "is_over"),
    [
        pytest.param(make_claim(version="2", volume="another"), True, id="has-another-volume"),
        pytest.param(None, True, id="is-gone"),
        pytest.param(make_claim(version="2", volume="pv"), False, id="has-this-volume"),
        pytest.param(make_claim(version="2", annotations={"a": "b"}), False, id="waits"),
    ],
)
def test_a_volume_is_free_when_its_claim_does_not_need_it(now: PersistentVolumeClaim | None, is_over: bool) -> None:
    """The binder chooses volumes by itself, so the claim may get another one than the assumed one."""
    claim = make_claim(version="1")
    lookup = catalog(STORED, claim)
    assumptions = VolumeAssumptions(lookup)
    reported: list[tuple[KubeObject, KubeObject]] = []
    assumptions.listen(lambda assumed, stored: reported.append((assumed, stored)))
    assumed = make_volume("pv", version="7", claim=claim_reference(claim))
    assumptions.volumes.assume(assumed)
    if now is None:
        lookup.delete(claim)
    else:
        lookup.upsert(now)
    assumptions.observe(now or claim)
    assert assumptions.volumes.get("pv") is (STORED if is_over else assumed)
    assert reported == ([(assumed, STORED)] if is_over else [])


def test_a_volume_assumed_for_another_claim_stays_assumed() -> None:
    first, second = make_claim("first", version="1"), make_claim("second", version="1")
    lookup = catalog(STORED, first, second)
    assumptions = VolumeAssumptions(lookup)
    assumptions.volumes.assume(make_volume("pv", version="7", claim=claim_reference(first)))
    assumptions.volumes.restore(STORED)
    assumed = make_volume("pv", version="7", claim=claim_reference(second))
    assumptions.volumes.assume(assumed)
    lookup.delete(first)
    assumptions.observe(first)
    assert assumptions.volumes.get("pv") is assumed


def test_only_the_stored_version_can_be_assumed() -> None:
    assumptions = VolumeAssumptions(catalog(STORED))
    with pytest.raises(VolumeError, match=r'^"pv" is out of sync \(stored: 7, assume: 8\)$'):
        assumptions.volumes.assume(at_version(ASSUMED, "8"))
    with pytest.raises(VolumeError, match=r'^persistentvolumes "other" not found$'):
        assumptions.volumes.assume(make_volume("other"))
    with pytest.raises(VolumeError, match=r'^persistentvolumeclaims "default/claim" not found$'):
        assumptions.claims.assume(make_claim())


def test_volumes_of_a_class_follow_the_store() -> None:
    lookup = catalog(make_volume("b"), make_volume("a"), make_volume("c", storage_class="fast"))
    assumptions = VolumeAssumptions(lookup)
    assert [volume.name for volume in assumptions.volumes_of_class("slow")] == ["a", "b"]
    lookup.upsert(make_volume("c"))
    lookup.delete(make_volume("a"))
    assert [volume.name for volume in assumptions.volumes_of_class("slow")] == ["b", "c"]
    assert assumptions.volumes_of_class("fast") == []


def test_a_reverted_assumption_is_reported() -> None:
    heard: list[tuple[object, object]] = []
    assumptions = VolumeAssumptions(catalog(STORED))
    assumptions.listen(lambda old, new: heard.append((old, new)))
    assumptions.volumes.assume(ASSUMED)
    with assumptions.trial():
        assumptions.volumes.restore(STORED)
    assert heard == []
    assumptions.volumes.assume(ASSUMED)
    assumptions.volumes.restore(STORED)
    assumptions.volumes.restore(STORED)
    assert heard == [(ASSUMED, STORED)]


def test_an_assumption_that_the_watch_ends_is_reported_by_the_watch() -> None:
    heard: list[tuple[object, object]] = []
    lookup = catalog(STORED)
    assumptions = VolumeAssumptions(lookup)
    assumptions.listen(lambda old, new: heard.append((old, new)))
    assumptions.volumes.assume(ASSUMED)
    lookup.upsert(newer := at_version(STORED, "8"))
    assumptions.observe(newer)
    assumptions.volumes.restore(STORED)
    assert heard == []
