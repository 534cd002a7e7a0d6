"""Rules for names and addresses that take a short way."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from bayplan.cluster.rules.names import address, ip

PARTS = st.one_of(
    st.integers(0, 300).map(str), st.sampled_from(["", "00", "01", "0x1", "-1", "1 ", "a", "1\n", "\u0661"])
)


@given(text=st.lists(PARTS, min_size=3, max_size=5).map(".".join))
@example(text="10.1.2.3")
@example(text="255.255.255.255")
@example(text="10.1.2.3.")
@example(text="::1")
def test_an_address_is_known_by_its_looks_if_it_is_one(text: str) -> None:
    assert (ip(text) == ()) == (address(text) is not None)
