"""Validation of a Queue alone and with the other queues, with Volcano's messages.

The webhooks and the embedded API server call it for every new, changed or deleted queue. Cost: a walk along its
ancestors and one over its subtree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bayplan.codec.field_errors import FieldError, aggregate, invalid
from bayplan.codec.quantity import Quantity, QuantityError, parse_quantity
from bayplan.objects.volcano.constants import CLOSED, HIERARCHY, HIERARCHY_WEIGHTS, OPEN, Tree
from bayplan.objects.volcano.types import DEFAULT_QUEUE, ROOT_QUEUE

Quantities = dict[str, Quantity]
MAX_DEPTH = 5


@dataclass(frozen=True, slots=True)
class QueueValidationRules:
    """Configurable rules; the flags of Volcano's webhook manager."""

    max_depth: int = MAX_DEPTH
    check_allocated_pods: bool = False
    protect_root: bool = True


def queue_error(
    queue: Tree, queues: Mapping[str, Tree], *, old: Tree | None = None, rules: QueueValidationRules
) -> str:
    """Why a queue is refused; empty if it is valid. `old`: its earlier state."""
    errors = [*_amount_errors(queue), *_state_errors(queue, old), *_hierarchy_errors(queue, queues)]
    if errors:
        return aggregate(errors)
    if (old is None or parent_of(old) != parent_of(queue)) and (error := _parent_error(queue, queues, rules)):
        return error
    if rules.protect_root and old is not None and _name(queue) == ROOT_QUEUE and _shares(queue) != _shares(old):
        return "root queue's resource attributes (capability, deserved, guarantee) cannot be modified"
    affects_shares = old is None or parent_of(old) != parent_of(queue) or _shares(queue) != _shares(old)
    return _share_error(queue, queues) if affects_shares and _name(queue) != ROOT_QUEUE else ""


def queue_deletion_error(name: str, queues: Mapping[str, Tree], *, rules: QueueValidationRules) -> str:
    """Why a queue cannot be deleted; empty if it can."""
    if name in (DEFAULT_QUEUE, ROOT_QUEUE):
        return f"`{name}` queue can not be deleted"
    if rules.check_allocated_pods and (pods := _allocated_pods(queues.get(name, {}))):
        return f"queue {name} cannot be deleted because it has allocated Pods: {pods}"
    children = children_of(name, queues)
    if children:
        names = ", ".join(children)
        return f"queue {name} can not be deleted because it has {len(children)} child queues: {names}"
    return ""


def children_of(name: str, queues: Mapping[str, Tree]) -> list[str]:
    return [child for child, queue in queues.items() if parent_of(queue) == name]


def parent_of(queue: Tree) -> str:
    return str((queue.get("spec") or {}).get("parent") or "")


def _name(queue: Tree) -> str:
    return str((queue.get("metadata") or {}).get("name") or "")


def _amounts(queue: Tree, share: str) -> Quantities:
    spec = queue.get("spec") or {}
    given = (spec.get("guarantee") or {}).get("resource") if share == "guarantee" else spec.get(share)
    return {name: parse_quantity(value) for name, value in (given or {}).items()}


def _shares(queue: Tree | None) -> tuple[Quantities, ...]:
    return tuple(_amounts(queue or {}, share) for share in ("capability", "deserved", "guarantee"))


def _amount_errors(queue: Tree) -> Iterator[FieldError | str]:
    path = "requestBody.spec"
    try:
        capability, deserved, guarantee = _shares(queue)
    except QuantityError as error:
        yield f"{path}: {error}"
        return
    for share, amounts in (("capability", capability), ("deserved", deserved), ("guarantee.resource", guarantee)):
        for name, amount in amounts.items():
            if amount.sign() < 0:
                yield invalid(f"{path}.{share}.{name}", str(amount), "must be greater than or equal to 0")
    for name, least in guarantee.items():
        due = deserved.get(name)
        if due is None:
            why = f"deserved[{name}] must be >= guarantee[{name}]={least}"
            yield invalid(f"{path}.deserved.{name}", "<nil>", why)
        elif due < least:
            why = f"deserved[{name}]={due} must be >= guarantee[{name}]={least}"
            yield invalid(f"{path}.deserved.{name}", str(due), why)
    for name, due in deserved.items():
        most = capability.get(name)
        if most is not None and most < due:
            why = f"deserved[{name}]={due} must be <= capability[{name}]={most}"
            yield invalid(f"{path}.deserved.{name}", str(due), why)


def _state_errors(queue: Tree, old: Tree | None) -> Iterator[FieldError]:
    """Errors of the state. An unchanged state is not checked, so a closing queue can still be updated."""
    state = (queue.get("status") or {}).get("state") or ""
    if old is not None and ((old.get("status") or {}).get("state") or "") == state:
        return
    if state not in ("", OPEN, CLOSED):
        yield invalid("requestBody.spec.state", state, f"queue state must be in [{OPEN} {CLOSED}]")


