"""DeviceClasses of extended resources.

A pod may request devices as an extended resource; the class with that resource name (or implicit name) selects the
devices. Used by NodeResourcesFit and DynamicResources.

Cost: one pass over the classes, whenever one changes; then a dictionary lookup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from bayplan.devices.lookup import DeviceLookup
from bayplan.objects.resource import DeviceClass
from bayplan.objects.resources import DEVICE_CLASS_PREFIX

_LONG_AGO = datetime(1, 1, 1, tzinfo=UTC)


def classes_by_resource(classes: Iterable[DeviceClass]) -> dict[str, DeviceClass]:
    """The class by extended resource name.

    Of two classes with one name the newer one is used, then the one whose own name comes first. A class that comes
    later and loses is left out altogether, with its implicit name; a class that is replaced keeps its implicit name.
    Upstream processes classes as they arrive; Bayplan processes them by name, which is the order after a start and does
    not depend on its time.
    """
    found: dict[str, DeviceClass] = {}
    for item in sorted(classes, key=lambda other: other.name):
        wanted = item.spec.extended_resource_name
        if wanted is not None:
            other_class = found.get(wanted)
            if other_class is not None and not _takes_precedence(item, other_class):
                continue
            found[wanted] = item
        found[DEVICE_CLASS_PREFIX + item.name] = item
    return found


def _takes_precedence(item: DeviceClass, other_class: DeviceClass) -> bool:
    created, rival_created = (other.metadata.creation_timestamp or _LONG_AGO for other in (item, other_class))
    return created > rival_created or (created == rival_created and item.name < other_class.name)


class ExtendedResourceClasses:
    """`classes_by_resource` of a catalog, cached until a class changes."""

    def __init__(self, lookup: DeviceLookup) -> None:
        self._lookup = lookup
        self._revision = -1
        self._found: Mapping[str, DeviceClass] = {}

    def get(self) -> Mapping[str, DeviceClass]:
        revision = self._lookup.revision(DeviceClass)
        if revision != self._revision:
            self._found = classes_by_resource(self._lookup.device_classes.values())
            self._revision = revision
        return self._found
