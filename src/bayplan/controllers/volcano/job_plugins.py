"""Plugins of Volcano jobs: they add environment, ports and mounts to pods, and create services, hosts and keys.

`plugin_error` reports whether a job can start with its plugins; `add_plugins` changes a pod before it is created;
`plugin_objects` lists the objects that exist while the job runs. Pure, except for the random key pair of `ssh`.
Names, ports and variables are Volcano's.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from bayplan.admission.job_validation import argument_value
from bayplan.admission.volcano_defaults import replicas
from bayplan.client import GroupVersionResource
from bayplan.controllers.core.api_types import CONFIG_MAPS, SERVICES, Tree
from bayplan.controllers.volcano.job_view import JobView
from bayplan.controllers.volcano.resources import NETWORK_POLICIES, SECRETS
from bayplan.objects.volcano.constants import JOB_NAME, JOB_NAMESPACE, TASK_SPEC

HOSTS_FOLDER = "/etc/volcano"
SSH_FOLDER = "/root/.ssh"
_KEY_FILES = ("id_rsa", "id_rsa.pub", "authorized_keys", "config")

_WAIT_FOR_MASTER = """\
waited=0
until nc -z {host} {port} 2>/dev/null; do
  if [ "$waited" -ge {limit} ]; then echo "{host}:{port} did not answer within {limit} seconds"; exit 1; fi
  sleep 2
  waited=$((waited + 2))
done"""

Arguments = list[str]
PodModifier = Callable[[JobView, Tree, int, Tree, Arguments], None]


def add_plugins(job: JobView, task: Tree, index: int, pod: Tree) -> None:
    """Change a pod according to the job's plugins."""
    for name, arguments in job.plugins.items():
        if name in _POD_MODIFIERS:
            _POD_MODIFIERS[name](job, task, index, pod, arguments)


def plugin_error(job: JobView) -> str:
    """Reason why a plugin prevents the job's start: `ray` needs a head task. The remaining plugins have no
    conditions."""
    if "ray" not in job.plugins or job.task(head := _ray_head(job.plugins["ray"])) is not None:
        return ""
    return f"job {job.name} doesn't have head task {head}"


def _containers(pod: Tree) -> list[Tree]:
    return list(pod["spec"].get("containers") or ())


def _all_containers(pod: Tree) -> list[Tree]:
    return [*_containers(pod), *(pod["spec"].get("initContainers") or ())]


def _add_env(containers: list[Tree], *variables: Tree) -> None:
    for container in containers:
        container.setdefault("env", []).extend(dict(each) for each in variables)


def _add_port(container: Tree, name: str, port: int) -> None:
    ports = container.setdefault("ports", [])
    if all(each.get("containerPort") != port for each in ports):
        ports.append({"name": name, "containerPort": port})


def _env(_job: JobView, _task: Tree, index: int, pod: Tree, _: Arguments) -> None:
    number = str(index)
    _add_env(
        _all_containers(pod), {"name": "VK_TASK_INDEX", "value": number}, {"name": "VC_TASK_INDEX", "value": number}
    )


def _svc(job: JobView, _task: Tree, _index: int, pod: Tree, _: Arguments) -> None:
    spec, config = pod["spec"], f"{job.name}-svc"
    spec["hostname"] = spec.get("hostname") or pod["metadata"]["name"]
    spec["subdomain"] = spec.get("subdomain") or job.name
    names = [name for task in job.tasks for name in (f"VC_{_env_name(task)}_HOSTS", f"VC_{_env_name(task)}_NUM")]
    variables = [{"name": name, "valueFrom": {"configMapKeyRef": {"name": config, "key": name}}} for name in names]
    _add_env(_all_containers(pod), *variables)
    spec.setdefault("volumes", []).append({"name": config, "configMap": {"name": config}})
    for container in _all_containers(pod):
        container.setdefault("volumeMounts", []).append({"name": config, "mountPath": HOSTS_FOLDER})


def _env_name(task: Tree) -> str:
    return str(task["name"]).replace("-", "_").upper()


