"""What stands round the pods of a job: its PodGroup, its claims, and what its plugins want.

`arrange` makes what is missing and brings the group up to date; `clear` takes away what goes with the pods. Claims stay
until the job is deleted. Every object carries the job's reference, and goes with it. What was made or taken away is
remembered, so that a sync that failed half way goes on from there and does not begin with what is done: against a
server that refuses every third write, one that began anew each time might never come to the end.
"""

from __future__ import annotations

from collections.abc import Callable

from bayplan.admission.volcano_defaults import min_available
from bayplan.client import Resource
from bayplan.codec.quantity import QuantityError, parse_quantity
from bayplan.controllers.core.api_types import (
    CLAIMS,
    CONFIG_MAPS,
    Tree,
    Whole,
)
from bayplan.controllers.core.owner_refs import owner_reference
from bayplan.controllers.core.shared_informers import Feed
from bayplan.controllers.volcano.controller import BatchController
from bayplan.controllers.volcano.job_plugins import hosts_data, plugin_objects, ssh_data
from bayplan.controllers.volcano.job_pods import claims_of
from bayplan.controllers.volcano.job_view import JobView
from bayplan.controllers.volcano.min_resources import group_amounts, texts
from bayplan.controllers.volcano.resources import POD_GROUPS, SECRETS, VC_JOBS
from bayplan.errors import NotFound, ObjectError
from bayplan.objects.meta import whole_time
from bayplan.objects.volcano.constants import PARTITION_ID, PENDING, TASK_SPEC
from bayplan.objects.workloads import PriorityClass

_MADE, _GONE = "made", "gone"


