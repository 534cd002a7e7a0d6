"""A missing namespace of GPU reservations: the error names the setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayplan.binder.gpu.reservations import DeviceNotReserved, GpuReservations
from bayplan.config.reservation_settings import ReservationSettings
from bayplan.objects.core import Node, Pod
from support.harness.reconciler import ReconcilerHarness, run_with_reconciler


def test_the_error_of_a_missing_namespace_names_the_setting(tmp_path: Path) -> None:
    async def test(harness: ReconcilerHarness) -> None:
        await harness.pod()
        pod, node = await harness.client.get(Pod, "default", "web"), await harness.client.get(Node, "", "n1")
        settings = ReservationSettings(namespace="gpu-holders")
        reservations = GpuReservations(harness.client, harness.view, settings, waiting=harness.waits)
        with pytest.raises(DeviceNotReserved) as error:
            await reservations.reserve(pod, node, "g", several=False)
        assert str(error.value).endswith(
            'namespaces "gpu-holders" not found; '
            "create gpu-holders, in which resourceReservation.namespace has pods that hold shared devices"
        )

    run_with_reconciler(tmp_path, test)
