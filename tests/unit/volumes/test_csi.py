"""In-tree volumes as CSI volumes: drivers, handles, affinities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from bayplan.objects.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from bayplan.objects.storage import PersistentVolume, VolumeNodeAffinity
from bayplan.objects.volumes import (
    AwsElasticBlockStore,
    AzureDisk,
    AzureFile,
    CinderVolume,
    GcePersistentDisk,
    IscsiVolume,
    PortworxVolume,
    Volume,
    VsphereVolume,
)
from bayplan.volumes.csi import (
    csi_source,
    inline_handle,
    inline_plugin,
    migrated_on,
    translated_affinity,
    volume_plugin,
)
from bayplan.volumes.errors import VolumeError
from bayplan.volumes.zones import BETA_REGION, BETA_ZONE, REGION, ZONE
from support.builders.volumes import affinity, make_csi_node, make_volume

EBS_KEY = "topology.ebs.csi.aws.com/zone"

SOURCES: list[Any] = [
    pytest.param({"aws_elastic_block_store": AwsElasticBlockStore("vol-1")}, "ebs.csi.aws.com", "vol-1", id="ebs"),
    pytest.param(
        {"aws_elastic_block_store": AwsElasticBlockStore("aws://us-1a/vol-1")}, "ebs.csi.aws.com", "vol-1", id="ebs url"
    ),
    pytest.param(
        {"aws_elastic_block_store": AwsElasticBlockStore("aws:///vol-%31?x#y")},
        "ebs.csi.aws.com",
        "vol-1",
        id="ebs url with everything",
    ),
    pytest.param(
        {"gce_persistent_disk": GcePersistentDisk("d")},
        "pd.csi.storage.gke.io",
        "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d",
        id="gce",
    ),
    pytest.param({"azure_disk": AzureDisk("d", "/uri", "Managed")}, "disk.csi.azure.com", "/uri", id="azure managed"),
    pytest.param({"azure_disk": AzureDisk("d", "/uri")}, "disk.csi.azure.com", "/uri", id="azure without kind"),
    pytest.param({"cinder": CinderVolume("c")}, "cinder.csi.openstack.org", "c", id="cinder"),
    pytest.param({"portworx_volume": PortworxVolume("p")}, "pxd.portworx.com", "p", id="portworx"),
]


@pytest.mark.parametrize(("source", "driver", "handle"), SOURCES)
def test_inline_and_persistent_volumes_have_one_translation(source: dict[str, Any], driver: str, handle: str) -> None:
    inline = Volume(**source)
    plugin = inline_plugin(inline)
    assert plugin is not None
    assert (plugin.driver, inline_handle(inline)) == (driver, handle)
    translated = csi_source(make_volume(**source))
    assert translated is not None
    assert (translated.driver, translated.volume_handle) == (driver, handle)


def test_volumes_without_translation() -> None:
    assert inline_plugin(Volume(iscsi=IscsiVolume())) is None
    assert csi_source(make_volume()) is None
    own = csi_source(make_volume(handle="h", driver="d"))
    assert own is not None
    assert (own.driver, own.volume_handle) == ("d", "h")


@pytest.mark.parametrize(
    ("volume", "driver"),
    [
        pytest.param(Volume(azure_file=AzureFile()), "file.csi.azure.com", id="azure files"),
        pytest.param(Volume(vsphere_volume=VsphereVolume()), "csi.vsphere.vmware.com", id="vsphere"),
    ],
)
def test_plugins_that_are_migratable_but_not_migrated(volume: Volume, driver: str) -> None:
    plugin = inline_plugin(volume)
    assert plugin is not None
    assert (plugin.driver, plugin.migrated) == (driver, False)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        pytest.param(
            {"aws_elastic_block_store": AwsElasticBlockStore("aws://us-1a/disk-1")},
            "failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume (aws://us-1a/disk-1)",
            id="no EBS id",
        ),
        pytest.param(
            {"aws_elastic_block_store": AwsElasticBlockStore("aws://us-1a/a/vol-1")},
            "failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume (aws://us-1a/a/vol-1)",
            id="EBS id with a path",
        ),
        pytest.param(
            {"aws_elastic_block_store": AwsElasticBlockStore("aws://us-1a/vol-%zz")},
            "failed to translate Kubernetes ID to EBS Volume ID Invalid disk name (aws://us-1a/vol-%zz): "
            'parse "aws://us-1a/vol-%zz": invalid URL escape "%zz"',
            id="bad escape",
        ),
        pytest.param(
            {"azure_disk": AzureDisk("d", "/uri", "Shared")},
            "kind(Shared) is not supported in csi migration",
            id="azure blob disk",
        ),
    ],
)
def test_translations_that_fail(source: dict[str, Any], fault: str) -> None:
    for translate, item in ((inline_handle, Volume(**source)), (csi_source, make_volume(**source))):
        with pytest.raises(VolumeError) as caught:
            translate(item)
        assert str(caught.value) == fault


@pytest.mark.parametrize(
    ("labels", "location"),
    [
        pytest.param({}, "zones/UNSPECIFIED", id="no label"),
        pytest.param({ZONE: ""}, "zones/UNSPECIFIED", id="empty label"),
        pytest.param({ZONE: "us-a-1"}, "zones/us-a-1", id="zone"),
        pytest.param({ZONE: "us-a-1", BETA_ZONE: "us-b-1"}, "zones/us-b-1", id="the old label counts first"),
        pytest.param({BETA_ZONE: "", ZONE: "us-a-1"}, "zones/us-a-1", id="unless it is empty"),
        pytest.param({ZONE: "us-a-1__us-a-2"}, "regions/us-a", id="region"),
    ],
)
def test_location_of_a_gce_disk(labels: dict[str, str], location: str) -> None:
    source = csi_source(make_volume(labels=labels, gce_persistent_disk=GcePersistentDisk("d")))
    assert source is not None
    assert source.volume_handle == f"projects/UNSPECIFIED/{location}/disks/d"


@pytest.mark.parametrize(
    ("zones", "fault"),
    [
        pytest.param(
            "us-a-1__us-b-1",
            "failed to get region from zones: multiple or no regions gotten from zones, got: map[us-a:{} us-b:{}]",
            id="two regions",
        ),
        pytest.param(
            "us-a-1__x",
            "failed to get region from zones: zone in unexpected format, expected: {locale}-{region}-{zone}, got: x",
            id="no zone",
        ),
    ],
)
def test_gce_zones_without_a_region(zones: str, fault: str) -> None:
    with pytest.raises(VolumeError) as caught:
        translated_affinity(make_volume(labels={ZONE: zones}, gce_persistent_disk=GcePersistentDisk("d")))
    assert str(caught.value) == fault


def test_migrated_plugins_are_a_comma_list() -> None:
    assert migrated_on(None) == frozenset()
    assert migrated_on(make_csi_node("n")) == frozenset()
    assert migrated_on(make_csi_node("n", migrated="kubernetes.io/a,kubernetes.io/b")) == {
        "kubernetes.io/a",
        "kubernetes.io/b",
    }


# Affinities.


def ebs_volume(
    labels: dict[str, str] | None = None, node_affinity: VolumeNodeAffinity | None = None
) -> PersistentVolume:
    return make_volume(
        labels=labels, node_affinity=node_affinity, aws_elastic_block_store=AwsElasticBlockStore("vol-1")
    )


def shown(node_affinity: VolumeNodeAffinity | None) -> list[dict[str, list[str]]] | None:
    if node_affinity is None or node_affinity.required is None:
        return None
    return [
        {expression.key: list(expression.values) for expression in term.match_expressions}
        for term in node_affinity.required.node_selector_terms
    ]


Terms = Sequence[Mapping[str, Sequence[str]]]


@pytest.mark.parametrize(
    ("labels", "terms", "expected"),
    [
        pytest.param({}, None, None, id="nothing to translate"),
        pytest.param({}, [{"x": ["1"]}], [{"x": ["1"]}], id="other keys stay"),
        pytest.param({}, [{ZONE: ["a"]}], [{EBS_KEY: ["a"]}], id="zone of the terms"),
        pytest.param({ZONE: "b"}, [{ZONE: ["a"]}], [{EBS_KEY: ["a"]}], id="terms before labels"),
        pytest.param({}, [{BETA_ZONE: ["a"]}], [{EBS_KEY: ["a"]}], id="old zone of the terms"),
        pytest.param(
            {}, [{ZONE: ["a"]}, {BETA_ZONE: ["b"]}], [{EBS_KEY: ["a"]}, {BETA_ZONE: ["b"]}], id="one generation only"
        ),
        pytest.param({ZONE: "b__a__ b"}, None, [{EBS_KEY: ["a", "b"]}], id="zones of the labels"),
        pytest.param({ZONE: "a"}, [], [{EBS_KEY: ["a"]}], id="a term is made where there is none"),
        pytest.param(
            {ZONE: "a"}, [{"x": ["1"]}, {}], [{"x": ["1"], EBS_KEY: ["a"]}, {EBS_KEY: ["a"]}], id="added to every term"
        ),
        pytest.param({ZONE: "__"}, None, None, id="a label without zones adds nothing"),
        pytest.param({BETA_ZONE: "a"}, [{BETA_REGION: ["r"]}], [{REGION: ["r"], EBS_KEY: ["a"]}], id="old region"),
        pytest.param({ZONE: "a"}, [{BETA_REGION: ["r"]}], [{BETA_REGION: ["r"], EBS_KEY: ["a"]}], id="new zone"),
    ],
)
def test_affinity_with_the_drivers_topology_keys(labels: dict[str, str], terms: Terms | None, expected: object) -> None:
    volume = ebs_volume(labels, None if terms is None else affinity(*terms))
    assert shown(translated_affinity(volume)) == expected


def test_a_zone_key_without_values_is_not_translated_but_takes_precedence_over_labels() -> None:
    term = NodeSelectorTerm((NodeSelectorRequirement(BETA_ZONE, "Exists"),))
    volume = ebs_volume({ZONE: "a"}, VolumeNodeAffinity(NodeSelector((term,))))
    assert shown(translated_affinity(volume)) == [{BETA_ZONE: []}]


@pytest.mark.parametrize(
    "source",
    [
        pytest.param({"azure_disk": AzureDisk("d", "/uri")}, id="azure"),
        pytest.param({"portworx_volume": PortworxVolume("p")}, id="portworx"),
    ],
)
def test_some_drivers_keep_the_affinity(source: dict[str, Any]) -> None:
    volume = make_volume(near={ZONE: ["a"]}, **source)
    assert volume_plugin(volume) is not None
    assert translated_affinity(volume) is volume.spec.node_affinity
