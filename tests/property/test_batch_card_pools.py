"""Allocations of GPU cards: chosen cards fit, and a rollback restores the pool."""

from __future__ import annotations

from dataclasses import astuple

from hypothesis import given
from hypothesis import strategies as st

from bayplan.batch.devices.vgpus import ContainerVgpuRequest, GpuCard, VgpuRequest, choose_cards

KINDS = ("NVIDIA-A100", "NVIDIA-T4", "other")


@st.composite
def cards(draw: st.DrawFn) -> GpuCard:
    card = GpuCard(
        draw(st.uuids()).hex, draw(st.integers(0, 4)), draw(st.integers(0, 5)) * 1000, draw(st.sampled_from(KINDS))
    )
    for _ in range(draw(st.integers(0, card.max_pods))):
        card.add(draw(st.integers(0, 2)) * 1000, draw(st.sampled_from((0, 30, 100))))
    return card


wishes = st.builds(
    ContainerVgpuRequest,
    st.integers(0, 3),
    st.integers(0, 4).map(lambda gigs: gigs * 1000),
    st.sampled_from((0, 30, 100)),
)
requests = st.builds(
    VgpuRequest,
    st.lists(wishes, min_size=1, max_size=3).map(tuple),
    st.sampled_from((None, "A100", "a100,t4")),
    st.sampled_from((None, "t4")),
    st.none(),
    st.just(""),
)


@given(st.lists(cards(), max_size=5), requests, st.sampled_from(("", "binpack", "spread")))
def test_chosen_cards_fit_and_are_released(found: list[GpuCard], request: VgpuRequest, policy: str) -> None:
    before = [astuple(card) for card in found]
    chosen = choose_cards(found, request, policy)
    if chosen is None:
        assert [astuple(card) for card in found] == before
        return
    assert [len(parts) for parts in chosen.containers] == [wish.number for wish in request.containers]
    for parts, wish in zip(chosen.containers, request.containers, strict=True):
        assert len({each.uuid for each in parts}) == len(parts), "a container has each card once"
        assert all(each.cores == wish.cores for each in parts)
    for card, memory, _ in chosen.taken:
        assert card.users <= card.max_pods
        assert card.used_cores <= 100
        assert card.used_memory <= card.memory or memory == 0
    chosen.undo()
    assert [astuple(card) for card in found] == before
