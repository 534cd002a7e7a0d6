from __future__ import annotations

import pytest

from bayplan.objects.core import Container, ContainerPort, Pod, PodSpec
from bayplan.objects.ports import HostPort, host_ports, ports_conflict


def container(*ports: ContainerPort, restart_policy: str | None = None) -> Container:
    return Container(ports=ports, restart_policy=restart_policy)


def test_ports_of_long_running_containers() -> None:
    pod = Pod(
        spec=PodSpec(
            containers=(
                container(ContainerPort(host_port=80), ContainerPort(container_port=8080)),
                container(ContainerPort(host_port=53, protocol="UDP", host_ip="10.0.0.1")),
            ),
            init_containers=(
                container(ContainerPort(host_port=1)),
                container(ContainerPort(host_port=9090), restart_policy="Always"),
            ),
        )
    )
    assert host_ports(pod) == (("0.0.0.0", "TCP", 9090), ("0.0.0.0", "TCP", 80), ("10.0.0.1", "UDP", 53))


def test_negative_and_absent_ports_are_none() -> None:
    pod = Pod(spec=PodSpec(containers=(container(ContainerPort(host_port=-1), ContainerPort()),)))
    assert host_ports(pod) == ()


ANY_80 = HostPort("0.0.0.0", "TCP", 80)
ONE_80 = HostPort("10.0.0.1", "TCP", 80)


@pytest.mark.parametrize(
    ("want", "have", "expected"),
    [
        pytest.param(ANY_80, ANY_80, True, id="same"),
        pytest.param(ANY_80, ONE_80, True, id="all-addresses-against-one"),
        pytest.param(ONE_80, ANY_80, True, id="one-against-all-addresses"),
        pytest.param(ONE_80, HostPort("10.0.0.2", "TCP", 80), False, id="two-addresses"),
        pytest.param(ONE_80, HostPort("10.0.0.1", "UDP", 80), False, id="other-protocol"),
        pytest.param(ANY_80, HostPort("0.0.0.0", "TCP", 81), False, id="other-port"),
        pytest.param(ONE_80, HostPort("::", "TCP", 80), False, id="ipv6-any-is-an-ordinary-address"),
    ],
)
def test_conflict(want: HostPort, have: HostPort, expected: bool) -> None:
    assert want.conflicts(have) is expected
    assert ports_conflict([HostPort("0.0.0.0", "TCP", 1), want], iter([have])) is expected


def test_a_pod_does_not_conflict_with_itself() -> None:
    assert not ports_conflict([ANY_80, ANY_80], [])
