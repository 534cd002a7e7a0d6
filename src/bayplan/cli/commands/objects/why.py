"""`bayplan why`: why a pod is on its node, or pending, and the smallest change that helps."""

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
    url: str
    lease: str
    authority: str
    verify: bool


@click.command("why")
@click.argument("pod", shell_complete=complete_pods)
@namespace_option
@click.option("--now", is_flag=True, help="Evaluate a pending pod now. Default: show the last decision.")
@click.option(
    "-f",
    "--filename",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Read the cluster from files: a manifest or a folder of manifests. May be given several times.",
)
@click.option("--config", type=click.Path(path_type=Path), help="With -f: a KubeSchedulerConfiguration.")
@click.option("--url", default="", help="The address of the scheduler, such as https://10.0.0.7:10259.")
@click.option(
    "--lease", default=_DEFAULT_LEASE, show_default=True, help="The lease that the scheduler holds, as namespace/name."
)
@click.option(
    "--certificate-authority",
    "authority",
    type=click.Path(path_type=Path),
    help="With --url: the CA certificate of the scheduler's certificate.",
)
@click.option("--insecure-skip-tls-verify", "insecure", is_flag=True, help="With --url: accept any certificate.")
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
    """Explain why POD is on its node, or why it is pending and what would have to change.

    The command asks the leading scheduler through the API server, as you: you need the right to get the pod. The
    answer is the last decision, unless --now makes the scheduler evaluate the pod again, without consequences.
    Suggested changes were tried on the current state of the cluster. With -f no scheduler is asked: the pods of the
    files are placed first, as by `bayplan place`.

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
        raise UsageError(f"{given} needs a cluster in files (-f); a running scheduler has its own configuration")
    else:
        answer = _ask_leader(
            connection, SchedulerAddress(url, lease, str(authority or ""), not insecure), namespace, pod, now=now
        )
    if output == "text":
        print_answer(answer)
    else:
        print_value(msgspec.to_builtins(answer), output)


# A running scheduler.


def _ask_leader(
    connection: ClusterConnection, scheduler: SchedulerAddress, namespace: str, pod: str, *, now: bool
) -> Answer:
    target = connection.target(os.environ)
    path = f"/why/{quote(namespace or target.namespace, safe='')}/{quote(pod, safe='')}{'?now=true' if now else ''}"
    if (
        not scheduler.url
        and (embedded := ClusterFolder.serving(target.server, os.environ)) is not None
        and embedded.page
    ):
        target, scheduler = (
            ConnectionConfig(server=embedded.page),
            SchedulerAddress(urljoin(embedded.page, "/"), scheduler.lease, "", verify=True),
        )
    with explain_api_errors(target):
        return run_until_stopped(fetch_answer(target, scheduler, path))


async def fetch_answer(target: ConnectionConfig, scheduler: SchedulerAddress, path: str) -> Answer:
    """Ask the scheduler at its address if it is known, else through the API server's proxy."""
    if scheduler.url:
        direct = replace(
            target,
            server=scheduler.url.rstrip("/"),
            ca_file=scheduler.authority,
            ca_data=b"",
            verify=scheduler.verify,
            server_name="",
        )
        async with open_client(direct) as client:
            reply = await client.transport.request("GET", path)
            return _decode_answer(reply.body)
    async with open_client(target) as client:
        token = await client.transport.own_token()
        if not token:
            raise UsageError(
                "the kubeconfig has no token, and the API server's proxy forwards only tokens; use a "
                "context with a token, or give the scheduler's address with --url"
            )
        namespace, _, name = scheduler.lease.partition("/")
        if not name:
            raise UsageError(f'--lease "{scheduler.lease}" is not NAMESPACE/NAME, such as {_DEFAULT_LEASE}')
        leader = await leader_proxy_path(client, namespace, name)
        reply = await client.transport.request("GET", f"{leader}{path}", headers={FORWARDED_TOKEN: token})
        return _decode_answer(reply.body)


def _decode_answer(body: bytes) -> Answer:
    try:
        return msgspec.json.decode(body, type=Answer)
    except msgspec.DecodeError as fault:
        raise ApiError(
            f"the response is not an answer of a scheduler: {fault}; check that Bayplan serves this address"
        ) from None


# A cluster in files.


def _explain_in_files(
    files: tuple[Path, ...], config: Path | None, registry: Registry, key: str, *, now: bool
) -> Answer:
    loaded = load_manifests(files)
    objects = list(with_all_defaults(loaded.objects, loaded.places))
    pods = [each for each in objects if isinstance(each, Pod)]
    wanted = next((pod for pod in pods if pod.key == key), None)
    if wanted is None:
        raise UsageError(f"there is no pod {key} in these files; give its namespace with -n")
    if wanted.spec.node_name:
        raise UsageError(
            f"in the files, {wanted.key} is already on {wanted.spec.node_name}, so there is no "
            "decision; choose a pending pod"
        )
    with open_engine(config, registry, filled_cache(objects), seed=0) as engine:
        explainer = PodExplainer(engine, SystemClock())
        outcomes = place_pods(engine, [pod for pod in pods if not pod.spec.node_name])
        node = next((each.node for each in outcomes if each.pod.uid == wanted.uid), None)
        if node is not None:
            return explainer.explain_placed(wanted.bound_to(node))
        return run_to_end(explainer.explain_pending(wanted, now=now))
