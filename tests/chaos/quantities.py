"""Quantities of Kubernetes as integers of thousandths, and what a pod requests of its node."""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction
from functools import lru_cache

from chaos.objects import Tree, spec, status

_FORM = re.compile(r"([+-]?[0-9]*\.?[0-9]*)(?:([eE][+-]?[0-9]+)|([numkKMGTPE]i?)?)$")
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


@lru_cache(maxsize=4096)
def milli(text: str) -> int:
    """The quantity in thousandths, rounded up."""
    found = _FORM.fullmatch(text)
    if found is None or not any(each.isdigit() for each in found[1]):
        raise ValueError(f"{text!r} is no quantity")
    number = Fraction(found[1])
    if found[2]:
        number *= Fraction(10) ** int(found[2][1:])
    elif found[3] in _BINARY:
        number *= 1024 ** _BINARY[found[3]]
    else:
        number *= Fraction(10) ** _DECIMAL[found[3] or ""]
    return -((-number * 1000) // 1)


def amounts(found: dict[str, str] | None) -> Counter[str]:
    return Counter({resource: milli(str(text)) for resource, text in (found or {}).items()})


def pod_requests(pod: Tree) -> Counter[str]:
    """What the pod counts for on its node, with one of `pods`, in thousandths."""
    running: Counter[str] = Counter()
    starting: Counter[str] = Counter()
    for container in spec(pod).get("initContainers") or ():
        own = _requests_of(container)
        if container.get("restartPolicy") == "Always":
            running.update(own)
            starting |= running
        else:
            starting |= running + own
    for container in spec(pod).get("containers") or ():
        running.update(_requests_of(container))
    whole = Counter({**(running | starting), **_requests_of(spec(pod))})
    whole.update(amounts(spec(pod).get("overhead")))
    whole["pods"] = 1000
    return whole


def _requests_of(holder: Tree) -> Counter[str]:
    return amounts((holder.get("resources") or {}).get("requests"))


def allocatable(node: Tree) -> Counter[str]:
    return amounts(status(node).get("allocatable"))
