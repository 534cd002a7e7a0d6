"""Top-level fields: defaults and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bayplan.codec.go_duration import GoDuration
from bayplan.config.load import load, load_default
from bayplan.config.model import ClientConnection, Configuration, LeaderElection
from bayplan.plugins.args_kinds import ARGS_KINDS

MINIMAL = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


def loaded(text: str) -> Configuration:
    return load(MINIMAL + text, ARGS_KINDS)


def test_defaults() -> None:
    found = loaded("")
    assert found == load_default(ARGS_KINDS)
    assert found.parallelism == 16
    assert found.leader_election == LeaderElection()
    assert found.client_connection == ClientConnection()
    assert found.enable_profiling is True
    assert found.enable_contention_profiling is True
    assert found.percentage_of_nodes_to_score == 0
    assert (found.pod_initial_backoff_seconds, found.pod_max_backoff_seconds) == (1, 10)
    assert found.extenders == ()
    assert found.delay_cache_until_active is False


def test_null_means_absent() -> None:
    nulls = "parallelism: null\nleaderElection: null\nclientConnection: ~\nprofiles: null\nextenders: null\n"
    assert loaded(nulls) == loaded("")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("enableProfiling: false", False, id="follows profiling when it is off"),
        pytest.param("enableProfiling: false\nenableContentionProfiling: true", True, id="given"),
        pytest.param("enableContentionProfiling: false", False, id="given as off"),
    ],
)
def test_contention_profiling(text: str, expected: bool) -> None:
    assert loaded(text).enable_contention_profiling is expected


def test_zeroes_that_mean_the_default() -> None:
    found = loaded(
        "leaderElection: {leaseDuration: 0s, renewDeadline: 0s, retryPeriod: 0s, "
        "resourceLock: '', resourceName: '', resourceNamespace: ''}\n"
        "clientConnection: {qps: 0, burst: 0, contentType: ''}\n"
    )
    assert found.leader_election == LeaderElection()
    assert found.client_connection == ClientConnection()


def test_given_values_are_used() -> None:
    found = loaded(
        "parallelism: 4\nleaderElection: {leaderElect: no, leaseDuration: 1m}\n"
        "clientConnection: {qps: 2.5, kubeconfig: /k}\ndelayCacheUntilActive: yes\n"
    )
    assert found.parallelism == 4
    assert found.leader_election.leader_elect is False
    assert found.leader_election.lease_duration == GoDuration.of_seconds(60)
    assert (found.client_connection.qps, found.client_connection.kubeconfig) == (2.5, "/k")
    assert found.delay_cache_until_active is True


LEASE = {"leaseDuration": "15s", "renewDeadline": "10s"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param(
            {"parallelism": 0},
            "parallelism: Invalid value: 0: should be an integer value greater than zero",
            id="no work",
        ),
        pytest.param(
            {"clientConnection": {"burst": -1}},
            "clientConnection.burst: Invalid value: -1: must be non-negative",
            id="burst",
        ),
        pytest.param(
            {"percentageOfNodesToScore": 101},
            "percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]",
            id="more than all nodes",
        ),
        pytest.param(
            {"percentageOfNodesToScore": -1},
            "percentageOfNodesToScore: Invalid value: -1: not in valid range [0-100]",
            id="less than none",
        ),
        pytest.param(
            {"podInitialBackoffSeconds": 0},
            "podInitialBackoffSeconds: Invalid value: 0: must be greater than 0",
            id="no backoff",
        ),
        pytest.param(
            {"podInitialBackoffSeconds": 11},
            "podMaxBackoffSeconds: Invalid value: 10: must be greater than or equal to PodInitialBackoffSeconds",
            id="backoff that shrinks",
        ),
        pytest.param(
            {"leaderElection": {"leaseDuration": "-1m", "renewDeadline": "-1h", "retryPeriod": "-1ms"}},
            '[leaderElection.leaseDuration: Invalid value: "-1m0s": must be greater than zero, '
            'leaderElection.renewDeadline: Invalid value: "-1h0m0s": must be greater than zero, '
            'leaderElection.retryPeriod: Invalid value: "-1ms": must be greater than zero]',
            id="durations below zero",
        ),
        pytest.param(
            {"leaderElection": {"leaseDuration": "10s"}},
            'leaderElection.leaseDuration: Invalid value: "10s": must be greater than `RenewDeadline`',
            id="lease as short as its renewal shows the renewal",
        ),
        pytest.param(
            {"leaderElection": {"resourceLock": "endpoints"}},
            'leaderElection.resourceLock: Invalid value: "endpoints": resourceLock value must be "leases"',
            id="lock",
        ),
        pytest.param(
            {"parallelism": -1, "podInitialBackoffSeconds": -1, "clientConnection": {"burst": -1}},
            "[clientConnection.burst: Invalid value: -1: must be non-negative, "
            "parallelism: Invalid value: -1: should be an integer value greater than zero, "
            "podInitialBackoffSeconds: Invalid value: -1: must be greater than 0]",
            id="several in their order",
        ),
    ],
)
def test_invalid_fields_are_refused(refusal: Callable[..., str], fields: dict[str, Any], message: str) -> None:
    assert refusal(**fields) == f"invalid: {message}"


def test_leader_election_that_is_off_is_not_checked(refusal: Callable[..., str]) -> None:
    assert refusal(leaderElection={"leaderElect": False, "leaseDuration": "-1s", "resourceLock": "x"}) == ""


def test_the_percentage_of_a_profile_wins() -> None:
    found = loaded(
        "percentageOfNodesToScore: 30\n"
        "profiles: [{schedulerName: a}, {schedulerName: b, percentageOfNodesToScore: 0}]\n"
    )
    assert [found.percentage_for(profile) for profile in found.profiles] == [30, 0]
