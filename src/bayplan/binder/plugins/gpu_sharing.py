"""What does a container that shares a GPU see? Two ConfigMaps of the pod's say: which devices, and how much of each.

The names stand in the pod's annotation, where admission has put them together with the references of the containers:
by key to the one, as a whole to the other (`-evar`). Keys are KAI's. It names the devices in whichever of the two the
container refers to; here they stand in both. Written as often as the pod is tried: what is there is brought up to date.
Whoever makes the pod may choose the names: a ConfigMap that the pod does not own is neither written nor deleted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from bayplan.binder.plugin import Arguments, BinderHandle, BindingState, InvalidRequest
from bayplan.client import MERGE_PATCH, Resource
from bayplan.errors import AlreadyExists, ApiError, BayplanError, Conflict, NotFound, ObjectError, PluginError
from bayplan.objects.bind_requests import BindRequest, shares_on_its_node
from bayplan.objects.core import Node, Pod
from bayplan.objects.gpu_sharing import (
    CONFIG_MAP_NAME,
    PORTION,
    PORTION_BEFORE,
    VISIBLE_DEVICES,
    config_map_names,
    sharing_container,
    told_portion,
)

CONFIG_MAPS = Resource("", "v1", "configmaps")
REPLACED_VERSION = "bayplan.dev/replaced-version"
"""Annotation of a ConfigMap that was patched: the resourceVersion that the patch was made from."""
_TRIES = 5
_CDI_ENABLED = "cdiEnabled"
_CDI = "k8s.device-plugin.nvidia.com/gpu={}"


class GpuSharing:
    """Tells containers of fractional pods which devices are theirs."""

    name = "gpusharing"
    argument_names = (_CDI_ENABLED,)

    def __init__(self, *, cdi: bool = False) -> None:
        self._cdi = cdi

    @classmethod
    def factory(cls, arguments: Arguments, handle: BinderHandle) -> GpuSharing:  # noqa: ARG003
        cdi = arguments.get(_CDI_ENABLED, False)
        if not isinstance(cdi, bool):
            raise PluginError(f"{_CDI_ENABLED} is {cdi!r}; it takes true or false")
        return cls(cdi=cdi)

    async def pre_bind(
        self, ctx: BinderHandle, pod: Pod, node: Node, bind_request: BindRequest, state: BindingState
    ) -> None:
        if not bind_request.is_fraction:
            return
        if not state.reserved_gpu_ids:
            raise InvalidRequest("no device was reserved for a pod that shares one")
        devices = [_CDI.format(each) if self._cdi else each for each in state.reserved_gpu_ids]
        visible = ",".join(devices)
        share = f"{portion_of(bind_request):.2f}"
        capabilities, variables = config_maps_of(pod)
        await upsert(ctx, pod, capabilities, {PORTION: share, PORTION_BEFORE: share, VISIBLE_DEVICES: visible})
        await upsert(ctx, pod, variables, {VISIBLE_DEVICES: visible})

    async def rollback(
        self, ctx: BinderHandle, pod: Pod, node: Node, bind_request: BindRequest, state: BindingState
    ) -> None:
        """A pod that shares devices on another node needs its ConfigMaps there as long as it lives."""
        named = CONFIG_MAP_NAME in pod.metadata.annotations
        if bind_request.is_fraction and named and not shares_on_its_node(pod):
            await delete(ctx, pod, config_maps_of(pod))


def portion_of(request: BindRequest) -> float:
    """The share of each device; a request that tells a wrong one does not come here, but it may tell none."""
    given = request.spec.received_gpu
    portion = told_portion(given.portion) if given is not None else None
    if portion is None:
        raise InvalidRequest("it asks for a fraction of a device and says no share in receivedGPU.portion")
    return portion


def config_maps_of(pod: Pod) -> tuple[str, str]:
    """What the pod's device can do, and the variables of its environment."""
    beginning = pod.metadata.annotations.get(CONFIG_MAP_NAME)
    if not beginning:
        raise InvalidRequest(
            f"pod {pod.key} shares a device and has no annotation {CONFIG_MAP_NAME}; "
            "admission sets it, or whoever makes the pod"
        )
    try:
        return config_map_names(beginning, sharing_container(pod))
    except ObjectError as fault:
        raise InvalidRequest(str(fault)) from None


