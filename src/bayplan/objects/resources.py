"""The resource requests of a pod.

There are several variants, since kube-scheduler computes requests differently in different places:

| used by | function | pod-level requests | resize in progress | defaults |
|---|---|---|---|---|
| a node's accounts | `accounted_requests` | honoured | the largest of spec, allocated, actual | none |
| a node's accounts, for scoring | `accounted_nonzero` | honoured | the same | cpu and memory |
| the Fit filter | `filter_requests` | honoured | ignored | none |
| the Fit scorer | `fit_score_requests` | ignored | ignored | cpu and memory |
| the Balanced scorer | `balanced_requests` | honoured | the largest | none |

All are variants of `pod_requests`. Sums and maxima are exact; numbers are rounded up to milli-CPUs, or to whole units
of other resources, once, at the end.

Cost: about a microsecond for a simple pod, whose result is cached by the requests of its containers (equal for all pods
of one workload), and a few for other pods. The computation uses plain integers (billionths) unless a number is negative
or enormous; then it is repeated with `Quantity`, which overflows where upstream's does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

from bayplan.codec.quantity import Quantity, QuantityText, parse_quantity
from bayplan.objects.core import Container, ContainerStatus, Pod, PodSpec, PodStatus, ResourceRequirements
from bayplan.objects.meta import ResourceList
from bayplan.objects.name_validation import label_key_problems

CPU = "cpu"
MEMORY = "memory"
EPHEMERAL_STORAGE = "ephemeral-storage"
PODS = "pods"
_RESIZE_PENDING = "PodResizePending"
HUGEPAGES_PREFIX = "hugepages-"
ATTACHABLE_VOLUMES_PREFIX = "attachable-volumes-"
DEVICE_CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"
_QUOTA_PREFIX = "requests."
_DEFAULT_DOMAIN = "kubernetes.io/"

DEFAULT_MILLI_CPU = 100
DEFAULT_MEMORY = 200 * 1024 * 1024

Quantities = Mapping[str, Quantity]

NONZERO_DEFAULTS: Quantities = MappingProxyType(
    {CPU: Quantity.of_milli(DEFAULT_MILLI_CPU), MEMORY: Quantity.of(DEFAULT_MEMORY)}
)
"""The default requests of a container without cpu or memory, for scores."""

_GIGA = 10**9
_MEGA = 10**6
_PLAIN_LIMIT = 2**53 * _GIGA  # in nano units; below it no form of a quantity can overflow, in milli units or whole
_PLAIN_DEFAULTS = {CPU: DEFAULT_MILLI_CPU * _MEGA, MEMORY: DEFAULT_MEMORY * _GIGA}

N = TypeVar("N", int, Quantity)
_RequestInputs = tuple[tuple[tuple[str, QuantityText], ...], ...]


# Resource names.


def is_prefixed_native(name: str) -> bool:
    """A name in the `kubernetes.io/` domain or a subdomain of it."""
    return _DEFAULT_DOMAIN in name


def is_native(name: str) -> bool:
    """A name that belongs to Kubernetes itself; names without a slash do."""
    return "/" not in name or is_prefixed_native(name)


def is_hugepages(name: str) -> bool:
    return name.startswith(HUGEPAGES_PREFIX)


def is_attachable_volumes(name: str) -> bool:
    return name.startswith(ATTACHABLE_VOLUMES_PREFIX)


@lru_cache(maxsize=4096)
def is_extended_resource_name(name: str) -> bool:
    """A name in a domain other than Kubernetes' that is valid in quotas."""
    if is_native(name) or name.startswith(_QUOTA_PREFIX):
        return False
    return not label_key_problems(_QUOTA_PREFIX + name)


@lru_cache(maxsize=4096)
def is_scalar_resource(name: str) -> bool:
    """A name that nodes account besides cpu, memory and ephemeral storage."""
    return (
        is_extended_resource_name(name) or is_hugepages(name) or is_prefixed_native(name) or is_attachable_volumes(name)
    )


def is_dra_extended_resource_name(name: str) -> bool:
    """A name that a DeviceClass can provide: an extended resource, or the class's own implicit name."""
    return is_extended_resource_name(name) or name.startswith(DEVICE_CLASS_PREFIX)


def is_accounted(name: str) -> bool:
    """Whether a pod's request for this name is subtracted from nodes. All other names are ignored."""
    return name in (CPU, MEMORY, EPHEMERAL_STORAGE) or is_scalar_resource(name)


