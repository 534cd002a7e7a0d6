"""Devices of dynamic resource allocation: pools, devices in use, allocation of claims, and the resulting writes."""

from bayplan.devices.assumptions import AllocatedDevices, DeviceAssumptions

__all__ = ["AllocatedDevices", "DeviceAssumptions"]
