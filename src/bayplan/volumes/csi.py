"""Translation of in-tree volumes to CSI volumes.

Used by NodeVolumeLimits for the driver and handle of a volume, and by VolumeBinding for the volume's affinity on a node
with CSI migration. Pure text processing, a few microseconds per volume.

A plugin with a translation is *migratable*; only *migrated* plugins are translated here, since for the rest (Azure
Files, vSphere) a node may still run the in-tree code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from bayplan.objects.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from bayplan.objects.storage import CsiNode, CsiVolumeSource, PersistentVolume, PersistentVolumeSpec, VolumeNodeAffinity
from bayplan.objects.volumes import AzureDisk, Volume
from bayplan.volumes.errors import VolumeError
from bayplan.volumes.zones import BETA_REGION, BETA_ZONE, DELIMITER, REGION, ZONE

MIGRATED_PLUGINS = "storage.alpha.kubernetes.io/migrated-plugins"
UNSPECIFIED = "UNSPECIFIED"
_EBS_ID = re.compile(r"vol-[^/]*")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2}).{0,2}", re.DOTALL)
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class InTreePlugin:
    """An in-tree plugin and the CSI driver that replaced it. `topology_key` is set if affinities are rewritten."""

    name: str
    driver: str
    topology_key: str = ""
    migrated: bool = True


AWS_EBS = InTreePlugin("kubernetes.io/aws-ebs", "ebs.csi.aws.com", "topology.ebs.csi.aws.com/zone")
GCE_PD = InTreePlugin("kubernetes.io/gce-pd", "pd.csi.storage.gke.io", "topology.gke.io/zone")
CINDER = InTreePlugin("kubernetes.io/cinder", "cinder.csi.openstack.org", "topology.cinder.csi.openstack.org/zone")
AZURE_DISK = InTreePlugin("kubernetes.io/azure-disk", "disk.csi.azure.com")
PORTWORX = InTreePlugin("kubernetes.io/portworx-volume", "pxd.portworx.com")
AZURE_FILE = InTreePlugin("kubernetes.io/azure-file", "file.csi.azure.com", migrated=False)
VSPHERE = InTreePlugin("kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com", migrated=False)
PLUGINS = {plugin.name: plugin for plugin in (AWS_EBS, GCE_PD, CINDER, AZURE_DISK, PORTWORX, AZURE_FILE, VSPHERE)}


# Plugins.


def inline_plugin(volume: Volume) -> InTreePlugin | None:
    """The in-tree plugin of an inline volume; None if it has no CSI translation."""
    plugin = _plugin(volume)
    if plugin is None and volume.azure_file is not None:
        return AZURE_FILE
    if plugin is None and volume.vsphere_volume is not None:
        return VSPHERE
    return plugin


def volume_plugin(volume: PersistentVolume) -> InTreePlugin | None:
    """The in-tree plugin of a persistent volume, if it is a migrated one."""
    return _plugin(volume.spec)


def _plugin(source: Volume | PersistentVolumeSpec) -> InTreePlugin | None:
    if source.aws_elastic_block_store is not None:
        return AWS_EBS
    if source.gce_persistent_disk is not None:
        return GCE_PD
    if source.cinder is not None:
        return CINDER
    if source.azure_disk is not None:
        return AZURE_DISK
    return PORTWORX if source.portworx_volume is not None else None


def migrated_on(csi_node: CsiNode | None) -> frozenset[str]:
    """The names of the plugins that this node's kubelet has migrated to CSI drivers."""
    listed = csi_node.metadata.annotations.get(MIGRATED_PLUGINS, "") if csi_node is not None else ""
    return frozenset(listed.split(",")) if listed else frozenset()


# Handles.


def inline_handle(volume: Volume) -> str:
    """The CSI handle of an inline in-tree volume; raises if it has none."""
    if volume.gce_persistent_disk is not None:
        return _gce_handle(f"zones/{UNSPECIFIED}", volume.gce_persistent_disk.pd_name)
    return _plain_handle(volume)


def csi_source(volume: PersistentVolume) -> CsiVolumeSource | None:
    """The CSI source of a persistent volume: its own, or its translation; raises if the translation fails."""
    spec = volume.spec
    if spec.csi is not None:
        return spec.csi
    plugin = volume_plugin(volume)
    if plugin is None:
        return None
    if spec.gce_persistent_disk is not None:
        return CsiVolumeSource(plugin.driver, _gce_handle(_gce_location(volume), spec.gce_persistent_disk.pd_name))
    return CsiVolumeSource(plugin.driver, _plain_handle(spec))


def _plain_handle(source: Volume | PersistentVolumeSpec) -> str:
    if source.aws_elastic_block_store is not None:
        return _ebs_volume_id(source.aws_elastic_block_store.volume_id)
    if source.azure_disk is not None:
        return _azure_uri(source.azure_disk)
    if source.cinder is not None:
        return source.cinder.volume_id
    return source.portworx_volume.volume_id if source.portworx_volume is not None else ""


