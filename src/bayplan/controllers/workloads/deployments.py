"""Deployment controller: one ReplicaSet per template, scaled up and down against each other during a rollout.

Old ReplicaSets are kept as history for `kubectl rollout undo`, up to revisionHistoryLimit. A sync walks the
deployment's ReplicaSets and makes a few writes; each change of a ReplicaSet causes a sync.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from bayplan.controllers.core.api_types import DEPLOYMENTS, PODS, REPLICA_SETS, PodFields, Tree, UntypedObject
from bayplan.controllers.core.controller import Controller
from bayplan.controllers.core.owner_refs import claim_objects, owner_reference, selector_of
from bayplan.controllers.core.shared_informers import Key, SharedInformerFactory, merge_patch
from bayplan.controllers.workloads import deployment_status
from bayplan.controllers.workloads.deployment_status import replicas, status_number
from bayplan.controllers.workloads.template_hash import short_hash
from bayplan.errors import AlreadyExists, ApiError

_NO_LIMIT = 2**31 - 1


class DeploymentController(Controller):
    name = "deployment-controller"

    def __init__(self, informers: SharedInformerFactory) -> None:
        super().__init__(informers)
        self.deployments = self.informer(DEPLOYMENTS, UntypedObject)
        self.sets = self.informer(REPLICA_SETS, UntypedObject)
        self.pods = self.informer(PODS, PodFields)
        self.deployments.add_handler(self.enqueue)
        self.sets.add_handler(self._on_set)
        self.pods.add_handler(self._on_pod)

    # Event handlers.

    def _on_set(self, old: UntypedObject | None, new: UntypedObject | None) -> None:
        for each in (old, new):
            owner = each.metadata.controller if each is not None else None
            if each is not None and owner is not None and owner.kind == "Deployment":
                self.queue.add((each.namespace, owner.name))
        if new is not None and new.metadata.controller is None:
            for each in self.deployments.by_namespace(new.namespace):
                if selector_of(each).matches(new.metadata.labels):
                    self.enqueue(None, each)

    def _on_pod(self, old: PodFields | None, new: PodFields | None) -> None:
        """Event handler: the last pod of a ReplicaSet is deleted, so strategy Recreate may continue."""
        if new is not None or old is None:
            return
        owner = old.metadata.controller
        if owner is None or owner.kind != "ReplicaSet" or self.pods.count_owned_by(owner.uid):
            return
        found = self.sets.get(old.namespace, owner.name)
        parent = found.metadata.controller if found is not None else None
        if parent is not None and parent.kind == "Deployment":
            self.queue.add((old.namespace, parent.name))

    # Sync.

    async def sync(self, key: Key) -> float | None:
        found = self.deployments.get(*key)
        if found is None:
            return None
        selector = selector_of(found)
        if selector.everything:
            note = "This deployment is selecting all pods. A non-empty selector is required."
            self.record_event(DEPLOYMENTS, found, "SelectingAll", note, warning=True)
            return None
        sets = await claim_objects(self.client, self.sets, DEPLOYMENTS, found, selector)
        rollout = Rollout(self, found, sets)
        if found.terminating:
            await rollout.write_status()
            return None
        await rollout.write_paused_condition()
        if found.spec.get("paused"):
            await rollout.revise(create=False)
            await rollout.scale()
            await rollout.clean_up()
            await rollout.write_status()
            return None
        if any(
            deployment_status.number(each, deployment_status.DESIRED) not in (None, replicas(found))
            for each in deployment_status.active_sets(sets)
        ):
            await rollout.revise(create=False)
            await rollout.scale()
            await rollout.write_status()
            return None
        return await (rollout.roll() if deployment_status.is_rolling(found) else rollout.recreate())


class Rollout:
    """One sync of one deployment."""

    def __init__(
        self, controller: DeploymentController, deployment: UntypedObject, sets: Sequence[UntypedObject]
    ) -> None:
        self._controller = controller
        self._client = controller.client
        self._clock = controller.clock
        self.deployment = deployment
        self._template: Tree = deployment.spec.get("template") or {}
        ordered = sorted(sets, key=lambda each: (str(each.metadata.creation_timestamp), each.name))
        same = (
            each for each in ordered if deployment_status.same_template(each.spec.get("template") or {}, self._template)
        )
        self.new: UntypedObject | None = next(same, None)
        self.old = [each for each in ordered if self.new is None or each.uid != self.new.uid]

    @property
    def _all(self) -> list[UntypedObject]:
        return [*self.old, *([self.new] if self.new is not None else [])]

    # Revisions.

    async def revise(self, *, create: bool) -> None:
        """Give the new ReplicaSet the highest revision. `create`: create it if it does not exist."""
        newest = max((deployment_status.revision(each) for each in self.old), default=0) + 1
        if self.new is None:
            if create:
                await self._create(newest)
            return
        current = self.new.metadata.annotations
        wanted = deployment_status.set_annotations(self.deployment, current, newest, exists=True)
        patch: Tree = {}
        if wanted != current:
            patch["metadata"] = {"annotations": merge_patch(current, wanted)}
        ready_s = self.deployment.spec.get("minReadySeconds") or 0
        if ready_s != (self.new.spec.get("minReadySeconds") or 0):
            patch["spec"] = {"minReadySeconds": ready_s}
        if patch:
            self.new = await self._write_set(self.new, patch)
        conditions = self.deployment.status.get("conditions") or []
        if (
            deployment_status.deadline_s(self.deployment) is not None
            and deployment_status.condition(conditions, deployment_status.PROGRESSING) is None
        ):
            note = f'Found new replica set "{self.new.name}"'
            conditions = self._conditions_with(deployment_status.PROGRESSING, "True", "FoundNewReplicaSet", note)
        await self._write_revision(deployment_status.revision(self.new), conditions)

    async def _create(self, newest: int) -> None:
        deployment = self.deployment
        collisions = status_number(deployment, "collisionCount") if "collisionCount" in deployment.status else None
        body = self._set_body(short_hash(self._template, collisions), newest)
        name, size = body["metadata"]["name"], body["spec"]["replicas"]
        created = True
        try:
            answer = await self._client.create(REPLICA_SETS, body, namespace=deployment.namespace)
            self.new = msgspec.json.decode(answer, type=UntypedObject)
        except AlreadyExists:
            created = False
            self.new = await self._get_existing_set(name)
        except ApiError as fault:
            await self._report_create_failure(name, fault)
            raise
        if created and size:
            self._record_scaling(f"Scaled up replica set {name} from 0 to {size}")
        conditions = deployment.status.get("conditions") or []
        if created and deployment_status.deadline_s(deployment) is not None:
            note = f'Created new replica set "{name}"'
            conditions = self._conditions_with(deployment_status.PROGRESSING, "True", "NewReplicaSetCreated", note)
        await self._write_revision(newest, conditions)

    def _set_body(self, short: str, newest: int) -> Tree:
        deployment = self.deployment
        meta = self._template.get("metadata") or {}
        labels = {**(meta.get("labels") or {}), deployment_status.HASH: short}
        selector = deployment.spec["selector"]
        matched = {**selector, "matchLabels": {**(selector.get("matchLabels") or {}), deployment_status.HASH: short}}
        return {
            "apiVersion": REPLICA_SETS.api_version,
            "kind": "ReplicaSet",
            "metadata": {
                "name": f"{deployment.name}-{short}",
                "labels": labels,
                "annotations": deployment_status.set_annotations(deployment, {}, newest, exists=False),
                "ownerReferences": [owner_reference(DEPLOYMENTS, deployment)],
            },
            "spec": {
                "replicas": deployment_status.new_set_size(deployment, self.old, 0),
                "minReadySeconds": deployment.spec.get("minReadySeconds") or 0,
                "selector": matched,
                "template": {**self._template, "metadata": {**meta, "labels": labels}},
            },
        }

    async def _get_existing_set(self, name: str) -> UntypedObject:
        """ReplicaSet with this name: the deployment's own, not delivered yet, or one of another template."""
        found = await self._client.get(UntypedObject, self.deployment.namespace, name, resource=REPLICA_SETS)
        owner = found.metadata.controller
        owned = owner is not None and owner.uid == self.deployment.uid
        if owned and deployment_status.same_template(found.spec.get("template") or {}, self._template):
            return found
        count = status_number(self.deployment, "collisionCount") + 1
        await self._write({"status": {"collisionCount": count}})
        raise AlreadyExists(f"replica set {name} has another template; retrying with another name")

    async def _report_create_failure(self, name: str, fault: ApiError) -> None:
        note = f'Failed to create new replica set "{name}": {fault.details}'
        self._controller.record_event(DEPLOYMENTS, self.deployment, "ReplicaSetCreateError", note, warning=True)
        if deployment_status.deadline_s(self.deployment) is not None:
            conditions = self._conditions_with(deployment_status.PROGRESSING, "False", "ReplicaSetCreateError", note)
            await self._write({"status": {"conditions": conditions}})

    async def _write_revision(self, newest: int, conditions: list[Tree]) -> None:
        patch: Tree = {}
        if deployment_status.revision(self.deployment) != newest:
            patch["metadata"] = {"annotations": {deployment_status.REVISION: str(newest)}}
        if conditions != (self.deployment.status.get("conditions") or []):
            patch["status"] = {"conditions": conditions}
        if patch:
            await self._write(patch)

    # Sizes.

    async def roll(self) -> float | None:
        """Scale the new ReplicaSet up and the old ones down within maxSurge and maxUnavailable."""
        await self.revise(create=True)
        assert self.new is not None
        if (
            not await self._scale_up_new()
            and not await self._scale_down_old()
            and deployment_status.is_complete(self.deployment, self.deployment.status)
        ):
            await self.clean_up()
        return await self._write_rollout_status()

    async def _scale_up_new(self) -> bool:
        assert self.new is not None
        wanted, has = replicas(self.deployment), replicas(self.new)
        if has == wanted:
            return False
        size = wanted if has > wanted else deployment_status.new_set_size(self.deployment, self._all, has)
        return await self._resize(self.new, size)

    async def _scale_down_old(self) -> bool:
        """Scale down unhealthy old pods first, then as many as the new pods replace."""
        assert self.new is not None
        old_sets = deployment_status.active_sets(self.old)
        if not old_sets:
            return False
        min_available = replicas(self.deployment) - deployment_status.max_unavailable(self.deployment)
        missing = replicas(self.new) - status_number(self.new, "availableReplicas")
        max_scale_down = deployment_status.total_replicas(self._all) - min_available - missing
        if max_scale_down <= 0:
            return False
        cleaned = 0
        for each in old_sets:
            spare = min(max_scale_down - cleaned, replicas(each) - status_number(each, "availableReplicas"))
            if spare > 0:
                await self._resize(each, replicas(each) - spare)
                cleaned += spare
        spare = sum(status_number(each, "availableReplicas") for each in self._all) - min_available
        done = 0
        for each in deployment_status.active_sets(self.old):
            step = min(replicas(each), spare - done)
            if step > 0:
                await self._resize(each, replicas(each) - step)
                done += step
        return cleaned + done > 0

    async def recreate(self) -> float | None:
        """Strategy Recreate: scale the old ReplicaSets to zero, then create the new one."""
        await self.revise(create=False)
        old_sets = deployment_status.active_sets(self.old)
        for each in old_sets:
            await self._resize(each, 0)
        if old_sets or self._old_pods_run():
            return await self._write_rollout_status()
        await self.revise(create=True)
        assert self.new is not None
        await self._resize(self.new, replicas(self.deployment))
        if deployment_status.is_complete(self.deployment, self.deployment.status):
            await self.clean_up()
        return await self._write_rollout_status()

    def _old_pods_run(self) -> bool:
        if any(status_number(each, "replicas") for each in self.old):
            return True
        return any(not pod.finished for each in self.old for pod in self._controller.pods.owned_by(each.uid))

    async def scale(self) -> None:
        """Scale the ReplicaSets to the deployment's size without progress of the rollout."""
        wanted = replicas(self.deployment)
        running = deployment_status.active_sets(self._all)
        if len(running) < 2:
            latest = running[0] if running else self.new or (self.old[-1] if self.old else None)
            if latest is not None:
                await self._resize(latest, wanted)
            return
        if self.new is not None and _saturated(self.new, wanted):
            for each in deployment_status.active_sets(self.old):
                await self._resize(each, 0)
            return
        if deployment_status.is_rolling(self.deployment):
            sizes = deployment_status.proportional_sizes(self.deployment, running)
            for each in running:
                await self._resize(each, sizes[each.name])

    async def _resize(self, item: UntypedObject, size: int) -> bool:
        """Set the size of a ReplicaSet and the annotations with the deployment's size."""
        before = replicas(item)
        wanted = deployment_status.resized_annotations(self.deployment)
        stale = {key: text for key, text in wanted.items() if item.metadata.annotations.get(key) != text}
        if before == size and not stale:
            return False
        if before != size:
            direction = "up" if size > before else "down"
            self._record_scaling(f"Scaled {direction} replica set {item.name} from {before} to {size}")
        await self._write_set(item, {"metadata": {"annotations": stale}, "spec": {"replicas": size}})
        return before != size

    async def clean_up(self) -> None:
        """Delete the oldest ReplicaSets above the history limit."""
        limit = self.deployment.spec.get("revisionHistoryLimit", _NO_LIMIT)
        if limit == _NO_LIMIT:
            return
        living = sorted((each for each in self.old if not each.terminating), key=deployment_status.revision)
        for each in living[: max(0, len(living) - limit)]:
            busy = status_number(each, "replicas") or replicas(each)
            if not busy and each.metadata.generation <= status_number(each, "observedGeneration"):
                await self._controller.delete(REPLICA_SETS, each)

    # Status.

    async def write_paused_condition(self) -> None:
        """Set condition Progressing of a paused or resumed rollout, which has no deadline while it is paused."""
        conditions = self.deployment.status.get("conditions") or []
        found = deployment_status.condition(conditions, deployment_status.PROGRESSING)
        if (
            deployment_status.deadline_s(self.deployment) is None
            or (found or {}).get("reason") == deployment_status.TIMED_OUT
        ):
            return
        was_paused = (found or {}).get("reason") == "DeploymentPaused"
        paused = bool(self.deployment.spec.get("paused"))
        if paused and not was_paused:
            outcome = ("DeploymentPaused", "Deployment is paused")
        elif was_paused and not paused:
            outcome = ("DeploymentResumed", "Deployment is resumed")
        else:
            return
        await self._write(
            {"status": {"conditions": self._conditions_with(deployment_status.PROGRESSING, "Unknown", *outcome)}}
        )

    async def write_status(self) -> None:
        """Write the status without a rollout in progress."""
        status = deployment_status.status_of(self.deployment, self._all, self.new, self._clock.now())
        await self._controller.write_status(DEPLOYMENTS, self.deployment, status)

    async def _write_rollout_status(self) -> float | None:
        now = self._clock.now()
        status = deployment_status.status_of(self.deployment, self._all, self.new, now)
        conditions = deployment_status.with_progress(self.deployment, status, self.new, now)
        status["conditions"] = deployment_status.with_failures(conditions, self._all, self.new, now)
        if await self._controller.write_status(DEPLOYMENTS, self.deployment, status):
            return None
        return self._seconds_until_deadline(status["conditions"])

    def _seconds_until_deadline(self, conditions: Iterable[Tree]) -> float | None:
        """Seconds until the progress deadline has to be checked, if no event comes earlier."""
        found = deployment_status.condition(conditions, deployment_status.PROGRESSING) or {}
        if found.get("reason", "") in ("", deployment_status.NEW_AVAILABLE, deployment_status.TIMED_OUT):
            return None
        left_s = deployment_status.progress_deadline_in_s(self.deployment, conditions, self._clock.now())
        return None if left_s == float("inf") else max(left_s, 0.0) + 1.0

    def _conditions_with(self, kind: str, status: str, reason: str, message: str) -> list[Tree]:
        conditions = self.deployment.status.get("conditions") or []
        return deployment_status.with_condition(conditions, kind, status, reason, message, self._clock.now())

    def _record_scaling(self, note: str) -> None:
        self._controller.record_event(DEPLOYMENTS, self.deployment, "ScalingReplicaSet", note)

    # Writes.

    async def _write(self, patch: Tree) -> None:
        """Patch the deployment through the status subresource; as upstream, the patch may contain annotations."""
        answer = await self._controller.write(DEPLOYMENTS, self.deployment, patch, subresource="status")
        self.deployment = msgspec.json.decode(answer, type=UntypedObject)

    async def _write_set(self, item: UntypedObject, patch: Tree) -> UntypedObject:
        answer = await self._controller.write(REPLICA_SETS, item, patch)
        written = msgspec.json.decode(answer, type=UntypedObject)
        self.old = [written if each.uid == written.uid else each for each in self.old]
        if self.new is not None and self.new.uid == written.uid:
            self.new = written
        return written


def _saturated(new: UntypedObject, wanted: int) -> bool:
    """Whether the new ReplicaSet has its final size and all its pods are available."""
    sizes = (
        replicas(new),
        deployment_status.number(new, deployment_status.DESIRED),
        status_number(new, "availableReplicas"),
    )
    return sizes == (wanted, wanted, wanted)
