"""What plugins put on a BindRequest, and what is remembered of requests that failed. Used by both engines.

A plugin hands data to a binder plugin by annotations: it is asked once for each request, when the decision is made and
about to be written. What it says is checked, copied and merged; where two say something of one key the later wins. A
plugin that fails costs its own contribution, or the whole binding where it says that its data is needed. Cost: the
calls, and a few microseconds a key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeGuard

from bayplan.clock import Clock
from bayplan.errors import PluginError
from bayplan.framework.api.cycle import Cycle, Key
from bayplan.framework.runtime.plugin_call import FAULTS, words_of_fault
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import ANNOTATION_DOMAIN, BindRequest, new_request
from bayplan.objects.kai.gpu_sharing import RESERVATIONS
from bayplan.objects.name_validation import label_key_problems
from bayplan.telemetry.metrics import Counter, Histogram, Registry, Stability, exponential_buckets

log = logging.getLogger(__name__)

SKIP, FAIL = "skip", "fail"
"""What becomes of a request when a plugin fails: it lacks what that plugin would have said, or it is not made."""
LARGEST = 256 * 1024
SLOW_S = 0.05
_RESERVED = ("kubernetes.io", "k8s.io")
_PREFIX = "kai_bind_request_mutate_"

EXCLUDED = "node(s) on which a binding of the pod was given up lately"
FIRST_EXCLUSION_S, LAST_EXCLUSION_S = 30.0, 600.0
PATIENCE = 5
"""After so many bindings of one pod that were given up it has to wait, whatever nodes there are."""


REQUEST_FIELDS: Key[dict[str, Any]] = Key("BindRequest/fields")
"""What plugins that give out devices put into the spec of a pod's request, by the fields' Python names."""


def name_in_request(cycle: Cycle, **fields: Any) -> None:
    """Have the request of the pod, if there is one, say this of what was given to it."""
    before = cycle.find(REQUEST_FIELDS)
    cycle.put(REQUEST_FIELDS, fields if before is None else {**before, **fields})


class MutateFailed(PluginError):
    """A plugin whose data a request cannot do without has failed."""


@dataclass(frozen=True, slots=True)
class Mutator:
    """One function that was registered, by whom, and what its failure means."""

    plugin: str
    fn: Callable[..., Mapping[str, str] | None]
    on_error: str = SKIP

    def __post_init__(self) -> None:
        if self.on_error not in (SKIP, FAIL):
            raise PluginError(f'plugin "{self.plugin}" has on_mutate_error = {self.on_error!r}; it is "skip" or "fail"')


class BindRequestMutation:
    """Asks the functions and merges what they say; keeps count."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._warned: set[tuple[str, str]] = set()
        none = Stability.NONE
        self.errors = Counter(f"{_PREFIX}errors_total", "Plugins that failed at it.", ("plugin",), stability=none)
        self.conflicts = Counter(
            f"{_PREFIX}conflicts_total", "Keys that a later plugin has overwritten.", ("key",), stability=none
        )
        self.seconds = Histogram(
            f"{_PREFIX}seconds",
            "How long plugins took.",
            ("plugin",),
            buckets=exponential_buckets(0.00001, 4, 10),
            stability=none,
        )

    def add_to(self, registry: Registry) -> None:
        registry.add(self.errors, self.conflicts, self.seconds)

    def annotations(self, mutators: Iterable[Mutator], about: str, *question: Any) -> dict[str, str]:
        """What all of them say of one request, merged in their order. `about`: the pod, for the log.

        Raises `MutateFailed` where one fails that says the request cannot do without it."""
        bind_request_annotations: dict[str, str] = {}
        owners: dict[str, str] = {}
        for mutator in mutators:
            try:
                given = self._asked(mutator, about, question)
                self._demand_room(bind_request_annotations, given)
            except _Faulty as fault:
                self.errors.labels(mutator.plugin).inc()
                log.error('plugin "%s" and the bind request of pod %s: %s', mutator.plugin, about, fault)
                if mutator.on_error == FAIL:
                    raise MutateFailed(f'plugin "{mutator.plugin}" at mutate_bind_request: {fault}') from fault
                given = fault.rest
            self._merge(bind_request_annotations, owners, mutator.plugin, given)
        return bind_request_annotations

    def _asked(self, mutator: Mutator, about: str, question: tuple[Any, ...]) -> dict[str, str]:
        """A checked copy of what one says. Reading it is as much the plugin's code as the function is."""
        start_s = self._clock.monotonic_s()
        try:
            return self._copied(mutator.plugin, mutator.fn(*question))
        except _Faulty:
            raise
        except FAULTS as fault:
            raise _Faulty(f"{type(fault).__name__}: {words_of_fault(fault)}") from fault
        finally:
            took_s = self._clock.monotonic_s() - start_s
            self.seconds.labels(mutator.plugin).observe(took_s)
            if took_s > SLOW_S:
                log.warning('plugin "%s" took %.0f ms for the bind request of %s', mutator.plugin, took_s * 1e3, about)

    def _copied(self, plugin: str, answer: Any) -> dict[str, str]:
        if answer is None:
            return {}
        if not isinstance(answer, Mapping):
            raise _Faulty(f"it answered {answer!r}, which is no mapping")
        good, bad = {}, []
        for key, value in answer.items():
            problem = problem_of(key, value)
            if problem:
                bad.append(problem)
            else:
                good[key] = value
                self._look_at_name(plugin, key)
        if bad:
            raise _Faulty("; ".join(bad), good)
        return good

    def _look_at_name(self, plugin: str, key: str) -> None:
        """Keys by another convention are taken, and told once: nobody else knows whose they are."""
        if not key.partition("/")[0].endswith(f".{ANNOTATION_DOMAIN}") and (plugin, key) not in self._warned:
            self._warned.add((plugin, key))
            log.warning('plugin "%s" uses the key %s; <plugin>.%s/<key> is the custom', plugin, key, ANNOTATION_DOMAIN)

    @staticmethod
    def _demand_room(before: Mapping[str, str], given: Mapping[str, str]) -> None:
        size = sum(len(key.encode()) + len(value.encode()) for key, value in {**before, **given}.items())
        if size > LARGEST:
            raise _Faulty(f"the annotations would take {size} bytes, and {LARGEST} are allowed")

    def _merge(self, into: dict[str, str], owners: dict[str, str], plugin: str, given: Mapping[str, str]) -> None:
        for key, value in given.items():
            if key in into and into[key] != value and owners[key] != plugin:
                self.conflicts.labels(key).inc()
                log.debug('plugin "%s" overwrites %s of plugin "%s"', plugin, key, owners[key])
            into[key], owners[key] = value, plugin


