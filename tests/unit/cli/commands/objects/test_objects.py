"""`bayplan get`, `apply`, `delete` and `top` on a cluster, and their errors."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bayplan import Cluster
from bayplan.cli.cluster_folder import ClusterFolder, RunningCluster
from bayplan.cli.commands.objects.get import _WatchOutage, parse_targets
from bayplan.cli.connection import ClusterConnection
from bayplan.clock import ManualClock
from bayplan.errors import KubeconfigError, ServerError, UsageError
from support.harness.cluster_command_line import CommandOutput, InProcessCommandLine, live_cluster

WEB = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: nginx}]}
"""
DEFINITION = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ships.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: ships, singular: ship, kind: Ship, shortNames: [sh]}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {berth: {type: string}}}}}}
    additionalPrinterColumns: [{name: Berth, type: string, jsonPath: .spec.berth}]
"""


def tree(kind: str, name: str, **more: Any) -> str:
    """A manifest as JSON."""
    labels = more.pop("labels", {})
    return json.dumps({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "labels": labels}, **more})


SHIP = "{apiVersion: example.com/v1, kind: Ship, metadata: {name: maria}, spec: {berth: north}}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with live_cluster(nodes=3, zones=3) as running:
        yield running


@pytest.fixture
def bayplan(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> InProcessCommandLine:  # noqa: ARG001
    return InProcessCommandLine(capsys)


@pytest.fixture
def manifest(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "manifest.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def sentence(ended: CommandOutput, code: int = 1) -> str:
    assert (ended.code, ended.out) == (code, "")
    assert ended.err.count("\n") == 1, ended.err
    assert ended.err.startswith("error: ")
    return ended.err


# get.


def test_the_server_chooses_the_columns(bayplan: InProcessCommandLine) -> None:
    head, *rows = bayplan.lines("get", "nodes")
    assert head.split() == ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    assert [row.split()[:2] for row in rows] == [[f"node-{number}", "Ready"] for number in range(3)]
    assert "INTERNAL-IP" in bayplan.lines("get", "no", "-o", "wide")[0]
    assert bayplan.lines("get", "nodes", "--no-headers")[0].startswith("node-0 ")


def test_names_and_several_kinds(bayplan: InProcessCommandLine) -> None:
    assert bayplan.lines("get", "node/node-1", "ns/default", "-o", "name") == ["node/node-1", "namespace/default"]
    several = bayplan.lines("get", "ns,nodes")
    assert any(line.startswith("namespace/default ") for line in several)
    assert any(line.startswith("node/node-0 ") for line in several)
    everywhere = bayplan.lines("get", "serviceaccounts", "-A")
    assert everywhere[0].split()[:2] == ["NAMESPACE", "NAME"]
    assert {"default", "kube-system"} <= {line.split()[0] for line in everywhere[1:]}


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_whole_objects(bayplan: InProcessCommandLine, form: str, read: Callable[[str], dict[str, object]]) -> None:
    one = read(bayplan("get", "node", "node-2", "-o", form).out)
    assert (one["kind"], one["metadata"]["name"]) == ("Node", "node-2")  # type: ignore[index]
    assert "managedFields" not in one["metadata"]  # type: ignore[operator]
    many = read(bayplan("get", "nodes", "-o", form).out)
    assert (many["kind"], len(many["items"])) == ("List", 3)  # type: ignore[arg-type]
    assert {each["kind"] for each in many["items"]} == {"Node"}  # type: ignore[attr-defined]


def test_an_empty_list_says_so_and_is_no_error(bayplan: InProcessCommandLine) -> None:
    assert bayplan("get", "ingresses") == (0, "", "no objects found in the namespace default\n")


def test_selectors(bayplan: InProcessCommandLine) -> None:
    chosen = bayplan.lines("get", "nodes", "-l", "topology.kubernetes.io/zone=zone-1", "-o", "name")
    assert chosen == ["node/node-1"]
    assert bayplan.lines("get", "ns", "--field-selector", "metadata.name=default", "-o", "name") == [
        "namespace/default"
    ]


def test_a_watch_runs_until_it_is_stopped(cluster: Cluster) -> None:
    """In a process of its own, because the signal of Ctrl-C ends it."""
    cluster.run(cluster.apply(tree("ConfigMap", "first", labels={"seen": "yes"})))
    command = [sys.executable, "-u", "-m", "bayplan", "get", "configmaps", "--watch", "--no-headers", "-l", "seen=yes"]
    env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as watch:
        assert watch.stdout is not None
        try:
            assert watch.stdout.readline().startswith("first ")
            cluster.run(cluster.apply(tree("ConfigMap", "later", labels={"seen": "yes"})))
            assert watch.stdout.readline().startswith("later ")
        finally:
            watch.send_signal(signal.SIGINT)
            _, stderr = watch.communicate(timeout=60)
    assert (watch.returncode, stderr) == (130, "stopped\n")


def test_a_watch_ends_when_the_server_has_ended(tmp_path: Path) -> None:
    env = {**os.environ, "HOME": str(tmp_path)}
    with Cluster(nodes=0) as short:
        env["KUBECONFIG"] = str(tmp_path / "config")
        (tmp_path / "config").write_bytes(short.kubeconfig.read_bytes())
        command = [sys.executable, "-u", "-m", "bayplan", "get", "namespaces", "--watch"]
        watch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        assert watch.stdout is not None
        assert watch.stdout.readline().startswith("NAME ")
    _, stderr = watch.communicate(timeout=60)
    first, last = stderr.splitlines()
    assert first.startswith("the watch was interrupted (")
    assert last.startswith("error: ")
    assert "is it running? The address is from" in last
    assert watch.returncode == 1


def test_a_long_outage_ends_a_watch(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    outage = _WatchOutage(clock)
    fault = ServerError("GET /api/v1/pods: 500 refused: etcd is outage", code=500)
    for _ in range(2):
        for _ in range(29):
            outage.record_failure(fault)
            clock.advance(1.0)
        outage.record_success()
    for _ in range(30):
        outage.record_failure(fault)
        clock.advance(1.0)
    with pytest.raises(ServerError):
        outage.record_failure(fault)
    assert capsys.readouterr().err.count("the watch was interrupted") == 3


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        pytest.param(["pods"], [("pods", "")], id="kind"),
        pytest.param(["pods,nodes"], [("pods", ""), ("nodes", "")], id="kinds"),
        pytest.param(["pod", "a", "b"], [("pod", "a"), ("pod", "b")], id="names"),
        pytest.param(["pod/a", "node/b"], [("pod", "a"), ("node", "b")], id="slashes"),
    ],
)
def test_forms_of_object_arguments(what: list[str], expected: list[tuple[str, str]]) -> None:
    assert list(parse_targets(what)) == expected


@pytest.mark.parametrize("what", [["pod/a", "b"], ["pod/"], ["/a"]], ids=" ".join)
def test_invalid_object_arguments_are_refused(what: list[str]) -> None:
    with pytest.raises(UsageError, match="KIND/NAME"):
        list(parse_targets(what))


# apply and delete


def test_from_apply_to_delete(bayplan: InProcessCommandLine, manifest: Callable[[str], Path]) -> None:
    path = manifest(WEB)
    assert bayplan.lines("apply", "-f", path) == ["deployment.apps/web created"]
    assert bayplan.lines("apply", "-f", manifest(WEB.replace("2", "3"))) == ["deployment.apps/web configured"]
    assert bayplan.lines("apply", "-f", manifest(WEB.replace("2", "3")))[0].split()[1] in ("unchanged", "configured")
    assert bayplan.lines("delete", "-f", path) == ["deployment.apps/web deleted"]
    assert "not found" in sentence(bayplan("get", "deploy", "web"))


def test_a_dry_run_stores_nothing(bayplan: InProcessCommandLine, manifest: Callable[[str], Path]) -> None:
    path = manifest(tree("ConfigMap", "dry"))
    assert bayplan.lines("apply", "-f", path, "--dry-run") == ["configmap/dry created (server dry run)"]
    assert "not found" in sentence(bayplan("get", "cm", "dry"))


def test_a_definition_and_its_object_in_one_file(
    bayplan: InProcessCommandLine, manifest: Callable[[str], Path]
) -> None:
    path = manifest(f"{DEFINITION}---\n{SHIP}\n")
    assert bayplan.lines("apply", "-f", path) == [
        "customresourcedefinition.apiextensions.k8s.io/ships.example.com created",
        "ship.example.com/maria created",
    ]
    head, row = bayplan.lines("get", "sh")
    assert (head.split(), row.split()) == (["NAME", "BERTH"], ["maria", "north"])
    assert len(bayplan.lines("delete", "-f", path)) == 2


def test_a_rejected_object_does_not_stop_the_rest(
    bayplan: InProcessCommandLine, manifest: Callable[[str], Path]
) -> None:
    bad, good = tree("Pod", "bad", spec={"containers": []}), tree("ConfigMap", "good")
    ended = bayplan("apply", "-f", manifest(f"{bad}\n{good}\n"))
    assert (ended.code, ended.out) == (1, "configmap/good created\n"), ended.err
    assert "spec.containers: Required value" in ended.err
    assert "1 of 2 object(s) were rejected" in ended.err
    assert bayplan.lines("delete", "cm", "good") == ["configmap/good deleted"]


def test_a_field_of_a_wrong_type_is_reported_with_its_place_and_advice(
    bayplan: InProcessCommandLine, manifest: Callable[[str], Path]
) -> None:
    container = {"name": "main", "image": "nginx", "env": [{"name": "PORT", "value": 8080}]}
    bad, good = tree("Pod", "bad", spec={"containers": [container]}), tree("ConfigMap", "good")
    path = manifest(f"{bad}\n{good}\n")
    ended = bayplan("apply", "-f", path)
    assert (ended.code, ended.out) == (1, "configmap/good created\n"), ended.err
    first, last = ended.err.splitlines()
    assert first.startswith(f"error: {path}, document 1: Pod bad: failed to create typed patch object ")
    assert first.endswith("; use the type of the field: a number or true that is meant as text needs quotes")
    assert last == "error: 1 of 2 object(s) were rejected; correct them and apply again"
    assert bayplan.lines("delete", "cm", "good") == ["configmap/good deleted"]


def test_an_unknown_kind_does_not_stop_the_rest(bayplan: InProcessCommandLine, manifest: Callable[[str], Path]) -> None:
    unknown = WEB.replace("apps/v1", "example.com/v1")
    ended = bayplan("apply", "-f", manifest(f"{unknown}---\n{tree('ConfigMap', 'good')}\n"))
    assert (ended.code, ended.out) == (1, "configmap/good created\n"), ended.err
    assert 'the server has no kind "Deployment" in example.com/v1; apply its definition first' in ended.err
    assert bayplan.lines("delete", "cm", "good") == ["configmap/good deleted"]


def test_an_object_of_another_namespace_is_refused(
    bayplan: InProcessCommandLine, manifest: Callable[[str], Path]
) -> None:
    elsewhere = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "away", "namespace": "kube-public"}}
    path = manifest(f"{json.dumps(elsewhere)}\n{tree('ConfigMap', 'here')}\n")
    ended = bayplan("apply", "-f", path, "-n", "default")
    words = (
        'ConfigMap away: the namespace from the provided object "kube-public" does not match the namespace "default". '
        "You must pass '--namespace=kube-public' to perform this operation."
    )
    assert (ended.code, ended.out) == (1, "configmap/here created\n")
    assert words in ended.err
    assert words in sentence(bayplan("delete", "-f", path, "-n", "default"))
    assert bayplan.lines("delete", "cm", "here") == ["configmap/here deleted"]


def test_an_equal_namespace_is_unchanged(bayplan: InProcessCommandLine, manifest: Callable[[str], Path]) -> None:
    path = manifest("apiVersion: v1\nkind: Namespace\nmetadata: {name: team}\n")
    assert bayplan.lines("apply", "-f", path) == ["namespace/team created"]
    assert bayplan.lines("apply", "-f", path) == ["namespace/team unchanged"]
    assert bayplan.lines("delete", "ns", "team", "--no-wait") == ["namespace/team deleted"]


def test_fields_of_other_managers_need_force_conflicts(
    bayplan: InProcessCommandLine, manifest: Callable[[str], Path]
) -> None:
    bayplan.lines(
        "apply", "-f", manifest(tree("ConfigMap", "shared", data={"a": "1"})), "--field-manager", "another-manager"
    )
    path = manifest(tree("ConfigMap", "shared", data={"a": "2"}))
    refused = bayplan("apply", "-f", path)
    assert refused.code == 1
    assert "--force-conflicts" in refused.err
    assert '"another-manager"' in refused.err
    forced = bayplan.lines("apply", "-f", path, "--force-conflicts")
    assert forced == ["configmap/shared configured"]


def test_delete_by_labels_and_all(bayplan: InProcessCommandLine, manifest: Callable[[str], Path]) -> None:
    objects = [tree("Secret", f"s{number}", labels={"n": str(number)}) for number in range(3)]
    bayplan.lines("apply", "-f", manifest("\n".join(objects)))
    assert bayplan.lines("delete", "secrets", "-l", "n=1") == ["secret/s1 deleted"]
    assert sorted(bayplan.lines("delete", "secrets", "--all")) == ["secret/s0 deleted", "secret/s2 deleted"]
    assert bayplan.lines("delete", "secret", "s0", "--ignore-not-found") == []
    assert bayplan("delete", "secrets", "-l", "n=1") == (0, "", "there is nothing to delete\n")


# top


def test_top_without_a_terminal_prints_once(bayplan: InProcessCommandLine) -> None:
    lines = bayplan.lines("top")
    assert lines[0].startswith("nodes 3/3 ready")
    assert "unschedulable" in lines[1]
    assert "decisions: " in lines[1]
    assert [line.split()[0] for line in lines[4:]] == ["node-0", "node-1", "node-2"]
    nodes = json.loads(bayplan("top", "-o", "json").out)["nodes"]
    assert sorted(node["name"] for node in nodes if node["ready"]) == ["node-0", "node-1", "node-2"]


# what goes wrong


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        pytest.param(["get", "pots"], 1, 'no kind "pots"; did you mean', id="no-kind"),
        pytest.param(["get", "pod", "unknown"], 1, 'pods "unknown" not found', id="no-object"),
        pytest.param(["get", "pod", "a", "-A"], 2, "leave out -A", id="name-everywhere"),
        pytest.param(["get", "pods,nodes", "--watch"], 2, "--watch shows one resource type", id="watch-of-two"),
        pytest.param(["get", "pods", "--kubeconfig", "/no/such/file"], 1, "cannot read the kubeconfig", id="no-file"),
        pytest.param(
            ["get", "pods", "--context", "nope"], 1, "has no context 'nope'; it has: bayplan", id="no-context"
        ),
        pytest.param(["get", "pods", "--cluster", "nope"], 1, 'the cluster "nope" is not up', id="no-cluster"),
        pytest.param(
            ["get", "pods", "--field-selector", "foo=bar"],
            1,
            "error: field label not supported: foo; --field-selector supports metadata.name and metadata.namespace",
            id="no-field",
        ),
        pytest.param(["get", "pods", "-l", "a=b=c"], 1, "; -l supports labels such as app=web", id="no-labels"),
        pytest.param(["delete", "pods"], 2, "no pods selected", id="delete-what"),
        pytest.param(["delete"], 2, "name what to delete", id="delete-nothing"),
        pytest.param(["apply", "-f", "/no/such/file"], 1, "/no/such/file does not exist", id="no-manifest"),
        pytest.param(["cluster", "up", "--nodes", "many"], 2, "is no number of nodes", id="no-nodes"),
        pytest.param(["cluster", "up", "--nodes", "a=1:cpu=much"], 2, "is no amount of cpu", id="no-amount"),
    ],
)
def test_one_sentence_and_what_to_do(
    bayplan: InProcessCommandLine, arguments: list[str], code: int, words: str
) -> None:
    assert words in sentence(bayplan(*arguments), code)


def test_no_permission(cluster: Cluster, bayplan: InProcessCommandLine, tmp_path: Path) -> None:
    config = json.loads(cluster.kubeconfig.read_text())
    config["users"][0]["user"] |= {"as": "another-user"}
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    message = sentence(bayplan("get", "pods", "--kubeconfig", path))
    assert 'User "another-user" cannot list resource "pods"' in message
    assert "ask for that permission, or choose another --context" in message
    config["users"][0]["user"] = {"token": "wrong"}
    path.write_text(json.dumps(config))
    assert "does not accept the credentials" in sentence(bayplan("get", "pods", "--kubeconfig", path))


def test_an_unreachable_server_is_one_sentence(
    cluster: Cluster, bayplan: InProcessCommandLine, tmp_path: Path, unused_port: int
) -> None:
    config = json.loads(cluster.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{unused_port}"
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    for verb in (["get", "pods"], ["top"], ["delete", "pod", "a"]):
        message = sentence(bayplan(*verb, "--kubeconfig", path))
        assert "is it running? The address is from" in message


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    assert isinstance(port, int)
    return port


def test_a_port_in_use_is_one_sentence(cluster: Cluster, tmp_path: Path) -> None:
    port = cluster.url.rpartition(":")[2]
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "bayplan", "cluster", "up", "--port", port, "--no-scheduler", "--no-controllers"]
    ended = subprocess.run([*command, "--nodes", "0"], env=env, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"error: cannot listen on 127.0.0.1:{port}: ")
    assert ended.stderr.count("\n") == 1


# which cluster is expected


def test_kubectls_cluster_is_the_default(cluster: Cluster, tmp_path: Path) -> None:
    env = {"KUBECONFIG": str(cluster.kubeconfig), "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    assert ClusterConnection().target(env).server == cluster.url
    assert ClusterConnection(kubeconfig=cluster.kubeconfig).target({}).server == cluster.url
    home = tmp_path / ".kube"
    home.mkdir()
    (home / "config").write_bytes(cluster.kubeconfig.read_bytes())
    assert ClusterConnection().target({"HOME": str(tmp_path)}).server == cluster.url


def test_the_embedded_cluster_is_the_default_without_a_kubeconfig(cluster: Cluster, tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    with pytest.raises(KubeconfigError, match="no cluster of `bayplan cluster up` is running; start one"):
        ClusterConnection().target(env)
    folder = ClusterFolder.of_name("bayplan", env)
    with folder.lock():
        folder.write_record(RunningCluster(os.getpid(), cluster.url))
        folder.kubeconfig.write_bytes(cluster.kubeconfig.read_bytes())
        assert ClusterConnection().target(env).server == cluster.url
        assert ClusterConnection(cluster="bayplan").target(env).server == cluster.url


def test_cluster_and_context_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="leave out --kubeconfig"):
        ClusterConnection(cluster="a", context="b").target({})


# completion


@pytest.mark.parametrize(
    ("shell", "words"), [("bash", "complete -o"), ("zsh", "#compdef bayplan"), ("fish", "complete ")]
)
def test_scripts_for_shells(bayplan: InProcessCommandLine, shell: str, words: str) -> None:
    script = bayplan("completion", shell).out
    assert words in script
    assert "_BAYPLAN_COMPLETE" in script


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        pytest.param("bayplan ge", ["get"], id="verb"),
        pytest.param("bayplan get namesp", ["namespaces"], id="kind"),
        pytest.param("bayplan get node node-", ["node-0", "node-1", "node-2"], id="name"),
        pytest.param("bayplan get pots a", [], id="no-kind"),
        pytest.param("bayplan delete node/node-", ["node/node-0", "node/node-1", "node/node-2"], id="kind/name"),
        pytest.param("bayplan delete node/node-1 name", ["namespaces"], id="after kind/name"),
        pytest.param("bayplan why pending", ["pending-one"], id="pod"),
        pytest.param("bayplan why -n kube-public p", [], id="pod of another namespace"),
        pytest.param("bayplan get pods -n kube-p", ["kube-public"], id="namespace"),
        pytest.param("bayplan get pods --context CONTEXT", ["CONTEXT"], id="context"),
        pytest.param("bayplan get pods --context nope -n k", [], id="no-context"),
    ],
)
def test_completions(
    cluster: Cluster, bayplan: InProcessCommandLine, manifest: Callable[[str], Path], line: str, offered: list[str]
) -> None:
    [context] = [each["name"] for each in yaml.safe_load(cluster.kubeconfig.read_text())["contexts"]]
    line, offered = line.replace("CONTEXT", context), [each.replace("CONTEXT", context) for each in offered]
    spec = {"containers": [{"name": "main", "image": "nginx"}], "schedulerName": "nobody"}
    bayplan.lines("apply", "-f", manifest(tree("Pod", "pending-one", spec=spec)))
    env = {
        **os.environ,
        "KUBECONFIG": str(cluster.kubeconfig),
        "_BAYPLAN_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
    }
    ended = subprocess.run([sys.executable, "-m", "bayplan"], env=env, capture_output=True, text=True)
    assert [each.partition(",")[2] for each in ended.stdout.split()] == offered
    assert ended.stderr == ""
