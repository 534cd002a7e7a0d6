"""Naive twin of VolumeZone, one node at a time."""

from __future__ import annotations

from hypothesis import strategies as st

from bayplan.objects.core import Node
from bayplan.objects.storage import PersistentVolume
from bayplan.plugins.volume_zone import VolumeZone
from naive.storage import (
    BETA_REGION,
    BETA_ZONE,
    CLASS,
    REGION,
    ZONE,
    claim_names,
    class_of,
    find_claim,
    find_class,
    find_volume,
    some_volumes,
)
from naive.twin import Case, Cluster, Twin, fits_unless
from support.builders.framework import FilterResult, make_node, unresolvable
from support.builders.volumes import make_claim, make_class, make_volume, volume_pod

KEYS = (BETA_ZONE, BETA_REGION, ZONE, REGION)
NEWER = {BETA_ZONE: ZONE, BETA_REGION: REGION}


def volume_of(case: Case, name: str) -> PersistentVolume | str | None:
    """The volume of a claim, None if it is not bound yet, or the error of the claim."""
    if not name:
        return "PersistentVolumeClaim had no name"
    claim = find_claim(case.cluster, case.pod.namespace, name)
    if claim is None:
        return f'persistentvolumeclaim "{name}" not found'
    if claim.spec.volume_name:
        missing = f'persistentvolume "{claim.spec.volume_name}" not found'
        return find_volume(case.cluster, claim.spec.volume_name) or missing
    wanted = class_of(claim)
    if not wanted:
        return "PersistentVolumeClaim had no pv name and storageClass name"
    storage_class = find_class(case.cluster, wanted)
    if storage_class is None:
        return f'storageclass.storage.k8s.io "{wanted}" not found'
    if storage_class.volume_binding_mode is None:
        return f'VolumeBindingMode not set for StorageClass "{wanted}"'
    return None if storage_class.volume_binding_mode == "WaitForFirstConsumer" else "PersistentVolume had no name"


def fits(node: Node, volume: PersistentVolume) -> bool:
    labels = node.metadata.labels
    if not any(key in labels for key in KEYS):
        return True
    for key in KEYS:
        zones = [zone.strip() for zone in volume.metadata.labels.get(key, "").split("__")]
        here = labels[key] if key in labels else labels.get(NEWER.get(key, key))
        if "" not in zones and here not in zones:
            return False
    return True


def judge(case: Case, node: Node) -> FilterResult:
    reachable = True
    for name, _ in claim_names(case.pod, with_ephemeral=False):
        volume = volume_of(case, name)
        if isinstance(volume, str):
            return unresolvable(volume)
        reachable = reachable and (volume is None or fits(node, volume))
    return fits_unless((not reachable, unresolvable("node(s) had no available volume zone")))


# random cases

PLACES = st.sampled_from(("a", "b", "c"))
NODE_LABELS = st.just({}) | st.dictionaries(st.sampled_from(KEYS), PLACES) | st.fixed_dictionaries({ZONE: PLACES})
VALUES = PLACES | st.sampled_from(("a__b", "a__ c", "b__", "", " b "))
LABELS = st.dictionaries(st.sampled_from(KEYS), VALUES) | st.fixed_dictionaries({BETA_ZONE: VALUES})
CLASSES = (make_class("wait"), make_class("at-once", mode="Immediate"), make_class("unsaid", mode=None))
WANTED = st.sampled_from(("wait",) * 12 + ("at-once", "unsaid", "nobody", None))
BOUND_TO = st.sampled_from(("v0", "v1", "v2") * 4 + ("v3", "", "", ""))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    nodes = tuple(make_node(f"n{number}", labels=draw(NODE_LABELS)) for number in range(draw(st.integers(1, 4))))
    volumes = tuple(make_volume(f"v{number}", labels=draw(LABELS)) for number in range(3))
    claims = []
    for number in range(3):
        annotations = draw(st.sampled_from(({},) * 5 + ({CLASS: "wait"}, {CLASS: ""})))
        to = draw(BOUND_TO)
        claims.append(make_claim(f"c{number}", storage_class=draw(WANTED), volume=to, annotations=annotations))
    names = ("c0", "c1", "c2") * 4 + draw(st.sampled_from(((),) * 9 + (("c3", ""),)))
    return Case(
        volume_pod(*draw(some_volumes(*names)), name="incoming"), Cluster(nodes, (), (*volumes, *claims, *CLASSES))
    )


TWIN = Twin(VolumeZone, cases(), judge)
