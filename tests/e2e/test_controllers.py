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
def hands(alive: Cluster, namespace: str) -> NamespaceKubectl:
    return NamespaceKubectl(alive, namespace)


def revisions(hands: NamespaceKubectl, what: str) -> list[str]:
    return re.findall(r"^(\d+) ", hands("rollout", "history", what), re.MULTILINE)


def images(hands: NamespaceKubectl) -> set[str]:
    return {each["spec"]["containers"][0]["image"] for each in hands.items("pods")}


def test_a_deployment_is_rolled_out_undone_paused_restarted_and_scaled(hands: NamespaceKubectl) -> None:
    hands.apply(workload("Deployment", "web", replicas=3))
    assert "successfully rolled out" in hands("rollout", "status", "deployment/web", WAIT_FLAG)
    hands("set", "image", "deployment/web", "main=two")
    assert "successfully rolled out" in hands("rollout", "status", "deployment/web", WAIT_FLAG)
    assert revisions(hands, "deployment/web") == ["1", "2"]
    assert "Image:\tone" in hands("rollout", "history", "deployment/web", "--revision=1").replace("      ", "")
    hands("rollout", "undo", "deployment/web")
    hands("rollout", "status", "deployment/web", WAIT_FLAG)
    assert revisions(hands, "deployment/web") == ["2", "3"]
    hands("rollout", "pause", "deployment/web")
    hands("set", "image", "deployment/web", "main=three")
    hands("scale", "deployment/web", "--replicas=4")
    hands.until(lambda: hands.get("deployment/web")["status"].get("availableReplicas") == 4, "it grows while paused")
    assert revisions(hands, "deployment/web") == ["2", "3"]
    hands("rollout", "resume", "deployment/web")
    hands("rollout", "status", "deployment/web", WAIT_FLAG)
    hands.until(lambda: images(hands) == {"three"}, "the new image is everywhere")
    before = set(hands.names("pods"))
    hands("rollout", "restart", "deployment/web")
    hands("rollout", "status", "deployment/web", WAIT_FLAG)
    hands.until(lambda: not before & set(hands.names("pods")), "every pod is new")
    assert revisions(hands, "deployment/web") == ["2", "3", "4", "5"]
    hands("scale", "deployment/web", "--replicas=0")
    hands.until(lambda: not hands.names("pods"), "no pod is left")


def test_a_stuck_rollout_reports_it(hands: NamespaceKubectl) -> None:
    pod = template({"app": "stuck"}, nodeSelector={"no": "such"})
    hands.apply(workload("Deployment", "stuck", pod=pod, replicas=1, progressDeadlineSeconds=1))
    assert "exceeded its progress deadline" in hands.expect_error("rollout", "status", "deployment/stuck", WAIT_FLAG)


@pytest.mark.parametrize("policy", ["background", "foreground", "orphan"])
def test_deleting_an_owner(hands: NamespaceKubectl, policy: str) -> None:
    hands.apply(workload("Deployment", "web", replicas=2))
    hands("rollout", "status", "deployment/web", WAIT_FLAG)
    hands("delete", "deployment/web", f"--cascade={policy}", WAIT_FLAG)
    if policy == "orphan":
        (left,) = hands.items("replicasets")
        assert not left["metadata"].get("ownerReferences")
        assert len(hands.names("pods")) == 2
        hands.apply(workload("Deployment", "web", replicas=2))
        hands("rollout", "status", "deployment/web", WAIT_FLAG)
        (adopted,) = hands.items("replicasets")
        assert adopted["metadata"]["uid"] == left["metadata"]["uid"]
    elif policy == "foreground":
        assert hands.names("replicasets") == []
        assert hands.names("pods") == []
    else:
        hands.until(lambda: not hands.names("pods") and not hands.names("replicasets"), "all of it goes")


def test_a_node_is_drained_as_far_as_budgets_let_it(hands: NamespaceKubectl, tmp_path: Path, cluster: Cluster) -> None:
    with nodes(cluster, tmp_path, "drained", "--nodes", "2"):
        chosen = {"kubernetes.io/hostname": "drained-0"}
        hands.apply(workload("Deployment", "web", pod=template({"app": "web"}, nodeSelector=chosen), replicas=2))
        hands("rollout", "status", "deployment/web", WAIT_FLAG)
        hands("create", "poddisruptionbudget", "web", "--selector=app=web", "--min-available=2")
        hands.until(lambda: hands.get("pdb/web")["status"].get("currentHealthy") == 2, "the budget is counted")
        options = ("--ignore-daemonsets", "--delete-emptydir-data", "--force")
        assert "Cannot evict pod" in hands.expect_error("drain", "drained-0", *options, "--timeout=3s")
        assert len(hands.names("pods")) == 2
        hands("delete", "pdb", "web")
        hands("drain", "drained-0", *options, WAIT_FLAG)
        waiting = {each["status"]["phase"] for each in hands.items("pods")}
        assert waiting == {"Pending"}
        hands("uncordon", "drained-0")
        hands("rollout", "status", "deployment/web", WAIT_FLAG)
        hands("delete", "deployment", "web", "--cascade=foreground", WAIT_FLAG)


