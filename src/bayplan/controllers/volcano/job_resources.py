"""Objects of a Volcano job besides its pods: its PodGroup, its claims and the objects of its plugins.

`create_missing` creates missing objects and updates the group. `delete_unneeded` deletes the objects that go with the
pods. Claims stay until the job is deleted. Every object has the job's owner reference, and is deleted with it. Done
writes are remembered, so that a sync that failed continues where it stopped. With a server that refuses every third
write, a sync that starts over each time might never finish."""

from __future__ import annotations

from collections.abc import Callable

from bayplan.admission.volcano_defaults import min_available
from bayplan.client import GroupVersionResource
from bayplan.codec.quantity import QuantityError, parse_quantity
from bayplan.controllers.core.api_types import CONFIG_MAPS, PERSISTENT_VOLUME_CLAIMS, Tree, UntypedObject
from bayplan.controllers.core.owner_refs import owner_reference
from bayplan.controllers.core.shared_informers import SharedIndexInformer
from bayplan.controllers.volcano.controller import VolcanoController
from bayplan.controllers.volcano.job_plugins import hosts_data, plugin_objects, ssh_data
from bayplan.controllers.volcano.job_pods import claims_of
from bayplan.controllers.volcano.job_view import JobView
from bayplan.controllers.volcano.min_resources import format_amounts, min_resources_of
from bayplan.controllers.volcano.resources import POD_GROUPS, SECRETS, VC_JOBS
from bayplan.errors import NotFound, ObjectError
from bayplan.objects.meta import format_time
from bayplan.objects.volcano.constants import PARTITION_ID, PENDING, TASK_SPEC
from bayplan.objects.workloads import PriorityClass

_CREATED, _DELETED = "made", "gone"


class JobResources:
    def __init__(
        self,
        controller: VolcanoController,
        groups: SharedIndexInformer[UntypedObject],
        classes: SharedIndexInformer[PriorityClass],
    ) -> None:
        self._controller = controller
        self._groups = groups
        self._classes = classes
        self._done: dict[str, set[str]] = {}
        """By the job's uid: writes that succeeded since the last complete creation or deletion."""

    async def create_missing(self, job: JobView) -> Tree:
        """Create missing objects. Returns the status with the created objects."""
        status = dict(job.item.status)
        if not (status.get("state") or {}).get("phase"):
            now = format_time(self._controller.clock.now())
            status["state"] = {"phase": PENDING, "lastTransitionTime": now}
            status["conditions"] = [{"status": PENDING, "lastTransitionTime": now}]
        controlled = dict(status.get("controlledResources") or {})
        if not job.initiated:
            await self._add_plugins(job, controlled)
            await self._add_claims(job, controlled)
        elif "svc" in job.plugins:
            await self._refresh_hosts(job)
        await self._sync_pod_group(job)
        status["controlledResources"] = controlled
        return status

    async def delete_unneeded(self, job: JobView) -> None:
        """Delete the objects that are useless without the pods."""
        done = self._done.setdefault(job.uid, set())
        done -= {each for each in done if each.startswith(_CREATED)}
        if job.item.status.get("controlledResources"):
            for _, resource, body in plugin_objects(job):
                write_key = f"{_DELETED} {resource} {body['metadata']['name']}"
                if write_key not in done:
                    await self._controller.remove(resource, job.namespace, body["metadata"]["name"])
                    done.add(write_key)
        if self._groups.get(job.namespace, job.group_name) is not None and f"{_DELETED} group" not in done:
            await self._controller.remove(POD_GROUPS, job.namespace, job.group_name)
            done.add(f"{_DELETED} group")

    def forget(self, uid: str) -> None:
        """Drop the state of a deleted job."""
        self._done.pop(uid, None)

    async def _ensure(self, job: JobView, resource: GroupVersionResource, body: Tree) -> None:
        """Create an object of the job, unless that succeeded before."""
        done = self._done.setdefault(job.uid, set())
        done -= {each for each in done if each.startswith(_DELETED)}
        write_key = f"{_CREATED} {resource} {body['metadata']['name']}"
        if write_key not in done:
            await self._controller.ensure(resource, job.namespace, self._with_owner(job, body))
            done.add(write_key)

    async def _add_plugins(self, job: JobView, controlled: Tree) -> None:
        for plugin, resource, body in plugin_objects(job):
            if controlled.get(f"plugin-{plugin}") == plugin:
                continue
            if resource is SECRETS and f"{_CREATED} {resource} {body['metadata']['name']}" not in self._done.get(
                job.uid, ()
            ):
                body = {**body, "data": ssh_data(job)}
            await self._ensure(job, resource, body)
        controlled |= {f"plugin-{plugin}": plugin for plugin in job.plugins}

    async def _refresh_hosts(self, job: JobView) -> None:
        """Update the hosts, because tasks may have been scaled."""
        name, data = f"{job.name}-svc", hosts_data(job)
        try:
            found = await self._controller.client.get_raw(CONFIG_MAPS, job.namespace, name)
        except NotFound:
            await self._controller.ensure(
                CONFIG_MAPS, job.namespace, self._with_owner(job, {"metadata": {"name": name}, "data": data})
            )
            return
        if found.get("data") != data:
            await self._controller.client.update(CONFIG_MAPS, {**found, "data": data})

    async def _add_claims(self, job: JobView, controlled: Tree) -> None:
        volumes = job.spec.get("volumes") or []
        for volume, claim in zip(volumes, claims_of(job), strict=True):
            if volume.get("volumeClaim") is not None:
                body = {"metadata": {"name": claim}, "spec": volume["volumeClaim"]}
                await self._ensure(job, PERSISTENT_VOLUME_CLAIMS, body)
            else:
                await self._require_claim(job, claim)
            controlled[f"volume-pvc-{claim}"] = claim

    async def _require_claim(self, job: JobView, claim: str) -> None:
        try:
            await self._controller.client.get_raw(PERSISTENT_VOLUME_CLAIMS, job.namespace, claim)
        except NotFound:
            note = f"pvc {claim} is not found, the job will be in the Pending state until the PVC is created"
            self._controller.record_event(
                VC_JOBS, job.item, "PVCError", f"Failed to create PVC, err: {note}", warning=True
            )
            raise ObjectError(note) from None

    async def _sync_pod_group(self, job: JobView) -> None:
        wanted = group_spec(job, self._priority)
        group = self._groups.get(job.namespace, job.group_name)
        if group is None:
            meta = job.item.metadata
            metadata = {"name": job.group_name, "labels": meta.labels, "annotations": meta.annotations}
            await self._controller.ensure(
                POD_GROUPS, job.namespace, self._with_owner(job, {"metadata": metadata, "spec": wanted})
            )
            return
        keys = ("minMember", "minTaskMember", "minResources", "priorityClassName", "subGroupPolicy")
        differing = {
            f"/spec/{key}": wanted[key] for key in keys if key in wanted and not _same_field(wanted, group.spec, key)
        }
        if differing:
            await self._controller.replace(POD_GROUPS, group, differing)

    def _priority(self, name: str) -> int:
        found = self._classes.get("", name) if name else None
        return found.value if found is not None else 0

    def _with_owner(self, job: JobView, body: Tree) -> Tree:
        metadata = {**body["metadata"], "ownerReferences": [owner_reference(VC_JOBS, job.item)]}
        return {**body, "metadata": metadata}


