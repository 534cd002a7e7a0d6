"""DeviceClasses of extended resources."""

from __future__ import annotations

import pytest

from bayplan.devices.classes import ExtendedResourceClasses, classes_by_resource
from bayplan.objects.resource import DeviceClass
from bayplan.snapshot import Catalog
from support.builders.devices import make_class

GPU = "example.com/gpu"
IMPLICIT = "deviceclass.resource.kubernetes.io/"


def wanting(name: str, created: str = "2026-01-01T00:00:00Z") -> DeviceClass:
    return make_class(name, created=created, extended_resource_name=GPU)


LATER = "2026-02-01T00:00:00Z"


@pytest.mark.parametrize(
    ("classes", "mapped"),
    [
        pytest.param([make_class("a")], {IMPLICIT + "a": "a"}, id="implicit-name-only"),
        pytest.param([wanting("a")], {GPU: "a", IMPLICIT + "a": "a"}, id="a-name-of-its-own"),
        pytest.param(
            [wanting("a"), wanting("b", LATER)],
            {GPU: "b", IMPLICIT + "a": "a", IMPLICIT + "b": "b"},
            id="the-newer-one-displaces",
        ),
        pytest.param(
            [wanting("a", LATER), wanting("b")], {GPU: "a", IMPLICIT + "a": "a"}, id="the-older-one-is-left-out"
        ),
        pytest.param(
            [wanting("b"), wanting("a")], {GPU: "a", IMPLICIT + "a": "a"}, id="the-name-decides-between-equals"
        ),
        pytest.param(
            [make_class("a", extended_resource_name=GPU), wanting("b")],
            {GPU: "b", IMPLICIT + "a": "a", IMPLICIT + "b": "b"},
            id="one-without-a-time-is-the-oldest",
        ),
    ],
)
def test_names(classes: list[DeviceClass], mapped: dict[str, str]) -> None:
    assert {name: item.name for name, item in classes_by_resource(classes).items()} == mapped


def test_the_mapping_is_cached_until_a_class_changes() -> None:
    catalog = Catalog([wanting("a")])
    classes = ExtendedResourceClasses(catalog)
    before = classes.get()
    assert classes.get() is before
    catalog.upsert(make_class("b"))
    assert set(classes.get()) == {GPU, IMPLICIT + "a", IMPLICIT + "b"}