def is_pod_level(name: str) -> bool:
    """Whether the pod-level request may contain the name."""
    return name in (CPU, MEMORY) or is_hugepages(name)


# Amounts.


def amount_of(name: str, quantity: Quantity) -> int:
    """The integer in columns: thousandths of a CPU, whole units of all other resources, rounded up."""
    return quantity.milli_value() if name == CPU else quantity.value()


def allocatable_amounts(resources: ResourceList) -> dict[str, int]:
    """The allocatable resources of a node as integers: the accounted names and `pods`."""
    return {
        name: amount_of(name, parse_quantity(text))
        for name, text in resources.items()
        if name == PODS or is_accounted(name)
    }


def accounted_requests(pod: Pod) -> dict[str, int]:
    """The requests that a pod on a node takes from it."""
    return _amounts(pod, _ACCOUNTED)


def accounted_nonzero(pod: Pod) -> tuple[int, int]:
    """Milli-CPUs and bytes of memory of a pod on a node, for scores."""
    if has_pod_level_requests(pod):
        amounts = _round_up(pod_requests(pod, use_status=True, non_missing=_missing_defaults(pod)))
    else:
        amounts = _amounts(pod, _NONZERO)
    return amounts.get(CPU, 0), amounts.get(MEMORY, 0)


def filter_requests(pod: Pod) -> dict[str, int]:
    """The requests of the incoming pod that must be free on a node. Never negative."""
    amounts = _amounts(pod, _FILTER)
    return {name: max(0, amount) for name, amount in amounts.items()}


def fit_score_requests(pod: Pod) -> dict[str, int]:
    """The requests that the incoming pod adds to a node in the Fit score, by any name, always with cpu and memory."""
    return _amounts(pod, _FIT_SCORE)


def balanced_requests(pod: Pod) -> dict[str, int]:
    """The requests that the incoming pod adds to a node in the Balanced score, by any name."""
    return _amounts(pod, _BALANCED)


def request_inputs(pod: Pod) -> tuple[object, ...]:
    spec, status = pod.spec, pod.status
    return (
        *(spec.containers, spec.init_containers, spec.overhead, spec.resources),
        *(status.container_statuses, status.init_container_statuses, status.allocated_resources, status.resources),
        _resizes(status),
    )


def has_same_request_inputs(one: Pod, other: Pod) -> bool:
    """Whether two versions of a pod have the same `request_inputs`; most updates change conditions only."""
    before, after = one.spec, other.spec
    return (
        before.containers == after.containers
        and before.init_containers == after.init_containers
        and before.overhead == after.overhead
        and before.resources == after.resources
        and has_same_status_requests(one.status, other.status)
    )


def has_same_status_requests(before: PodStatus, after: PodStatus) -> bool:
    return (
        before.container_statuses == after.container_statuses
        and before.init_container_statuses == after.init_container_statuses
        and before.allocated_resources == after.allocated_resources
        and before.resources == after.resources
        and (before.conditions == after.conditions or _resizes(before) == _resizes(after))
    )


def has_same_usage(one: Pod, other: Pod) -> bool:
    """Whether two versions of a pod with one spec take the same from their node.

    When a pod starts, all its statuses arrive at once; they contain the resources of the spec, or none.
    """
    before, after = one.status, other.status
    if before.resources is None and after.resources is None and _has_no_resize(one) and _has_no_resize(other):
        return True  # then the allocated resources of the whole pod and the reasons of pending resizes do not matter
    return has_same_status_requests(before, after)


def _resizes(status: PodStatus) -> list[str]:
    """The reasons of pending resizes."""
    return [condition.reason for condition in status.conditions if condition.type == _RESIZE_PENDING]


class _RequestRule(NamedTuple):
    """A variant of the computation."""

    use_status: bool = False
    skip_pod_level: bool = False
    with_defaults: bool = False
    accounted_only: bool = False


_ACCOUNTED = _RequestRule(use_status=True, accounted_only=True)
_NONZERO = _RequestRule(use_status=True, with_defaults=True)
_FILTER = _RequestRule(accounted_only=True)
_FIT_SCORE = _RequestRule(skip_pod_level=True, with_defaults=True)
_BALANCED = _RequestRule(use_status=True)


def _amounts(pod: Pod, variant: _RequestRule) -> dict[str, int]:
    inputs = _container_request_inputs(pod, variant)
    return _compute_amounts(pod, variant) if inputs is None else _cached_amounts(inputs, variant).copy()


