"""Which DeviceClass stands behind an extended resource?

A pod may ask for devices as it asks for any extended resource; the class that names the resource (or whose implicit
name it is) says which devices are meant. Asked by NodeResourcesFit and DynamicResources.

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
    """Extended resource name to class.

    Of two classes that want one name the newer one has it, then the one whose own name comes first. A class that is
    met later and loses is left out altogether, its implicit name too; one that is displaced keeps its implicit name.
    Upstream meets them as they arrive; we take them by name, which is the order after a start and does not depend on
    when that was.
    """
    found: dict[str, DeviceClass] = {}
    for item in sorted(classes, key=lambda other: other.name):
        wanted = item.spec.extended_resource_name
        if wanted is not None:
            rival = found.get(wanted)
            if rival is not None and not _takes_precedence(item, rival):
                continue
            found[wanted] = item
        found[DEVICE_CLASS_PREFIX + item.name] = item
    return found


def _takes_precedence(item: DeviceClass, rival: DeviceClass) -> bool:
    mine, theirs = (other.metadata.creation_timestamp or _LONG_AGO for other in (item, rival))
    return mine > theirs or (mine == theirs and item.name < rival.name)


class ExtendedResourceClasses:
    """`classes_by_resource` of a catalog, kept until a class changes."""

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
