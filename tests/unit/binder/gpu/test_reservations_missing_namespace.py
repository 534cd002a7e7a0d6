"""Where the namespace of reservations is missing: what wants it is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayplan.binder.gpu.reservations import DeviceNotReserved, GpuReservations
from bayplan.config.reservation_settings import ReservationSettings
from bayplan.objects.core import Node, Pod
from support.harness.reconciler import ReconcilerHarness, run_with_reconciler


def test_a_namespace_that_is_missing_is_told_with_the_setting_that_names_it(tmp_path: Path) -> None:
    async def test(rig: ReconcilerHarness) -> None:
        await rig.pod()
        pod, node = await rig.client.get(Pod, "default", "web"), await rig.client.get(Node, "", "n1")
        settings = ReservationSettings(namespace="gpu-holders")
        reservations = GpuReservations(rig.client, rig.view, settings, waiting=rig.waits)
        with pytest.raises(DeviceNotReserved) as told:
            await reservations.reserve(pod, node, "g", several=False)
        assert str(told.value).endswith(
            'namespaces "gpu-holders" not found; '
            "create gpu-holders, in which resourceReservation.namespace has pods that hold shared devices"
        )

    run_with_reconciler(tmp_path, test)
