"""The options about how pods of fake nodes live, for every verb that has such nodes: one for each stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bayplan.errors import UsageError

if TYPE_CHECKING:
    from bayplan.controllers.kubelet.pod_stages import PodBehavior

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    ("--starts-after", "DURATION", "Pods take this long to start.  [default: 0s]"),
    ("--ready-after", "DURATION", "Pods are ready this long after they start.  [default: 0s]"),
    ("--runs-for", "DURATION", "Pods end after this long, or run forever.  [default: 2s if they are a Job's]"),
    ("--stops-after", "DURATION", "Pods take this long to stop.  [default: 0s]"),
    ("--exit-code", "NUMBER", "How pods end; not 0 is a failure.  [default: 0]"),
    ("--failure-rate", "SHARE", "Only this share of pods fails: 0.2 or 20%."),
)


def kubelet_options(command: F) -> F:
    """All of them, as texts: `parse_kubelet_options` reads them."""
    for flag, metavar, told in reversed(_OPTIONS):
        command = click.option(flag, metavar=metavar, help=told)(command)
    return command


def pop_kubelet_options(told: dict[str, Any]) -> dict[str, str]:
    """Those that were given, by flag; the others are left in `told` with everything else."""
    texts = {flag: told.pop(flag[2:].replace("-", "_")) for flag, _, _ in _OPTIONS}
    return {flag: text for flag, text in texts.items() if text is not None}


def parse_kubelet_options(given: Mapping[str, str]) -> PodBehavior:
    """What the flags mean; nonsense is told in one sentence."""
    from bayplan.controllers.kubelet.pod_stages import STAGES, PodBehavior

    said = {}
    for stage in STAGES:
        text = given.get(stage.flag)
        if text is None:
            continue
        said[stage.field] = stage.read(text)
        if said[stage.field] is None:
            raise UsageError(f"{stage.flag} {text}: that {stage.advice}")
    return PodBehavior(**said)