class JobFurniture:
    """Furnishes jobs."""

    def __init__(self, controller: BatchController, groups: Feed[Whole], classes: Feed[PriorityClass]) -> None:
        self._at = controller
        self._groups = groups
        self._classes = classes
        self._done: dict[str, set[str]] = {}
        """By a job's uid: which writes were taken since it was furnished or cleared last."""

    async def arrange(self, job: JobView) -> Tree:
        """Make what is missing. The status with what was made noted in it."""
        status = dict(job.item.status)
        if not (status.get("state") or {}).get("phase"):
            now = whole_time(self._at.clock.now())
            status["state"] = {"phase": PENDING, "lastTransitionTime": now}
            status["conditions"] = [{"status": PENDING, "lastTransitionTime": now}]
        controlled = dict(status.get("controlledResources") or {})
        if not job.initiated:
            await self._add_plugins(job, controlled)
            await self._add_claims(job, controlled)
        elif "svc" in job.plugins:
            await self._refresh_hosts(job)
        await self._bring_group(job)
        status["controlledResources"] = controlled
        return status

    async def clear(self, job: JobView) -> None:
        """Take away what is of no use without the pods."""
        done = self._done.setdefault(job.uid, set())
        done -= {each for each in done if each.startswith(_MADE)}
        if job.item.status.get("controlledResources"):
            for _, resource, body in plugin_objects(job):
                mark = f"{_GONE} {resource} {body['metadata']['name']}"
                if mark not in done:
                    await self._at.remove(resource, job.namespace, body["metadata"]["name"])
                    done.add(mark)
        if self._groups.get(job.namespace, job.group_name) is not None and f"{_GONE} group" not in done:
            await self._at.remove(POD_GROUPS, job.namespace, job.group_name)
            done.add(f"{_GONE} group")

    def forget(self, uid: str) -> None:
        """The job is gone."""
        self._done.pop(uid, None)

    async def _ensure(self, job: JobView, resource: Resource, body: Tree) -> None:
        """Make an object of the job's, unless that was done before."""
        done = self._done.setdefault(job.uid, set())
        done -= {each for each in done if each.startswith(_GONE)}
        mark = f"{_MADE} {resource} {body['metadata']['name']}"
        if mark not in done:
            await self._at.ensure(resource, job.namespace, self._owned(job, body))
            done.add(mark)

    async def _add_plugins(self, job: JobView, controlled: Tree) -> None:
        for plugin, resource, body in plugin_objects(job):
            if controlled.get(f"plugin-{plugin}") == plugin:
                continue
            if resource is SECRETS and f"{_MADE} {resource} {body['metadata']['name']}" not in self._done.get(
                job.uid, ()
            ):
                body = {**body, "data": ssh_data(job)}
            await self._ensure(job, resource, body)
        controlled |= {f"plugin-{plugin}": plugin for plugin in job.plugins}

    async def _refresh_hosts(self, job: JobView) -> None:
        """Tasks may have grown since."""
        name, data = f"{job.name}-svc", hosts_data(job)
        try:
            found = await self._at.client.get_raw(CONFIG_MAPS, job.namespace, name)
        except NotFound:
            await self._at.ensure(
                CONFIG_MAPS, job.namespace, self._owned(job, {"metadata": {"name": name}, "data": data})
            )
            return
        if found.get("data") != data:
            await self._at.client.update(CONFIG_MAPS, {**found, "data": data})

    async def _add_claims(self, job: JobView, controlled: Tree) -> None:
        volumes = job.spec.get("volumes") or []
        for volume, claim in zip(volumes, claims_of(job), strict=True):
            if volume.get("volumeClaim") is not None:
                body = {"metadata": {"name": claim}, "spec": volume["volumeClaim"]}
                await self._ensure(job, CLAIMS, body)
            else:
                await self._must_exist(job, claim)
            controlled[f"volume-pvc-{claim}"] = claim

    async def _must_exist(self, job: JobView, claim: str) -> None:
        try:
            await self._at.client.get_raw(CLAIMS, job.namespace, claim)
        except NotFound:
            note = f"pvc {claim} is not found, the job will be in the Pending state until the PVC is created"
            self._at.say(VC_JOBS, job.item, "PVCError", f"Failed to create PVC, err: {note}", warning=True)
            raise ObjectError(note) from None

    async def _bring_group(self, job: JobView) -> None:
        """Make the group, or bring it up to date."""
        wanted = group_spec(job, self._priority)
        group = self._groups.get(job.namespace, job.group_name)
        if group is None:
            meta = job.item.metadata
            metadata = {"name": job.group_name, "labels": meta.labels, "annotations": meta.annotations}
            await self._at.ensure(POD_GROUPS, job.namespace, self._owned(job, {"metadata": metadata, "spec": wanted}))
            return
        keys = ("minMember", "minTaskMember", "minResources", "priorityClassName", "subGroupPolicy")
        differing = {
            f"/spec/{key}": wanted[key] for key in keys if key in wanted and not _same(wanted, group.spec, key)
        }
        if differing:
            await self._at.replace(POD_GROUPS, group, differing)

    def _priority(self, name: str) -> int:
        found = self._classes.get("", name) if name else None
        return found.value if found is not None else 0

    def _owned(self, job: JobView, body: Tree) -> Tree:
        metadata = {**body["metadata"], "ownerReferences": [owner_reference(VC_JOBS, job.item)]}
        return {**body, "metadata": metadata}


def group_spec(job: JobView, priority_of: Callable[[str], int]) -> Tree:
    """What the group of a job asks for."""
    spec: Tree = {
        "minMember": job.min_available,
        "minTaskMember": {task["name"]: min_available(task) for task in job.tasks},
        "queue": job.queue,
        "minResources": texts(group_amounts(job.tasks, job.min_available, priority_of)),
    }
    if job.spec.get("priorityClassName"):
        spec["priorityClassName"] = job.spec["priorityClassName"]
    if job.spec.get("networkTopology"):
        spec["networkTopology"] = topology_of(job.spec["networkTopology"])
    policies = [_sub_groups(task) for task in job.tasks if task.get("partitionPolicy")]
    if policies:
        spec["subGroupPolicy"] = policies
    return spec


def topology_of(given: Tree) -> Tree:
    """A tier by its number, or else by its name."""
    found: Tree = {"mode": given.get("mode") or "hard"}
    if given.get("highestTierAllowed") is not None:
        found["highestTierAllowed"] = given["highestTierAllowed"]
    elif given.get("highestTierName"):
        found["highestTierName"] = given["highestTierName"]
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


def _same(wanted: Tree, there: Tree, key: str) -> bool:
    """Whether a field says the same; amounts may be written differently."""
    if key != "minResources":
        return bool(wanted[key] == there.get(key))
    ours, theirs = wanted[key], there.get(key) or {}
    try:
        return ours.keys() == theirs.keys() and all(
            parse_quantity(ours[name]) == parse_quantity(theirs[name]) for name in ours
        )
    except QuantityError:
        return False
