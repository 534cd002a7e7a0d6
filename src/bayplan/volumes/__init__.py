"""Volumes of pods: which claims, which volumes, on which nodes; what to assume and what to write."""

from bayplan.volumes.assumptions import VolumeAssumptions
from bayplan.volumes.errors import VolumeError
from bayplan.volumes.lookup import VolumeLookup

__all__ = ["VolumeAssumptions", "VolumeError", "VolumeLookup"]
