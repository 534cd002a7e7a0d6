"""`bayplan job`: Volcano's jobs, as in `vcctl job`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from bayplan.admission.volcano_defaults import min_available, replicas
from bayplan.cli.commands.volcano.vcctl import (
    ServerArguments,
    Tree,
    list_trees,
    output_option,
    print_columns,
    print_objects,
    require_name,
    run_with_server,
    send_command,
    vcctl_options,
)
from bayplan.cli.output.printers import print_value
from bayplan.client import CORE_EVENTS, Client
from bayplan.codec.quantity import parse_quantity
from bayplan.codec.yaml import read_manifests
from bayplan.controllers.volcano.resources import VC_JOBS
from bayplan.errors import ObjectError, UsageError
from bayplan.objects.volcano.constants import ABORT_JOB, RESUME_JOB

_HEADER = (
    *("Name", "Creation", "Phase", "JobType", "Replicas", "Min"),
    *("Pending", "Running", "Succeeded", "Failed", "Unknown", "RetryCount"),
)
_COUNTS = ("pending", "running", "succeeded", "failed", "unknown", "retryCount")
_DEFAULT_AMOUNTS = "cpu=1000m,memory=100Mi"
_namespace_option = click.option(
    "-n", "--namespace", default="default", show_default=True, help="The namespace of the job."
)
_name_option = click.option("-N", "--name", help="The name of the job.")


@click.group("job")
def command() -> None:
    """Run, list, view, suspend, resume and delete Volcano's jobs.

    \b
    Examples:
      bayplan job run --name hello --image busybox --replicas 3
      bayplan job list --all-namespaces
      bayplan job suspend hello
    """


@command.command("list")
@_namespace_option
@click.option("-A", "--all-namespaces", is_flag=True, help="List jobs of all namespaces.")
@click.option("-q", "--queue", default="", help="Only jobs of this queue.")
@click.option("-S", "--scheduler", default="", help="Only jobs of this scheduler.")
@click.option("--selector", default="", help="Only jobs whose name contains this.")
@output_option
@vcctl_options
def list_(
    namespace: str,
    all_namespaces: bool,
    queue: str,
    scheduler: str,
    selector: str,
    output: str | None,
    where: ServerArguments,
) -> None:
    """List jobs.

    \b
    Examples:
      bayplan job list
      bayplan job list -A -q ml -o json
    """
    space = "" if all_namespaces else namespace
    found: list[Tree] = run_with_server(where, lambda client: list_trees(client, VC_JOBS, space))
    jobs = [
        job
        for job in found
        if (not queue or job["spec"].get("queue") == queue)
        and (not scheduler or job["spec"].get("schedulerName") == scheduler)
        and selector in job["metadata"]["name"]
    ]
    header = ("Namespace", *_HEADER) if all_namespaces else _HEADER
    print_objects(
        jobs, output, header, lambda job: [*([job["metadata"]["namespace"]] if all_namespaces else []), *_row(job)]
    )


def _row(job: Tree) -> list[Any]:
    meta, spec, status = job["metadata"], job.get("spec") or {}, job.get("status") or {}
    tasks = spec.get("tasks") or []
    min_pods = spec.get("minAvailable") or sum(min_available(task) for task in tasks)
    kind = (meta.get("labels") or {}).get("volcano.sh/job-type") or "Batch"
    created = str(meta.get("creationTimestamp", ""))[:10]
    phase = (status.get("state") or {}).get("phase", "")
    counted = [status.get(key, 0) for key in _COUNTS]
    return [meta["name"], created, phase, kind, sum(replicas(task) for task in tasks), min_pods, *counted]


@command.command("view")
@click.argument("job", required=False)
@_name_option
@_namespace_option
@output_option
@vcctl_options
def view(job: str | None, name: str | None, namespace: str, output: str | None, where: ServerArguments) -> None:
    """Show a job: its spec, its status and its events.

    \b
    Examples:
      bayplan job view hello
      bayplan job view -N hello -n ml -o yaml
    """
    chosen = require_name(job, name, "job")

    async def read(client: Client) -> tuple[Tree, list[Tree]]:
        found = await client.get_raw(VC_JOBS, namespace, chosen)
        answer = await client.transport.request("GET", CORE_EVENTS.path(namespace))
        events = msgspec.json.decode(answer.body).get("items") or []
        own = [each for each in events if each["involvedObject"].get("uid") == found["metadata"]["uid"]]
        return found, own

    found, events = run_with_server(where, read)
    if output is not None:
        print_value(found, output)
    else:
        _print_job(found, events)


def _print_job(job: Tree, events: list[Tree]) -> None:
    meta, spec, status = job["metadata"], job.get("spec") or {}, job.get("status") or {}
    state = status.get("state") or {}
    lines: list[tuple[str, Any]] = [
        ("Name", meta["name"]),
        ("Namespace", meta["namespace"]),
        ("Created", meta.get("creationTimestamp", "")),
        ("Queue", spec.get("queue", "default")),
        ("Scheduler", spec.get("schedulerName", "volcano")),
        ("Min Available", spec.get("minAvailable", 0)),
        ("Plugins", ", ".join(sorted(spec.get("plugins") or {})) or "<none>"),
        ("Phase", state.get("phase", "")),
    ]
    lines += [(key.capitalize(), status[key]) for key in (*_COUNTS, "version") if status.get(key)]
    if state.get("message"):
        lines.append(("Message", state["message"]))
    print_columns([[f"{key}:", value] for key, value in lines])
    click.echo("Tasks:")
    counted = status.get("taskStatusCount") or {}
    rows = [["  Name", "Replicas", "Min", "Pods"]]
    for task in spec.get("tasks") or ():
        phases = (counted.get(task.get("name", "")) or {}).get("phase") or {}
        pods = ", ".join(f"{count} {phase}" for phase, count in sorted(phases.items())) or "<none>"
        rows.append([f"  {task.get('name', '')}", str(replicas(task)), str(min_available(task)), pods])
    print_columns(rows)
    if status.get("conditions"):
        click.echo("Conditions:")
        print_columns([[f"  {each['status']}", each.get("lastTransitionTime", "")] for each in status["conditions"]])
    click.echo("Events:" if events else "Events: <none>")
    for event in events:
        click.echo(f"  {event.get('type', '')}  {event.get('reason', '')}  {event.get('message', '').strip()}")


@command.command("run")
@_name_option
@click.option("-n", "--namespace", help="The namespace of the job.  [default: the file's, or default]")
@click.option("-i", "--image", default="busybox", show_default=True, help="The image of its containers.")
@click.option(
    "-m", "--min", "min_pods", type=int, default=1, show_default=True, help="minAvailable: pods that must run together."
)
@click.option("-r", "--replicas", "count", type=int, default=1, show_default=True, help="Number of pods.")
@click.option("-R", "--requests", default=_DEFAULT_AMOUNTS, show_default=True, help="Resource requests of a pod.")
@click.option("-L", "--limits", default=_DEFAULT_AMOUNTS, show_default=True, help="Resource limits of a pod.")
@click.option("-S", "--scheduler", default="volcano", show_default=True, help="The schedulerName of its pods.")
@click.option("-f", "--filename", type=click.Path(path_type=Path), help="A file with a Job, instead of these options.")
@vcctl_options
def run(
    name: str | None,
    namespace: str | None,
    image: str,
    min_pods: int,
    count: int,
    requests: str,
    limits: str,
    scheduler: str,
    filename: Path | None,
    where: ServerArguments,
) -> None:
    """Create a job of equal pods, or the job of a file.

    \b
    Examples:
      bayplan job run --name hello --replicas 3 --min 3
      bayplan job run -f job.yaml -n ml
    """
    if filename is not None:
        body = _read_job(filename)
        named = (body.get("metadata") or {}).get("namespace")
        if namespace and named and namespace != named:
            raise UsageError(f"{filename} has the namespace {named}; leave out --namespace {namespace}")
        namespace = namespace or named
    else:
        body = build_job(
            require_name(None, name, "job"),
            image,
            min_pods,
            count,
            _parse_amounts(requests),
            _parse_amounts(limits),
            scheduler,
        )
    created = run_with_server(where, lambda client: client.create(VC_JOBS, body, namespace=namespace or "default"))
    click.echo(f"run job {msgspec.json.decode(created)['metadata']['name']} successfully")


def _read_job(path: Path) -> Tree:
    try:
        found = [each.value for each in read_manifests(path)]
    except OSError as fault:
        raise UsageError(f"cannot read {path}: {fault.strerror}; give a readable --filename") from None
    jobs = [each for each in found if each.get("kind") == "Job" and each.get("apiVersion") == VC_JOBS.api_version]
    if len(jobs) != 1 or len(found) != 1:
        raise UsageError(
            f"{path} must contain one Job of {VC_JOBS.api_version} and nothing else; use kubectl for other objects"
        )
    return jobs[0]


def build_job(name: str, image: str, min_pods: int, count: int, requests: Tree, limits: Tree, scheduler: str) -> Tree:
    container: Tree = {"image": image, "name": name, "imagePullPolicy": "IfNotPresent"}
    container["resources"] = {"requests": requests, "limits": limits}
    labels = {"volcano.sh/job-name": name}
    template = {
        "metadata": {"name": name, "labels": labels},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    task = {"name": "task", "replicas": count, "template": template}
    spec = {"minAvailable": min_pods, "schedulerName": scheduler, "tasks": [task]}
    return {"apiVersion": VC_JOBS.api_version, "kind": "Job", "metadata": {"name": name}, "spec": spec}


def _parse_amounts(text: str) -> Tree:
    """Parse `cpu=1,memory=100Mi` to a resource map."""
    found: Tree = {}
    for part in text.split(",") if text else ():
        name, equals, amount = part.partition("=")
        try:
            if not equals or "=" in amount:
                raise UsageError(f"invalid argument syntax {part}, expected <resource>=<value>")
            parse_quantity(amount)
        except ObjectError as fault:
            raise UsageError(str(fault)) from None
        found[name] = amount
    return found


@command.command("suspend")
@click.argument("job", required=False)
@_name_option
@_namespace_option
@vcctl_options
def suspend(job: str | None, name: str | None, namespace: str, where: ServerArguments) -> None:
    """Stop a job and delete its running pods, so that it can be resumed.

    \b
    Examples:
      bayplan job suspend hello
      bayplan job suspend -N hello -n ml
    """
    _send_job_command(where, ABORT_JOB, require_name(job, name, "job"), namespace)


@command.command("resume")
@click.argument("job", required=False)
@_name_option
@_namespace_option
@vcctl_options
def resume(job: str | None, name: str | None, namespace: str, where: ServerArguments) -> None:
    """Resume a suspended job.

    \b
    Examples:
      bayplan job resume hello
      bayplan job resume -N hello -n ml
    """
    _send_job_command(where, RESUME_JOB, require_name(job, name, "job"), namespace)


def _send_job_command(where: ServerArguments, action: str, name: str, namespace: str) -> None:
    async def send(client: Client) -> None:
        found = await client.get_raw(VC_JOBS, namespace, name)
        await send_command(client, VC_JOBS, found, action, namespace)

    run_with_server(where, send)
    word = "suspend" if action == ABORT_JOB else "resume"
    click.echo(f"{word} job {name} successfully")


@command.command("delete")
@click.argument("job", required=False)
@_name_option
@_namespace_option
@vcctl_options
def delete(job: str | None, name: str | None, namespace: str, where: ServerArguments) -> None:
    """Delete a job and its pods.

    \b
    Examples:
      bayplan job delete hello
      bayplan job delete -N hello -n ml
    """
    chosen = require_name(job, name, "job")
    run_with_server(
        where, lambda client: client.delete(VC_JOBS, name=chosen, namespace=namespace, propagation="Background")
    )
    click.echo(f"delete job {chosen} successfully")
