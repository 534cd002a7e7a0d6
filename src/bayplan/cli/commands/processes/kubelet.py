"""`bayplan kubelet`: fake nodes on any API server."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import click

from bayplan.app.controllers import fake_kubelet
from bayplan.cli.flags.kubelet_options import kubelet_options, parse_kubelet_options, pop_kubelet_options
from bayplan.cli.signals import wait_until_stopped
from bayplan.client import ConnectionConfig, load_connection_config
from bayplan.controllers import FakeKubelet, NodeTemplate


@click.command("kubelet")
@click.option("--nodes", "count", type=click.IntRange(0), default=10, show_default=True, help="Number of nodes.")
@click.option(
    "--node-template",
    type=click.Path(path_type=Path),
    help="A Node manifest: capacity, labels, taints, images. It may contain {index}, {index%3} or {index/40}.",
)
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="The number of the first node.")
@kubelet_options
@click.option("--remove-nodes", is_flag=True, help="Delete the nodes at the end.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    help="Default: KUBECONFIG, ~/.kube/config, or the pod's service account.",
)
@click.option("--context", default="", help="A context of the kubeconfig instead of the current one.")
@click.option("--master", default="", help="The API server's address, instead of the kubeconfig's.")
@click.option("--qps", type=float, default=100.0, show_default=True, help="Requests a second, without leases.")
@click.option("--burst", type=int, default=200, show_default=True, help="Burst of requests.")
def command(
    count: int,
    node_template: Path | None,
    first: int,
    remove_nodes: bool,
    kubeconfig: Path | None,
    context: str,
    master: str,
    qps: float,
    burst: int,
    **lifecycle: Any,
) -> None:
    """Run fake nodes on an API server, until stopped: Ready nodes and Running pods without containers.

    It registers the nodes, renews their leases and keeps them Ready. A pod that is bound to one of them becomes
    Running. It completes after its run time, is resized on request, and goes when it is deleted. Pods of a Job run
    for two seconds, all other pods forever. Annotations of a pod override this:

    \b
      bayplan.dev/starts-after: 2s     bayplan.dev/ready-after: 5s
      bayplan.dev/runs-for: 90s        bayplan.dev/stops-after: 5s
      bayplan.dev/exit-code: 1         bayplan.dev/failure-rate: 20%

    \b
    Examples:
      bayplan kubelet --nodes 100
      bayplan kubelet --nodes 1000 --node-template node.yaml --runs-for 5m
      bayplan kubelet --nodes 3 --kubeconfig ./test.kubeconfig --remove-nodes

    \b
    A template:
      metadata:
        name: big-{index}
        labels:
          topology.kubernetes.io/zone: zone-{index%3}
      spec:
        taints: [{key: dedicated, value: batch, effect: NoSchedule}]
      status:
        capacity: {cpu: "64", memory: 512Gi, pods: "110", nvidia.com/gpu: "8"}
    """
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
    habits = parse_kubelet_options(pop_kubelet_options(lifecycle))
    template = NodeTemplate.read(node_template) if node_template is not None else NodeTemplate()
    target = load_connection_config(kubeconfig, env=os.environ, context=context, server=master)

    async def run() -> None:
        kubelet = fake_kubelet(target, count=count, template=template, first=first, habits=habits, qps=qps, burst=burst)
        async with kubelet as running:
            await wait_until_stopped(running.run(), beside=_print_ready(running, target))
            if remove_nodes:
                await running.nodes.remove()
        click.echo("stopped")

    asyncio.run(run())


async def _print_ready(kubelet: FakeKubelet, target: ConnectionConfig) -> None:
    names = list(kubelet.nodes.names)
    await kubelet.ready()
    spread = f": {names[0]} to {names[-1]}" if names else ""
    click.echo(f"{len(names)} node(s) are ready on {target.server}{spread}")
