"""`bayplan queue`, `job`, `podgroup`, `crds` and `admission`: help, output and requests."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from bayplan.cli import main
from bayplan.cli.commands.objects.crds import all_definitions
from support.harness.embedded_cluster import EmbeddedClusterClient, run_embedded_cluster
from support.harness.in_process_commands import CommandResult, CommandRunner

Tree = dict[str, Any]
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/{}/jobs"
GROUPS = "/apis/scheduling.volcano.sh/v1beta1/namespaces/{}/podgroups"
QUEUES = "/apis/scheduling.volcano.sh/v1beta1/queues"
COMMANDS = "/apis/bus.volcano.sh/v1alpha1/namespaces/{}/commands"

JOB_COLUMNS = [
    *("Name", "Creation", "Phase", "JobType", "Replicas", "Min"),
    *("Pending", "Running", "Succeeded", "Failed", "Unknown", "RetryCount"),
]


@pytest.mark.parametrize(
    "verb",
    [
        *(("queue", each) for each in ("list", "get", "create", "operate", "delete")),
        *(("job", each) for each in ("list", "view", "run", "suspend", "resume", "delete")),
        *(("podgroup", each) for each in ("list", "view", "delete")),
        *(("queue",), ("job",), ("podgroup",), ("crds",), ("admission",), ("admission", "manifests")),
    ],
    ids=" ".join,
)
def test_help_has_examples(verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    main([*verb, "--help"])
    _, found, examples = capsys.readouterr().out.partition("Examples:\n")
    assert found
    assert f"bayplan {' '.join(verb)}" in examples.partition("Options:")[0]


def job(name: str, queue: str = "default", scheduler: str = "volcano") -> Tree:
    template = {"spec": {"containers": [{"name": "c", "image": "none"}]}}
    tasks = [{"name": name, "replicas": count, "template": template} for name, count in (("head", 1), ("worker", 3))]
    spec = {"queue": queue, "schedulerName": scheduler, "tasks": tasks, "plugins": {"svc": [], "env": []}}
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def scheduling_object(kind: str, name: str, **spec: Any) -> Tree:
    return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": kind, "metadata": {"name": name}, "spec": spec}


class CommandHarness:
    """CommandHarness against a cluster that has Volcano's kinds, and nothing that acts on them."""

    def __init__(self, cluster: EmbeddedClusterClient, run: CommandRunner, kubeconfig: Path) -> None:
        self.cluster = cluster
        self._run = run
        self._kubeconfig = kubeconfig

    async def run(self, text: str) -> CommandResult:
        return await asyncio.to_thread(self._run, *text.split(), "--kubeconfig", self._kubeconfig)

    async def rows(self, text: str) -> list[list[str]]:
        """The cells of each line; none of them has a blank in it."""
        ended = await self.run(text)
        assert (ended.code, ended.err) == (0, "")
        return [line.split() for line in ended.out.splitlines()]

    async def first_column(self, text: str) -> list[str]:
        return [row[0] for row in (await self.rows(text))[1:]]

    async def items(self, path: str) -> list[Tree]:
        found: list[Tree] = (await self.cluster.request("GET", path)).json["items"]
        return found


def run_with_volcano(tmp_path: Path, run: CommandRunner, steps: Any) -> None:
    async def work() -> None:
        async with run_embedded_cluster(tmp_path) as cluster:
            for each in all_definitions():
                await cluster.create(DEFINITIONS, each)
            await cluster.create("/api/v1/namespaces", {"metadata": {"name": "ml"}})
            cluster.cluster.write_kubeconfig(tmp_path / "config", "test")
            await steps(CommandHarness(cluster, run, tmp_path / "config"))

    asyncio.run(work())


def test_jobs_are_listed(tmp_path: Path, run: CommandRunner) -> None:
    async def steps(commands: CommandHarness) -> None:
        assert (await commands.run("job list")).out == "No resources found\n"
        make = commands.cluster.create
        for name, queue, scheduler in (("hello", "default", "volcano"), ("train", "gpus", "members")):
            await make(JOBS.format("default"), job(name, queue, scheduler))
        created_job = await make(JOBS.format("ml"), job("hello"))
        for arguments, names in {
            "": ["hello", "train"],
            "-n ml": ["hello"],
            "-q gpus": ["train"],
            "-S members": ["train"],
            "-q gpus -S volcano": [],
            "--selector ell": ["hello"],
            "--selector x": [],
        }.items():
            assert await commands.first_column(f"job list {arguments}") == names, arguments
        everywhere = await commands.rows("job list -A")
        assert [row[:2] for row in everywhere] == [
            ["Namespace", "Name"],
            ["default", "hello"],
            ["default", "train"],
            ["ml", "hello"],
        ]
        assert (await commands.rows("job list"))[0] == JOB_COLUMNS
        status = {"state": {"phase": "Running"}, "running": 2, "failed": 1, "retryCount": 4}
        answer = await commands.cluster.request(
            "PUT",
            f"{JOBS.format('ml')}/hello/status",
            {**created_job, "status": status},
            Content_Type="application/json",
        )
        assert answer.code == 200, answer.text
        created = created_job["metadata"]["creationTimestamp"][:10]
        row = (await commands.rows("job list -n ml"))[1]
        assert row == ["hello", created, "Running", "Batch", *["4", "4", "0", "2", "0", "1", "0", "4"]]
        found = json.loads((await commands.run("job list -A -q gpus -o json")).out)["items"]
        assert [(each["kind"], each["metadata"]["name"]) for each in found] == [("Job", "train")]

    run_with_volcano(tmp_path, run, steps)


