"""Volumes of pods: claims, volumes, node requirements, assumptions and the resulting writes."""

from bayplan.volumes.assumptions import VolumeAssumptions
from bayplan.volumes.errors import VolumeError
from bayplan.volumes.lookup import VolumeLookup

__all__ = ["VolumeAssumptions", "VolumeError", "VolumeLookup"]
