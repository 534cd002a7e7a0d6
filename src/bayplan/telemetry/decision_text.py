"""Turns a decision record into one sentence for people."""

from __future__ import annotations

from collections.abc import Sequence

from bayplan.telemetry.decisions import BEST_NODES, DecisionRecord, ScoredNode, display_score


def decision_sentence(record: DecisionRecord) -> str:
    """Why the pod is on its node, or why it is pending."""
    if record.outcome == "error":
        return f"the attempt failed: {record.message}"
    if record.node is None:
        return _unschedulable_sentence(record)
    if record.nominated == record.node:
        return "it was nominated to this node before"
    if not record.feasible:
        return "placed without a comparison of nodes"
    if record.feasible == 1:
        return f"the only node that fits{_rejection_text(record)}"
    return _best_node_sentence(record)


def _unschedulable_sentence(record: DecisionRecord) -> str:
    if record.nominated:
        if not record.victims:
            return f"fits no node yet; resources on {record.nominated} are reserved for it"
        gone = f"{join_names(record.victims)} {'are' if len(record.victims) > 1 else 'is'} gone"
        return f"fits no node yet; it fits {record.nominated} once {gone}"
    return record.message


def join_names(names: Sequence[str]) -> str:
    """Names in a sentence: a; a and b; a, b and c."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _best_node_sentence(record: DecisionRecord) -> str:
    if not record.best:
        return f"one of {record.feasible} that fit; no plugin prefers any"
    best, *rest = record.best
    head = f"best of {record.feasible} with {best.total}"
    if not rest:
        return head
    second = rest[0]
    if second.total == best.total:
        tied = sum(other.total == best.total for other in rest)
        many = f"{tied} or more nodes" if tied == BEST_NODES - 1 else f"{tied} other node{'s' if tied > 1 else ''}"
        return f"{head}; {many} with the same score, chosen at random"
    return f"{head}, {display_score(best.total - second.total)} ahead of {second.node}{_decided_by(best, second)}"


def _decided_by(best: ScoredNode, second: ScoredNode) -> str:
    """The plugin with the largest difference between the two nodes."""
    behind = dict(second.by_plugin)
    gaps = [(display_score(score - behind.get(plugin, 0)), plugin) for plugin, score in best.by_plugin]
    gap, plugin = max(gaps, default=(0, ""))
    return f" ({plugin} +{gap})" if gap > 0 else ""


def _rejection_text(record: DecisionRecord) -> str:
    """The reasons that rejected the other nodes, most frequent first."""
    parts = [f"{reason.nodes} {reason.text}" for reason in record.reasons[:3]]
    return f"; other nodes: {', '.join(parts)}" if parts else ""
