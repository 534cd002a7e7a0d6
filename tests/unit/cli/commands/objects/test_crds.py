"""`bayplan crds`: print_crds and installed CRDs, and those that stay unchanged."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bayplan.cli import main
from bayplan.cli.commands.objects.crds import all_definitions
from bayplan.objects.volcano.definitions import installed_definitions
from support.harness.embedded_cluster import run_embedded_cluster
from support.harness.in_process_commands import UNREACHABLE_KUBECONFIG, CommandRunner

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def print_crds(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[list[dict[str, Any]], str]:
    main(["crds", *arguments])
    out, err = capsys.readouterr()
    return [each for each in yaml.load_all(out, yaml.CSafeLoader) if each], err


def test_all_crds_are_printed_without_a_cluster(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    found, err = print_crds(capsys)
    assert found == all_definitions()
    assert "there is no cluster to connect to" in err


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("--kubeconfig", "FILE"), id="its-file-is-named"),
        pytest.param(("--context", "x"), id="its-context-is-named"),
        pytest.param(("--master", "http://127.0.0.1:9"), id="its-address-is-named"),
        pytest.param(("--install",), id="it-is-to-have-them"),
    ],
)
def test_a_named_cluster_that_does_not_answer_is_an_error(
    run: CommandRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "config").write_text(UNREACHABLE_KUBECONFIG, encoding="utf-8")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    ended = run("crds", *(str(tmp_path / "config") if each == "FILE" else each for each in arguments))
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("error: ")
    assert "cannot read the CRDs of the cluster" not in ended.err


def test_all_crds_are_printed_if_the_default_cluster_does_not_answer(
    run: CommandRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text(UNREACHABLE_KUBECONFIG, encoding="utf-8")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    ended = run("crds")
    assert ended.code == 0
    assert [each for each in yaml.load_all(ended.out, yaml.CSafeLoader) if each] == all_definitions()
    assert "cannot read the CRDs of the cluster" in ended.err


def test_the_output_has_no_yaml_aliases(capsys: pytest.CaptureFixture[str]) -> None:
    main(["crds", "--all"])
    assert "&id" not in capsys.readouterr().out


def test_installed_crds_are_not_printed_and_not_changed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    queue = next(each for each in all_definitions() if each["spec"]["names"]["kind"] == "Queue")
    version = {**queue["spec"]["versions"][0], "schema": {"openAPIV3Schema": {"type": "object"}}}
    foreign = {**queue, "spec": {**queue["spec"], "versions": [version]}}

    async def run() -> tuple[list[str], list[str], dict[str, Any], list[str]]:
        async with run_embedded_cluster(tmp_path) as cluster:
            await cluster.create(DEFINITIONS, foreign)
            cluster.cluster.write_kubeconfig(tmp_path / "config", "test")
            chosen = ("--kubeconfig", str(tmp_path / "config"))
            before, _ = await asyncio.to_thread(print_crds, capsys, *chosen)
            await asyncio.to_thread(main, ["crds", "--install", *chosen])
            created = capsys.readouterr().out.splitlines()
            after, output = await asyncio.to_thread(print_crds, capsys, *chosen)
            installed = (await cluster.request("GET", f"{DEFINITIONS}/{queue['metadata']['name']}")).json
            names = [each["metadata"]["name"] for each in before]
            return names, created, installed, [*(each["metadata"]["name"] for each in after), output]

    before, created, installed, after = asyncio.run(run())
    others = [each["metadata"]["name"] for each in all_definitions() if each is not queue]
    assert before == others
    assert created == [f"{name} created" for name in others]
    assert "properties" not in installed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    message = "the cluster has all CRDs; these equal the installed ones, so applying them changes nothing\n"
    assert after == [*others, message]  # kubectl finds them unchanged; of nothing it would make a fault


def test_a_crd_of_another_version_is_reported_and_not_changed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    queue = next(each for each in all_definitions() if each["spec"]["names"]["kind"] == "Queue")
    foreign = {**queue, "spec": {**queue["spec"], "versions": [{**queue["spec"]["versions"][0], "name": "v1alpha1"}]}}

    async def run() -> list[str]:
        async with run_embedded_cluster(tmp_path) as cluster:
            await cluster.create(DEFINITIONS, foreign)
            cluster.cluster.write_kubeconfig(tmp_path / "config", "test")
            await asyncio.to_thread(main, ["crds", "--install", "--kubeconfig", str(tmp_path / "config")])
            return capsys.readouterr().out.splitlines()

    output = asyncio.run(run())
    assert output[-1].startswith(f"{queue['metadata']['name']} exists in another version and is unchanged")
    assert f"{queue['metadata']['name']} created" not in output


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda tree: tree["spec"]["versions"][0].update(additionalPrinterColumns=[]), id="fewer columns"),
        pytest.param(lambda tree: tree["metadata"].update(labels={"app": "volcano"}), id="a label"),
        pytest.param(lambda tree: tree["metadata"].update(annotations={"made-by": "helm"}), id="an annotation"),
    ],
)
def test_a_foreign_crd_is_not_printed_as_unchanged(change: Callable[[dict[str, Any]], None]) -> None:
    (own,) = [each for each in all_definitions() if each["spec"]["names"]["kind"] == "Queue"]
    foreign = copy.deepcopy(own)
    foreign["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    foreign["spec"]["conversion"] = {"strategy": "None"}
    assert list(installed_definitions([foreign], all_definitions())) == [own]
    change(foreign)
    assert list(installed_definitions([foreign], all_definitions())) == []


def test_with_foreign_crds_only_nothing_is_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    async def run() -> tuple[list[dict[str, Any]], str]:
        async with run_embedded_cluster(tmp_path) as cluster:
            for each in all_definitions():
                metadata = {**each["metadata"], "labels": {"app": "volcano"}}
                await cluster.create(DEFINITIONS, {**each, "metadata": metadata})
            cluster.cluster.write_kubeconfig(tmp_path / "config", "test")
            return await asyncio.to_thread(print_crds, capsys, "--kubeconfig", str(tmp_path / "config"))

    found, output = asyncio.run(run())
    assert (found, "there is none to apply" in output, "--install" in output) == ([], True, True)


def test_only_selects_a_resource_and_refuses_unknown_ones(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    async def run() -> list[str]:
        async with run_embedded_cluster(tmp_path) as cluster:
            cluster.cluster.write_kubeconfig(tmp_path / "config", "test")
            chosen = ("--only", "bindrequests", "--kubeconfig", str(tmp_path / "config"))
            await asyncio.to_thread(main, ["crds", "--install", *chosen])
            there = (await cluster.request("GET", DEFINITIONS)).json["items"]
            return [each["metadata"]["name"] for each in there]

    assert asyncio.run(run()) == ["bindrequests.scheduling.run.ai"]
    assert capsys.readouterr().out == "bindrequests.scheduling.run.ai created\n"
    found, _ = print_crds(capsys, "--all", "--only", "queues.scheduling.volcano.sh", "--only", "bindrequests")
    assert [each["spec"]["names"]["kind"] for each in found] == ["Queue", "BindRequest"]
    with pytest.raises(SystemExit) as ended:
        main(["crds", "--all", "--only", "bindrequest"])
    assert ended.value.code == 2
    assert "--only bindrequest: unknown resource; use one of " in capsys.readouterr().err


def test_every_field_of_a_bind_request_has_a_description() -> None:
    (definition,) = [each for each in all_definitions() if each["spec"]["names"]["kind"] == "BindRequest"]
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]

    def unexplained(tree: dict[str, Any], path: str) -> list[str]:
        fields = {**tree.get("properties", {}), **tree.get("items", {}).get("properties", {})}
        found = [] if tree.get("description") else [path]
        return found + [each for name, field in fields.items() for each in unexplained(field, f"{path}.{name}")]

    assert [unexplained(schema["properties"][part], part) for part in ("spec", "status")] == [[], []]
    assert schema["description"]
