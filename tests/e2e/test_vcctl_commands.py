"""`bayplan queue`, `job` and `podgroup` on both API servers, with Volcano's controllers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import yaml

from bayplan.cli import main
from bayplan.cli.commands.objects.crds import all_definitions
from bayplan.controllers.volcano.resources import QUEUES, VC_JOBS
from cluster.run import Cluster
from support.builders.volcano_manifests import job, task
from support.harness.volcano_controllers import async_test, run_controllers


class Verbs:
    """Runs commands of the command line."""

    def __init__(self, cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
        self._config = str(cluster.kubeconfig())
        self._capsys = capsys

    async def say(self, *arguments: str) -> str:
        await asyncio.to_thread(main, [*arguments, "-k", self._config])
        return self._capsys.readouterr().out

    async def fail(self, *arguments: str) -> str:
        with pytest.raises(SystemExit):
            await asyncio.to_thread(main, [*arguments, "-k", self._config])
        return self._capsys.readouterr().err


@async_test
async def test_queues(cluster: Cluster, namespace: str, capsys: pytest.CaptureFixture[str]) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        verbs = Verbs(cluster, capsys)
        assert await verbs.say("queue", "create", "team", "-w", "4") == "create queue team successfully\n"
        await here.until(QUEUES, "team", lambda queue: queue.get("status", {}).get("state") == "Open")
        lines = (await verbs.say("queue", "list")).splitlines()
        assert lines[0].split() == [
            *("Name", "Weight", "State", "Parent", "Inqueue", "Pending", "Running", "Unknown", "Completed")
        ]
        assert [line.split() for line in lines if line.startswith("team")] == [["team", "4", "Open", "root", *"00000"]]
        await verbs.say("queue", "operate", "-n", "team", "-a", "close")
        await here.until(QUEUES, "team", lambda queue: queue["status"]["state"] == "Closed")
        await verbs.say("queue", "operate", "team", "-a", "open")
        await here.until(QUEUES, "team", lambda queue: queue["status"]["state"] == "Open")
        await verbs.say("queue", "operate", "team", "-a", "update", "-w", "7")
        assert json.loads(await verbs.say("queue", "get", "team", "-o", "json"))["spec"]["weight"] == 7
        assert "weight must be specified" in await verbs.fail("queue", "operate", "team", "-a", "update")
        assert await verbs.say("queue", "delete", "team") == "delete queue team successfully\n"
        assert "not found" in await verbs.fail("queue", "get", "team")
        assert "no queue selected; give its name" in await verbs.fail("queue", "get")


@async_test
async def test_jobs_and_their_groups(cluster: Cluster, namespace: str, capsys: pytest.CaptureFixture[str]) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        verbs = Verbs(cluster, capsys)
        assert await verbs.say("job", "list", "-n", namespace) == "No resources found\n"
        run = ("job", "run", "-N", "hello", "-n", namespace, "-r", "2", "-m", "2", "-R", "cpu=100m", "-L", "cpu=200m")
        assert await verbs.say(*run) == "run job hello successfully\n"
        await here.job("hello", "Running")
        lines = (await verbs.say("job", "list", "-A")).splitlines()
        (line,) = (each.split() for each in lines if each.startswith(f"{namespace} "))
        assert line[1] == "hello"
        assert line[3:] == ["Running", "Batch", "2", "2", "0", "2", "0", "0", "0", "0"]
        shown = await verbs.say("job", "view", "hello", "-n", namespace)
        assert "2 Running" in shown
        groups = yaml.safe_load(await verbs.say("podgroup", "list", "-n", namespace, "-o", "yaml"))["items"]
        (name,) = [each["metadata"]["name"] for each in groups]
        viewed = await verbs.say("podgroup", "view", name, "-n", namespace)
        assert "hello-task-0  Running" in viewed
        assert name in await verbs.say("podgroup", "list", "-A", "-q", "default")
        assert await verbs.say("podgroup", "list", "-A", "-q", "other") == "No resources found\n"
        await verbs.say("job", "suspend", "hello", "-n", namespace)
        await here.job("hello", "Aborted")
        await verbs.say("job", "resume", "hello", "-n", namespace)
        await here.job("hello", "Running")
        assert (
            json.loads(await verbs.say("job", "view", "hello", "-n", namespace, "-o", "json"))["spec"]["minAvailable"]
            == 2
        )
        await verbs.say("job", "delete", "hello", "-n", namespace)
        await here.gone(VC_JOBS, "hello")


@async_test
async def test_a_job_of_a_file(
    cluster: Cluster, namespace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with run_controllers(cluster.target(), namespace) as here:
        verbs = Verbs(cluster, capsys)
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(job("filed", task("worker"), queue="nowhere")))
        await verbs.say("job", "run", "-f", str(path), "-n", namespace)
        await here.until(VC_JOBS, "filed", lambda each: each.get("status"))
        assert "queue nowhere does not exist" in await verbs.say("job", "view", "filed", "-n", namespace)
        tree = job("x", task("worker"))
        tree["metadata"] = {"generateName": "drawn-", "namespace": namespace}
        path.write_text(yaml.safe_dump(tree))
        said = await verbs.say("job", "run", "-f", str(path))  # the file sets its namespace
        name = said.removeprefix("run job ").removesuffix(" successfully\n")
        assert name.startswith("drawn-")
        assert (await here.get(VC_JOBS, name))["metadata"]["namespace"] == namespace
        assert "has the namespace" in await verbs.fail("job", "run", "-f", str(path), "-n", "elsewhere")
        path.write_text("kind: Pod\napiVersion: v1\n")
        assert "must contain one Job" in await verbs.fail("job", "run", "-f", str(path))
        assert "expected <resource>=<value>" in await verbs.fail("job", "run", "-N", "x", "-R", "cpu")


@async_test
async def test_definitions_can_be_applied_repeatedly(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    verbs = Verbs(cluster, capsys)
    for _ in range(2):  # objects created without kubectl get the last-applied annotation
        cluster.kubectl("apply", "-f", "-", stdin=await verbs.say("crds"))
    kept = cluster.kubectl("get", "crds", "-o=jsonpath={.items[*].metadata.resourceVersion}")
    said = cluster.kubectl("apply", "-f", "-", stdin=await verbs.say("crds"))
    assert {line.rpartition(" ")[2] for line in said.splitlines()} == {"unchanged"}
    assert len(said.splitlines()) == len(all_definitions())
    assert cluster.kubectl("get", "crds", "-o=jsonpath={.items[*].metadata.resourceVersion}") == kept
