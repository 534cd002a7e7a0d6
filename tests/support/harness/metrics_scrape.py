"""Parses a scrape of metrics: families with their headers, labels and buckets, and single values."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass
class MetricFamily:
    """A metric family of a scrape."""

    head: list[str]
    labels: set[str] = field(default_factory=set)
    bounds: list[str] = field(default_factory=list)
    values: dict[tuple[tuple[str, str], ...], float] = field(default_factory=dict)
    """Values by labels, without the `le` label; the count for a histogram."""

    def value(self, **labels: str) -> float:
        """The sum of all values that have these labels."""
        wanted = set(labels.items())
        return sum(value for known, value in self.values.items() if wanted <= set(known))

    def label_values(self, label: str) -> set[str]:
        """Every value of a label."""
        return {value for known in self.values for key, value in known if key == label}


def parse_families(text: str) -> dict[str, MetricFamily]:
    found: dict[str, MetricFamily] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split()[2]
            found[name] = MetricFamily([line])
        elif line.startswith("# TYPE "):
            found[name].head.append(line)
        else:
            _read(found[name], name, line)
    return found


def _read(family: MetricFamily, name: str, line: str) -> None:
    labels = _LABEL.findall(line)
    family.labels |= {key for key, _ in labels} - {"le"}
    family.bounds += [v for k, v in labels if k == "le" and v not in family.bounds]
    written = re.split(r"[{ ]", line, maxsplit=1)[0]
    if written in (name, f"{name}_count"):
        family.values[tuple(labels)] = float(line.rpartition(" ")[2])
