"""Options for the lifecycle of pods on fake nodes, one for each stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bayplan.errors import UsageError

if TYPE_CHECKING:
    from bayplan.controllers.kubelet.pod_stages import PodBehavior

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    ("--starts-after", "DURATION", "Time until pods start.  [default: 0s]"),
    ("--ready-after", "DURATION", "Time until started pods are ready.  [default: 0s]"),
    ("--runs-for", "DURATION", "Run time of pods.  [default: 2s for pods of a Job, unlimited for other pods]"),
    ("--stops-after", "DURATION", "Time until deleted pods stop.  [default: 0s]"),
    ("--exit-code", "NUMBER", "Exit code of pods; any but 0 is a failure.  [default: 0]"),
    ("--failure-rate", "SHARE", "Share of pods that fail: 0.2 or 20%."),
)


def kubelet_options(command: F) -> F:
    """All options, as texts for `parse_kubelet_options`."""
    for flag, metavar, text in reversed(_OPTIONS):
        command = click.option(flag, metavar=metavar, help=text)(command)
    return command


def pop_kubelet_options(options: dict[str, Any]) -> dict[str, str]:
    """Remove these options from `options` and return the given ones by flag."""
    texts = {flag: options.pop(flag[2:].replace("-", "_")) for flag, _, _ in _OPTIONS}
    return {flag: text for flag, text in texts.items() if text is not None}


def parse_kubelet_options(given: Mapping[str, str]) -> PodBehavior:
    """The pod behavior of the flags. An invalid value is a usage error."""
    from bayplan.controllers.kubelet.pod_stages import STAGES, PodBehavior

    values = {}
    for stage in STAGES:
        text = given.get(stage.flag)
        if text is None:
            continue
        values[stage.field] = stage.read(text)
        if values[stage.field] is None:
            raise UsageError(f"{stage.flag} {text}: that {stage.advice}")
    return PodBehavior(**values)
