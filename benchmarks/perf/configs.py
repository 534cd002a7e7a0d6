"""Reads every performance-config.yaml of a folder: the test cases and their workloads.

Called once a run. A test case is a series of operations with parameters; a workload gives the parameters their values.
Operations stay as they are in the file, with parameters filled in; `operations` interprets them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bayplan.codec.yaml import read_document
from bayplan.errors import BayplanError, UsageError

CONFIG = "performance-config.yaml"
_THROUGHPUT = "SchedulingThroughput"

Operation = Mapping[str, Any]


class ConfigFault(BayplanError):
    """A benchmark file lacks required content."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One set of parameters of a test case."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    labels: frozenset[str] = frozenset()
    feature_gates: Mapping[str, bool] = field(default_factory=dict)
    threshold: float | None = None
    """Pods a second that kube-scheduler must reach on upstream's machines, through an API server."""


@dataclass(frozen=True, slots=True)
class TestCase:
    """A series of operations, and the workloads that run it."""

    __test__ = False  # not a pytest class

    topic: str
    name: str
    folder: Path
    operations: tuple[Operation, ...]
    workloads: tuple[Workload, ...]
    pod_template: str | None = None
    scheduler_config: str | None = None

    def operations_for(self, workload: Workload) -> list[dict[str, Any]]:
        """The operations with the workload's parameters filled in."""
        return [_filled(operation, workload) for operation in self.operations]

    def file(self, path: str) -> Path:
        """A file that the test case names: names are relative to its own folder."""
        return (self.folder / path).resolve()


def load_all(folder: Path) -> list[TestCase]:
    """Every test case below a folder, by topic and in the order of the files."""
    files = sorted(folder.rglob(CONFIG))
    if not files:
        raise ConfigFault(f"{folder} has no {CONFIG}; it is not a folder of scheduler_perf")
    return [case for file in files for case in load(file, topic=file.parent.relative_to(folder).as_posix())]


def load(file: Path, *, topic: str = "") -> Iterator[TestCase]:
    """The test cases of one file."""
    found = read_document(file.read_text(encoding="utf-8"))
    if not isinstance(found, list):
        raise ConfigFault(f"{file} is not a list of test cases")
    return (_case(raw, topic, file) for raw in found)


def _case(raw: Mapping[str, Any], topic: str, file: Path) -> TestCase:
    gates = raw.get("featureGates") or {}
    try:
        return TestCase(
            topic=topic,
            name=raw["name"],
            folder=file.parent,
            operations=tuple(raw["workloadTemplate"]),
            workloads=tuple(_workload(each, gates, topic, raw.get("labels") or ()) for each in raw["workloads"]),
            pod_template=raw.get("defaultPodTemplatePath"),
            scheduler_config=raw.get("schedulerConfigPath"),
        )
    except (KeyError, TypeError) as fault:
        raise ConfigFault(f"{file}: a test case lacks {fault}") from None


def _workload(raw: Mapping[str, Any], gates: Mapping[str, bool], topic: str, labels: Iterable[str]) -> Workload:
    threshold = raw.get("threshold")
    if isinstance(threshold, Mapping):
        threshold = threshold.get(topic)
    selector = raw.get("thresholdMetricSelector") or {}
    if selector.get("name", _THROUGHPUT) != _THROUGHPUT:
        threshold = None  # thresholds of other metrics than pods a second are ignored
    return Workload(
        name=raw["name"],
        params=raw.get("params") or {},
        labels=frozenset([*labels, *(raw.get("labels") or ())]),
        feature_gates={**gates, **(raw.get("featureGates") or {})},
        threshold=threshold,
    )


def _filled(operation: Operation, workload: Workload) -> dict[str, Any]:
    """`countParam: $nodes` becomes `count: 5000`, also in nested operations."""
    found: dict[str, Any] = {}
    for key, value in operation.items():
        if isinstance(value, Mapping) and "opcode" in value:
            found[key] = _filled(value, workload)
        elif key.endswith("Param") and isinstance(value, str):
            found[key.removesuffix("Param")] = _parameter(value, workload)
        else:
            found.setdefault(key, value)
    return found


def _parameter(text: str, workload: Workload) -> Any:
    name = text.removeprefix("$")
    if name not in workload.params:
        raise ConfigFault(f"workload {workload.name} has no parameter {name}, which its operations use")
    return workload.params[name]


# choosing


@dataclass(frozen=True, slots=True)
class LabelFilter:
    """`performance,-short`: labels that a workload must have, and must not have."""

    wanted: frozenset[str] = frozenset()
    unwanted: frozenset[str] = frozenset()

    @classmethod
    def of(cls, text: str) -> LabelFilter:
        words = [word.strip() for word in text.split(",") if word.strip()]
        return cls(
            frozenset(word.removeprefix("+") for word in words if not word.startswith("-")),
            frozenset(word[1:] for word in words if word.startswith("-")),
        )

    def takes(self, workload: Workload) -> bool:
        return self.wanted <= workload.labels and not self.unwanted & workload.labels


def chosen(
    cases: Iterable[TestCase], names: Iterable[str], workload: str | None, labels: LabelFilter
) -> list[tuple[TestCase, Workload]]:
    """The workloads of the named test cases, topics or `topic/TestCase`; all of them if no name is given."""
    cases, wanted = list(cases), list(names)
    for name in wanted:
        if not any(_is_named(case, name) for case in cases):
            raise UsageError(f"no benchmark is called {name}; `list` shows them all")
    named = [case for case in cases if not wanted or any(_is_named(case, name) for name in wanted)]
    found = [
        (case, each)
        for case in named
        for each in case.workloads
        if (each.name == workload if workload is not None else labels.takes(each))
    ]
    if not found:
        which = f"workload {workload}" if workload is not None else "workload with these labels"
        raise UsageError(f"{', '.join(wanted) or 'scheduler_perf'} has no {which}; `list` shows them all")
    return found


def _is_named(case: TestCase, name: str) -> bool:
    return name in (case.name, case.topic, f"{case.topic}/{case.name}")
