"""Does every Deployment run its template? One ReplicaSet a template, grown and shrunk against each other.

The old sets are kept as history, as many as the deployment says, for `kubectl rollout undo`. A sync costs a walk over
the deployment's sets and at most a few writes; it is called again when one of the sets changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from bayplan.controllers.core.api_types import (
    DEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    PodFields,
    Tree,
    UntypedObject,
)
from bayplan.controllers.core.controller import Controller
from bayplan.controllers.core.owner_refs import claim_objects, owner_reference, selector_of
from bayplan.controllers.core.shared_informers import Key, SharedInformerFactory, merge_patch
from bayplan.controllers.workloads import deployment_status as sums
from bayplan.controllers.workloads.deployment_status import replicas, status_number
from bayplan.controllers.workloads.template_hash import short_hash
from bayplan.errors import AlreadyExists, ApiError

_NO_LIMIT = 2**31 - 1


class DeploymentController(Controller):
    """Rolls out templates."""

    name = "deployment-controller"

    def __init__(self, world: SharedInformerFactory) -> None:
        super().__init__(world)
        self.deployments = self.informer(DEPLOYMENTS, UntypedObject)
        self.sets = self.informer(REPLICA_SETS, UntypedObject)
        self.pods = self.informer(PODS, PodFields)
        self.deployments.add_handler(self.enqueue)
        self.sets.add_handler(self._on_set)
        self.pods.add_handler(self._on_pod)

    # What is heard.

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
        """The last of the old pods is gone: what makes room before it builds can go on."""
        if new is not None or old is None:
            return
        owner = old.metadata.controller
        if owner is None or owner.kind != "ReplicaSet" or self.pods.count_owned_by(owner.uid):
            return
        found = self.sets.get(old.namespace, owner.name)
        above = found.metadata.controller if found is not None else None
        if above is not None and above.kind == "Deployment":
            self.queue.add((old.namespace, above.name))

    # What is done.

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
        if any(sums.number(each, sums.DESIRED) not in (None, replicas(found)) for each in sums.active_sets(sets)):
            await rollout.revise(create=False)
            await rollout.scale()
            await rollout.write_status()
            return None
        return await (rollout.roll() if sums.is_rolling(found) else rollout.recreate())


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
        same = (each for each in ordered if sums.same_template(each.spec.get("template") or {}, self._template))
        self.new: UntypedObject | None = next(same, None)
        self.old = [each for each in ordered if self.new is None or each.uid != self.new.uid]

    @property
    def _all(self) -> list[UntypedObject]:
        return [*self.old, *([self.new] if self.new is not None else [])]

    # Revisions.

    async def revise(self, *, create: bool) -> None:
        """See to it that the new template has a set (if one is to be made) with the highest revision."""
        newest = max((sums.revision(each) for each in self.old), default=0) + 1
        if self.new is None:
            if create:
                await self._create(newest)
            return
        have = self.new.metadata.annotations
        wanted = sums.set_annotations(self.deployment, have, newest, exists=True)
        patch: Tree = {}
        if wanted != have:
            patch["metadata"] = {"annotations": merge_patch(have, wanted)}
        ready_s = self.deployment.spec.get("minReadySeconds") or 0
        if ready_s != (self.new.spec.get("minReadySeconds") or 0):
            patch["spec"] = {"minReadySeconds": ready_s}
        if patch:
            self.new = await self._write_set(self.new, patch)
        conditions = self.deployment.status.get("conditions") or []
        if sums.deadline_s(self.deployment) is not None and sums.condition(conditions, sums.PROGRESSING) is None:
            note = f'Found new replica set "{self.new.name}"'
            conditions = self._with(sums.PROGRESSING, "True", "FoundNewReplicaSet", note)
        await self._mark(sums.revision(self.new), conditions)

    async def _create(self, newest: int) -> None:
        deployment = self.deployment
        collisions = status_number(deployment, "collisionCount") if "collisionCount" in deployment.status else None
        body = self._set_body(short_hash(self._template, collisions), newest)
        name, size = body["metadata"]["name"], body["spec"]["replicas"]
        made = True
        try:
            answer = await self._client.create(REPLICA_SETS, body, namespace=deployment.namespace)
            self.new = msgspec.json.decode(answer, type=UntypedObject)
        except AlreadyExists:
            made = False
            self.new = await self._found(name)
        except ApiError as fault:
            await self._tell_failure(name, fault)
            raise
        if made and size:
            self._say(f"Scaled up replica set {name} from 0 to {size}")
        conditions = deployment.status.get("conditions") or []
        if made and sums.deadline_s(deployment) is not None:
            note = f'Created new replica set "{name}"'
            conditions = self._with(sums.PROGRESSING, "True", "NewReplicaSetCreated", note)
        await self._mark(newest, conditions)

    def _set_body(self, short: str, newest: int) -> Tree:
        deployment = self.deployment
        meta = self._template.get("metadata") or {}
        labels = {**(meta.get("labels") or {}), sums.HASH: short}
        selector = deployment.spec["selector"]
        matched = {**selector, "matchLabels": {**(selector.get("matchLabels") or {}), sums.HASH: short}}
        return {
            "apiVersion": REPLICA_SETS.api_version,
            "kind": "ReplicaSet",
            "metadata": {
                "name": f"{deployment.name}-{short}",
                "labels": labels,
                "annotations": sums.set_annotations(deployment, {}, newest, exists=False),
                "ownerReferences": [owner_reference(DEPLOYMENTS, deployment)],
            },
            "spec": {
                "replicas": sums.new_set_size(deployment, self.old, 0),
                "minReadySeconds": deployment.spec.get("minReadySeconds") or 0,
                "selector": matched,
                "template": {**self._template, "metadata": {**meta, "labels": labels}},
            },
        }

    async def _found(self, name: str) -> UntypedObject:
        """The set of that name: ours that we have not heard of yet, or another template's of the same hash."""
        found = await self._client.get(UntypedObject, self.deployment.namespace, name, resource=REPLICA_SETS)
        owner = found.metadata.controller
        ours = owner is not None and owner.uid == self.deployment.uid
        if ours and sums.same_template(found.spec.get("template") or {}, self._template):
            return found
        count = status_number(self.deployment, "collisionCount") + 1
        await self._write({"status": {"collisionCount": count}})
        raise AlreadyExists(f"replica set {name} is of another template; taking another name")

    async def _tell_failure(self, name: str, fault: ApiError) -> None:
        note = f'Failed to create new replica set "{name}": {fault.details}'
        self._controller.record_event(DEPLOYMENTS, self.deployment, "ReplicaSetCreateError", note, warning=True)
        if sums.deadline_s(self.deployment) is not None:
            conditions = self._with(sums.PROGRESSING, "False", "ReplicaSetCreateError", note)
            await self._write({"status": {"conditions": conditions}})

    async def _mark(self, newest: int, conditions: list[Tree]) -> None:
        """Say on the deployment which revision it is at."""
        patch: Tree = {}
        if sums.revision(self.deployment) != newest:
            patch["metadata"] = {"annotations": {sums.REVISION: str(newest)}}
        if conditions != (self.deployment.status.get("conditions") or []):
            patch["status"] = {"conditions": conditions}
        if patch:
            await self._write(patch)

    # Sizes.

    async def roll(self) -> float | None:
        """Grow the new set and shrink the old ones, so that neither too many nor too few pods are there."""
        await self.revise(create=True)
        assert self.new is not None
        if (
            not await self._scale_up_new()
            and not await self._scale_down_old()
            and sums.is_complete(self.deployment, self.deployment.status)
        ):
            await self.clean_up()
        return await self._tell_rollout()

    async def _scale_up_new(self) -> bool:
        assert self.new is not None
        wanted, has = replicas(self.deployment), replicas(self.new)
        if has == wanted:
            return False
        size = wanted if has > wanted else sums.new_set_size(self.deployment, self._all, has)
        return await self._resize(self.new, size)

    async def _scale_down_old(self) -> bool:
        """Pods that do not work go first, then as many as the new ones make up for."""
        assert self.new is not None
        olds = sums.active_sets(self.old)
        if not olds:
            return False
        least = replicas(self.deployment) - sums.max_unavailable(self.deployment)
        missing = replicas(self.new) - status_number(self.new, "availableReplicas")
        most = sums.total_replicas(self._all) - least - missing
        if most <= 0:
            return False
        cleaned = 0
        for each in olds:
            spare = min(most - cleaned, replicas(each) - status_number(each, "availableReplicas"))
            if spare > 0:
                await self._resize(each, replicas(each) - spare)
                cleaned += spare
        spare = sum(status_number(each, "availableReplicas") for each in self._all) - least
        done = 0
        for each in sums.active_sets(self.old):
            step = min(replicas(each), spare - done)
            if step > 0:
                await self._resize(each, replicas(each) - step)
                done += step
        return cleaned + done > 0

    async def recreate(self) -> float | None:
        """All the old ones away, then the new ones."""
        await self.revise(create=False)
        olds = sums.active_sets(self.old)
        for each in olds:
            await self._resize(each, 0)
        if olds or self._old_pods_run():
            return await self._tell_rollout()
        await self.revise(create=True)
        assert self.new is not None
        await self._resize(self.new, replicas(self.deployment))
        if sums.is_complete(self.deployment, self.deployment.status):
            await self.clean_up()
        return await self._tell_rollout()

    def _old_pods_run(self) -> bool:
        if any(status_number(each, "replicas") for each in self.old):
            return True
        return any(not pod.finished for each in self.old for pod in self._controller.pods.owned_by(each.uid))

    async def scale(self) -> None:
        """Bring the sets to the deployment's size without going on with a rollout."""
        wanted = replicas(self.deployment)
        running = sums.active_sets(self._all)
        if len(running) < 2:
            latest = running[0] if running else self.new or (self.old[-1] if self.old else None)
            if latest is not None:
                await self._resize(latest, wanted)
            return
        if self.new is not None and _saturated(self.new, wanted):
            for each in sums.active_sets(self.old):
                await self._resize(each, 0)
            return
        if sums.is_rolling(self.deployment):
            sizes = sums.proportional_sizes(self.deployment, running)
            for each in running:
                await self._resize(each, sizes[each.name])

    async def _resize(self, item: UntypedObject, size: int) -> bool:
        """Change a set's size; what every set is told of the deployment's size comes along."""
        before = replicas(item)
        wanted = sums.resized_annotations(self.deployment)
        stale = {key: text for key, text in wanted.items() if item.metadata.annotations.get(key) != text}
        if before == size and not stale:
            return False
        if before != size:
            way = "up" if size > before else "down"
            self._say(f"Scaled {way} replica set {item.name} from {before} to {size}")
        await self._write_set(item, {"metadata": {"annotations": stale}, "spec": {"replicas": size}})
        return before != size

    async def clean_up(self) -> None:
        """Delete the oldest sets beyond what is kept as history."""
        limit = self.deployment.spec.get("revisionHistoryLimit", _NO_LIMIT)
        if limit == _NO_LIMIT:
            return
        living = sorted((each for each in self.old if not each.terminating), key=sums.revision)
        for each in living[: max(0, len(living) - limit)]:
            busy = status_number(each, "replicas") or replicas(each)
            if not busy and each.metadata.generation <= status_number(each, "observedGeneration"):
                await self._controller.delete(REPLICA_SETS, each)

    # Telling.

    async def write_paused_condition(self) -> None:
        """A rollout that is paused makes no progress, and is not late for it."""
        conditions = self.deployment.status.get("conditions") or []
        found = sums.condition(conditions, sums.PROGRESSING)
        if sums.deadline_s(self.deployment) is None or (found or {}).get("reason") == sums.TIMED_OUT:
            return
        known = (found or {}).get("reason") == "DeploymentPaused"
        paused = bool(self.deployment.spec.get("paused"))
        if paused and not known:
            outcome = ("DeploymentPaused", "Deployment is paused")
        elif known and not paused:
            outcome = ("DeploymentResumed", "Deployment is resumed")
        else:
            return
        await self._write({"status": {"conditions": self._with(sums.PROGRESSING, "Unknown", *outcome)}})

    async def write_status(self) -> None:
        """The status as it is while nothing is rolled out."""
        status = sums.status_of(self.deployment, self._all, self.new, self._clock.now())
        await self._controller.write_status(DEPLOYMENTS, self.deployment, status)

    async def _tell_rollout(self) -> float | None:
        now = self._clock.now()
        status = sums.status_of(self.deployment, self._all, self.new, now)
        conditions = sums.with_progress(self.deployment, status, self.new, now)
        status["conditions"] = sums.with_failures(conditions, self._all, self.new, now)
        if await self._controller.write_status(DEPLOYMENTS, self.deployment, status):
            return None
        return self._until_deadline(status["conditions"])

    def _until_deadline(self, conditions: Iterable[Tree]) -> float | None:
        """When to look whether the deadline has passed; nothing else need happen at that moment."""
        found = sums.condition(conditions, sums.PROGRESSING) or {}
        if found.get("reason", "") in ("", sums.NEW_AVAILABLE, sums.TIMED_OUT):
            return None
        left_s = sums.progress_deadline_in_s(self.deployment, conditions, self._clock.now())
        return None if left_s == float("inf") else max(left_s, 0.0) + 1.0

    def _with(self, kind: str, status: str, reason: str, message: str) -> list[Tree]:
        conditions = self.deployment.status.get("conditions") or []
        return sums.with_condition(conditions, kind, status, reason, message, self._clock.now())

    def _say(self, note: str) -> None:
        self._controller.record_event(DEPLOYMENTS, self.deployment, "ScalingReplicaSet", note)

    # Writing.

    async def _write(self, patch: Tree) -> None:
        """Merge into the deployment; a status' write may carry annotations, as upstream's does."""
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
    """Whether the new set is as large as it will be, and all of it works."""
    sizes = (replicas(new), sums.number(new, sums.DESIRED), status_number(new, "availableReplicas"))
    return sizes == (wanted, wanted, wanted)
