"""Writes the two ConfigMaps that tell a container which shared GPUs it has, and which portion of each.

The pod's annotation has their names; admission sets it together with the container's references: by key to the one, as
a whole to the other (`-evar`). Keys are KAI's. KAI writes the devices to whichever of the two the container refers to;
here both have them. They are written in every attempt; existing ones are updated. The pod's creator can choose the
names, so a ConfigMap that the pod does not own is neither written nor deleted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from bayplan.binder.plugin import Arguments, BinderHandle, BindingState, InvalidRequest
from bayplan.client import MERGE_PATCH, GroupVersionResource
from bayplan.errors import AlreadyExists, ApiError, BayplanError, Conflict, NotFound, ObjectError, PluginError
from bayplan.objects.core import Node, Pod
from bayplan.objects.kai.bind_request import BindRequest, is_bound_with_shared_gpus
from bayplan.objects.kai.gpu_sharing import (
    CONFIG_MAP_NAME,
    LEGACY_PORTION_VARIABLE,
    PORTION_VARIABLE,
    VISIBLE_DEVICES,
    config_map_names,
    parse_portion,
    sharing_container,
)

CONFIG_MAPS = GroupVersionResource("", "v1", "configmaps")
REPLACED_VERSION = "bayplan.dev/replaced-version"
"""Annotation of a ConfigMap that was patched: the resourceVersion that the patch was made from."""
_TRIES = 5
_CDI_ENABLED = "cdiEnabled"
_CDI = "k8s.device-plugin.nvidia.com/gpu={}"


class GpuSharingBinderPlugin:
    """Tells containers of fractional pods which devices they have."""

    name = "gpusharing"
    argument_names = (_CDI_ENABLED,)

    def __init__(self, *, cdi: bool = False) -> None:
        self._cdi = cdi

    @classmethod
    def factory(cls, arguments: Arguments, handle: BinderHandle) -> GpuSharingBinderPlugin:  # noqa: ARG003
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
        await upsert_config_map(
            ctx, pod, capabilities, {PORTION_VARIABLE: share, LEGACY_PORTION_VARIABLE: share, VISIBLE_DEVICES: visible}
        )
        await upsert_config_map(ctx, pod, variables, {VISIBLE_DEVICES: visible})

    async def rollback(
        self, ctx: BinderHandle, pod: Pod, node: Node, bind_request: BindRequest, state: BindingState
    ) -> None:
        """Delete the ConfigMaps. A pod that shares devices on another node keeps them there."""
        has_names = CONFIG_MAP_NAME in pod.metadata.annotations
        if bind_request.is_fraction and has_names and not is_bound_with_shared_gpus(pod):
            await delete_config_maps(ctx, pod, config_maps_of(pod))


def portion_of(request: BindRequest) -> float:
    """The portion of each device. Validation has refused invalid values, but it may be missing."""
    received = request.spec.received_gpu
    portion = parse_portion(received.portion) if received is not None else None
    if portion is None:
        raise InvalidRequest("it asks for a fraction of a device and has no receivedGPU.portion")
    return portion


def config_maps_of(pod: Pod) -> tuple[str, str]:
    """Names of the ConfigMaps: the device's capabilities, and the environment variables."""
    prefix = pod.metadata.annotations.get(CONFIG_MAP_NAME)
    if not prefix:
        raise InvalidRequest(
            f"pod {pod.key} shares a device and has no annotation {CONFIG_MAP_NAME}; "
            "the admission webhook or the pod's creator has to set it"
        )
    try:
        return config_map_names(prefix, sharing_container(pod))
    except ObjectError as fault:
        raise InvalidRequest(str(fault)) from None


async def upsert_config_map(ctx: BinderHandle, pod: Pod, name: str, data: dict[str, str]) -> None:
    """Create or update a ConfigMap of the pod. Other keys in it stay."""
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
    if not _is_owned_by(found, pod):
        raise BayplanError(
            f"the ConfigMap {pod.namespace}/{name} is not the pod's own and is not changed; delete it, or set another "
            f"name in the pod's annotation {CONFIG_MAP_NAME}"
        )
    # The version keeps a late patch from writing the device of an earlier attempt. The annotation changes the version
    # even if the data is the same, so that a late DELETE of an earlier attempt is refused.
    version = found["resourceVersion"]
    meta = {"uid": found["uid"], "resourceVersion": version, "annotations": {REPLACED_VERSION: version}}
    body = {"metadata": meta, "data": data}
    await ctx.client.patch(CONFIG_MAPS, body, name=name, namespace=pod.namespace, kind=MERGE_PATCH)


async def delete_config_maps(ctx: BinderHandle, pod: Pod, names: Iterable[str]) -> None:
    """Delete ConfigMaps that the pod owns and that no later attempt has written."""
    for name in names:
        found = await _metadata(ctx, pod.namespace, name)
        if found is not None and _is_owned_by(found, pod):
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


def _is_owned_by(meta: Mapping[str, Any], pod: Pod) -> bool:
    """Whether this pod owns it; a ConfigMap of an earlier pod of the name is not its own."""
    return any(each.get("uid") == pod.uid for each in meta.get("ownerReferences", ()))
