"""Output of `why` in a terminal: one sentence, then the details."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import click
from rich.markup import escape
from rich.table import Table

from bayplan.cli.output.printers import print_table
from bayplan.objects.pod_relaxations import SuggestedChange
from bayplan.telemetry.answers import (
    NOW,
    PENDING,
    Answer,
    BindRequestProgress,
    ExcludedNode,
    GangStatus,
    NodeRejection,
    QueueShare,
    RankedNode,
)

_MAX_NODE_NAMES = 5
_MIN_TEXT_WIDTH = 30


def print_answer(answer: Answer) -> None:
    """Print all parts of the answer that are not empty."""
    click.echo(answer.sentence)
    _print_facts(answer)
    _print_failed_bindings(answer.excluded_nodes)
    _print_best(answer)
    _print_reasons(answer.reasons)
    if answer.state == PENDING:
        _print_changes(answer)
    if answer.gang is not None:
        _print_gang(answer.gang)
    if answer.queue is not None:
        _print_queue(answer.queue)


def _print_facts(answer: Answer) -> None:
    facts = {
        "waits for": answer.waits_for,
        "request": "" if answer.request is None else _progress(answer.request),
        "last error": "" if answer.request is None else answer.request.reason,
        "binder": "" if answer.binder is None else answer.binder.sentence,
        "since": _format_time(answer.since),
        "tried": f"{answer.attempts} time{'s' if answer.attempts != 1 else ''}" if answer.attempts else "",
        "tried next": _format_time(answer.next_try),
        "decided": "now, for this request" if answer.source == NOW else _format_time(answer.decided_at),
    }
    width = max(map(len, facts))
    for name, fact in facts.items():
        if fact:
            click.echo(f"  {name:<{width}}  {fact}")


def _progress(request: BindRequestProgress) -> str:
    limit = f" of {request.limit}" if request.limit else ""
    many = "attempt" if (request.limit or request.failed_attempts) == 1 else "attempts"
    return f"{request.name} to {request.node}: {request.phase}, {request.failed_attempts}{limit} {many} failed"


def _print_failed_bindings(excluded: Sequence[ExcludedNode]) -> None:
    if not excluded:
        return
    click.echo("\nNodes with failed bindings:")
    table = _table("NODE", "TIMES", "TRIED AGAIN", "REASON")
    for each in excluded:
        table.add_row(escape(each.node), str(each.times), _format_time(each.until) or "at once", escape(each.error))
    print_table(table)


def _print_best(answer: Answer) -> None:
    if not answer.best:
        return
    click.echo(f"\nBest of {answer.feasible} nodes that fit, of {answer.nodes}:")
    table = _table("NODE", "TOTAL", "BY PLUGIN")
    for each in answer.best:
        table.add_row(escape(each.node), str(each.total), escape(_by_plugin(each)))
    print_table(table)
    choice = answer.choice
    if choice is not None:
        by = f"; {choice.plugin} decided, +{choice.margin}" if choice.plugin else ""
        click.echo(f"{choice.ahead} ahead of {choice.second}{by}" if choice.ahead else f"as good as {choice.second}")


def _by_plugin(each: RankedNode) -> str:
    return " ".join(f"{plugin}={score}" for plugin, score in each.by_plugin.items() if score)


def _print_reasons(reasons: Sequence[NodeRejection]) -> None:
    if not reasons:
        return
    click.echo("\nRejected nodes:")
    named = any(each.names for each in reasons)
    table = _table("NODES", "REASON", "PLUGIN", *(["WHICH"] if named else []))
    for each in reasons:
        names = [escape(_names(each))] if named else []
        table.add_row(str(each.nodes), escape(each.text), escape(each.plugin), *names)
    print_table(table)


def _names(rejected: NodeRejection) -> str:
    named = ", ".join(rejected.names[:_MAX_NODE_NAMES])
    more = rejected.nodes - min(len(rejected.names), _MAX_NODE_NAMES)
    return f"{named} and {more} more" if named and more > 0 else named


def _print_changes(answer: Answer) -> None:
    if answer.changes:
        click.echo(f"\nAny of these changes is sufficient; the closest node is {answer.closest}:")
        _print_steps(answer.changes)
    elif answer.together:
        click.echo(f"\n{answer.no_change.capitalize()}. For {answer.closest}, together:")
        _print_steps(answer.together)
    elif answer.no_change:
        click.echo(f"\nWhat would have to change: {answer.no_change}.")


def _print_steps(changes: Iterable[SuggestedChange]) -> None:
    for change in changes:
        where = "" if not change.node or change.evict else f" (then it fits {change.node})"
        click.echo(f"  - {change.text}{where}")


def _print_gang(gang: GangStatus) -> None:
    click.echo(f"\nGang {gang.name}: {gang.ready} of {gang.tasks} have a node, {gang.least} must ({gang.phase}).")
    for member in gang.holding_back:
        click.echo(f"  - {member.pod}: {member.reason}")


def _print_queue(queue: QueueShare) -> None:
    share = "" if queue.share is None else f", share {queue.share:.2f}"
    click.echo(f"\nQueue {queue.name}{share}:")
    for name, amounts in (
        ("allocated", queue.allocated),
        ("deserved", queue.deserved),
        ("capability", queue.capability),
    ):
        if amounts:
            click.echo(f"  {name:<10}  {_amounts(amounts)}")
    for each in queue.borrowers:
        click.echo(f"  - {each.queue} holds more than it deserves: {_amounts(each.over)}")


def _amounts(amounts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in amounts.items())


def _format_time(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S %Z}".strip() if at is not None else ""


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        wraps = title in ("BY PLUGIN", "REASON", "WHICH")
        table.add_column(
            title,
            justify="right" if title in ("TOTAL", "NODES", "TIMES") else "left",
            no_wrap=not wraps,
            overflow="fold",
            min_width=_MIN_TEXT_WIDTH if title == "REASON" else None,
        )
    return table