def group_spec(job: JobView, priority_of: Callable[[str], int]) -> Tree:
    spec: Tree = {
        "minMember": job.min_available,
        "minTaskMember": {task["name"]: min_available(task) for task in job.tasks},
        "queue": job.queue,
        "minResources": format_amounts(min_resources_of(job.tasks, job.min_available, priority_of)),
    }
    if job.spec.get("priorityClassName"):
        spec["priorityClassName"] = job.spec["priorityClassName"]
    if job.spec.get("networkTopology"):
        spec["networkTopology"] = topology_of(job.spec["networkTopology"])
    policies = [_sub_groups(task) for task in job.tasks if task.get("partitionPolicy")]
    if policies:
        spec["subGroupPolicy"] = policies
    return spec


def topology_of(topology: Tree) -> Tree:
    """Network topology with the tier's number or, without it, the tier's name."""
    found: Tree = {"mode": topology.get("mode") or "hard"}
    if topology.get("highestTierAllowed") is not None:
        found["highestTierAllowed"] = topology["highestTierAllowed"]
    elif topology.get("highestTierName"):
        found["highestTierName"] = topology["highestTierName"]
    return found


def _sub_groups(task: Tree) -> Tree:
    policy = task["partitionPolicy"]
    found: Tree = {
        "name": task["name"],
        "labelSelector": {"matchLabels": {TASK_SPEC: task["name"]}},
        "matchLabelKeys": [PARTITION_ID],
        "subGroupSize": int(policy.get("partitionSize") or 0),
    }
    if policy.get("minPartitions"):
        found["minSubGroups"] = int(policy["minPartitions"])
    if policy.get("networkTopology"):
        found["networkTopology"] = topology_of(policy["networkTopology"])
    return found


def _same_field(wanted: Tree, current: Tree, key: str) -> bool:
    """Whether a field has the same value; equal quantities may have different text."""
    if key != "minResources":
        return bool(wanted[key] == current.get(key))
    wanted_amounts, current_amounts = wanted[key], current.get(key) or {}
    try:
        return wanted_amounts.keys() == current_amounts.keys() and all(
            parse_quantity(wanted_amounts[name]) == parse_quantity(current_amounts[name]) for name in wanted_amounts
        )
    except QuantityError:
        return False
