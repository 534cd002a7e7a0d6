"""Arguments of GpuFragmentation: the typical pods."""

from __future__ import annotations

from bayplan.codec.field_errors import FieldError, FieldPath, invalid, required
from bayplan.config.plugin_args import ArgsKind
from bayplan.config.schema import ConfigStruct, Int64
from bayplan.plugins.gpu.gpu_requests import DEVICE_MILLI
from bayplan.plugins.gpu.typical_pods import GpuPodShape, TypicalPods


class TypicalPod(ConfigStruct, frozen=True):
    """One kind of typical pod. `pods`: its number relative to all other kinds."""

    cpu_milli: Int64 = 0
    gpu_milli: Int64 = 0
    gpu_count: Int64 = 0
    gpu_models: str = ""
    pods: Int64 = 1


class GpuFragmentationArgs(ConfigStruct, frozen=True):
    typical_pods: tuple[TypicalPod, ...] = ()


def validate(args: GpuFragmentationArgs, path: FieldPath) -> list[FieldError]:
    errors: list[FieldError] = []
    pods_path = path.child("typicalPods")
    if not args.typical_pods:
        errors.append(required(pods_path, "list at least one typical pod"))
    for position, pod in enumerate(args.typical_pods):
        pod_path = pods_path.index(position)
        if pod.cpu_milli < 0:
            errors.append(invalid(pod_path.child("cpuMilli"), pod.cpu_milli, "must be 0 or more"))
        if not 0 <= pod.gpu_milli <= DEVICE_MILLI:
            errors.append(invalid(pod_path.child("gpuMilli"), pod.gpu_milli, f"must be between 0 and {DEVICE_MILLI}"))
        if pod.gpu_count < 0:
            errors.append(invalid(pod_path.child("gpuCount"), pod.gpu_count, "must be 0 or more"))
        if pod.gpu_count > 1 and pod.gpu_milli != DEVICE_MILLI:
            errors.append(
                invalid(pod_path.child("gpuMilli"), pod.gpu_milli, f"must be {DEVICE_MILLI} where gpuCount is above 1")
            )
        if pod.pods < 1:
            errors.append(invalid(pod_path.child("pods"), pod.pods, "must be 1 or more"))
    return errors


def typical_pods(args: GpuFragmentationArgs) -> TypicalPods:
    counts = [
        (GpuPodShape(each.cpu_milli, each.gpu_milli, each.gpu_count, each.gpu_models), each.pods)
        for each in args.typical_pods
    ]
    return TypicalPods(tuple(counts))


ARGS = ArgsKind(plugin="GpuFragmentation", struct=GpuFragmentationArgs, validate=validate)
