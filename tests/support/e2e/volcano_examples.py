"""Volcano's own example manifests, file by file: those that run unedited, those to be refused, requirements of the
rest.

The files are those of the folder `example/` of module volcano.sh/volcano, which Go downloads.
"""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path

from support.harness.deadlines import DEADLINE_S

VERSION = "v1.15.1"

JOBS = (
    "MindSpore-example/mindspore_cpu/mindspore-cpu.yaml",
    "MindSpore-example/mindspore_gpu/mindspore-gpu.yaml",
    "integrations/mpi/mpi-example.yaml",
    "integrations/mxnet/train/train-mnist-cpu.yaml",
    "integrations/paddlepaddle/ctr-paddlepaddle-on-volcano.yaml",
    "integrations/ray/ray-example.yaml",
    "integrations/tensorflow/benchmark/tf-example.yaml",
    "integrations/tensorflow/dist-mnist/tf-dist-mnist-example.yaml",
    "job-plugin.yaml",
    "job.yaml",
    "kubecon-2019-china/gang/mpi-example.yaml",
    "kubecon-2019-china/horovod-sample/lm-horovod-tf-mnist-v0.5.yaml",
    "kubecon-2019-china/mpi-sample/mpi-example.yaml",
    "kubecon-2019-china/tf-sample/tf-example.yaml",
    "task-start-dependency/job.yaml",
    "task-start-dependency/mpi.yaml",
)
"""One job each, which runs to its end."""

HIERARCHY = ("hierarchical-jobs/queues.yaml", "hierarchical-jobs/jobs.yaml")
FLOW = ("jobflow/JobTemplate.yaml", "jobflow/JobFlow.yaml")
CRON = ("cronjob/cronjob.yaml",)
DEPLOYMENT = ("deployment/queue.yaml", "deployment/deployment.yaml")
REPLICA_SETS = (
    "kubecon-2019-china/drf/nginx-1.yaml",
    "kubecon-2019-china/drf/nginx-2.yaml",
    "kubecon-2019-china/drf/nginx.yaml",
    "kubecon-2019-china/gang/nginx.yaml",
    "kubecon-2019-china/task-priority/nginx.yaml",
)
REFUSED = {
    "invalid_jobs/duplicatedPolicyEvent-webhook-deny.yaml": "duplicate event",
    "invalid_jobs/duplicatedTaskName-webhook-deny.yaml": "duplicated task name task-1",
    "invalid_jobs/minAvailable-webhook-deny.yaml": "'minAvailable' should not be greater than total replicas",
}
"""Examples that must be refused, with words of the error."""

_OLD = "a Kubernetes before 1.22: scheduling.k8s.io/v1beta1 was removed"

MISSING = {
    "integrations/argo/10-job-step.yaml": "Argo Workflows",
    "integrations/argo/20-job-DAG.yaml": "Argo Workflows",
    "integrations/argo/mpi/hello-world.yaml": "Argo Workflows",
    "integrations/argo/mpi/rbac.yaml": "Argo Workflows",
    "kubecon-2019-china/node-selector/nginx.yaml": "a node whose `kubernetes.io/hostname` is 192.168.23.24",
    "kubecon-2019-china/spark-sample/spark-pi.yaml": "the Spark operator, and an API group that Volcano no longer uses",
    "kubecon-2019-china/task-priority/elastic-job.yaml": "`--validate=false`: pods have no field `priorityClass`",
    "kubecon-2019-china/task-priority/high-priority.yaml": _OLD,
    "kubecon-2019-china/task-priority/normal-priority.yaml": _OLD,
    "sharding/sharding-config-configmap.yaml": (
        "the sharding controller, which is off by default in Volcano and which Bayplan does not have"
    ),
}
"""What a file needs besides a scheduler and a kubelet."""

SAID_BY_THE_SERVER = tuple(name for name in MISSING if not name.endswith(("rbac.yaml", "nginx.yaml", "configmap.yaml")))
"""Kinds that the API server itself reports as unknown."""


def classified_files() -> set[str]:
    """Every file with an entry in one of the tables."""
    return {*JOBS, *HIERARCHY, *FLOW, *CRON, *DEPLOYMENT, *REPLICA_SETS, *REFUSED, *MISSING}


@cache
def module_folder(version: str) -> Path:
    """The folder of a version of Volcano in Go's module cache."""
    command = ["go", "mod", "download", "-json", f"volcano.sh/volcano@{version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_S)
    return Path(json.loads(done.stdout)["Dir"])


def examples_folder() -> Path:
    """The folder of the examples."""
    return module_folder(VERSION) / "example"