def test_a_daemon_set_follows_its_nodes(hands: NamespaceKubectl, tmp_path: Path, cluster: Cluster) -> None:
    hands.apply(workload("DaemonSet", "agent"))
    assert "successfully rolled out" in hands("rollout", "status", "daemonset/agent", WAIT_FLAG)
    placed = sorted(each["spec"]["nodeName"] for each in hands.items("pods"))
    assert placed == ["alive-0", "alive-1", "alive-2"]
    with nodes(cluster, tmp_path, "late", "--nodes", "1"):
        hands.until(lambda: hands.get("daemonset/agent")["status"].get("numberReady") == 4, "the new node has a pod")
        hands("set", "image", "daemonset/agent", "main=two")
        hands("rollout", "status", "daemonset/agent", WAIT_FLAG)
        assert images(hands) == {"two"}
        assert revisions(hands, "daemonset/agent") == ["1", "2"]
        hands("rollout", "undo", "daemonset/agent")
        hands("rollout", "status", "daemonset/agent", WAIT_FLAG)
        assert images(hands) == {"one"}
        hands("delete", "daemonset", "agent", "--cascade=foreground", WAIT_FLAG)


def test_a_stateful_set_keeps_its_order_and_its_volumes(hands: NamespaceKubectl) -> None:
    storage = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claims = [{"metadata": {"name": "data"}, "spec": storage}]
    hands.apply(workload("StatefulSet", "db", serviceName="db", replicas=3, volumeClaimTemplates=claims))
    hands("rollout", "status", "statefulset/db", WAIT_FLAG)
    ready = {each["metadata"]["name"]: each["status"]["startTime"] for each in hands.items("pods")}
    assert list(ready) == ["db-0", "db-1", "db-2"]
    assert list(ready.values()) == sorted(ready.values())
    bound = {each["metadata"]["name"]: each["status"]["phase"] for each in hands.items("pvc")}
    assert bound == {f"data-db-{number}": "Bound" for number in range(3)}
    volume = hands.get("pvc/data-db-2")["spec"]["volumeName"]
    hands("set", "image", "statefulset/db", "main=two")
    hands("rollout", "status", "statefulset/db", WAIT_FLAG)
    assert images(hands) == {"two"}
    hands("rollout", "undo", "statefulset/db")
    hands("rollout", "status", "statefulset/db", WAIT_FLAG)
    assert images(hands) == {"one"}
    hands("scale", "statefulset/db", "--replicas=1")
    hands.until(lambda: hands.names("pods") == ["db-0"], "the highest numbers go")
    hands("scale", "statefulset/db", "--replicas=3")
    hands("rollout", "status", "statefulset/db", WAIT_FLAG)
    hands.until(lambda: len(hands.names("pods")) == 3, "they come back")
    assert hands.get("pvc/data-db-2")["spec"]["volumeName"] == volume
    hands("delete", "statefulset", "db", "--cascade=foreground", WAIT_FLAG)
    hands("delete", "pvc", "--all", WAIT_FLAG)
    hands.until(lambda: volume not in hands.names("pv"), "the volume goes with its claim")


def test_a_job_runs_is_retried_and_fails(hands: NamespaceKubectl) -> None:
    good = template({"app": "sum"}, annotations=ENDS, restartPolicy="Never")
    bad = template({"app": "bad"}, annotations=FAILS, restartPolicy="Never")
    jobs = {
        "sum": {"template": good, "completions": 4, "parallelism": 2},
        "numbered": {"template": good, "completions": 3, "parallelism": 3, "completionMode": "Indexed"},
        "bad": {"template": bad, "backoffLimit": 1},
    }
    for name, spec in jobs.items():
        hands.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec})
    hands("wait", "--for=condition=complete", "job/sum", "job/numbered", WAIT_FLAG)
    assert hands.get("job/sum")["status"]["succeeded"] == 4
    assert hands.get("job/numbered")["status"]["completedIndexes"] == "0-2"
    hands("wait", "--for=condition=failed", "job/bad", WAIT_FLAG)
    failed = hands.get("job/bad")["status"]
    assert failed["failed"] == 2
    assert {each["type"]: each["reason"] for each in failed["conditions"]}["Failed"] == "BackoffLimitExceeded"
    first, second = sorted(each["metadata"]["creationTimestamp"] for each in hands.items("pods", "-l", "job-name=bad"))
    assert first < second
    hands("delete", "job", "sum", WAIT_FLAG)
    hands.until(lambda: not hands.names("pods", "-l", "job-name=sum"), "its pods go with it")