def test_the_lifecycle_of_a_job(tmp_path: Path, run: CommandRunner) -> None:
    async def steps(commands: CommandHarness) -> None:
        ended = await commands.run("job run --name hello --replicas 3 --min 2 -S members -R cpu=1 -L cpu=2 -i busybox")
        assert ended.out == "run job hello successfully\n"
        (created_job,) = await commands.items(JOBS.format("default"))
        (task,) = created_job["spec"]["tasks"]
        assert (created_job["spec"]["minAvailable"], created_job["spec"]["schedulerName"], task["replicas"]) == (
            2,
            "members",
            3,
        )
        (container,) = task["template"]["spec"]["containers"]
        assert container["resources"] == {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}
        lines = (await commands.run("job view hello")).out.splitlines()
        shown = dict(line.split(maxsplit=1) for line in lines if line.startswith(("Name:", "Namespace:", "Scheduler:")))
        assert shown == {"Name:": "hello", "Namespace:": "default", "Scheduler:": "members"}
        assert "  task   3          3     <none>" in lines
        assert lines[-1] == "Events: <none>"
        assert yaml.safe_load((await commands.run("job view -N hello -o yaml")).out)["metadata"]["name"] == "hello"
        for verb, action in (("suspend", "AbortJob"), ("resume", "ResumeJob")):
            assert (await commands.run(f"job {verb} hello")).out == f"{verb} job hello successfully\n"
            found = await commands.items(COMMANDS.format("default"))
            (sent,) = [each for each in found if each["action"] == action]
            (owner,) = sent["metadata"]["ownerReferences"]
            assert (owner["kind"], owner["name"], owner["uid"]) == ("Job", "hello", created_job["metadata"]["uid"])
            assert sent["target"]["name"] == "hello"
        assert (await commands.run("job delete hello")).out == "delete job hello successfully\n"
        assert (await commands.run("job delete hello")).code == 1
        for verb in ("view", "suspend", "delete"):
            ended = await commands.run(f"job {verb}")
            assert (ended.code, "no job selected; give its name" in ended.err) == (2, True)

    run_with_volcano(tmp_path, run, steps)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "kind: Job\napiVersion: batch/v1\nmetadata: {name: a}", "must contain one Job", id="of-kubernetes"
        ),
        pytest.param("JOB\n---\nJOB", "must contain one Job", id="two"),
        pytest.param("JOB\n---\nkind: Pod\napiVersion: v1\nmetadata: {name: a}", "nothing else", id="and-a-pod"),
        pytest.param("NAMED", "leave out --namespace ml", id="another-namespace"),
        pytest.param("", "must contain one Job", id="empty"),
    ],
)
def test_invalid_job_files_are_refused(tmp_path: Path, run: CommandRunner, text: str, expected: str) -> None:
    named = {**job("a"), "metadata": {"name": "a", "namespace": "default"}}
    path = tmp_path / "job.yaml"
    path.write_text(
        text.replace("JOB", yaml.safe_dump(job("a"))).replace("NAMED", yaml.safe_dump(named)), encoding="utf-8"
    )
    ended = run("job", "run", "-f", path, "-n", "ml", "--master", "http://127.0.0.1:9")
    assert (ended.code, ended.out) == (2, "")
    assert expected in ended.err


@pytest.mark.parametrize("namespace", ["", "ml"])
def test_the_job_of_a_file_is_created_in_its_namespace(tmp_path: Path, run: CommandRunner, namespace: str) -> None:
    async def steps(commands: CommandHarness) -> None:
        named = {"namespace": namespace} if namespace else {}
        path = tmp_path / "job.yaml"
        path.write_text(json.dumps({**job("a"), "metadata": {"name": "a", **named}}), encoding="utf-8")
        assert (await commands.run(f"job run -f {path}")).out == "run job a successfully\n"
        (created_job,) = await commands.items(JOBS.format(namespace or "default"))
        assert created_job["metadata"]["name"] == "a"

    run_with_volcano(tmp_path, run, steps)


