"""Operations on workloads with kubectl: on the embedded API server, and with Bayplan's controllers on a real one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.run import Cluster
from support.e2e.workload_cluster import WAIT_FLAG, NamespaceKubectl, nodes, run_cluster, template, workload

FAILS = {"bayplan.dev/exit-code": "1"}
ENDS = {"bayplan.dev/runs-for": "0s"}
LASTS = {"bayplan.dev/runs-for": "forever"}


@pytest.fixture(scope="module")
def alive(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with run_cluster(cluster, tmp_path_factory.mktemp("alive")):
        yield cluster


@pytest.fixture
def kubectl(alive: Cluster, namespace: str) -> NamespaceKubectl:
    return NamespaceKubectl(alive, namespace)


def revisions(kubectl: NamespaceKubectl, what: str) -> list[str]:
    return re.findall(r"^(\d+) ", kubectl("rollout", "history", what), re.MULTILINE)


def images(kubectl: NamespaceKubectl) -> set[str]:
    return {each["spec"]["containers"][0]["image"] for each in kubectl.items("pods")}


def test_a_deployment_is_rolled_out_undone_paused_restarted_and_scaled(kubectl: NamespaceKubectl) -> None:
    kubectl.apply(workload("Deployment", "web", replicas=3))
    assert "successfully rolled out" in kubectl("rollout", "status", "deployment/web", WAIT_FLAG)
    kubectl("set", "image", "deployment/web", "main=two")
    assert "successfully rolled out" in kubectl("rollout", "status", "deployment/web", WAIT_FLAG)
    assert revisions(kubectl, "deployment/web") == ["1", "2"]
    assert "Image:\tone" in kubectl("rollout", "history", "deployment/web", "--revision=1").replace("      ", "")
    kubectl("rollout", "undo", "deployment/web")
    kubectl("rollout", "status", "deployment/web", WAIT_FLAG)
    assert revisions(kubectl, "deployment/web") == ["2", "3"]
    kubectl("rollout", "pause", "deployment/web")
    kubectl("set", "image", "deployment/web", "main=three")
    kubectl("scale", "deployment/web", "--replicas=4")
    kubectl.until(
        lambda: kubectl.get("deployment/web")["status"].get("availableReplicas") == 4, "it grows while paused"
    )
    assert revisions(kubectl, "deployment/web") == ["2", "3"]
    kubectl("rollout", "resume", "deployment/web")
    kubectl("rollout", "status", "deployment/web", WAIT_FLAG)
    kubectl.until(lambda: images(kubectl) == {"three"}, "the new image is everywhere")
    before = set(kubectl.names("pods"))
    kubectl("rollout", "restart", "deployment/web")
    kubectl("rollout", "status", "deployment/web", WAIT_FLAG)
    kubectl.until(lambda: not before & set(kubectl.names("pods")), "every pod is new")
    assert revisions(kubectl, "deployment/web") == ["2", "3", "4", "5"]
    kubectl("scale", "deployment/web", "--replicas=0")
    kubectl.until(lambda: not kubectl.names("pods"), "no pod is left")


def test_a_stuck_rollout_reports_it(kubectl: NamespaceKubectl) -> None:
    pod = template({"app": "stuck"}, nodeSelector={"no": "such"})
    kubectl.apply(workload("Deployment", "stuck", pod=pod, replicas=1, progressDeadlineSeconds=1))
    assert "exceeded its progress deadline" in kubectl.expect_error("rollout", "status", "deployment/stuck", WAIT_FLAG)


@pytest.mark.parametrize("policy", ["background", "foreground", "orphan"])
def test_deleting_an_owner(kubectl: NamespaceKubectl, policy: str) -> None:
    kubectl.apply(workload("Deployment", "web", replicas=2))
    kubectl("rollout", "status", "deployment/web", WAIT_FLAG)
    kubectl("delete", "deployment/web", f"--cascade={policy}", WAIT_FLAG)
    if policy == "orphan":
        (left,) = kubectl.items("replicasets")
        assert not left["metadata"].get("ownerReferences")
        assert len(kubectl.names("pods")) == 2
        kubectl.apply(workload("Deployment", "web", replicas=2))
        kubectl("rollout", "status", "deployment/web", WAIT_FLAG)
        (adopted,) = kubectl.items("replicasets")
        assert adopted["metadata"]["uid"] == left["metadata"]["uid"]
    elif policy == "foreground":
        assert kubectl.names("replicasets") == []
        assert kubectl.names("pods") == []
    else:
        kubectl.until(lambda: not kubectl.names("pods") and not kubectl.names("replicasets"), "all of it goes")


def test_a_node_is_drained_as_far_as_budgets_let_it(
    kubectl: NamespaceKubectl, tmp_path: Path, cluster: Cluster
) -> None:
    with nodes(cluster, tmp_path, "drained", "--nodes", "2"):
        chosen = {"kubernetes.io/hostname": "drained-0"}
        kubectl.apply(workload("Deployment", "web", pod=template({"app": "web"}, nodeSelector=chosen), replicas=2))
        kubectl("rollout", "status", "deployment/web", WAIT_FLAG)
        kubectl("create", "poddisruptionbudget", "web", "--selector=app=web", "--min-available=2")
        kubectl.until(lambda: kubectl.get("pdb/web")["status"].get("currentHealthy") == 2, "the budget is counted")
        options = ("--ignore-daemonsets", "--delete-emptydir-data", "--force")
        assert "Cannot evict pod" in kubectl.expect_error("drain", "drained-0", *options, "--timeout=3s")
        assert len(kubectl.names("pods")) == 2
        kubectl("delete", "pdb", "web")
        kubectl("drain", "drained-0", *options, WAIT_FLAG)
        waiting = {each["status"]["phase"] for each in kubectl.items("pods")}
        assert waiting == {"Pending"}
        kubectl("uncordon", "drained-0")
        kubectl("rollout", "status", "deployment/web", WAIT_FLAG)
        kubectl("delete", "deployment", "web", "--cascade=foreground", WAIT_FLAG)


def test_a_daemon_set_follows_its_nodes(kubectl: NamespaceKubectl, tmp_path: Path, cluster: Cluster) -> None:
    kubectl.apply(workload("DaemonSet", "agent"))
    assert "successfully rolled out" in kubectl("rollout", "status", "daemonset/agent", WAIT_FLAG)
    placed = sorted(each["spec"]["nodeName"] for each in kubectl.items("pods"))
    assert placed == ["alive-0", "alive-1", "alive-2"]
    with nodes(cluster, tmp_path, "late", "--nodes", "1"):
        kubectl.until(
            lambda: kubectl.get("daemonset/agent")["status"].get("numberReady") == 4, "the new node has a pod"
        )
        kubectl("set", "image", "daemonset/agent", "main=two")
        kubectl("rollout", "status", "daemonset/agent", WAIT_FLAG)
        assert images(kubectl) == {"two"}
        assert revisions(kubectl, "daemonset/agent") == ["1", "2"]
        kubectl("rollout", "undo", "daemonset/agent")
        kubectl("rollout", "status", "daemonset/agent", WAIT_FLAG)
        assert images(kubectl) == {"one"}
        kubectl("delete", "daemonset", "agent", "--cascade=foreground", WAIT_FLAG)


def test_a_stateful_set_keeps_its_order_and_its_volumes(kubectl: NamespaceKubectl) -> None:
    storage = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claims = [{"metadata": {"name": "data"}, "spec": storage}]
    kubectl.apply(workload("StatefulSet", "db", serviceName="db", replicas=3, volumeClaimTemplates=claims))
    kubectl("rollout", "status", "statefulset/db", WAIT_FLAG)
    ready = {each["metadata"]["name"]: each["status"]["startTime"] for each in kubectl.items("pods")}
    assert list(ready) == ["db-0", "db-1", "db-2"]
    assert list(ready.values()) == sorted(ready.values())
    bound = {each["metadata"]["name"]: each["status"]["phase"] for each in kubectl.items("pvc")}
    assert bound == {f"data-db-{number}": "Bound" for number in range(3)}
    volume = kubectl.get("pvc/data-db-2")["spec"]["volumeName"]
    kubectl("set", "image", "statefulset/db", "main=two")
    kubectl("rollout", "status", "statefulset/db", WAIT_FLAG)
    assert images(kubectl) == {"two"}
    kubectl("rollout", "undo", "statefulset/db")
    kubectl("rollout", "status", "statefulset/db", WAIT_FLAG)
    assert images(kubectl) == {"one"}
    kubectl("scale", "statefulset/db", "--replicas=1")
    kubectl.until(lambda: kubectl.names("pods") == ["db-0"], "the highest numbers go")
    kubectl("scale", "statefulset/db", "--replicas=3")
    kubectl("rollout", "status", "statefulset/db", WAIT_FLAG)
    kubectl.until(lambda: len(kubectl.names("pods")) == 3, "they come back")
    assert kubectl.get("pvc/data-db-2")["spec"]["volumeName"] == volume
    kubectl("delete", "statefulset", "db", "--cascade=foreground", WAIT_FLAG)
    kubectl("delete", "pvc", "--all", WAIT_FLAG)
    kubectl.until(lambda: volume not in kubectl.names("pv"), "the volume goes with its claim")


def test_a_job_runs_is_retried_and_fails(kubectl: NamespaceKubectl) -> None:
    good = template({"app": "sum"}, annotations=ENDS, restartPolicy="Never")
    bad = template({"app": "bad"}, annotations=FAILS, restartPolicy="Never")
    jobs = {
        "sum": {"template": good, "completions": 4, "parallelism": 2},
        "numbered": {"template": good, "completions": 3, "parallelism": 3, "completionMode": "Indexed"},
        "bad": {"template": bad, "backoffLimit": 1},
    }
    for name, spec in jobs.items():
        kubectl.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec})
    kubectl("wait", "--for=condition=complete", "job/sum", "job/numbered", WAIT_FLAG)
    assert kubectl.get("job/sum")["status"]["succeeded"] == 4
    assert kubectl.get("job/numbered")["status"]["completedIndexes"] == "0-2"
    kubectl("wait", "--for=condition=failed", "job/bad", WAIT_FLAG)
    failed = kubectl.get("job/bad")["status"]
    assert failed["failed"] == 2
    assert {each["type"]: each["reason"] for each in failed["conditions"]}["Failed"] == "BackoffLimitExceeded"
    first, second = sorted(
        each["metadata"]["creationTimestamp"] for each in kubectl.items("pods", "-l", "job-name=bad")
    )
    assert first < second
    kubectl("delete", "job", "sum", WAIT_FLAG)
    kubectl.until(lambda: not kubectl.names("pods", "-l", "job-name=sum"), "its pods go with it")


def test_a_job_without_a_deadline_ends(kubectl: NamespaceKubectl) -> None:
    kubectl("create", "job", "hello", "--image=busybox", "--", "echo", "hi")
    kubectl("wait", "--for=condition=complete", "job/hello", WAIT_FLAG)
    assert kubectl.get("job/hello")["status"]["succeeded"] == 1


def test_a_job_can_be_suspended(kubectl: NamespaceKubectl) -> None:
    lasting = template({"app": "long"}, annotations=LASTS, restartPolicy="Never")
    spec = {"template": lasting, "parallelism": 2, "completions": 2}
    kubectl.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "long"}, "spec": spec})
    kubectl.until(lambda: kubectl.get("job/long")["status"].get("ready") == 2, "it runs")
    kubectl("patch", "job/long", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    kubectl("wait", "--for=condition=suspended", "job/long", WAIT_FLAG)
    kubectl.until(lambda: not kubectl.names("pods"), "its pods stop")
    kubectl("patch", "job/long", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    kubectl.until(lambda: kubectl.get("job/long")["status"].get("ready") == 2, "it goes on")
    assert len(kubectl.names("pods")) == 2
    kubectl("delete", "job", "long", "--cascade=foreground", WAIT_FLAG)
    assert kubectl.names("pods") == []


def test_a_cron_job_makes_jobs_by_the_clock_and_by_hand(kubectl: NamespaceKubectl) -> None:
    job = {"spec": {"template": template({"app": "tick"}, annotations=ENDS, restartPolicy="Never")}}
    spec = {"schedule": "@every 1s", "concurrencyPolicy": "Forbid", "jobTemplate": job}
    kubectl.apply({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "tick"}, "spec": spec})
    kubectl.until(lambda: kubectl.get("cronjob/tick")["status"].get("lastSuccessfulTime"), "a job of it succeeds")
    kubectl("create", "job", "by-hand", "--from=cronjob/tick")
    kubectl("wait", "--for=condition=complete", "job/by-hand", WAIT_FLAG)
    made = kubectl.items("jobs")
    assert {each["metadata"]["ownerReferences"][0]["name"] for each in made} == {"tick"}
    assert sum(each["metadata"]["name"].startswith("tick-") for each in made) >= 1
    kubectl("delete", "cronjob", "tick", WAIT_FLAG)
    kubectl.until(lambda: kubectl.names("jobs") in ([], ["by-hand"]), "what it made goes with it")
    assert kubectl.names("cronjobs") == []


def test_a_namespace_is_deleted_with_everything_in_it(kubectl: NamespaceKubectl, cluster: Cluster) -> None:
    kubectl("create", "namespace", "team-to-go")
    team = NamespaceKubectl(cluster, "team-to-go")
    kubectl.until(lambda: team.names("serviceaccounts") == ["default"], "it is furnished")
    team.apply(workload("Deployment", "web", replicas=2))
    team("rollout", "status", "deployment/web", WAIT_FLAG)
    team("create", "configmap", "settings")
    kubectl("delete", "namespace", "team-to-go", WAIT_FLAG)
    assert "team-to-go" not in kubectl.names("namespaces")


def test_quotas_and_services_are_counted(kubectl: NamespaceKubectl) -> None:
    kubectl("create", "quota", "team", "--hard=pods=5,services=3,count/configmaps=9")
    kubectl.apply(workload("Deployment", "web", replicas=2))
    kubectl("expose", "deployment/web", "--port=80", "--target-port=8080")
    kubectl("rollout", "status", "deployment/web", WAIT_FLAG)

    def used() -> tuple[str, ...]:
        used = kubectl.get("quota/team")["status"].get("used") or {}
        return tuple(used.get(name, "") for name in ("pods", "services"))

    kubectl.until(lambda: used() == ("2", "1"), "the quota is counted")

    def serving() -> int:
        slices = kubectl.items("endpointslices", "-l", "kubernetes.io/service-name=web")
        return sum(1 for each in slices for end in each["endpoints"] or () if end["conditions"]["ready"])

    kubectl.until(lambda: serving() == 2, "both pods serve")
    kubectl("delete", "deployment", "web", "--cascade=foreground", WAIT_FLAG)
    kubectl.until(lambda: used() == ("0", "1"), "what is gone is given back")
    assert kubectl.get("quota/team")["status"]["hard"]["pods"] == "5"