def _ssh(job: JobView, _task: Tree, _index: int, pod: Tree, arguments: Arguments) -> None:
    folder, secret = argument_value(arguments, "ssh-key-file-path", SSH_FOLDER), f"{job.name}-ssh"
    mode = 0o600 if folder == SSH_FOLDER else 0o644
    items = [{"key": name, "path": f".ssh/{name}"} for name in _KEY_FILES]
    source = {"secretName": secret, "items": items, "defaultMode": mode}
    pod["spec"].setdefault("volumes", []).append({"name": secret, "secret": source})
    for container in _all_containers(pod):
        mount = {"name": secret, "mountPath": folder, "subPath": ".ssh"}
        container.setdefault("volumeMounts", []).append(mount)


def _pytorch(job: JobView, task: Tree, index: int, pod: Tree, arguments: Arguments) -> None:
    master, worker = argument_value(arguments, "master", "master"), argument_value(arguments, "worker", "worker")
    port = _number(arguments, "port", 23456)
    master_task = job.task(master)
    if master_task is None:
        return
    hosts = job.hosts(master_task)
    address = hosts[0] if hosts else f"{job.name}-{master}-0.{job.name}"
    size = sum(replicas(each) for each in job.tasks if each["name"] in (master, worker))
    variables = [
        {"name": "MASTER_ADDR", "value": address},
        {"name": "MASTER_PORT", "value": str(port)},
        {"name": "WORLD_SIZE", "value": str(size)},
    ]
    if task["name"] in (master, worker):
        rank = index + 1 if task["name"] == worker else 0
        variables.append({"name": "RANK", "value": str(rank)})
    for container in _containers(pod):
        _add_port(container, "pytorchjob-port", port)
    _add_env(_containers(pod), *variables)
    if task["name"] == worker and argument_value(arguments, "wait-master-enabled", "false") == "true":
        _wait_for(pod, address, port, arguments)


def _wait_for(pod: Tree, host: str, port: int, arguments: Arguments) -> None:
    init_containers = pod["spec"].setdefault("initContainers", [])
    if any(each.get("name") == "wait-for-master" for each in init_containers):
        return
    script = _WAIT_FOR_MASTER.format(host=host, port=port, limit=_number(arguments, "wait-master-timeout", 300))
    image = argument_value(arguments, "wait-master-image", "busybox:1.36.1")
    init_containers.append({"name": "wait-for-master", "image": image, "command": ["sh", "-c", script]})


def _mpi(job: JobView, task: Tree, _index: int, pod: Tree, arguments: Arguments) -> None:
    workers = job.task(argument_value(arguments, "worker", "worker"))
    is_master = task["name"] == argument_value(arguments, "master", "master")
    if is_master and workers is None:
        return
    port = _number(arguments, "port", 22)
    for container in _all_containers(pod):
        _add_port(container, "mpijob-port", port)
    if is_master and workers is not None:
        _add_env(_all_containers(pod), {"name": "MPI_HOST", "value": ",".join(job.hosts(workers))})


def _tensorflow(job: JobView, task: Tree, index: int, pod: Tree, arguments: Arguments) -> None:
    if len(job.tasks) == 1 and replicas(job.tasks[0]) == 1:
        return  # a single pod needs no cluster configuration
    port = _number(arguments, "port", 2222)
    roles = {argument_value(arguments, role, role): role for role in ("ps", "worker", "chief", "evaluator")}
    hosts = {
        roles[each["name"]]: [f"{host}:{port}" for host in job.hosts(each)]
        for each in job.tasks
        if each["name"] in roles
    }
    cluster = {role: hosts[role] for role in ("ps", "worker", "chief", "evaluator") if hosts.get(role)}
    config = {"cluster": cluster, "task": {"type": roles.get(task["name"], task["name"]), "index": index}}
    _add_env(_containers(pod), {"name": "TF_CONFIG", "value": json.dumps(config, separators=(",", ":"))})


def _ray_ports(arguments: Arguments) -> dict[str, int]:
    return {
        "gcs": _number(arguments, "port", 6379),
        "dashboard": _number(arguments, "dashboardPort", 8265),
        "client-server": _number(arguments, "clientPort", 10001),
    }


def _ray_head(arguments: Arguments) -> str:
    return argument_value(arguments, "head", "head")


