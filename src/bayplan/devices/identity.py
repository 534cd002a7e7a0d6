"""Which device is meant? A driver, one of its pools and a name: unique in the cluster, and the key of every ledger."""

from __future__ import annotations

from typing import NamedTuple


class PoolId(NamedTuple):
    """A pool of devices. Drivers name their pools, so the driver is part of it."""

    driver: str
    pool: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}"


class DeviceId(NamedTuple):
    """One device."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"