async def upsert(ctx: BinderHandle, pod: Pod, name: str, data: dict[str, str]) -> None:
    """Have a ConfigMap of the pod's say this; what else it says stays."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": pod.namespace, "ownerReferences": [owner]},
        "data": data,
    }
    found: Mapping[str, Any] | None = None
    for tries_left in reversed(range(_TRIES)):
        try:
            if found is None:
                await ctx.client.create(CONFIG_MAPS, body, namespace=pod.namespace)
            else:
                await _replace(ctx, pod, found, data)
            return
        except ApiError as refusal:
            may_be_there = isinstance(refusal, AlreadyExists | Conflict | NotFound) or refusal.outcome_unknown
            if not tries_left or not may_be_there:
                raise
        found = await _metadata(ctx, pod.namespace, name)
        if found is not None and _is_of_earlier_pod(found, pod):
            await _delete(ctx, found)
            found = None


async def _metadata(ctx: BinderHandle, namespace: str, name: str) -> Mapping[str, Any] | None:
    try:
        found: Mapping[str, Any] = (await ctx.client.get_raw(CONFIG_MAPS, namespace, name))["metadata"]
    except NotFound:
        return None
    return found


async def _replace(ctx: BinderHandle, pod: Pod, found: Mapping[str, Any], data: dict[str, str]) -> None:
    name = found["name"]
    if not _is_owned(found, pod):
        raise BayplanError(
            f"the ConfigMap {pod.namespace}/{name} is not the pod's own: it stays as it is, and the annotation "
            f"{CONFIG_MAP_NAME} has to say another name, or somebody to delete it"
        )
    # With the version: a patch that is applied late must not name the device of an earlier attempt. The annotation
    # changes the version also where the data is the same, so that a late DELETE of an earlier attempt is refused.
    version = found["resourceVersion"]
    meta = {"uid": found["uid"], "resourceVersion": version, "annotations": {REPLACED_VERSION: version}}
    body = {"metadata": meta, "data": data}
    await ctx.client.patch(CONFIG_MAPS, body, name=name, namespace=pod.namespace, kind=MERGE_PATCH)


async def delete(ctx: BinderHandle, pod: Pod, names: Iterable[str]) -> None:
    """Delete those that are the pod's own, and that no later attempt has written."""
    for name in names:
        found = await _metadata(ctx, pod.namespace, name)
        if found is not None and _is_owned(found, pod):
            await _delete(ctx, found)


async def _delete(ctx: BinderHandle, found: Mapping[str, Any]) -> None:
    """Delete a ConfigMap, unless it was written or replaced since it was read."""
    name, namespace = found["name"], found["namespace"]
    with contextlib.suppress(NotFound, Conflict):
        version = found["resourceVersion"]
        await ctx.client.delete(CONFIG_MAPS, name=name, namespace=namespace, uid=found["uid"], resource_version=version)


def _is_of_earlier_pod(meta: Mapping[str, Any], pod: Pod) -> bool:
    """Whether only an earlier pod of the same name owns it. The garbage collector deletes it, sooner or later."""
    owners = meta.get("ownerReferences", ())
    return bool(owners) and all(
        (each.get("kind"), each.get("name")) == ("Pod", pod.name) and each.get("uid") != pod.uid for each in owners
    )


def _is_owned(meta: Mapping[str, Any], pod: Pod) -> bool:
    """Whether it goes with this very pod; one of an earlier pod of the name does not."""
    return any(each.get("uid") == pod.uid for each in meta.get("ownerReferences", ()))
