"""kube-scheduler's flags: syntax, values, and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from bayplan.cli.commands.processes.run import command as both_engines
from bayplan.cli.commands.processes.scheduler import command
from bayplan.cli.commands.processes.scheduler_setup import apply_flags, process_options
from bayplan.cli.flags.go_command import FlagError, GoCommand
from bayplan.cli.flags.kube_scheduler_flags import KUBE_SCHEDULER_FLAGS
from bayplan.codec.go_duration import GoDuration
from bayplan.config.load import dump, load, load_default
from bayplan.config.model import Configuration
from bayplan.config.serving_flags import ServingFlags
from bayplan.errors import BayplanError, ConfigError
from bayplan.plugins import default_plugins
from support.harness.in_process_commands import UNREACHABLE_KUBECONFIG


def given(*arguments: str) -> dict[str, Any]:
    """The parameters that click hands to the command."""
    assert isinstance(command, GoCommand)
    context = click.Context(command, info_name="scheduler", parent=click.Context(command, info_name="bayplan"))
    command.parse_args(context, list(arguments))
    return dict(context.params)


def flags(*arguments: str) -> dict[str, Any]:
    assert isinstance(command, GoCommand)
    return command.values(given(*arguments))


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        pytest.param(["--leader-elect"], "leader-elect", True, id="switch"),
        pytest.param(["--leader-elect=false"], "leader-elect", False, id="switched-off"),
        pytest.param(["--leader-elect=T", "--leader-elect=0"], "leader-elect", False, id="the-last-counts"),
        pytest.param([], "leader-elect", None, id="not-given"),
        pytest.param(["--leader_elect"], "leader-elect", True, id="underscores"),
        pytest.param(["--leader-elect", "--secure-port", "1"], "secure-port", 1, id="after-a-switch"),
        pytest.param(["--config", "--leader-elect"], "config", "--leader-elect", id="a-value-is-no-flag"),
        pytest.param(["-v=3"], "v", 3, id="short-with-equals"),
        pytest.param(["-v", "3"], "v", 3, id="short-with-space"),
        pytest.param(["-v3"], "v", 3, id="short-together"),
        pytest.param(["--v=3"], "v", 3, id="long"),
        pytest.param(
            ["--tls-cipher-suites=A,B", "--tls-cipher-suites", "C"], "tls-cipher-suites", ("A", "B", "C"), id="list"
        ),
        pytest.param([], "requestheader-group-headers", ("x-remote-group",), id="list-default"),
        pytest.param(["--requestheader-group-headers=a"], "requestheader-group-headers", ("a",), id="replaces-default"),
        pytest.param(["--kube-api-qps=1.5"], "kube-api-qps", 1.5, id="float"),
        pytest.param(["--bind-address=::1"], "bind-address", "::1", id="ip"),
        pytest.param(
            ["--allow-metric-labels=m,l=a,b"], "allow-metric-labels", (("m,l", "a,b"),), id="one-pair-with-commas"
        ),
        pytest.param(
            ["--leader-elect-retry-period=1m30s"], "leader-elect-retry-period", GoDuration.of_seconds(90), id="duration"
        ),
    ],
)
def test_the_value_of_a_flag(arguments: list[str], name: str, value: object) -> None:
    assert flags(*arguments)[name] == value


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["--nope"], "unknown flag: --nope", id="unknown"),
        pytest.param(["x", "y"], '"bayplan scheduler" does not take any arguments, got ["x", "y"]', id="positional"),
        pytest.param(["--leader-elect", "false"], 'take any arguments, got ["false"]', id="a-switch-takes-no-word"),
        pytest.param(
            ["--leader-elect=maybe"],
            'invalid argument "maybe" for "--leader-elect" flag: strconv.ParseBool: parsing "maybe": invalid syntax',
            id="bool",
        ),
        pytest.param(["--secure-port=x"], 'strconv.ParseInt: parsing "x": invalid syntax', id="int"),
        pytest.param(["--kube-api-burst=3000000000"], "value out of range", id="int32"),
        pytest.param(["--kube-api-qps=fast"], 'strconv.ParseFloat: parsing "fast": invalid syntax', id="float"),
        pytest.param(["-v", "x"], '"-v, --v" flag: strconv.ParseUint: parsing "x": invalid syntax', id="level"),
        pytest.param(["--v=-1"], 'strconv.ParseUint: parsing "-1": invalid syntax', id="negative-level"),
        pytest.param(["--vmodule=x"], '"x" does not have the pattern=N format', id="vmodule"),
        pytest.param(["--bind-address=x"], 'failed to parse IP: "x"', id="ip"),
        pytest.param(["--allow-metric-labels=x"], "x must be formatted as key=value", id="map"),
        pytest.param(
            ["--leader-elect-lease-duration=5"],
            'for "--leader-elect-lease-duration" flag: time: missing unit in duration "5"',
            id="duration",
        ),
    ],
)
def test_invalid_flags_are_errors(arguments: list[str], words: str) -> None:
    with pytest.raises(FlagError) as caught:
        flags(*arguments)
    assert words in str(caught.value)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["--secure-port=70000"], "must be between 1 and 65535", id="port"),
        pytest.param(["--secure-port=-1"], "must be between 0 and 65535", id="negative-port"),
        pytest.param(["--tls-min-version=1.2"], 'unknown tls version "1.2"', id="tls-version"),
        pytest.param(["--tls-cert-file=x"], "belong together", id="half-a-pair"),
        pytest.param(["--requestheader-allowed-names= "], 'empty value in "requestheader-allowed-names"', id="white"),
        pytest.param(["--show-hidden-metrics-for-version=1.2"], "or have the value '1.35'", id="hidden"),
        pytest.param(["--feature-gates=x"], "missing bool value for x", id="gate"),
        pytest.param(["--emulated-version=1.30"], "emulation version 1.30 is not between [1.33, 1.36.0]", id="version"),
    ],
)
def test_invalid_values_are_errors(arguments: list[str], words: str) -> None:
    with pytest.raises(BayplanError) as caught:
        process_options(flags(*arguments), {}, None)
    assert words in str(caught.value)


def test_the_server_gets_every_flag_of_its_own() -> None:
    arguments = [
        "--bind-address=127.0.0.1",
        "--secure-port=0",
        "--authentication-kubeconfig=/a",
        "--authorization-always-allow-paths=/healthz,/metrics",
        "--client-ca-file=/ca",
        "--feature-gates=kube:SchedulerPopFromBackoffQ=false,Other=true",
        "--pod-max-in-unschedulable-pods-duration=1m",
    ]
    assert isinstance(command, GoCommand)
    options = process_options(flags(*arguments), command.texts(given(*arguments)), None)
    serving = options.serving
    assert (serving.bind_address, serving.secure_port, serving.client_ca_file) == ("127.0.0.1", 0, "/ca")
    assert serving.authorization_always_allow_paths == ("/healthz", "/metrics")
    assert serving.flag_texts["bind-address"] == "127.0.0.1"
    assert serving.flag_texts["authorization-always-allow-paths"] == "[/healthz,/metrics]"
    assert not serving.features.enabled("SchedulerPopFromBackoffQ")
    assert options.max_in_unschedulable_pods == GoDuration.of_seconds(60)


def test_without_flags_the_server_has_its_defaults() -> None:
    assert isinstance(command, GoCommand)
    serving = process_options(flags(), command.texts(given()), None).serving
    assert serving == ServingFlags(flag_texts=serving.flag_texts)
    assert set(serving.flag_texts) == {flag.name for flag in KUBE_SCHEDULER_FLAGS}


def configuration(**settings: str) -> Configuration:
    kinds = default_plugins().args_kinds
    head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    text = head + "".join(f"{key}: {value}\n" for key, value in settings.items())
    return load(text, args_kinds=kinds) if settings else load_default(args_kinds=kinds)


def test_election_flags_override_the_file() -> None:
    found = apply_flags(
        configuration(leaderElection="{leaderElect: true, resourceName: mine}"),
        flags("--leader-elect=false", "--leader-elect-resource-namespace=here"),
        alone=False,
    ).leader_election
    assert (found.leader_elect, found.resource_name, found.resource_namespace) == (False, "mine", "here")


def test_connection_flags_count_only_without_a_file() -> None:
    some = flags("--kube-api-qps=7", "--kube-api-burst=8", "--kubeconfig=/k", "--profiling=false")
    alone = apply_flags(configuration(), some, alone=True)
    beside = apply_flags(configuration(clientConnection="{qps: 3}"), some, alone=False)
    connection = alone.client_connection
    assert (connection.qps, connection.burst, connection.kubeconfig) == (7.0, 8, "/k")
    assert (alone.enable_profiling, beside.enable_profiling) == (False, True)
    assert (beside.client_connection.qps, beside.client_connection.kubeconfig) == (3.0, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["--leader-elect-lease-duration=5s"], "must be greater than `RenewDeadline`", id="election"),
        pytest.param(["--kube-api-burst=0"], "burst is required to be greater than 0", id="burst"),
    ],
)
def test_flags_with_an_invalid_configuration_are_errors(arguments: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        apply_flags(configuration(), flags(*arguments), alone=True)


def run(*arguments: str, verb: click.Command = command) -> None:
    verb.main(args=list(arguments), prog_name="scheduler", standalone_mode=False)


@pytest.mark.parametrize("verb", [command, both_engines], ids=["scheduler", "run"])
def test_the_effective_configuration_is_written_and_can_be_read(tmp_path: Path, verb: click.Command) -> None:
    kubeconfig, written = tmp_path / "config", tmp_path / "written.yaml"
    kubeconfig.write_text(UNREACHABLE_KUBECONFIG)
    run("--kubeconfig", str(kubeconfig), "--leader-elect=false", "--write-config-to", str(written), verb=verb)
    text = written.read_text()
    found = load(text, args_kinds=default_plugins().args_kinds)
    assert dump(found) == yaml.safe_load(text)
    assert found.client_connection.kubeconfig == str(kubeconfig)
    assert not found.leader_election.leader_elect
    assert list(yaml.safe_load(text)) == sorted(yaml.safe_load(text))


@pytest.mark.parametrize(
    ("gates", "caught"),
    [
        pytest.param("GangSchedulling=true", "GangSchedulling {}; did you mean GangScheduling?", id="a-slip"),
        pytest.param("Nope=true", "Nope {}", id="nothing-near"),
        pytest.param("SchedulerPopFromBackoffQ=false,GenericWorkload=true", "", id="known"),
    ],
)
def test_an_unknown_feature_gate_is_warned_about(gates: str, caught: str, caplog: pytest.LogCaptureFixture) -> None:
    options = process_options(flags("--feature-gates", gates), {}, None)
    expected = [f"feature gate {caught.format('is unknown to Bayplan and has no effect')}"] if caught else []
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == expected
    assert options.serving.features.set_gates


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["--config", "missing.yaml"], "cannot read missing.yaml", id="no-config"),
        pytest.param(["--kubeconfig", "missing"], "cannot read the kubeconfig missing", id="no-kubeconfig"),
        pytest.param(["--settings", "missing.yaml"], "cannot read missing.yaml", id="no-settings"),
        pytest.param(["--plugins-dir", "missing"], "missing is not a folder", id="no-plugins"),
    ],
)
def test_missing_files_are_reported(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BayplanError) as caught:
        run(*arguments)
    assert words in str(caught.value)


def test_an_invalid_configuration_is_reported_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.yaml"
    head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    path.write_text(head + "profiles: [{plugins: {score: {enabled: [{name: Nope}]}}}]\n")
    with pytest.raises(ConfigError) as caught:
        run("--config", str(path))
    assert str(caught.value).startswith(str(path))
    assert "known plugins: " in str(caught.value)


def test_help_has_sections() -> None:
    context = click.Context(command, info_name="scheduler")
    text = command.get_help(context)
    for section in ("Secure serving:", "Leader election:", "Logs:", "Bayplan's own:"):
        assert section in text