class _Faulty(Exception):
    """What is wrong with what a plugin said; `rest` is what may be used all the same."""

    def __init__(self, text: str, rest: Mapping[str, str] | None = None) -> None:
        super().__init__(text.encode(errors="backslashreplace").decode())  # it goes into the status of a pod
        self.rest = dict(rest or {})


def problem_of(key: object, value: object) -> str:
    """Why a pair cannot be an annotation; nothing where it can."""
    if not _is_text(key):
        return f"the key {key!r} is no text"
    problems = label_key_problems(key)
    if problems:
        return f"the key {key!r} is no name of an annotation: {problems[0]}"
    domain = key.partition("/")[0] if "/" in key else ""
    if any(domain == each or domain.endswith(f".{each}") for each in _RESERVED):
        return f"the key {key} belongs to Kubernetes"
    return "" if _is_text(value) else f"the value of {key} is {value!r}, which is no text"


def _is_text(value: object) -> TypeGuard[str]:
    """Whether it can be written: half of a pair of surrogates cannot."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


# what failed ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A node on which bindings of a pod were given up. `left_s`: for how long it is not tried there; 0: it may be."""

    node: str
    times: int
    reason: str
    left_s: float


@dataclass(slots=True)
class _Record:
    total: int = 0
    nodes: dict[str, tuple[int, float, str]] = field(default_factory=dict)  # how often, excluded until, and why
    blocked_until_s: float = 0.0
    last: str = ""
    held_until_s: float = 0.0
    held_why: str = ""