def _azure_uri(disk: AzureDisk) -> str:
    if disk.kind is not None and disk.kind.lower() != "managed":
        raise VolumeError(f"kind({disk.kind}) is not supported in csi migration")
    return disk.disk_uri


def _ebs_volume_id(text: str) -> str:
    """The bare id of an EBS volume: `aws://zone/vol-1` and `vol-1` are the same volume."""
    if not text.startswith("aws://"):
        return text
    volume_id = _url_path(text).strip("/")
    if not _EBS_ID.fullmatch(volume_id):
        raise VolumeError(f"failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume ({text})")
    return volume_id


def _url_path(text: str) -> str:
    location = text.removeprefix("aws://").partition("#")[0].partition("?")[0]
    path = "".join(location.partition("/")[1:])
    bad = _BAD_ESCAPE.search(path)
    if bad is not None:
        raise VolumeError(
            "failed to translate Kubernetes ID to EBS Volume ID Invalid disk name "
            f'({text}): parse "{text}": invalid URL escape "{bad.group()}"'
        )
    return _ESCAPE.sub(lambda code: bytes([int(code[1], 16)]), path.encode()).decode(errors="replace")


def _gce_handle(location: str, disk: str) -> str:
    return f"projects/{UNSPECIFIED}/{location}/disks/{disk}"


def _gce_location(volume: PersistentVolume) -> str:
    labels = volume.metadata.labels
    zones = (labels.get(BETA_ZONE) or labels.get(ZONE, "")).split(DELIMITER)
    if len(zones) > 1:
        return f"regions/{_gce_region(zones)}"
    return f"zones/{zones[0] or UNSPECIFIED}"


def _gce_region(zones: list[str]) -> str:
    """The region of all these zones (`locale-region-zone`)."""
    regions: set[str] = set()
    for zone in zones:
        parts = zone.split("-")
        if len(parts) != 3:
            raise VolumeError(
                "failed to get region from zones: zone in unexpected format, "
                f"expected: {{locale}}-{{region}}-{{zone}}, got: {zone}"
            )
        regions.add("-".join(parts[:2]))
    if len(regions) != 1:
        listed = " ".join(f"{region}:{{}}" for region in sorted(regions))
        raise VolumeError(
            f"failed to get region from zones: multiple or no regions gotten from zones, got: map[{listed}]"
        )
    return regions.pop()


# Node affinity.


def translated_affinity(volume: PersistentVolume) -> VolumeNodeAffinity | None:
    """The affinity of an in-tree volume with the topology keys of its driver; raises if it has no translation."""
    csi_source(volume)
    plugin = volume_plugin(volume)
    affinity = volume.spec.node_affinity
    if plugin is None or not plugin.topology_key:
        return affinity
    return _rewrite(affinity, volume.metadata.labels, plugin.topology_key)


def _rewrite(
    affinity: VolumeNodeAffinity | None, labels: dict[str, str], topology_key: str
) -> VolumeNodeAffinity | None:
    terms = affinity.required.node_selector_terms if affinity is not None and affinity.required is not None else ()
    zone, region = _zone_and_region_keys(terms, labels)
    written = terms
    if _names_values(terms, zone):
        written = _rename_keys(terms, zone, topology_key)
    elif zone in labels:
        written = _add_zones(terms, topology_key, labels[zone])
    if region == BETA_REGION and _names_values(written, BETA_REGION):
        written = _rename_keys(written, BETA_REGION, REGION)
    return affinity if written is terms else VolumeNodeAffinity(NodeSelector(written))


def _zone_and_region_keys(terms: tuple[NodeSelectorTerm, ...], labels: dict[str, str]) -> tuple[str, str]:
    """The topology label keys (beta or GA) of a volume; its terms take precedence over its labels."""
    for used in ({expression.key for term in terms for expression in term.match_expressions}, labels):
        if ZONE in used:
            break
        if BETA_ZONE in used:
            return BETA_ZONE, BETA_REGION
    return ZONE, REGION


def _names_values(terms: tuple[NodeSelectorTerm, ...], key: str) -> bool:
    """Whether some expression about `key` lists values; `Exists` alone has none to translate."""
    return any(expression.key == key and expression.values for term in terms for expression in term.match_expressions)


def _rename_keys(terms: tuple[NodeSelectorTerm, ...], old: str, new: str) -> tuple[NodeSelectorTerm, ...]:
    return tuple(
        msgspec.structs.replace(
            term,
            match_expressions=tuple(
                msgspec.structs.replace(expression, key=new) if expression.key == old else expression
                for expression in term.match_expressions
            ),
        )
        for term in terms
    )


def _add_zones(terms: tuple[NodeSelectorTerm, ...], key: str, label: str) -> tuple[NodeSelectorTerm, ...]:
    """Add `key In <zones of the label>` to every term, or as a new term if there was none."""
    zones = sorted({zone.strip() for zone in label.split(DELIMITER)} - {""})
    if not zones:
        return terms
    demand = NodeSelectorRequirement(key, "In", tuple(zones))
    return tuple(
        msgspec.structs.replace(term, match_expressions=(*term.match_expressions, demand))
        for term in terms or (NodeSelectorTerm(),)
    )
