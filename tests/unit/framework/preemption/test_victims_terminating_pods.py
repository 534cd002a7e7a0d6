"""Who was told to leave counts as going, for whoever looks for victims next."""

from __future__ import annotations

from bayplan.framework.preemption.dry_run import evictions
from bayplan.framework.preemption.victims import Victims
from bayplan.framework.runtime.nominator import Leaving, NominationLedger
from bayplan.testing.builders import make_pod


def test_who_leaves_is_known_until_it_is_gone() -> None:
    ledger = NominationLedger()
    ledger.leave("v", "n", "default/strong")
    ledger.leave("v", "n", "default/other")  # who chose it first is remembered
    assert dict(ledger.leaving_from("n")) == {"v": Leaving("n", "default/strong")}
    assert ledger.is_leaving("v")
    assert not ledger.leaving_from("elsewhere")
    ledger.stays("v")
    ledger.stays("v")
    assert not ledger.leaving
    assert not ledger.leaving_from("n")


def test_who_leaves_already_is_not_evicted_again() -> None:
    going, staying = make_pod("going"), make_pod("staying")
    victims = Victims((going, staying), 0)
    intents = evictions(make_pod("strong"), "n", victims, "DefaultPreemption", {going.uid})
    assert [(each.victim.name, each.last) for each in intents] == [("staying", True)]
