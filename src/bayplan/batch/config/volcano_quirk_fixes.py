"""Optional fixes for quirks of Volcano.

By default sessions reproduce Volcano's quirks, because existing clusters depend on them. A fix can be enabled by name
when an engine is built; docs/differences.md has the list. Checked when a session opens.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from enum import Enum

from bayplan.errors import UsageError


class QuirkFix(Enum):
    """A quirk that can be fixed; the value is its name."""

    TDM_MIDNIGHT = "tdm-midnight"
    """Time ranges of `tdm` that cross midnight are also active after midnight."""
    PDB_UNLABELLED = "pdb-unlabelled"
    """`pdb` ignores pods without labels, because no budget covers them."""
    EXTENDER_FAILURES = "extender-failures"
    """An `ignorable` extender that fails is ignored for victims and readiness; any other failing extender rejects."""
    VICTIMS_VETO = "victims-veto"
    """A tier whose plugins agree on no victim decides: there are no victims, and later tiers are ignored."""


def parse_quirk_fixes(names: Iterable[str | QuirkFix]) -> frozenset[QuirkFix]:
    """The fixes with these names; raises `UsageError` for an unknown name."""
    return frozenset(each if isinstance(each, QuirkFix) else _parse_quirk_fix(each) for each in names)


def _parse_quirk_fix(name: str) -> QuirkFix:
    known = [each.value for each in QuirkFix]
    if name in known:
        return QuirkFix(name)
    close = get_close_matches(name, known, n=1)
    meant = f"; did you mean {close[0]}?" if close else ""
    raise UsageError(f"unknown quirk fix {name!r}; known names: {', '.join(known)}{meant}")
