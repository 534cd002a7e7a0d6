"""`bayplan why`: why a pod is where it is, or nowhere, and the smallest change that would help."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, urljoin

import click
import msgspec

from bayplan.app.configuration import filled_cache
from bayplan.cli.cluster_folder import ClusterFolder
from bayplan.cli.connection import ClusterConnection, explain_api_errors, open_client
from bayplan.cli.engine_setup import load_plugins, open_engine
from bayplan.cli.flags.connection_options import connection_options, namespace_option
from bayplan.cli.flags.plugin_options import plugin_options
from bayplan.cli.flags.shell_completion import complete_pods
from bayplan.cli.output.printers import print_value
from bayplan.cli.output.why_printer import print_answer
from bayplan.cli.signals import run_until_stopped
from bayplan.client import FORWARDED_TOKEN, ConnectionConfig, leader_proxy_path
from bayplan.clock import SystemClock
from bayplan.errors import ApiError, UsageError
from bayplan.explain.pod_explainer import PodExplainer
from bayplan.framework.runtime.cooperative import run_to_end
from bayplan.framework.runtime.registry import Registry
from bayplan.objects.core import Pod
from bayplan.objects.defaults import with_all_defaults
from bayplan.objects.manifests import load_manifests
from bayplan.sim.offline.pod_placement import place_pods
from bayplan.telemetry.answers import Answer

_DEFAULT_LEASE = "kube-system/kube-scheduler"


@dataclass(frozen=True, slots=True)
class SchedulerAddress:
    """How the scheduler is reached."""

    url: str
    lease: str
    authority: str
    verify: bool


@click.command("why")
@click.argument("pod", shell_complete=complete_pods)
@namespace_option
@click.option("--now", is_flag=True, help="Ask afresh about a pod that waits; else what was decided last is told.")
@click.option(
    "-f",
    "--filename",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    help="A cluster in files instead: a manifest or a folder of manifests. May be given several times.",
)
@click.option("--config", type=click.Path(path_type=Path), help="With -f: a KubeSchedulerConfiguration.")
@click.option("--url", default="", help="The scheduler's own address, such as https://10.0.0.7:10259.")
@click.option(
    "--lease", default=_DEFAULT_LEASE, show_default=True, help="The lease that the scheduler holds, as namespace/name."
)
@click.option(
    "--certificate-authority",
    "authority",
    type=click.Path(path_type=Path),
    help="With --url: the certificate of whoever signed the scheduler's.",
)
@click.option("--insecure-skip-tls-verify", "insecure", is_flag=True, help="With --url: believe any certificate.")
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True)
@plugin_options
@connection_options
def command(
    pod: str,
    namespace: str,
    now: bool,
    files: tuple[Path, ...],
    config: Path | None,
    url: str,
    lease: str,
    authority: Path | None,
    insecure: bool,
    output: str,
    plugin_folders: tuple[Path, ...],
    trust_writable_plugins: bool,
    connection: ClusterConnection,
) -> None:
    """Say why POD is on its node, or why it is on none and what would have to change.

    The scheduler that leads is asked, through the API server and in your name: who may not get the pod is refused. What
    it tells is what it decided, unless --now asks it to decide once more, without consequences. What is suggested was
    tried out on the cluster of this moment. With -f nobody is asked: the pods of the files are placed first, as
    `bayplan place` does it.

    \b
    Examples:
      bayplan why web-0
      bayplan why trainer-3 -n research --now
      bayplan why web-0 --url https://127.0.0.1:10259 --insecure-skip-tls-verify
      bayplan why -f examples/cluster web-0
      bayplan why -f examples/cluster web-0 --config scheduler.yaml --plugins-dir plugins
    """
    if files:
        registry = load_plugins(plugin_folders, trust_writable=trust_writable_plugins)
        answer = _explain_in_files(files, config, registry, f"{namespace or 'default'}/{pod}", now=now)
    elif config is not None or plugin_folders:
        given = "--config" if config is not None else "--plugins-dir"
        raise UsageError(f"{given} is for a cluster in files; a scheduler that runs has its own")
    else:
        answer = _ask_leader(
            connection, SchedulerAddress(url, lease, str(authority or ""), not insecure), namespace, pod, now=now
        )
    if output == "text":
        print_answer(answer)
    else:
        print_value(msgspec.to_builtins(answer), output)


# a scheduler that runs


def _ask_leader(connection: ClusterConnection, way: SchedulerAddress, namespace: str, pod: str, *, now: bool) -> Answer:
    target = connection.target(os.environ)
    path = f"/why/{quote(namespace or target.namespace, safe='')}/{quote(pod, safe='')}{'?now=true' if now else ''}"
    if not way.url and (here := ClusterFolder.serving(target.server, os.environ)) is not None and here.page:
        target, way = (
            ConnectionConfig(server=here.page),
            SchedulerAddress(urljoin(here.page, "/"), way.lease, "", verify=True),
        )
    with explain_api_errors(target):
        return run_until_stopped(fetch_answer(target, way, path))


async def fetch_answer(target: ConnectionConfig, way: SchedulerAddress, path: str) -> Answer:
    """Ask the scheduler itself where its address is known, else the API server's proxy."""
    if way.url:
        direct = replace(
            target, server=way.url.rstrip("/"), ca_file=way.authority, ca_data=b"", verify=way.verify, server_name=""
        )
        async with open_client(direct) as scheduler:
            reply = await scheduler.transport.request("GET", path)
            return _decode_answer(reply.body)
    async with open_client(target) as client:
        token = await client.transport.own_token()
        if not token:
            raise UsageError(
                "the API server knows you by something else than a token, which its proxy cannot pass on; use a "
                "context with a token, or name the scheduler's address with --url"
            )
        namespace, _, name = way.lease.partition("/")
        if not name:
            raise UsageError(f'--lease "{way.lease}" is no namespace/name, such as {_DEFAULT_LEASE}')
        leader = await leader_proxy_path(client, namespace, name)
        reply = await client.transport.request("GET", f"{leader}{path}", headers={FORWARDED_TOKEN: token})
        return _decode_answer(reply.body)


def _decode_answer(body: bytes) -> Answer:
    try:
        return msgspec.json.decode(body, type=Answer)
    except msgspec.DecodeError as fault:
        raise ApiError(
            f"what came back is no answer of a scheduler: {fault}; is it Bayplan that serves there?"
        ) from None


# a cluster in files


def _explain_in_files(
    files: tuple[Path, ...], config: Path | None, registry: Registry, key: str, *, now: bool
) -> Answer:
    loaded = load_manifests(files)
    objects = list(with_all_defaults(loaded.objects, loaded.places))
    pods = [each for each in objects if isinstance(each, Pod)]
    wanted = next((pod for pod in pods if pod.key == key), None)
    if wanted is None:
        raise UsageError(f"there is no pod {key} in these files; -n names another namespace")
    if wanted.spec.node_name:
        raise UsageError(f"the files say that {wanted.key} is on {wanted.spec.node_name}; nobody decided that here")
    with open_engine(config, registry, filled_cache(objects), seed=0) as engine:
        explainer = PodExplainer(engine, SystemClock())
        outcomes = place_pods(engine, [pod for pod in pods if not pod.spec.node_name])
        node = next((each.node for each in outcomes if each.pod.uid == wanted.uid), None)
        if node is not None:
            return explainer.explain_placed(wanted.bound_to(node))
        return run_to_end(explainer.explain_pending(wanted, now=now))
