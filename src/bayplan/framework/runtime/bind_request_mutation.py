"""Annotations that plugins add to a BindRequest. Used by both engines.

A plugin passes data to a binder plugin through annotations. It is called once for each request, when the decision is
made and before the request is written. The result is checked, copied and merged; for the same key the later plugin
wins. A plugin that fails loses its own annotations, or prevents the binding if it declares that its data is required.
Cost: the calls, and a few microseconds for each key.
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
"""Effect of a failing plugin on a request: it lacks the plugin's annotations, or it is not created."""
MAX_ANNOTATION_BYTES = 256 * 1024
SLOW_S = 0.05
_RESERVED = ("kubernetes.io", "k8s.io")
_PREFIX = "kai_bind_request_mutate_"

EXCLUDED_NODE_REASON = "node(s) on which a binding of the pod failed recently"


REQUEST_FIELDS: StateKey[dict[str, Any]] = StateKey("BindRequest/fields")
"""Spec fields of the pod's request, by their Python names. Plugins that allocate devices set them."""


def add_request_fields(cycle: Cycle, **fields: Any) -> None:
    """Add fields to the spec of the pod's BindRequest, if one is created."""
    before = cycle.find(REQUEST_FIELDS)
    cycle.put(REQUEST_FIELDS, fields if before is None else {**before, **fields})


class MutateBindRequestError(PluginError):
    """A plugin failed whose data a request requires."""


@dataclass(frozen=True, slots=True)
class Mutator:
    """A registered function, its plugin, and the effect of its failure."""

    plugin: str
    fn: Callable[..., Mapping[str, str] | None]
    on_error: str = SKIP

    def __post_init__(self) -> None:
        if self.on_error not in (SKIP, FAIL):
            raise PluginError(
                f'plugin "{self.plugin}" has on_mutate_error = {self.on_error!r}; set it to "skip" or "fail"'
            )


class BindRequestMutation:
    """Calls the functions, merges their annotations, and counts errors and conflicts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._warned: set[tuple[str, str]] = set()
        none = Stability.NONE
        self.errors = Counter(
            f"{_PREFIX}errors_total", "Failed mutate_bind_request calls of plugins.", ("plugin",), stability=none
        )
        self.conflicts = Counter(
            f"{_PREFIX}conflicts_total", "Annotation keys that a later plugin overwrote.", ("key",), stability=none
        )
        self.seconds = Histogram(
            f"{_PREFIX}seconds",
            "Duration of mutate_bind_request calls.",
            ("plugin",),
            buckets=exponential_buckets(0.00001, 4, 10),
            stability=none,
        )

    def add_to(self, registry: MetricsRegistry) -> None:
        registry.add(self.errors, self.conflicts, self.seconds)

    def annotations(self, mutators: Iterable[Mutator], about: str, *args: Any) -> dict[str, str]:
        """Return the merged annotations of all functions for one request. `about`: the pod, for the log.

        Raises `MutateBindRequestError` if a function fails that the request requires.
        """
        merged: dict[str, str] = {}
        owners: dict[str, str] = {}
        for mutator in mutators:
            try:
                annotations = self._call_mutator(mutator, about, args)
                self._check_size(merged, annotations)
            except _InvalidAnnotations as fault:
                self.errors.labels(mutator.plugin).inc()
                log.error('plugin "%s" and the bind request of pod %s: %s', mutator.plugin, about, fault)
                if mutator.on_error == FAIL:
                    raise MutateBindRequestError(
                        f'plugin "{mutator.plugin}" at mutate_bind_request: {fault}'
                    ) from fault
                annotations = fault.rest
            self._merge(merged, owners, mutator.plugin, annotations)
        return merged

    def _call_mutator(self, mutator: Mutator, about: str, args: tuple[Any, ...]) -> dict[str, str]:
        """Call one function and return a checked copy of its annotations.

        Reading the mapping may run plugin code too.
        """
        start_s = self._clock.monotonic_s()
        try:
            return self._checked_copy(mutator.plugin, mutator.fn(*args))
        except _InvalidAnnotations:
            raise
        except PLUGIN_EXCEPTIONS as fault:
            raise _InvalidAnnotations(f"{type(fault).__name__}: {exception_text(fault)}") from fault
        finally:
            took_s = self._clock.monotonic_s() - start_s
            self.seconds.labels(mutator.plugin).observe(took_s)
            if took_s > SLOW_S:
                log.warning('plugin "%s" took %.0f ms for the bind request of %s', mutator.plugin, took_s * 1e3, about)

    def _checked_copy(self, plugin: str, result: Any) -> dict[str, str]:
        if result is None:
            return {}
        if not isinstance(result, Mapping):
            raise _InvalidAnnotations(f"it returned {result!r}, which is not a mapping")
        good, bad = {}, []
        for key, value in result.items():
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
        """Log a key that does not follow the convention, once for each plugin and key. The key is accepted."""
        if not key.partition("/")[0].endswith(f".{ANNOTATION_DOMAIN}") and (plugin, key) not in self._warned:
            self._warned.add((plugin, key))
            log.warning(
                'plugin "%s" uses the annotation key %s; the convention is <plugin>.%s/<key>',
                plugin,
                key,
                ANNOTATION_DOMAIN,
            )

    @staticmethod
    def _check_size(before: Mapping[str, str], annotations: Mapping[str, str]) -> None:
        size = sum(len(key.encode()) + len(value.encode()) for key, value in {**before, **annotations}.items())
        if size > MAX_ANNOTATION_BYTES:
            raise _InvalidAnnotations(f"the annotations have {size} bytes; at most {MAX_ANNOTATION_BYTES} are allowed")

    def _merge(self, into: dict[str, str], owners: dict[str, str], plugin: str, annotations: Mapping[str, str]) -> None:
        for key, value in annotations.items():
            if key in into and into[key] != value and owners[key] != plugin:
                self.conflicts.labels(key).inc()
                log.debug('plugin "%s" overwrites %s of plugin "%s"', plugin, key, owners[key])
            into[key], owners[key] = value, plugin


class _InvalidAnnotations(Exception):
    """Error in a plugin's annotations. `rest`: the valid annotations."""

    def __init__(self, text: str, rest: Mapping[str, str] | None = None) -> None:
        super().__init__(text.encode(errors="backslashreplace").decode())  # the text goes into the status of a pod
        self.rest = dict(rest or {})


def annotation_problem(key: object, value: object) -> str:
    """Return why a pair cannot be an annotation, or an empty string."""
    if not _is_text(key):
        return f"the key {key!r} is not a string"
    problems = label_key_problems(key)
    if problems:
        return f"the key {key!r} is not a valid annotation name: {problems[0]}"
    domain = key.partition("/")[0] if "/" in key else ""
    if any(domain == each or domain.endswith(f".{each}") for each in _RESERVED):
        return f"the key {key} belongs to Kubernetes"
    return "" if _is_text(value) else f"the value of {key} is {value!r}, which is not a string"


def _is_text(value: object) -> TypeGuard[str]:
    """Whether a value is a string that UTF-8 can encode. A lone surrogate cannot."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


class RequestTracker(Protocol):
    """Tracks the state of requests, for example `cache.bind_requests.BindRequestTracker`."""

    def observe_created(self, request: BindRequest, pod: Pod) -> None: ...

    def request_of(self, pod: Pod) -> BindRequest | None:
        """Return the latest known request that binds the pod."""
        ...
