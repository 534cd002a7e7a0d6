"""Cached signatures of pods against signatures that every plugin computes for each pod."""

from __future__ import annotations

import random
from collections.abc import Hashable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.app import configured, filled_cache, known_plugins
from bayplan.clock import ManualClock
from bayplan.framework import NodeTable, PluginTraits, Rejection, row_local
from bayplan.framework.equivalence.equivalence_classes import EquivalenceClasses
from bayplan.objects.core import Pod, PodStatus, Toleration
from bayplan.objects.kinds import convert
from bayplan.objects.meta import Condition, ObjectMeta, OwnerReference
from bayplan.objects.resource import DeviceClass
from bayplan.objects.volumes import EphemeralVolume, Volume
from bayplan.scheduler.engine import PodEngine
from bayplan.snapshot.pod_info import PodInfo, template_key
from support.builders.framework import make_node, make_pod
from support.builders.volumes import claim_volume

CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {multiPoint: {enabled: [{name: GpuSharing}, {name: BindRequestBinder}, {name: ByName}]}}
"""


class ByName:
    """A third-party plugin that distinguishes pods by their names."""

    name = "ByName"
    traits = PluginTraits(depends_on=row_local, looks_at_pods=False)

    def signature(self, pod: Pod) -> Hashable:
        return pod.name

    def filter_nodes(self, cycle: object, nodes: NodeTable) -> list[Rejection]:  # noqa: ARG002
        return []


TEMPLATES: tuple[dict[str, Any], ...] = (
    {},
    {"requests": {"cpu": "1"}},
    {"requests": {"cpu": "1", "x.io/gpu": "1"}},
    {"labels": {"app": "web"}},
    {"namespace": "ml"},
    {"host_ports": (80,)},
    {"claims": ["c"]},
    {"volumes": (Volume(name="x"),)},
    {"volumes": (Volume(name="x", ephemeral=EphemeralVolume()),)},
    {"node_selector": {"disk": "ssd"}},
    {"tolerations": (Toleration(key="x", operator="Exists"),)},
    {"annotations": {"gpu-fraction": "0.5"}},
)
STEPS = st.one_of(
    st.tuples(st.just("pod"), st.sampled_from(TEMPLATES), st.sampled_from("ab")),
    st.tuples(st.just("pod"), st.just({}), st.sampled_from("ab")),
    st.tuples(st.just("given up"), st.just({}), st.sampled_from("ab")),
    st.tuples(st.just("place"), st.just({}), st.just("c")),
    st.tuples(st.sampled_from(("a class", "no class")), st.just({}), st.just("")),
)


def engine() -> PodEngine:
    registry = known_plugins().with_plugins(ByName)
    cache = filled_cache([make_node("n", cpu="64")])
    return PodEngine(configured(CONFIG, registry), registry, cache, clock=ManualClock(), chance=random.Random(0))


def classes_of(on: PodEngine) -> EquivalenceClasses:
    found = on.equivalence_classes("default-scheduler")
    assert found is not None
    return found


@given(st.lists(STEPS, max_size=12))
def test_cached_signatures_equal_computed_ones(steps: list[tuple[str, dict[str, Any], str]]) -> None:
    """Between them bindings fail, device classes are added and removed, and attempts observe that."""
    on = engine()
    classes = classes_of(on)
    device_class = convert({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "x.io/gpu"}}, DeviceClass)
    for step, template, name in steps:
        match step:
            case "given up":
                on.bind_request_factory.failures.record_failure(make_pod(name).uid, "n", "no")
            case "a class":
                on.cache.upsert(device_class)
            case "no class":
                on.cache.delete(device_class)
            case "place":
                on.try_pod(make_pod(name))
            case _:
                on.try_pod(make_pod("c"))  # signatures are of the classes that an attempt has seen
                info = PodInfo(make_pod(name, **template))
                kind = classes.class_of(info)
                asked = classes._sign_with_all_plugins(info)
                assert len(kind.evaluation_slots) == len(asked)
                assert all(one is other for one, other in zip(kind.evaluation_slots, asked, strict=True))


IDENTITY = {"name", "uid", "resource_version", "generation", "creation_timestamp"}
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
OTHER: dict[str, Any] = {
    **dict.fromkeys(("name", "uid", "resource_version", "namespace"), "other"),
    **dict.fromkeys(("creation_timestamp", "deletion_timestamp"), MOMENT),
    "labels": {"a": "b"},
    "annotations": {"a": "b"},
    "generation": 7,
    "finalizers": ("f",),
    "owner_references": (OwnerReference(name="o"),),
}


@pytest.mark.parametrize("name", ObjectMeta.__struct_fields__)
def test_pods_that_differ_in_more_than_identity_have_different_keys(name: str) -> None:
    pod = make_pod("p")
    other = replace(pod, metadata=replace(pod.metadata, **{name: OTHER[name]}))
    assert (template_key(pod) == template_key(other)) == (name in IDENTITY)


def test_pods_with_other_requests_or_status_have_different_keys() -> None:
    pod = make_pod("p")
    assert template_key(pod) != template_key(make_pod("p", requests={"cpu": "1"}))
    assert template_key(pod) != template_key(
        replace(pod, status=PodStatus(conditions=(Condition(type="PodScheduled"),)))
    )


@pytest.mark.parametrize(
    ("volume", "alike"),
    [
        pytest.param(Volume(name="kube-api-access-y"), True, id="a name alone"),
        pytest.param(Volume(name="x", ephemeral=EphemeralVolume()), False, id="a claim of its own"),
        pytest.param(claim_volume("c"), False, id="a claim"),
    ],
)
def test_volume_names_do_not_distinguish_pods(volume: Volume, alike: bool) -> None:
    pod = make_pod("p", volumes=(Volume(name="kube-api-access-x"),))
    assert (template_key(pod) == template_key(make_pod("q", volumes=(volume,)))) == alike


def test_cached_keys_are_evicted_before_the_cache_is_full() -> None:
    on = engine()
    for number in range(600):
        on.prepare(make_pod(f"p{number}", labels={"app": f"a{number}"}))
    assert 0 < len(classes_of(on)._templates) <= 256
