"""Identity of a device: driver, pool and name. It is unique in the cluster and the key of all device tables."""

from __future__ import annotations

from typing import NamedTuple


class PoolId(NamedTuple):
    """A pool of devices. Drivers choose pool names, so the driver is part of the identity."""

    driver: str
    pool: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}"


class DeviceId(NamedTuple):
    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"
