"""The checkers of a run."""

from __future__ import annotations

from chaos.invariants.base import Checker, World
from chaos.invariants.capacity import BoundOnce, Capacity, HostPorts
from chaos.invariants.constraints import AntiAffinity, NodeConstraints, Spread
from chaos.invariants.devices import DeviceLeftovers, DevicesOnce, GpuShares, Reservations
from chaos.invariants.evictions import Evictions
from chaos.invariants.gangs import QueueCapability, WholeGangs
from chaos.invariants.server import Durability, Requests
from chaos.invariants.volumes import ExclusiveClaims, VolumesOfBoundPods, VolumesOnce

CHECKERS: tuple[type[Checker], ...] = (
    BoundOnce,
    Capacity,
    HostPorts,
    NodeConstraints,
    AntiAffinity,
    Spread,
    DevicesOnce,
    Reservations,
    GpuShares,
    DeviceLeftovers,
    VolumesOnce,
    ExclusiveClaims,
    VolumesOfBoundPods,
    WholeGangs,
    QueueCapability,
    Evictions,
    Durability,
    Requests,
)


def checkers_of(world: World) -> list[Checker]:
    return [each(world) for each in CHECKERS]