def _container_request_inputs(pod: Pod, variant: _RequestRule) -> _RequestInputs | None:
    """The requests of the containers of a simple pod, its only inputs; None for any other pod."""
    spec = pod.spec
    if spec.init_containers or spec.overhead or not (spec.resources is None or variant.skip_pod_level):
        return None
    if variant.use_status and pod.status.container_statuses and not _has_no_resize(pod):
        return None
    return tuple([tuple(container.resources.requests.items()) for container in spec.containers])


def _has_no_resize(pod: Pod) -> bool:
    """Whether every container has the resources of the spec; only pods in a resize do not."""
    statuses = pod.status.container_statuses + pod.status.init_container_statuses
    if not statuses:
        return True
    containers = pod.spec.containers + pod.spec.init_containers
    requests_by_name = {container.name: container.resources.requests for container in containers}
    if len(requests_by_name) < len(containers):
        return False  # with duplicate names, it is unclear which container a status belongs to
    for status in statuses:
        if status.resources is not None:
            wanted = requests_by_name.get(status.name)
            if status.resources.requests != wanted or (status.allocated_resources or wanted) != wanted:
                return False
    return True


@lru_cache(maxsize=8192)
def _cached_amounts(inputs: _RequestInputs, variant: _RequestRule) -> dict[str, int]:
    containers = [Container(resources=ResourceRequirements(requests=dict(items))) for items in inputs]
    return _compute_amounts(Pod(spec=PodSpec(containers=tuple(containers))), variant)


def _compute_amounts(pod: Pod, variant: _RequestRule) -> dict[str, int]:
    amounts = _plain_requests(pod, variant)
    if amounts is None:
        amounts = _round_up(_RequestReader(parse_quantity, Quantity.larger, variant, NONZERO_DEFAULTS).requests(pod))
    if not variant.accounted_only:
        return amounts
    return {name: amount for name, amount in amounts.items() if is_accounted(name)}


def _round_up(requests: Quantities) -> dict[str, int]:
    return {name: amount_of(name, quantity) for name, quantity in requests.items()}


def _missing_defaults(pod: Pod) -> Quantities:
    """Defaults if the pod has pod-level requests: only for resources that no request names."""
    named = pod_requests(pod, use_status=True)
    return {name: default for name, default in NONZERO_DEFAULTS.items() if name not in named}


# The computation.


def pod_requests(
    pod: Pod, *, use_status: bool = False, skip_pod_level: bool = False, non_missing: Quantities | None = None
) -> dict[str, Quantity]:
    """The pod's exact requests, by every name it uses.

    `use_status` counts a resize in progress at its largest. `skip_pod_level` ignores `spec.resources`. `non_missing`
    are default requests of each container, including init containers, that does not name the resource itself.
    """
    variant = _RequestRule(use_status, skip_pod_level, with_defaults=bool(non_missing))
    return _RequestReader(parse_quantity, Quantity.larger, variant, non_missing or {}).requests(pod)


def pod_limits(pod: Pod) -> dict[str, Quantity]:
    """The pod's exact limits, by every name it limits. Overhead counts only with a limit."""
    limits = _LimitReader(parse_quantity, Quantity.larger, _RequestRule(), {}).container_totals(pod)
    resources = pod.spec.resources
    if resources is not None:
        limits.update({name: parse_quantity(text) for name, text in resources.limits.items() if is_pod_level(name)})
    for name, text in (pod.spec.overhead or {}).items():
        if name in limits and not limits[name].is_zero():
            limits[name] += parse_quantity(text)
    return limits


def has_pod_level_requests(pod: Pod) -> bool:
    """Whether the pod has pod-level requests for a supported resource."""
    resources = pod.spec.resources
    return resources is not None and any(is_pod_level(name) for name in resources.requests)


