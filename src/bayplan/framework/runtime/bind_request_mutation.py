"""What plugins put on a BindRequest, and what is remembered of requests that failed. Used by both engines.

A plugin hands data to a binder plugin by annotations: it is asked once for each request, when the decision is made and
about to be written. What it says is checked, copied and merged; where two say something of one key the later wins. A
plugin that fails costs its own contribution, or the whole binding where it says that its data is needed. Cost: the
calls, and a few microseconds a key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

from bayplan.clock import Clock
from bayplan.errors import PluginError
from bayplan.framework.api.cycle import Cycle, StateKey
from bayplan.framework.api.plugin_error import exception_text
from bayplan.framework.runtime.plugin_call import PLUGIN_EXCEPTIONS
from bayplan.objects.core import Pod
from bayplan.objects.kai.bind_request import ANNOTATION_DOMAIN, BindRequest
from bayplan.objects.name_validation import label_key_problems
from bayplan.telemetry.metrics import Counter, Histogram, MetricsRegistry, Stability, exponential_buckets

log = logging.getLogger(__name__)

SKIP, FAIL = "skip", "fail"
"""What becomes of a request when a plugin fails: it lacks what that plugin would have said, or it is not made."""
MAX_ANNOTATION_BYTES = 256 * 1024
SLOW_S = 0.05
_RESERVED = ("kubernetes.io", "k8s.io")
_PREFIX = "kai_bind_request_mutate_"

EXCLUDED_NODE_REASON = "node(s) on which a binding of the pod was given up lately"


REQUEST_FIELDS: StateKey[dict[str, Any]] = StateKey("BindRequest/fields")
"""What plugins that give out devices put into the spec of a pod's request, by the fields' Python names."""


def add_request_fields(cycle: Cycle, **fields: Any) -> None:
    """Have the request of the pod, if there is one, say this of what was given to it."""
    before = cycle.find(REQUEST_FIELDS)
    cycle.put(REQUEST_FIELDS, fields if before is None else {**before, **fields})


class MutateBindRequestError(PluginError):
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

    def add_to(self, registry: MetricsRegistry) -> None:
        registry.add(self.errors, self.conflicts, self.seconds)

    def annotations(self, mutators: Iterable[Mutator], about: str, *question: Any) -> dict[str, str]:
        """What all of them say of one request, merged in their order. `about`: the pod, for the log.

        Raises `MutateBindRequestError` where one fails that says the request cannot do without it."""
        bind_request_annotations: dict[str, str] = {}
        owners: dict[str, str] = {}
        for mutator in mutators:
            try:
                given = self._call_mutator(mutator, about, question)
                self._check_size(bind_request_annotations, given)
            except _InvalidAnnotations as fault:
                self.errors.labels(mutator.plugin).inc()
                log.error('plugin "%s" and the bind request of pod %s: %s', mutator.plugin, about, fault)
                if mutator.on_error == FAIL:
                    raise MutateBindRequestError(
                        f'plugin "{mutator.plugin}" at mutate_bind_request: {fault}'
                    ) from fault
                given = fault.rest
            self._merge(bind_request_annotations, owners, mutator.plugin, given)
        return bind_request_annotations

    def _call_mutator(self, mutator: Mutator, about: str, question: tuple[Any, ...]) -> dict[str, str]:
        """A checked copy of what one says. Reading it is as much the plugin's code as the function is."""
        start_s = self._clock.monotonic_s()
        try:
            return self._checked_copy(mutator.plugin, mutator.fn(*question))
        except _InvalidAnnotations:
            raise
        except PLUGIN_EXCEPTIONS as fault:
            raise _InvalidAnnotations(f"{type(fault).__name__}: {exception_text(fault)}") from fault
        finally:
            took_s = self._clock.monotonic_s() - start_s
            self.seconds.labels(mutator.plugin).observe(took_s)
            if took_s > SLOW_S:
                log.warning('plugin "%s" took %.0f ms for the bind request of %s', mutator.plugin, took_s * 1e3, about)

    def _checked_copy(self, plugin: str, answer: Any) -> dict[str, str]:
        if answer is None:
            return {}
        if not isinstance(answer, Mapping):
            raise _InvalidAnnotations(f"it answered {answer!r}, which is no mapping")
        good, bad = {}, []
        for key, value in answer.items():
            problem = annotation_problem(key, value)
            if problem:
                bad.append(problem)
            else:
                good[key] = value
                self._warn_about_key(plugin, key)
        if bad:
            raise _InvalidAnnotations("; ".join(bad), good)
        return good

    def _warn_about_key(self, plugin: str, key: str) -> None:
        """Keys by another convention are taken, and told once: nobody else knows whose they are."""
        if not key.partition("/")[0].endswith(f".{ANNOTATION_DOMAIN}") and (plugin, key) not in self._warned:
            self._warned.add((plugin, key))
            log.warning('plugin "%s" uses the key %s; <plugin>.%s/<key> is the custom', plugin, key, ANNOTATION_DOMAIN)

    @staticmethod
    def _check_size(before: Mapping[str, str], given: Mapping[str, str]) -> None:
        size = sum(len(key.encode()) + len(value.encode()) for key, value in {**before, **given}.items())
        if size > MAX_ANNOTATION_BYTES:
            raise _InvalidAnnotations(
                f"the annotations would take {size} bytes, and {MAX_ANNOTATION_BYTES} are allowed"
            )

    def _merge(self, into: dict[str, str], owners: dict[str, str], plugin: str, given: Mapping[str, str]) -> None:
        for key, value in given.items():
            if key in into and into[key] != value and owners[key] != plugin:
                self.conflicts.labels(key).inc()
                log.debug('plugin "%s" overwrites %s of plugin "%s"', plugin, key, owners[key])
            into[key], owners[key] = value, plugin


class _InvalidAnnotations(Exception):
    """What is wrong with what a plugin said; `rest` is what may be used all the same."""

    def __init__(self, text: str, rest: Mapping[str, str] | None = None) -> None:
        super().__init__(text.encode(errors="backslashreplace").decode())  # it goes into the status of a pod
        self.rest = dict(rest or {})


def annotation_problem(key: object, value: object) -> str:
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


class RequestTracker(Protocol):
    """Who knows what became of requests: `cache.bind_requests.BindRequestTracker` is one."""

    def observe_created(self, request: BindRequest, pod: Pod) -> None: ...

    def request_of(self, pod: Pod) -> BindRequest | None:
        """The request that is to bring the pod to a node, as far as is known."""
        ...
