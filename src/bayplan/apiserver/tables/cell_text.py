"""Cell texts of labels, selectors, lists and containers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

NONE = "<none>"
UNSET = "<unset>"


def labels_text(labels: Mapping[str, str] | None) -> str:
    return ",".join(f"{key}={labels[key]}" for key in sorted(labels)) if labels else NONE


def selector_text(selector: Mapping[str, Any] | None) -> str:
    """A label selector in the form of `kubectl -l`; empty if it selects all or nothing."""
    if not selector:
        return ""
    parts = [(key, f"{key}={value}") for key, value in (selector.get("matchLabels") or {}).items()]
    parts += [(each.get("key", ""), _expression(each)) for each in selector.get("matchExpressions") or ()]
    return ",".join(text for _, text in sorted(parts))


def _expression(each: Mapping[str, Any]) -> str:
    key, values = each.get("key", ""), ",".join(sorted(each.get("values") or ()))
    match each.get("operator"):
        case "In":
            return f"{key} in ({values})"
        case "NotIn":
            return f"{key} notin ({values})"
        case "DoesNotExist":
            return f"!{key}"
    return str(key)


def selector_cell(selector: Mapping[str, Any] | None) -> str:
    return selector_text(selector) or NONE


def containers_cells(pod: Mapping[str, Any] | None) -> list[str]:
    """Names and images of the containers of a pod template."""
    containers = ((pod or {}).get("spec") or {}).get("containers") or ()
    return [",".join(each.get(name, "") for each in containers) for name in ("name", "image")]


def list_text(items: Sequence[str], limit: int, *, total: int | None = None, empty: str = UNSET) -> str:
    """The first items, and how many more there are."""
    count = len(items) if total is None else total
    text = ",".join(items[:limit])
    return f"{text} + {count - limit} more..." if count > limit else text or empty


_SHORT = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def access_modes_text(modes: Iterable[str] | None) -> str:
    """Access modes in their short form, in a fixed order."""
    given = set(modes or ())
    return ",".join(short for mode, short in _SHORT.items() if mode in given)


def load_balancer_text(status: Mapping[str, Any] | None) -> str:
    ingress = ((status or {}).get("loadBalancer") or {}).get("ingress") or ()
    return ",".join(sorted({each.get("ip") or each.get("hostname", "") for each in ingress} - {""}))
