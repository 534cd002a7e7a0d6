"""One line that says why: from a decision record, in words for people."""

from __future__ import annotations

from collections.abc import Sequence

from bayplan.telemetry.decisions import BEST_NODES, DecisionRecord, ScoredNode, display_score


def decision_sentence(record: DecisionRecord) -> str:
    """Why the pod is where it is, or why it is nowhere."""
    if record.outcome == "error":
        return f"the attempt failed: {record.message}"
    if record.node is None:
        return _unschedulable_sentence(record)
    if record.nominated == record.node:
        return "room there was kept for it"
    if not record.feasible:
        return "put there without a comparison of nodes"
    if record.feasible == 1:
        return f"the only node that fits{_rejected(record)}"
    return _best_node_sentence(record)


def _unschedulable_sentence(record: DecisionRecord) -> str:
    if record.nominated:
        if not record.victims:
            return f"fits nowhere yet; room on {record.nominated} is kept for it"
        gone = f"{join_names(record.victims)} {'are' if len(record.victims) > 1 else 'is'} gone"
        return f"fits nowhere yet; {record.nominated} will do once {gone}"
    return record.message


def join_names(names: Sequence[str]) -> str:
    """Names in a sentence: a; a and b; a, b and c."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _best_node_sentence(record: DecisionRecord) -> str:
    if not record.best:
        return f"one of {record.feasible} that fit; no plugin prefers any"
    best, *others = record.best
    head = f"best of {record.feasible} with {best.total}"
    if not others:
        return head
    second = others[0]
    if second.total == best.total:
        tied = sum(other.total == best.total for other in others)
        many = f"{tied} or more others" if tied == BEST_NODES - 1 else f"{tied} other{'s' if tied > 1 else ''}"
        return f"{head}; {many} as good, chosen by lot"
    return f"{head}, {display_score(best.total - second.total)} ahead of {second.node}{_decided_by(best, second)}"


def _decided_by(best: ScoredNode, second: ScoredNode) -> str:
    """The plugin that made the largest difference."""
    behind = dict(second.by_plugin)
    gaps = [(display_score(score - behind.get(plugin, 0)), plugin) for plugin, score in best.by_plugin]
    gap, plugin = max(gaps, default=(0, ""))
    return f" ({plugin} +{gap})" if gap > 0 else ""


def _rejected(record: DecisionRecord) -> str:
    """The reasons that turned the other nodes down, most frequent first."""
    parts = [f"{reason.nodes} {reason.text}" for reason in record.reasons[:3]]
    return f"; others: {', '.join(parts)}" if parts else ""