@pytest.mark.parametrize("amounts", ["cpu", "cpu=1=2", "cpu=many"])
def test_invalid_amounts_are_refused(run: CommandRunner, amounts: str) -> None:
    ended = run("job", "run", "--name", "a", "-R", amounts, "--master", "http://127.0.0.1:9")
    assert (ended.code, ended.out) == (2, "")
    assert "127.0.0.1" not in ended.err, "no cluster is asked"


def test_pod_groups_are_listed_viewed_and_deleted(tmp_path: Path, run: CommandRunner) -> None:
    async def steps(commands: CommandHarness) -> None:
        make = commands.cluster.create
        for namespace, name, queue in (("default", "a", ""), ("default", "b", "gpus"), ("ml", "c", "gpus")):
            spec = {"minMember": 2, **({"queue": queue} if queue else {})}
            await make(GROUPS.format(namespace), scheduling_object("PodGroup", name, **spec))
        for arguments, names in {
            "": ["a", "b"],
            "-n ml": ["c"],
            "-q gpus": ["b"],
            "-q default": ["a"],
            "-q none": ["No"],
        }.items():
            found = [row[0] for row in await commands.rows(f"podgroup list {arguments}") if row[0] != "Name"]
            assert found == names, arguments
        everywhere = await commands.rows("podgroup list -A -q gpus")
        assert [row[:2] for row in everywhere] == [["Namespace", "Name"], ["default", "b"], ["ml", "c"]]
        found = json.loads((await commands.run("podgroup list -A -o json")).out)["items"]
        assert [(each["kind"], each["metadata"]["name"]) for each in found] == [("PodGroup", each) for each in "abc"]
        for name, group in (("members", "b"), ("theirs", "a")):
            meta = {"name": name, "annotations": {"scheduling.k8s.io/group-name": group}}
            containers = [{"name": "c", "image": "none"}]
            await make("/api/v1/namespaces/default/pods", {"metadata": meta, "spec": {"containers": containers}})
        lines = (await commands.run("podgroup view b")).out.splitlines()
        assert lines[1].split()[0] == "b"
        assert lines[2:] == ["Conditions: <none>", "Pods:", "  members  Pending  <no node>"]
        assert (await commands.run("podgroup delete b")).out == "delete podgroup b successfully\n"
        assert await commands.first_column("podgroup list") == ["a"]

    run_with_volcano(tmp_path, run, steps)


def test_the_lifecycle_of_a_queue(tmp_path: Path, run: CommandRunner) -> None:
    async def steps(commands: CommandHarness) -> None:
        assert (await commands.run("queue create gpus --weight 4")).out == "create queue gpus successfully\n"
        await commands.run("queue create -n team --parent gpus")
        await commands.run("queue create closed -S Closed")
        for name, phase in (("a", "Running"), ("b", "Running"), ("c", "Pending")):
            group = scheduling_object("PodGroup", name, queue="gpus", minMember=2)
            await commands.cluster.create(GROUPS.format("ml"), {**group, "status": {"phase": phase}})
        by_name = {each["metadata"]["name"]: each for each in await commands.items(QUEUES)}
        assert [by_name["gpus"]["spec"]["weight"], by_name["team"]["spec"]["parent"]] == [4, "gpus"]
        assert by_name["closed"]["status"]["state"] == "Closed"
        header, *rows = await commands.rows("queue list")
        assert header[-5:] == ["Inqueue", "Pending", "Running", "Unknown", "Completed"]
        assert [row[-5:] for row in rows if row[0] == "gpus"] == [["0", "1", "2", "0", "0"]]
        assert [row[-5:] for row in rows if row[0] == "team"] == [["0"] * 5]
        assert (await commands.rows("queue get gpus"))[1][-5:] == ["0", "1", "2", "0", "0"]
        assert json.loads((await commands.run("queue get -n gpus -o json")).out)["metadata"]["name"] == "gpus"
        assert (await commands.run("queue operate gpus -a update -w 8")).out == "update queue gpus successfully\n"
        assert (await commands.rows("queue get gpus"))[1][1] == "8"
        for action, order in (("close", "CloseQueue"), ("open", "OpenQueue")):
            assert (await commands.run(f"queue operate gpus -a {action}")).code == 0
            sent = [each for each in await commands.items(COMMANDS.format("default")) if each["action"] == order]
            assert [each["target"]["name"] for each in sent] == ["gpus"]
            assert "ownerReferences" not in sent[0]["metadata"], "a queue owns nothing in a namespace"
        assert (await commands.run("queue delete gpus")).out == "delete queue gpus successfully\n"
        assert "gpus" not in await commands.first_column("queue list")
        ended = await commands.run("queue operate gpus -a update")
        assert (ended.code, "weight must be specified" in ended.err) == (2, True)

    run_with_volcano(tmp_path, run, steps)
