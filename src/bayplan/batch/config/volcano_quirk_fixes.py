"""Which of Volcano's quirks are mended here? None, unless somebody asks for it by name.

Sessions do what Volcano's do, quirks included, because people's clusters depend on them. Where another answer is better
for most, it can be switched on when an engine is built; docs/differences.md has the list. Asked when a session opens.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from enum import Enum

from bayplan.errors import UsageError


class QuirkFix(Enum):
    """A quirk that can be switched off; the value is its name."""

    TDM_MIDNIGHT = "tdm-midnight"
    """Hours of `tdm` that go over midnight are open after midnight, too."""
    PDB_UNLABELLED = "pdb-unlabelled"
    """`pdb` lets pods without labels go, which no budget covers."""
    EXTENDER_FAILURES = "extender-failures"
    """An extender that fails and is `ignorable` has no say about victims and readiness; one that is not says no."""
    VICTIMS_VETO = "victims-veto"
    """A tier whose plugins agree on nobody has the last word: nobody is a victim, and no later tier is asked."""


def parse_quirk_fixes(names: Iterable[str | QuirkFix]) -> frozenset[QuirkFix]:
    """The switches of these names; raises `UsageError` for a name that is none."""
    return frozenset(each if isinstance(each, QuirkFix) else _parse_quirk_fix(each) for each in names)


def _parse_quirk_fix(name: str) -> QuirkFix:
    known = [each.value for each in QuirkFix]
    if name in known:
        return QuirkFix(name)
    close = get_close_matches(name, known, n=1)
    meant = f"; did you mean {close[0]}?" if close else ""
    raise UsageError(f"there is no mend {name!r}; known ones are {', '.join(known)}{meant}")
