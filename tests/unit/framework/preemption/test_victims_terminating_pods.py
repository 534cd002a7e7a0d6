"""Evicted victims count as terminating in the next search for victims."""

from __future__ import annotations

from bayplan.framework.preemption.dry_run import victim_evictions
from bayplan.framework.preemption.victims import Victims
from bayplan.framework.runtime.nominator import Nominator, TerminatingVictim
from bayplan.testing.builders import make_pod


def test_a_victim_is_listed_until_it_is_deleted() -> None:
    nominator = Nominator()
    nominator.add_victim("v", "n", "default/strong")
    nominator.add_victim("v", "n", "default/other")  # the first preemptor stays
    assert dict(nominator.terminating_victims_on("n")) == {"v": TerminatingVictim("n", "default/strong")}
    assert nominator.is_victim("v")
    assert not nominator.terminating_victims_on("elsewhere")
    nominator.remove_victim("v")
    nominator.remove_victim("v")
    assert not nominator.terminating_victims
    assert not nominator.terminating_victims_on("n")


def test_a_terminating_victim_is_not_evicted_again() -> None:
    going, staying = make_pod("going"), make_pod("staying")
    victims = Victims((going, staying), 0)
    intents = victim_evictions(make_pod("strong"), "n", victims, "DefaultPreemption", {going.uid})
    assert [(each.victim.name, each.is_last) for each in intents] == [("staying", True)]