class _RequestReader(Generic[N]):
    """One variant of the computation, with one type of numbers."""

    __slots__ = ("_defaults", "_larger", "_number", "_variant")

    def __init__(
        self,
        number: Callable[[QuantityText], N],
        larger: Callable[[N, N], N],
        variant: _RequestRule,
        defaults: Mapping[str, N],
    ) -> None:
        self._number: Callable[[QuantityText], N] = number
        self._larger: Callable[[N, N], N] = larger
        self._variant = variant
        self._defaults: Mapping[str, N] = defaults if variant.with_defaults else {}

    def requests(self, pod: Pod) -> dict[str, N]:
        requests = self.container_totals(pod)
        if not self._variant.skip_pod_level and has_pod_level_requests(pod):
            requests.update(self._pod_level_requests(pod))
        if pod.spec.overhead:
            _add(requests, self._read(pod.spec.overhead))
        return requests

    def container_totals(self, pod: Pod) -> dict[str, N]:
        """The maximum needed at any time: while all containers run, or while an init container does."""
        statuses = _resized_containers(pod) if self._variant.use_status else {}
        running: dict[str, N] = {}
        for container in pod.spec.containers:
            _add(running, self._container_requests(pod, container, statuses.get(container.name)))
        sidecars: dict[str, N] = {}
        starting: dict[str, N] = {}
        for container in pod.spec.init_containers:
            if container.is_sidecar:
                wanted = self._container_requests(pod, container, statuses.get(container.name))
                _add(running, wanted)
                _add(sidecars, wanted)
                self._raise_to(starting, sidecars)
            else:  # it ends before a resize can apply to it
                wanted = self._container_requests(pod, container, None)
                _add(wanted, sidecars)
                self._raise_to(starting, wanted)
        self._raise_to(running, starting)
        return running

    def _container_requests(self, pod: Pod, container: Container, status: ContainerStatus | None) -> dict[str, N]:
        requests = self._read(self._container_amounts(container))
        if status is not None and status.resources is not None:
            requests = self._largest(pod, requests, status.resources.requests, status.allocated_resources)
        for name, default in self._defaults.items():
            if name not in requests:
                requests[name] = default
        return requests

    def _container_amounts(self, container: Container) -> ResourceList:
        return container.resources.requests

    def _pod_level_requests(self, pod: Pod) -> dict[str, N]:
        assert pod.spec.resources is not None
        requests = counted = self._read(pod.spec.resources.requests)
        actual = pod.status.resources
        if self._variant.use_status and actual is not None:
            counted = self._largest(pod, requests, actual.requests, pod.status.allocated_resources)
        return {name: counted.get(name, self._number(0)) for name in requests if is_pod_level(name)}

    def _largest(
        self, pod: Pod, spec: dict[str, N], actual: ResourceList, allocated: ResourceList | None
    ) -> dict[str, N]:
        """The largest of actual and allocated resources, and of the spec's unless the node has refused the resize."""
        largest = {} if _resize_is_infeasible(pod) else dict(spec)
        self._raise_to(largest, self._read(actual))
        self._raise_to(largest, self._read(allocated or {}))
        return largest

    def _raise_to(self, totals: dict[str, N], floor: Mapping[str, N]) -> None:
        for name, number in floor.items():
            totals[name] = self._larger(totals[name], number) if name in totals else number

    def _read(self, resources: ResourceList) -> dict[str, N]:
        number = self._number
        return {name: number(text) for name, text in resources.items()}


class _LimitReader(_RequestReader[Quantity]):
    """The same computation for limits."""

    __slots__ = ()

    def _container_amounts(self, container: Container) -> ResourceList:
        return container.resources.limits


def _resized_containers(pod: Pod) -> dict[str, ContainerStatus]:
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    return {status.name: status for status in statuses if status.resources is not None}


def _resize_is_infeasible(pod: Pod) -> bool:
    pending = next((condition for condition in pod.status.conditions if condition.type == _RESIZE_PENDING), None)
    return pending is not None and pending.reason == "Infeasible"


def _add(totals: dict[str, N], more: Mapping[str, N]) -> None:
    for name, number in more.items():
        totals[name] = totals[name] + number if name in totals else number


# The computation with plain integers.


class _NotPlainError(Exception):
    """A quantity that is negative or enormous: only `Quantity` has upstream's overflows."""


def _plain_requests(pod: Pod, variant: _RequestRule) -> dict[str, int] | None:
    """The computation in billionths, rounded at the end; None if a number is not plain."""
    try:
        totals = _RequestReader(_nanos, max, variant, _PLAIN_DEFAULTS).requests(pod)
    except _NotPlainError:
        return None
    if any(total > _PLAIN_LIMIT for total in totals.values()):
        return None
    return {name: -(-total // (_MEGA if name == CPU else _GIGA)) for name, total in totals.items()}


@lru_cache(maxsize=16_384)
def _nanos(text: QuantityText) -> int:
    quantity = parse_quantity(text)
    if quantity.is_zero():
        return 0
    if quantity.sign() < 0 or quantity.exponent > 18:
        raise _NotPlainError
    nanos: int = quantity.amount * 10 ** (quantity.exponent + 9)
    return nanos