def _hierarchy_errors(queue: Tree, queues: Mapping[str, Tree]) -> Iterator[FieldError]:
    annotations = (queue.get("metadata") or {}).get("annotations") or {}
    hierarchy, weights = annotations.get(HIERARCHY) or "", annotations.get(HIERARCHY_WEIGHTS) or ""
    if not hierarchy and not weights:
        return
    path = "requestBody.metadata.annotations"
    if len(hierarchy.split("/")) != len(weights.split("/")):
        yield invalid(path, hierarchy, f"{HIERARCHY} must have the same length with {HIERARCHY_WEIGHTS}")
        return
    for weight in weights.split("/"):
        number = _number(weight)
        if number is None:
            why = f'{weight} in the {weights} is invalid number: strconv.ParseFloat: parsing "{weight}": invalid syntax'
            yield invalid(path, weights, why)
            return
        if number <= 0:
            yield invalid(path, weights, f"{weight} in the {weights} must be larger than 0")
            return
    for name, other in queues.items():
        other_hierarchy = ((other.get("metadata") or {}).get("annotations") or {}).get(HIERARCHY) or ""
        if name != _name(queue) and other_hierarchy.startswith(f"{hierarchy}/"):
            yield invalid(
                path,
                hierarchy,
                f"{hierarchy} is not allowed to be in the sub path of {other_hierarchy} of queue {name}",
            )
            return


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _parent_error(queue: Tree, queues: Mapping[str, Tree], rules: QueueValidationRules) -> str:
    name, parent = _name(queue), parent_of(queue)
    if parent in ("", ROOT_QUEUE):
        return ""
    if parent == name:
        return f"queue {name} cannot use itself as parent"
    depth, above = 1, parent
    while above not in ("", ROOT_QUEUE):
        depth += 1
        if depth > rules.max_depth:
            return f"queue {name} exceeds the maximum allowed depth of {rules.max_depth}"
        if above not in queues:
            return f"failed to get parent queue {above} of queue {name}: {_not_found(above)}"
        above = parent_of(queues[above])
    if not children_of(parent, queues) and (pods := _allocated_pods(queues[parent])):
        return f"queue {parent} cannot be the parent queue of queue {name} because it has allocated Pods: {pods}"
    return ""


def _not_found(name: str) -> str:
    return f'queue.scheduling.volcano.sh "{name}" not found'


def _allocated_pods(queue: Tree) -> int:
    given = ((queue.get("status") or {}).get("allocated") or {}).get("pods")
    return parse_quantity(given).value() if given is not None else 0


def _share_error(queue: Tree, queues: Mapping[str, Tree]) -> str:
    """Why the shares of a queue contradict those of its ancestors, siblings and descendants."""
    name, parent = _name(queue), parent_of(queue)
    if parent not in ("", ROOT_QUEUE):
        if parent not in queues:
            return f"parent queue {parent} not found: {_not_found(parent)}"
        if error := _ancestor_error(queue, queues):
            return error
        siblings = [queues[each] for each in children_of(parent, queues) if each != name]
        if error := _sum_error(queues[parent], [*siblings, queue]):
            return f"parent queue {parent} validation failed: {error}"
    children = [queues[each] for each in children_of(name, queues)]
    for resource, most in _amounts(queue, "capability").items():
        below = max((_subtree_capability(each, resource, queues) for each in children), default=Quantity.of(0))
        if most < below:
            return f"queue {name} capability[{resource}]={most} is smaller than its descendants' max capability={below}"
    if error := _sum_error(queue, children):
        return f"queue {name} validation failed: {error}"
    return ""


def _ancestor_error(queue: Tree, queues: Mapping[str, Tree]) -> str:
    for resource, own_amount in _amounts(queue, "capability").items():
        above, seen = parent_of(queue), set[str]()
        while above in queues and above != ROOT_QUEUE and above not in seen:
            seen.add(above)
            ancestor_amount = _amounts(queues[above], "capability").get(resource)
            if ancestor_amount is not None and ancestor_amount.sign() > 0:
                if ancestor_amount < own_amount:
                    exceeded = f"exceeds its ancestor's capability={ancestor_amount}"
                    return f"queue {_name(queue)} capability[{resource}]={own_amount} {exceeded}"
                break
            above = parent_of(queues[above])
    return ""


def _sum_error(parent: Tree, children: list[Tree]) -> str:
    for share in ("guarantee", "deserved"):
        limit, total = _amounts(parent, share), dict[str, Quantity]()
        for child in children:
            for name, amount in _amounts(child, share).items():
                total[name] = total[name] + amount if name in total else amount
        if any(limit.get(name, Quantity.of(0)) < amount for name, amount in total.items()):
            return (
                f"sum of children's {share} ({_amounts_text(total)}) exceeds parent's {share} limit "
                f"({_amounts_text(limit)})"
            )
    return ""


def _amounts_text(amounts: Quantities) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in sorted(amounts.items())) or "nothing"


def _subtree_capability(queue: Tree, resource: str, queues: Mapping[str, Tree], depth: int = 0) -> Quantity:
    own_amount = _amounts(queue, "capability").get(resource)
    if own_amount is not None and own_amount.sign() > 0:
        return own_amount
    if depth > len(queues):
        return Quantity.of(0)  # a cycle of parents
    below = (
        _subtree_capability(queues[each], resource, queues, depth + 1) for each in children_of(_name(queue), queues)
    )
    return max(below, default=Quantity.of(0))