class BindFailures:
    """Pods whose bindings were given up: where each is not to be tried for a while, and when it may be at all."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.records: dict[str, _Record] = {}
        """By the uids of the pods that have failed, and are neither bound nor gone."""

    def note(self, uid: str, node_name: str, reason: str) -> float:
        """A binding was given up; for how many seconds the pod is kept from that node."""
        record, now_s = self.records.setdefault(uid, _Record()), self._clock.monotonic_s()
        count = record.nodes.get(node_name, (0, 0.0, ""))[0]
        pause_s = min(FIRST_EXCLUSION_S * 2.0 ** min(count, 16), LAST_EXCLUSION_S)
        record.nodes[node_name] = count + 1, now_s + pause_s, reason
        record.total += 1
        record.last = f"on node {node_name}: {reason}"
        if record.total >= PATIENCE:
            blocked_s = min(FIRST_EXCLUSION_S * 2.0 ** min(record.total - PATIENCE, 16), LAST_EXCLUSION_S)
            record.blocked_until_s = now_s + blocked_s
        return pause_s

    def hold(self, uid: str, until_s: float, why: str) -> None:
        """A pod must not be tried on any node until then, on the monotonic clock."""
        record = self.records.setdefault(uid, _Record())
        record.held_until_s, record.held_why = until_s, why

    def forget(self, uid: str) -> None:
        """The pod is bound, or gone."""
        self.records.pop(uid, None)

    def excluded(self, uid: str) -> frozenset[str]:
        """The nodes on which a pod is not to be tried now."""
        record = self.records.get(uid)
        return frozenset() if record is None else frozenset(self._excluded(record))

    def _excluded(self, record: _Record) -> Iterator[str]:
        now_s = self._clock.monotonic_s()
        return (node for node, (_, until_s, _) in record.nodes.items() if until_s > now_s)

    def exclusions(self, uid: str) -> tuple[Exclusion, ...]:
        """All nodes on which bindings of a pod were given up, those too where it may be tried again."""
        record, now_s = self.records.get(uid), self._clock.monotonic_s()
        nodes = {} if record is None else record.nodes
        return tuple(
            Exclusion(node, times, reason, max(until_s - now_s, 0.0))
            for node, (times, until_s, reason) in nodes.items()
        )

    def blocked_s(self, uid: str) -> float:
        """For how long a pod is not to be tried at all."""
        record = self.records.get(uid)
        if record is None:
            return 0.0
        return max(max(record.blocked_until_s, record.held_until_s) - self._clock.monotonic_s(), 0.0)

    def opens_in_s(self, uid: str) -> float | None:
        """In how long a pod may be tried where it may not be now; None: nothing is kept from it. One that is not tried
        at all is when that ends, for there are nodes besides those on which it was given up."""
        shut_s = [each.left_s for each in self.exclusions(uid) if each.left_s]
        return self.blocked_s(uid) or min(shut_s, default=None)

    def blocked(self, uid: str) -> str:
        """Why a pod is not to be tried at all now; nothing where it may be."""
        record, left_s = self.records.get(uid), self.blocked_s(uid)
        if record is None or not left_s:
            return ""
        if record.held_until_s > record.blocked_until_s:
            return f"BindFailed: {record.held_why}; it is tried again in {left_s:.0f} s"
        return (
            f"BindFailed: {record.total} bindings of the pod were given up, the last {record.last}; "
            f"it is tried again in {left_s:.0f} s"
        )


class Following(Protocol):
    """Who knows what became of requests: `cache.bind_requests.BindRequests` is one."""

    def made(self, request: BindRequest, pod: Pod) -> None: ...

    def request_of(self, pod: Pod) -> BindRequest | None:
        """The request that is to bring the pod to a node, as far as is known."""
        ...


class BindRequestDesk:
    """Where an engine's requests are drawn up: what all of them have in common."""

    def __init__(self, clock: Clock, *, attempts: int | None = 3) -> None:
        self.mutation = BindRequestMutation(clock)
        self.failures = BindFailures(clock)
        self.attempts = attempts
        self.reservations = RESERVATIONS
        """The namespace of the pods that hold shared GPUs."""
        self.following: Following | None = None

    def request(self, pod: Pod, node_name: str, annotations: Mapping[str, str], **spec: Any) -> BindRequest:
        return new_request(pod, node_name, annotations=annotations, backoff_limit=self.attempts, **spec)

    def made(self, request: BindRequest, pod: Pod) -> None:
        """The API server has it: whoever looks at requests need not wait for the watch."""
        if self.following is not None:
            self.following.made(request, pod)

    def groups_of(self, pod: Pod) -> tuple[str, ...]:
        """The GPU groups that the request of a pod names."""
        request = self.following.request_of(pod) if self.following is not None else None
        return request.spec.selected_gpu_groups if request is not None else ()
