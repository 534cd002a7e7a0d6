"""Devices: which are there, which are taken, which to give to a claim, and what to write then."""

from bayplan.devices.assumptions import AllocatedDevices, DeviceAssumptions

__all__ = ["AllocatedDevices", "DeviceAssumptions"]
