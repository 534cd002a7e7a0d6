"""Evicted victims count as terminating in the next search for victims."""

from __future__ import annotations

from bayplan.framework.preemption.dry_run import victim_evictions
from bayplan.framework.preemption.victims import Victims
from bayplan.framework.runtime.nominator import Nominator, TerminatingVictim
from bayplan.testing.builders import make_pod


def test_a_victim_is_listed_until_it_is_deleted() -> None:
    ledger = Nominator()
    ledger.add_victim("v", "n", "default/strong")
    ledger.add_victim("v", "n", "default/other")  # who chose it first is remembered
    assert dict(ledger.terminating_victims_on("n")) == {"v": TerminatingVictim("n", "default/strong")}
    assert ledger.is_victim("v")
    assert not ledger.terminating_victims_on("elsewhere")
    ledger.remove_victim("v")
    ledger.remove_victim("v")
    assert not ledger.terminating_victims
    assert not ledger.terminating_victims_on("n")


def test_a_terminating_victim_is_not_evicted_again() -> None:
    going, staying = make_pod("going"), make_pod("staying")
    victims = Victims((going, staying), 0)
    intents = victim_evictions(make_pod("strong"), "n", victims, "DefaultPreemption", {going.uid})
    assert [(each.victim.name, each.is_last) for each in intents] == [("staying", True)]