def test_a_job_without_a_deadline_ends(hands: NamespaceKubectl) -> None:
    hands("create", "job", "hello", "--image=busybox", "--", "echo", "hi")
    hands("wait", "--for=condition=complete", "job/hello", WAIT_FLAG)
    assert hands.get("job/hello")["status"]["succeeded"] == 1


def test_a_job_can_be_suspended(hands: NamespaceKubectl) -> None:
    lasting = template({"app": "long"}, annotations=LASTS, restartPolicy="Never")
    spec = {"template": lasting, "parallelism": 2, "completions": 2}
    hands.apply({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "long"}, "spec": spec})
    hands.until(lambda: hands.get("job/long")["status"].get("ready") == 2, "it runs")
    hands("patch", "job/long", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    hands("wait", "--for=condition=suspended", "job/long", WAIT_FLAG)
    hands.until(lambda: not hands.names("pods"), "its pods stop")
    hands("patch", "job/long", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    hands.until(lambda: hands.get("job/long")["status"].get("ready") == 2, "it goes on")
    assert len(hands.names("pods")) == 2
    hands("delete", "job", "long", "--cascade=foreground", WAIT_FLAG)
    assert hands.names("pods") == []


def test_a_cron_job_makes_jobs_by_the_clock_and_by_hand(hands: NamespaceKubectl) -> None:
    job = {"spec": {"template": template({"app": "tick"}, annotations=ENDS, restartPolicy="Never")}}
    spec = {"schedule": "@every 1s", "concurrencyPolicy": "Forbid", "jobTemplate": job}
    hands.apply({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "tick"}, "spec": spec})
    hands.until(lambda: hands.get("cronjob/tick")["status"].get("lastSuccessfulTime"), "a job of it succeeds")
    hands("create", "job", "by-hand", "--from=cronjob/tick")
    hands("wait", "--for=condition=complete", "job/by-hand", WAIT_FLAG)
    made = hands.items("jobs")
    assert {each["metadata"]["ownerReferences"][0]["name"] for each in made} == {"tick"}
    assert sum(each["metadata"]["name"].startswith("tick-") for each in made) >= 1
    hands("delete", "cronjob", "tick", WAIT_FLAG)
    hands.until(lambda: hands.names("jobs") in ([], ["by-hand"]), "what it made goes with it")
    assert hands.names("cronjobs") == []


def test_a_namespace_is_deleted_with_everything_in_it(hands: NamespaceKubectl, cluster: Cluster) -> None:
    hands("create", "namespace", "team-to-go")
    team = NamespaceKubectl(cluster, "team-to-go")
    hands.until(lambda: team.names("serviceaccounts") == ["default"], "it is furnished")
    team.apply(workload("Deployment", "web", replicas=2))
    team("rollout", "status", "deployment/web", WAIT_FLAG)
    team("create", "configmap", "settings")
    hands("delete", "namespace", "team-to-go", WAIT_FLAG)
    assert "team-to-go" not in hands.names("namespaces")


def test_quotas_and_services_are_counted(hands: NamespaceKubectl) -> None:
    hands("create", "quota", "team", "--hard=pods=5,services=3,count/configmaps=9")
    hands.apply(workload("Deployment", "web", replicas=2))
    hands("expose", "deployment/web", "--port=80", "--target-port=8080")
    hands("rollout", "status", "deployment/web", WAIT_FLAG)

    def used() -> tuple[str, ...]:
        told = hands.get("quota/team")["status"].get("used") or {}
        return tuple(told.get(name, "") for name in ("pods", "services"))

    hands.until(lambda: used() == ("2", "1"), "the quota is counted")

    def serving() -> int:
        slices = hands.items("endpointslices", "-l", "kubernetes.io/service-name=web")
        return sum(1 for each in slices for end in each["endpoints"] or () if end["conditions"]["ready"])

    hands.until(lambda: serving() == 2, "both pods serve")
    hands("delete", "deployment", "web", "--cascade=foreground", WAIT_FLAG)
    hands.until(lambda: used() == ("0", "1"), "what is gone is given back")
    assert hands.get("quota/team")["status"]["hard"]["pods"] == "5"