def _ray(job: JobView, task: Tree, _index: int, pod: Tree, arguments: Arguments) -> None:
    head, worker = _ray_head(arguments), argument_value(arguments, "worker", "worker")
    master_task, ports = job.task(head), _ray_ports(arguments)
    if master_task is None:
        return
    for container in _containers(pod):
        if task["name"] == head and container.get("name") == argument_value(arguments, "headContainer", "head"):
            for name, port in ports.items():
                _add_port(container, name, port)
            command = (
                f"ray start --head --block --dashboard-host=0.0.0.0 --port={ports['gcs']} "
                f"--dashboard-port={ports['dashboard']} --ray-client-server-port={ports['client-server']}"
            )
            container["command"] = ["sh", "-c", command]
        elif task["name"] == worker and container.get("name") == argument_value(arguments, "workerContainer", "worker"):
            address = f"{job.hosts(master_task)[0]}:{ports['gcs']}" if job.hosts(master_task) else ""
            container["command"] = ["sh", "-c", f"ray start --block --address={address}"]


def _number(arguments: Arguments, name: str, default: int) -> int:
    text = argument_value(arguments, name, str(default))
    return int(text) if text.isascii() and text.isdigit() else default


_POD_MODIFIERS: dict[str, PodModifier] = {
    "env": _env,
    "svc": _svc,
    "ssh": _ssh,
    "pytorch": _pytorch,
    "mpi": _mpi,
    "tensorflow": _tensorflow,
    "ray": _ray,
}


# Objects beside the pods.


def plugin_objects(job: JobView) -> Iterator[tuple[str, GroupVersionResource, Tree]]:
    """Yield (plugin, resource, object without owner) for each object that exists while the job runs."""
    for name, arguments in job.plugins.items():
        if name == "svc":
            yield "svc", CONFIG_MAPS, _metadata(f"{job.name}-svc", data=hosts_data(job))
            publish = argument_value(arguments, "publish-not-ready-addresses", "false") == "true"
            spec = {"clusterIP": "None", "selector": _selector(job), "publishNotReadyAddresses": publish}
            yield "svc", SERVICES, _metadata(job.name, spec=spec)
            if argument_value(arguments, "disable-network-policy", "false") != "true":
                yield "svc", NETWORK_POLICIES, _metadata(job.name, spec=_network_policy(job))
        elif name == "ssh":
            yield "ssh", SECRETS, _metadata(f"{job.name}-ssh", data={})
        elif name == "ray":
            ports = [
                {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}
                for name, port in _ray_ports(arguments).items()
            ]
            selector = {**_selector(job), TASK_SPEC: _ray_head(arguments)}
            yield "ray", SERVICES, _metadata(f"{job.name}-head-svc", spec={"selector": selector, "ports": ports})


def _metadata(name: str, **more: Tree) -> Tree:
    return {"metadata": {"name": name}, **more}


def _selector(job: JobView) -> dict[str, str]:
    return {JOB_NAME: job.name, JOB_NAMESPACE: job.namespace}


def _network_policy(job: JobView) -> Tree:
    """Network policy that allows traffic between the job's own pods only."""
    pod_selector = {"matchLabels": _selector(job)}
    return {
        "podSelector": pod_selector,
        "ingress": [{"from": [{"podSelector": pod_selector}]}],
        "policyTypes": ["Ingress"],
    }


def hosts_data(job: JobView) -> dict[str, str]:
    """Hosts of each task, as files and as variables."""
    found: dict[str, str] = {}
    for task in job.tasks:
        hosts, key = job.hosts(task), str(task["name"]).replace("-", "_")
        found[f"{key}.host"] = "\n".join(hosts)
        found[f"VC_{_env_name(task)}_HOSTS"] = ",".join(hosts)
        found[f"VC_{_env_name(task)}_NUM"] = str(len(hosts))
    return found


def ssh_data(job: JobView) -> dict[str, str]:
    """Files of the `ssh` secret, in base64: the user's key pair, or a generated one."""
    arguments = job.plugins.get("ssh", [])
    private, public = argument_value(arguments, "ssh-private-key", ""), argument_value(arguments, "ssh-public-key", "")
    if not private:
        private, public = _generate_key_pair()
    port = _number(arguments, "ssh-port", 22)
    config = "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n"
    for host in (host for task in job.tasks for host in job.hosts(task)):
        config += f"Host {host.partition('.')[0]}\n  HostName {host}\n  Port {port if 0 < port < 65536 else 22}\n"
    files = dict(zip(_KEY_FILES, (private, public, public, config), strict=True))
    return {name: base64.b64encode(text.encode()).decode() for name, text in files.items()}


def _generate_key_pair() -> tuple[str, str]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private.decode(), f"{public.decode()}\n"
